//! What is ours: is it still, and what follows when it is not.

use std::collections::BTreeSet;

use tokio::time::{Instant, timeout};

use crate::coordinator::begin::From;
use crate::coordinator::serving::{Done, HeldState, Serving};
use crate::event::{Event, LostCause};
use crate::group::TopicPartition;
use crate::listener::RebalanceListener;
use crate::registry::Later;
use crate::session::{OwnerNode, STAMPED, Trouble, Watched};

impl Serving<'_> {
    /// Takes up what has changed. Nothing of a partition whose owner node has is delivered until that was read.
    pub(super) fn note_fired(&mut self, fired: impl IntoIterator<Item = Watched>) {
        for watched in fired {
            if let Watched::Owner(partition) = &watched
                && let Some(held) = self.held.get(partition)
            {
                held.ownership.doubt();
            }
            self.fired.insert(watched);
        }
    }

    /// Awaits what others take their time for; what changes meanwhile is taken up. An owner node that changed is read after it.
    pub(super) async fn while_noting<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                fired = self.lookout.changed() => match fired {
                    Ok(fired) => self.note_fired(fired),
                    // The session is over, which whoever serves it is told.
                    Err(_) => return work.await,
                },
            }
        }
    }

    /// Owner nodes that changed: is what we hold still ours, is what we wait for free?
    pub(super) async fn check_owners(&mut self) -> Result<(), Trouble> {
        let mut changed = BTreeSet::new();
        for watched in &self.fired {
            if let Watched::Owner(partition) = watched {
                changed.insert(partition.clone());
            }
        }
        let ours: BTreeSet<TopicPartition> = changed
            .iter()
            .filter(|p| self.held.contains_key(*p))
            .cloned()
            .collect();
        self.verify(&ours).await?;
        for partition in changed {
            if let Some(blocked) = self.blocked.get_mut(&partition) {
                blocked.is_freed = true;
            }
            self.fired.remove(&Watched::Owner(partition));
        }
        Ok(())
    }

    /// Reads owner nodes that should be ours, watches them, and lets go of what is not ours any more.
    pub(super) async fn verify(
        &mut self,
        partitions: &BTreeSet<TopicPartition>,
    ) -> Result<(), Trouble> {
        let held = &self.held;
        let alarm = |at: &TopicPartition| held.get(at).map(|held| held.ownership.alarm());
        let (nodes, is_complete) = self.lookout.watch_owners(partitions, alarm).await;
        let mut lost = BTreeSet::new();
        for (partition, node) in nodes {
            let Some(held) = self.held.get(&partition) else {
                continue;
            };
            let stat = node.map(|OwnerNode { stat, .. }| stat);
            let stat = stat.filter(|stat| stat.ephemeral_owner == self.session.id());
            let is_ours = stat
                .as_ref()
                .is_some_and(|stat| stat.czxid == held.ownership.token && stat.version == STAMPED);
            if is_ours {
                // What changed since it was read is read again.
                if !self.lookout.has_fired(&Watched::Owner(partition)) {
                    held.ownership.trust();
                }
            } else {
                if stat.is_some() {
                    // Somebody wrote over it.
                    self.limbo.insert(partition.clone());
                }
                lost.insert(partition);
            }
        }
        self.lose(&lost, LostCause::OwnerNodeGone);
        is_complete
    }

    pub(super) fn lose(&mut self, partitions: &BTreeSet<TopicPartition>, cause: LostCause) {
        let mut lost = BTreeSet::new();
        for partition in partitions {
            let Some(held) = self.held.remove(partition) else {
                continue;
            };
            let progress = held.ownership.end();
            lost.insert(partition.clone());
            self.tell(Event::Lost {
                partition: partition.clone(),
                cause,
                undone: progress.undone,
            });
        }
        self.note_holding();
        self.after_losing(lost, cause);
    }

    /// The lease is kept as long as there is something to keep it for.
    pub(super) fn note_holding(&self) {
        self.holds
            .send_replace(!self.held.is_empty() || !self.parting.is_empty());
    }

    pub(super) fn after_losing(&mut self, lost: BTreeSet<TopicPartition>, cause: LostCause) {
        if lost.is_empty() {
            return;
        }
        // What follows is found by a look, also if no watch told of the loss.
        self.is_unfinished = true;
        self.retry_at = Some(Instant::now());
        self.is_planned = false;
        self.publish();
        if let Some(reader) = &self.reader {
            let list: Vec<TopicPartition> = lost.iter().cloned().collect();
            reader.stop(&list);
        }
        let listened = self.call("on_lost", move |listener| listener.on_lost(&lost, cause));
        self.works.extend(listened);
    }

    /// Calls the listener, if there is one, in its own place; nobody waits longer than its time.
    pub(super) fn call(
        &self,
        name: &'static str,
        call: impl FnOnce(&dyn RebalanceListener) + Send + 'static,
    ) -> Option<Later<Done>> {
        let parts = &self.core.parts;
        let listener = parts.listener.clone()?;
        let ran = parts.outside.run(Box::new(move || call(&*listener)));
        let time = parts.config.drain_timeout;
        Some(Box::pin(async move {
            Done::Listened(name, timeout(time, ran).await.ok())
        }))
    }

    /// Offset nodes of partitions that are held back: somebody may have repaired them.
    pub(super) async fn recheck_held_back(&mut self) -> Result<(), Trouble> {
        let changed: Vec<Watched> = self
            .fired
            .iter()
            .filter(|w| matches!(w, Watched::Offset(_)))
            .cloned()
            .collect();
        let now = Instant::now();
        for watched in changed {
            let Watched::Offset(partition) = &watched else {
                continue;
            };
            let created = self.lookout.topic_created(&partition.topic).unwrap_or(0);
            if let Some(held) = self.held.get_mut(partition)
                && matches!(held.state, HeldState::HeldBack { .. })
            {
                let stored = self.session.read_offset(partition, created).await?;
                held.node.version = stored.version;
                held.state = HeldState::Later {
                    at: now,
                    from: From::Stored(stored.found),
                };
            }
            self.fired.remove(&watched);
        }
        Ok(())
    }
}
