//! The servers are put back to what they were before.

use std::time::Duration;

use crate::record::commits;
use crate::record::offsets;
use crate::record::windows;
use crate::stage::BLIND;
use crate::stage::Stage;
use crate::stage::TICK;
use crate::stage::await_event;
use crate::stage::session;
use crate::stage::together;
use crate::support::Child;
use crate::support::LONG;
use crate::support::Txn;
use crate::support::ensemble_versions;
use crate::support::now;
use crate::support::passed;
use crate::support::until;

const TIMEOUT: Duration = Duration::from_secs(6);

/// So much further offsets are before the servers are put back.
const FURTHER: i64 = 20;

#[test]
fn members_on_servers_put_back_to_an_older_state_begin_anew_from_the_offsets_there() {
    // N9
    let _beside_others = together();
    for version in ensemble_versions() {
        let mut stage = Stage::start(version, TICK, BLIND);
        put_back(&mut stage);
        passed("ensemble", &[("ensemble", version)]);
    }
}

fn put_back(stage: &mut Stage) {
    let tree = stage.ensemble.tree();
    let members = stage.join_everywhere(TIMEOUT, false);
    let all: Vec<&Child> = members.iter().collect();
    stage.settle(&tree, &all);

    stage.ensemble.stop();
    let saved = stage.ensemble.copy();
    let term = term_of(stage.last());
    // Whatever the servers will do once they are put back, they come to no transaction as new as those that follow.
    stage.ensemble.skip_terms(10);
    stage.ensemble.start_again();
    stage.settle(&tree, &all);
    let then = offsets(&stage.agreed());
    until("all offsets are further", LONG, || {
        let now_there = offsets(&stage.agreed());
        then.iter()
            .all(|(partition, offset)| now_there[partition] >= offset + FURTHER)
    });
    let new = stage.agreed();
    let sessions: Vec<i64> = members
        .iter()
        .map(|member| session(&windows(&new), member))
        .collect();

    stage.ensemble.stop();
    stage.ensemble.put_back(&saved);
    let restored = now();
    stage.ensemble.start_again();
    let lost: Vec<u64> = members
        .iter()
        .map(|member| await_event(member, "SessionLost", restored))
        .collect();
    for (member, lost) in members.iter().zip(&lost) {
        await_event(member, "Joined", *lost);
    }
    // The one that the test looked with was refused as the members were.
    let tree = stage.ensemble.tree();
    stage.settle(&tree, &all);

    let (old, since): (Vec<Txn>, Vec<Txn>) = stage
        .agreed()
        .into_iter()
        .partition(|txn| term_of(txn.zxid) <= term);
    let terms = [&since, &new].map(|txns| term_of(txns.last().expect("they go on").zxid));
    assert!(terms[0] < terms[1], "the servers went back: {terms:?}");
    let fresh = windows(&since);
    for (member, session_before) in members.iter().zip(sessions) {
        assert_ne!(session(&fresh, member), session_before, "a fresh session");
    }
    // Nothing is committed below what was there.
    let then = offsets(&old);
    let mut at = then.clone();
    for (_, partition, offset) in commits(&since) {
        let before = at.insert(partition, offset);
        assert!(
            before <= Some(offset),
            "{partition} went from {before:?} to {offset}"
        );
    }
    // Each partition is read from the offset that stands there, which may take a moment more than to own it.
    for (partition, offset) in then {
        let first = || {
            let later = members.iter().zip(&lost).flat_map(|(member, lost)| {
                let deliveries = member.deliveries().into_iter();
                deliveries.filter(|delivery| delivery.at > *lost)
            });
            let of_it = later.filter(|delivery| delivery.partition == partition);
            let first = of_it.min_by_key(|delivery| delivery.at);
            first.map(|delivery| delivery.offset)
        };
        until("each partition is read", LONG, || first().is_some());
        assert_eq!(first(), Some(offset), "of {partition}");
    }
}

/// The term of the leader of a transaction.
fn term_of(zxid: i64) -> i64 {
    zxid >> 32
}
