//! What is known of a partition's offset node while the partition is ours, and what follows for the next write to it.

use std::collections::BTreeSet;

use crate::event::ResetCause;
use crate::session::{Commit, Committed};
use crate::stream::Ownership;
use crate::wire::NO_OFFSET;

/// What is known of an offset node.
#[derive(Debug, Clone, Default)]
pub(super) struct OffsetNode {
    /// None if there is no node.
    pub version: Option<i32>,
    /// What stands there and is the position we go on from: found there, or written by us. None until there is one.
    pub committed: Option<i64>,
    /// Writes of ours of which nobody knows whether they were carried out.
    pub tried: BTreeSet<i64>,
    /// Somebody set the offset forward: nothing is committed until we pass it.
    pub ahead: Option<i64>,
    /// The position we had is given up, and no new start is committed yet.
    pub is_void: bool,
    /// What stands there may be taken for a position in the present topic and is one of its forerunner.
    pub is_misleading: bool,
    /// The transaction that made the present topic.
    pub since: i64,
}

impl OffsetNode {
    /// What is to be committed, if anything. An offset that somebody set forward is waited for.
    pub fn pending(&self, ownership: &Ownership) -> Option<Commit> {
        let position = ownership.progress().position?;
        if self.is_void
            || self.ahead.is_some_and(|theirs| position < theirs)
            || self.committed == Some(position)
        {
            return None;
        }
        Some(Commit {
            is_start: false,
            ..self.start(ownership, position)
        })
    }

    /// The write of a start, or of whatever else gives way to an offset that somebody wrote since.
    pub fn start(&self, ownership: &Ownership, offset: i64) -> Commit {
        Commit {
            partition: ownership.partition.clone(),
            token: ownership.token,
            offset,
            version: self.version,
            tried: self.tried.clone(),
            is_start: true,
            since: self.since,
        }
    }

    /// What stands there is no offset any more, so that nobody takes it for one.
    pub fn clearing(&self, ownership: &Ownership) -> Option<Commit> {
        self.is_misleading.then(|| self.start(ownership, NO_OFFSET))
    }

    /// What of ours is to stand there when the partition is given up; none if that is nobody's concern any more.
    pub fn ours(&self, ownership: &Ownership) -> Option<i64> {
        // What was tried since may stand there.
        let ours = self.committed.max(self.tried.last().copied());
        ours.filter(|_| !self.is_void && ownership.progress().position.is_some())
    }

    /// The position is given up: nothing that was committed, tried or found of it is written any more. What of it may still
    /// appear there is known to be ours.
    pub fn void(&mut self, cause: ResetCause) {
        self.tried.extend(self.committed.take());
        if self.ahead.take().is_some() {
            // What stands there is somebody else's, so that it is looked at before it is written over.
            self.version = None;
        }
        self.is_void = true;
        self.is_misleading |= cause == ResetCause::TopicRecreated;
    }

    /// From here reading goes on, and that stands there.
    pub fn stands(&mut self, offset: i64) {
        self.committed = Some(offset);
        self.tried.clear();
        self.ahead = None;
        self.is_void = false;
        self.is_misleading = false;
    }

    /// Takes up what a beginning left there. One that only resumed found out nothing, and commits may have gone on meanwhile.
    pub fn learn(&mut self, begun: Self) {
        if self.committed.is_none() {
            let since = self.since.max(begun.since);
            *self = Self { since, ..begun };
        }
    }

    /// Takes up what a beginning left there of a position that was given up meanwhile.
    pub fn learn_of_former(&mut self, begun: Self) {
        self.tried.extend(begun.tried);
        self.tried.extend(begun.committed);
    }

    /// Takes up what came of a commit of this offset. Of what was committed of a position that is given up, only the version
    /// counts.
    pub fn note(&mut self, ours: i64, result: &Committed) {
        let (version, ahead) = match result {
            Committed::Written { version, .. } => (*version, None),
            Committed::Ahead { theirs, version } => (*version, Some(*theirs)),
            Committed::Unsettled(_) => {
                self.tried.insert(ours);
                return;
            }
            Committed::NotOurs => return,
        };
        if self.is_void && ahead.is_some() && ours != NO_OFFSET {
            // As above; the version that is known is not that of theirs.
            return;
        }
        self.version = Some(version);
        if ours == NO_OFFSET {
            self.is_misleading = false;
        }
        if self.is_void {
            return;
        }
        if ahead.is_none() {
            self.committed = Some(ours);
        }
        self.tried.clear();
        self.ahead = ahead;
    }
}
