//! What members, and those who disturb and feed them, have seen and done.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::group::TopicPartition;

/// Something that somebody took down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Who: a consumer id, or a name for one who is no member, such as `nemesis`, `producer`, `clock`.
    pub member: Arc<str>,
    /// Which start of that process, from 1.
    pub incarnation: u32,
    /// Its place among all events of this start, from 1 without gaps.
    pub seq: u64,
    /// When, in nanoseconds of a clock that all writers share: the host's monotonic one, or the simulation's.
    pub mono: u64,
    /// The registry's last transaction at that moment, if the writer can know it.
    pub zxid: Option<i64>,
    /// What.
    pub fact: Fact,
}

/// What an event tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// A member has a session. Its registration tells that as well, if it came to that.
    Joined {
        /// The session.
        session: i64,
    },
    /// The lease was looked at, just before a hand-off. The event's time is that of the look.
    Checked {
        /// The partition.
        partition: TopicPartition,
        /// The ownership's token.
        token: i64,
    },
    /// A message was handed over.
    Delivered {
        /// The partition.
        partition: TopicPartition,
        /// The ownership's token.
        token: i64,
        /// The offset.
        offset: i64,
    },
    /// A message is done and about to be acknowledged.
    Done {
        /// The partition.
        partition: TopicPartition,
        /// The ownership's token.
        token: i64,
        /// The offset.
        offset: i64,
    },
    /// Reading began.
    Started {
        /// The partition.
        partition: TopicPartition,
        /// The ownership's token.
        token: i64,
        /// Where.
        offset: i64,
        /// Why there.
        how: How,
    },
    /// The position was set and does not follow from what was committed.
    Reset {
        /// The partition.
        partition: TopicPartition,
        /// What it was before, if anything.
        from: Option<i64>,
        /// What it is since.
        to: i64,
    },
    /// A member says that it gave a partition up.
    Released {
        /// The partition.
        partition: TopicPartition,
        /// Messages that were in somebody's hands and not done.
        undone: u64,
        /// It did not wait for them, or for the listener, to the end.
        is_forced: bool,
    },
    /// A call of the listener begins or ends.
    Callback {
        /// `after_claim`, `before_release` or `on_lost`.
        name: String,
        /// Which end of it.
        phase: Phase,
        /// What it is about.
        partitions: Vec<TopicPartition>,
    },
    /// A call of the listener did not end in its time, and the member went on without it: later calls come late as well, nobody
    /// knows how late.
    Overrun {
        /// Which call.
        name: String,
    },
    /// A member makes a call of its listener while an earlier one has not ended: it begins in its turn, when what it is about may be
    /// owned anew. The calls so told begin in the order in which they were made.
    Queued,
    /// A member's process stood still.
    Stopped {
        /// Which.
        member: Arc<str>,
        /// From when, by the events' clock.
        from: u64,
        /// Until when.
        to: u64,
    },
    /// A member was cut off from the registry.
    Cut {
        /// Which.
        member: Arc<str>,
        /// From when, by the events' clock.
        from: u64,
        /// Until when.
        to: u64,
    },
    /// A member's process was killed.
    Killed {
        /// Which.
        member: Arc<str>,
    },
    /// Somebody other than its client or its timeout ended a session.
    Expired {
        /// Which.
        session: i64,
    },
    /// All faults are over.
    Healed,
    /// The group had time enough to share, and to finish everything that was sent.
    Settled,
    /// A message was written to the log.
    Sent {
        /// The partition.
        partition: TopicPartition,
        /// Its offset.
        offset: i64,
    },
    /// The log forgot its beginning, by retention or because the topic was deleted: nobody needs to have read that.
    Trimmed {
        /// The partition.
        partition: TopicPartition,
        /// The first offset that is still there.
        before: i64,
    },
    /// What the servers' clock showed at this moment of the events' clock.
    Clock {
        /// Microseconds since the epoch.
        real_us: i64,
    },
    /// Anything else, by its name; it counts for the numbering only.
    Other(String),
}

/// Why reading began where it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum How {
    /// That was committed.
    Stored,
    /// Nothing was, so the policy said.
    Policy,
    /// Somebody asked for it, or what was committed could not be used.
    Reset,
}

/// The ends of a listener's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It begins.
    Enter,
    /// It returned.
    Leave,
    /// It panicked.
    Panic,
}

/// Takes events down and numbers them.
#[derive(Debug, Clone, Default)]
pub struct Record {
    next: BTreeMap<(Arc<str>, u32), u64>,
    events: Vec<Event>,
}

impl Record {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes an event down.
    pub fn note(
        &mut self,
        member: &Arc<str>,
        incarnation: u32,
        mono: u64,
        zxid: Option<i64>,
        fact: Fact,
    ) {
        let next = self.next.entry((member.clone(), incarnation)).or_default();
        *next += 1;
        self.events.push(Event {
            member: member.clone(),
            incarnation,
            seq: *next,
            mono,
            zxid,
            fact,
        });
    }

    /// All of them in the order in which they were taken down.
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}
