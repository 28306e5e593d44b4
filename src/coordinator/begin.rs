//! Where reading of a claimed partition begins: at what was committed, or where the policy says, which is then committed first.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::LeaseClock;
use crate::config::{MalformedOffset, Reset};
use crate::event::{Event, ResetCause};
use crate::group::TopicPartition;
use crate::session::{Commit, Committed, Found, Session, Stored, Trouble};
use crate::stream::{Edge, Ownership, Queue, Reader, Start};
use crate::wire::paths;

/// From where a partition is to be read.
#[derive(Debug, Clone)]
pub(super) enum From {
    /// From what stands in its offset node.
    Stored(Stored),
    /// From where the policy says, for this reason; what stood there before, and the offset node's version.
    Reset {
        cause: ResetCause,
        before: Option<i64>,
        version: Option<i32>,
    },
    /// From here, which is committed already, or follows what was handed out.
    Offset {
        offset: i64,
        version: Option<i32>,
        committed: Option<i64>,
    },
}

pub(super) struct Beginning {
    pub ownership: Arc<Ownership>,
    pub from: From,
    /// The partition is younger than our knowledge of its topic: nothing of it can have been meant to be skipped.
    pub is_new: bool,
}

/// What came of it.
pub(super) enum Begun {
    /// It is being read.
    Reading {
        offset: i64,
        version: Option<i32>,
        committed: Option<i64>,
        queue: Box<dyn Queue>,
    },
    /// It is ours and not read, until somebody does something about its offset.
    HeldBack {
        reason: String,
        version: Option<i32>,
    },
    /// To be tried again, from there.
    Failed { from: From, reason: String },
    /// It is not ours any more.
    NotOurs,
}

pub(super) struct Beginner {
    pub session: Arc<Session>,
    pub clock: Arc<dyn LeaseClock>,
    pub reader: Arc<dyn Reader>,
    pub policy: Reset,
    pub malformed: MalformedOffset,
}

/// A start position that is decided, perhaps not committed yet.
struct Position {
    offset: i64,
    version: Option<i32>,
    committed: Option<i64>,
}

impl Beginner {
    /// Settles the start positions, commits those that are new, and begins to read. Tells of resets as it goes.
    pub async fn begin(
        self,
        list: Vec<Beginning>,
    ) -> (Vec<(Arc<Ownership>, bool, Begun)>, Vec<Event>) {
        let mut events = Vec::new();
        let mut done = Vec::new();
        let mut positions: BTreeMap<TopicPartition, (Beginning, Position)> = BTreeMap::new();
        let settled = futures_util::future::join_all(
            list.into_iter().map(|beginning| self.settle(beginning)),
        )
        .await;
        for (beginning, answer, event) in settled {
            events.extend(event);
            match answer {
                Ok(position) => {
                    positions.insert(beginning.ownership.partition.clone(), (beginning, position));
                }
                Err(begun) => done.push((beginning.ownership, beginning.is_new, begun)),
            }
        }
        self.commit_starts(&mut positions, &mut done).await;
        self.read(positions, &mut done).await;
        (done, events)
    }

    async fn settle(
        &self,
        beginning: Beginning,
    ) -> (Beginning, Result<Position, Begun>, Option<Event>) {
        let partition = beginning.ownership.partition.clone();
        let (cause, before, version) = match beginning.from.clone() {
            From::Offset {
                offset,
                version,
                committed,
            } => {
                return (
                    beginning,
                    Ok(Position {
                        offset,
                        version,
                        committed,
                    }),
                    None,
                );
            }
            From::Reset {
                cause,
                before,
                version,
            } => (cause, before, version),
            From::Stored(Stored { found, version }) => match found {
                Found::At(offset) => {
                    return (
                        beginning,
                        Ok(Position {
                            offset,
                            version,
                            committed: Some(offset),
                        }),
                        None,
                    );
                }
                Found::Nothing => (ResetCause::NoOffset, None, version),
                Found::Negative(offset) => (ResetCause::Negative, Some(offset), version),
                Found::Outdated(offset) => (ResetCause::TopicRecreated, offset, version),
                Found::Malformed(_) if self.malformed == MalformedOffset::TreatAsMissing => {
                    (ResetCause::Malformed, None, version)
                }
                Found::Malformed(reason) => {
                    let path = paths::offset(self.session.group(), &partition);
                    let event = Event::OffsetMalformed {
                        path,
                        reason: reason.clone(),
                    };
                    return (
                        beginning,
                        Err(Begun::HeldBack { reason, version }),
                        Some(event),
                    );
                }
            },
        };
        let edge = match self.policy {
            // Messages that were written to a new partition before we knew of it would be skipped (D-25).
            Reset::Largest if beginning.is_new => Edge::Earliest,
            Reset::Largest => Edge::Latest,
            Reset::Smallest => Edge::Earliest,
            Reset::None => {
                let event = Event::OffsetReset {
                    partition,
                    from: before,
                    to: None,
                    cause,
                };
                let reason = format!("{cause}, and auto.offset.reset is none");
                return (
                    beginning,
                    Err(Begun::HeldBack { reason, version }),
                    Some(event),
                );
            }
        };
        match self.reader.edge(&partition, edge).await {
            Ok(offset) => {
                let event = Event::OffsetReset {
                    partition,
                    from: before,
                    to: Some(offset),
                    cause,
                };
                (
                    beginning,
                    Ok(Position {
                        offset,
                        version,
                        committed: None,
                    }),
                    Some(event),
                )
            }
            Err(error) => {
                let from = From::Reset {
                    cause,
                    before,
                    version,
                };
                (
                    beginning,
                    Err(Begun::Failed {
                        from,
                        reason: error.to_string(),
                    }),
                    None,
                )
            }
        }
    }

    /// A start that nobody had committed is committed before the first delivery (O4).
    async fn commit_starts(
        &self,
        positions: &mut BTreeMap<TopicPartition, (Beginning, Position)>,
        done: &mut Vec<(Arc<Ownership>, bool, Begun)>,
    ) {
        let new = positions
            .iter()
            .filter(|(_, (_, position))| position.committed.is_none());
        let commits: Vec<Commit> = new
            .map(|(partition, (beginning, position))| Commit {
                partition: partition.clone(),
                token: beginning.ownership.token,
                offset: position.offset,
                version: position.version,
                is_reset: true,
            })
            .collect();
        let partitions: Vec<TopicPartition> = commits
            .iter()
            .map(|commit| commit.partition.clone())
            .collect();
        if partitions.is_empty() {
            return;
        }
        let answers = if self.session.lease.allows_commit(self.clock.now()) {
            self.session.commit(commits).await
        } else {
            Err(Trouble::Transient(
                "the lease has nearly run out".to_owned(),
            ))
        };
        for partition in partitions {
            let outcome = match &answers {
                Ok(results) => results.get(&partition).cloned(),
                Err(trouble) => Some(Committed::Unsettled(trouble.to_string())),
            };
            match outcome {
                Some(Committed::Written { version, .. }) => {
                    if let Some((_, position)) = positions.get_mut(&partition) {
                        position.version = Some(version);
                        position.committed = Some(position.offset);
                    }
                }
                outcome => {
                    let Some((beginning, _)) = positions.remove(&partition) else {
                        continue;
                    };
                    let begun = match (outcome, &answers) {
                        (Some(Committed::NotOurs), _) | (_, Err(Trouble::SessionLost)) => {
                            Begun::NotOurs
                        }
                        _ => Begun::Failed {
                            from: beginning.from.clone(),
                            reason: "the start position could not be committed".to_owned(),
                        },
                    };
                    done.push((beginning.ownership, beginning.is_new, begun));
                }
            }
        }
    }

    async fn read(
        &self,
        mut positions: BTreeMap<TopicPartition, (Beginning, Position)>,
        done: &mut Vec<(Arc<Ownership>, bool, Begun)>,
    ) {
        // One that was fenced meanwhile is about to be given up; its reading would begin for nothing.
        let fenced: Vec<TopicPartition> = positions
            .iter()
            .filter(|(_, (b, _))| b.ownership.is_fenced())
            .map(|(p, _)| p.clone())
            .collect();
        for partition in fenced {
            if let Some((beginning, _)) = positions.remove(&partition) {
                done.push((beginning.ownership, beginning.is_new, Begun::NotOurs));
            }
        }
        let start = |(beginning, position): &(Beginning, Position)| Start {
            partition: beginning.ownership.partition.clone(),
            offset: position.offset,
            bell: beginning.ownership.bell(),
        };
        let starts: Vec<Start> = positions.values().map(start).collect();
        if starts.is_empty() {
            return;
        }
        for (partition, answer) in self.reader.read(starts).await {
            let Some((beginning, position)) = positions.remove(&partition) else {
                continue;
            };
            let Position {
                offset,
                version,
                committed,
            } = position;
            let begun = match answer {
                Ok(queue) => Begun::Reading {
                    offset,
                    version,
                    committed,
                    queue,
                },
                Err(error) => Begun::Failed {
                    from: From::Offset {
                        offset,
                        version,
                        committed,
                    },
                    reason: error.to_string(),
                },
            };
            done.push((beginning.ownership, beginning.is_new, begun));
        }
    }
}
