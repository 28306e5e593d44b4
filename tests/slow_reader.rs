//! A reader that acknowledges nothing: what a member holds in memory stays within its bounds. A process of its own, since it is measured.

mod support;

use std::time::Duration;

use evenkeel::Event;
use support::{
    Broker, BrokerOptions, LONG, Producer, Reading, ZooKeeper, config, nothing_more, until,
};

const MIB: u64 = 1024 * 1024;
const PARTITIONS: i32 = 4;
/// 200 MiB in all.
const MESSAGES: u64 = 512;
const SIZE: usize = 100 * 1024;
const BUFFERED: u32 = 16 * 1024 * 1024;
const UNACKED: u32 = 16 * 1024 * 1024;

/// What this process holds in memory, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number
        .and_then(|text| text.parse::<u64>().ok())
        .expect("a number of KiB")
        * 1024
}

#[test]
fn a_reader_that_acknowledges_nothing_holds_no_more_than_its_bounds() {
    // K8, R4
    let zookeeper = ZooKeeper::start("3.9.5");
    let options = BrokerOptions {
        heap_mb: 384,
        ..Default::default()
    };
    let broker = Broker::start_with("1.1.1", &zookeeper, options);
    broker.create_topic("t", PARTITIONS);
    let settings = [("queue.buffering.max.kbytes", "8192")];
    for partition in 0..PARTITIONS {
        // The producer keeps the account of what it sent; it shall not be in the measure.
        let mut producer = Producer::connect_with(&broker, "t", &settings).with_size(SIZE);
        producer.produce(partition..partition + 1, MESSAGES);
    }
    let before = resident();
    let config = config(&zookeeper, "g")
        .with_max_buffered_bytes(BUFFERED)
        .with_max_unacked_bytes(UNACKED)
        .with_unacked_warn_age(Duration::from_millis(100))
        .with_registration_check_interval(Duration::from_millis(200));
    let mut member = Reading::join(config, "t");
    let bound = (UNACKED as usize).div_ceil(SIZE);
    let mut kept: Vec<_> = (0..bound).map(|_| member.next()).collect();
    assert!(
        nothing_more(&mut member.stream),
        "delivery stops at the bound"
    );
    member.hear("it is told", |event| {
        matches!(
            event,
            Event::Unacknowledged {
                is_at_bound: true,
                ..
            }
        )
    });
    until("the queues are full", LONG, || {
        let first = resident();
        assert!(nothing_more(&mut member.stream));
        resident() <= first
    });
    let grown = resident().saturating_sub(before);
    // Each queue may be a fetch beyond its bound, and each kept message pins the fetch that it came in.
    let fetches = 4 * PARTITIONS as u64 * MIB;
    let slack = 24 * MIB;
    let most = u64::from(BUFFERED + UNACKED) + fetches + slack;
    println!("{} MiB more of {} MiB that may be", grown / MIB, most / MIB);
    assert!(
        grown < most,
        "{} MiB more, {} MiB may be",
        grown / MIB,
        most / MIB
    );
    // What is kept is really in memory: the bound was not kept by an empty queue.
    let least = u64::from(UNACKED) / 2;
    assert!(
        grown >= least,
        "{} MiB more, at least {} MiB are kept",
        grown / MIB,
        least / MIB
    );
    let health = member.connector.health();
    let undone: usize = health.held.values().map(|holding| holding.undone).sum();
    assert_eq!(undone, bound);
    // One that is done makes room for one more.
    kept.remove(0).ack();
    kept.push(member.next());
    for message in kept {
        message.ack();
    }
    let rest = PARTITIONS as usize * MESSAGES as usize - bound - 1;
    assert_eq!(member.take(rest).len(), rest);
    member.leave();
}
