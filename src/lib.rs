//! Puts a Rust service into one of Kafka's ZooKeeper-run consumer groups, beside JVM members.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod ack;
pub mod assign;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod check;
pub mod clock;
pub mod config;
mod connector;
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
#[doc(hidden)]
pub mod memory;
pub mod observer;
pub mod rebalance;
pub mod registry;
mod session;
pub mod stream;
pub mod wire;
pub mod zk;

pub use config::Config;
pub use connector::{Builder, ConsumerConnector, Events, Farewell, Health, Holding, Phase};
pub use error::{Error, ErrorKind, Result};
pub use event::Event;
pub use group::{ConsumerId, GroupName, StreamId, Topic, TopicPartition};
#[cfg(any(test, feature = "testing"))]
#[doc(inline)]
pub use memory as testing;
pub use stream::{AckToken, Lent, Message, MessageStream, Streams};

/// The README's example is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
