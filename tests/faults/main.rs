//! Members of ours behind a proxy that cuts, silences and garbles their connection to a real ZooKeeper server, beside a rival that is not.
//!
//! What a member does with it is judged by what it delivered, by what the proxy let through, and by the server's transaction log (`audit`).
// Waiting for other processes needs real clocks.
#![allow(clippy::disallowed_methods)]

#[path = "../support/mod.rs"]
mod support;

mod audit;
mod stage;

mod actions;
mod frames;

mod garbage;
mod moving;
mod silence;
mod unknown;
mod watches;
