//! What an operator does while a group is at work, and what goes wrong around it: an offset set by hand, a message passed, brokers restarted
//! and lost, long outages of ZooKeeper or of Kafka, servers that stall, an upgrade of the servers.
#![cfg(feature = "testing")]
// Waiting for other processes needs real clocks.
#![allow(clippy::disallowed_methods)]

#[path = "../support/mod.rs"]
mod support;

use support::record;

mod brokers;
mod by_hand;
mod outages;
mod stalls;
mod upgrade;

/// The other half of `support::Child`.
#[test]
fn a_child_without_orders_does_nothing() {
    outages::log_if_ordered();
    support::obey();
}

const CHILD: &str = "a_child_without_orders_does_nothing";
