//! Everything a member needs, within the process and under a test's thumb: the test kit (feature `testing`).
//!
//! [`MemoryRegistry`] stands for a ZooKeeper ensemble, [`MemoryLog`] for the brokers, [`Inline`] for the place where
//! listeners run. They follow tokio's clock, so that a test with paused time sees a session end after six seconds that
//! take no time; they read no other clock and roll no dice but those they are given, so that a run can be repeated.
//!
//! `examples/in_memory.rs` tests a whole service this way, with faults and a [judge](check) at the end: copy it.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
//! use evenkeel::memory::MemoryRegistry;
//! use evenkeel::registry::{Dialect, Registry};
//!
//! let ensemble = MemoryRegistry::new();
//! let member = ensemble.open(Dialect::V3_5).await.unwrap();
//! member.create("/me", b"", true).await.unwrap();
//!
//! // The process dies: its node stays for the session timeout, and whoever watches it is told.
//! let rival = ensemble.open(Dialect::V3_5).await.unwrap();
//! let (_, gone) = rival.stat_and_watch("/me").await.unwrap();
//! ensemble.kill(member.session_id());
//! gone.await;
//! assert!(ensemble.read("/me").is_none());
//! # }
//! ```

mod ensemble;
mod faults;
mod history;
mod log;
mod outside;
mod registry;
#[cfg(test)]
mod tests;
mod tree;
mod world;

pub use crate::check;
pub use faults::{Fate, Kind, Latency, Lost, Request, Script};
pub use history::history;
pub use log::{MemoryLog, Record};
pub use outside::Inline;
pub use registry::{MemoryRegistry, SessionState};
pub use tree::{Act, Write};
