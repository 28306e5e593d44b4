//! How long it takes to say who owns what, and to make a name.

use std::collections::BTreeMap;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};

use evenkeel::assign::{Assignor, Range, RoundRobin};
use evenkeel::group::{ConsumerId, GroupName, Subscriptions, Topic};
use evenkeel::id::{self, HashedHost, IdContext};

type Group = (Subscriptions, BTreeMap<Topic, Vec<i32>>);

/// Members with ten streams each, all subscribed to all topics.
fn group(topics: i32, partitions: i32, streams: u32) -> Group {
    let topics: Vec<Topic> = (0..topics)
        .map(|n| Topic::new(&format!("topic-{n}")).expect("a topic's name"))
        .collect();
    let all: BTreeMap<Topic, u32> = topics.iter().map(|topic| (topic.clone(), 10)).collect();
    let members = (0..streams / 10)
        .map(|n| (ConsumerId::new(format!("group_member-{n}")), all.clone()))
        .collect();
    let lists = topics
        .into_iter()
        .map(|topic| (topic, (0..partitions).collect()));
    (members, lists.collect())
}

fn assignors(c: &mut Criterion) {
    let round_robin = RoundRobin::default();
    let both: [&dyn Assignor; 2] = [&Range, &round_robin];
    for (topics, partitions, streams) in [(1, 240, 90), (100, 100, 100), (1, 1_000_000, 10_000)] {
        let (subscriptions, lists) = group(topics, partitions, streams);
        let mut benches = c.benchmark_group(format!("{topics}x{partitions} over {streams}"));
        benches.sample_size(10);
        for assignor in both {
            benches.bench_function(assignor.name(), |b| {
                b.iter(|| assignor.assign(black_box(&subscriptions), black_box(&lists)));
            });
        }
    }
}

fn names(c: &mut Criterion) {
    let group = GroupName::new("svc-000").expect("a group's name");
    let context = IdContext::new("app01.example.com", &group, "00c0ffee").expect("a host");
    c.bench_function("name", |b| {
        b.iter(|| id::name(black_box(&context), &HashedHost))
    });
}

criterion_group!(benches, assignors, names);
criterion_main!(benches);
