//! Who gets which partition, computed alike by every member.

mod jvm;
mod range;
mod round_robin;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::group::{Assignment, StreamId, Subscriptions, Topic};

pub use range::Range;
pub use round_robin::RoundRobin;

pub use crate::config::{Compat, Strategy};

/// Says who owns what, from who subscribes to what and which partitions there are.
///
/// Every member computes the whole assignment and nobody compares notes, so this must be a pure function of its
/// arguments: no clock, no chance, no order but that of names and numbers, no knowledge of who asks. If two members
/// compute different answers, each claims what the other has, and both wait.
///
/// The caller may rely on this: each partition has at most one owner; the owner is a stream of a member that
/// subscribes to the topic, numbered below the member's stream count for that topic; what is not in `partitions` is not
/// in the answer; nobody subscribed, or no partitions, gives an empty answer and no error.
///
/// The implementer must keep it, and must not mind the order of the numbers in `partitions`, a topic that is
/// subscribed but not in `partitions`, or one that is there and not subscribed. The answer may be computed away from
/// the member's own work and thrown away if the group changed meanwhile.
///
/// Worked example with [`Range`]: members `etl_a` with 2 streams and `etl_b` with 1 for topic `t` of 4 partitions. There
/// are 3 streams, 4 / 3 = 1 partition each and 1 left over for the first.
///
/// ```
/// use std::collections::BTreeMap;
/// use evenkeel::assign::{Assignor, Range};
/// use evenkeel::group::{ConsumerId, Topic};
///
/// let t = Topic::new("t")?;
/// let member = |id: &str, streams| (ConsumerId::new(id), BTreeMap::from([(t.clone(), streams)]));
/// let subscriptions = BTreeMap::from([member("etl_a", 2), member("etl_b", 1)]);
/// let partitions = BTreeMap::from([(t.clone(), vec![0, 1, 2, 3])]);
///
/// let assignment = Range.assign(&subscriptions, &partitions)?;
/// let owners: Vec<&str> = assignment[&t].values().map(|stream| stream.as_str()).collect();
/// assert_eq!(owners, ["etl_a-0", "etl_a-0", "etl_a-1", "etl_b-0"]);
/// # Ok::<(), evenkeel::error::Error>(())
/// ```
pub trait Assignor: Send + Sync + fmt::Debug {
    /// The whole assignment.
    ///
    /// # Errors
    /// [`Assignment`](crate::error::ErrorKind::Assignment) if the rule has no answer for such a group: then no member
    /// gets anything until the group changes.
    fn assign(
        &self,
        subscriptions: &Subscriptions,
        partitions: &BTreeMap<Topic, Vec<i32>>,
    ) -> Result<Assignment>;

    /// A short name for logs and answers. All members of a group should use assignors of the same name.
    fn name(&self) -> &str;

    /// Whether `partitions` must hold the topics of all members, or those of one member suffice to get that member's
    /// own share right (L-51). The others are then not read.
    ///
    /// `true` is always right and costs reads.
    fn needs_all_topics(&self) -> bool {
        true
    }

    /// Why other members might compute something else from the same arguments, in one sentence for an operator.
    ///
    /// `None` for a rule that leaves nothing open.
    fn doubt(
        &self,
        subscriptions: &Subscriptions,
        partitions: &BTreeMap<Topic, Vec<i32>>,
    ) -> Option<String> {
        let _ = (subscriptions, partitions);
        None
    }
}

/// The assignor of this name; `compat` matters to round robin only.
pub fn named(strategy: Strategy, compat: Compat) -> Arc<dyn Assignor> {
    match strategy {
        Strategy::Range => Arc::new(Range),
        Strategy::RoundRobin => Arc::new(RoundRobin { compat }),
    }
}

/// The streams of a group in the order of their names (L-18), and for each topic the places of those that share it.
///
/// One sort serves all topics: places are handed out in order, so they ascend.
struct Streams<'a> {
    sorted: Vec<StreamId>,
    by_topic: BTreeMap<&'a Topic, Vec<usize>>,
}

impl<'a> Streams<'a> {
    fn of(subscriptions: &'a Subscriptions) -> Self {
        let mut sorted = Vec::new();
        for (consumer, topics) in subscriptions {
            let streams = topics.values().copied().max().unwrap_or(0);
            sorted.extend((0..streams).map(|number| (consumer.stream(number), topics)));
        }
        sorted.sort_by(|(a, _), (b, _)| a.cmp(b));

        let mut by_topic: BTreeMap<&Topic, Vec<usize>> = BTreeMap::new();
        for (place, (stream, topics)) in sorted.iter().enumerate() {
            let shared = topics.iter().filter(|(_, n)| stream.number() < **n);
            for (topic, _) in shared {
                by_topic.entry(topic).or_default().push(place);
            }
        }
        let sorted = sorted.into_iter().map(|(stream, _)| stream).collect();
        Self { sorted, by_topic }
    }
}

/// A topic's partitions by number, each once. None if the topic is not there.
fn numeric(partitions: &BTreeMap<Topic, Vec<i32>>, topic: &Topic) -> Vec<i32> {
    let mut numbers = partitions.get(topic).cloned().unwrap_or_default();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}
