//! Three brokers of 1.1.1: restarted one by one, a leader killed, and a log cut short by a leader that had lagged behind.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel::Event;
use evenkeel::event::ResetCause;

use crate::record::changed_after;
use crate::support::Broker;
use crate::support::BrokerOptions;
use crate::support::Got;
use crate::support::LONG;
use crate::support::Ours;
use crate::support::Producer;
use crate::support::Reading;
use crate::support::Tree;
use crate::support::TxnLog;
use crate::support::ZooKeeper;
use crate::support::config;
use crate::support::everything;
use crate::support::until;
use crate::support::until_some;

const PARTITIONS: i32 = 6;

/// How a broker is set up that may be restarted under load, and whose log may be cut short.
fn options() -> BrokerOptions {
    let lines = [
        "controlled.shutdown.enable=true",
        "unclean.leader.election.enable=true",
        "min.insync.replicas=1",
        "replica.lag.time.max.ms=3000",
        "controller.socket.timeout.ms=3000",
    ];
    BrokerOptions {
        session_ms: 3_000,
        lines: lines.map(str::to_owned).to_vec(),
        ..BrokerOptions::default()
    }
}

fn position(brokers: &[Broker], id: i32) -> usize {
    let found = brokers.iter().position(|broker| broker.id() == id);
    found.expect("one of ours")
}

/// Waits until all brokers that it lies on are in step for every partition.
fn in_step(asked: &Broker, topic: &str, partitions: i32, replicas: usize) {
    until(&format!("{topic} in step"), LONG, || {
        (0..partitions).all(|partition| {
            let led = asked.led(topic, partition);
            led.is_some_and(|(_, in_step)| in_step.len() == replicas)
        })
    });
}

#[test]
fn brokers_that_are_restarted_killed_and_led_by_one_behind_change_no_owner_and_lose_nothing_that_is_there()
 {
    // r052, K6, O9
    let begun = std::time::Instant::now();
    let zookeeper = ZooKeeper::start("3.9.5");
    let tree = Tree::connect(&zookeeper);
    let mut brokers = vec![Broker::start_with("1.1.1", &zookeeper, options())];
    let more: Vec<Broker> = std::thread::scope(|scope| {
        let start = || Broker::start_with("1.1.1", &zookeeper, options());
        let threads = [scope.spawn(start), scope.spawn(start)];
        threads.map(|thread| thread.join().unwrap()).into()
    });
    brokers.extend(more);
    let ids: Vec<i32> = brokers.iter().map(Broker::id).collect();
    let turned: Vec<Vec<i32>> = (0..PARTITIONS as usize)
        .map(|first| (0..3).map(|more| ids[(first + more) % 3]).collect())
        .collect();
    brokers[0].create_topic_on("t", &turned);
    brokers[0].create_topic_on("cut", &[vec![ids[1], ids[2]]]);
    in_step(&brokers[0], "t", PARTITIONS, 3);
    in_step(&brokers[0], "cut", 1, 2);

    let join = || Ours::join(config(&zookeeper, "g"), &[("t", 1)]);
    let members = [join(), join()];
    tree.wait_for_owners("both have their share", "g", "t", |owners| {
        owners.len() == PARTITIONS as usize && owners.values().collect::<BTreeSet<_>>().len() == 2
    });
    members.iter().for_each(Ours::settle);
    let mut log = TxnLog::of(&zookeeper);
    let mut txns = log.more();
    let settled = txns.last().expect("something happened").zxid;

    let bootstrap = brokers.iter().map(Broker::bootstrap);
    let bootstrap = bootstrap.collect::<Vec<_>>().join(",");
    let settings = [("bootstrap.servers", bootstrap.as_str()), ("acks", "all")];
    let producer = Producer::connect_with(&brokers[0], "t", &settings);
    let flow = producer.flow(0..PARTITIONS, Duration::from_millis(100));
    flow.await_more(0..PARTITIONS, 5);
    let texts = || -> usize { members.iter().map(|member| member.finished().len()).sum() };
    let reads_on = |what: &str| {
        let (before, start) = (texts(), std::time::Instant::now());
        flow.await_more(0..PARTITIONS, 5);
        until("members read on", LONG, || texts() > before + 30);
        println!(
            "{what} ({:?} s into the test): messages to all partitions and back after {:?}",
            begun.elapsed().as_secs(),
            start.elapsed()
        );
    };
    // Each goes once; the last is killed, unless there is time for more.
    let in_order = if everything() { 3 } else { 2 };
    for (number, broker) in brokers.iter_mut().enumerate().take(in_order) {
        broker.restart();
        in_step(broker, "t", PARTITIONS, 3);
        reads_on(&format!("broker {} of 3 restarted", number + 1));
    }
    // Whoever leads most of them at this moment.
    let leaders = (0..PARTITIONS).map(|partition| {
        let led = until_some("a leader", LONG, || brokers[0].led("t", partition));
        (partition, led.0)
    });
    let leaders: BTreeMap<i32, i32> = leaders.collect();
    let led_by = |id: &i32| leaders.values().filter(|leader| *leader == id).count();
    let most = *ids
        .iter()
        .max_by_key(|id| led_by(id))
        .expect("three of them");
    assert!(led_by(&most) > 0, "{leaders:?}");
    println!(
        "broker {most} leads {} of {PARTITIONS} partitions and is killed",
        led_by(&most)
    );
    let killed = position(&brokers, most);
    brokers[killed].kill();
    reads_on("a leader killed");
    let other = &brokers[(killed + 1) % 3];
    for partition in leaders.iter().filter(|(_, leader)| **leader == most) {
        let now_led_by = other.led("t", *partition.0).map(|led| led.0);
        assert!(
            now_led_by.is_some_and(|leader| leader != most),
            "{partition:?}: {now_led_by:?}"
        );
    }
    brokers[killed].restart();
    in_step(&brokers[killed], "t", PARTITIONS, 3);
    reads_on("it is back");

    let sent = flow.stop().finish();
    let is_finished = || {
        let finished: BTreeSet<String> = members.iter().flat_map(Ours::texts).collect();
        sent.iter().all(|sent| finished.contains(&sent.value))
    };
    until("everything sent is finished", LONG, is_finished);
    let mut times: BTreeMap<(i32, i64), usize> = BTreeMap::new();
    for finished in members.iter().flat_map(Ours::finished) {
        *times
            .entry((finished.partition, finished.offset))
            .or_default() += 1;
    }
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "delivered more than once: {twice:?}");
    txns.extend(log.more());
    let changed = changed_after(&txns, settled);
    assert!(changed.is_empty(), "rebalanced: {changed:#?}");
    for member in members {
        assert!(member.leave().0.forced.is_empty());
    }
    println!("{} messages, none lost, none twice", sent.len());

    log_cut_short(&zookeeper, &tree, &mut brokers);
}

/// Brokers 1 and 2 hold the topic `cut`. While 2 is away 1 takes more, which is read and committed. Then 1 goes, and 2 leads with what it has.
fn log_cut_short(zookeeper: &ZooKeeper, tree: &Tree, brokers: &mut [Broker]) {
    const KEPT: u64 = 40;
    const CUT: u64 = 30;
    let node = "/consumers/cut/offsets/cut/0";
    in_step(&brokers[0], "cut", 1, 2);
    let (leader, _) = until_some("a leader", LONG, || brokers[0].led("cut", 0));
    let leader = position(brokers, leader);
    let follower = 3 - leader;
    let mut config = config(zookeeper, "cut");
    config.auto_commit_interval = Duration::from_millis(200);
    let mut member = Reading::join(config, "cut");
    member.settle();
    let mut producer = Producer::connect_with(&brokers[leader], "cut", &[("acks", "all")]);
    producer.produce(0..1, KEPT);
    member.take(KEPT as usize);
    let mut log = TxnLog::of(zookeeper);
    let mut txns = log.more();
    let settled = txns.last().expect("something happened").zxid;

    brokers[follower].stop();
    producer.produce(0..1, CUT);
    member.take(CUT as usize);
    let all = (KEPT + CUT).to_string();
    until("all is committed", LONG, || {
        tree.text(node).as_deref() == Some(&all)
    });
    brokers[leader].stop();
    brokers[follower].restart();
    let id = brokers[follower].id();
    until("the one behind leads", LONG, || {
        brokers[follower]
            .led("cut", 0)
            .is_some_and(|(leader, _)| leader == id)
    });
    assert_eq!(brokers[follower].watermarks("cut", 0), (0, KEPT as i64));

    // Under the policy smallest everything that is there comes again, and what is written from now on after it.
    let first = member.take(1);
    let cause = ResetCause::OutOfRange;
    let reset = member.hear(
        "the reset",
        |event| matches!(event, Event::OffsetReset { cause: found, .. } if *found == cause),
    );
    let cut = evenkeel::TopicPartition::new(evenkeel::Topic::new("cut").unwrap(), 0);
    let stood = Some((KEPT + CUT) as i64);
    assert!(
        matches!(&reset, Event::OffsetReset { partition, from, to: Some(0), .. } if *partition == cut && *from == stood),
        "{reset}"
    );
    Producer::connect(&brokers[follower], "cut").produce(0..1, 50);
    let rest = member.take(KEPT as usize + 49);
    let offsets: Vec<i64> = first.iter().chain(&rest).map(Got::offset).collect();
    assert_eq!(offsets, (0..KEPT as i64 + 50).collect::<Vec<_>>());
    let after = (KEPT + 50).to_string();
    until("the new end is committed", LONG, || {
        tree.text(node).as_deref() == Some(&after)
    });
    txns.extend(log.more());
    let owners = txns
        .iter()
        .filter(|txn| txn.zxid > settled)
        .flat_map(|txn| &txn.changes);
    let touched: Vec<_> = owners
        .filter(|change| touches(change, "/consumers/cut/owners"))
        .collect();
    assert!(touched.is_empty(), "{touched:?}");
    member.leave();
}

fn touches(change: &crate::support::Change, below: &str) -> bool {
    use crate::support::Change;
    match change {
        Change::Created { path, .. } | Change::Deleted { path } | Change::Set { path, .. } => {
            path.starts_with(below)
        }
        Change::Opened { .. } | Change::Closed | Change::Other(_) => false,
    }
}
