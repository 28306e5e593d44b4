//! Offsets that somebody sets while their partition is read, and a message that is passed.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel::Event;
use evenkeel::Topic;
use evenkeel::TopicPartition;

use crate::support::Broker;
use crate::support::LONG;
use crate::support::Producer;
use crate::support::Reading;
use crate::support::Tree;
use crate::support::ZooKeeper;
use crate::support::block_on;
use crate::support::config;
use crate::support::nothing_more;
use crate::support::until;

const NODE: &str = "/consumers/g/offsets/orders/0";

/// No attempt gets through this one.
const POISON: i64 = 5;

#[test]
fn an_offset_set_by_hand_does_not_move_a_live_member_and_passing_a_message_does() {
    // O1
    let zookeeper = ZooKeeper::start("3.9.5");
    let broker = Broker::start("1.1.1", &zookeeper);
    broker.create_topic("orders", 1);
    let mut producer = Producer::connect(&broker, "orders");
    producer.produce(0..1, 20);
    let tree = Tree::connect(&zookeeper);
    let at = TopicPartition::new(Topic::new("orders").unwrap(), 0);
    let mut config = config(&zookeeper, "g");
    config.auto_commit_interval = Duration::from_millis(200);
    let mut member = Reading::join(config.clone(), "orders");
    member.settle();

    let mut poison = None;
    for offset in 0..20 {
        let message = member.next();
        assert_eq!(message.offset(), offset);
        match offset {
            POISON => poison = Some(message),
            _ => message.ack(),
        }
    }
    stands(&tree, POISON);

    // Forward, over the message nobody gets done: the member goes on as it was and leaves the node alone. It looks when it
    // has something to commit.
    tree.make(NODE, "12");
    pass(&member, &at, POISON + 1);
    let other = member.connector.health().held[&at].position;
    assert_eq!(other, Some(POISON), "one behind it changes nothing");
    assert!(nothing_more(&mut member.stream));
    pass(&member, &at, POISON);
    member.hear("the message is passed", |event| {
        *event
            == Event::Passed {
                partition: at.clone(),
                offset: POISON,
                was_handed_out: true,
            }
    });
    // Ours passed theirs with that, so that nothing waits.
    stands(&tree, 20);
    drop(poison);

    // Forward past everything: commits are suspended, and health and an event say so.
    tree.make(NODE, "23");
    producer.produce(0..1, 2);
    member.take(2);
    member.hear("the offset was set forward", |event| {
        *event
            == Event::ForeignAdvance {
                partition: at.clone(),
                theirs: 23,
                ours: 21,
            }
            || matches!(
                event,
                Event::ForeignAdvance {
                    theirs: 23,
                    ours: 22,
                    ..
                }
            )
    });
    let suspended = || member.connector.health().suspended;
    until("health names it", LONG, || {
        suspended() == BTreeSet::from([at.clone()])
    });
    member.commit();
    assert_eq!(tree.text(NODE).as_deref(), Some("23"));
    producer.produce(0..1, 2);
    member.take(2);
    stands(&tree, 24);
    until("health is clear again", LONG, || {
        member.connector.health().suspended.is_empty()
    });

    // Back: written again with the next commit.
    tree.make(NODE, "3");
    producer.produce(0..1, 1);
    member.take(1);
    member.hear("the rewind is repaired", |event| {
        *event
            == Event::RewindRepaired {
                partition: at.clone(),
                theirs: 3,
                ours: 25,
            }
    });
    stands(&tree, 25);

    // One that is not even sent yet.
    pass(&member, &at, 26);
    producer.produce(0..1, 4);
    let offsets: Vec<i64> = member.take(3).iter().map(|got| got.offset()).collect();
    assert_eq!(offsets, [25, 27, 28]);
    stands(&tree, 29);

    // For the next owner the node is the word, forward and back.
    member.leave();
    for (set, first) in [("28", 28), ("2", 2)] {
        tree.make(NODE, set);
        let mut next = Reading::join(config.clone(), "orders");
        assert_eq!(next.take(1)[0].offset(), first);
        next.leave();
    }
}

fn pass(member: &Reading, at: &TopicPartition, offset: i64) {
    block_on(member.connector.pass(at, offset)).expect("it is in hand or to come");
}

#[track_caller]
fn stands(tree: &Tree, offset: i64) {
    let wanted = offset.to_string();
    until(&format!("{wanted} is committed"), LONG, || {
        tree.text(NODE).as_deref() == Some(&wanted)
    });
}
