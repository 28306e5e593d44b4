//! Members in processes of their own, on a real server and a real broker, under every fault that a host can meet; what they did is judged
//! by their event logs and the server's transaction log.
//!
//! Each test has a short form, which is the one that `cargo test` runs, and a long one: `./run chaos`, `./run chaos --handovers`, `./run soak`.
#![cfg(feature = "testing")]
// Waiting for other processes needs real clocks.
#![allow(clippy::disallowed_methods)]

#[path = "../support/mod.rs"]
mod support;

mod crew;
mod faults;
mod figures;
mod handovers;
mod member;
mod nemesis;
mod plan;
mod report;
mod series;
mod soak;
mod stage;
mod under_faults;
mod walls;
mod wish;

/// What a process of the tests is when it is to be a member.
#[test]
fn obey() {
    member::obey();
}
