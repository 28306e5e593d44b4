//! Where reading of a claimed partition begins: at what was committed, or where the policy says, which is then committed first.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::clock::LeaseClock;
use crate::config::{MalformedOffset, Reset};
use crate::coordinator::Outlets;
use crate::coordinator::offset::OffsetNode;
use crate::event::{Event, ResetCause};
use crate::group::TopicPartition;
use crate::session::{Commit, Committed, Found, Session, Trouble};
use crate::stream::{Edge, Ownership, Queue, Reader, Start};
use crate::wire::{NO_OFFSET, paths};

/// From where a partition is to be read.
#[derive(Debug, Clone)]
pub(super) enum From {
    /// From what stands in its offset node.
    Stored(Found),
    /// From where the policy says, for this reason; what stood there before.
    Reset {
        cause: ResetCause,
        before: Option<i64>,
    },
    /// From here, which the policy chose and which is to be committed yet; what is to be told then, if nothing was yet.
    Start(i64, Option<Event>),
    /// From here, which is committed already, or follows what was handed out.
    Offset(i64),
}

pub(super) struct Beginning {
    pub ownership: Arc<Ownership>,
    pub from: From,
    /// What is known of the offset node; what the beginning does there is noted in it.
    pub node: OffsetNode,
    /// The partition is younger than our knowledge of its topic: nothing of it can have been meant to be skipped.
    pub is_new: bool,
}

impl Beginning {
    /// Whether the position is known without asking the brokers.
    pub fn is_known(&self) -> bool {
        match self.from {
            From::Start(..) | From::Offset(_) => true,
            From::Stored(Found::At(_) | Found::Malformed(_)) => true,
            From::Stored(_) | From::Reset { .. } => false,
        }
    }

    fn ended(self, begun: Begun) -> Ended {
        Ended {
            ownership: self.ownership,
            node: self.node,
            begun,
        }
    }

    /// To be begun again from here.
    fn failed(self, from: From, reason: String) -> Ended {
        self.ended(Begun::Failed { from, reason })
    }
}

/// What came of all that were begun together.
#[derive(Default)]
pub(super) struct Beginnings {
    pub list: Vec<Ended>,
    /// Something that concerns the session and not a single partition.
    pub trouble: Option<Trouble>,
}

/// How one ended.
pub(super) struct Ended {
    pub ownership: Arc<Ownership>,
    /// What is known of the offset node now.
    pub node: OffsetNode,
    pub begun: Begun,
}

/// What came of it.
pub(super) enum Begun {
    /// It is being read.
    Reading { offset: i64, queue: Box<dyn Queue> },
    /// It is ours and not read, until somebody does something about its offset.
    HeldBack { reason: String },
    /// To be tried again, from there.
    Failed { from: From, reason: String },
    /// It is not ours any more.
    NotOurs,
}

pub(super) struct Beginner {
    pub session: Arc<Session>,
    pub outlets: Outlets,
    pub clock: Arc<dyn LeaseClock>,
    pub reader: Arc<dyn Reader>,
    pub policy: Reset,
    pub malformed: MalformedOffset,
}

/// A start position that is decided.
struct Position {
    beginning: Beginning,
    offset: i64,
    /// It is to be committed yet; the event tells of it, unless it was told already.
    is_due: bool,
    event: Option<Event>,
}

/// What is told unless it turns out not to be so; also if nobody waits for the outcome any more.
struct Untold(Outlets, Option<Event>);

impl Untold {
    fn withdraw(mut self) {
        self.1 = None;
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        if let Some(event) = self.1.take() {
            self.0.tell(event);
        }
    }
}

impl Position {
    /// To be begun again from here.
    fn failed(self, reason: String) -> Ended {
        let from = match self.is_due {
            true => From::Start(self.offset, self.event),
            false => From::Offset(self.offset),
        };
        self.beginning.failed(from, reason)
    }
}

impl Beginner {
    /// Settles the start positions, commits those that are new, and begins to read.
    pub async fn begin(self, list: Vec<Beginning>) -> Beginnings {
        let mut done = Beginnings::default();
        let list = self.clear_misleading(list, &mut done).await;
        let mut positions = Vec::new();
        let settled = join_all(list.into_iter().map(|beginning| self.settle(beginning))).await;
        for settled in settled {
            match settled {
                Ok(position) => positions.push(position),
                Err(ended) => done.list.push(ended),
            }
        }
        let positions = self.commit_starts(positions, &mut done).await;
        self.read(positions, &mut done).await;
        done
    }

    /// What stands there of a former topic is replaced by no offset first: until the new start is found, which may take long,
    /// it might be taken for a position in the present one.
    async fn clear_misleading(
        &self,
        list: Vec<Beginning>,
        done: &mut Beginnings,
    ) -> Vec<Beginning> {
        let (mut ready, misleading): (Vec<_>, Vec<_>) = list.into_iter().partition(|beginning| {
            !beginning.node.is_misleading || !matches!(beginning.from, From::Reset { .. })
        });
        let commits = misleading
            .iter()
            .filter_map(|beginning| beginning.node.clearing(&beginning.ownership))
            .collect();
        let mut results = self.commit(commits, done).await;
        for mut beginning in misleading {
            let result = results.remove(&beginning.ownership.partition);
            beginning.node.note(NO_OFFSET, &result);
            match result {
                Committed::Written { .. } => ready.push(beginning),
                Committed::Ahead { theirs, .. } => {
                    beginning.from = From::Stored(Found::At(theirs));
                    ready.push(beginning);
                }
                Committed::NotOurs => done.list.push(beginning.ended(Begun::NotOurs)),
                Committed::Unsettled(why) => {
                    let from = beginning.from.clone();
                    let reason =
                        format!("the offset of the former topic could not be cleared: {why}");
                    done.list.push(beginning.failed(from, reason));
                }
            }
        }
        ready
    }

    async fn settle(&self, mut beginning: Beginning) -> Result<Position, Ended> {
        let found = match beginning.from.clone() {
            From::Offset(offset) => return Ok(position(beginning, offset, false)),
            From::Start(offset, event) => {
                let mut position = position(beginning, offset, true);
                position.event = event;
                return Ok(position);
            }
            From::Reset { cause, before } => return self.reset(beginning, cause, before).await,
            From::Stored(found) => found,
        };
        let (cause, before) = match found {
            Found::At(offset) => {
                beginning.node.stands(offset);
                return Ok(position(beginning, offset, false));
            }
            Found::Malformed(reason) if self.malformed == MalformedOffset::Hold => {
                let partition = &beginning.ownership.partition;
                self.outlets.tell(Event::OffsetMalformed {
                    path: paths::offset(self.session.group(), partition),
                    reason: reason.clone(),
                });
                return Err(beginning.ended(Begun::HeldBack { reason }));
            }
            Found::Malformed(_) => (ResetCause::Malformed, None),
            Found::Nothing => (ResetCause::NoOffset, None),
            Found::Negative(offset) => (ResetCause::Negative, Some(offset)),
            Found::Outdated(offset) => (ResetCause::TopicRecreated, offset),
        };
        self.reset(beginning, cause, before).await
    }

    async fn reset(
        &self,
        beginning: Beginning,
        cause: ResetCause,
        before: Option<i64>,
    ) -> Result<Position, Ended> {
        let partition = beginning.ownership.partition.clone();
        let token = beginning.ownership.token;
        let event = |to| Event::OffsetReset {
            partition: partition.clone(),
            token,
            from: before,
            to,
            cause,
        };
        let edge = match self.policy {
            // Messages that were written to a new partition before we knew of it would be skipped (D-25).
            Reset::Largest if beginning.is_new => Edge::Earliest,
            Reset::Largest => Edge::Latest,
            Reset::Smallest => Edge::Earliest,
            Reset::None => {
                let reason = format!("{cause}, and auto.offset.reset is none");
                self.outlets.tell(event(None));
                return Err(beginning.ended(Begun::HeldBack { reason }));
            }
        };
        match self.reader.edge(&partition, edge).await {
            Ok(offset) => {
                let mut position = position(beginning, offset, true);
                position.event = Some(event(Some(offset)));
                Ok(position)
            }
            Err(error) => Err(beginning.failed(From::Reset { cause, before }, error.to_string())),
        }
    }

    /// Commits these, if the lease allows it.
    async fn commit(&self, commits: Vec<Commit>, done: &mut Beginnings) -> Results {
        if commits.is_empty() {
            return Results::default();
        }
        let answer = if self.session.lease.allows_commit(self.clock.now()) {
            self.session.commit(commits).await
        } else {
            Err(Trouble::Transient(
                "the lease has nearly run out".to_owned(),
            ))
        };
        match answer {
            Ok(list) => Results {
                list,
                why: String::new(),
            },
            Err(trouble) => {
                let why = trouble.to_string();
                // What is more than a passing trouble is the coordinator's to hear.
                if !matches!(trouble, Trouble::Transient(_)) {
                    done.trouble = Some(trouble);
                }
                let list = BTreeMap::new();
                Results { list, why }
            }
        }
    }

    /// A start that nobody had committed is committed before the first delivery (O4). One that somebody else wrote meanwhile
    /// is where reading begins.
    async fn commit_starts(
        &self,
        positions: Vec<Position>,
        done: &mut Beginnings,
    ) -> Vec<Position> {
        let (mut ready, due): (Vec<Position>, Vec<Position>) =
            positions.into_iter().partition(|position| !position.is_due);
        let commit = |position: &Position| {
            let Beginning {
                node, ownership, ..
            } = &position.beginning;
            node.start(ownership, position.offset)
        };
        let commits = due.iter().map(commit).collect();
        // From here on they may stand there, if they are sent.
        let is_sent = self.session.lease.allows_commit(self.clock.now());
        let due: Vec<(Position, Untold)> = due
            .into_iter()
            .map(|mut position| {
                let event = position.event.take_if(|_| is_sent);
                (position, Untold(self.outlets.clone(), event))
            })
            .collect();
        let mut results = self.commit(commits, done).await;
        for (mut position, untold) in due {
            let result = results.remove(&position.beginning.ownership.partition);
            let node = &mut position.beginning.node;
            node.note(position.offset, &result);
            match result {
                Committed::Written { .. } => {
                    node.stands(position.offset);
                    position.is_due = false;
                    ready.push(position);
                }
                Committed::Ahead { theirs, .. } => {
                    node.stands(theirs);
                    position.offset = theirs;
                    position.is_due = false;
                    untold.withdraw();
                    ready.push(position);
                }
                Committed::NotOurs => {
                    done.list.push(position.beginning.ended(Begun::NotOurs));
                }
                // It may stand there already, so it is this one and no other that is committed in the end (O4).
                Committed::Unsettled(why) => {
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
            // One that was fenced meanwhile is about to be given up; its reading would begin for nothing.
            if position.beginning.ownership.is_fenced() {
                let reason = "it is being given up".to_owned();
                done.list.push(position.failed(reason));
            } else {
                reading.insert(position.beginning.ownership.partition.clone(), position);
            }
        }
        let start = |position: &Position| Start {
            partition: position.beginning.ownership.partition.clone(),
            offset: position.offset,
            bell: position.beginning.ownership.bell(),
        };
        let starts: Vec<Start> = reading.values().map(start).collect();
        if starts.is_empty() {
            return;
        }
        for (partition, answer) in self.reader.read(starts).await {
            let Some(position) = reading.remove(&partition) else {
                continue;
            };
            let ended = match answer {
                Ok(queue) => {
                    let offset = position.offset;
                    position.beginning.ended(Begun::Reading { offset, queue })
                }
                Err(error) => position.failed(error.to_string()),
            };
            done.list.push(ended);
        }
    }
}

fn position(beginning: Beginning, offset: i64, is_due: bool) -> Position {
    Position {
        beginning,
        offset,
        is_due,
        event: None,
    }
}

/// What came of several commits.
#[derive(Default)]
struct Results {
    list: BTreeMap<TopicPartition, Committed>,
    /// Why there is nothing about the others.
    why: String,
}

impl Results {
    fn remove(&mut self, partition: &TopicPartition) -> Committed {
        let result = self.list.remove(partition);
        result.unwrap_or_else(|| Committed::Unsettled(self.why.clone()))
    }
}
