//! The nouns: topics, partitions, members, their streams, and the group as one look saw it.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result, printable};

/// The longest topic name Kafka accepts, in characters.
pub const MAX_TOPIC_LEN: usize = 249;

fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// A consumer group's name: `[A-Za-z0-9._-]`, not empty, not `.` or `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(Arc<str>);

impl GroupName {
    /// Checks and takes the name.
    ///
    /// # Errors
    /// [`Config`](crate::error::ErrorKind::Config) if it is empty, `.`, `..`, or has any other character.
    pub fn new(name: &str) -> Result<Self> {
        if is_plain(name) {
            return Ok(Self(name.into()));
        }
        Err(Error::config(format!(
            "group.id \"{}\" is refused: a group name has one or more of A-Z a-z 0-9 . _ - and is not . or ..",
            printable(name)
        )))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A topic's name: `[A-Za-z0-9._-]`, 1 to 249 characters, not `.` or `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Topic(Arc<str>);

impl Topic {
    /// Checks and takes the name.
    ///
    /// # Errors
    /// [`Config`](crate::error::ErrorKind::Config) if it is empty, `.`, `..`, too long, or has any other character.
    pub fn new(name: &str) -> Result<Self> {
        if is_plain(name) && name.len() <= MAX_TOPIC_LEN {
            return Ok(Self(name.into()));
        }
        Err(Error::config(format!(
            "topic \"{}\" is refused: a topic name has 1 to {MAX_TOPIC_LEN} of A-Z a-z 0-9 . _ - and is not . or ..",
            printable(name)
        )))
    }

    /// Takes a name that stands in somebody else's data and is only computed with, so that it may hold characters Kafka
    /// itself would refuse.
    ///
    /// # Errors
    /// As [`new`](Self::new), but every character other than `/` and control characters is taken.
    pub fn foreign(name: &str) -> Result<Self> {
        if !name.is_empty()
            && name != "."
            && name != ".."
            && !name.chars().any(|c| c == '/' || c.is_control())
        {
            return Ok(Self(name.into()));
        }
        Self::new(name)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A member's name under `/consumers/<group>/ids`, with the group prefix (L-14): `etl_web01-1441234567890-1a2b3c4d`.
///
/// Other members' names are taken as they are; only our own are made with care.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ConsumerId(Arc<str>);

impl ConsumerId {
    /// Takes the name as it stands under `ids`.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The stream with this number, counted from 0.
    pub fn stream(&self, number: u32) -> StreamId {
        StreamId::new(self, number)
    }
}

/// One stream of a member, the unit that owns partitions; its text, `<consumer id>-<number>`, is what owner nodes hold (L-17).
#[derive(Clone)]
pub struct StreamId {
    text: Arc<str>,
    number: u32,
}

impl StreamId {
    /// Stream `number` (from 0) of a consumer.
    pub fn new(consumer: &ConsumerId, number: u32) -> Self {
        Self {
            text: format!("{}-{number}", consumer.as_str()).into(),
            number,
        }
    }

    /// The text that owner nodes hold.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The number of the stream within its member, from 0.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The member whose stream this is.
    pub fn consumer(&self) -> ConsumerId {
        ConsumerId::new(self.consumer_text())
    }

    /// Whether it is one of this member's streams.
    pub fn is_of(&self, consumer: &ConsumerId) -> bool {
        self.consumer_text() == consumer.as_str()
    }

    fn consumer_text(&self) -> &str {
        let digits = self.number.checked_ilog10().unwrap_or(0) as usize + 1;
        &self.text[..self.text.len() - digits - 1]
    }
}

/// Java's `String.compareTo`, by which every member sorts streams (L-18): UTF-16 code units of the whole text.
fn java_order(a: &str, b: &str) -> std::cmp::Ordering {
    // For ASCII, which is nearly every name, bytes and code units are the same.
    if a.is_ascii() && b.is_ascii() {
        a.cmp(b)
    } else {
        a.encode_utf16().cmp(b.encode_utf16())
    }
}

impl PartialEq for StreamId {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
impl Eq for StreamId {}
impl std::hash::Hash for StreamId {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}
impl Ord for StreamId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        java_order(&self.text, &other.text)
    }
}
impl PartialOrd for StreamId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for ConsumerId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        java_order(&self.0, &other.0)
    }
}
impl PartialOrd for ConsumerId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

macro_rules! text_like {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&printable(self.as_str()))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }
    )*};
}
text_like!(GroupName, Topic, ConsumerId, StreamId);

impl Borrow<str> for Topic {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// One partition of one topic; sorts by topic, then by number.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic.
    pub topic: Topic,
    /// The partition's number, 0 or more.
    pub partition: i32,
}

impl TopicPartition {
    /// The partition `partition` of `topic`.
    pub fn new(topic: Topic, partition: i32) -> Self {
        Self { topic, partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}
impl fmt::Debug for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// How a registration says what it wants (L-20).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Named topics, each with its stream count.
    Static,
    /// One regular expression; topics that match.
    WhiteList,
    /// One regular expression; topics that do not match.
    BlackList,
}

/// What one member subscribes to, as its registration says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subscription {
    /// Topics by name, each with a stream count of at least 1. May be empty: such a member owns nothing (L-28).
    Topics(BTreeMap<Topic, u32>),
    /// A filter over topic names with one stream count for all of them.
    Filter {
        /// [`Pattern::WhiteList`] or [`Pattern::BlackList`].
        pattern: Pattern,
        /// The expression, exactly as it stands in the registration (L-27).
        regex: String,
        /// How many streams share the topics.
        streams: u32,
    },
}

impl Subscription {
    /// How many streams the member has: the largest count of any topic, 0 for none.
    pub fn streams(&self) -> u32 {
        match self {
            Self::Topics(topics) => topics.values().copied().max().unwrap_or(0),
            Self::Filter { streams, .. } => *streams,
        }
    }
}

/// One member, as one look saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// What it subscribes to.
    pub subscription: Subscription,
    /// Its registration is at version 1 or more, which a JVM member's never is: it is one of ours.
    pub is_ours: bool,
}

/// The group and its topics, as one look saw them.
///
/// Everything in it is ordered: two members that sort differently claim the same partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupView {
    /// The members whose registration could be read.
    pub members: BTreeMap<ConsumerId, Member>,
    /// Members whose registration could not be read, with the reason. They count as absent, or stop every rebalance, as `malformed.peer` says (D1).
    pub malformed: BTreeMap<ConsumerId, String>,
    /// The partitions of each topic that somebody of interest subscribes to, in ascending order.
    /// A topic that does not exist has none; one whose node could not be read is in `unreadable` instead.
    pub partitions: BTreeMap<Topic, Vec<i32>>,
    /// Topics whose node is there but could not be understood, with the reason: what is held of them is kept.
    pub unreadable: BTreeMap<Topic, String>,
    /// All topics that exist, if a member with a filter made us look; empty otherwise.
    pub topics: BTreeSet<Topic>,
}

/// Who subscribes to what after filters were expanded: member, then topic, then stream count.
pub type Subscriptions = BTreeMap<ConsumerId, BTreeMap<Topic, u32>>;

/// Who owns what: topic, then partition, then the stream that owns it. What nobody owns is absent.
pub type Assignment = BTreeMap<Topic, BTreeMap<i32, StreamId>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_change_a_path_are_refused() {
        for bad in ["", ".", "..", "a/b", "a b", "ä", "a\0", "a\n"] {
            assert!(GroupName::new(bad).is_err(), "{bad:?}");
            assert!(Topic::new(bad).is_err(), "{bad:?}");
        }
        assert!(Topic::new(&"t".repeat(249)).is_ok());
        assert!(Topic::new(&"t".repeat(250)).is_err());
    }

    #[test]
    fn streams_sort_as_text() {
        let a = ConsumerId::new("g_a");
        let mut streams: Vec<StreamId> =
            [2, 10, 1, 0, 11].into_iter().map(|n| a.stream(n)).collect();
        streams.push(ConsumerId::new("g_a-1").stream(0));
        streams.sort();
        let text: Vec<&str> = streams.iter().map(StreamId::as_str).collect();
        assert_eq!(
            text,
            ["g_a-0", "g_a-1", "g_a-1-0", "g_a-10", "g_a-11", "g_a-2"]
        );
    }

    #[test]
    fn a_stream_knows_its_member() {
        for number in [0, 9, 10, 99, 100, 4_294_967_295] {
            let stream = ConsumerId::new("g_a-1").stream(number);
            assert_eq!(stream.consumer().as_str(), "g_a-1");
        }
    }
}
