//! Most of the servers are gone for a while.

use std::time::Duration;
use std::time::Instant;

use crate::record::changed_after;
use crate::record::session_of;
use crate::record::windows;
use crate::stage::BLIND;
use crate::stage::Stage;
use crate::stage::TICK;
use crate::stage::assert_contiguous;
use crate::stage::longest_pause;
use crate::stage::ms;
use crate::stage::session;
use crate::stage::together;
use crate::support::Child;
use crate::support::WallClock;
use crate::support::ensemble_versions;
use crate::support::everything;
use crate::support::now;
use crate::support::passed;

/// Session timeouts, after how long the servers that were killed are started again, and whether sessions outlive that.
///
/// A client gives its session up after 1.4 timeouts without a server. One that knows a single server tries it about 6.5, 13 and 26 seconds
/// after it was gone: where sessions are to outlive the outage, the servers have until then, which is enough on a machine that is busy.
fn plan() -> Vec<(Duration, Duration, bool)> {
    let mut plan = vec![(Duration::from_secs(20), Duration::from_secs(12), true)];
    if everything() {
        plan.push((Duration::from_secs(6), Duration::from_secs(60), false));
    }
    plan
}

#[test]
fn members_pause_while_there_is_no_quorum_and_go_on_with_what_they_hold() {
    // S11, N7, S5
    let _beside_others = together();
    for version in ensemble_versions() {
        for (timeout, outage, is_outlived) in plan() {
            let mut stage = Stage::start(version, TICK, BLIND);
            lose_the_quorum(&mut stage, timeout, outage, is_outlived);
        }
        passed("ensemble", &[("ensemble", version)]);
    }
}

fn lose_the_quorum(stage: &mut Stage, timeout: Duration, outage: Duration, is_outlived: bool) {
    let tree = stage.ensemble.tree();
    let members = stage.join_everywhere(timeout, true);
    let all: Vec<&Child> = members.iter().collect();
    stage.settle(&tree, &all);
    let leader = stage.ensemble.wait_until_whole();

    let clock = WallClock::read();
    let lost = now();
    for server in [leader, (leader + 1) % 3] {
        stage.ensemble.server_mut(server).kill();
    }
    let since = Instant::now();
    let before = stage.agreed();
    let last = before.last().expect("they joined").zxid;
    std::thread::sleep(outage.saturating_sub(since.elapsed()));
    stage.ensemble.start_again();
    let served = now();
    // The one from before tries as rarely as its session is long.
    let tree = stage.ensemble.tree();
    stage.settle(&tree, &all);
    let settled = now();
    assert!(
        clock.moved(WallClock::read()) < 10_000_000,
        "somebody set the clock"
    );

    let after = stage.agreed();
    let first = after
        .iter()
        .find(|txn| txn.zxid > last)
        .expect("they serve");
    let back = clock.moment(first.time_ms);
    let sessions: Vec<i64> = members
        .iter()
        .map(|member| session(&windows(&before), member))
        .collect();
    for (member, session) in members.iter().zip(&sessions) {
        let proof = before.iter().rfind(|txn| txn.session == *session);
        let proof = clock.moment(proof.expect("it was registered").time_ms + 1);
        // A sixteenth is allowed for a machine that is busy.
        let over = proof + u64::try_from((timeout / 2 + timeout / 16).as_nanos()).expect("seconds");
        let deliveries = member.deliveries();
        let late = deliveries
            .iter()
            .find(|delivery| (over..back).contains(&delivery.at));
        assert_eq!(
            late,
            None,
            "delivered without a quorum, {} ms after the last proof",
            ms(proof, over)
        );
        let lasted = deliveries
            .iter()
            .any(|delivery| (lost..over).contains(&delivery.at));
        assert!(lasted, "a lease outlasts the quorum");
        assert_contiguous(&deliveries);
        println!(
            "{}: longest pause {} ms",
            member.name(),
            longest_pause(member, lost).as_millis()
        );
    }
    let changed = changed_after(&after, last);
    let registered = windows(&after);
    let lives_on = |(member, session): &(&Child, &i64)| {
        session_of(&registered, &member.name()) == Some(**session)
    };
    let kept = members.iter().zip(&sessions).filter(lives_on).count();
    println!(
        "ZooKeeper {}, T {} ms: all servers back after {} ms, the first member after {} ms, all after {} ms; {kept} of {} sessions lived on",
        stage.ensemble.version(),
        timeout.as_millis(),
        ms(lost, served),
        ms(lost, back),
        ms(lost, settled),
        sessions.len()
    );
    let expected = if is_outlived { sessions.len() } else { 0 };
    assert_eq!(kept, expected, "sessions that lived on");
    assert_eq!(changed.is_empty(), is_outlived, "rebalanced: {changed:#?}");
}
