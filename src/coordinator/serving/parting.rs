//! Handing partitions over to those they belong to now.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use crate::coordinator::part::{Departure, Farewell};
use crate::coordinator::serving::{Done, LAST_WORDS, Leaving, Serving};
use crate::event::Event;
use crate::group::{ConsumerId, StreamId, TopicPartition};
use crate::rebalance::Plan;
use crate::session::TopicFate;

impl Serving<'_> {
    pub(super) async fn hand_over(&mut self, plan: &Plan) {
        let wanted = plan.keep.len() + plan.claim.len();
        let waiting = plan.claim.len();
        if !plan.release.is_empty()
            || plan
                .claim
                .keys()
                .any(|p| !self.blocked.contains_key(p) && !self.is_leaving_us(p))
        {
            self.generation += 1;
            self.tell(Event::Rebalanced {
                generation: self.generation,
                members: self.view.members.len(),
                wanted,
                waiting,
                releasing: plan.release.len(),
            });
        }
        // What is not to be ours any more is not waited for either.
        self.blocked
            .retain(|partition, _| plan.claim.contains_key(partition));
        if plan.release.is_empty() {
            return;
        }
        let jvms = self.jvm_heirs(plan).await;
        let is_jvm = |heir: &Option<StreamId>| {
            heir.as_ref()
                .is_some_and(|stream| jvms.contains(&stream.consumer()))
        };
        let list = plan
            .release
            .iter()
            .map(|(partition, heir)| (partition.clone(), is_jvm(heir)))
            .collect();
        self.part_with(list);
    }

    pub(super) fn is_leaving_us(&self, partition: &TopicPartition) -> bool {
        self.parting.contains_key(partition) || self.deferred.contains_key(partition)
    }

    pub(super) async fn jvm_heirs(&mut self, plan: &Plan) -> BTreeSet<ConsumerId> {
        let heirs: BTreeSet<ConsumerId> = plan
            .release
            .values()
            .flatten()
            .map(StreamId::consumer)
            .collect();
        let mut jvms = BTreeSet::new();
        for heir in heirs {
            let looks_like_one = self
                .view
                .members
                .get(&heir)
                .is_some_and(|member| !member.is_ours);
            if looks_like_one && self.lookout.is_jvm(&heir).await {
                jvms.insert(heir);
            }
        }
        jvms
    }

    /// Fences these and begins to give them up.
    pub(super) fn part_with(&mut self, list: Vec<(TopicPartition, bool)>) {
        let mut ready = Vec::new();
        let mut stopped = Vec::new();
        for (partition, is_to_jvm) in list {
            let Some(held) = self.held.remove(&partition) else {
                continue;
            };
            held.ownership.fence();
            stopped.push(partition.clone());
            // The offsets of a topic that was deleted are left as they are (T2).
            let fate = Arc::<TopicFate>::default();
            if self.lookout.is_missing(&partition.topic) {
                fate.delete();
            }
            let leaving = Leaving {
                fate: fate.clone(),
                ownership: held.ownership.clone(),
                topic_created: held.node.since,
                is_remade: held.remade.is_some(),
            };
            self.parting.insert(partition.clone(), leaving);
            let farewell = Farewell {
                ownership: held.ownership,
                node: held.node,
                fate,
                is_to_jvm,
            };
            if self.committing.contains(&partition) || self.beginning.contains(&partition) {
                self.deferred.insert(partition, farewell);
            } else {
                ready.push(farewell);
            }
        }
        if let Some(reader) = &self.reader {
            reader.stop(&stopped);
        }
        self.depart(ready);
    }

    /// Those that waited for something of ours to end go now, if it has.
    pub(super) fn part_with_deferred(&mut self) {
        let ready: Vec<TopicPartition> = self
            .deferred
            .keys()
            .filter(|p| !self.beginning.contains(*p) && !self.committing.contains(*p))
            .cloned()
            .collect();
        let ready = ready
            .iter()
            .filter_map(|partition| self.deferred.remove(partition))
            .collect();
        self.depart(ready);
    }

    pub(super) fn depart(&mut self, list: Vec<Farewell>) {
        if list.is_empty() {
            return;
        }
        let partitions = list
            .iter()
            .map(|farewell| farewell.ownership.partition.clone())
            .collect();
        let parts = &self.core.parts;
        let departure = Departure {
            session: self.session.clone(),
            common: parts.common.clone(),
            outlets: parts.outlets.clone(),
            listener: parts.listener.clone(),
            outside: parts.outside.clone(),
            commits: parts.config.auto_commit,
            is_commit_asked: self.is_commit_asked.clone(),
            drain_until: self.drain_until(),
            listener_time: parts.config.drain_timeout,
            end: self.last_words(),
            delay: parts.config.legacy_handover_delay,
        };
        self.works.push(Box::pin(async move {
            Done::Parted(partitions, departure.part(list).await)
        }));
    }

    /// When a drain is cut short.
    pub(super) fn drain_until(&self) -> Instant {
        let until = Instant::now() + self.core.parts.config.drain_timeout;
        self.last_words().map_or(until, |end| until.min(end))
    }

    /// Before the end of a shutdown there must be time to commit what is done by then: from here on nobody is waited for.
    fn last_words(&self) -> Option<Instant> {
        let end = self.leave_until?;
        let left = end.saturating_duration_since(Instant::now());
        Some(end - (left / 4).min(LAST_WORDS))
    }
}
