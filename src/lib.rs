//! Puts a Rust service into one of Kafka's ZooKeeper-run consumer groups, beside JVM members.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod ack;
pub mod assign;
pub mod clock;
pub mod config;
mod coordinator;
pub mod error;
pub mod event;
pub mod filter;
pub mod group;
pub mod id;
pub mod kafka;
pub mod lease;
pub mod listener;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod rebalance;
pub mod registry;
mod session;
pub mod stream;
pub mod wire;
pub mod zk;

#[cfg(any(test, feature = "testing"))]
pub use memory as testing;
