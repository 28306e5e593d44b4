//! The servers and the clients' ends of their connections: sessions, requests on their way, watches, and what falls due when.
//!
//! Everything happens in the order of one agenda, at the moment it is due, no matter how late somebody looks: whoever
//! touches the ensemble first carries out what has fallen due, and whoever waits for something sleeps until the next
//! entry. So no task of its own is needed, and a node of a dead session goes on time though nobody asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::faults::{Fate, Kind, Latency, Request};
use super::tree::{Act, Stamp, Tree, Write, parent};
use crate::registry::{Dialect, Fault, Fired, MultiFault, Op, Stat};

/// The server's clock at the ensemble's beginning: some day in 2015, ms since the epoch.
const BASE_MS: i64 = 1_441_234_567_890;

/// The first session's number. Real ones are as large.
const FIRST_SESSION: i64 = 0x0100_0000_0000_0001;

pub(super) type FateHook = Box<dyn FnMut(&Request) -> Fate + Send>;

/// What all handles of one ensemble share.
pub(super) struct Ensemble {
    world: Mutex<World>,
    /// Told when something falls due sooner than sleepers know.
    rearm: Notify,
    drivers: AtomicUsize,
    fate: Mutex<Option<FateHook>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ensemble {
    pub fn new() -> Self {
        Self {
            world: Mutex::new(World::new(Instant::now())),
            rearm: Notify::new(),
            drivers: AtomicUsize::new(0),
            fate: Mutex::new(None),
        }
    }

    /// Brings the world up to now and does something to it.
    pub fn with<T>(&self, deed: impl FnOnce(&mut World) -> T) -> T {
        let mut world = lock(&self.world);
        let before = world.next_due();
        world.advance(Instant::now());
        let answer = deed(&mut world);
        let is_sooner = match (before, world.next_due()) {
            (Some(before), Some(after)) => after < before,
            (None, after) => after.is_some(),
            (Some(_), None) => false,
        };
        drop(world);
        if is_sooner {
            self.rearm.notify_waiters();
        }
        answer
    }

    pub fn set_fate(&self, hook: Option<FateHook>) {
        *lock(&self.fate) = hook;
    }

    pub fn fate(&self, request: &Request) -> Fate {
        match lock(&self.fate).as_mut() {
            Some(hook) => hook(request),
            None => Fate::Deliver,
        }
    }

    /// Waits for something of the ensemble's while carrying out what falls due.
    pub async fn wait<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            let mut rearm = pin!(self.rearm.notified());
            rearm.as_mut().enable();
            let due = self.with(|world| world.next_due());
            let due = due.filter(|_| self.drivers.load(Ordering::SeqCst) == 0);
            tokio::select! {
                biased;
                output = &mut future => return output,
                () = rearm => {}
                () = alarm(due) => {}
            }
        }
    }

    /// Carries out what falls due for as long as it is polled, so that others need not wake for it.
    pub async fn drive(&self) {
        let _driving = Driving::new(self);
        loop {
            let mut rearm = pin!(self.rearm.notified());
            rearm.as_mut().enable();
            let due = self.with(|world| world.next_due());
            tokio::select! {
                biased;
                () = rearm => {}
                () = alarm(due) => {}
            }
        }
    }
}

async fn alarm(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

struct Driving<'a>(&'a Ensemble);

impl<'a> Driving<'a> {
    fn new(ensemble: &'a Ensemble) -> Self {
        ensemble.drivers.fetch_add(1, Ordering::SeqCst);
        Self(ensemble)
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        self.0.drivers.fetch_sub(1, Ordering::SeqCst);
        self.0.rearm.notify_waiters();
    }
}

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
    /// Its process is dead; nothing will heal it.
    is_dead: bool,
    /// A test cut it off; the end of an outage does not heal it.
    is_cut: bool,
    link: Link,
    epoch: u64,
    silence: u64,
    /// A new leader does not expire it before.
    spared: Instant,
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
            is_dead: false,
            is_cut: false,
            link: Link::Up,
            epoch: 0,
            silence: 0,
            spared: now,
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
    on_data: Watchers,
    on_children: Watchers,
    is_halted: bool,
    pub tick: Duration,
    pub lag: Duration,
    pub version: (u32, u32),
    pub latency: Latency,
    pub opening: Duration,
    pub refusal: Option<String>,
}

impl World {
    fn new(now: Instant) -> Self {
        Self {
            zero: now,
            now,
            next: 0,
            agenda: BTreeMap::new(),
            tree: Tree::new(),
            zxid: 0,
            log: Vec::new(),
            sessions: BTreeMap::new(),
            on_data: BTreeMap::new(),
            on_children: BTreeMap::new(),
            is_halted: false,
            tick: Duration::from_millis(500),
            lag: Duration::ZERO,
            version: (3, 9),
            latency: Latency::none(),
            opening: Duration::ZERO,
            refusal: None,
        }
    }

    // ---- the agenda ----

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn plan(&mut self, at: Instant, due: Due) {
        let number = self.number();
        self.agenda.insert((at, number), due);
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.agenda.keys().next().map(|(at, _)| *at)
    }

    fn advance(&mut self, now: Instant) {
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
        }
    }

    fn is_silent(&self, session: i64, silence: u64) -> bool {
        self.sessions
            .get(&session)
            .is_some_and(|s| s.silence == silence)
    }

    // ---- transactions ----

    fn stamp(&mut self, session: i64) -> Stamp {
        self.zxid += 1;
        let since = self.now.saturating_duration_since(self.zero);
        Stamp {
            zxid: self.zxid,
            time_ms: BASE_MS + i64::try_from(since.as_millis()).unwrap_or(i64::MAX - BASE_MS),
            session,
        }
    }

    /// A write takes a number whether it succeeds or not.
    pub fn write(&mut self, session: i64, ops: &[Op]) -> Result<Vec<Stat>, MultiFault> {
        let stamp = self.stamp(session);
        let done = self.tree.apply(stamp, ops)?;
        let mut stats = Vec::new();
        for (write, stat) in done {
            self.fire(&write);
            self.log.push(write);
            stats.push(stat);
        }
        Ok(stats)
    }

    pub fn open(&mut self, timeout: Duration, dialect: Dialect) -> Result<(i64, Duration), String> {
        if let Some(reason) = &self.refusal {
            return Err(reason.clone());
        }
        if self.is_halted {
            return Err("the ensemble has no quorum".into());
        }
        let timeout = timeout.clamp(self.tick * 2, self.tick * 20);
        let id = self.sessions.keys().next_back();
        let id = id.map_or(FIRST_SESSION, |last| last + 1);
        let stamp = self.stamp(id);
        self.log.push(stamp.note(Act::Open));
        let session = Session::new(timeout, dialect, self.now, stamp.zxid);
        self.sessions.insert(id, session);
        Ok((id, timeout))
    }

    /// The ensemble's end of a session: its nodes go in the same transaction.
    fn end_session(&mut self, session: i64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if !std::mem::replace(&mut s.is_open, false) {
            return;
        }
        let stamp = self.stamp(session);
        self.log.push(stamp.note(Act::Close));
        for path in self.tree.ephemerals(session) {
            let (write, _) = self.tree.delete(stamp, &path);
            self.fire(&write);
            self.log.push(write);
        }
    }

    /// The client's end of a session: everything it waits for is told.
    fn end_client(&mut self, session: i64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if std::mem::replace(&mut s.is_over, true) {
            return;
        }
        s.epoch += 1;
        for (_, pending) in std::mem::take(&mut s.pending) {
            let _ = pending.answer.send(Err(fault(Fault::SessionLost)));
        }
        for (_, armed) in std::mem::take(&mut s.watches) {
            let _ = armed.fire.send(Fired::SessionLost);
        }
        s.over.send_replace(true);
        self.disarm_all(session);
    }

    // ---- requests ----

    pub fn send(
        &mut self,
        session: i64,
        request: Request,
        fate: Fate,
        answer: oneshot::Sender<Outcome>,
    ) {
        let number = self.number();
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if s.is_over || s.is_closing {
            let _ = answer.send(Err(fault(Fault::SessionLost)));
            return;
        }
        *s.counts.entry(request.kind).or_default() += 1;
        let is_close = request.kind == Kind::Close;
        s.is_closing |= is_close;
        let pending = Pending {
            request,
            fate,
            is_sent: false,
            outcome: None,
            answer,
        };
        s.pending.insert(number, pending);
        match s.link {
            // Nobody can be told; the ensemble will find out by itself.
            Link::Down if is_close => self.end_client(session),
            Link::Down => {}
            Link::Up | Link::Cut => self.dispatch(session, number),
        }
    }

    fn dispatch(&mut self, session: i64, number: u64) {
        let time = self.latency.draw();
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        let Some(pending) = s.pending.get_mut(&number) else {
            return;
        };
        pending.is_sent = true;
        let extra = match pending.fate {
            Fate::Delay(extra) => extra,
            _ => Duration::ZERO,
        };
        s.there = s.there.max(self.now + time + extra);
        let (at, epoch) = (s.there, s.epoch);
        if at <= self.now {
            self.arrive(session, number, epoch);
        } else {
            let due = Due::Arrive {
                session,
                number,
                epoch,
            };
            self.plan(at, due);
        }
    }

    fn arrive(&mut self, session: i64, number: u64, epoch: u64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if s.epoch != epoch {
            return;
        }
        if s.link == Link::Cut {
            s.stuck_there.push(number);
            return;
        }
        let Some(pending) = s.pending.get(&number) else {
            return;
        };
        let (request, fate) = (pending.request.clone(), pending.fate.clone());
        self.serve(session, number, &request, fate);
    }

    fn serve(&mut self, session: i64, number: u64, request: &Request, fate: Fate) {
        match fate {
            Fate::LoseBefore => {
                return self.reply(session, number, unknown("no answer came"), Duration::ZERO);
            }
            Fate::BreakBefore => return self.sever(session),
            Fate::Refuse(why) => {
                return self.reply(session, number, Err(fault(why)), Duration::ZERO);
            }
            _ => {}
        }
        if self.is_unsupported(session, request) {
            return self.refuse_kind(session, number, request);
        }
        let outcome = self.perform(session, request);
        match fate {
            Fate::LoseAfter => {
                self.forget_watch(session, &outcome);
                self.reply(session, number, unknown("no answer came"), Duration::ZERO);
            }
            Fate::BreakAfter => {
                self.forget_watch(session, &outcome);
                self.sever(session);
            }
            Fate::DelayAnswer(extra) => self.reply(session, number, outcome, extra),
            _ => self.reply(session, number, outcome, Duration::ZERO),
        }
    }

    /// What 3.4 does not know: the create of newer clients, and any create within a transaction, since the client
    /// sends the newer form there whatever it was told.
    fn is_unsupported(&self, session: i64, request: &Request) -> bool {
        let is_new = self
            .sessions
            .get(&session)
            .is_some_and(|s| s.dialect == Dialect::V3_5);
        self.is_old()
            && match request.kind {
                Kind::Create => is_new,
                Kind::Multi => request.ops.iter().any(|op| matches!(op, Op::Create { .. })),
                Kind::Unwatch => true,
                _ => false,
            }
    }

    fn is_old(&self) -> bool {
        self.version < (3, 5)
    }

    fn refuse_kind(&mut self, session: i64, number: u64, request: &Request) {
        let is_breaking = request.kind != Kind::Multi;
        if !is_breaking {
            let outcome = Err(fault(Fault::Unsupported));
            return self.reply(session, number, outcome, Duration::ZERO);
        }
        if let Some(s) = self.sessions.get_mut(&session)
            && let Some(pending) = s.pending.remove(&number)
        {
            let _ = pending.answer.send(Err(fault(Fault::Unsupported)));
        }
        self.sever(session);
    }

    fn perform(&mut self, session: i64, request: &Request) -> Outcome {
        match request.kind {
            Kind::Data | Kind::Stat | Kind::Children => self.look(session, request),
            Kind::Create | Kind::Set | Kind::Delete | Kind::Multi => {
                let stats = self.write(session, &request.ops)?;
                let steps = request.ops.iter().zip(stats).map(|(op, stat)| match op {
                    Op::Set { .. } => Some(stat),
                    _ => None,
                });
                Ok(Answer {
                    steps: steps.collect(),
                    ..Answer::default()
                })
            }
            Kind::Close => {
                self.end_session(session);
                Ok(Answer::default())
            }
            Kind::Unwatch => Ok(Answer::default()),
        }
    }

    fn look(&mut self, session: i64, request: &Request) -> Outcome {
        let node = self.tree.node(&request.path);
        let mut answer = Answer {
            stat: node.map(|node| node.stat),
            ..Answer::default()
        };
        let sort = match (request.kind, node) {
            (Kind::Stat, Some(_)) => Sort::Data,
            (Kind::Stat, None) => Sort::Exist,
            (_, None) => return Err(fault(Fault::NoNode)),
            (Kind::Children, Some(node)) => {
                answer.names = node.children.iter().cloned().collect();
                Sort::Child
            }
            (_, Some(node)) => {
                answer.data.clone_from(&node.data);
                Sort::Data
            }
        };
        if request.is_watching {
            answer.watch = self.arm(session, &request.path, sort);
        }
        Ok(answer)
    }

    fn reply(&mut self, session: i64, number: u64, outcome: Outcome, extra: Duration) {
        let zxid = self.zxid;
        if let Some(s) = self.sessions.get_mut(&session)
            && let Some(pending) = s.pending.get_mut(&number)
        {
            pending.outcome = Some((outcome, zxid));
            self.post(session, Parcel::Reply(number), extra);
        }
    }

    // ---- the way back ----

    fn post(&mut self, session: i64, parcel: Parcel, extra: Duration) {
        let time = self.latency.draw();
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        s.back = s.back.max(self.now + time + extra);
        let (at, epoch) = (s.back, s.epoch);
        if at <= self.now {
            self.deliver(session, parcel, epoch);
        } else {
            let due = Due::Deliver {
                session,
                parcel,
                epoch,
            };
            self.plan(at, due);
        }
    }

    fn deliver(&mut self, session: i64, parcel: Parcel, epoch: u64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if s.epoch != epoch || s.link == Link::Down {
            return;
        }
        if s.link == Link::Cut {
            s.stuck_back.push(parcel);
            return;
        }
        match parcel {
            Parcel::Event(id) => {
                if let Some(armed) = s.watches.remove(&id) {
                    let _ = armed.fire.send(Fired::Changed);
                }
            }
            Parcel::Reply(number) => {
                let Some(pending) = s.pending.remove(&number) else {
                    return;
                };
                let Some((outcome, zxid)) = pending.outcome else {
                    return;
                };
                s.seen = s.seen.max(zxid);
                let _ = pending.answer.send(outcome);
                if pending.request.kind == Kind::Close {
                    self.end_client(session);
                }
            }
        }
    }

    // ---- watches ----

    fn arm(
        &mut self,
        session: i64,
        path: &str,
        sort: Sort,
    ) -> Option<(u64, oneshot::Receiver<Fired>)> {
        let id = self.number();
        let (fire, fired) = oneshot::channel();
        let armed = Armed {
            path: path.into(),
            sort,
            fire,
        };
        self.sessions.get_mut(&session)?.watches.insert(id, armed);
        self.enlist(session, id, path, sort);
        Some((id, fired))
    }

    fn enlist(&mut self, session: i64, id: u64, path: &str, sort: Sort) {
        let table = match sort {
            Sort::Data | Sort::Exist => &mut self.on_data,
            Sort::Child => &mut self.on_children,
        };
        table.entry(path.into()).or_default().insert((session, id));
    }

    fn fire(&mut self, write: &Write) {
        let path = write.path.as_str();
        match write.act {
            Act::Create => {
                self.tell(false, path);
                self.tell(true, parent(path));
            }
            Act::Set => self.tell(false, path),
            Act::Delete => {
                self.tell(false, path);
                self.tell(true, path);
                self.tell(true, parent(path));
            }
            Act::Open | Act::Close | Act::Check => {}
        }
    }

    fn tell(&mut self, of_children: bool, path: &str) {
        let table = if of_children {
            &mut self.on_children
        } else {
            &mut self.on_data
        };
        for (session, id) in table.remove(path).unwrap_or_default() {
            self.post(session, Parcel::Event(id), Duration::ZERO);
        }
    }

    fn disarm_all(&mut self, session: i64) {
        for table in [&mut self.on_data, &mut self.on_children] {
            table.retain(|_, ids| {
                ids.retain(|(whose, _)| *whose != session);
                !ids.is_empty()
            });
        }
    }

    fn disarm(&mut self, session: i64, id: u64) -> bool {
        let Some(s) = self.sessions.get_mut(&session) else {
            return false;
        };
        let Some(armed) = s.watches.remove(&id) else {
            return false;
        };
        let table = match armed.sort {
            Sort::Data | Sort::Exist => &mut self.on_data,
            Sort::Child => &mut self.on_children,
        };
        if let Some(ids) = table.get_mut(&armed.path) {
            ids.remove(&(session, id));
            if ids.is_empty() {
                table.remove(&armed.path);
            }
        }
        true
    }

    fn forget_watch(&mut self, session: i64, outcome: &Outcome) {
        if let Ok(Answer {
            watch: Some((id, _)),
            ..
        }) = outcome
        {
            self.disarm(session, *id);
        }
    }

    /// The application dropped a watch that had not fired. 3.4 answers that by hanging up.
    pub fn unwatch(&mut self, session: i64, id: u64) {
        if !self.disarm(session, id) {
            return;
        }
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        *s.counts.entry(Kind::Unwatch).or_default() += 1;
        if self.is_old() {
            self.sever(session);
        }
    }

    /// A new connection: the client tells what it watches and up to where it has seen; what changed since fires at once.
    fn rearm_all(&mut self, session: i64) {
        let Some(s) = self.sessions.get(&session) else {
            return;
        };
        let seen = s.seen;
        let armed: Vec<(u64, String, Sort)> = s
            .watches
            .iter()
            .map(|(id, armed)| (*id, armed.path.clone(), armed.sort))
            .collect();
        for (id, path, sort) in armed {
            let node = self.tree.node(&path);
            let has_changed = match sort {
                Sort::Data => node.is_none_or(|node| node.stat.mzxid > seen),
                Sort::Exist => node.is_some(),
                Sort::Child => node.is_none_or(|node| node.pzxid > seen),
            };
            if has_changed {
                self.post(session, Parcel::Event(id), Duration::ZERO);
            } else {
                self.enlist(session, id, &path, sort);
            }
        }
    }

    // ---- connections that break ----

    /// What was sent on the connection is unknown now.
    fn hang_up(&mut self, session: i64, why: &str) {
        self.disarm_all(session);
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        s.epoch += 1;
        (s.there, s.back) = (self.now, self.now);
        s.stuck_there.clear();
        s.stuck_back.clear();
        let (sent, waiting) = std::mem::take(&mut s.pending)
            .into_iter()
            .partition(|(_, pending)| pending.is_sent);
        s.pending = waiting;
        let sent: BTreeMap<u64, Pending> = sent;
        for (_, pending) in sent {
            if let Some((outcome, _)) = &pending.outcome {
                self.forget_watch(session, outcome);
            }
            let _ = pending.answer.send(unknown(why));
        }
    }

    fn reconnect(&mut self, session: i64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        s.link = Link::Up;
        // A close that was under way is not sent again.
        if !s.is_open || s.is_closing {
            return self.end_client(session);
        }
        self.rearm_all(session);
        let waiting: Vec<u64> = self
            .sessions
            .get(&session)
            .into_iter()
            .flat_map(|s| s.pending.keys().copied())
            .collect();
        for number in waiting {
            self.dispatch(session, number);
        }
    }

    pub fn sever(&mut self, session: i64) {
        if self
            .sessions
            .get(&session)
            .is_some_and(Session::is_connected)
        {
            self.hang_up(session, "the connection was reset");
            self.reconnect(session);
        }
    }

    fn notice(&mut self, session: i64) {
        self.hang_up(session, "no answer within 2/5 of the session timeout");
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        s.link = Link::Down;
        if s.is_closing {
            self.end_client(session);
        }
    }

    fn expiry(&self, heard: Instant, timeout: Duration) -> Instant {
        let since = heard.saturating_duration_since(self.zero) + timeout;
        let since = since.saturating_sub(self.lag);
        let tick = self.tick.as_nanos().max(1);
        let ticks = since.as_nanos() / tick + 1;
        let nanos = u64::try_from(ticks * tick).unwrap_or(u64::MAX);
        self.zero + Duration::from_nanos(nanos)
    }

    fn break_off(&mut self, session: i64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if s.link != Link::Up || s.is_over {
            return;
        }
        s.link = Link::Cut;
        s.silence += 1;
        let (silence, timeout, now) = (s.silence, s.timeout, self.now);
        let expiry = self.expiry(now, timeout);
        self.plan(now + timeout * 2 / 5, Due::Notice { session, silence });
        self.plan(expiry, Due::Expire { session, silence });
        self.plan(now + timeout * 7 / 5, Due::GiveUp { session, silence });
    }

    pub fn cut(&mut self, session: i64, is_for_good: bool) -> bool {
        let Some(s) = self.sessions.get_mut(&session) else {
            return false;
        };
        if s.is_over {
            return false;
        }
        s.is_cut = true;
        s.is_dead |= is_for_good;
        self.break_off(session);
        true
    }

    pub fn heal(&mut self, session: i64) -> bool {
        let is_halted = self.is_halted;
        let Some(s) = self.sessions.get_mut(&session) else {
            return false;
        };
        if s.is_over || s.is_dead {
            return false;
        }
        s.is_cut = false;
        if !is_halted {
            self.mend(session);
        }
        true
    }

    fn mend(&mut self, session: i64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        s.silence += 1;
        match s.link {
            Link::Up => {}
            Link::Down => self.reconnect(session),
            Link::Cut if !s.is_open => {
                s.link = Link::Up;
                self.end_client(session);
            }
            Link::Cut => self.flow_again(session),
        }
    }

    /// The client never noticed: the network delivers what it held, in order.
    fn flow_again(&mut self, session: i64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        s.link = Link::Up;
        let epoch = s.epoch;
        let back = std::mem::take(&mut s.stuck_back);
        let there = std::mem::take(&mut s.stuck_there);
        for parcel in back {
            self.deliver(session, parcel, epoch);
        }
        for number in there {
            self.arrive(session, number, epoch);
        }
    }

    fn expire_on_time(&mut self, session: i64) {
        let is_spared = |s: &Session| s.spared > self.now;
        if !self.is_halted && !self.sessions.get(&session).is_some_and(is_spared) {
            self.end_session(session);
        }
    }

    pub fn expire(&mut self, session: i64) -> bool {
        let Some(s) = self.sessions.get(&session) else {
            return false;
        };
        if !s.is_open {
            return false;
        }
        let is_connected = s.is_connected();
        self.end_session(session);
        if is_connected {
            self.end_client(session);
        }
        true
    }

    /// The application dropped its connection.
    pub fn let_go(&mut self, session: i64) {
        let Some(s) = self.sessions.get(&session) else {
            return;
        };
        if s.is_over || s.is_closing || s.is_dead {
            return;
        }
        let request = Request {
            session,
            kind: Kind::Close,
            path: String::new(),
            ops: Vec::new(),
            is_watching: false,
        };
        let (answer, _) = oneshot::channel();
        self.send(session, request, Fate::Deliver, answer);
    }

    // ---- outages ----

    pub fn halt(&mut self) {
        self.is_halted = true;
        let all: Vec<i64> = self.sessions.keys().copied().collect();
        for session in all {
            self.break_off(session);
        }
    }

    /// A new leader gives every session its whole timeout again.
    pub fn resume(&mut self) {
        if !std::mem::replace(&mut self.is_halted, false) {
            return;
        }
        let open: Vec<(i64, bool)> = self
            .sessions
            .iter()
            .filter(|(_, s)| s.is_open)
            .map(|(id, s)| (*id, s.is_cut || s.is_over))
            .collect();
        for (session, stays_away) in open {
            if stays_away {
                self.wait_anew(session);
            } else {
                self.mend(session);
            }
        }
    }

    fn wait_anew(&mut self, session: i64) {
        let Some(s) = self.sessions.get(&session) else {
            return;
        };
        let silence = s.silence;
        let expiry = self.expiry(self.now, s.timeout);
        if let Some(s) = self.sessions.get_mut(&session) {
            s.spared = expiry;
        }
        self.plan(expiry, Due::Expire { session, silence });
    }

    pub fn over(&self, session: i64) -> Option<watch::Receiver<bool>> {
        Some(self.sessions.get(&session)?.over.subscribe())
    }
}
