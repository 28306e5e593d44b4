//! Servers that all stand still for a while: how long delivery pauses, and from what length on partitions move.

use std::time::Duration;

use crate::record::changed_after;
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
                let settled = stage.last();
                let leader = stage.ensemble.wait_until_whole();
                let who_stalls: Vec<usize> = match who {
                    "all servers" => stage.ensemble.servers().collect(),
                    _ => vec![leader],
                };
                let start = now();
                for server in &who_stalls {
                    stage.ensemble.server_mut(*server).pause();
                }
                std::thread::sleep(stall);
                for server in &who_stalls {
                    stage.ensemble.server_mut(*server).resume();
                }
                stage.ensemble.wait_until_whole();
                deliver(&all);
                for (member, timeout) in &members {
                    let pause = longest_pause(member, start);
                    let lost = member.events().into_iter();
                    let lost = lost.filter(|told| told.at > start && told.event == "SessionLost");
                    let lost = lost.count();
                    println!(
                        "{version}: {who} stalled for {stall:?}, T = {timeout:?}: delivery paused {} ms, sessions lost {lost}",
                        pause.as_millis()
                    );
                    if is_borne(stall, *timeout) {
                        assert_eq!(lost, 0, "{:#?}", member.events());
                    }
                }
                if is_borne(stall, SHORT) {
                    let changed = changed_after(&stage.agreed(), settled);
                    assert!(changed.is_empty(), "rebalanced: {changed:#?}");
                }
                stage.settle(&tree, &all);
            }
        }
        for member in all {
            assert_contiguous(&member.deliveries());
        }
        passed("operators", &[("ensemble", version)]);
    }
}

/// A leader that is back soon tells little; every run leaves those out.
fn is_wanted(who: &str, stall: Duration) -> bool {
    everything() || who == "all servers" || stall > Duration::from_secs(2)
}

/// Whether a session lives on. What was sent last may be T/8 old, and counts for a tick less; that all are stopped and go on takes a moment.
fn is_borne(stall: Duration, timeout: Duration) -> bool {
    stall + timeout / 8 + TICK + Duration::from_millis(500) < timeout
}
