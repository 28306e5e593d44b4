//! Reading of what is ours: where it begins, and what when it stops.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use crate::coordinator::begin::{Beginner, Beginning, Begun, Ended, From};
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
            outlets: self.core.parts.outlets.clone(),
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
        let due: Vec<TopicPartition> = self
            .held
            .iter()
            .filter(|(partition, held)| self.begins_at(partition, held).is_some_and(|at| at <= now))
            .map(|(partition, _)| partition.clone())
            .collect();
        let mut list = Vec::new();
        for partition in due {
            let held = self.held.get_mut(&partition).expect("it was just found");
            if let HeldState::Later { from, .. } =
                std::mem::replace(&mut held.state, HeldState::Beginning)
            {
                list.push(Beginning {
                    ownership: held.ownership.clone(),
                    from,
                    node: held.node.clone(),
                    is_new: held.is_new,
                });
            }
        }
        self.begin(list);
    }

    /// When it is to be begun again, if it is and can be. A new start waits until no commit of the old position can be written
    /// over it any more.
    pub(super) fn begins_at(&self, partition: &TopicPartition, held: &Held) -> Option<Instant> {
        let HeldState::Later { at, from } = &held.state else {
            return None;
        };
        let awaits_commit = !matches!(from, From::Offset(_)) && self.committing.contains(partition);
        (self.reader.is_some() && !awaits_commit).then_some(*at)
    }

    pub(super) async fn on_begun(&mut self, ended: Ended) -> Result<(), Trouble> {
        let Ended {
            ownership,
            node,
            begun,
        } = ended;
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
            if let Some(farewell) = self.deferred.get_mut(&partition)
                // What came of a former ownership says nothing about this one.
                && farewell.ownership.token == ownership.token
            {
                let leaving = self.parting.get(&partition);
                match leaving.is_some_and(|leaving| leaving.is_remade) {
                    true => farewell.node.learn_of_former(node),
                    false => farewell.node.learn(node),
                }
            }
            return Ok(());
        }
        let held = self.held.get_mut(&partition).expect("it was just found");
        if let Some(from) = held.remade.take() {
            held.node.learn_of_former(node);
            let at = Instant::now();
            held.state = HeldState::Later { at, from };
            return Ok(());
        }
        held.node.learn(node);
        match begun {
            Begun::Reading { offset, queue } => {
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
            Begun::HeldBack { reason } => {
                held.state = HeldState::HeldBack { reason };
                let known = held.node.version;
                match self.lookout.watch_offset(&partition).await {
                    Ok(now) if now == known => {}
                    // It was repaired between the read and the watch (W1), or could not be watched: read again soon.
                    Ok(_) | Err(Trouble::Transient(_)) => {
                        self.fired.insert(Watched::Offset(partition));
                        self.look_again_soon();
                    }
                    Err(trouble) => return Err(trouble),
                }
            }
            Begun::Failed { from, reason } => {
                if held.begin_later(from) {
                    self.tell(Event::ReadFailed {
                        partition: Some(partition),
                        reason,
                    });
                }
            }
            Begun::NotOurs => {
                self.limbo.insert(partition.clone());
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
                };
                held.node.void(ResetCause::OutOfRange);
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

/// From where to read on after trouble: behind what was handed out.
pub(super) fn resume(held: &Held) -> Option<From> {
    held.ownership.read_position().map(From::Offset)
}

/// A reading that was begun by a reader that is no more is to be begun again.
pub(super) fn without_reader(begun: Begun) -> Begun {
    match begun {
        Begun::Reading { offset, .. } => Begun::Failed {
            from: From::Offset(offset),
            reason: "the brokers moved meanwhile".to_owned(),
        },
        begun => begun,
    }
}
