//! Where reading of a claimed partition begins: at what was committed, or where the policy says, which is then committed first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;

use crate::clock::LeaseClock;
use crate::config::{MalformedOffset, Reset};
use crate::event::{Event, ResetCause};
use crate::session::{Commit, CommitKind, Committed, Found, Session, Stored, Trouble};
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
    /// From here, which the policy chose for this reason and which is to be committed yet.
    Start {
        offset: i64,
        version: Option<i32>,
        cause: ResetCause,
    },
    /// From here, which is committed already, or follows what was handed out.
    Offset {
        offset: i64,
        version: Option<i32>,
        committed: i64,
    },
}

impl From {
    /// What is known of the offset node after a beginning that failed: its version, and the offset of ours that stands there.
    pub fn known(&self) -> Option<(Option<i32>, Option<i64>)> {
        match self {
            Self::Start { version, .. } => Some((*version, None)),
            Self::Offset {
                version, committed, ..
            } => Some((*version, Some(*committed))),
            Self::Stored(_) | Self::Reset { .. } => None,
        }
    }
}

pub(super) struct Beginning {
    pub ownership: Arc<Ownership>,
    pub from: From,
    /// The partition is younger than our knowledge of its topic: nothing of it can have been meant to be skipped.
    pub is_new: bool,
}

impl Beginning {
    /// Whether the position is known without asking the brokers.
    pub fn is_known(&self) -> bool {
        matches!(
            &self.from,
            From::Start { .. }
                | From::Offset { .. }
                | From::Stored(Stored {
                    found: Found::At(_) | Found::Malformed(_),
                    ..
                })
        )
    }
}

/// What came of all that were begun together.
#[derive(Default)]
pub(super) struct Beginnings {
    pub list: Vec<(Arc<Ownership>, Begun)>,
    pub events: Vec<Event>,
    /// Something that concerns the session and not a single partition.
    pub trouble: Option<Trouble>,
}

/// What came of it.
pub(super) enum Begun {
    /// It is being read.
    Reading {
        offset: i64,
        version: Option<i32>,
        committed: i64,
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
    beginning: Beginning,
    offset: i64,
    version: Option<i32>,
    due: Due,
}

/// Whether a start position is still to be committed.
#[derive(Clone, Copy)]
enum Due {
    /// It is, for this reason.
    Start(ResetCause),
    /// This is.
    Committed(i64),
}

impl Position {
    fn ended(self, begun: Begun) -> Ended {
        (self.beginning.ownership, begun)
    }

    /// To be begun again from here.
    fn failed(self, reason: String) -> Ended {
        let (offset, version) = (self.offset, self.version);
        let from = match self.due {
            Due::Start(cause) => From::Start {
                offset,
                version,
                cause,
            },
            Due::Committed(committed) => From::Offset {
                offset,
                version,
                committed,
            },
        };
        self.ended(Begun::Failed { from, reason })
    }
}

type Ended = (Arc<Ownership>, Begun);

/// What is to be done about a beginning, before anybody is asked.
enum Decision {
    At {
        offset: i64,
        version: Option<i32>,
        due: Due,
    },
    Reset {
        cause: ResetCause,
        before: Option<i64>,
        version: Option<i32>,
    },
    HoldBack {
        reason: String,
        version: Option<i32>,
    },
}

fn decide(from: From, malformed: MalformedOffset) -> Decision {
    let reset = |cause, before, version| Decision::Reset {
        cause,
        before,
        version,
    };
    let Stored { found, version } = match from {
        From::Start {
            offset,
            version,
            cause,
        } => {
            return Decision::At {
                offset,
                version,
                due: Due::Start(cause),
            };
        }
        From::Offset {
            offset,
            version,
            committed,
        } => {
            return Decision::At {
                offset,
                version,
                due: Due::Committed(committed),
            };
        }
        From::Reset {
            cause,
            before,
            version,
        } => return reset(cause, before, version),
        From::Stored(stored) => stored,
    };
    match found {
        Found::At(offset) => Decision::At {
            offset,
            version,
            due: Due::Committed(offset),
        },
        Found::Nothing => reset(ResetCause::NoOffset, None, version),
        Found::Negative(offset) => reset(ResetCause::Negative, Some(offset), version),
        Found::Outdated(offset) => reset(ResetCause::TopicRecreated, offset, version),
        Found::Malformed(_) if malformed == MalformedOffset::TreatAsMissing => {
            reset(ResetCause::Malformed, None, version)
        }
        Found::Malformed(reason) => Decision::HoldBack { reason, version },
    }
}

/// A start for want of an offset gives way to one that was written since; one that replaces an offset which no longer means
/// anything does not, since what was written may be of the same kind.
fn kind(cause: ResetCause) -> CommitKind {
    match cause {
        ResetCause::NoOffset | ResetCause::Negative | ResetCause::Malformed => CommitKind::Start,
        ResetCause::OutOfRange | ResetCause::TopicRecreated => CommitKind::Reset,
    }
}

impl Beginner {
    /// Settles the start positions, commits those that are new, and begins to read.
    pub async fn begin(self, list: Vec<Beginning>) -> Beginnings {
        let mut done = Beginnings::default();
        let mut positions = Vec::new();
        let settled = join_all(list.into_iter().map(|beginning| self.settle(beginning))).await;
        for (settled, event) in settled {
            done.events.extend(event);
            match settled {
                Ok(position) => positions.push(position),
                Err(ended) => done.list.push(ended),
            }
        }
        let positions = self.commit_starts(positions, &mut done).await;
        self.read(positions, &mut done).await;
        done
    }

    async fn settle(&self, beginning: Beginning) -> (Result<Position, Ended>, Option<Event>) {
        match decide(beginning.from.clone(), self.malformed) {
            Decision::At {
                offset,
                version,
                due,
            } => {
                let position = Position {
                    beginning,
                    offset,
                    version,
                    due,
                };
                (Ok(position), None)
            }
            Decision::HoldBack { reason, version } => {
                let partition = &beginning.ownership.partition;
                let event = Event::OffsetMalformed {
                    path: paths::offset(self.session.group(), partition),
                    reason: reason.clone(),
                };
                let begun = Begun::HeldBack { reason, version };
                (Err((beginning.ownership, begun)), Some(event))
            }
            Decision::Reset {
                cause,
                before,
                version,
            } => self.reset(beginning, cause, before, version).await,
        }
    }

    async fn reset(
        &self,
        beginning: Beginning,
        cause: ResetCause,
        before: Option<i64>,
        version: Option<i32>,
    ) -> (Result<Position, Ended>, Option<Event>) {
        let partition = beginning.ownership.partition.clone();
        let edge = match self.policy {
            // Messages that were written to a new partition before we knew of it would be skipped (D-25).
            Reset::Largest if beginning.is_new => Edge::Earliest,
            Reset::Largest => Edge::Latest,
            Reset::Smallest => Edge::Earliest,
            Reset::None => {
                let reason = format!("{cause}, and auto.offset.reset is none");
                let event = Event::OffsetReset {
                    partition,
                    from: before,
                    to: None,
                    cause,
                };
                let begun = Begun::HeldBack { reason, version };
                return (Err((beginning.ownership, begun)), Some(event));
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
                let position = Position {
                    beginning,
                    offset,
                    version,
                    due: Due::Start(cause),
                };
                (Ok(position), Some(event))
            }
            Err(error) => {
                let from = From::Reset {
                    cause,
                    before,
                    version,
                };
                let reason = error.to_string();
                (
                    Err((beginning.ownership, Begun::Failed { from, reason })),
                    None,
                )
            }
        }
    }

    /// A start that nobody had committed is committed before the first delivery (O4).
    async fn commit_starts(
        &self,
        positions: Vec<Position>,
        done: &mut Beginnings,
    ) -> Vec<Position> {
        let mut ready = Vec::new();
        let mut new = Vec::new();
        let mut commits = Vec::new();
        for position in positions {
            let Due::Start(cause) = position.due else {
                ready.push(position);
                continue;
            };
            commits.push(Commit {
                partition: position.beginning.ownership.partition.clone(),
                token: position.beginning.ownership.token,
                offset: position.offset,
                version: position.version,
                tried: BTreeSet::new(),
                kind: kind(cause),
            });
            new.push(position);
        }
        if new.is_empty() {
            return ready;
        }
        let answer = if self.session.lease.allows_commit(self.clock.now()) {
            self.session.commit(commits).await
        } else {
            Err(Trouble::Transient(
                "the lease has nearly run out".to_owned(),
            ))
        };
        let (results, why) = match answer {
            Ok(results) => (results, String::new()),
            Err(trouble) => {
                let why = trouble.to_string();
                // What is more than a passing trouble is the coordinator's to hear.
                if !matches!(trouble, Trouble::Transient(_)) {
                    done.trouble = Some(trouble);
                }
                (BTreeMap::new(), why)
            }
        };
        for mut position in new {
            match results.get(&position.beginning.ownership.partition) {
                Some(Committed::Written { version, .. }) => {
                    position.version = Some(*version);
                    position.due = Due::Committed(position.offset);
                    ready.push(position);
                }
                Some(Committed::NotOurs) => done.list.push(position.ended(Begun::NotOurs)),
                Some(Committed::Ahead { theirs, version }) => {
                    let reason = format!(
                        "{theirs} was written to the offset node before the start position {} was",
                        position.offset
                    );
                    let from = From::Stored(Stored {
                        found: Found::At(*theirs),
                        version: Some(*version),
                    });
                    done.list
                        .push(position.ended(Begun::Failed { from, reason }));
                }
                // It may stand there already, so it is this one and no other that is committed in the end (O4).
                unsettled => {
                    let why = match unsettled {
                        Some(Committed::Unsettled(reason)) => reason,
                        _ => &why,
                    };
                    let reason = format!("the start position could not be committed: {why}");
                    done.list.push(position.failed(reason));
                }
            }
        }
        ready
    }

    async fn read(&self, positions: Vec<Position>, done: &mut Beginnings) {
        let mut reading = BTreeMap::new();
        for position in positions {
            let Due::Committed(committed) = position.due else {
                continue;
            };
            // One that was fenced meanwhile is about to be given up; its reading would begin for nothing.
            if position.beginning.ownership.is_fenced() {
                let reason = "it is being given up".to_owned();
                done.list.push(position.failed(reason));
            } else {
                let partition = position.beginning.ownership.partition.clone();
                reading.insert(partition, (position, committed));
            }
        }
        let start = |position: &Position| Start {
            partition: position.beginning.ownership.partition.clone(),
            offset: position.offset,
            bell: position.beginning.ownership.bell(),
        };
        let starts: Vec<Start> = reading
            .values()
            .map(|(position, _)| start(position))
            .collect();
        if starts.is_empty() {
            return;
        }
        for (partition, answer) in self.reader.read(starts).await {
            let Some((position, committed)) = reading.remove(&partition) else {
                continue;
            };
            let ended = match answer {
                Ok(queue) => {
                    let begun = Begun::Reading {
                        offset: position.offset,
                        version: position.version,
                        committed,
                        queue,
                    };
                    position.ended(begun)
                }
                Err(error) => position.failed(error.to_string()),
            };
            done.list.push(ended);
        }
    }
}
