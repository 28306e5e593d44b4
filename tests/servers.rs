//! The servers and old members that other tests lean on: they start, serve, stop, die and come back.
// Waiting for other processes needs real clocks.
#![allow(clippy::disallowed_methods)]

mod support;

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;
use std::time::Instant;

use support::Broker;
use support::JvmMember;
use support::JvmMemberOptions;
use support::LONG;
use support::Producer;
use support::Sent;
use support::Tree;
use support::ZooKeeper;

/// One pair for the whole binary; the watchdog ends it.
fn servers() -> &'static (ZooKeeper, Broker) {
    static BOTH: OnceLock<(ZooKeeper, Broker)> = OnceLock::new();
    BOTH.get_or_init(|| {
        let zookeeper = ZooKeeper::start("3.9.5");
        let broker = timed("broker 1.1.1", || Broker::start("1.1.1", &zookeeper));
        (zookeeper, broker)
    })
}

fn timed<T>(what: &str, deed: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let made = deed();
    println!("{what}: {} ms", start.elapsed().as_millis());
    made
}

fn texts(sent: &[Sent]) -> BTreeSet<(i32, i64, String)> {
    sent.iter()
        .map(|sent| (sent.partition, sent.offset, sent.value.clone()))
        .collect()
}

#[test]
fn every_zookeeper_starts_keeps_its_nodes_over_a_hard_death_and_stops() {
    for version in support::zookeeper_versions() {
        let mut server = timed(&format!("ZooKeeper {version}"), || {
            ZooKeeper::start(version)
        });
        let tree = Tree::connect(&server);
        tree.make("/a/b", "text");
        server.kill();
        assert!(
            server.ask("conf").is_none(),
            "a killed server answers nothing"
        );
        timed(&format!("ZooKeeper {version} again"), || server.restart());
        assert_eq!(tree.text("/a/b").as_deref(), Some("text"));
        assert_eq!(tree.children("/a"), ["b"]);
        assert!(tree.delete("/a/b"));
        assert_eq!(tree.text("/a/b"), None);
        server.pause();
        server.resume();
        assert!(
            server
                .ask("srvr")
                .is_some_and(|answer| answer.contains(version))
        );
        timed(&format!("ZooKeeper {version} stopped"), || server.stop());
        support::passed("servers", &[("zookeeper", version)]);
    }
}

#[test]
fn every_broker_makes_topics_takes_messages_and_comes_back() {
    for version in support::broker_versions() {
        let (zookeeper, _) = servers();
        let options = support::BrokerOptions {
            chroot: format!("/broker-{version}"),
            ..Default::default()
        };
        let mut broker = timed(&format!("broker {version}"), || {
            Broker::start_with(version, zookeeper, options)
        });
        timed("a topic", || broker.create_topic("t", 3));
        let mut producer = Producer::connect(&broker, "t");
        assert_eq!(producer.produce(0..3, 5).len(), 15);
        timed("more partitions", || broker.add_partitions("t", 4));
        assert_eq!(broker.watermarks("t", 2), (0, 5));
        assert_eq!(broker.watermarks("t", 3), (0, 0));
        timed("back in order", || broker.restart());
        assert_eq!(broker.watermarks("t", 2), (0, 5));
        timed("a topic deleted", || broker.delete_topic("t"));
        timed("and made again", || broker.create_topic("t", 2));
        assert_eq!(broker.watermarks("t", 1), (0, 0));
        timed("stopped", || broker.stop());
        support::passed("servers", &[("broker", version)]);
    }
}

#[test]
fn a_killed_broker_comes_back_when_its_registration_is_gone() {
    let (zookeeper, _) = servers();
    let options = support::BrokerOptions {
        chroot: "/killed".into(),
        session_ms: 2_000,
        ..Default::default()
    };
    let mut broker = Broker::start_with("1.1.1", zookeeper, options);
    broker.create_topic("t", 1);
    Producer::connect(&broker, "t").produce(0..1, 3);
    broker.kill();
    timed("back after a hard death", || broker.restart());
    // Just after a restart the client has been seen to answer with the end for both.
    support::until("the log is as it was", support::LONG, || {
        broker.watermarks("t", 0) == (0, 3)
    });
}

#[test]
fn every_old_member_reads_everything_commits_leaves_and_dies() {
    let (zookeeper, broker) = servers();
    let tree = Tree::connect(zookeeper);
    for release in support::jvm_versions() {
        let (topic, group) = (format!("read-{release}"), format!("g-{release}"));
        broker.create_topic(&topic, 4);
        let mut producer = Producer::connect(broker, &topic);
        producer.produce(0..4, 25);
        let options = JvmMemberOptions::default()
            .with_id("one")
            .with("zookeeper.session.timeout.ms", "2000");
        let start = || {
            JvmMember::start(
                release,
                &zookeeper.connect_string(),
                &group,
                &[(&topic, 2)],
                options.clone(),
            )
        };
        let mut member = timed(&format!("member {release}"), start);
        member.wait_for("the first 100 messages", LONG, |seen| {
            (seen.messages.len() == 100).then_some(())
        });
        member.commit();
        assert_eq!(tree.members(&group), [format!("{group}_one")]);
        assert_eq!(
            tree.owners(&group, &topic)
                .values()
                .collect::<BTreeSet<_>>()
                .len(),
            2,
            "two streams share four partitions"
        );
        assert!(
            tree.offsets(&group, &topic)
                .values()
                .all(|offset| *offset == 25)
        );
        let seen = timed("left", || member.shutdown());
        assert_eq!(
            (
                seen.count("started"),
                seen.count("shutdown"),
                seen.count("failed")
            ),
            (1, 1, 0),
            "{:?}",
            seen.events
        );
        assert!(tree.members(&group).is_empty() && tree.owners(&group, &topic).is_empty());

        let member = start();
        let sent = producer.produce(0..4, 25);
        member.wait_for("the next 100 messages", LONG, |seen| {
            (seen.messages.len() == 100).then_some(())
        });
        let mut messages = seen.messages;
        messages.extend(member.kill().messages);
        assert!(
            !tree.members(&group).is_empty(),
            "a killed member stays registered until its session ends"
        );
        timed("its session ended", || {
            support::until("its nodes gone", LONG, || tree.members(&group).is_empty())
        });
        assert!(tree.owners(&group, &topic).is_empty());
        let read = messages
            .into_iter()
            .map(|message| (message.partition, message.offset, message.value.unwrap()));
        assert_eq!(read.collect::<BTreeSet<_>>(), texts(&sent));
        support::passed(
            "servers",
            &[
                ("member", release),
                ("zookeeper", zookeeper.version()),
                ("broker", broker.version()),
            ],
        );
    }
}

#[test]
fn a_warm_process_lets_connectors_join_and_leave_while_messages_flow() {
    let (zookeeper, broker) = servers();
    let tree = Tree::connect(zookeeper);
    broker.create_topic("flow", 6);
    let flow = Producer::connect(broker, "flow").flow(0..6, Duration::from_millis(5));
    let options = JvmMemberOptions {
        members: 2,
        ..Default::default()
    };
    let mut member = JvmMember::start(
        "1.1.1",
        &zookeeper.connect_string(),
        "g-flow",
        &[("flow", 1)],
        options,
    );
    let third = timed("one more joined", || member.join(None));
    timed("shares stand", || {
        let even = |owners: &std::collections::BTreeMap<i32, String>| {
            owners.len() == 6 && owners.values().collect::<BTreeSet<_>>().len() == 3
        };
        tree.wait_for_owners("three share", "g-flow", "flow", even)
    });
    flow.await_more(0..6, 20);
    timed("it left", || member.leave(third));
    flow.await_more(0..6, 20);
    let sent = texts(&flow.stop().finish());
    member.wait_for("all of the flow", LONG, |seen| {
        let read = seen.messages.iter().map(|message| {
            (
                message.partition,
                message.offset,
                message.value.clone().unwrap(),
            )
        });
        (read.collect::<BTreeSet<_>>() == sent).then_some(())
    });
    assert_eq!(member.shutdown().count("shutdown"), 3);
}
