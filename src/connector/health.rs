//! How a member stands, fit for a readiness check.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordinator::Snapshot;
use crate::event::Holder;
use crate::group::{StreamId, TopicPartition};
use crate::stream::Common;

use crate::coordinator::Phase;
/// A partition that is ours, and how far its reading is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// The stream that has it.
    pub stream: StreamId,
    /// The fencing token.
    pub token: i64,
    /// The offset that would be committed now; none until reading has begun.
    pub position: Option<i64>,
    /// Messages handed out and not committable.
    pub undone: usize,
    /// The oldest of them: its offset, and how long ago it was handed out.
    pub oldest: Option<(i64, Duration)>,
}

/// How a member stands, fit for a readiness check: see [`is_ready`](Self::is_ready).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Where it is in its life.
    pub phase: Phase,
    /// Registered, everything that is ours by the rule claimed, nothing being given up, and all of it read or held back
    /// for a reason that is named.
    pub is_settled: bool,
    /// The ZooKeeper session, as `ephemeralOwner` shows it.
    pub session: Option<i64>,
    /// What is left of the lease; none without a session, zero when it lapsed. A member that holds nothing needs none.
    pub lease_left: Option<Duration>,
    /// What is ours.
    pub held: BTreeMap<TopicPartition, Holding>,
    /// What should be ours and is held by somebody else, by whom, and how long we have waited.
    pub waiting: BTreeMap<TopicPartition, (Holder, Duration)>,
    /// Those of them that have been waited for longer than a release may take.
    pub stuck: BTreeSet<TopicPartition>,
    /// What is ours and not read, and why.
    pub held_back: BTreeMap<TopicPartition, String>,
    /// What is ours and read, but not committed, since somebody set its offset forward.
    pub suspended: BTreeSet<TopicPartition>,
    /// Members of the group that were seen last.
    pub members: usize,
    /// Counts the rebalances of the present session.
    pub generation: u64,
    /// Whether brokers are known and can be reached, as far as we know.
    pub has_brokers: bool,
    /// Acknowledgements that came for an ownership that had ended.
    pub late_acks: u64,
    /// How often a partition gave nothing although its log goes on, and was begun anew: see [`Event::Silent`](crate::event::Event::Silent).
    pub silences: u64,
    /// What ended the member, if something did.
    pub failure: Option<String>,
}

impl Health {
    pub(super) fn of(snapshot: &Snapshot, common: &Common) -> Self {
        let now = common.clock.now();
        let held = snapshot
            .held
            .iter()
            .map(|(partition, (stream, ownership))| {
                let progress = ownership.progress();
                let holding = Holding {
                    stream: stream.clone(),
                    token: ownership.token,
                    position: progress.position,
                    undone: progress.undone,
                    oldest: progress.oldest.map(|(offset, at)| (offset, now.since(at))),
                };
                (partition.clone(), holding)
            });
        let waiting = snapshot.waiting.iter();
        Self {
            phase: snapshot.phase,
            is_settled: is_settled(snapshot),
            session: snapshot.session,
            lease_left: snapshot.lease.as_ref().map(|lease| lease.left(now)),
            held: held.collect(),
            waiting: waiting
                .map(|(p, (holder, since))| (p.clone(), (holder.clone(), since.elapsed())))
                .collect(),
            stuck: snapshot.stuck.clone(),
            held_back: snapshot.held_back.clone(),
            suspended: snapshot.suspended.clone(),
            members: snapshot.members,
            generation: snapshot.generation,
            has_brokers: snapshot.has_brokers,
            late_acks: common.late_acks(),
            silences: common.silences(),
            failure: snapshot.failure.as_ref().map(ToString::to_string),
        }
    }

    /// Whether the member does what it should: settled, nothing stuck or held back, and what it holds is under a lease.
    /// A standby that holds nothing is ready too.
    pub fn is_ready(&self) -> bool {
        let has_lease = self.held.is_empty() || self.lease_left.is_some_and(|left| !left.is_zero());
        self.is_settled && self.stuck.is_empty() && self.held_back.is_empty() && has_lease
    }
}

pub(super) fn is_settled(snapshot: &Snapshot) -> bool {
    snapshot.phase == Phase::Joined
        && snapshot.is_planned
        && snapshot.waiting.is_empty()
        && snapshot.releasing == 0
        && snapshot.starting == 0
}
