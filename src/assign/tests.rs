//! What holds for every group, and that it equals rules written down a second time.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;
use proptest::strategy::Strategy;

use super::*;
use crate::config::Strategy as Rule;
use crate::error::ErrorKind;
use crate::group::ConsumerId;

type Partitions = BTreeMap<Topic, Vec<i32>>;

const LEVELS: [Compat; 3] = [Compat::V0_8_2, Compat::V0_10_2, Compat::V1_0];

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

/// Names that collide, hash to one bucket (`Aa`, `BB`), or are another's beginning.
fn any_topic() -> impl Strategy<Value = Topic> {
    prop_oneof![
        Just("Aa"),
        Just("BB"),
        Just("t"),
        Just("t-1"),
        Just("logs"),
        Just("orders")
    ]
    .prop_map(topic)
}

fn any_member() -> impl Strategy<Value = ConsumerId> {
    prop_oneof!["g_[ab]", "g_[ab]-1", "g_a[!.0A_é]", "g_[a-z]{3}"].prop_map(ConsumerId::new)
}

fn any_group() -> impl Strategy<Value = (Subscriptions, Partitions)> {
    let topics = btree_map(any_topic(), 1..13_u32, 0..5);
    let numbers = btree_set(0..130_i32, 0..25).prop_map(|set| set.into_iter().collect());
    (
        btree_map(any_member(), topics, 0..6),
        btree_map(any_topic(), numbers, 0..6),
    )
}

/// A group in which all members subscribe to the same topics with one stream count each.
fn even_group() -> impl Strategy<Value = (Subscriptions, Partitions)> {
    let members = btree_map(any_member(), 1..12_u32, 1..5);
    (members, btree_set(any_topic(), 1..5), any_group()).prop_map(
        |(members, topics, (_, partitions))| {
            let all = |n| topics.iter().map(|t| (t.clone(), n)).collect();
            let subscriptions = members.into_iter().map(|(m, n)| (m, all(n))).collect();
            (subscriptions, partitions)
        },
    )
}

fn stream_texts(subscriptions: &Subscriptions, wanted: Option<&Topic>) -> Vec<String> {
    let mut all = BTreeSet::new();
    for (member, topics) in subscriptions {
        for (topic, n) in topics {
            if wanted.is_none_or(|wanted| wanted == topic) {
                all.extend((0..*n).map(|n| format!("{}-{n}", member.as_str())));
            }
        }
    }
    let mut all: Vec<String> = all.into_iter().collect();
    all.sort_by_key(|text| text.encode_utf16().collect::<Vec<u16>>());
    all
}

fn subscribed(subscriptions: &Subscriptions) -> BTreeSet<Topic> {
    subscriptions
        .values()
        .flat_map(|t| t.keys().cloned())
        .collect()
}

type Texts = BTreeMap<(String, i32), String>;

fn texts(assignment: &Assignment) -> Texts {
    let mut all = Texts::new();
    for (topic, owners) in assignment {
        for (number, stream) in owners {
            all.insert((topic.to_string(), *number), stream.to_string());
        }
    }
    all
}

/// Range, by counting how many each stream gets and handing them out one by one.
fn range_oracle(subscriptions: &Subscriptions, partitions: &Partitions) -> Texts {
    let mut all = Texts::new();
    for topic in subscribed(subscriptions) {
        let streams = stream_texts(subscriptions, Some(&topic));
        let mut numbers = partitions.get(&topic).cloned().unwrap_or_default();
        numbers.sort();
        let mut shares = vec![0; streams.len()];
        for i in 0..numbers.len() {
            shares[i % streams.len()] += 1;
        }
        let mut left = numbers.into_iter();
        for (stream, share) in streams.iter().zip(shares) {
            for number in left.by_ref().take(share) {
                all.insert((topic.to_string(), number), stream.clone());
            }
        }
    }
    all
}

fn java_hash(text: &str) -> i64 {
    let mut hash: i64 = 0;
    for unit in text.encode_utf16() {
        hash = (hash * 31 + i64::from(unit)) % (1 << 32);
    }
    if hash >= 1 << 31 {
        hash - (1 << 32)
    } else {
        hash
    }
}

fn scala_bucket(topic: &Topic, topics: usize) -> u64 {
    let mut bits = 4;
    while 4 * topics > 3 << bits {
        bits += 1;
    }
    let product = |x: u64| (x * 0x9e37_75cd) % (1 << 32);
    let hash = java_hash(topic.as_str()).rem_euclid(1 << 32) as u64;
    let bytes = (product(hash) as u32).to_le_bytes();
    let x = product(u64::from(u32::from_be_bytes(bytes)));
    let rotated = (x >> 4) | ((x & 0xf) << 28);
    rotated >> (32 - bits)
}

/// Round robin, by walking step by step around the circle of all streams.
fn round_robin_oracle(
    level: Compat,
    subscriptions: &Subscriptions,
    partitions: &Partitions,
) -> Option<Texts> {
    let topics = subscribed(subscriptions);
    let circle = stream_texts(subscriptions, None);
    let of = |topic: &Topic| stream_texts(subscriptions, Some(topic));
    if level == Compat::V0_8_2 && topics.iter().any(|topic| of(topic) != circle) {
        return None;
    }
    let mut deck = Vec::new();
    for (by_name, topic) in topics.iter().enumerate() {
        // Fewer than 13 topics, so no table grew: the newest of a bucket is first, and last after a second table.
        let within = by_name as i64 * if level == Compat::V0_8_2 { -1 } else { 1 };
        let bucket = -(scala_bucket(topic, topics.len()) as i64);
        for number in partitions.get(topic).into_iter().flatten() {
            let text = match level {
                Compat::V1_0 => format!("{topic}-{number}"),
                _ => format!("[{topic},{number}]"),
            };
            deck.push((java_hash(&text), bucket, within, topic.clone(), *number));
        }
    }
    deck.sort();
    let mut all = Texts::new();
    let mut turns = (0..circle.len()).cycle();
    for (_, _, _, topic, number) in deck {
        let streams = of(&topic);
        let turn = turns.find(|turn| streams.contains(&circle[*turn])).unwrap();
        all.insert((topic.to_string(), number), circle[turn].clone());
    }
    Some(all)
}

fn all_assignors() -> Vec<Box<dyn Assignor>> {
    let mut all: Vec<Box<dyn Assignor>> = vec![Box::new(Range)];
    for compat in LEVELS {
        all.push(Box::new(RoundRobin { compat }));
    }
    all
}

proptest! {
    #[test]
    fn range_is_the_rule_written_a_second_time((subscriptions, partitions) in any_group()) {
        let assignment = Range.assign(&subscriptions, &partitions).unwrap();
        prop_assert_eq!(texts(&assignment), range_oracle(&subscriptions, &partitions));
    }

    #[test]
    fn round_robin_is_the_rule_written_a_second_time(
        (subscriptions, partitions) in prop_oneof![any_group(), even_group()],
    ) {
        for compat in LEVELS {
            let ours = RoundRobin { compat }.assign(&subscriptions, &partitions);
            let oracle = round_robin_oracle(compat, &subscriptions, &partitions);
            prop_assert_eq!(ours.ok().as_ref().map(texts), oracle);
        }
    }

    #[test]
    fn each_partition_that_somebody_wants_has_one_owner_that_wants_it(
        (subscriptions, partitions) in prop_oneof![any_group(), even_group()],
    ) {
        let wanted = subscribed(&subscriptions);
        let expected: BTreeSet<(&Topic, i32)> = partitions
            .iter()
            .filter(|(topic, _)| wanted.contains(*topic))
            .flat_map(|(topic, numbers)| numbers.iter().map(move |n| (topic, *n)))
            .collect();
        for assignor in all_assignors() {
            let Ok(assignment) = assignor.assign(&subscriptions, &partitions) else { continue };
            let mut seen = BTreeSet::new();
            for (topic, owners) in &assignment {
                for (number, stream) in owners {
                    let count = subscriptions[&stream.consumer()][topic];
                    prop_assert!(stream.number() < count, "{stream} of {count}");
                    seen.insert((topic, *number));
                }
            }
            prop_assert_eq!(&seen, &expected, "{}", assignor.name());
        }
    }

    #[test]
    fn the_order_of_the_partition_list_does_not_matter(
        (subscriptions, partitions, shuffled) in any_group().prop_flat_map(|(subscriptions, partitions)| {
            let lists: Vec<_> = partitions.values().map(|n| Just(n.clone()).prop_shuffle()).collect();
            (Just(subscriptions), Just(partitions), lists)
        }),
    ) {
        let other: Partitions = partitions.keys().cloned().zip(shuffled).collect();
        for assignor in all_assignors() {
            let one = assignor.assign(&subscriptions, &partitions).ok();
            prop_assert_eq!(one, assignor.assign(&subscriptions, &other).ok());
        }
    }

    #[test]
    fn range_is_fair_within_one_for_each_topic((subscriptions, partitions) in any_group()) {
        let assignment = Range.assign(&subscriptions, &partitions).unwrap();
        for (topic, owners) in &assignment {
            let mut shares: BTreeMap<String, usize> =
                stream_texts(&subscriptions, Some(topic)).into_iter().map(|s| (s, 0)).collect();
            for stream in owners.values() {
                *shares.get_mut(stream.as_str()).unwrap() += 1;
            }
            let (least, most) = (shares.values().min(), shares.values().max());
            prop_assert!(most.unwrap() - least.unwrap() <= 1);
        }
    }

    #[test]
    fn round_robin_over_equal_subscriptions_is_fair_within_one(
        (subscriptions, partitions) in even_group(),
    ) {
        for compat in LEVELS {
            let assignment = RoundRobin { compat }.assign(&subscriptions, &partitions).unwrap();
            let mut shares: BTreeMap<String, usize> =
                stream_texts(&subscriptions, None).into_iter().map(|s| (s, 0)).collect();
            for stream in assignment.values().flat_map(BTreeMap::values) {
                *shares.get_mut(stream.as_str()).unwrap() += 1;
            }
            let (least, most) = (shares.values().min(), shares.values().max());
            prop_assert!(most.unwrap() - least.unwrap() <= 1);
        }
    }

    #[test]
    fn ones_own_topics_are_enough_for_ones_own_share(
        (subscriptions, partitions) in prop_oneof![any_group(), even_group()],
    ) {
        for assignor in all_assignors().iter().filter(|assignor| !assignor.needs_all_topics()) {
            let Ok(whole) = assignor.assign(&subscriptions, &partitions) else { continue };
            for (member, topics) in &subscriptions {
                let own: Partitions = partitions
                    .iter()
                    .filter(|(topic, _)| topics.contains_key(*topic))
                    .map(|(topic, numbers)| (topic.clone(), numbers.clone()))
                    .collect();
                let part = assignor.assign(&subscriptions, &own).unwrap();
                let share = |all: &Assignment| {
                    let mut share = Vec::new();
                    for (topic, owners) in all {
                        let mine = owners.iter().filter(|(_, s)| s.consumer() == *member);
                        share.extend(mine.map(|(n, s)| (topic.clone(), *n, s.clone())));
                    }
                    share
                };
                prop_assert_eq!(share(&part), share(&whole));
            }
        }
    }
}

fn group_of(members: &[(&str, &[(&str, u32)])]) -> Subscriptions {
    let topics = |list: &[(&str, u32)]| list.iter().map(|(t, n)| (topic(t), *n)).collect();
    members
        .iter()
        .map(|(m, t)| (ConsumerId::new(*m), topics(t)))
        .collect()
}

// The bound is on work: if every partition looked at every stream, range would take 10,000,000,000 steps.
#[test]
fn a_million_partitions_over_ten_thousand_streams_are_no_matter() {
    let t = topic("t");
    let subscriptions: Subscriptions = (0..1_000)
        .map(|n| {
            (
                ConsumerId::new(format!("g_{n:04}")),
                BTreeMap::from([(t.clone(), 10)]),
            )
        })
        .collect();
    let assign = |assignor: &dyn Assignor, count: i32| {
        let partitions = Partitions::from([(t.clone(), (0..count).rev().collect())]);
        let mut assignment = assignor.assign(&subscriptions, &partitions).unwrap();
        assignment.remove(&t).unwrap()
    };
    let share = |owners: &BTreeMap<i32, StreamId>, stream: &str| {
        owners
            .values()
            .filter(|owner| owner.as_str() == stream)
            .count()
    };

    let owners = assign(&Range, 1_000_000);
    assert_eq!((owners.len(), share(&owners, "g_0999-9")), (1_000_000, 100));
    assert_eq!(owners[&999_900].as_str(), "g_0999-9");
    assert_eq!(owners[&999_899].as_str(), "g_0999-8");

    let owners = assign(&RoundRobin::default(), 100_000);
    assert_eq!((owners.len(), share(&owners, "g_0999-9")), (100_000, 10));
}

// Every turn but one in ten thousand is lost: a pointer that went step by step would take 1,000,000,000.
#[test]
fn lost_turns_cost_no_walk_around_the_circle() {
    let subscriptions: Subscriptions = (0..10_000)
        .map(|n| {
            let own = topic(&format!("t{n}"));
            (
                ConsumerId::new(format!("g_{n}")),
                BTreeMap::from([(own, 1)]),
            )
        })
        .collect();
    let partitions: Partitions = (0..10_000)
        .map(|n| (topic(&format!("t{n}")), (0..10).collect()))
        .collect();
    let assignment = RoundRobin::default()
        .assign(&subscriptions, &partitions)
        .unwrap();
    for (topic, owners) in &assignment {
        let expected = format!("g_{}-0", topic.as_str().trim_start_matches('t'));
        assert!(owners.values().all(|stream| stream.as_str() == expected));
    }
}

#[test]
fn nobody_and_nothing_is_an_empty_answer() {
    let t = Partitions::from([(topic("t"), vec![0])]);
    for assignor in all_assignors() {
        for members in [&[][..], &[("g_a", &[][..])]] {
            let subscriptions = group_of(members);
            assert!(assignor.assign(&subscriptions, &t).unwrap().is_empty());
        }
        let subscriptions = group_of(&[("g_a", &[("t", 1)])]);
        assert!(
            assignor
                .assign(&subscriptions, &Partitions::new())
                .unwrap()
                .is_empty()
        );
        let none = Partitions::from([(topic("t"), vec![])]);
        assert!(assignor.assign(&subscriptions, &none).unwrap().is_empty());
    }
}

#[test]
fn a_partition_listed_twice_is_one_partition() {
    let subscriptions = group_of(&[("g_a", &[("t", 2)])]);
    let twice = Partitions::from([(topic("t"), vec![1, 0, 1, 0])]);
    for assignor in all_assignors() {
        let owners = assignor.assign(&subscriptions, &twice).unwrap();
        let owners: Vec<&str> = owners[&topic("t")].values().map(StreamId::as_str).collect();
        assert_eq!(owners, ["g_a-0", "g_a-1"]);
    }
}

#[test]
fn a_refused_group_is_told_which_topics_differ() {
    let subscriptions = group_of(&[("g_a", &[("t", 1), ("u", 2)])]);
    let old = RoundRobin {
        compat: Compat::V0_8_2,
    };
    let error = old.assign(&subscriptions, &Partitions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Assignment);
    assert!(error.to_string().contains("t and u"), "{error}");
}

// L-63, with the orders that were measured for a member which registers (xAa, xBB).
#[test]
fn topics_that_no_rule_puts_in_order_are_told() {
    let subscriptions = group_of(&[
        ("g_a", &[("xAa", 1), ("xBB", 1), ("t", 1)]),
        ("g_b", &[("xAa", 1), ("xBB", 1), ("t", 1)]),
    ]);
    let mut partitions = Partitions::from([(topic("xAa"), vec![1, 2]), (topic("t"), vec![0])]);
    for compat in LEVELS {
        let assignor = RoundRobin { compat };
        assert_eq!(assignor.doubt(&subscriptions, &partitions), None);
    }
    partitions = Partitions::from([(topic("xAa"), vec![1]), (topic("xBB"), vec![1])]);
    for (compat, first, second) in [
        (Compat::V0_8_2, "xBB", "xAa"),
        (Compat::V0_10_2, "xAa", "xBB"),
        (Compat::V1_0, "xAa", "xBB"),
    ] {
        let assignor = RoundRobin { compat };
        let named = |name: &str| crate::group::TopicPartition::new(topic(name), 1);
        let pair = (named(first), named(second));
        assert_eq!(assignor.ties(&subscriptions, &partitions), [pair]);
        let doubt = assignor.doubt(&subscriptions, &partitions).unwrap();
        assert!(
            doubt.contains("xAa-1") && doubt.contains("xBB-1"),
            "{doubt}"
        );
        let owners = assignor.assign(&subscriptions, &partitions).unwrap();
        assert_eq!(owners[&topic(first)][&1].as_str(), "g_a-0");
        assert_eq!(owners[&topic(second)][&1].as_str(), "g_b-0");
    }
    assert_eq!(Range.doubt(&subscriptions, &partitions), None);
}

// The vectors' tie: equal hashes, but buckets 13 and 12.
#[test]
fn a_tie_that_the_table_decides_is_no_doubt() {
    let subscriptions = group_of(&[("g_a", &[("xggjmlk", 1), ("vhttm56", 1)])]);
    let partitions = Partitions::from([(topic("xggjmlk"), vec![3]), (topic("vhttm56"), vec![1])]);
    assert_eq!(
        RoundRobin::default().doubt(&subscriptions, &partitions),
        None
    );
}

#[test]
fn levels_and_strategies_are_read_as_they_are_written() {
    for compat in LEVELS {
        assert_eq!(compat.to_string().parse::<Compat>().unwrap(), compat);
        assert_eq!(named(Rule::RoundRobin, compat).name(), "roundrobin");
    }
    assert_eq!(Compat::default(), Compat::V1_0);
    assert_eq!(named(Rule::Range, Compat::V1_0).name(), "range");
    for bad in ["", "1.1", "0.8.2 ", "latest"] {
        let error = bad.parse::<Compat>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("0.8.2, 0.10.2, 1.0"), "{error}");
    }
}
