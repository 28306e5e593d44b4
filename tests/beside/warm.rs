//! A JVM that is warmed up joins and leaves again and again, as fast as it can be on servers that have nothing else to do.

use std::time::Duration;

use evenkeel::Config;

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
        let topic = format!("warm-{release}");
        let play = Play::new(stage, &topic, &[(&topic, 20)]);
        come_and_go(play, release, times, |_| {});
        stage.passed(release);
    }
}

/// J2: it reads the offsets one by one, here for a twentieth of a second, and claims after that. Our hands are as slow, so that our last
/// commits fall into its reading, and only the pause of the hand-over keeps it from claiming with what it read: without that, one joining in two
/// or three began too early. The pause is longer than by default for the sake of a machine that has other things to do.
#[test]
fn a_jvm_that_reads_many_offsets_before_it_claims_misses_no_commit() {
    let _alone = stage::in_quiet();
    let stage = Stage::new();
    for release in jvm_versions() {
        let topic = format!("many-{release}");
        let pause = Duration::from_millis(100);
        let play = Play::with_flow(stage, &topic, &[(&topic, 150)], pause)
            .with_slow_hands(Duration::from_millis(70));
        come_and_go(play, release, 3, |config| {
            config.legacy_handover_delay = Duration::from_secs(1);
        });
        stage.passed(release);
    }
}

fn come_and_go(mut play: Play, release: &str, times: usize, set_up: impl FnOnce(&mut Config)) {
    let topics = play.all(1);
    let process = play.jvm_process(release, &topics, JvmMemberOptions::default());
    play.ours_joins(&topics, set_up);
    play.settle();
    for _ in 0..times {
        let jvm = play.jvm_joins(process, None, &topics);
        play.settle();
        play.leaves(&jvm);
        play.settle();
    }
    play.end();
}
