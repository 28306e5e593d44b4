//! Decides when: one task owns a member's state, from its first session to its last, and one function waits.

mod begin;
mod keeper;
mod offset;
mod part;
mod serving;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::assign::Assignor;
use crate::config;
use crate::config::{Config, LeaseMode};
use crate::error::{Error, ErrorKind, printable};
use crate::event::{Event, Holder};
use crate::group::{ConsumerId, StreamId, Topic, TopicPartition};
use crate::lease::LeaseGuard;
use crate::listener::{Outside, RebalanceListener};
use crate::registry::{Dialect, Later, Registry};
use crate::session::{Applicant, Committed, Registering, Session, Trouble};
use crate::stream::{Common, Ownership, ReaderSource, StreamCore};
use crate::wire::NO_OFFSET;

use self::serving::{Done, Serving};

/// After so many session timeouts an id is called held however slowly the servers answer.
const HELD_FOR: u32 = 10;
/// The longest pause between two attempts to open a session.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// The session of a member whose handle was dropped is closed within this time.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// What a member is made of.
pub(crate) struct Parts {
    pub config: Config,
    pub me: ConsumerId,
    pub subscription: BTreeMap<Topic, u32>,
    pub registry: Arc<dyn Registry>,
    pub source: Arc<dyn ReaderSource>,
    pub assignor: Arc<dyn Assignor>,
    /// The assignor is the user's own: it never runs on the member's task.
    pub is_foreign_assignor: bool,
    pub listener: Option<Arc<dyn RebalanceListener>>,
    pub outside: Arc<dyn Outside>,
    /// Where a user's assignor runs; a listener that hangs must not hold it up.
    pub assignor_place: Arc<dyn Outside>,
    pub common: Arc<Common>,
    pub streams: BTreeMap<Topic, Vec<Arc<StreamCore>>>,
    pub outlets: Outlets,
    pub commands: mpsc::Receiver<Command>,
    /// By when the member must be gone, whatever it is doing; closed without a word when the handle is dropped.
    pub stop: watch::Receiver<Option<Instant>>,
    /// Told once: registered for the first time, or why it cannot be.
    pub joined: Option<oneshot::Sender<Result<(), Error>>>,
    /// Where chance begins; only pauses depend on it.
    pub seed: u64,
}

/// What the handle asks for.
pub(crate) enum Command {
    /// Commit what is done of everything held, now.
    Commit {
        reply: oneshot::Sender<Result<(), Error>>,
    },
    /// Have a message count as done.
    Pass {
        partition: TopicPartition,
        offset: i64,
        reply: oneshot::Sender<Result<(), Error>>,
    },
    /// Leave in order until this moment, then at once.
    Leave {
        until: Instant,
        reply: oneshot::Sender<BTreeSet<TopicPartition>>,
    },
}

/// Where a member tells of itself.
#[derive(Clone)]
pub(crate) struct Outlets {
    pub events: broadcast::Sender<Event>,
    pub snapshot: watch::Sender<Snapshot>,
}

impl Outlets {
    /// Tells those who watch, and the log.
    pub fn tell(&self, event: Event) {
        match &event {
            Event::Stuck { .. }
            | Event::Unacknowledged { .. }
            | Event::OffsetMalformed { .. }
            | Event::MemberMalformed { .. }
            | Event::ForeignAdvance { .. }
            | Event::RewindRepaired { .. }
            | Event::Passed { .. }
            | Event::IdHeld { .. }
            | Event::ConnectFailed { .. }
            | Event::ListenerFailed { .. }
            | Event::Warning { .. } => tracing::warn!("{event}"),
            Event::Claimed { .. } | Event::Started { .. } | Event::Released { .. } => {
                tracing::debug!("{event}")
            }
            _ => tracing::info!("{event}"),
        }
        // Nobody listening is no error.
        let _ = self.events.send(event);
    }

    /// Tells what a commit of this offset has met, if somebody else had written there.
    pub fn tell_of_others(&self, partition: &TopicPartition, ours: i64, met: &Committed) {
        // Nobody's position gave way to theirs.
        if ours == NO_OFFSET {
            return;
        }
        let partition = partition.clone();
        let event = match met {
            Committed::Written {
                over: Some(theirs), ..
            } => match theirs.parse() {
                Ok(theirs) => Event::RewindRepaired {
                    partition,
                    theirs,
                    ours,
                },
                Err(_) => Event::Repaired {
                    what: format!(
                        "the offset of {partition} held \"{}\" and was written again as {ours}",
                        printable(theirs)
                    ),
                },
            },
            Committed::Ahead { theirs, .. } => Event::ForeignAdvance {
                partition,
                theirs: *theirs,
                ours,
            },
            Committed::Written { .. } | Committed::NotOurs | Committed::Unsettled(_) => return,
        };
        self.tell(event);
    }
}

/// How a member stands, as its handle sees it.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    pub phase: Phase,
    pub session: Option<i64>,
    pub lease: Option<Arc<LeaseGuard>>,
    pub members: usize,
    pub generation: u64,
    /// The group was looked at, and what followed is under way.
    pub is_planned: bool,
    pub held: BTreeMap<TopicPartition, (StreamId, Arc<Ownership>)>,
    pub waiting: BTreeMap<TopicPartition, (Holder, Instant)>,
    pub stuck: BTreeSet<TopicPartition>,
    pub releasing: usize,
    pub starting: usize,
    pub held_back: BTreeMap<TopicPartition, String>,
    pub suspended: BTreeSet<TopicPartition>,
    pub has_brokers: bool,
    pub failure: Option<Arc<Error>>,
}

/// Where a member is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// No session, or not registered yet.
    #[default]
    Joining,
    /// Registered.
    Joined,
    /// Giving everything up.
    Leaving,
    /// Out of the group, for good.
    Left,
}

/// How a session of ours ended, by what comes next.
enum Over {
    SessionLost,
    RegistrationGone,
    OtherDialect,
    Failed(String),
    Fatal(Error),
    Left,
}

impl From<Trouble> for Over {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::SessionLost => Self::SessionLost,
            Trouble::RegistrationGone => Self::RegistrationGone,
            Trouble::OtherDialect => Self::OtherDialect,
            Trouble::Transient(why) => Self::Failed(why),
            Trouble::Fatal(error) => Self::Fatal(error),
        }
    }
}

/// A member's life over all its sessions.
pub(crate) struct Coordinator {
    parts: Parts,
    dialect: Dialect,
    /// Sessions of ours that ended: what they left behind is ours to remove.
    past: BTreeSet<i64>,
    /// Partitions of each topic as of the first look at it: what comes later is new.
    known: BTreeMap<Topic, BTreeSet<i32>>,
    /// Pauses that followed one another without success.
    failures: u32,
    chance: u64,
    /// Whoever waits to hear how the leaving went.
    farewell: Option<oneshot::Sender<BTreeSet<TopicPartition>>>,
    /// What was not given up in order when we left.
    left_behind: BTreeSet<TopicPartition>,
    /// The user's code that still ran when a session ended.
    left_over: Vec<Later<Done>>,
}

/// Resolves when the member must be gone: at the deadline of a shutdown, or a second after the handle was dropped (R6).
async fn stopped(mut stop: watch::Receiver<Option<Instant>>) {
    let until = match stop.wait_for(Option::is_some).await {
        Ok(until) => *until,
        Err(_) => None,
    };
    sleep_until(until.unwrap_or_else(|| Instant::now() + GONE_WITHIN)).await;
}

/// Ends everything that others wait for if the member's task ends without its own end: a panic below us (R11).
struct Fuse {
    streams: Vec<Arc<StreamCore>>,
    snapshot: watch::Sender<Snapshot>,
    is_out: bool,
}

impl Fuse {
    fn of(parts: &Parts) -> Self {
        Self {
            streams: parts.streams.values().flatten().cloned().collect(),
            snapshot: parts.outlets.snapshot.clone(),
            is_out: false,
        }
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        if self.is_out {
            return;
        }
        self.snapshot.send_modify(|snapshot| {
            if let Some(lease) = &snapshot.lease {
                lease.end();
            }
            for (_, ownership) in snapshot.held.values() {
                ownership.end();
            }
            let text = "the member's task ended without its own end; this is a defect";
            *snapshot = Snapshot {
                phase: Phase::Left,
                failure: Some(Arc::new(Error::new(ErrorKind::Internal, text))),
                ..Snapshot::default()
            };
        });
        for core in &self.streams {
            core.close();
        }
    }
}

impl Coordinator {
    pub fn new(parts: Parts) -> Self {
        let dialect = Dialect::from(parts.config.zookeeper_dialect);
        let chance = parts.seed | 1;
        Self {
            parts,
            dialect,
            past: BTreeSet::new(),
            known: BTreeMap::new(),
            failures: 0,
            chance,
            farewell: None,
            left_behind: BTreeSet::new(),
            left_over: Vec::new(),
        }
    }

    /// Lives until told to leave, until the handle is dropped, or until something happens that only the user can mend.
    pub async fn run(mut self) {
        let mut fuse = Fuse::of(&self.parts);
        loop {
            let over = self.one_session().await;
            self.publish(|snapshot| {
                *snapshot = Snapshot {
                    generation: snapshot.generation,
                    failure: snapshot.failure.take(),
                    ..Snapshot::default()
                };
            });
            if self.is_stopping() {
                break;
            }
            match over {
                Over::Left => break,
                Over::Fatal(error) => {
                    self.fail(error);
                    break;
                }
                Over::OtherDialect => {
                    if let Err(error) = self.change_dialect() {
                        self.fail(error);
                        break;
                    }
                }
                Over::SessionLost | Over::RegistrationGone => {}
                Over::Failed(reason) => self.parts.outlets.tell(Event::ConnectFailed { reason }),
            }
            if self.pause().await {
                break;
            }
        }
        self.end();
        fuse.is_out = true;
    }

    fn change_dialect(&mut self) -> Result<(), Error> {
        let forced = self.parts.config.zookeeper_dialect;
        if forced != config::Dialect::Auto {
            return Err(Error::config(format!(
                "zookeeper.dialect {forced} is set, and the servers do not speak it: leave it at auto"
            )));
        }
        self.dialect = match self.dialect {
            Dialect::V3_5 => Dialect::V3_4,
            Dialect::V3_4 => Dialect::V3_5,
        };
        tracing::info!(dialect = ?self.dialect, "the servers speak another dialect, joining anew");
        Ok(())
    }

    fn fail(&mut self, error: Error) {
        let error = Arc::new(error);
        if let Some(joined) = self.parts.joined.take() {
            let _ = joined.send(Err(Error::new(error.kind(), error.to_string())));
        }
        tracing::error!("{error}");
        self.publish(|snapshot| snapshot.failure = Some(error));
    }

    /// Told to leave, or left alone.
    fn is_stopping(&self) -> bool {
        self.parts.stop.borrow().is_some() || self.parts.stop.has_changed().is_err()
    }

    fn end(&mut self) {
        self.say_farewell();
        for core in self.parts.streams.values().flatten() {
            core.close();
        }
        self.publish(|snapshot| {
            *snapshot = Snapshot {
                phase: Phase::Left,
                generation: snapshot.generation,
                failure: snapshot.failure.take(),
                ..Snapshot::default()
            };
        });
    }

    /// Answers those who still wait for something.
    fn say_farewell(&mut self) {
        let mut farewell = self.farewell.take();
        while let Ok(command) = self.parts.commands.try_recv() {
            match command {
                Command::Leave { reply, .. } => farewell = Some(reply),
                // Its sender reads a dropped answer as the end.
                Command::Commit { reply } | Command::Pass { reply, .. } => drop(reply),
            }
        }
        let forced = std::mem::take(&mut self.left_behind);
        if self.is_stopping() {
            self.parts.outlets.tell(Event::Left {
                forced: forced.clone(),
            });
        }
        if let Some(farewell) = farewell {
            let _ = farewell.send(forced);
        }
    }

    fn publish(&self, change: impl FnOnce(&mut Snapshot)) {
        self.parts.outlets.snapshot.send_modify(change);
    }

    /// Waits before the next session: not at all the first time, then ever longer, with jitter, so that many members do not
    /// come back in step. Answers whether we are to leave instead.
    async fn pause(&mut self) -> bool {
        let failures = self.failures;
        self.failures += 1;
        if failures == 0 {
            return false;
        }
        let longest =
            (Duration::from_millis(100) * 2u32.saturating_pow(failures.min(10))).min(MAX_PAUSE);
        let until = Instant::now() + longest.mul_f64(0.5 + self.toss() / 2.0);
        self.leave_before(async move { sleep_until(until).await })
            .await
            .is_none()
    }

    /// Between 0 and 1; good enough for pauses, and the same for the same seed.
    fn toss(&mut self) -> f64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        (self.chance % 10_000) as f64 / 10_000.0
    }

    /// Waits for something while nothing is held; `None` if we are to leave, which is then as good as done.
    async fn leave_before<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                command = self.parts.commands.recv() => match command {
                    None => return None,
                    Some(Command::Leave { reply, .. }) => {
                        self.farewell = Some(reply);
                        return None;
                    }
                    // Nothing is held, so everything is committed that can be.
                    Some(Command::Commit { reply }) => {
                        let _ = reply.send(Ok(()));
                    }
                    Some(Command::Pass { partition, reply, .. }) => {
                        let _ = reply.send(Err(not_ours(&partition)));
                    }
                },
                done = &mut work => return Some(done),
            }
        }
    }

    async fn one_session(&mut self) -> Over {
        let session = match self.open().await {
            Ok(Some(session)) => Arc::new(session),
            Ok(None) => return Over::Left,
            Err(over) => return over,
        };
        let over = match self.register(&session).await {
            Ok(true) => self.serve(session.clone()).await,
            Ok(false) => Over::Left,
            Err(over) => over,
        };
        self.past.insert(session.id());
        // The registration may be gone while the session lives; it must not stay behind us.
        tokio::select! {
            biased;
            () = session.close() => {}
            () = stopped(self.parts.stop.clone()) => {}
        }
        over
    }

    async fn open(&mut self) -> Result<Option<Session>, Over> {
        let who = Applicant {
            group: self.parts.config.group.clone(),
            me: self.parts.me.clone(),
            subscription: self.parts.subscription.clone(),
            clock: self.parts.common.clock.clone(),
            is_blind: self.parts.config.lease == LeaseMode::Off,
            past: self.past.clone(),
        };
        let registry = self.parts.registry.clone();
        let dialect = self.dialect;
        let opened = self
            .leave_before(async move { Session::open(&*registry, dialect, who).await })
            .await;
        match opened {
            None => Ok(None),
            Some(Ok(session)) => Ok(Some(session)),
            Some(Err(error)) if error.kind() == ErrorKind::Config => Err(Over::Fatal(error)),
            Some(Err(error)) => Err(Over::Failed(error.to_string())),
        }
    }

    /// Registers; an id that is held by another session is waited for: at the first start only as long as a dead session
    /// can linger, later for as long as it takes (S9). `false` if we are to leave instead.
    async fn register(&mut self, session: &Arc<Session>) -> Result<bool, Over> {
        let timeout = session.terms().session_timeout();
        let began = Instant::now();
        // Since when the servers have answered promptly, and the last time they did.
        let (mut since, mut answered) = (began, began);
        // One at most, and kept until it fires: to drop it before costs the connection on 3.4.
        let mut watches = FuturesUnordered::new();
        let mut is_told = false;
        loop {
            let (attempt, wants_watch) = (session.clone(), watches.is_empty());
            let registering = self
                .leave_before(async move { attempt.register(wants_watch).await })
                .await;
            let (holder, watch) = match registering {
                None => return Ok(false),
                Some(Err(trouble)) => return Err(trouble.into()),
                Some(Ok(Registering::Done)) => break,
                Some(Ok(Registering::Held { session, watch })) => (session, watch),
            };
            if !is_told {
                self.parts.outlets.tell(Event::IdHeld {
                    consumer: self.parts.me.clone(),
                    session: holder,
                });
                is_told = true;
            }
            let now = Instant::now();
            if now - answered > timeout * 3 / 8 {
                since = now;
            }
            answered = now;
            // A dead session lives for T and a tick, which is T/2 at most. Who leads the servers anew gives it all of that again,
            // and a new leader that took less than three eighths of T to find is not seen.
            let is_long = now >= since + timeout * 7 / 2 || now >= began + timeout * HELD_FOR;
            if self.parts.joined.is_some() && is_long {
                return Err(Over::Fatal(id_held(&self.parts.me, holder)));
            }
            watches.extend(watch);
            let changed = tokio::time::timeout(timeout / 4, watches.next());
            let waited = self.leave_before(changed).await;
            if waited.is_none() {
                return Ok(false);
            }
        }
        self.tell_joined(session);
        Ok(true)
    }

    fn tell_joined(&mut self, session: &Session) {
        let granted = session.terms().session_timeout();
        self.parts.outlets.tell(Event::Joined {
            consumer: self.parts.me.clone(),
            session: session.id(),
            session_timeout: granted,
        });
        let asked = self.parts.config.session_timeout;
        if asked != granted {
            self.parts
                .outlets
                .tell(Event::TimeoutClamped { asked, granted });
        }
        if let Some(joined) = self.parts.joined.take() {
            let _ = joined.send(Ok(()));
        }
    }

    async fn serve(&mut self, session: Arc<Session>) -> Over {
        let mut serving = Serving::new(self, session);
        let over = serving.serve().await;
        serving.clean_up(&over);
        over
    }
}

fn id_held(me: &ConsumerId, session: i64) -> Error {
    Error::new(
        ErrorKind::IdHeld,
        format!(
            "{me} is registered by session 0x{session:x}, which lives: two members cannot have one id; \
             give this one another consumer.id, or leave it out so that one is made"
        ),
    )
}

fn not_ours(partition: &TopicPartition) -> Error {
    Error::new(
        ErrorKind::NotOwned,
        format!("{partition} is not ours, so nothing of it was passed"),
    )
}
