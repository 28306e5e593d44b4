//! Commits of what is held: on the timer, on demand, and what came of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

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
                    if self.token_of(&partition) == Some(commit.token) {
                        self.note_try(&partition, commit.offset);
                    }
                }
                Committed::Written { .. } | Committed::Ahead { .. }
                    if self.token_of(&partition) == Some(commit.token) =>
                {
                    self.note_commit(&partition, commit.offset, result)
                }
                Committed::Written { .. } | Committed::Ahead { .. } => {}
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
        let ownership = held.or(deferred.map(|(farewell, _)| &farewell.ownership));
        ownership.map(|ownership| ownership.token)
    }

    /// Writes down that a commit may have been carried out, for one that is held or waits to be given up.
    fn note_try(&mut self, partition: &TopicPartition, offset: i64) {
        if let Some(held) = self.held.get_mut(partition) {
            if !held.ownership.is_forgotten() {
                held.tried.insert(offset);
            }
        } else if let Some((farewell, _)) = self.deferred.get_mut(partition)
            && !farewell.ownership.is_forgotten()
        {
            farewell.tried.insert(offset);
        }
    }

    /// Writes down what a commit left at the offset node, for one that is held or waits to be given up.
    pub(super) fn note_commit(
        &mut self,
        partition: &TopicPartition,
        ours: i64,
        result: &Committed,
    ) {
        self.core
            .parts
            .outlets
            .tell_of_others(partition, ours, result);
        let (version, written, ahead) = match result {
            Committed::Written { version, .. } => (*version, Some(ours), None),
            Committed::Ahead { theirs, version } => (*version, None, Some(*theirs)),
            Committed::NotOurs | Committed::Unsettled(_) => return,
        };
        // Of what was committed of a position that is given up, the version is all that counts.
        if let Some(held) = self.held.get_mut(partition) {
            held.version = Some(version);
            if held.ownership.is_forgotten() {
                return held.renew_reset();
            }
            held.committed = written.or(held.committed);
            held.tried.clear();
            held.ahead = ahead;
        } else if let Some((farewell, _)) = self.deferred.get_mut(partition) {
            farewell.version = Some(version);
            if farewell.ownership.is_forgotten() {
                return;
            }
            farewell.committed = written.or(farewell.committed);
            farewell.tried.clear();
            farewell.ahead = ahead;
        }
    }
}
