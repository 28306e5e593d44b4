//! What to give up, keep and claim: the difference between what the rule gives us and what we hold.

use std::collections::{BTreeMap, BTreeSet};

use crate::group::{Assignment, ConsumerId, StreamId, Topic, TopicPartition};

/// What follows for one member from one view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// What we hold and somebody else should have, with its heir; `None` if nobody should have it, as after the topic
    /// was deleted.
    pub release: BTreeMap<TopicPartition, Option<StreamId>>,
    /// What we hold and should hold. Nothing happens to it.
    pub keep: BTreeSet<TopicPartition>,
    /// What we should hold and do not, with the stream that gets it.
    pub claim: BTreeMap<TopicPartition, StreamId>,
}

impl Plan {
    /// Whether nothing is to be done.
    pub fn is_idle(&self) -> bool {
        self.release.is_empty() && self.claim.is_empty()
    }
}

/// Compares an assignment with what a member holds. Only the difference moves (W9); of frozen
/// topics, about which we are not sure, what is held is kept and nothing new is claimed.
///
/// With partitions 0 to 3 of `t` held and the assignment giving us 0 and 1, `c2` 2 and 3: release 2 and 3 to `c2`, keep
/// 0 and 1, claim nothing. A partition that moves between two of our own streams is released and claimed anew.
pub fn plan(
    me: &ConsumerId,
    assignment: &Assignment,
    held: &BTreeMap<TopicPartition, StreamId>,
    frozen: &BTreeSet<Topic>,
) -> Plan {
    let mut plan = Plan::default();
    for (partition, stream) in held {
        let heir = assignment
            .get(&partition.topic)
            .and_then(|topic| topic.get(&partition.partition));
        if heir == Some(stream) || frozen.contains(&partition.topic) {
            plan.keep.insert(partition.clone());
        } else {
            plan.release.insert(partition.clone(), heir.cloned());
        }
    }
    for (topic, partitions) in assignment
        .iter()
        .filter(|(topic, _)| !frozen.contains(*topic))
    {
        for (partition, stream) in partitions.iter().filter(|(_, stream)| stream.is_of(me)) {
            let partition = TopicPartition::new(topic.clone(), *partition);
            if held.get(&partition) != Some(stream) {
                plan.claim.insert(partition, stream.clone());
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> Topic {
        Topic::new(name).unwrap()
    }

    fn assigned(of: &[(&str, i32, &str, u32)]) -> Assignment {
        let mut assignment = Assignment::new();
        for (name, partition, consumer, stream) in of {
            let stream = ConsumerId::new(*consumer).stream(*stream);
            assignment
                .entry(topic(name))
                .or_default()
                .insert(*partition, stream);
        }
        assignment
    }

    fn holding(of: &[(&str, i32, u32)]) -> BTreeMap<TopicPartition, StreamId> {
        let of = of.iter();
        of.map(|(name, p, stream)| {
            (
                TopicPartition::new(topic(name), *p),
                ConsumerId::new("c1").stream(*stream),
            )
        })
        .collect()
    }

    #[test]
    fn only_the_difference_moves() {
        let me = ConsumerId::new("c1");
        let assignment = assigned(&[("t", 0, "c1", 0), ("t", 1, "c2", 0), ("t", 2, "c1", 0)]);
        let plan = plan(
            &me,
            &assignment,
            &holding(&[("t", 0, 0), ("t", 1, 0)]),
            &BTreeSet::new(),
        );
        assert_eq!(plan.keep.len(), 1);
        assert_eq!(
            plan.release[&TopicPartition::new(topic("t"), 1)],
            Some(ConsumerId::new("c2").stream(0))
        );
        assert_eq!(
            plan.claim
                .keys()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            ["t-2"]
        );
    }

    #[test]
    fn a_partition_of_nobody_is_released_without_an_heir() {
        let plan = plan(
            &ConsumerId::new("c1"),
            &Assignment::new(),
            &holding(&[("t", 0, 0)]),
            &BTreeSet::new(),
        );
        assert_eq!(plan.release.values().collect::<Vec<_>>(), [&None]);
    }

    #[test]
    fn a_frozen_topic_stays_as_it_is() {
        let frozen = BTreeSet::from([topic("t")]);
        let assignment = assigned(&[("t", 0, "c2", 0), ("t", 1, "c1", 0)]);
        let plan = plan(
            &ConsumerId::new("c1"),
            &assignment,
            &holding(&[("t", 0, 0)]),
            &frozen,
        );
        assert!(plan.is_idle());
        assert_eq!(plan.keep.len(), 1);
    }

    #[test]
    fn a_change_of_stream_is_a_release_and_a_claim() {
        let assignment = assigned(&[("t", 0, "c1", 1)]);
        let plan = plan(
            &ConsumerId::new("c1"),
            &assignment,
            &holding(&[("t", 0, 0)]),
            &BTreeSet::new(),
        );
        assert_eq!((plan.release.len(), plan.claim.len()), (1, 1));
    }

    #[test]
    fn a_name_that_begins_like_ours_is_not_ours() {
        let assignment = assigned(&[("t", 0, "c1-0", 0)]);
        assert!(
            plan(
                &ConsumerId::new("c1"),
                &assignment,
                &BTreeMap::new(),
                &BTreeSet::new()
            )
            .is_idle()
        );
    }
}
