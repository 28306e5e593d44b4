//! Ids that spread over hosts beside ids as the JVM makes them: names are names.

use crate::play::Play;
use crate::stage;
use crate::stage::Stage;
use crate::support::JvmMemberOptions;
use crate::support::jvm_versions;

#[test]
fn members_with_spreading_ids_and_jvms_with_their_own_share_24_partitions() {
    let _others = stage::together();
    let stage = Stage::new();
    for release in jvm_versions() {
        let topic = format!("names-{release}");
        let mut play = Play::new(stage, &topic, &[(&topic, 24)]);
        let topics = play.all(1);
        let process = play.jvm_process(release, &topics, JvmMemberOptions::default());
        play.ours_joins(&topics, |_| {});
        play.jvm_joins(process, None, &topics);
        play.ours_joins(&topics, |_| {});
        play.jvm_joins(process, None, &topics);
        play.ours_joins(&topics, |_| {});
        play.settle();
        assert_eq!(play.members().len(), 5);
        play.end();
        stage.passed(release);
    }
}

#[test]
fn more_than_ten_streams_stand_in_the_order_of_their_texts() {
    let _others = stage::together();
    let stage = Stage::new();
    for release in jvm_versions() {
        let topic = format!("streams-{release}");
        let mut play = Play::new(stage, &topic, &[(&topic, 30)]);
        let (eleven, twelve) = (play.all(11), play.all(12));
        let process = play.jvm_process(release, &twelve, JvmMemberOptions::default());
        play.jvm_joins(process, None, &twelve);
        play.settle();
        play.ours_joins(&eleven, |_| {});
        play.settle();
        let owners = play.owners();
        // -0, -1, -10: the third stream in order is the tenth by number, on both sides (L-18).
        let tenths = owners.values().filter(|owner| owner.ends_with("-10"));
        assert_eq!(tenths.count(), 3, "{owners:#?}");
        play.end();
        stage.passed(release);
    }
}
