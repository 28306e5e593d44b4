//! Members of ours on three real servers, each in a network of its own that can be cut: what holds when a server is cut off, ends, stands
//! still, is restarted or put back to an older state, and what members then do.
//!
//! Members are processes of their own beside a server (`stage`). Ownerships and commits are on the servers, messages come from memory at a
//! steady pace. What is right is read from the servers' transaction logs (`record`) and from what the members tell, by one clock.
#![cfg(feature = "testing")]
// Waiting for other processes needs real clocks.
#![allow(clippy::disallowed_methods)]

#[path = "../support/mod.rs"]
mod support;

use support::record;
use support::stage;

mod isolated;
mod kills;
mod quorum;
mod restarts;
mod restored;

/// The other half of `support::Child`.
#[test]
fn a_child_without_orders_does_nothing() {
    support::obey();
}
