//! Judges a run after the fact: the registry's history and what the members saw, against the invariants (feature `testing`).
//!
//! One judge for two courts. A simulation hands over its events and [`history`](crate::memory::history); a test of real
//! processes hands over their event logs, read by [`read_events`], and the transaction log of a server that is in the final
//! quorum. Unknown outcomes are never guessed: the history tells. Values in, values out; nothing here asks a clock.
//!
//! The whole of it:
//!
//! ```text
//! Case::new(group)                       the group in question
//!     .below(chroot)                     if the paths of the history have one in front
//!     .with_ours(names)                  consumer ids that are judged; all others are legacy members or hands from outside
//!     .with_history(Vec<Txn>)            Txn { zxid, time_ms, session, changes: Vec<Change> }
//!     .with_events(Vec<Event>)           Event { member, incarnation, seq, mono, zxid, fact: Fact }
//!     .with_policy(Reset)                where reading begins when nothing was committed, if that is to be judged
//!     .with_limits(Limits)               Limits::exact(timeout) in a simulation, Limits::timed(timeout, tick) with real servers
//!     .with_expected(|&Roll| -> Owners)  instead of the range rule
//!     .judge() -> Verdict                { counts: Counts, worst: Worst, violations: Vec<Violation> }
//!
//! verdict.is_good() -> bool              nothing is violated
//! verdict.require(&Counts) -> Result     nothing is violated, and at least so much of everything was there to be judged
//! verdict.to_json() -> String            and Display for people
//!
//! Record::note(member, incarnation, mono, zxid, Fact)     numbers events as they are taken down
//! Event::to_line() -> String, read_events(impl BufRead) -> Result<Vec<Event>>       as lines of JSON
//! ```
//!
//! Who takes down events keeps to this:
//!
//! * [`Fact::Done`] is taken down before the message is acknowledged, [`Fact::Delivered`] once it was handed over. A member
//!   that takes down neither is judged by the history alone; [`Fact::Other`] says that it would have, had there been messages.
//! * What a member [tells](crate::event::Event) goes through a [`Hearing`] of its own:
//!   [`Event::OffsetReset`](crate::event::Event::OffsetReset) becomes [`Fact::Reset`], and
//!   [`Event::Released`](crate::event::Event::Released) becomes [`Fact::Released`]: what they excuse is a violation without them.
//! * A message that was passed ([`Event::Passed`](crate::event::Event::Passed)) is written down as delivered, if it was not, and done.
//! * Where the registry is in the same process, [`Event::zxid`] is its last transaction at that moment, and then order is exact.
//!   Otherwise [`Fact::Clock`] ties the events' clock to the servers', which counts whole milliseconds.
//! * [`Fact::Settled`] says that the faults are over and the group had its time: the owners and the drain are judged there (I14, I16).

mod calls;
mod ends;
mod event;
mod form;
mod hearing;
mod history;
mod ledger;
mod lines;
mod nodes;
mod offsets;
mod replay;
mod starts;
mod verdict;
mod view;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::config::Reset;
use crate::group::{ConsumerId, GroupName, Subscription, Topic, TopicPartition};

pub use event::{Event, Fact, How, Phase, Record};
pub use hearing::Hearing;
pub use history::{Change, Txn};
pub use lines::read_events;
pub use verdict::{Counts, Rule, Verdict, Violation, Worst};

/// Who owns what, by the text of the owner nodes.
pub type Owners = BTreeMap<TopicPartition, String>;

/// Who is registered for what, and which partitions there are: all that an assignment follows from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roll {
    /// The members whose registration can be read.
    pub members: BTreeMap<ConsumerId, Subscription>,
    /// The partitions of every topic whose node can be read.
    pub partitions: BTreeMap<Topic, Vec<i32>>,
}

/// What may be asked of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// How far two clocks may be apart (I1, I4, I6).
    pub tolerance: Duration,
    /// How long a member may go on delivering after another's hand took the owner node away, or ended its session (A5): until
    /// it hears of it. One that is [cut off](Fact::Cut) or [stopped](Fact::Stopped) meanwhile hears of it when that is over.
    pub unaware: Duration,
    /// The least and the most time that the nodes of a killed member stay (I9); none, and it is not judged.
    pub lingering: Option<(Duration, Duration)>,
    /// How long after [`Fact::Healed`] the owners must be those of the rule (I14); none, and only [`Fact::Settled`] counts.
    pub convergence: Option<Duration>,
    /// Members commit what is done when they give a partition up (`auto.commit.enable`); otherwise I7 is not judged.
    pub is_committing: bool,
}

impl Limits {
    /// For a simulation: every event knows its place in the history.
    pub fn exact(session_timeout: Duration) -> Self {
        Self {
            tolerance: Duration::ZERO,
            unaware: session_timeout / 2,
            lingering: None,
            convergence: None,
            is_committing: true,
        }
    }

    /// For real servers and processes on one host.
    pub fn timed(session_timeout: Duration, tick: Duration) -> Self {
        let most = session_timeout + tick * 3 / 2 + Duration::from_millis(250);
        Self {
            tolerance: Duration::from_millis(50),
            lingering: Some((session_timeout - session_timeout / 8, most)),
            ..Self::exact(session_timeout)
        }
    }
}

type Rule14 = Box<dyn Fn(&Roll) -> Owners>;

/// Everything that is known of a run.
pub struct Case {
    group: GroupName,
    chroot: String,
    ours: BTreeSet<Arc<str>>,
    history: Vec<Txn>,
    events: Vec<Event>,
    limits: Limits,
    policy: Option<Reset>,
    expected: Option<Rule14>,
}

impl Case {
    /// A case without members, history and events, with the limits of a simulation whose sessions last 6 s.
    pub fn new(group: GroupName) -> Self {
        Self {
            group,
            chroot: String::new(),
            ours: BTreeSet::new(),
            history: Vec::new(),
            events: Vec::new(),
            limits: Limits::exact(Duration::from_secs(6)),
            policy: None,
            expected: None,
        }
    }

    /// The group's paths begin with this in the history.
    #[must_use]
    pub fn below(mut self, chroot: &str) -> Self {
        self.chroot = chroot.trim_end_matches('/').to_owned();
        self
    }

    /// More members that are judged, by their consumer ids.
    #[must_use]
    pub fn with_ours<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.ours.extend(names.into_iter().map(Arc::from));
        self
    }

    /// What the registry did, in its order.
    #[must_use]
    pub fn with_history(mut self, history: Vec<Txn>) -> Self {
        self.history = history;
        self
    }

    /// What members and others saw; those of one writer in their order, writers in any.
    #[must_use]
    pub fn with_events(mut self, events: Vec<Event>) -> Self {
        self.events = events;
        self
    }

    /// What may be asked of the run.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Where members begin to read when nothing was committed; without this any beginning will do (I6).
    #[must_use]
    pub fn with_policy(mut self, policy: Reset) -> Self {
        self.policy = Some(policy);
        self
    }

    /// The rule by which the group shares, instead of range over named topics.
    #[must_use]
    pub fn with_expected(mut self, expected: impl Fn(&Roll) -> Owners + 'static) -> Self {
        self.expected = Some(Box::new(expected));
        self
    }

    /// Judges it.
    pub fn judge(&self) -> Verdict {
        let view = view::View::of(self);
        let mut verdict = Verdict::default();
        form::judge(&view, &mut verdict);
        nodes::judge(&view, &mut verdict);
        windows::judge(&view, &mut verdict);
        starts::judge(&view, &mut verdict);
        offsets::judge(&view, &mut verdict);
        calls::judge(&view, &mut verdict);
        ends::judge(&view, &mut verdict);
        verdict
    }
}
