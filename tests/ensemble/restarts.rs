//! Servers that end, stand still or are restarted, one at a time.

use std::time::Duration;

use crate::record::changed_after;
use crate::stage::BLIND;
use crate::stage::Stage;
use crate::stage::TICK;
use crate::stage::assert_contiguous;
use crate::stage::deliver;
use crate::stage::longest_pause;
use crate::stage::together;
use crate::support::Child;
use crate::support::ensemble_versions;
use crate::support::now;
use crate::support::passed;

const TIMEOUT: Duration = Duration::from_secs(6);

#[test]
fn servers_that_end_stand_still_or_are_restarted_in_turn_cause_no_rebalance() {
    // N8, S5
    let _beside_others = together();
    for version in ensemble_versions() {
        let mut stage = Stage::start(version, TICK, BLIND);
        let tree = stage.ensemble.tree();
        let servers = stage.ensemble.servers();
        let members = stage.join_everywhere(TIMEOUT, false);
        stage.settle(&tree, &members.iter().collect::<Vec<_>>());
        let settled = stage.last();

        during("the leader is killed", &members, || {
            let leader = stage.ensemble.wait_until_whole();
            stage.ensemble.server_mut(leader).kill();
            stage.ensemble.leader_besides(leader);
            deliver(&members.iter().collect::<Vec<_>>());
            stage.ensemble.start_again();
        });
        during("the leader stands still", &members, || {
            let leader = stage.ensemble.wait_until_whole();
            stage.ensemble.server_mut(leader).pause();
            stage.ensemble.leader_besides(leader);
            deliver(&members.iter().collect::<Vec<_>>());
            stage.ensemble.server_mut(leader).resume();
            stage.ensemble.wait_until_whole();
        });
        for server in servers {
            let what = format!("server {} of 3 is restarted", server + 1);
            during(&what, &members, || {
                stage.ensemble.server_mut(server).stop();
                stage.ensemble.start_again();
            });
        }

        let changed = changed_after(&stage.agreed(), settled);
        assert!(changed.is_empty(), "rebalanced: {changed:#?}");
        for member in &members {
            assert_contiguous(&member.deliveries());
            let lost = member
                .events()
                .into_iter()
                .find(|told| told.event == "SessionLost");
            assert_eq!(lost, None);
        }
        passed("ensemble", &[("ensemble", version)]);
    }
}

/// Does something to the servers, waits until all members are given messages again, and prints how long each got none.
fn during(what: &str, members: &[Child], deed: impl FnOnce()) {
    let start = now();
    deed();
    deliver(&members.iter().collect::<Vec<_>>());
    let pauses: Vec<u128> = members
        .iter()
        .map(|member| longest_pause(member, start).as_millis())
        .collect();
    println!("{what}: longest pauses {pauses:?} ms");
}
