//! Processes that are killed: how long what they held stays.

use std::time::Duration;

use crate::record::windows;
use crate::stage::BLIND;
use crate::stage::Manner;
use crate::stage::PARTITIONS;
use crate::stage::Stage;
use crate::stage::TICK;
use crate::stage::in_quiet;
use crate::stage::session;
use crate::support::Change;
use crate::support::Pinger;
use crate::support::Txn;
use crate::support::WallClock;
use crate::support::ensemble_versions;
use crate::support::everything;
use crate::support::now;
use crate::support::passed;

const TIMEOUT: Duration = Duration::from_secs(2);

#[test]
fn the_nodes_of_a_killed_process_stay_for_the_session_timeout_and_no_longer() {
    // I9, R9
    let _alone = in_quiet();
    let kills = if everything() { 10 } else { 3 };
    for version in ensemble_versions() {
        let mut stage = Stage::start(version, TICK, BLIND);
        let mut stayed: Vec<Duration> = (0..kills)
            .map(|kill| kill_one(&mut stage, kill % 3))
            .collect();
        stayed.sort();
        let stayed: Vec<u128> = stayed.iter().map(Duration::as_millis).collect();
        println!(
            "ZooKeeper {version}: nodes stayed {stayed:?} ms after a kill, T {} ms",
            TIMEOUT.as_millis()
        );
        passed("ensemble", &[("ensemble", version)]);
    }
}

/// Kills a member beside this server and gives how long its nodes stayed.
fn kill_one(stage: &mut Stage, server: usize) -> Duration {
    let leader = stage.ensemble.wait_until_whole();
    let tree = stage.ensemble.tree_of(leader);
    let manner = Manner {
        timeout: TIMEOUT,
        streams: 1,
        is_bound: true,
        commits: false,
    };
    let member = stage.join(server, manner);
    stage.settle(&tree, &[&member]);
    let (mut log, txns) = stage.log_of(leader);
    let session = session(&windows(&txns), &member);
    let held = windows(&txns)
        .into_iter()
        .filter(|window| window.session == session);
    assert_eq!(
        held.count(),
        PARTITIONS as usize + 1,
        "with its registration"
    );
    let pingers: Vec<Pinger> = stage
        .ensemble
        .servers()
        .map(|server| Pinger::start(stage.ensemble.server(server), TIMEOUT))
        .collect();

    let clock = WallClock::read();
    let before = now();
    member.kill();
    let killed = now();
    let is_end = |txn: &Txn| txn.session == session && txn.changes == [Change::Closed];
    let later = log.await_txn("the end of the session", TIMEOUT * 3, is_end);
    let end = later.iter().find(|txn| is_end(txn)).expect("awaited");
    // It ended within this millisecond.
    let gone = clock.moment(end.time_ms)..clock.moment(end.time_ms + 1);
    let stalled = pingers
        .iter()
        .map(Pinger::slowest)
        .max()
        .expect("three servers");

    let (least, most) = (gone.start.saturating_sub(killed), gone.end - before);
    println!(
        "killed beside {}: nodes gone after {} ms; slowest answer of a server {} ms",
        if server == leader {
            "the leader"
        } else {
            "a follower"
        },
        least / 1_000_000,
        stalled.as_millis()
    );
    let earliest = TIMEOUT - TIMEOUT / 8;
    assert!(
        Duration::from_nanos(most) + stalled >= earliest,
        "gone too early"
    );
    let latest = TIMEOUT + TICK * 3 / 2 + Duration::from_millis(250);
    assert!(
        Duration::from_nanos(least) <= latest + stalled,
        "gone too late"
    );
    Duration::from_nanos(least)
}
