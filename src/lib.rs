//! Puts a Rust service into one of Kafka's ZooKeeper-run consumer groups, beside JVM members.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod ack;
pub mod clock;
pub mod error;
pub mod event;
pub mod group;
pub mod kafka;
pub mod lease;
pub mod listener;
pub mod registry;
pub mod stream;
