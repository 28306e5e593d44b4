//! Fifty members in one process, on a real server and a real broker.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use support::{Broker, LONG, Ours, Producer, Sent, Tree, ZooKeeper, config, until};

const MEMBERS: usize = 50;
const PARTITIONS: i32 = 60;

/// How many owner nodes each of the members has.
fn shares(tree: &Tree, members: &[Ours]) -> BTreeMap<String, usize> {
    let mut shares: BTreeMap<String, usize> = members.iter().map(|m| (m.name(), 0)).collect();
    for partition in tree.children("/consumers/fifty/owners/t") {
        let path = format!("/consumers/fifty/owners/t/{partition}");
        let Some(owner) = tree.text(&path) else {
            continue;
        };
        let member = owner.strip_suffix("-0").unwrap_or(&owner).to_owned();
        *shares.entry(member).or_default() += 1;
    }
    shares
}

/// Everybody has one or two, and together they have all.
fn is_shared(tree: &Tree, members: &[Ours]) -> bool {
    let shares = shares(tree, members);
    let each = PARTITIONS as usize / members.len();
    shares.len() == members.len()
        && shares.values().sum::<usize>() == PARTITIONS as usize
        && shares.values().all(|n| *n == each || *n == each + 1)
}

fn finished(members: &[Ours], gone: &BTreeSet<String>) -> BTreeSet<String> {
    let present = members.iter().flat_map(Ours::texts);
    present.chain(gone.iter().cloned()).collect()
}

fn values(sent: &[Sent]) -> BTreeSet<String> {
    sent.iter().map(|sent| sent.value.clone()).collect()
}

#[test]
fn fifty_members_of_one_process_share_and_half_of_them_leave() {
    let zookeeper = ZooKeeper::start("3.9.5");
    let broker = Broker::start("1.1.1", &zookeeper);
    broker.create_topic("t", PARTITIONS);
    let mut producer = Producer::connect(&broker, "t");
    let mut sent = values(&producer.produce(0..PARTITIONS, 5));
    let tree = Tree::connect(&zookeeper);

    let join = |_| Ours::join(config(&zookeeper, "fifty"), &[("t", 1)]);
    let mut members: Vec<Ours> = (0..MEMBERS).map(join).collect();
    until("fifty share", LONG * 4, || is_shared(&tree, &members));
    members.iter().for_each(Ours::settle);
    sent.extend(values(&producer.produce(0..PARTITIONS, 5)));
    let nobody = BTreeSet::new();
    until("all is read", LONG * 4, || {
        finished(&members, &nobody) == sent
    });

    let (mut gone, mut doubled) = (BTreeSet::new(), 0);
    for member in members.split_off(MEMBERS / 2) {
        let (farewell, read) = member.leave();
        assert!(farewell.forced.is_empty(), "{farewell:?}");
        doubled += read.len();
        gone.extend(read.into_iter().map(|message| message.value));
    }
    doubled -= gone.len();
    until("the other half share", LONG * 4, || {
        is_shared(&tree, &members)
    });
    sent.extend(values(&producer.produce(0..PARTITIONS, 5)));
    until("all is read by the rest", LONG * 4, || {
        finished(&members, &gone) == sent
    });
    let total: usize = members.iter().map(|m| m.finished().len()).sum();
    assert_eq!(doubled, 0, "nobody read a message twice");
    assert_eq!(
        total + gone.len(),
        sent.len(),
        "a clean hand-over doubles none"
    );
}
