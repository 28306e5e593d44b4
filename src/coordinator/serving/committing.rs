//! Commits of what is held: on the timer, on demand, and what came of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use crate::coordinator::offset::OffsetNode;
use crate::coordinator::serving::{Done, Held, Serving};
use crate::error::{Error, ErrorKind};
use crate::event::{Event, LostCause};
use crate::group::TopicPartition;
use crate::session::{Commit, Committed, Trouble};

impl Serving<'_> {
    /// Begins to commit what is done and not committed. `false` if there is nothing to commit or a commit is under way.
    pub(super) fn commit(&mut self) -> bool {
        let commits: Vec<Commit> = self.held.values().filter_map(Held::pending).collect();
        let is_allowed = self
            .session
            .lease
            .allows_commit(self.core.parts.common.clock.now());
        if !self.committing.is_empty() || commits.is_empty() || !is_allowed {
            return false;
        }
        self.committing = commits.iter().map(|c| c.partition.clone()).collect();
        self.commit_waiters_served = self.commit_waiters.len();
        let session = self.session.clone();
        self.works.push(Box::pin(async move {
            let results = session.commit(commits.clone()).await;
            Done::Committed(commits, results)
        }));
        true
    }

    pub(super) fn commit_asked(&mut self, reply: oneshot::Sender<Result<(), Error>>) {
        self.is_commit_asked.store(true, Ordering::SeqCst);
        self.commit_waiters.push(reply);
        self.serve_waiters();
    }

    /// Those who asked for a commit get one that began after they asked.
    pub(super) fn serve_waiters(&mut self) {
        if self.commit_waiters.is_empty() {
            return self.forget_asking();
        }
        if !self.committing.is_empty() || self.commit() {
            return;
        }
        let is_allowed = self
            .session
            .lease
            .allows_commit(self.core.parts.common.clock.now());
        let has_pending = self.held.values().any(|held| held.pending().is_some());
        for waiter in std::mem::take(&mut self.commit_waiters) {
            let answer = if has_pending && !is_allowed {
                Err(Error::new(
                    ErrorKind::Timeout,
                    "the lease has nearly run out, so nothing was committed; try again once health says it is renewed",
                ))
            } else {
                Ok(())
            };
            let _ = waiter.send(answer);
        }
        self.forget_asking();
    }

    /// What is being given up when a commit is asked for is committed with its release.
    pub(super) fn forget_asking(&self) {
        if self.parting.is_empty() {
            self.is_commit_asked.store(false, Ordering::SeqCst);
        }
    }

    pub(super) fn on_committed(
        &mut self,
        commits: Vec<Commit>,
        results: Result<BTreeMap<TopicPartition, Committed>, Trouble>,
        waiters: usize,
    ) -> Result<(), Trouble> {
        self.committing.clear();
        let mut failures = Vec::new();
        let mut lost = BTreeSet::new();
        let outcome = match &results {
            Ok(results) => results.clone(),
            Err(trouble) => commits
                .iter()
                .map(|c| {
                    (
                        c.partition.clone(),
                        Committed::Unsettled(trouble.to_string()),
                    )
                })
                .collect(),
        };
        for commit in commits {
            let partition = commit.partition;
            let Some(result) = outcome.get(&partition) else {
                continue;
            };
            match result {
                Committed::NotOurs => {
                    // It may have been claimed anew meanwhile.
                    if self.token_of(&partition) == Some(commit.token) {
                        self.limbo.insert(partition.clone());
                        lost.insert(partition.clone());
                    }
                    failures.push(format!("{partition} is not ours any more"));
                }
                Committed::Unsettled(reason) => {
                    self.tell(Event::CommitFailed {
                        partition: partition.clone(),
                        reason: reason.clone(),
                    });
                    failures.push(format!("{partition}: {reason}"));
                }
                Committed::Written { .. } | Committed::Ahead { .. } => {}
            }
            if self.token_of(&partition) == Some(commit.token) {
                self.note_commit(&partition, commit.offset, result);
            }
        }
        self.lose(&lost, LostCause::OwnerNodeGone);
        let waiters: Vec<_> = self
            .commit_waiters
            .drain(..waiters.min(self.commit_waiters.len()))
            .collect();
        for waiter in waiters {
            let answer = match failures.first() {
                None => Ok(()),
                Some(first) => Err(Error::new(
                    ErrorKind::NotOwned,
                    format!("not everything was committed: {first}"),
                )),
            };
            let _ = waiter.send(answer);
        }
        match results {
            Err(Trouble::Transient(_)) | Ok(_) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    /// The token of a partition that is held or waits to be given up.
    pub(super) fn token_of(&self, partition: &TopicPartition) -> Option<i64> {
        let held = self.held.get(partition).map(|held| &held.ownership);
        let deferred = self.deferred.get(partition);
        let ownership = held.or(deferred.map(|farewell| &farewell.ownership));
        ownership.map(|ownership| ownership.token)
    }

    /// What is known of the offset node of a partition that is held or waits to be given up.
    fn node_of(&mut self, partition: &TopicPartition) -> Option<&mut OffsetNode> {
        let held = self.held.get_mut(partition).map(|held| &mut held.node);
        held.or_else(|| {
            let deferred = self.deferred.get_mut(partition);
            deferred.map(|farewell| &mut farewell.node)
        })
    }

    /// Writes down what a commit left at the offset node.
    fn note_commit(&mut self, partition: &TopicPartition, ours: i64, result: &Committed) {
        let Some(node) = self.node_of(partition) else {
            return;
        };
        node.note(ours, result);
        // Nothing follows from what was met at a position that is given up.
        if !node.is_void {
            self.core
                .parts
                .outlets
                .tell_of_others(partition, ours, result);
        }
    }
}
