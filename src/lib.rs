//! Puts a Rust service into one of Kafka's ZooKeeper-run consumer groups, beside JVM members.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod config;
pub mod error;
pub mod filter;
pub mod group;
