//! What a member leaves in ZooKeeper: ours and a JVM's of the same id, in two groups, byte for byte.

use std::collections::BTreeMap;

use crate::play::Play;
use crate::stage;
use crate::stage::Stage;
use crate::support::JvmMemberOptions;
use crate::support::Tree;
use crate::support::jvm_versions;

/// What there is to see of a node: its text, whether it goes with a session, and how often it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    text: String,
    is_ephemeral: bool,
    version: i32,
}

#[test]
fn registration_owner_and_offset_nodes_are_those_of_a_jvm() {
    let _others = stage::together();
    for stage in [Stage::new(), Stage::old()] {
        for release in jvm_versions() {
            compare(stage, release);
            stage.passed(release);
        }
    }
}

fn compare(stage: &'static Stage, release: &str) {
    let topic = format!("nodes-{release}");
    let mut play = Play::new(stage, &format!("nodes-{release}-jvm"), &[(&topic, 5)]);
    let topics = play.all(2);
    let process = play.jvm_process(release, &topics, JvmMemberOptions::default());
    let jvm = play.jvm_joins(process, Some("same"), &topics);
    play.settle();
    let sent = play.still();
    let ours_group = format!("nodes-{release}-ours");
    let mut config = crate::support::config(&stage.zookeeper, &ours_group);
    config.consumer_id = Some("same".to_owned());
    let ours = crate::support::Ours::join(config, &[(&topic, 2)]);
    ours.settle();
    crate::support::until("ours has read as much", crate::support::LONG, || {
        ours.finished().len() == sent
    });
    play.commit(process);
    ours.commit();

    let theirs = tree_of(&stage.tree, &play.group);
    let mine = tree_of(&stage.tree, &ours_group);
    assert_eq!(jvm, format!("{}_same", play.group));
    assert_eq!(ours.name(), format!("{ours_group}_same"));
    let owners = theirs.keys().filter(|path| path.starts_with("/owners/"));
    assert_eq!(owners.count(), 1 + 5, "{theirs:#?}");
    assert_eq!(texts(&mine), texts(&theirs));
    for (path, node) in &theirs {
        let is_named = path.starts_with("/ids/") || node.is_ephemeral;
        if is_named {
            assert!(node.is_ephemeral && mine[path].is_ephemeral, "{path}");
            // Hazards 2.2: the version tells our nodes from theirs, and nothing else does.
            assert_eq!((node.version, mine[path].version), (0, 1), "{path}");
        }
    }
    let stored = stage.tree.offsets(&ours_group, &topic);
    assert_eq!(stored.values().sum::<i64>(), i64::try_from(sent).unwrap());

    let (farewell, _) = ours.leave();
    assert!(farewell.forced.is_empty());
    play.end();
    let theirs = tree_of(&stage.tree, &format!("nodes-{release}-jvm"));
    let mine = tree_of(&stage.tree, &ours_group);
    assert_eq!(texts(&mine), texts(&theirs), "after both have left");
}

/// All nodes of a group by their paths below it. The group's name, which differs, is taken out of texts and paths, and times out of texts.
fn tree_of(tree: &Tree, group: &str) -> BTreeMap<String, Node> {
    let mut nodes = BTreeMap::new();
    let mut paths = vec![format!("/consumers/{group}")];
    while let Some(path) = paths.pop() {
        let (data, stat) = tree.node(&path).expect("nothing changes now");
        let text = String::from_utf8(data).expect("a text in UTF-8");
        let names = tree.children(&path).into_iter();
        paths.extend(names.map(|name| format!("{path}/{name}")));
        let below = path[format!("/consumers/{group}").len()..].replace(group, "GROUP");
        let node = Node {
            text: without_time(&text).replace(group, "GROUP"),
            is_ephemeral: stat.ephemeral_owner != 0,
            version: stat.version,
        };
        nodes.insert(below, node);
    }
    nodes
}

fn texts(nodes: &BTreeMap<String, Node>) -> BTreeMap<&str, (&str, bool)> {
    let nodes = nodes.iter();
    nodes
        .map(|(path, node)| (path.as_str(), (node.text.as_str(), node.is_ephemeral)))
        .collect()
}

/// A registration with its time, thirteen digits in quotes (L-21), taken out.
fn without_time(text: &str) -> String {
    const BEFORE: &str = "\"timestamp\":\"";
    let Some((before, after)) = text.split_once(BEFORE) else {
        return text.to_owned();
    };
    let (time, rest) = after.split_at(13);
    assert!(time.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
    format!("{before}{BEFORE}TIME{rest}")
}
