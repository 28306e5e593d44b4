//! Claiming partitions: the owner node, its stamp and the offset behind it, all in one transaction where the server can.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;

use crate::event::Holder;
use crate::group::{StreamId, TopicPartition};
use crate::registry::{Dialect, Fault, MultiFault, Op, Stat};
use crate::session::{STAMPED, Session, Trouble, is_for_good, runs, trouble};
use crate::wire::paths;
use crate::wire::{NO_OFFSET, StoredOffset, decode_offset, encode_offset, encode_owner};

/// After so many refused transactions claims are sent one by one.
const BATCH_REFUSALS: usize = 3;

/// So often a claim is tried before the caller is told to come back; each try follows something new that was read.
const TRIES: usize = 8;

/// A partition that should be ours.
#[derive(Debug, Clone)]
pub(crate) struct Want {
    pub partition: TopicPartition,
    pub stream: StreamId,
    /// The transaction that created the topic; an offset last written before belongs to a topic of the same name.
    pub topic_created: i64,
}

/// What stands at an offset node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// No node, or one that says [`NO_OFFSET`].
    Nothing,
    At(i64),
    Negative(i64),
    Malformed(String),
    /// Written before the topic was made anew.
    Outdated(Option<i64>),
}

/// An offset node as it was read: what it says, and its version if it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub found: Found,
    pub version: Option<i32>,
}

/// A partition that became ours.
#[derive(Debug, Clone)]
pub(crate) struct Claimed {
    pub stream: StreamId,
    /// The transaction that created the owner node.
    pub token: i64,
    pub stored: Stored,
}

/// What came of a claim.
#[derive(Debug, Clone)]
pub(crate) enum Claim {
    Ours(Claimed),
    /// Somebody else holds it; who it is tells the read that watches the node.
    HeldByAnother,
    /// Not settled within a few tries; look again.
    Unsettled,
    /// Something forbids it, for this reason; the others are not concerned.
    Refused(String),
}

struct Attempt {
    want: Want,
    stored: Stored,
    data: Vec<u8>,
}

impl Attempt {
    /// What the claim writes at the offset node: what stands there. An offset older than its topic is taken away, since written
    /// again it would look newer than the topic.
    fn confirmation(&self) -> Vec<u8> {
        match self.stored.found {
            Found::Nothing | Found::Outdated(_) => encode_offset(NO_OFFSET),
            _ => self.data.clone(),
        }
    }

    /// What the offset node says once the claim stands: the same, one version further.
    fn confirmed(&self) -> Stored {
        Stored {
            found: self.stored.found.clone(),
            version: Some(self.stored.version.map_or(0, |version| version + 1)),
        }
    }
}

/// Which step of a claim was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Create,
    Stamp,
    Confirm,
}

enum Answer {
    /// One entry an attempt: the stat of the stamped owner node.
    Stamped(Vec<Stat>),
    /// The attempt at this place was refused, and with it all others.
    Refused {
        at: usize,
        step: Step,
        fault: Fault,
    },
    Unknown,
}

/// What is to be done about an attempt that did not succeed.
enum Next {
    Retry(Attempt),
    Settled(TopicPartition, Claim),
}

impl Next {
    fn enter(self, open: &mut Vec<Attempt>, claims: &mut BTreeMap<TopicPartition, Claim>) {
        match self {
            Self::Retry(attempt) => open.push(attempt),
            Self::Settled(partition, claim) => {
                claims.insert(partition, claim);
            }
        }
    }
}

impl Session {
    /// Claims what is free among these. The offset nodes are read first and written with the claim, made where there are
    /// none: an earlier owner's late commit, or its late release, finds another version (hazards 2.2).
    pub async fn claim(
        &self,
        wants: Vec<Want>,
    ) -> Result<BTreeMap<TopicPartition, Claim>, Trouble> {
        let mut claims = BTreeMap::new();
        let mut open = self.read_offsets(wants, &mut claims).await?;
        let mut refusals = 0;
        for _ in 0..TRIES {
            if open.is_empty() {
                return Ok(claims);
            }
            let mut batches = if refusals < BATCH_REFUSALS {
                runs(open, |attempt| self.claim_size(attempt))
            } else {
                open.into_iter().map(|attempt| vec![attempt]).collect()
            };
            open = Vec::new();
            let answers = join_all(batches.iter_mut().map(|batch| self.claim_batch(batch))).await;
            for (batch, answer) in batches.into_iter().zip(answers) {
                match answer? {
                    Answer::Stamped(stats) => {
                        for (attempt, stat) in batch.into_iter().zip(stats) {
                            let stored = attempt.confirmed();
                            let claimed = Claimed {
                                stream: attempt.want.stream,
                                token: stat.czxid,
                                stored,
                            };
                            claims.insert(attempt.want.partition, Claim::Ours(claimed));
                        }
                    }
                    Answer::Refused { at, step, fault } => {
                        refusals += 1;
                        for (place, attempt) in batch.into_iter().enumerate() {
                            let next = if place == at {
                                self.after_refusal(attempt, step, fault.clone()).await?
                            } else {
                                Next::Retry(attempt)
                            };
                            next.enter(&mut open, &mut claims);
                        }
                    }
                    Answer::Unknown => {
                        // Nobody knows whether it was carried out; the owner nodes do.
                        self.catch_up().await?;
                        for attempt in batch {
                            let next = self.inspect_owner(attempt).await?;
                            next.enter(&mut open, &mut claims);
                        }
                    }
                }
            }
        }
        claims.extend(
            open.into_iter()
                .map(|attempt| (attempt.want.partition, Claim::Unsettled)),
        );
        Ok(claims)
    }

    fn claim_size(&self, attempt: &Attempt) -> usize {
        self.claim_ops(attempt).iter().map(Op::size).sum()
    }

    async fn read_offsets(
        &self,
        wants: Vec<Want>,
        claims: &mut BTreeMap<TopicPartition, Claim>,
    ) -> Result<Vec<Attempt>, Trouble> {
        let nodes: Vec<String> = wants
            .iter()
            .map(|want| paths::offset(self.group(), &want.partition))
            .collect();
        let answers = join_all(nodes.iter().map(|path| self.connection.data(path))).await;
        let mut attempts = Vec::with_capacity(wants.len());
        for ((want, path), answer) in wants.into_iter().zip(&nodes).zip(answers) {
            match read_stored(answer, want.topic_created) {
                Ok((stored, data)) => attempts.push(Attempt { want, stored, data }),
                Err(fault @ (Fault::NoAuth | Fault::Refused(_))) => {
                    claims.insert(want.partition, Claim::Refused(format!("{path}: {fault}")));
                }
                Err(fault) => return Err(trouble("reading", path, fault)),
            }
        }
        Ok(attempts)
    }

    /// Reads one offset node again.
    pub async fn read_offset(
        &self,
        partition: &TopicPartition,
        topic_created: i64,
    ) -> Result<Stored, Trouble> {
        let path = paths::offset(self.group(), partition);
        let answer = self.connection.data(&path).await;
        let (stored, _) =
            read_stored(answer, topic_created).map_err(|fault| trouble("reading", &path, fault))?;
        Ok(stored)
    }

    fn stamp_ops(&self, attempt: &Attempt) -> Vec<Op> {
        let stamp = Op::Set {
            path: paths::owner(self.group(), &attempt.want.partition),
            data: encode_owner(&attempt.want.stream),
            version: Some(0),
        };
        let confirm = self.offset_op(
            &attempt.want.partition,
            attempt.confirmation(),
            attempt.stored.version,
        );
        vec![stamp, confirm]
    }

    fn claim_ops(&self, attempt: &Attempt) -> Vec<Op> {
        let create = Op::Create {
            path: paths::owner(self.group(), &attempt.want.partition),
            data: encode_owner(&attempt.want.stream),
            ephemeral: true,
        };
        [create]
            .into_iter()
            .chain(self.stamp_ops(attempt))
            .collect()
    }

    async fn claim_batch(&self, batch: &mut [Attempt]) -> Result<Answer, Trouble> {
        if self.dialect == Dialect::V3_5 {
            let ops = batch
                .iter()
                .map(|attempt| self.claim_ops(attempt))
                .collect();
            return self.stamp_batch(ops, 1).await;
        }
        // A transaction cannot create nodes on 3.4: the offset node is made first.
        if let Some(answer) = self.make_offset_nodes(batch).await {
            return Ok(answer);
        }
        // So is the owner node, and it counts only once it is stamped (hazards 2.2).
        let creates = batch.iter().map(|attempt| {
            let path = paths::owner(self.group(), &attempt.want.partition);
            let data = encode_owner(&attempt.want.stream);
            let connection = &self.connection;
            async move {
                match connection.create(&path, &data, true).await {
                    // Made by ourselves in an earlier try and not stamped yet.
                    Err(Fault::NodeExists) if self.is_unstamped(&path).await => Ok(()),
                    answer => answer,
                }
            }
        });
        for (at, answer) in join_all(creates).await.into_iter().enumerate() {
            match answer {
                Ok(()) => {}
                Err(Fault::Unknown(_)) => return Ok(Answer::Unknown),
                Err(fault) => {
                    return Ok(Answer::Refused {
                        at,
                        step: Step::Create,
                        fault,
                    });
                }
            }
        }
        let ops = batch
            .iter()
            .map(|attempt| self.stamp_ops(attempt))
            .collect();
        let answer = self.stamp_batch(ops, 0).await?;
        if let Answer::Stamped(stats) = &answer {
            for (at, stat) in stats.iter().enumerate() {
                if !self.is_mine(stat) {
                    warn_of_foreign_stamp(&batch[at], stat);
                    return Ok(Answer::Refused {
                        at,
                        step: Step::Stamp,
                        fault: Fault::NodeExists,
                    });
                }
            }
        }
        Ok(answer)
    }

    /// Makes the offset nodes that are missing, which say then that there is no offset.
    async fn make_offset_nodes(&self, batch: &mut [Attempt]) -> Option<Answer> {
        let missing: Vec<usize> = (0..batch.len())
            .filter(|at| batch[*at].stored.version.is_none())
            .collect();
        let partitions = missing.iter().map(|at| &batch[*at].want.partition);
        let answers = join_all(partitions.map(|partition| self.make_offset_node(partition))).await;
        for (at, answer) in missing.into_iter().zip(answers) {
            match answer {
                Ok(()) => batch[at].stored.version = Some(0),
                Err(Fault::Unknown(_)) => return Some(Answer::Unknown),
                Err(fault) => {
                    return Some(Answer::Refused {
                        at,
                        step: Step::Confirm,
                        fault,
                    });
                }
            }
        }
        None
    }

    async fn is_unstamped(&self, path: &str) -> bool {
        matches!(self.connection.stat(path).await, Ok(Some(stat)) if self.is_mine(&stat) && stat.version == 0)
    }

    /// Sends the steps of several attempts as one transaction; `stamp` is the place of the stamp among an attempt's steps.
    async fn stamp_batch(&self, attempts: Vec<Vec<Op>>, stamp: usize) -> Result<Answer, Trouble> {
        let lengths: Vec<usize> = attempts.iter().map(Vec::len).collect();
        let ops = std::iter::once(self.check_registration())
            .chain(attempts.into_iter().flatten())
            .collect();
        let sent = self.who.clock.now();
        let fault = match self.connection.multi(ops).await {
            Ok(stats) => {
                self.lease.renew(sent);
                let mut stamps = Vec::with_capacity(lengths.len());
                let mut first = 1;
                for length in lengths {
                    stamps.push(
                        stats
                            .get(first + stamp)
                            .copied()
                            .flatten()
                            .unwrap_or_default(),
                    );
                    first += length;
                }
                return Ok(Answer::Stamped(stamps));
            }
            Err(fault) => fault,
        };
        match fault {
            MultiFault {
                index: Some(0),
                fault: Fault::NoNode,
            } => Err(Trouble::RegistrationGone),
            MultiFault { index: Some(0), .. } => {
                self.recheck_registration().await?;
                Ok(Answer::Unknown)
            }
            MultiFault {
                index: Some(index),
                fault,
            } => {
                let (at, step) = place(&lengths, index - 1, stamp);
                Ok(Answer::Refused { at, step, fault })
            }
            MultiFault {
                index: None,
                fault: Fault::Unknown(_),
            } => Ok(Answer::Unknown),
            MultiFault {
                index: None,
                fault: fault @ Fault::TooLarge,
            } if lengths.len() == 1 => Ok(Answer::Refused {
                at: 0,
                step: Step::Confirm,
                fault,
            }),
            MultiFault { index: None, fault } => Err(trouble("claiming below", &self.path, fault)),
        }
    }

    async fn after_refusal(
        &self,
        mut attempt: Attempt,
        step: Step,
        fault: Fault,
    ) -> Result<Next, Trouble> {
        let path = paths::owner(self.group(), &attempt.want.partition);
        match (step, fault) {
            (_, fault @ (Fault::NoAuth | Fault::Refused(_) | Fault::TooLarge)) => {
                let at = if step == Step::Confirm {
                    paths::offset(self.group(), &attempt.want.partition)
                } else {
                    path
                };
                Ok(Next::Settled(
                    attempt.want.partition,
                    Claim::Refused(format!("{at}: {fault}")),
                ))
            }
            (Step::Create, Fault::NoNode) => self.retry_below_parents(attempt).await,
            (Step::Confirm, Fault::NoNode) if attempt.stored.version.is_none() => {
                self.retry_below_parents(attempt).await
            }
            (Step::Confirm, _) => {
                self.read_again(&mut attempt).await?;
                Ok(Next::Retry(attempt))
            }
            (_, Fault::NodeExists | Fault::BadVersion | Fault::NoNode) => {
                self.inspect_owner(attempt).await
            }
            (_, fault) => Err(trouble("claiming", &path, fault)),
        }
    }

    /// Makes what is missing above the owner node and the offset node.
    async fn retry_below_parents(&self, attempt: Attempt) -> Result<Next, Trouble> {
        let partition = &attempt.want.partition;
        let owner = paths::owner(self.group(), partition);
        let mut made = self.ensure_parents(&owner).await;
        if made.is_ok() && attempt.stored.version.is_none() {
            let offset = paths::offset(self.group(), partition);
            made = self.ensure_parents(&offset).await;
        }
        match made {
            Ok(()) => Ok(Next::Retry(attempt)),
            Err(Trouble::Fatal(error)) => Ok(Next::Settled(
                attempt.want.partition,
                Claim::Refused(error.to_string()),
            )),
            Err(trouble) => Err(trouble),
        }
    }

    async fn read_again(&self, attempt: &mut Attempt) -> Result<(), Trouble> {
        let path = paths::offset(self.group(), &attempt.want.partition);
        let answer = self.connection.data(&path).await;
        (attempt.stored, attempt.data) = read_stored(answer, attempt.want.topic_created)
            .map_err(|fault| trouble("reading", &path, fault))?;
        Ok(())
    }

    /// Deletes those of these owner nodes that are of this session.
    pub async fn discard(&self, partitions: &BTreeSet<TopicPartition>) -> Result<(), Trouble> {
        if !partitions.is_empty() {
            self.catch_up().await?;
        }
        for partition in partitions {
            self.discard_one(partition).await?;
        }
        Ok(())
    }

    async fn discard_one(&self, partition: &TopicPartition) -> Result<(), Trouble> {
        let path = paths::owner(self.group(), partition);
        let read = async || match self.connection.stat(&path).await {
            Ok(stat) => Ok(stat.filter(|stat| self.is_mine(stat))),
            Err(fault) => Err(trouble("reading", &path, fault)),
        };
        let mut is_confirmable = true;
        for _ in 0..TRIES {
            if read().await?.is_none() {
                return Ok(());
            }
            let confirmed = match is_confirmable {
                true => self.offset_version(partition).await?,
                false => None,
            };
            let Some(stat) = read().await? else {
                return Ok(());
            };
            match self.delete_owner(partition, stat.version, confirmed).await {
                Ok(()) => return Ok(()),
                Err(Fault::NoNode | Fault::BadVersion) => {}
                Err(fault) if is_for_good(&fault) && confirmed.is_some() => is_confirmable = false,
                Err(fault) => return Err(trouble("deleting", &path, fault)),
            }
        }
        let reason = format!("deleting {path}: refused again and again");
        Err(Trouble::Transient(reason))
    }

    /// Whose owner node stands there. Never judged by its text: a node with our text may be of a session that ended (D-7).
    async fn inspect_owner(&self, mut attempt: Attempt) -> Result<Next, Trouble> {
        let path = paths::owner(self.group(), &attempt.want.partition);
        let (data, stat) = match self.connection.data(&path).await {
            Ok(found) => found,
            Err(Fault::NoNode) => return Ok(Next::Retry(attempt)),
            Err(fault) => return Err(trouble("reading", &path, fault)),
        };
        if self.is_mine(&stat)
            && stat.version == STAMPED
            && data == encode_owner(&attempt.want.stream)
        {
            // Ours, of a transaction whose answer was lost. It wrote the offset node too, and an operator may have since.
            let (confirmed, written) = (attempt.confirmed(), attempt.confirmation());
            self.read_again(&mut attempt).await?;
            if attempt.stored.version == confirmed.version && attempt.data == written {
                attempt.stored = confirmed;
            }
            return Ok(Next::Settled(
                attempt.want.partition,
                Claim::Ours(Claimed {
                    stream: attempt.want.stream,
                    token: stat.czxid,
                    stored: attempt.stored,
                }),
            ));
        }
        // What our former session has not stamped looks like a JVM member's; it goes by itself.
        if self.is_mine(&stat) || self.is_left_behind(&stat) && stat.version == STAMPED {
            return self.delete_former(attempt, stat.version).await;
        }
        Ok(Next::Settled(attempt.want.partition, Claim::HeldByAnother))
    }

    /// Deletes what stands there of ours, if nobody has claimed the partition since its offset was read: it may go by itself
    /// any moment.
    async fn delete_former(&self, mut attempt: Attempt, version: i32) -> Result<Next, Trouble> {
        let partition = &attempt.want.partition;
        let fault = match attempt.stored.version {
            Some(_) => match self
                .delete_owner(partition, version, attempt.stored.version)
                .await
            {
                Ok(()) => return Ok(Next::Retry(attempt)),
                Err(fault) => fault,
            },
            // Looked at again once there is a node by which another's claim would show.
            None => {
                self.offset_version(partition).await?;
                Fault::NoNode
            }
        };
        match fault {
            Fault::NoNode | Fault::BadVersion => {}
            Fault::Unknown(_) => self.catch_up().await?,
            fault => {
                let path = paths::owner(self.group(), partition);
                return Err(trouble("deleting our former", &path, fault));
            }
        }
        self.read_again(&mut attempt).await?;
        Ok(Next::Retry(attempt))
    }

    // ---- the offset node as a fence ----

    /// The offset node's version; the node is made if it is missing. Who reads this first, then an owner node that is ours,
    /// can tell the next owner's by it: every claim of ours writes the offset node. `None` if we may neither look at it nor
    /// make it.
    pub(super) async fn offset_version(
        &self,
        partition: &TopicPartition,
    ) -> Result<Option<i32>, Trouble> {
        let path = paths::offset(self.group(), partition);
        for _ in 0..TRIES {
            match self.connection.stat(&path).await {
                Ok(Some(stat)) => return Ok(Some(stat.version)),
                Ok(None) => {}
                Err(fault) if is_for_good(&fault) => return Ok(None),
                Err(fault) => return Err(trouble("reading", &path, fault)),
            }
            match self.make_offset_node(partition).await {
                Ok(()) => return Ok(Some(0)),
                Err(Fault::NodeExists) => {}
                Err(Fault::NoNode) => match self.ensure_parents(&path).await {
                    // A single partition is no reason to end.
                    Err(Trouble::Fatal(_)) => return Ok(None),
                    made => made?,
                },
                Err(fault) if is_for_good(&fault) => return Ok(None),
                Err(fault) => return Err(trouble("making", &path, fault)),
            }
        }
        let reason = format!("making {path}: it comes and goes");
        Err(Trouble::Transient(reason))
    }

    /// Makes an offset node that says there is no offset.
    pub(super) async fn make_offset_node(&self, partition: &TopicPartition) -> Result<(), Fault> {
        let path = paths::offset(self.group(), partition);
        self.connection
            .create(&path, &encode_offset(NO_OFFSET), false)
            .await
    }

    /// Deletes an owner node at this version, if the offset node is still at the one it was confirmed at. One that may not be
    /// looked at confirms nothing.
    async fn delete_owner(
        &self,
        partition: &TopicPartition,
        version: i32,
        confirmed: Option<i32>,
    ) -> Result<(), Fault> {
        let check = confirmed.map(|version| Op::Check {
            path: paths::offset(self.group(), partition),
            version: Some(version),
        });
        let delete = Op::Delete {
            path: paths::owner(self.group(), partition),
            version: Some(version),
        };
        let ops = check.into_iter().chain([delete]).collect();
        let answer = self.connection.multi(ops).await;
        answer.map(|_| ()).map_err(|multi| multi.fault)
    }
}

/// On 3.4, between our create and our stamp, somebody deleted our node and made theirs, and we stamped that. It cannot be
/// excluded there, since a stamp can only name a version.
fn warn_of_foreign_stamp(attempt: &Attempt, stat: &Stat) {
    let session = format!("0x{:x}", stat.ephemeral_owner);
    tracing::warn!(partition = %attempt.want.partition, session, "stamped an owner node that was made in place of ours");
}

/// Who an owner node says holds the partition; the member is found by the caller, who knows them.
pub(crate) fn holder(path: String, text: String, stat: &Stat) -> Holder {
    Holder {
        path,
        text: crate::error::printable(&text),
        member: None,
        session: stat.ephemeral_owner,
        since_ms: stat.ctime,
    }
}

/// Which attempt, and which of its steps, stands at a place in the flat list of all steps.
fn place(lengths: &[usize], mut index: usize, stamp: usize) -> (usize, Step) {
    for (at, length) in lengths.iter().enumerate() {
        if index < *length {
            let step = match index {
                index if index < stamp => Step::Create,
                index if index == stamp => Step::Stamp,
                _ => Step::Confirm,
            };
            return (at, step);
        }
        index -= length;
    }
    (lengths.len().saturating_sub(1), Step::Stamp)
}

fn read_stored(
    answer: Result<(Vec<u8>, Stat), Fault>,
    topic_created: i64,
) -> Result<(Stored, Vec<u8>), Fault> {
    let (data, stat) = match answer {
        Ok(found) => found,
        Err(Fault::NoNode) => {
            return Ok((
                Stored {
                    found: Found::Nothing,
                    version: None,
                },
                Vec::new(),
            ));
        }
        Err(fault) => return Err(fault),
    };
    let read = decode_offset(&data);
    let found = if stat.mzxid < topic_created {
        Found::Outdated(match read {
            Ok(StoredOffset::At(offset)) => Some(offset),
            _ => None,
        })
    } else {
        match read {
            Ok(StoredOffset::At(offset)) => Found::At(offset),
            Ok(StoredOffset::Negative(NO_OFFSET)) => Found::Nothing,
            Ok(StoredOffset::Negative(offset)) => Found::Negative(offset),
            Err(error) => Found::Malformed(error.to_string()),
        }
    };
    Ok((
        Stored {
            found,
            version: Some(stat.version),
        },
        data,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_step_is_found_among_all() {
        let lengths = [3, 2, 3];
        assert_eq!(place(&lengths, 0, 1), (0, Step::Create));
        assert_eq!(place(&lengths, 2, 1), (0, Step::Confirm));
        assert_eq!(place(&lengths, 3, 1), (1, Step::Create));
        assert_eq!(place(&lengths, 4, 1), (1, Step::Stamp));
        assert_eq!(place(&lengths, 7, 1), (2, Step::Confirm));
    }
}
