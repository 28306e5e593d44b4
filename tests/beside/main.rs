//! Our member in one group with real JVM members, on real servers.
//!
//! A test describes who comes and goes (`play`); what follows is checked against a model of the shares (`shares`) and against what the
//! server's transaction log and the members themselves tell of who owned and delivered what (`ledger`).

#[path = "../support/mod.rs"]
mod support;

mod ledger;
mod play;
#[cfg(feature = "testing")]
mod scene;
mod shares;
mod stage;

mod alone;
mod dealt;
#[cfg(feature = "testing")]
mod deploy;
mod names;
mod nodes;
mod patterns;
mod take_over;
mod tools;
mod warm;
#[cfg(feature = "testing")]
mod zombie;

/// The other half of `support::Child`.
#[test]
fn a_child_without_orders_does_nothing() {
    support::obey();
}
