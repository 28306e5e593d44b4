//! Three servers that are upgraded one by one under members at work.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::Child;
use crate::support::LONG;
use crate::support::stage::BLIND;
use crate::support::stage::Manner;
use crate::support::stage::PARTITIONS;
use crate::support::stage::Stage;
use crate::support::stage::TICK;
use crate::support::stage::assert_contiguous;
use crate::support::stage::deliver;
use crate::support::until;

const RELEASES: [&str; 3] = ["3.4.14", "3.5.10", "3.8.6"];
const TIMEOUT: Duration = Duration::from_secs(6);

#[test]
fn members_of_both_dialects_share_a_group_while_the_servers_are_upgraded() {
    // N8
    let mut stage = Stage::start(RELEASES[0], TICK, BLIND);
    let manner = Manner {
        timeout: TIMEOUT,
        streams: PARTITIONS / 2,
        is_bound: false,
        commits: true,
    };
    let tree = stage.ensemble.tree();
    let old = stage.join(0, manner);
    until("the first owns all", LONG, || {
        tree.owners("g", "t").len() == PARTITIONS as usize
    });
    let mut members: Vec<Child> = vec![old];
    for release in &RELEASES[1..] {
        for server in stage.ensemble.servers() {
            stage.ensemble.server_mut(server).become_release(release);
            stage.ensemble.wait_until_whole();
            deliver(&members.iter().collect::<Vec<_>>());
        }
        if members.len() == 1 {
            // This one has never met a server of 3.4.
            members.push(stage.join(1, manner));
        }
        let all: Vec<&Child> = members.iter().collect();
        stage.settle(&stage.ensemble.tree(), &all);
        let lost = members.iter().map(sessions_lost).collect::<Vec<_>>();
        println!("all three at {release}: sessions lost so far {lost:?}");
    }

    let lost: usize = members.iter().map(sessions_lost).sum();
    let mut times: BTreeMap<i32, BTreeMap<i64, usize>> = BTreeMap::new();
    for member in &members {
        let deliveries = member.deliveries();
        assert_contiguous(&deliveries);
        for delivery in deliveries {
            let offsets = times.entry(delivery.partition).or_default();
            *offsets.entry(delivery.offset).or_default() += 1;
        }
    }
    assert_eq!(times.len(), PARTITIONS as usize);
    let mut twice = 0;
    for (partition, offsets) in &times {
        let end = *offsets.keys().last().expect("at least one");
        let missing: Vec<i64> = (0..end).filter(|o| !offsets.contains_key(o)).collect();
        assert!(missing.is_empty(), "{partition}: {missing:?} never came");
        twice += offsets.values().filter(|times| **times > 1).count();
    }
    println!("{twice} messages came twice, {lost} sessions were lost");
    assert!(
        lost > 0 || twice == 0,
        "{twice} came twice and no session was lost"
    );

    // The range rule: the streams in the order of their texts, one partition each.
    let owners = stage.ensemble.tree().owners("g", "t");
    let mut streams: Vec<String> = owners.values().cloned().collect();
    streams.sort();
    let expected: BTreeSet<String> = members
        .iter()
        .flat_map(|member| (0..manner.streams).map(move |n| format!("{}-{n}", member.name())))
        .collect();
    assert_eq!(streams, expected.into_iter().collect::<Vec<_>>());
    assert_eq!(owners.values().cloned().collect::<Vec<_>>(), streams);
}

fn sessions_lost(member: &Child) -> usize {
    let events = member.events().into_iter();
    events.filter(|told| told.event == "SessionLost").count()
}
