//! What a look says, and the plan that follows from it.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::config::MalformedPeer;
use crate::coordinator::begin::From;
use crate::coordinator::serving::{HeldState, LARGE, Serving};
use crate::event::{Event, ResetCause};
use crate::filter::{Expansion, expand};
use crate::group::{Assignment, GroupView, StreamId, Topic, TopicPartition};
use crate::listener::Ran;
use crate::rebalance::{Plan, plan};
use crate::session::{Trouble, Watched};
use crate::wire::paths;

impl Serving<'_> {
    pub(super) async fn look(&mut self) -> Result<Expansion, Trouble> {
        let internal = self.core.parts.config.internal_topics();
        let own: BTreeSet<Topic> = self.core.parts.subscription.keys().cloned().collect();
        let wants_all = self.core.parts.assignor.needs_all_topics();
        let interest = |view: &GroupView| {
            let mut topics = own.clone();
            if wants_all {
                topics.extend(
                    expand(view, internal)
                        .subscriptions
                        .into_values()
                        .flat_map(BTreeMap::into_keys),
                );
            }
            topics
        };
        for watched in [Watched::Members, Watched::Topics] {
            self.fired.remove(&watched);
        }
        self.fired
            .retain(|watched| !matches!(watched, Watched::Topic(_)));
        let view = self.lookout.look(&interest).await?;
        self.mind_the_vanished(&view);
        self.view = view;
        for (topic, ids) in &self.view.partitions {
            let known = &mut self.core.known;
            known
                .entry(topic.clone())
                .or_insert_with(|| ids.iter().copied().collect());
        }
        self.begin_remade_topics_anew();
        let expansion = expand(&self.view, internal);
        self.tell_of_view(&expansion);
        Ok(expansion)
    }

    /// After a member vanished, somebody's last commit may still be under way to another store.
    fn mind_the_vanished(&mut self, view: &GroupView) {
        let delay = self.core.parts.config.takeover_delay;
        let has_vanished = self
            .view
            .members
            .keys()
            .any(|member| !view.members.contains_key(member));
        if has_vanished && !delay.is_zero() {
            self.takeover_at = Some(Instant::now() + delay);
        }
    }

    /// A topic that was deleted and made again between two looks: what we hold of it is another log now (hazards 2.2, O9).
    pub(super) fn begin_remade_topics_anew(&mut self) {
        let now = Instant::now();
        for (partition, held) in &mut self.held {
            let created = self.lookout.topic_created(&partition.topic);
            let Some(created) = created.filter(|created| *created != held.node.since) else {
                continue;
            };
            held.node.since = created;
            let from = From::Reset {
                cause: ResetCause::TopicRecreated,
                before: held.node.committed,
            };
            // A beginning that is under way takes it up when it is done.
            match held.state {
                HeldState::Beginning => held.remade = Some(from),
                _ => held.state = HeldState::Later { at: now, from },
            }
            held.node.void(ResetCause::TopicRecreated);
            held.ownership.forget();
        }
        for (partition, leaving) in &mut self.parting {
            if self.lookout.is_missing(&partition.topic) {
                leaving.fate.delete();
            }
            let created = self.lookout.topic_created(&partition.topic);
            let Some(created) = created.filter(|created| *created != leaving.topic_created) else {
                continue;
            };
            leaving.topic_created = created;
            // What is done of it from here on is not committed; nor is what was done before, unless that is under way.
            leaving.ownership.forget();
            if let Some(farewell) = self.deferred.get_mut(partition) {
                leaving.is_remade |= self.beginning.contains(partition);
                farewell.node.void(ResetCause::TopicRecreated);
                farewell.node.since = created;
            } else {
                leaving.fate.make_anew(created);
            }
        }
    }

    pub(super) fn tell_of_view(&mut self, expansion: &Expansion) {
        let group = self.session.group().clone();
        let mut now: BTreeMap<String, Event> = BTreeMap::new();
        for (consumer, reason) in &self.view.malformed {
            let path = paths::id(&group, consumer).unwrap_or_default();
            now.insert(
                format!("member {consumer}"),
                Event::MemberMalformed {
                    path,
                    reason: reason.clone(),
                },
            );
        }
        for (topic, reason) in &self.view.unreadable {
            let event = Event::TopicMalformed {
                path: paths::topic(topic),
                reason: reason.clone(),
            };
            now.insert(format!("topic {topic}"), event);
        }
        for topic in self
            .core
            .parts
            .subscription
            .keys()
            .filter(|topic| self.lookout.is_missing(topic))
        {
            now.insert(
                format!("missing {topic}"),
                Event::TopicMissing {
                    topic: topic.clone(),
                },
            );
        }
        for (consumer, reason) in &expansion.beyond {
            let event = Event::FilterBeyondUs {
                consumer: consumer.clone(),
                reason: reason.clone(),
            };
            now.insert(format!("filter {consumer}"), event);
        }
        self.stand_all("member ", &mut now);
        self.stand_all("topic ", &mut now);
        self.stand_all("missing ", &mut now);
        self.stand_all("filter ", &mut now);
    }

    /// Conditions that stand are told when they begin, and again only after they had ended.
    pub(super) fn stand_all(&mut self, family: &str, now: &mut BTreeMap<String, Event>) {
        self.standing
            .retain(|key, _| !key.starts_with(family) || now.contains_key(key));
        let new: Vec<String> = now
            .keys()
            .filter(|key| key.starts_with(family))
            .cloned()
            .collect();
        for key in new {
            let event = now.remove(&key);
            self.stand(&key, event);
        }
    }

    pub(super) fn stand(&mut self, key: &str, event: Option<Event>) {
        match event {
            None => {
                self.standing.remove(key);
            }
            Some(event) => {
                if self.standing.get(key) != Some(&event) {
                    self.tell(event.clone());
                    self.standing.insert(key.to_owned(), event);
                }
            }
        }
    }

    pub(super) async fn plan(&mut self, expansion: &Expansion) -> Plan {
        let held: BTreeMap<TopicPartition, StreamId> = self
            .held
            .iter()
            .map(|(p, h)| (p.clone(), h.stream.clone()))
            .collect();
        let keep = Plan {
            keep: held.keys().cloned().collect(),
            ..Plan::default()
        };
        // Releases are decided also while no broker is known; claims wait for one.
        let is_poisoned = self.core.parts.config.malformed_peer == MalformedPeer::AsJvm
            && !self.view.malformed.is_empty();
        // A rule that deals over all topics of the group is upset by any topic of any member.
        let is_beyond = self.core.parts.assignor.needs_all_topics() && !expansion.beyond.is_empty();
        if is_poisoned || is_beyond {
            return keep;
        }
        let mut frozen = expansion.unsure.clone();
        frozen.extend(self.view.unreadable.keys().cloned());
        match self.assign(expansion).await {
            Ok(assignment) => {
                let plan = plan(self.session.me(), &assignment, &held, &frozen);
                if let Some(stream) = plan
                    .claim
                    .iter()
                    .find_map(|(partition, stream)| self.is_strange(partition, stream))
                {
                    let reason = format!("{stream} is given what it did not subscribe to");
                    self.stand("assignment", Some(Event::AssignmentRefused { reason }));
                    return keep;
                }
                self.stand("assignment", None);
                plan
            }
            Err(reason) => {
                // Nothing tells when it would be answered otherwise.
                self.is_unfinished = true;
                self.stand("assignment", Some(Event::AssignmentRefused { reason }));
                keep
            }
        }
    }

    /// A stream that we do not have: our registration was changed by somebody, or the assignor is at fault.
    fn is_strange<'s>(
        &self,
        partition: &TopicPartition,
        stream: &'s StreamId,
    ) -> Option<&'s StreamId> {
        let streams = self.core.parts.streams.get(&partition.topic);
        let has = streams.is_some_and(|list| (stream.number() as usize) < list.len());
        (!has).then_some(stream)
    }

    pub(super) async fn assign(&mut self, expansion: &Expansion) -> Result<Assignment, String> {
        let assignor = self.core.parts.assignor.clone();
        let subscriptions = expansion.subscriptions.clone();
        let partitions = self.view.partitions.clone();
        let size: usize = partitions.values().map(Vec::len).sum();
        if !self.core.parts.is_foreign_assignor && size <= LARGE {
            if let Some(doubt) = assignor.doubt(&subscriptions, &partitions) {
                self.stand("doubt", Some(Event::Warning { what: doubt }));
            }
            return assignor
                .assign(&subscriptions, &partitions)
                .map_err(|error| error.to_string());
        }
        let (answer, answered) = oneshot::channel();
        let ran = self.core.parts.assignor_place.run(Box::new(move || {
            let _ = answer.send(assignor.assign(&subscriptions, &partitions));
        }));
        let deadline = self.session.terms().session_timeout();
        match self.while_noting(timeout(deadline, ran)).await {
            Ok(Ran::Done) => match answered.await {
                Ok(assignment) => assignment.map_err(|error| error.to_string()),
                Err(_) => Err("the assignor gave no answer".to_owned()),
            },
            Ok(Ran::Panicked(message)) => Err(format!("the assignor panicked: {message}")),
            Ok(Ran::Closed) => Err("there is no place left to run the assignor".to_owned()),
            Err(_) => Err(format!(
                "the assignor did not answer within {} ms",
                deadline.as_millis()
            )),
        }
    }
}
