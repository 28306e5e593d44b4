//! Servers that all stand still for a while: how long delivery pauses, and from what length on partitions move.

use std::collections::BTreeMap;
use std::time::Duration;
use std::time::Instant;

use crate::record::changed_after;
use crate::record::session_of;
use crate::record::windows;
use crate::support::Child;
use crate::support::ensemble_versions;
use crate::support::everything;
use crate::support::now;
use crate::support::passed;
use crate::support::stage::BLIND;
use crate::support::stage::Manner;
use crate::support::stage::PARTITIONS;
use crate::support::stage::Stage;
use crate::support::stage::TICK;
use crate::support::stage::assert_contiguous;
use crate::support::stage::deliver;
use crate::support::stage::longest_pause;

const STALLS: [u64; 4] = [1, 2, 3, 5];
const SHORT: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(30);
/// How often a stall that became longer than it was to be is tried.
const TRIES: usize = 3;

#[test]
fn servers_that_stall_pause_delivery_and_move_nothing_that_the_session_bears() {
    // N6, S5
    for version in ensemble_versions() {
        let mut stage = Stage::start(version, TICK, BLIND);
        let tree = stage.ensemble.tree();
        // Those of the one timeout and those of the other are beside different servers, in one group.
        let members = [(0, SHORT), (1, LONG)].map(|(server, timeout)| {
            let manner = Manner {
                timeout,
                streams: PARTITIONS / 2,
                is_bound: false,
                commits: true,
            };
            (stage.join(server, manner), timeout)
        });
        let all: Vec<_> = members.iter().map(|(member, _)| member).collect();
        stage.settle(&tree, &all);

        for who in ["all servers", "the leader"] {
            let stalls = STALLS.map(Duration::from_secs).into_iter();
            for stall in stalls.filter(|stall| is_wanted(who, *stall)) {
                // A machine that is busy may make it longer than it was meant to be: then it proves nothing, and comes again.
                let was = (0..TRIES).any(|_| {
                    let stalled = stall_once(&mut stage, &members, who, stall);
                    stage.settle(&tree, &all);
                    is_borne(stalled, SHORT)
                });
                assert!(was, "no stall of {stall:?} was as short as that");
            }
        }
        for member in all {
            assert_contiguous(&member.deliveries());
        }
        passed("operators", &[("ensemble", version)]);
    }
}

/// A stall, and what must hold after it. How long it came to be.
fn stall_once(
    stage: &mut Stage,
    members: &[(Child, Duration)],
    who: &str,
    stall: Duration,
) -> Duration {
    let before = stage.agreed();
    let settled = before.last().expect("they joined").zxid;
    let leader = stage.ensemble.wait_until_whole();
    let who_stalls: Vec<usize> = match who {
        "all servers" => stage.ensemble.servers().collect(),
        _ => vec![leader],
    };
    let start = now();
    let mut since = BTreeMap::new();
    for server in &who_stalls {
        since.insert(*server, Instant::now());
        stage.ensemble.server_mut(*server).pause();
    }
    std::thread::sleep(stall);
    let mut stalled = Duration::ZERO;
    for server in &who_stalls {
        stage.ensemble.server_mut(*server).resume();
        stalled = stalled.max(since[server].elapsed());
    }
    stage.ensemble.wait_until_whole();
    let all: Vec<&Child> = members.iter().map(|(member, _)| member).collect();
    deliver(&all);
    let after = stage.agreed();
    for (member, timeout) in members {
        let pause = longest_pause(member, start);
        let lost = member.events().into_iter();
        let lost = lost.filter(|told| told.at > start && told.event == "SessionLost");
        let lost = lost.count();
        println!(
            "{}: {who} stalled for {} ms, T = {timeout:?}: delivery paused {} ms, sessions lost {lost}",
            stage.ensemble.version(),
            stalled.as_millis(),
            pause.as_millis()
        );
        if is_borne(stalled, *timeout) {
            assert_eq!(lost, 0, "{:#?}", member.events());
            let sessions = [&before, &after].map(|txns| session_of(&windows(txns), &member.name()));
            assert_eq!(sessions[0], sessions[1], "of {}", member.name());
        }
    }
    if is_borne(stalled, SHORT) {
        // Of both: neither the one's partitions nor the other's.
        let changed = changed_after(&after, settled);
        assert!(changed.is_empty(), "rebalanced: {changed:#?}");
    }
    stalled
}

/// A leader that is back soon tells little; every run leaves those out.
fn is_wanted(who: &str, stall: Duration) -> bool {
    everything() || who == "all servers" || stall > Duration::from_secs(2)
}

/// Whether a session lives on, as docs/operators.md promises. What was sent last may be T/8 old, and counts for a tick less.
fn is_borne(stall: Duration, timeout: Duration) -> bool {
    stall + timeout / 8 + TICK < timeout
}
