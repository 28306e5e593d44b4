//! Reading of what is ours: where it begins, and what when it stops.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use crate::coordinator::begin::{Beginner, Beginning, Begun, From};
use crate::coordinator::serving::{Done, Held, HeldState, Serving};
use crate::event::{Event, LostCause, ResetCause};
use crate::group::TopicPartition;
use crate::session::{Trouble, Watched};
use crate::stream::{Ownership, Trouble as ReadTrouble};

impl Serving<'_> {
    pub(super) fn begin(&mut self, list: Vec<Beginning>) {
        // Those whose position is known do not wait for what the brokers are asked about the others.
        let (known, asked): (Vec<Beginning>, Vec<Beginning>) =
            list.into_iter().partition(Beginning::is_known);
        self.begin_together(known);
        self.begin_together(asked);
    }

    fn begin_together(&mut self, list: Vec<Beginning>) {
        let Some(reader) = self.reader.clone() else {
            return;
        };
        if list.is_empty() {
            return;
        }
        let partitions: Vec<TopicPartition> =
            list.iter().map(|b| b.ownership.partition.clone()).collect();
        self.beginning.extend(partitions.iter().cloned());
        let beginner = Beginner {
            session: self.session.clone(),
            clock: self.core.parts.common.clock.clone(),
            reader,
            policy: self.core.parts.config.auto_offset_reset,
            malformed: self.core.parts.config.malformed_offset,
        };
        let reader = self.reader_number;
        self.works.push(Box::pin(async move {
            Done::Begun(reader, partitions, beginner.begin(list).await)
        }));
    }

    pub(super) fn begin_again(&mut self) {
        if self.reader.is_none() {
            return;
        }
        let now = Instant::now();
        let due: Vec<(TopicPartition, From)> = self
            .held
            .iter()
            .filter_map(|(partition, held)| match &held.state {
                HeldState::Later { at, from }
                    if *at <= now && !self.awaits_commit(partition, from) =>
                {
                    Some((partition.clone(), from.clone()))
                }
                _ => None,
            })
            .collect();
        let mut list = Vec::new();
        for (partition, from) in due {
            let held = self.held.get_mut(&partition).expect("it was just found");
            held.state = HeldState::Beginning;
            list.push(Beginning {
                ownership: held.ownership.clone(),
                from,
                is_new: held.is_new,
            });
        }
        self.begin(list);
    }

    /// A new start is chosen when no commit of the old position can be written over it any more.
    pub(super) fn awaits_commit(&self, partition: &TopicPartition, from: &From) -> bool {
        !matches!(from, From::Offset { .. }) && self.committing.contains(partition)
    }

    pub(super) async fn on_begun(
        &mut self,
        ownership: Arc<Ownership>,
        begun: Begun,
    ) -> Result<(), Trouble> {
        let partition = ownership.partition.clone();
        let is_current = self
            .held
            .get(&partition)
            .is_some_and(|held| held.ownership.token == ownership.token);
        if !is_current {
            // It may have begun to read after it was fenced; nobody would stop it otherwise.
            if matches!(begun, Begun::Reading { .. })
                && let Some(reader) = &self.reader
                && !self.held.contains_key(&partition)
            {
                reader.stop(std::slice::from_ref(&partition));
            }
            let stored = match &begun {
                Begun::Reading {
                    version, committed, ..
                } => Some((*version, Some(*committed))),
                Begun::Failed { from, .. } => from.known(),
                Begun::HeldBack { .. } | Begun::NotOurs => None,
            };
            if let (Some((farewell, _)), Some((version, committed))) =
                (self.deferred.get_mut(&partition), stored)
                // What came of a former ownership says nothing about this one.
                && farewell.ownership.token == ownership.token
            {
                farewell.version = version;
                farewell.committed = committed;
            }
            return Ok(());
        }
        let held = self.held.get_mut(&partition).expect("it was just found");
        if let Some(from) = held.remade.take() {
            held.state = HeldState::Later {
                at: Instant::now(),
                from: with_version(from, &begun),
            };
            return Ok(());
        }
        match begun {
            Begun::Reading {
                offset,
                version,
                committed,
                queue,
            } => {
                // A commit may have gone on while it began: what that wrote is newer.
                if version >= held.version {
                    held.version = version;
                    held.committed = Some(committed);
                }
                held.state = HeldState::Reading;
                // Silence is counted from here.
                held.quiet.note(None, Instant::now());
                let resumes = ownership.read_position() == Some(offset);
                if !resumes {
                    ownership.start(offset);
                }
                ownership.stream.add(ownership.clone(), queue);
                self.tell(Event::Started { partition, offset });
            }
            Begun::HeldBack { reason, version } => {
                held.version = version;
                held.state = HeldState::HeldBack { reason };
                match self.lookout.watch_offset(&partition).await {
                    Ok(now) if now == version => {}
                    // It was repaired between the read and the watch (W1), or could not be watched: read again soon.
                    Ok(_) | Err(Trouble::Transient(_)) => {
                        self.fired.insert(Watched::Offset(partition));
                        self.look_again_soon();
                    }
                    Err(trouble) => return Err(trouble),
                }
            }
            Begun::Failed { from, reason } => {
                // Its start may have been committed before the reading failed.
                if let Some((version, committed)) = from.known() {
                    held.version = version;
                    held.committed = committed.or(held.committed);
                }
                if held.begin_later(from) {
                    self.tell(Event::ReadFailed {
                        partition: Some(partition),
                        reason,
                    });
                }
            }
            Begun::NotOurs => {
                self.lose(&BTreeSet::from([partition]), LostCause::OwnerNodeGone);
            }
        }
        Ok(())
    }

    pub(super) fn on_trouble(&mut self, ownership: &Arc<Ownership>, trouble: ReadTrouble) {
        let partition = ownership.partition.clone();
        let Some(held) = self.held.get_mut(&partition) else {
            return;
        };
        if held.ownership.token != ownership.token || !matches!(held.state, HeldState::Reading) {
            return;
        }
        match trouble {
            ReadTrouble::OutOfRange => {
                let before = ownership.read_position();
                // From here to the new start there is nothing of the old position that may be committed.
                ownership.forget();
                let from = From::Reset {
                    cause: ResetCause::OutOfRange,
                    before,
                    version: held.version,
                };
                held.forget_offsets();
                held.state = HeldState::Later {
                    at: Instant::now(),
                    from,
                };
            }
            ReadTrouble::Failed(reason) => {
                let Some(from) = resume(held) else { return };
                // It got on since the last trouble, so this is a new one.
                let position = ownership.read_position();
                if position != held.troubled_at {
                    held.troubled_at = position;
                    held.retries = 0;
                }
                if held.begin_later(from) {
                    self.tell(Event::ReadFailed {
                        partition: Some(partition),
                        reason,
                    });
                }
            }
        }
    }
}

/// The offset node's version may have moved while the beginning that is now void was under way.
pub(super) fn with_version(from: From, begun: &Begun) -> From {
    match (from, begun) {
        (
            From::Reset { cause, before, .. },
            Begun::Reading { version, .. } | Begun::HeldBack { version, .. },
        ) => From::Reset {
            cause,
            before,
            version: *version,
        },
        (from, _) => from,
    }
}

/// From where to read on after trouble: behind what was handed out.
pub(super) fn resume(held: &Held) -> Option<From> {
    let offset = held.ownership.read_position()?;
    Some(From::Offset {
        offset,
        version: held.version,
        committed: held.committed.unwrap_or(offset),
    })
}

/// A reading that was begun by a reader that is no more is to be begun again.
pub(super) fn without_reader(begun: Begun) -> Begun {
    match begun {
        Begun::Reading {
            offset,
            version,
            committed,
            ..
        } => Begun::Failed {
            from: From::Offset {
                offset,
                version,
                committed,
            },
            reason: "the brokers moved meanwhile".to_owned(),
        },
        begun => begun,
    }
}
