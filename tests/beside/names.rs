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
