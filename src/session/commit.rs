//! Fenced commits, and giving partitions up: nothing is written unless the owner node is still ours at the stamp we made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use futures_util::future::join_all;

use crate::group::TopicPartition;
use crate::registry::{Dialect, Fault, MultiFault, Op, Stat};
use crate::session::{STAMPED, Session, Trouble, is_for_good, runs, trouble};
use crate::wire::paths;
use crate::wire::{NO_OFFSET, StoredOffset, decode_offset, encode_offset};

/// So often a commit is tried before it is left for the next time; each try follows something new that was read.
const TRIES: usize = 8;

/// So often what was refused is sent again together with what it was sent with; then each by itself, so that one that cannot be
/// written holds up no other.
const TOGETHER: usize = 3;

/// An offset to write.
#[derive(Debug, Clone)]
pub(crate) struct Commit {
    pub partition: TopicPartition,
    pub token: i64,
    /// What to write.
    pub offset: i64,
    /// The version of the offset node as we know it; none if there is no node.
    pub version: Option<i32>,
    /// What was sent before at that version, without anybody knowing what became of it: if it stands there, it is ours.
    pub tried: BTreeSet<i64>,
    /// It gives way to any offset that somebody else has written meanwhile, not only to a higher one: a start that the policy
    /// chose for what stood there before.
    pub is_start: bool,
    /// The transaction that made the topic: to what was written before that, of a former topic, nothing of ours gives way.
    pub since: i64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Committed {
    /// It stands there, at this version. `over` tells what somebody else had written there meanwhile.
    Written { version: i32, over: Option<String> },
    /// Somebody else wrote an offset to which ours gives way: a higher one, or any if ours is a start. It was left.
    Ahead { theirs: i64, version: i32 },
    /// The partition is not ours any more; nothing was written.
    NotOurs,
    /// Not settled; try again later.
    Unsettled(String),
}

/// A partition to give up, with the offset to write in the same transaction, if one is to be written.
#[derive(Debug, Clone)]
pub(crate) struct Parting {
    pub partition: TopicPartition,
    pub token: i64,
    pub last: Option<Commit>,
    /// What we wrote there last, to be written again if somebody has set it back since; none if it is nobody's concern any more.
    pub committed: Option<i64>,
    /// The version of the offset node as we know it; none if there is no node.
    pub version: Option<i32>,
    /// What the commit of this offset met that was not as it should be.
    pub met: Option<(i64, Committed)>,
    /// The offset node may not be read, so that the owner node is looked at and deleted without it.
    pub is_unconfirmed: bool,
    /// What became of its topic.
    pub fate: Arc<TopicFate>,
    /// What of the former topic's offsets stands there has been seen to.
    pub is_heeded: bool,
    /// Offsets of ours that are not to be written any more and may stand there.
    pub tried: BTreeSet<i64>,
}

impl Parting {
    /// Of a topic that is gone no offset is written. Once it was made anew, what stands there of the former one is replaced by
    /// no offset. Answers whether that changed what is to be written.
    fn heed_fate(&mut self) -> bool {
        if self.is_heeded || !self.fate.is_void() {
            return false;
        }
        let former = self.last.take_if(|commit| commit.offset != NO_OFFSET);
        let is_changed = former.is_some();
        self.tried.extend(self.committed.take());
        if let Some(former) = former {
            self.tried.extend(former.tried);
            self.tried.insert(former.offset);
        }
        let Some(since) = self.fate.made_anew() else {
            return is_changed;
        };
        self.is_heeded = true;
        if self.last.is_none() && !self.tried.is_empty() {
            self.last = Some(Commit {
                partition: self.partition.clone(),
                token: self.token,
                offset: NO_OFFSET,
                version: self.version,
                tried: self.tried.clone(),
                is_start: true,
                since,
            });
        }
        is_changed
    }
}

/// What becomes of the topic of a partition while that is given up.
#[derive(Debug, Default)]
pub(crate) struct TopicFate {
    is_deleted: AtomicBool,
    /// The transaction that made another of its name; 0 if there is none.
    made_anew: AtomicI64,
}

impl TopicFate {
    /// It was deleted.
    pub fn delete(&self) {
        self.is_deleted.store(true, Ordering::SeqCst);
    }

    /// Another of its name was made, by this transaction.
    pub fn make_anew(&self, created: i64) {
        self.made_anew.store(created, Ordering::SeqCst);
    }

    /// Whether what was done of it counts no more.
    pub fn is_void(&self) -> bool {
        self.is_deleted.load(Ordering::SeqCst) || self.made_anew().is_some()
    }

    /// The transaction that made another of its name, if one did.
    pub fn made_anew(&self) -> Option<i64> {
        Some(self.made_anew.load(Ordering::SeqCst)).filter(|created| *created != 0)
    }
}

/// What came of giving a partition up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Released {
    /// The owner node is gone, and the offset, if there was one, was written before.
    Gone {
        /// What the commit of this offset met: something of somebody else's, or a refusal for good.
        met: Option<(i64, Committed)>,
    },
    /// The owner node was not as we made it any more: gone, another's, or ours and written over.
    NotOurs,
}

/// What became of the owner node that we made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Nothing.
    Ours,
    /// It is there, and somebody wrote over it: no release of ours can have deleted it.
    WrittenOver,
    /// It is not there; another may be.
    Gone,
}

impl Standing {
    /// What that says of a release that may have been carried out.
    fn released(self, met: Option<(i64, Committed)>) -> Option<Released> {
        match self {
            Self::Ours => None,
            Self::WrittenOver => Some(Released::NotOurs),
            Self::Gone => Some(Released::Gone { met }),
        }
    }
}

enum Answer {
    /// For each, the offset node's version after the transaction.
    Done(Vec<Option<i32>>),
    Refused {
        at: usize,
        is_fence: bool,
        fault: Fault,
    },
    Unknown,
}

impl Session {
    /// Writes offsets, each only if its partition is still ours. Proves to the quorum that we live, which renews the lease.
    pub async fn commit(
        &self,
        commits: Vec<Commit>,
    ) -> Result<BTreeMap<TopicPartition, Committed>, Trouble> {
        let mut results = BTreeMap::new();
        let mut open: Vec<(Commit, Option<String>)> =
            commits.into_iter().map(|commit| (commit, None)).collect();
        for round in 0..TRIES {
            if open.is_empty() {
                return Ok(results);
            }
            let batches = if round < TOGETHER {
                runs(open, |(commit, _)| {
                    self.commit_ops(commit).iter().map(Op::size).sum()
                })
            } else {
                open.into_iter().map(|one| vec![one]).collect()
            };
            open = Vec::new();
            let answers = join_all(batches.iter().map(|batch| self.send_commits(batch))).await;
            for (batch, answer) in batches.into_iter().zip(answers) {
                let refused = match answer? {
                    Answer::Done(versions) => {
                        for ((commit, over), version) in batch.into_iter().zip(versions) {
                            results.insert(
                                commit.partition,
                                Committed::Written {
                                    version: version.unwrap_or(0),
                                    over,
                                },
                            );
                        }
                        continue;
                    }
                    Answer::Refused {
                        at,
                        is_fence,
                        fault,
                    } => Some((at, is_fence, fault)),
                    Answer::Unknown => {
                        self.catch_up().await?;
                        None
                    }
                };
                // What was refused first hides what else would have been: all are looked at, at once.
                let settled = batch
                    .into_iter()
                    .enumerate()
                    .map(|(place, (commit, over))| {
                        let (is_fence, fault) = match &refused {
                            Some((at, is_fence, fault)) if *at == place => {
                                (*is_fence, fault.clone())
                            }
                            _ => (false, Fault::BadVersion),
                        };
                        async move {
                            let partition = commit.partition.clone();
                            let settled = match is_fence {
                                true => Ok(Err(Committed::NotOurs)),
                                false => self.settle_commit(commit, over, &fault).await,
                            };
                            (partition, settled)
                        }
                    });
                for (partition, settled) in join_all(settled).await {
                    match settled? {
                        Ok(again) => open.push(again),
                        Err(settled) => {
                            results.insert(partition, settled);
                        }
                    }
                }
            }
        }
        let unsettled = Committed::Unsettled("somebody else keeps writing the offset".to_owned());
        results.extend(
            open.into_iter()
                .map(|(commit, _)| (commit.partition, unsettled.clone())),
        );
        Ok(results)
    }

    fn fence_op(&self, partition: &TopicPartition) -> Op {
        Op::Check {
            path: paths::owner(self.group(), partition),
            version: Some(STAMPED),
        }
    }

    fn write_op(&self, commit: &Commit) -> Op {
        let data = encode_offset(commit.offset);
        self.offset_op(&commit.partition, data, commit.version)
    }

    /// Writes the offset node at this version, or makes the one that is missing.
    pub(super) fn offset_op(
        &self,
        partition: &TopicPartition,
        data: Vec<u8>,
        version: Option<i32>,
    ) -> Op {
        let path = paths::offset(self.group(), partition);
        match version {
            Some(_) => Op::Set {
                path,
                data,
                version,
            },
            None => Op::Create {
                path,
                data,
                ephemeral: false,
            },
        }
    }

    fn commit_ops(&self, commit: &Commit) -> [Op; 2] {
        [self.fence_op(&commit.partition), self.write_op(commit)]
    }

    async fn send_commits(&self, batch: &[(Commit, Option<String>)]) -> Result<Answer, Trouble> {
        let mut commits: Vec<Commit> = batch.iter().map(|(commit, _)| commit.clone()).collect();
        if let Some(answer) = self.make_missing_nodes(&mut commits).await {
            return Ok(answer);
        }
        let ops = commits
            .iter()
            .flat_map(|commit| self.commit_ops(commit))
            .collect();
        let sent = self.who.clock.now();
        match self.connection.multi(ops).await {
            Ok(stats) => {
                self.lease.renew(sent);
                let version =
                    |pair: &[Option<Stat>]| pair.last().copied().flatten().map(|stat| stat.version);
                Ok(Answer::Done(stats.chunks(2).map(version).collect()))
            }
            Err(MultiFault {
                index: Some(index),
                fault,
            }) => Ok(Answer::Refused {
                at: index / 2,
                is_fence: index % 2 == 0,
                fault,
            }),
            Err(MultiFault {
                index: None,
                fault: Fault::Unknown(_),
            }) => Ok(Answer::Unknown),
            Err(MultiFault { index: None, fault }) => {
                Err(trouble("committing below", &self.path, fault))
            }
        }
    }

    /// A transaction cannot create nodes on 3.4. There a missing offset node is made first, saying "none" as a JVM reads it,
    /// so that the offset itself is still written behind the fence.
    async fn make_missing_nodes(&self, commits: &mut [Commit]) -> Option<Answer> {
        if self.dialect == Dialect::V3_5 {
            return None;
        }
        let missing: Vec<usize> = (0..commits.len())
            .filter(|at| commits[*at].version.is_none())
            .collect();
        let partitions = missing.iter().map(|at| &commits[*at].partition);
        let answers = join_all(partitions.map(|partition| self.make_offset_node(partition))).await;
        for (at, answer) in missing.into_iter().zip(answers) {
            match answer {
                Ok(()) => commits[at].version = Some(0),
                Err(Fault::Unknown(_)) => return Some(Answer::Unknown),
                Err(fault) => {
                    return Some(Answer::Refused {
                        at,
                        is_fence: false,
                        fault,
                    });
                }
            }
        }
        None
    }

    /// Finds out why a commit was refused, or whether one of unknown outcome was carried out: reads the offset node, then
    /// the owner node, on this session.
    async fn settle_commit(
        &self,
        mut commit: Commit,
        over: Option<String>,
        fault: &Fault,
    ) -> Result<std::result::Result<(Commit, Option<String>), Committed>, Trouble> {
        let path = paths::offset(self.group(), &commit.partition);
        if is_for_good(fault) {
            return Ok(Err(Committed::Unsettled(format!("{path}: {fault}"))));
        }
        if *fault == Fault::NoNode && commit.version.is_none() {
            self.ensure_parents(&path).await?;
            return Ok(Ok((commit, over)));
        }
        let (theirs, version, written) = match self.connection.data(&path).await {
            Ok((data, stat)) => (Some(data), Some(stat.version), stat.mzxid),
            Err(Fault::NoNode) => (None, None, 0),
            Err(fault) if is_for_good(&fault) => {
                return Ok(Err(Committed::Unsettled(format!("{path}: {fault}"))));
            }
            Err(fault) => return Err(trouble("reading", &path, fault)),
        };
        if !self.still_owns(&commit.partition, commit.token).await? {
            return Ok(Err(Committed::NotOurs));
        }
        let before = commit.version;
        commit.version = version;
        let Some(theirs) = theirs else {
            // Deleted by somebody, or never made: ours is made.
            self.ensure_parents(&path).await?;
            return Ok(Ok((commit, over)));
        };
        if theirs == encode_offset(commit.offset) {
            // Ours, of a transaction whose answer was lost; or theirs and the same.
            return Ok(Err(Committed::Written {
                version: version.unwrap_or(0),
                over,
            }));
        }
        let is_tried = matches!(decode_offset(&theirs), Ok(StoredOffset::At(at)) if commit.tried.contains(&at));
        let is_former = written < commit.since;
        if version == before || is_tried || is_former {
            return Ok(Ok((commit, over)));
        }
        match decode_offset(&theirs) {
            Ok(StoredOffset::At(theirs)) if commit.is_start || theirs > commit.offset => {
                Ok(Err(Committed::Ahead {
                    theirs,
                    version: version.unwrap_or(0),
                }))
            }
            Ok(StoredOffset::Negative(NO_OFFSET)) if before.is_none() => Ok(Ok((commit, over))),
            Ok(StoredOffset::At(theirs) | StoredOffset::Negative(theirs)) => {
                Ok(Ok((commit, Some(theirs.to_string()))))
            }
            Err(_) => Ok(Ok((
                commit,
                Some(String::from_utf8_lossy(&theirs).into_owned()),
            ))),
        }
    }

    /// Whether the owner node is as we made it.
    pub async fn still_owns(
        &self,
        partition: &TopicPartition,
        token: i64,
    ) -> Result<bool, Trouble> {
        Ok(self.standing(partition, token).await? == Standing::Ours)
    }

    async fn standing(&self, partition: &TopicPartition, token: i64) -> Result<Standing, Trouble> {
        let path = paths::owner(self.group(), partition);
        match self.connection.stat(&path).await {
            Ok(Some(stat)) if self.is_mine(&stat) && stat.czxid == token => {
                Ok(match stat.version {
                    STAMPED => Standing::Ours,
                    _ => Standing::WrittenOver,
                })
            }
            Ok(_) => Ok(Standing::Gone),
            Err(fault) => Err(trouble("reading", &path, fault)),
        }
    }

    // ---- release ----

    /// Deletes owner nodes, each with its last commit in the same transaction. A node that is not ours at our stamp is left
    /// alone, and then nothing is written either. The next owner's node has the same stamp; that it is not ours tells the
    /// offset node, which it confirmed when it claimed.
    ///
    /// With `check_first` an earlier attempt may have been carried out, so each node is looked at before it is deleted: the
    /// next owner's is at the same version as ours was.
    pub async fn release(
        &self,
        partings: Vec<Parting>,
        check_first: bool,
    ) -> Result<BTreeMap<TopicPartition, Released>, Trouble> {
        let mut results = BTreeMap::new();
        let mut open = Vec::new();
        if check_first {
            self.catch_up().await?;
        }
        for parting in partings {
            if check_first {
                let standing = self.standing(&parting.partition, parting.token).await?;
                if let Some(released) = standing.released(None) {
                    results.insert(parting.partition, released);
                    continue;
                }
            }
            let last = parting.last.as_ref();
            if parting.version.is_some() && last.is_none_or(|commit| commit.version.is_some()) {
                open.push(parting);
                continue;
            }
            let partition = parting.partition.clone();
            match self.settle_release(parting, false, None).await? {
                Ok(parting) => open.push(parting),
                Err(settled) => {
                    results.insert(partition, settled);
                }
            }
        }
        for round in 0..TRIES {
            if open.is_empty() {
                return Ok(results);
            }
            for parting in &mut open {
                parting.heed_fate();
            }
            let batches = if round < TOGETHER {
                runs(open, |parting| {
                    self.release_ops(parting).iter().map(Op::size).sum()
                })
            } else {
                open.into_iter().map(|one| vec![one]).collect()
            };
            open = Vec::new();
            let answers = join_all(batches.iter().map(|batch| self.send_releases(batch))).await;
            for (batch, answer) in batches.into_iter().zip(answers) {
                let (is_unknown, refused) = match answer? {
                    Answer::Done(_) => {
                        let gone = |parting: Parting| {
                            let met = parting.met;
                            (parting.partition, Released::Gone { met })
                        };
                        results.extend(batch.into_iter().map(gone));
                        continue;
                    }
                    Answer::Refused {
                        at,
                        is_fence,
                        fault,
                    } => {
                        let of_the_offset = (!is_fence).then_some((at, fault));
                        (false, of_the_offset)
                    }
                    Answer::Unknown => {
                        self.catch_up().await?;
                        (true, None)
                    }
                };
                // As above, all are looked at.
                let settled = batch.into_iter().enumerate().map(|(place, parting)| {
                    let fault = refused.as_ref().filter(|(at, _)| *at == place);
                    let fault = fault.map(|(_, fault)| fault.clone());
                    async move {
                        let partition = parting.partition.clone();
                        let settled = self.settle_release(parting, is_unknown, fault).await;
                        (partition, settled)
                    }
                });
                for (partition, settled) in join_all(settled).await {
                    match settled? {
                        Ok(again) => open.push(again),
                        Err(settled) => {
                            results.insert(partition, settled);
                        }
                    }
                }
            }
        }
        if open.is_empty() {
            return Ok(results);
        }
        let reason = format!("releasing below {}: refused again and again", self.path);
        Err(Trouble::Transient(reason))
    }

    fn release_ops(&self, parting: &Parting) -> Vec<Op> {
        let delete = Op::Delete {
            path: paths::owner(self.group(), &parting.partition),
            version: Some(STAMPED),
        };
        let before = match &parting.last {
            Some(commit) => Some(self.write_op(commit)),
            None if parting.is_unconfirmed => None,
            None => parting.version.map(|version| Op::Check {
                path: paths::offset(self.group(), &parting.partition),
                version: Some(version),
            }),
        };
        before.into_iter().chain([delete]).collect()
    }

    async fn send_releases(&self, batch: &[Parting]) -> Result<Answer, Trouble> {
        let lists: Vec<Vec<Op>> = batch
            .iter()
            .map(|parting| self.release_ops(parting))
            .collect();
        let lengths: Vec<usize> = lists.iter().map(Vec::len).collect();
        match self
            .connection
            .multi(lists.into_iter().flatten().collect())
            .await
        {
            Ok(_) => Ok(Answer::Done(Vec::new())),
            Err(MultiFault {
                index: Some(mut index),
                fault,
            }) => {
                for (at, length) in lengths.iter().enumerate() {
                    if index < *length {
                        return Ok(Answer::Refused {
                            at,
                            is_fence: index + 1 == *length,
                            fault,
                        });
                    }
                    index -= length;
                }
                Ok(Answer::Unknown)
            }
            Err(MultiFault {
                index: None,
                fault: Fault::Unknown(_),
            }) => Ok(Answer::Unknown),
            Err(MultiFault { index: None, fault }) => {
                Err(trouble("releasing below", &self.path, fault))
            }
        }
    }

    /// Finds out why a release was refused, or whether one of unknown outcome was carried out. `fault` is that of its offset.
    async fn settle_release(
        &self,
        mut parting: Parting,
        is_unknown: bool,
        fault: Option<Fault>,
    ) -> Result<std::result::Result<Parting, Released>, Trouble> {
        // At the version that we know, so that what others wrote since is looked at.
        let is_other = parting.heed_fate();
        let known = parting.version;
        let mut standing = self.standing(&parting.partition, parting.token).await?;
        if standing == Standing::Ours {
            // Read before the owner node is looked at for good, so that whoever claims after that changes it.
            parting.version = self.offset_version(&parting.partition).await?;
            parting.is_unconfirmed |= parting.version.is_none();
            standing = self.standing(&parting.partition, parting.token).await?;
        }
        if standing != Standing::Ours && !is_unknown {
            return Ok(Err(Released::NotOurs));
        }
        if let Some(released) = standing.released(parting.met.clone()) {
            return Ok(Err(released));
        }
        // A fault of what is not to be written any more says nothing.
        let fault = fault.filter(|fault| !is_other && is_for_good(fault));
        if fault.is_some() || parting.is_unconfirmed {
            // Kept, it would keep the partition from everybody. The next owner begins where the last commit stands.
            let Some(commit) = parting.last.take() else {
                parting.is_unconfirmed = true;
                parting.committed = None;
                return Ok(Ok(parting));
            };
            let path = paths::offset(self.group(), &parting.partition);
            let why = match fault {
                Some(fault) => format!("{path}: {fault}"),
                None => format!("{path} may not be looked at"),
            };
            parting.committed = None;
            parting.met = Some((commit.offset, Committed::Unsettled(why)));
            return Ok(Ok(parting));
        }
        let last = parting.last.as_ref();
        if last.is_some_and(|commit| commit.version == parting.version) {
            return Ok(Ok(parting));
        }
        // Still ours, and somebody wrote the offset: ours gets its own commit, with its own rules, first.
        let written_over = parting.committed.filter(|_| known != parting.version);
        let again = written_over.map(|offset| Commit {
            partition: parting.partition.clone(),
            token: parting.token,
            offset,
            version: known,
            tried: BTreeSet::new(),
            is_start: false,
            since: 0,
        });
        if let Some(commit) = parting.last.take().or(again) {
            let (partition, offset) = (commit.partition.clone(), commit.offset);
            let is_start = commit.is_start;
            let met = self.commit(vec![commit]).await?.remove(&partition);
            match &met {
                Some(Committed::NotOurs) => return Ok(Err(Released::NotOurs)),
                Some(Committed::Written { version, .. } | Committed::Ahead { version, .. }) => {
                    parting.version = Some(*version);
                }
                Some(Committed::Unsettled(_)) | None => {}
            }
            // What others wrote since is theirs.
            parting.is_heeded |= matches!(met, Some(Committed::Ahead { .. }));
            // Whoever writes over it next is written over with this one.
            parting.committed = Some(offset).filter(|_| !is_start);
            parting.met = met.map(|met| (offset, met));
        }
        Ok(Ok(parting))
    }
}
