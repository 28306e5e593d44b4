//! Ours joins, leaves and dies beside a JVM member, and a JVM member beside ours; whoever stays takes over.

use crate::play::BRIEF_MS;
use crate::play::Play;
use crate::stage;
use crate::stage::Stage;
use crate::support::JvmMemberOptions;
use crate::support::everything;
use crate::support::jvm_versions;

#[test]
fn each_takes_over_from_the_other_on_zookeeper_3_9() {
    let _others = stage::together();
    with_every_release(Stage::new());
}

#[test]
fn each_takes_over_from_the_other_on_zookeeper_3_4() {
    let _others = stage::together();
    with_every_release(Stage::old());
}

fn with_every_release(stage: &'static Stage) {
    for release in jvm_versions() {
        take_over(stage, release);
        stage.passed(release);
    }
}

fn take_over(stage: &'static Stage, release: &str) {
    let topic = format!("take-over-{release}");
    let mut play = Play::new(stage, &topic, &[(&topic, 12)]);
    let topics = play.all(1);
    let (mut process, mut jvm) = jvm_joins(&mut play, release, "a-0", false);
    play.settle();
    for round in 1..=if everything() { 10 } else { 2 } {
        // A name before ours in the one round, behind it in the next.
        let place = if round % 2 == 0 { "a" } else { "z" };
        let ours = play.child_joins(&topics);
        play.settle();
        play.dies(&ours);
        play.settle();
        let ours = play.ours_joins(&topics, |config| {
            config.consumer_id = Some(format!("m-{round}"));
        });
        play.settle();
        play.leaves(&jvm);
        play.settle();
        play.process_ends(process);
        let (_, victim) = jvm_joins(&mut play, release, &format!("{place}-{round}-1"), true);
        play.settle();
        play.dies(&victim);
        play.settle();
        (process, jvm) = jvm_joins(&mut play, release, &format!("{place}-{round}-2"), false);
        play.settle();
        play.leaves(&ours);
        play.settle();
    }
    play.end().assert_both_finished(100);
}

/// A JVM that will be killed has a short session; it commits only when it rebalances (L-118).
fn jvm_joins(play: &mut Play, release: &str, id: &str, is_brief: bool) -> (usize, String) {
    let mut options = JvmMemberOptions::default();
    if is_brief {
        options = options.with("zookeeper.session.timeout.ms", &BRIEF_MS.to_string());
    }
    let topics = play.all(1);
    let process = play.jvm_process(release, &topics, options);
    (process, play.jvm_joins(process, Some(id), &topics))
}
