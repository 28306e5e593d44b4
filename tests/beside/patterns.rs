//! A JVM member that takes its topics by a white or a black list.

use std::collections::BTreeMap;

use crate::play::Play;
use crate::stage;
use crate::stage::Stage;
use crate::support::JvmMemberOptions;
use crate::support::jvm_versions;

/// The topics of the group all begin with this mark, and the list covers them and no others.
fn shared_with(
    mark: &str,
    release: &'static str,
    stage: &'static Stage,
    options: JvmMemberOptions,
) {
    let names: Vec<String> = ["a", "b"]
        .map(|end| format!("{mark}-{release}-{end}"))
        .into();
    let mut play = Play::new(
        stage,
        &format!("{mark}-{release}"),
        &[(&names[0], 6), (&names[1], 5)],
    );
    let topics = play.all(1);
    let process = play.jvm_process(release, &BTreeMap::new(), options);
    // The JVM first, then ours; it leaves and comes back to ours.
    let jvm = play.jvm_joins(process, None, &topics);
    play.settle();
    let ours = play.ours_joins(&topics, |_| {});
    play.settle();
    play.leaves(&jvm);
    play.settle();
    play.jvm_joins(process, None, &topics);
    play.settle();
    play.leaves(&ours);
    play.settle();
    // Of ours that takes only one of the topics, the list's member keeps the other.
    let narrow = BTreeMap::from([(names[1].clone(), 1)]);
    play.ours_joins(&narrow, |_| {});
    play.settle();
    play.end();
    stage.passed(release);
}

#[test]
fn the_topics_of_a_white_list_are_shared_with_it() {
    let _others = stage::together();
    let stage = Stage::new();
    for release in jvm_versions() {
        let options = JvmMemberOptions {
            white_list: Some((format!("white-{release}-.*"), 1)),
            ..JvmMemberOptions::default()
        };
        shared_with("white", release, stage, options);
    }
}

#[test]
fn the_topics_that_a_black_list_leaves_are_shared_with_it() {
    // D7: a look ahead, which is Java's and has to mean the same here.
    let _others = stage::together();
    let stage = Stage::new();
    for release in jvm_versions() {
        let options = JvmMemberOptions {
            black_list: Some((format!("(?!black-{release}-).*"), 1)),
            ..JvmMemberOptions::default()
        };
        shared_with("black", release, stage, options);
    }
}
