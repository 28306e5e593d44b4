//! Our member in one group with real JVM members, on real servers: same shares, same bytes, hand-over both ways.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use support::{
    Broker, Flow, JvmMember, JvmMemberOptions, LONG, Ours, Producer, Tree, ZooKeeper, config,
};

const PARTITIONS: i32 = 12;

/// Servers of one test, with a topic through which messages flow.
struct Stage {
    zookeeper: ZooKeeper,
    broker: Broker,
    tree: Tree,
}

impl Stage {
    fn new(zookeeper: &str) -> Self {
        let zookeeper = ZooKeeper::start(zookeeper);
        let broker = Broker::start("1.1.1", &zookeeper);
        let tree = Tree::connect(&zookeeper);
        Self {
            zookeeper,
            broker,
            tree,
        }
    }

    fn flow(&self, topic: &str) -> Flow {
        self.broker.create_topic(topic, PARTITIONS);
        Producer::connect(&self.broker, topic).flow(0..PARTITIONS, Duration::from_millis(5))
    }
}

/// How many partitions each member holds.
fn shares(owners: &BTreeMap<i32, String>) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for owner in owners.values() {
        let (member, _) = owner
            .rsplit_once('-')
            .expect("an owner text ends with a stream number");
        *shares.entry(member.to_owned()).or_default() += 1;
    }
    shares
}

#[test]
fn ours_alone_reads_everything_and_leaves_its_offsets_behind() {
    let stage = Stage::new("3.9.5");
    let flow = stage.flow("t");
    let ours = Ours::join(config(&stage.zookeeper, "g"), &[("t", 1)]);
    ours.settle();
    flow.await_more(0..PARTITIONS, 20);
    let sent = flow.stop().finish();
    let texts: BTreeSet<String> = sent.iter().map(|sent| sent.value.clone()).collect();
    support::until("all is finished", LONG, || ours.texts() == texts);
    assert_eq!(stage.tree.members("g"), [ours.name()]);
    let (farewell, finished) = ours.leave();
    assert!(farewell.forced.is_empty());
    assert_eq!(finished.len(), texts.len(), "nothing is doubled");
    let ends: BTreeMap<i32, i64> = (0..PARTITIONS)
        .map(|p| (p, stage.broker.watermarks("t", p).1))
        .collect();
    assert_eq!(stage.tree.offsets("g", "t"), ends);
    assert!(stage.tree.members("g").is_empty() && stage.tree.owners("g", "t").is_empty());
}

#[test]
fn ours_and_a_jvm_member_share_and_take_over_from_each_other() {
    let stage = Stage::new("3.9.5");
    let flow = stage.flow("t");
    let options = JvmMemberOptions::default().with_id("jvm");
    let jvm = JvmMember::start(
        "1.1.1",
        &stage.zookeeper.connect_string(),
        "g",
        &[("t", 1)],
        options,
    );
    stage
        .tree
        .wait_for_owners("the JVM has all", "g", "t", |owners| owners.len() == 12);
    flow.await_more(0..PARTITIONS, 20);
    let ours = Ours::join(config(&stage.zookeeper, "g"), &[("t", 1)]);
    ours.settle();
    let owners = stage
        .tree
        .wait_for_owners("both have half", "g", "t", |owners| {
            owners.len() == 12 && shares(owners).values().all(|share| *share == 6)
        });
    assert_eq!(shares(&owners).len(), 2);
    flow.await_more(0..PARTITIONS, 20);
    let seen = jvm.shutdown();
    stage
        .tree
        .wait_for_owners("ours has all", "g", "t", |owners| {
            owners.len() == 12 && shares(owners).len() == 1
        });
    ours.settle();
    flow.await_more(0..PARTITIONS, 20);
    let sent: BTreeSet<String> = flow
        .stop()
        .finish()
        .into_iter()
        .map(|sent| sent.value)
        .collect();
    let theirs: Vec<String> = seen
        .messages
        .iter()
        .filter_map(|message| message.value.clone())
        .collect();
    support::until("all is read", LONG, || {
        let mut all = ours.texts();
        all.extend(theirs.iter().cloned());
        all == sent
    });
    let (_, finished) = ours.leave();
    assert_eq!(
        finished.len() + theirs.len(),
        sent.len(),
        "a clean hand-over doubles none"
    );
}
