//! Round robin beside members of the release whose level is chosen.

use std::collections::BTreeMap;

use evenkeel::config::Compat;
use evenkeel::config::Strategy;

use crate::play::Play;
use crate::shares;
use crate::stage;
use crate::stage::Stage;
use crate::support::JvmMemberOptions;
use crate::support::jvm_versions;

#[test]
fn round_robin_deals_as_the_jvm_beside_it_does() {
    let _others = stage::together();
    let stage = Stage::new();
    for release in jvm_versions() {
        let (compat, is_mixed) = level(release);
        deal(stage, release, compat, is_mixed);
        stage.passed(release);
    }
}

/// The level of a release, and whether it bears members with different topics (L-61).
fn level(release: &str) -> (Compat, bool) {
    match release {
        "0.8.2.2" | "0.9.0.1" => (Compat::V0_8_2, false),
        "0.10.2.2" | "0.11.0.3" => (Compat::V0_10_2, true),
        "1.1.1" => (Compat::V1_0, true),
        other => panic!("whose level is that of {other}?"),
    }
}

fn deal(stage: &'static Stage, release: &str, compat: Compat, is_mixed: bool) {
    let text = match compat {
        Compat::V1_0 => |topic: &str, partition: i32| format!("{topic}-{partition}"),
        _ => |topic: &str, partition: i32| format!("[{topic},{partition}]"),
    };
    let (first, second) = (format!("dealt-{release}-a"), format!("dealt-{release}-b"));
    let mut play = Play::new(
        stage,
        &format!("dealt-{release}"),
        &[(&first, 7), (&second, 12)],
    )
    .with_rule(move |group, topics| shares::round_robin(group, topics, text));
    let topics = play.all(2);
    let options = JvmMemberOptions::default().with("partition.assignment.strategy", "roundrobin");
    let process = play.jvm_process(release, &topics, options);
    let jvm = play.jvm_joins(process, None, &topics);
    play.settle();
    let ours = play.ours_joins(&topics, |config| by_turns(config, compat));
    play.settle();
    if is_mixed {
        let narrow = BTreeMap::from([(second, 1)]);
        let third = play.ours_joins(&narrow, |config| by_turns(config, compat));
        play.settle();
        play.leaves(&third);
        play.settle();
    }
    play.leaves(&jvm);
    play.settle();
    play.jvm_joins(process, None, &topics);
    play.settle();
    play.leaves(&ours);
    play.settle();
    play.end();
}

fn by_turns(config: &mut evenkeel::Config, compat: Compat) {
    config.strategy = Strategy::RoundRobin;
    config.compat = compat;
}
