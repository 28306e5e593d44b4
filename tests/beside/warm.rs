//! A JVM that is warmed up joins and leaves again and again, as fast as it can be on servers that have nothing else to do.

use crate::play::Play;
use crate::stage;
use crate::stage::Stage;
use crate::support::JvmMemberOptions;
use crate::support::everything;
use crate::support::jvm_versions;

#[test]
fn a_warm_jvm_joins_and_leaves_and_nothing_is_lost_or_doubled() {
    let _alone = stage::in_quiet();
    let stage = Stage::new();
    for release in jvm_versions() {
        let is_first_or_last = matches!(release, "0.8.2.2" | "1.1.1");
        let times = if everything() && is_first_or_last {
            50
        } else {
            5
        };
        come_and_go(stage, release, times);
        stage.passed(release);
    }
}

fn come_and_go(stage: &'static Stage, release: &str, times: usize) {
    let topic = format!("warm-{release}");
    let mut play = Play::new(stage, &topic, &[(&topic, 20)]);
    let topics = play.all(1);
    let process = play.jvm_process(release, &topics, JvmMemberOptions::default());
    play.ours_joins(&topics, |_| {});
    play.settle();
    for _ in 0..times {
        let jvm = play.jvm_joins(process, None, &topics);
        play.settle();
        play.leaves(&jvm);
        play.settle();
    }
    play.end();
}
