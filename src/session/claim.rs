//! Claiming partitions: the owner node, its stamp and the offset behind it, all in one transaction where the server can.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;

use crate::event::Holder;
use crate::group::{StreamId, TopicPartition};
use crate::registry::{Dialect, Fault, MultiFault, Op, Stat};
use crate::session::{STAMPED, Session, Trouble, runs, trouble};
use crate::wire::paths;
use crate::wire::{StoredOffset, decode_offset, encode_owner};

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
    /// The version at which the offset node is confirmed, if there is one to confirm.
    fn confirmed(&self) -> Option<i32> {
        // An offset older than its topic is not confirmed: that would make it look newer.
        self.stored
            .version
            .filter(|_| !matches!(self.stored.found, Found::Outdated(_)))
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
    /// Claims what is free among these. The offset nodes are read first and confirmed with the claim, so that an
    /// earlier owner's late commit finds another version (hazards 2.2).
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
            let batches = if refusals < BATCH_REFUSALS {
                runs(open, |attempt| self.claim_size(attempt))
            } else {
                open.into_iter().map(|attempt| vec![attempt]).collect()
            };
            open = Vec::new();
            let answers = join_all(batches.iter().map(|batch| self.claim_batch(batch))).await;
            for (batch, answer) in batches.into_iter().zip(answers) {
                match answer? {
                    Answer::Stamped(stats) => {
                        let offsets = join_all(batch.iter().map(|attempt| self.starts_at(attempt)));
                        let offsets = offsets.await.into_iter();
                        for ((attempt, stat), stored) in batch.into_iter().zip(stats).zip(offsets) {
                            let claimed = Claimed {
                                stream: attempt.want.stream,
                                token: stat.czxid,
                                stored: stored?,
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

    /// What the offset node says now that the partition is ours.
    async fn starts_at(&self, attempt: &Attempt) -> Result<Stored, Trouble> {
        match attempt.confirmed() {
            // The confirmation raised the version by one.
            Some(version) => Ok(Stored {
                found: attempt.stored.found.clone(),
                version: Some(version + 1),
            }),
            // Nothing held the claim to what was read; an owner in between may have written since (O2).
            None => {
                let want = &attempt.want;
                self.read_offset(&want.partition, want.topic_created).await
            }
        }
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
        let confirm = attempt.confirmed().map(|version| Op::Set {
            path: paths::offset(self.group(), &attempt.want.partition),
            data: attempt.data.clone(),
            version: Some(version),
        });
        [stamp].into_iter().chain(confirm).collect()
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

    async fn claim_batch(&self, batch: &[Attempt]) -> Result<Answer, Trouble> {
        if self.dialect == Dialect::V3_5 {
            let ops = batch
                .iter()
                .map(|attempt| self.claim_ops(attempt))
                .collect();
            return self.stamp_batch(ops, 1).await;
        }
        // On 3.4 the node is made first and counts only once it is stamped (hazards 2.2).
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
            (Step::Create, Fault::NoNode) => match self.ensure_parents(&path).await {
                Ok(()) => Ok(Next::Retry(attempt)),
                Err(Trouble::Fatal(error)) => Ok(Next::Settled(
                    attempt.want.partition,
                    Claim::Refused(error.to_string()),
                )),
                Err(trouble) => Err(trouble),
            },
            (Step::Confirm, _) => {
                let offset_path = paths::offset(self.group(), &attempt.want.partition);
                let answer = self.connection.data(&offset_path).await;
                (attempt.stored, attempt.data) = read_stored(answer, attempt.want.topic_created)
                    .map_err(|fault| trouble("reading", &offset_path, fault))?;
                Ok(Next::Retry(attempt))
            }
            (_, Fault::NodeExists | Fault::BadVersion | Fault::NoNode) => {
                self.inspect_owner(attempt).await
            }
            (_, fault) => Err(trouble("claiming", &path, fault)),
        }
    }

    /// Deletes those of these owner nodes that are of this session.
    pub async fn discard(&self, partitions: &BTreeSet<TopicPartition>) -> Result<(), Trouble> {
        if !partitions.is_empty() {
            self.catch_up().await?;
        }
        for partition in partitions {
            let path = paths::owner(self.group(), partition);
            let stat = match self.connection.stat(&path).await {
                Ok(Some(stat)) if self.is_mine(&stat) => stat,
                Ok(_) => continue,
                Err(fault) => return Err(trouble("reading", &path, fault)),
            };
            match self.connection.delete(&path, Some(stat.version)).await {
                Ok(()) | Err(Fault::NoNode | Fault::BadVersion) => {}
                Err(fault) => return Err(trouble("deleting", &path, fault)),
            }
        }
        Ok(())
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
            // Ours, of a transaction whose answer was lost. Its confirmation moved the offset node's version too.
            let offset_path = paths::offset(self.group(), &attempt.want.partition);
            let answer = self.connection.data(&offset_path).await;
            (attempt.stored, attempt.data) = read_stored(answer, attempt.want.topic_created)
                .map_err(|fault| trouble("reading", &offset_path, fault))?;
            return Ok(Next::Settled(
                attempt.want.partition,
                Claim::Ours(Claimed {
                    stream: attempt.want.stream,
                    token: stat.czxid,
                    stored: attempt.stored,
                }),
            ));
        }
        if self.is_mine(&stat) || self.is_left_behind(&stat) {
            return self.delete_former(attempt, path, stat.version).await;
        }
        Ok(Next::Settled(attempt.want.partition, Claim::HeldByAnother))
    }
}

impl Session {
    /// Deletes what stands there of ours, if nobody has claimed the partition since its offset was read: it may go by itself any
    /// moment, and the next owner's node is at the same version. Every claim writes the offset node.
    async fn delete_former(
        &self,
        mut attempt: Attempt,
        path: String,
        version: i32,
    ) -> Result<Next, Trouble> {
        let offset_path = paths::offset(self.group(), &attempt.want.partition);
        let check = attempt.stored.version.map(|version| Op::Check {
            path: offset_path.clone(),
            version: Some(version),
        });
        let delete = Op::Delete {
            path: path.clone(),
            version: Some(version),
        };
        let fault = match self
            .connection
            .multi(check.into_iter().chain([delete]).collect())
            .await
        {
            Ok(_) => return Ok(Next::Retry(attempt)),
            Err(multi) => multi.fault,
        };
        match fault {
            Fault::NoNode | Fault::BadVersion => {}
            Fault::Unknown(_) => self.catch_up().await?,
            fault => return Err(trouble("deleting our former", &path, fault)),
        }
        let answer = self.connection.data(&offset_path).await;
        (attempt.stored, attempt.data) = read_stored(answer, attempt.want.topic_created)
            .map_err(|fault| trouble("reading", &offset_path, fault))?;
        Ok(Next::Retry(attempt))
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
