//! The range rule: every topic is cut into as many runs of neighbouring partitions as it has streams.

use std::collections::BTreeMap;
use std::ops::Range as Span;

use crate::assign::{Assignor, Streams, numeric};
use crate::error::Result;
use crate::group::{Assignment, Subscriptions, Topic};

/// The default of every release, with the same result in all of them (L-55 to L-57).
///
/// Topic by topic: the streams in the order of their names, the partitions by number. With 5 partitions and the
/// streams `C1-0`, `C1-1`, `C2-0`, `C2-1` each has 5 / 4 = 1, and the one left over goes to the first:
///
/// | stream | partitions |
/// |---|---|
/// | `C1-0` | 0, 1 |
/// | `C1-1` | 2 |
/// | `C2-0` | 3 |
/// | `C2-1` | 4 |
///
/// With 2 partitions `C2-0` and `C2-1` stand by. The surprising case: every topic starts with the first stream again,
/// so of 10 topics with one partition each `C1-0` owns all 10 (D-10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Range;

impl Assignor for Range {
    fn assign(
        &self,
        subscriptions: &Subscriptions,
        partitions: &BTreeMap<Topic, Vec<i32>>,
    ) -> Result<Assignment> {
        let streams = Streams::of(subscriptions);
        let mut assignment = Assignment::new();
        for (&topic, places) in &streams.by_topic {
            let numbers = numeric(partitions, topic);
            let owners = places.iter().enumerate().flat_map(|(position, &place)| {
                let span = span(position, numbers.len(), places.len());
                let stream = &streams.sorted[place];
                numbers[span].iter().map(|&n| (n, stream.clone()))
            });
            // Numbers come in ascending order, so the map is built in one go.
            let owners: BTreeMap<_, _> = owners.collect();
            if !owners.is_empty() {
                assignment.insert(topic.clone(), owners);
            }
        }
        Ok(assignment)
    }

    fn name(&self) -> &str {
        "range"
    }

    fn needs_all_topics(&self) -> bool {
        false
    }
}

/// The positions, not the numbers, of the partitions that the stream at this position owns (L-55).
fn span(position: usize, partitions: usize, streams: usize) -> Span<usize> {
    let (each, left_over) = (partitions / streams, partitions % streams);
    let start = |position: usize| each * position + position.min(left_over);
    start(position)..start(position + 1)
}
