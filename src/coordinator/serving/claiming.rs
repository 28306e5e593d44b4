//! Claiming what should be ours, and watching what others still hold of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;

use crate::coordinator::begin::{Beginning, From};
use crate::coordinator::offset::OffsetNode;
use crate::coordinator::serving::silence::Quiet;
use crate::coordinator::serving::{Blocked, Held, HeldState, Serving};
use crate::event::{Event, Holder};
use crate::group::{ConsumerId, StreamId, Topic, TopicPartition};
use crate::rebalance::Plan;
use crate::session::{Claim, Claimed, Trouble, Want, Watched, holder};
use crate::stream::Ownership;
use crate::wire::paths;

impl Serving<'_> {
    pub(super) async fn claim(&mut self, plan: &Plan) -> Result<(), Trouble> {
        let waits = self.takeover_at.is_some_and(|at| Instant::now() < at);
        if self.reader.is_none() || self.leave_until.is_some() || waits {
            return Ok(());
        }
        let candidates: BTreeMap<TopicPartition, StreamId> = plan
            .claim
            .iter()
            .filter(|(partition, _)| {
                !self.held.contains_key(*partition) && !self.is_leaving_us(partition)
            })
            .filter(|(partition, _)| {
                self.blocked
                    .get(*partition)
                    .is_none_or(|blocked| blocked.is_freed)
            })
            .map(|(partition, stream)| (partition.clone(), stream.clone()))
            .collect();
        if candidates.is_empty() {
            return Ok(());
        }
        let unknown: BTreeSet<TopicPartition> = candidates
            .keys()
            .filter(|partition| !self.blocked.contains_key(*partition))
            .cloned()
            .collect();
        let taken = self.find_taken(unknown).await?;
        let wants: Vec<Want> = candidates
            .into_iter()
            .filter(|(partition, _)| !taken.contains(partition))
            .map(|(partition, stream)| {
                let topic_created = self.lookout.topic_created(&partition.topic).unwrap_or(0);
                Want {
                    partition,
                    stream,
                    topic_created,
                }
            })
            .collect();
        if wants.is_empty() {
            return Ok(());
        }
        self.limbo
            .extend(wants.iter().map(|want| want.partition.clone()));
        let claims = self.session.claim(wants).await?;
        for (partition, claim) in &claims {
            // One that was refused for good half way may have left an owner node on 3.4.
            if !matches!(claim, Claim::Unsettled | Claim::Refused(_)) {
                self.limbo.remove(partition);
            }
        }
        self.take(claims).await
    }

    /// Owner nodes of our session that are not to be ours any more: a claim that did not come to its end may have made them
    /// (A6), or somebody changed them, and they would stand as long as we do (A5).
    pub(super) async fn discard_strays(&mut self, plan: &Plan) -> Result<(), Trouble> {
        let is_stray = |partition: &TopicPartition| !plan.claim.contains_key(partition);
        let strays: BTreeSet<TopicPartition> =
            self.limbo.iter().filter(|p| is_stray(p)).cloned().collect();
        if strays.is_empty() {
            return Ok(());
        }
        self.session.discard(&strays).await?;
        self.limbo.retain(|partition| !strays.contains(partition));
        Ok(())
    }

    /// Which of these have an owner already; they are watched from now on.
    pub(super) async fn find_taken(
        &mut self,
        partitions: BTreeSet<TopicPartition>,
    ) -> Result<BTreeSet<TopicPartition>, Trouble> {
        let topics: BTreeSet<Topic> = partitions
            .iter()
            .map(|partition| partition.topic.clone())
            .collect();
        if topics.is_empty() {
            return Ok(BTreeSet::new());
        }
        let owned = self.lookout.owned(&topics).await?;
        let owned: BTreeSet<TopicPartition> = owned.intersection(&partitions).cloned().collect();
        self.block(&owned).await
    }

    /// Watches owner nodes of others; answers with those that are still there.
    pub(super) async fn block(
        &mut self,
        partitions: &BTreeSet<TopicPartition>,
    ) -> Result<BTreeSet<TopicPartition>, Trouble> {
        let mut taken = BTreeSet::new();
        let (nodes, is_complete) = self.lookout.watch_owners(partitions, |_| None).await;
        for (partition, node) in nodes {
            let Some(node) = node else { continue };
            if self.session.may_take_over(&node.stat) {
                continue;
            }
            self.limbo.remove(&partition);
            let path = paths::owner(self.session.group(), &partition);
            let holder = self.known_holder(holder(path, node.text, &node.stat));
            let since = self
                .blocked
                .get(&partition)
                .map_or_else(Instant::now, |blocked| blocked.since);
            let is_told = self
                .blocked
                .get(&partition)
                .is_some_and(|blocked| blocked.is_told && blocked.holder == holder);
            let blocked = Blocked {
                holder,
                since,
                is_freed: false,
                is_told,
                is_stuck: false,
            };
            self.blocked.insert(partition.clone(), blocked);
            taken.insert(partition);
        }
        is_complete.map(|()| taken)
    }

    /// Names the member whose owner text it is. It is matched whole, never taken apart (L-5).
    pub(super) fn known_holder(&self, mut holder: Holder) -> Holder {
        let is_its = |id: &ConsumerId| {
            let rest = holder.text.strip_prefix(id.as_str());
            rest.is_some_and(|rest| {
                rest.is_empty()
                    || rest
                        .strip_prefix('-')
                        .is_some_and(|n| n.parse::<u32>().is_ok())
            })
        };
        let longest = self
            .view
            .members
            .keys()
            .filter(|id| is_its(id))
            .max_by_key(|id| id.as_str().len());
        holder.member = longest.cloned();
        holder
    }

    pub(super) async fn take(
        &mut self,
        claims: BTreeMap<TopicPartition, Claim>,
    ) -> Result<(), Trouble> {
        let mut begin = Vec::new();
        let mut ours = BTreeMap::new();
        let mut refused = BTreeSet::new();
        for (partition, claim) in claims {
            match claim {
                Claim::Ours(claimed) => {
                    ours.insert(partition.clone(), claimed.stream.clone());
                    begin.push(self.hold(partition, claimed));
                }
                Claim::HeldByAnother => {
                    refused.insert(partition);
                }
                Claim::Unsettled => self.is_unfinished = true,
                Claim::Refused(why) => {
                    self.is_unfinished = true;
                    let what = format!("cannot claim {partition}: {why}");
                    self.stand(&format!("claim {partition}"), Some(Event::Warning { what }));
                }
            }
        }
        self.note_holding();
        self.begin(begin);
        if !ours.is_empty() {
            let told = ours.clone();
            let listened = self.call("after_claim", move |listener| listener.after_claim(&told));
            self.works.extend(listened);
        }
        // Until they are watched they may change unseen, also if a read fails here: nothing of them is delivered before.
        self.note_fired(ours.into_keys().map(Watched::Owner));
        let taken = self.block(&refused).await?;
        // Freed between the refusal and the read: claimed with the next look, which is at once.
        self.is_unfinished |= refused.len() > taken.len();
        self.check_owners().await
    }

    pub(super) fn hold(&mut self, partition: TopicPartition, claimed: Claimed) -> Beginning {
        self.blocked.remove(&partition);
        self.stand(&format!("claim {partition}"), None);
        let Claimed {
            stream,
            token,
            stored,
        } = claimed;
        let core = self
            .core
            .parts
            .streams
            .get(&partition.topic)
            .and_then(|list| list.get(stream.number() as usize));
        let core = core
            .expect("a plan with other streams than ours was refused")
            .clone();
        let ownership = Arc::new(Ownership::new(
            partition.clone(),
            token,
            self.session.lease.clone(),
            core,
        ));
        let is_new = self
            .core
            .known
            .get(&partition.topic)
            .is_some_and(|known| !known.contains(&partition.partition));
        self.tell(Event::Claimed {
            partition: partition.clone(),
            stream: stream.clone(),
            token,
        });
        let node = OffsetNode {
            version: stored.version,
            since: self.lookout.topic_created(&partition.topic).unwrap_or(0),
            ..OffsetNode::default()
        };
        let held = Held {
            ownership: ownership.clone(),
            stream,
            node: node.clone(),
            state: HeldState::Beginning,
            retries: 0,
            troubled_at: None,
            is_new,
            remade: None,
            quiet: Quiet::default(),
        };
        self.held.insert(partition, held);
        Beginning {
            ownership,
            from: From::Stored(stored.found),
            node,
            is_new,
        }
    }
}
