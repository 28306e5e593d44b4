//! How long the pure rooms take, and a message on its way through a stream.
// How long something takes is for a real clock to say.
#![allow(clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

use evenkeel::ack::Ledger;
use evenkeel::assign::{Assignor, Range};
use evenkeel::clock::{BootClock, LeaseClock};
use evenkeel::config::InternalTopics;
use evenkeel::error::Error;
use evenkeel::filter::{self, TopicFilter};
use evenkeel::group::{
    ConsumerId, GroupView, Member, Pattern, StreamId, Subscription, Topic, TopicPartition,
};
use evenkeel::lease::{LeaseGuard, Moment, Terms};
use evenkeel::memory::MemoryRegistry;
use evenkeel::registry::Later;
use evenkeel::stream::{Content, Edge, Notice, Polled, Queue, Reader, ReaderSource, Start};
use evenkeel::{Config, ConsumerConnector, MessageStream, rebalance, wire};

fn topic(name: &str) -> Topic {
    Topic::new(name).expect("a topic's name")
}

/// What members read of each other at every change.
fn registrations(c: &mut Criterion) {
    for topics in [1, 100] {
        let of = (0..topics).map(|n| (topic(&format!("topic-{n}")), 4));
        let subscription = Subscription::Topics(of.collect());
        let bytes = wire::encode_registration(&subscription, 1_450_000_000_000);
        let mut benches = c.benchmark_group(format!("registration of {topics} topics"));
        benches.bench_function("write", |b| {
            b.iter(|| wire::encode_registration(black_box(&subscription), 1_450_000_000_000));
        });
        benches.bench_function("read", |b| {
            b.iter(|| wire::read_registration(black_box(&bytes)));
        });
    }
    let bytes = wire::encode_topic(0..240);
    c.bench_function("read a topic of 240 partitions", |b| {
        b.iter(|| wire::decode_topic(black_box(&bytes)));
    });
}

/// A ninth member comes to eight that share the partitions, and one of the eight compares.
fn plans(c: &mut Criterion) {
    for partitions in [240, 10_000] {
        let (t, all) = (topic("t"), (0..partitions).collect::<Vec<i32>>());
        let members = |count: i32| {
            let one = |n| {
                (
                    ConsumerId::new(format!("g_m{n}")),
                    BTreeMap::from([(t.clone(), 1)]),
                )
            };
            (0..count).map(one).collect()
        };
        let lists = BTreeMap::from([(t.clone(), all)]);
        let assign = |count| {
            Range
                .assign(&members(count), &lists)
                .expect("range refuses nobody")
        };
        let (before, after) = (assign(8), assign(9));
        let me = ConsumerId::new("g_m3");
        let held: BTreeMap<TopicPartition, StreamId> = before[&t]
            .iter()
            .filter(|(_, stream)| stream.is_of(&me))
            .map(|(partition, stream)| (TopicPartition::new(t.clone(), *partition), stream.clone()))
            .collect();
        c.bench_function(&format!("plan for {partitions} partitions"), |b| {
            b.iter(|| rebalance::plan(&me, black_box(&after), &held, &BTreeSet::new()));
        });
    }
}

fn ledgers(c: &mut Criterion) {
    const MANY: i64 = 10_000;
    let mut benches = c.benchmark_group("10000 messages in the ledger");
    benches.throughput(Throughput::Elements(10_000));
    benches.bench_function("done one by one", |b| {
        let mut ledger = Ledger::new(0);
        b.iter(|| {
            for _ in 0..MANY {
                let offset = ledger.next();
                ledger.hand_out(offset, 100, Moment::default());
                ledger.done(offset);
            }
        });
    });
    benches.bench_function("done backwards", |b| {
        b.iter_batched(
            || {
                let mut ledger = Ledger::new(0);
                for offset in 0..MANY {
                    ledger.hand_out(offset, 100, Moment::default());
                }
                ledger
            },
            |mut ledger| {
                for offset in (0..MANY).rev() {
                    ledger.done(offset);
                }
                ledger
            },
            BatchSize::SmallInput,
        );
    });
}

fn filters(c: &mut Criterion) {
    let topics: BTreeSet<Topic> = (0..1000)
        .map(|n| topic(&format!("service-{}.events-{n}", n % 7)))
        .collect();
    let member = Member {
        subscription: Subscription::Filter {
            pattern: Pattern::WhiteList,
            regex: "service-[35].*,other-.*".to_owned(),
            streams: 2,
        },
        is_ours: false,
    };
    let view = GroupView {
        members: (0..50)
            .map(|n| (ConsumerId::new(format!("g_m{n}")), member.clone()))
            .collect(),
        topics,
        ..GroupView::default()
    };
    c.bench_function("a white list of 50 members over 1000 topics", |b| {
        b.iter(|| filter::expand(black_box(&view), InternalTopics::Offsets));
    });
    let one = TopicFilter::new(Pattern::WhiteList, "service-[35].*").expect("an expression");
    let name = topic("service-3.events-17");
    c.bench_function("a white list over one topic", |b| {
        b.iter(|| one.matches(black_box(&name)));
    });
}

/// What is asked for every message.
fn leases(c: &mut Criterion) {
    let lease = LeaseGuard::new(Terms::new(Duration::from_secs(600)));
    lease.renew(BootClock.now());
    c.bench_function("clock", |b| b.iter(|| BootClock.now()));
    c.bench_function("clock and lease", |b| {
        b.iter(|| lease.is_valid(BootClock.now()))
    });
}

// ---- a stream over a log that never ends and costs nothing ----

struct Endless;

struct Next(i64);

struct Same(i64);

impl Content for Same {
    fn offset(&self) -> i64 {
        self.0
    }
    fn key(&self) -> Option<&[u8]> {
        None
    }
    fn payload(&self) -> Option<&[u8]> {
        Some(&[0; 100])
    }
    fn timestamp_ms(&self) -> Option<i64> {
        None
    }
    fn headers(&self) -> Vec<(&str, Option<&[u8]>)> {
        Vec::new()
    }
}

impl Queue for Next {
    fn poll(&mut self) -> Polled {
        self.0 += 1;
        Polled::Message(Box::new(Same(self.0 - 1)))
    }
}

impl Reader for Endless {
    fn read(
        &self,
        starts: Vec<Start>,
    ) -> Later<Vec<(TopicPartition, Result<Box<dyn Queue>, Error>)>> {
        let queue = |start: Start| -> Box<dyn Queue> { Box::new(Next(start.offset)) };
        Box::pin(async move {
            let starts = starts.into_iter();
            starts
                .map(|start| (start.partition.clone(), Ok(queue(start))))
                .collect()
        })
    }
    fn stop(&self, _: &[TopicPartition]) {}
    fn edge(&self, _: &TopicPartition, _: Edge) -> Later<Result<i64, Error>> {
        Box::pin(std::future::ready(Ok(0)))
    }
    fn notice(&self) -> Later<Notice> {
        Box::pin(std::future::pending())
    }
    fn close(&self) -> Later<()> {
        Box::pin(std::future::ready(()))
    }
}

impl ReaderSource for Endless {
    fn needs_brokers(&self) -> bool {
        false
    }
    fn open(&self, _: &[wire::Broker], _: usize) -> Result<Arc<dyn Reader>, Error> {
        Ok(Arc::new(Endless))
    }
}

async fn stream(partitions: i32) -> (ConsumerConnector, MessageStream) {
    let (registry, t) = (MemoryRegistry::new(), topic("t"));
    registry.put(&wire::paths::topic(&t), wire::encode_topic(0..partitions));
    let config = Config::new("g", "in-memory").expect("a good configuration");
    let connector = ConsumerConnector::builder(config)
        .with_registry(Arc::new(registry))
        .with_reader_source(Arc::new(Endless))
        .connect()
        .await
        .expect("a registry in memory is there");
    let mut streams = connector
        .streams([(t.clone(), 1)])
        .await
        .expect("nobody is in the way");
    let streams = streams.remove(&t);
    let mut stream = streams.and_then(|mut all| all.pop()).expect("one stream");
    while connector.owned().len() < usize::try_from(partitions).expect("a count") {
        stream.recv().await;
    }
    (connector, stream)
}

fn handing_out(c: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut benches = c.benchmark_group("a message through a stream");
    benches.throughput(Throughput::Elements(1));
    for partitions in [12, 240] {
        let (connector, mut stream) = runtime.block_on(stream(partitions));
        benches.bench_function(format!("of {partitions} partitions, lent"), |b| {
            b.iter_custom(|times| {
                let start = Instant::now();
                runtime.block_on(async {
                    for _ in 0..times {
                        black_box(stream.recv().await);
                    }
                });
                start.elapsed()
            });
        });
        benches.bench_function(format!("of {partitions} partitions, owned"), |b| {
            b.iter_custom(|times| {
                let start = Instant::now();
                runtime.block_on(async {
                    for _ in 0..times {
                        let message = stream.recv_owned().await.expect("it has not left");
                        black_box(message).ack();
                    }
                });
                start.elapsed()
            });
        });
        drop(connector);
    }
}

criterion_group!(
    benches,
    registrations,
    plans,
    ledgers,
    filters,
    leases,
    handing_out
);
criterion_main!(benches);
