//! The round-robin rule in its three historical forms: all partitions of all topics, dealt like cards.

use std::collections::BTreeMap;

use crate::assign::{Assignor, Streams, jvm, numeric};
use crate::config::Compat;
use crate::error::{Error, ErrorKind, Result};
use crate::group::{Assignment, Subscriptions, Topic, TopicPartition};

/// Deals all partitions of all topics to all streams in turn (L-58 to L-62).
///
/// The partitions are shuffled by Java's hash of their names, which happens to be the same in every member. Then they
/// are dealt to the streams in the order of their names, and a stream that does not subscribe to the topic loses its
/// turn. Topic `t` with partitions 0 to 3 and the streams `a-0`, `b-0`:
///
/// | stream | partitions |
/// |---|---|
/// | `a-0` | 0, 2 |
/// | `b-0` | 1, 3 |
///
/// Ten topics with one partition each go 5 and 5 here, where [`Range`](crate::assign::Range) gives `a-0` all of them.
/// The surprising cases: partition 10 does not follow 9, its hash is far away; and lost turns are not made up for, so
/// with unequal subscriptions a stream may get nothing (L-59).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RoundRobin {
    /// The releases to agree with.
    pub compat: Compat,
}

impl RoundRobin {
    /// Neighbours in the order of dealing whose order no rule defines, because the JVM takes it from the history of a hash
    /// table (L-63): equal hashes, different topics, one bucket. None in nearly every group.
    ///
    /// We order them as a JVM member does that lists its topics by name. One that does not may differ, and then two members
    /// claim one partition.
    pub fn ties(
        &self,
        subscriptions: &Subscriptions,
        partitions: &BTreeMap<Topic, Vec<i32>>,
    ) -> Vec<(TopicPartition, TopicPartition)> {
        let deck = self.deck(&Streams::of(subscriptions), partitions);
        let is_tie = |a: &Card, b: &Card| {
            (a.hash, a.place.bucket) == (b.hash, b.place.bucket) && a.place.topic != b.place.topic
        };
        let pairs = deck.windows(2).filter(|pair| is_tie(&pair[0], &pair[1]));
        pairs
            .map(|pair| (pair[0].named(), pair[1].named()))
            .collect()
    }

    /// All partitions of the topics somebody subscribes to, in the order in which they are dealt.
    fn deck<'a>(
        &self,
        streams: &Streams<'a>,
        partitions: &BTreeMap<Topic, Vec<i32>>,
    ) -> Vec<Card<'a>> {
        let mut deck = Vec::new();
        for place in self.table_order(streams) {
            let (before, after) = self.hashed_text(place.topic);
            let before = jvm::string_hash(&before);
            let card = |partition| Card {
                place,
                partition,
                hash: jvm::numbered_hash(before, partition, after),
            };
            deck.extend(numeric(partitions, place.topic).into_iter().map(card));
        }
        // A stable sort, as the JVM's: equal hashes stay in the order of the table.
        deck.sort_by_key(|card| card.hash);
        deck
    }

    /// The topics as the JVM walks through them before it sorts. Those without partitions count: they take room in the table.
    fn table_order<'a>(&self, streams: &Streams<'a>) -> Vec<jvm::InTable<'a>> {
        let once = jvm::table_order(streams.by_topic.keys().copied());
        match self.compat {
            Compat::V0_8_2 => once,
            // These releases fill a second table from the first, which matters only within a bucket (L-63).
            Compat::V0_10_2 | Compat::V1_0 => jvm::table_order(once.iter().map(|at| at.topic)),
        }
    }

    /// The text that is hashed, before and after the partition's number (L-60).
    fn hashed_text(&self, topic: &Topic) -> (String, &'static str) {
        match self.compat {
            Compat::V0_8_2 | Compat::V0_10_2 => (format!("[{},", topic.as_str()), "]"),
            Compat::V1_0 => (format!("{}-", topic.as_str()), ""),
        }
    }
}

impl Assignor for RoundRobin {
    /// # Errors
    /// [`Assignment`](ErrorKind::Assignment) at level `0.8.2` if the topics do not all have the same streams (L-61).
    fn assign(
        &self,
        subscriptions: &Subscriptions,
        partitions: &BTreeMap<Topic, Vec<i32>>,
    ) -> Result<Assignment> {
        let streams = Streams::of(subscriptions);
        if self.compat == Compat::V0_8_2 {
            refuse_unequal(&streams)?;
        }
        let mut assignment = Assignment::new();
        let mut turn = 0;
        for card in self.deck(&streams, partitions) {
            let topic = card.place.topic;
            let place = next_in_turn(&streams.by_topic[topic], turn);
            let owners = assignment.entry(topic.clone()).or_default();
            owners.insert(card.partition, streams.sorted[place].clone());
            turn = place + 1;
        }
        Ok(assignment)
    }

    fn name(&self) -> &str {
        "roundrobin"
    }

    /// From 0.10.2 on the topics of all members are dealt together; before, all members have the same (L-51, L-61).
    fn needs_all_topics(&self) -> bool {
        self.compat != Compat::V0_8_2
    }

    fn doubt(
        &self,
        subscriptions: &Subscriptions,
        partitions: &BTreeMap<Topic, Vec<i32>>,
    ) -> Option<String> {
        let ties = self.ties(subscriptions, partitions);
        let (a, b) = ties.first()?;
        Some(format!(
            "round robin does not define whether {a} or {b} comes first, and a jvm member may differ: use range, or \
             rename a topic"
        ))
    }
}

/// A partition to be dealt.
struct Card<'a> {
    place: jvm::InTable<'a>,
    partition: i32,
    hash: i32,
}

impl Card<'_> {
    fn named(&self) -> TopicPartition {
        TopicPartition::new(self.place.topic.clone(), self.partition)
    }
}

/// The first of these places from `turn` on, around the end if need be. Places ascend and are never none.
fn next_in_turn(places: &[usize], turn: usize) -> usize {
    let at = places.partition_point(|&place| place < turn);
    places[if at < places.len() { at } else { 0 }]
}

/// Releases before 0.10.2 deal only if every topic has the same streams (L-61). No topic at all is equal (L-65 is a crash).
fn refuse_unequal(streams: &Streams) -> Result<()> {
    let mut topics = streams.by_topic.iter();
    let Some((first, places)) = topics.next() else {
        return Ok(());
    };
    let Some((other, _)) = topics.find(|(_, others)| *others != places) else {
        return Ok(());
    };
    Err(Error::new(
        ErrorKind::Assignment,
        format!(
            "round robin of release 0.8.2 refuses the group: {first} and {other} do not have the same streams; let all \
             members subscribe to the same topics with one stream count each, or set partition.assignment.compat to \
             0.10.2 or 1.0 if every member is that new"
        ),
    ))
}
