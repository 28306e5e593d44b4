//! Puts a Rust service into one of Kafka's ZooKeeper-run consumer groups, beside JVM members.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod assign;
pub mod error;
pub mod group;
pub mod id;
