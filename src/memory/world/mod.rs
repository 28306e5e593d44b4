//! The servers and the clients' ends of their connections: sessions, requests on their way, watches, and what falls due when.
//!
//! Everything happens in the order of one agenda, at the moment it is due, no matter how late somebody looks.

mod followers;
mod links;
mod requests;
mod watches;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::faults::{Fate, Kind, Latency, Lost, Request};
use super::tree::{Act, Stamp, Tree, Write};
use crate::registry::{Dialect, Fault, Fired, MultiFault, Op, Stat};

use followers::{Follower, Forwarded, Txn};

/// The server's clock at the ensemble's beginning: some day in 2015, ms since the epoch.
const BASE_MS: i64 = 1_441_234_567_890;

/// The first session's number. Real ones are as large.
const FIRST_SESSION: i64 = 0x0100_0000_0000_0001;

/// What a request comes to, whatever its kind.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub data: Vec<u8>,
    pub stat: Option<Stat>,
    pub names: Vec<String>,
    pub steps: Vec<Option<Stat>>,
    pub watch: Option<(u64, oneshot::Receiver<Fired>)>,
}

pub(super) type Outcome = Result<Answer, MultiFault>;

fn fault(fault: Fault) -> MultiFault {
    MultiFault { index: None, fault }
}

fn unknown(why: &str) -> Outcome {
    Err(fault(Fault::Unknown(why.into())))
}

/// What is written on the agenda. A number tells whether the reason for it still holds.
enum Due {
    /// A request reaches the server; `epoch` counts the session's connections.
    Arrive {
        session: i64,
        number: u64,
        epoch: u64,
    },
    /// An answer or event reaches the client.
    Deliver {
        session: i64,
        parcel: Parcel,
        epoch: u64,
    },
    /// The client finds that it has not heard of the server for 2/5 of the timeout.
    Notice { session: i64, silence: u64 },
    /// The ensemble has not heard of the session for the whole timeout.
    Expire { session: i64, silence: u64 },
    /// The client has not heard of the ensemble for 7/5 of the timeout.
    GiveUp { session: i64, silence: u64 },
    /// The leader's transactions up to this one reach a follower.
    Apply { server: usize, upto: usize },
    /// A follower's write reaches the leader.
    Commit(Box<Forwarded>),
    /// The follower has not heard of the leader for so long that it sends its clients away.
    Forsake { server: usize, since: Instant },
}

#[derive(Clone, Copy)]
enum Parcel {
    Reply(u64),
    Event(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Up,
    /// Nothing gets through, which the client has not noticed yet: what is sent waits in the network.
    Cut,
    /// The client knows; what it is asked waits within it.
    Down,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Data,
    Exist,
    Child,
}

struct Armed {
    path: String,
    sort: Sort,
    fire: oneshot::Sender<Fired>,
}

struct Pending {
    request: Request,
    fate: Fate,
    is_sent: bool,
    outcome: Option<(Outcome, i64)>,
    answer: oneshot::Sender<Outcome>,
}

pub(super) struct Session {
    pub timeout: Duration,
    pub dialect: Dialect,
    /// The ensemble has it.
    pub is_open: bool,
    /// The client has ended it, or knows that it has ended.
    pub is_over: bool,
    /// The client has asked for its end.
    pub is_closing: bool,
    /// Its server has hung up while nothing got through; the client finds out once something does.
    pub is_forsaken: bool,
    /// Its process is dead; nothing will heal it.
    is_dead: bool,
    /// A test cut it off; the end of an outage does not heal it.
    is_cut: bool,
    /// And only this gets lost.
    lost: Option<Lost>,
    link: Link,
    epoch: u64,
    silence: u64,
    /// A new leader does not expire it before.
    spared: Instant,
    /// The server it is connected to; 0 leads.
    pub server: usize,
    /// Since when the leader has not heard of it.
    unheard: Option<Instant>,
    /// Writes that its follower has passed on and not answered, and what waits behind them.
    writing: BTreeSet<u64>,
    behind: VecDeque<u64>,
    /// When the last request arrives, and when the last parcel does; nothing overtakes.
    there: Instant,
    back: Instant,
    /// The newest transaction the client knows of.
    seen: i64,
    pending: BTreeMap<u64, Pending>,
    stuck_there: Vec<u64>,
    stuck_back: Vec<Parcel>,
    watches: BTreeMap<u64, Armed>,
    over: watch::Sender<bool>,
    pub counts: BTreeMap<Kind, u64>,
}

impl Session {
    fn new(timeout: Duration, dialect: Dialect, now: Instant, seen: i64) -> Self {
        Self {
            timeout,
            dialect,
            is_open: true,
            is_over: false,
            is_closing: false,
            is_forsaken: false,
            is_dead: false,
            is_cut: false,
            lost: None,
            link: Link::Up,
            epoch: 0,
            silence: 0,
            spared: now,
            server: 0,
            unheard: None,
            writing: BTreeSet::new(),
            behind: VecDeque::new(),
            there: now,
            back: now,
            seen,
            pending: BTreeMap::new(),
            stuck_there: Vec::new(),
            stuck_back: Vec::new(),
            watches: BTreeMap::new(),
            over: watch::Sender::new(false),
            counts: BTreeMap::new(),
        }
    }

    pub fn is_connected(&self) -> bool {
        self.link == Link::Up && !self.is_over
    }

    pub fn armed(&self) -> usize {
        self.watches.len()
    }
}

type Watchers = BTreeMap<String, BTreeSet<(i64, u64)>>;

/// The whole state of an ensemble and of its clients.
pub(super) struct World {
    zero: Instant,
    now: Instant,
    next: u64,
    agenda: BTreeMap<(Instant, u64), Due>,
    pub tree: Tree,
    pub zxid: i64,
    pub log: Vec<Write>,
    pub sessions: BTreeMap<i64, Session>,
    history: Vec<Txn>,
    followers: Vec<Follower>,
    relay: Latency,
    on_data: Watchers,
    on_children: Watchers,
    is_halted: bool,
    /// So long a follower without its leader goes on answering.
    pub sync_limit: Duration,
    pub tick: Duration,
    pub lag: Duration,
    pub version: (u32, u32),
    pub latency: Latency,
    pub opening: Duration,
    pub refusal: Option<String>,
}

impl World {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            zero: now,
            now,
            next: 0,
            agenda: BTreeMap::new(),
            tree: Tree::new(),
            zxid: 0,
            log: Vec::new(),
            sessions: BTreeMap::new(),
            history: Vec::new(),
            followers: Vec::new(),
            relay: Latency::none(),
            on_data: BTreeMap::new(),
            on_children: BTreeMap::new(),
            is_halted: false,
            sync_limit: Duration::from_secs(5),
            tick: Duration::from_millis(500),
            lag: Duration::ZERO,
            version: (3, 9),
            latency: Latency::none(),
            opening: Duration::ZERO,
            refusal: None,
        }
    }

    // ---- the agenda ----

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn plan(&mut self, at: Instant, due: Due) {
        let number = self.number();
        self.agenda.insert((at, number), due);
    }

    pub(in crate::memory) fn next_due(&self) -> Option<Instant> {
        self.agenda.keys().next().map(|(at, _)| *at)
    }

    pub(super) fn advance(&mut self, now: Instant) {
        while let Some(entry) = self.agenda.first_entry() {
            let (at, _) = *entry.key();
            if at > now {
                break;
            }
            let due = entry.remove();
            self.now = self.now.max(at);
            self.carry_out(due);
        }
        self.now = self.now.max(now);
    }

    fn carry_out(&mut self, due: Due) {
        match due {
            Due::Arrive {
                session,
                number,
                epoch,
            } => self.arrive(session, number, epoch),
            Due::Deliver {
                session,
                parcel,
                epoch,
            } => self.deliver(session, parcel, epoch),
            Due::Notice { session, silence } if self.is_silent(session, silence) => {
                self.notice(session);
            }
            Due::Expire { session, silence } if self.is_silent(session, silence) => {
                self.expire_on_time(session);
            }
            Due::GiveUp { session, silence } if self.is_silent(session, silence) => {
                self.end_client(session);
            }
            Due::Notice { .. } | Due::Expire { .. } | Due::GiveUp { .. } => {}
            Due::Apply { server, upto } => self.apply(server, upto),
            Due::Commit(forwarded) => self.commit(*forwarded),
            Due::Forsake { server, since } => self.forsake(server, since),
        }
    }

    pub(super) fn is_silent(&self, session: i64, silence: u64) -> bool {
        self.sessions
            .get(&session)
            .is_some_and(|s| s.silence == silence)
    }

    // ---- transactions ----

    pub(super) fn stamp(&mut self, session: i64) -> Stamp {
        self.zxid += 1;
        let since = self.now.saturating_duration_since(self.zero);
        Stamp {
            zxid: self.zxid,
            time_ms: BASE_MS + i64::try_from(since.as_millis()).unwrap_or(i64::MAX - BASE_MS),
            session,
        }
    }

    /// A write takes a number whether it succeeds or not.
    pub(in crate::memory) fn write(
        &mut self,
        session: i64,
        ops: &[Op],
    ) -> Result<Vec<Stat>, MultiFault> {
        let from = self.log.len();
        let stamp = self.stamp(session);
        let done = self.tree.apply(stamp, ops);
        let mut stats = Vec::new();
        for (write, stat) in done.as_ref().into_iter().flatten() {
            self.log.push(write.clone());
            stats.push(*stat);
        }
        self.publish(from);
        for (write, _) in done? {
            self.fire(&write, 0);
        }
        Ok(stats)
    }

    pub(in crate::memory) fn open(
        &mut self,
        timeout: Duration,
        dialect: Dialect,
    ) -> Result<(i64, Duration), String> {
        if let Some(reason) = &self.refusal {
            return Err(reason.clone());
        }
        if self.is_halted {
            return Err("the ensemble has no quorum".into());
        }
        let timeout = timeout.clamp(self.tick * 2, self.tick * 20);
        let id = self.sessions.keys().next_back();
        let id = id.map_or(FIRST_SESSION, |last| last + 1);
        let from = self.log.len();
        let stamp = self.stamp(id);
        self.log.push(stamp.note(Act::Open));
        self.publish(from);
        let mut session = Session::new(timeout, dialect, self.now, stamp.zxid);
        session.server = self.pick_server(0);
        // A server answers once it knows of the session.
        self.catch_up(session.server);
        self.sessions.insert(id, session);
        Ok((id, timeout))
    }

    /// The ensemble's end of a session: its nodes go in the same transaction.
    pub(super) fn end_session(&mut self, session: i64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if !std::mem::replace(&mut s.is_open, false) {
            return;
        }
        let from = self.log.len();
        let stamp = self.stamp(session);
        self.log.push(stamp.note(Act::Close));
        for path in self.tree.ephemerals(session) {
            let (write, _) = self.tree.delete(stamp, &path);
            self.fire(&write, 0);
            self.log.push(write);
        }
        self.publish(from);
    }

    /// The client's end of a session: everything it waits for is told.
    pub(super) fn end_client(&mut self, session: i64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if std::mem::replace(&mut s.is_over, true) {
            return;
        }
        s.epoch += 1;
        s.writing.clear();
        s.behind.clear();
        for (_, pending) in std::mem::take(&mut s.pending) {
            let _ = pending.answer.send(Err(fault(Fault::SessionLost)));
        }
        for (_, armed) in std::mem::take(&mut s.watches) {
            let _ = armed.fire.send(Fired::SessionLost);
        }
        s.over.send_replace(true);
        // The servers may have it still, and nothing may have told them to count: from now on they hear of nobody.
        if s.is_open && s.link == Link::Up && s.unheard.is_none() {
            s.silence += 1;
            s.unheard = Some(self.now);
            let (silence, timeout) = (s.silence, s.timeout);
            let expiry = self.expiry(self.now, timeout);
            self.plan(expiry, Due::Expire { session, silence });
        }
        self.disarm_all(session);
    }
}
