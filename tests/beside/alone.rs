//! Ours without anybody, to see first that it reads all and leaves its offsets behind.

use crate::play::Play;
use crate::stage;
use crate::stage::Stage;

#[test]
fn ours_alone_reads_everything_and_leaves_its_offsets_behind() {
    let _others = stage::together();
    for stage in [Stage::new(), Stage::old()] {
        let mut play = Play::new(stage, "alone", &[("alone", 12)]);
        let topics = play.all(1);
        play.ours_joins(&topics, |_| {});
        play.settle();
        let balance = play.end();
        let delivered: usize = balance.ours.values().sum();
        assert_eq!(delivered, balance.sent, "nothing is doubled");
        let stored = stage.tree.offsets("alone", "alone");
        let ends: Vec<i64> = (0..12)
            .map(|partition| stage.broker.watermarks("alone", partition).1)
            .collect();
        assert_eq!(stored.into_values().collect::<Vec<_>>(), ends);
        assert!(stage.tree.members("alone").is_empty());
        assert!(stage.tree.owners("alone", "alone").is_empty());
    }
}
