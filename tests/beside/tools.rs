//! The JVM's own tools look at groups with members of ours.

use std::collections::BTreeMap;

use crate::play::Play;
use crate::stage;
use crate::stage::Stage;
use crate::support::Jars;
use crate::support::JvmMemberOptions;
use crate::support::jvm_versions;
use crate::support::run_class;

/// What a tool shows of a partition: offset, end, lag, owner.
type Row = (i64, i64, i64, String);

#[test]
fn the_old_tools_read_our_group() {
    let _others = stage::together();
    let stage = Stage::new();
    let mut play = Play::new(stage, "tools", &[("tools", 4)]);
    let topics = play.all(1);
    let ours = play.ours_joins(&topics, |_| {});
    play.settle();
    let process = play.jvm_process("1.1.1", &topics, JvmMemberOptions::default());
    let jvm = play.jvm_joins(process, None, &topics);
    play.settle();
    play.still();
    play.commit_ours(&ours);
    play.commit(process);
    let expected: BTreeMap<i32, Row> = play
        .model()
        .into_iter()
        .map(|((topic, partition), owner)| {
            let end = stage.broker.watermarks(&topic, partition).1;
            (partition, (end, end, 0, owner))
        })
        .collect();
    assert_eq!(expected.len(), 4);

    let said = run(
        "0.8.2.2",
        "kafka.tools.ConsumerOffsetChecker",
        &play,
        "--zookeeper",
        &[],
    );
    // Group, topic, partition, offset, end, lag, owner (L-136).
    assert_eq!(
        rows(&said, "tools tools", 2, [3, 4, 5, 6]),
        expected,
        "{said}"
    );
    stage.passed("0.8.2.2");

    let verify = "kafka.tools.VerifyConsumerRebalance";
    let said = run("1.1.1", verify, &play, "--zookeeper.connect", &[]);
    assert!(said.contains("Rebalance operation successful !"), "{said}");
    stage.passed("1.1.1");

    for release in jvm_versions()
        .into_iter()
        .filter(|release| *release != "0.8.2.2")
    {
        let class = "kafka.admin.ConsumerGroupCommand";
        let said = run(release, class, &play, "--zookeeper", &["--describe"]);
        match release {
            // With the group's name in front and commas between (L-134).
            "0.9.0.1" => {
                let said = said.replace(", ", " ");
                assert_eq!(
                    rows(&said, "tools tools", 2, [3, 4, 5, 6]),
                    expected,
                    "{said}"
                );
            }
            // The owner without the number of its stream.
            _ => {
                let shown = rows(&said, "tools", 1, [2, 3, 4, 5]);
                let expected = expected.clone().into_iter().map(|(partition, row)| {
                    let (offset, end, lag, owner) = row;
                    let member = owner.rsplit_once('-').unwrap().0.to_owned();
                    (partition, (offset, end, lag, member))
                });
                assert_eq!(shown, expected.collect(), "{said}");
            }
        }
        stage.passed(release);
    }
    assert_eq!(play.members().len(), 2);
    play.leaves(&jvm);
    play.leaves(&ours);
    play.end();
}

fn run(release: &str, class: &str, play: &Play, flag: &str, more: &[&str]) -> String {
    let zookeeper = play.stage.zookeeper.connect_string();
    let args = [&[flag, &zookeeper, "--group", &play.group], more].concat();
    let output = run_class(&Jars::kafka(release), class, &args);
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// The rows that begin with these words, by partition, whose columns are these.
fn rows(said: &str, start: &str, partition: usize, columns: [usize; 4]) -> BTreeMap<i32, Row> {
    let lines = said
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let lines = lines.filter(|words| words.join(" ").starts_with(&format!("{start} ")));
    let [offset, end, lag, owner] = columns;
    lines
        .map(|words| {
            let number = |at: usize| words[at].parse().unwrap_or(-1);
            let row = (
                number(offset),
                number(end),
                number(lag),
                words[owner].to_owned(),
            );
            (words[partition].parse().expect("a partition"), row)
        })
        .collect()
}
