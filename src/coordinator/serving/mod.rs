//! One session of a member at work: look, plan, hand over, claim, feed, wait.

mod brokers;
mod claiming;
mod committing;
mod feeding;
mod holding;
mod leaving;
mod looking;
mod minding;
mod parting;
mod passing;
mod silence;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::coordinator::begin::{Beginnings, From};
use crate::coordinator::keeper::Keeper;
use crate::coordinator::offset::OffsetNode;
use crate::coordinator::part::{Farewell, Parted};
use crate::coordinator::serving::feeding::without_reader;
use crate::coordinator::serving::silence::{Answer, Quiet};
use crate::coordinator::{Command, Coordinator, Over, Phase, Snapshot, stopped};
use crate::error::Error;
use crate::event::{Event, Holder};
use crate::group::{GroupView, StreamId, TopicPartition};
use crate::listener::Ran;
use crate::registry::Later;
use crate::session::{Commit, Committed, Lookout, Session, TopicFate, Trouble, Watched};
use crate::stream::{Ownership, Reader};

/// An assignment of more partitions than this is computed outside the member's task.
const LARGE: usize = 100_000;

/// What is kept of the time of a shutdown for the last commits and releases, at most.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long a failed look waits before the next, at first and at most; told after so many in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_secs(1);
const TELL_AFTER: u32 = 5;

/// Partitions expected to be read when there is none yet.
const UNKNOWN_SHARE: usize = 32;

/// How long a failed start of reading waits before it is tried again, at first and at most.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(2);

/// A partition that is ours.
struct Held {
    ownership: Arc<Ownership>,
    stream: StreamId,
    node: OffsetNode,
    state: HeldState,
    retries: u32,
    /// How far reading had got at the last trouble.
    troubled_at: Option<i64>,
    is_new: bool,
    /// The topic was made anew while this was being begun.
    remade: Option<From>,
    quiet: Quiet,
}

impl Held {
    /// What is to be committed of it, if anything.
    fn pending(&self) -> Option<Commit> {
        self.node.pending(&self.ownership)
    }

    /// Reading is begun again from there after a pause, which grows with every failure. Answers whether it is the first.
    fn begin_later(&mut self, from: From) -> bool {
        let pause = FIRST_RETRY * 2u32.saturating_pow(self.retries.min(6));
        let at = Instant::now() + pause.min(LAST_RETRY);
        self.state = HeldState::Later { at, from };
        self.retries += 1;
        self.retries == 1
    }
}

enum HeldState {
    Beginning,
    Reading,
    /// To be begun again then, from there.
    Later {
        at: Instant,
        from: From,
    },
    HeldBack {
        reason: String,
    },
}

/// A partition that is being given up.
struct Leaving {
    ownership: Arc<Ownership>,
    fate: Arc<TopicFate>,
    /// The transaction that created the topic.
    topic_created: i64,
    /// The topic was made anew while this was being begun.
    is_remade: bool,
}

/// A partition that should be ours and is held by somebody else.
struct Blocked {
    holder: Holder,
    since: Instant,
    /// Its owner node went, so that it may be claimed.
    is_freed: bool,
    is_told: bool,
    is_stuck: bool,
}

/// Work that goes on beside the waiting, and what came of it.
pub(super) enum Done {
    Parted(Vec<TopicPartition>, Result<Vec<Parted>, Trouble>),
    /// Which reader began which partitions, and what came of it.
    Begun(u64, Vec<TopicPartition>, Beginnings),
    Committed(
        Vec<Commit>,
        Result<BTreeMap<TopicPartition, Committed>, Trouble>,
    ),
    /// How a call of the listener ended; none if it did not in its time.
    Listened(&'static str, Option<Ran>),
    /// What a reader answered about silent partitions.
    Heard(u64, Vec<Answer>),
    ReaderClosed,
}

pub(super) struct Serving<'a> {
    core: &'a mut Coordinator,
    session: Arc<Session>,
    lookout: Lookout,
    fired: BTreeSet<Watched>,
    held: BTreeMap<TopicPartition, Held>,
    parting: BTreeMap<TopicPartition, Leaving>,
    /// Fenced, and waiting for a beginning or a commit that is under way before they are given up.
    deferred: BTreeMap<TopicPartition, Farewell>,
    beginning: BTreeSet<TopicPartition>,
    /// Those of the commit that is under way.
    committing: BTreeSet<TopicPartition>,
    commit_waiters: Vec<oneshot::Sender<Result<(), Error>>>,
    /// So many of them asked before the commit that is under way began.
    commit_waiters_served: usize,
    /// An owner node of our session may stand there: a claim whose outcome is not known, or a node that somebody changed.
    limbo: BTreeSet<TopicPartition>,
    is_commit_asked: Arc<AtomicBool>,
    blocked: BTreeMap<TopicPartition, Blocked>,
    works: FuturesUnordered<Later<Done>>,
    reader: Option<Arc<dyn Reader>>,
    /// Counts the readers: what an earlier one answers is void.
    reader_number: u64,
    /// Until then nothing new is claimed, since members vanished: `takeover.delay.ms`.
    takeover_at: Option<Instant>,
    brokers: BTreeSet<String>,
    view: GroupView,
    generation: u64,
    standing: BTreeMap<String, Event>,
    told_unacked: BTreeSet<TopicPartition>,
    holds: watch::Sender<bool>,
    retry_at: Option<Instant>,
    retries: u32,
    next_commit: Instant,
    next_check: Instant,
    next_poll: Instant,
    next_listen: Instant,
    forced: BTreeSet<TopicPartition>,
    leave_until: Option<Instant>,
    /// The last look left something undone that no watch will tell of.
    is_unfinished: bool,
    is_planned: bool,
}

impl<'a> Serving<'a> {
    pub fn new(core: &'a mut Coordinator, session: Arc<Session>) -> Self {
        let now = Instant::now();
        let left_over = std::mem::take(&mut core.left_over);
        let config = &core.parts.config;
        let next_commit = now + config.auto_commit_interval;
        let check = config.registration_check_interval;
        let next_check = now + check.mul_f64(0.75 + core.toss() / 2.0);
        let next_poll = now + session.terms().session_timeout() / 2;
        Self {
            lookout: Lookout::new(session.clone()),
            core,
            session,
            fired: BTreeSet::new(),
            held: BTreeMap::new(),
            parting: BTreeMap::new(),
            deferred: BTreeMap::new(),
            beginning: BTreeSet::new(),
            committing: BTreeSet::new(),
            commit_waiters: Vec::new(),
            commit_waiters_served: 0,
            limbo: BTreeSet::new(),
            is_commit_asked: Arc::default(),
            blocked: BTreeMap::new(),
            works: left_over.into_iter().collect(),
            reader: None,
            reader_number: 0,
            takeover_at: None,
            brokers: BTreeSet::new(),
            view: GroupView::default(),
            generation: 0,
            standing: BTreeMap::new(),
            told_unacked: BTreeSet::new(),
            holds: watch::Sender::new(false),
            retry_at: None,
            retries: 0,
            next_commit,
            next_check,
            next_poll,
            next_listen: now + silence::EVERY,
            forced: BTreeSet::new(),
            leave_until: None,
            is_unfinished: false,
            is_planned: false,
        }
    }

    fn tell(&self, event: Event) {
        self.core.parts.outlets.tell(event);
    }

    /// Serves until the session is over or we are to leave. The lease is kept beside whatever else is awaited.
    pub async fn serve(&mut self) -> Over {
        self.core.failures = 0;
        let keeper = Keeper {
            session: self.session.clone(),
            common: self.core.parts.common.clone(),
            streams: self
                .core
                .parts
                .streams
                .values()
                .flatten()
                .cloned()
                .collect(),
            outlets: self.core.parts.outlets.clone(),
            holds: self.holds.subscribe(),
        };
        let session = self.session.clone();
        let stop = stopped(self.core.parts.stop.clone());
        let watches = self.lookout.watches();
        tokio::select! {
            biased;
            () = session.ended() => Over::SessionLost,
            never = watches.attend() => match never {},
            trouble = keeper.keep() => trouble.into(),
            over = self.work() => over,
            () = stop => Over::Left,
        }
    }

    async fn work(&mut self) -> Over {
        let own = self.core.parts.subscription.keys().cloned().collect();
        self.lookout
            .look_ahead(&own, self.core.parts.source.needs_brokers());
        loop {
            match self.settle().await {
                Ok(()) => {
                    self.is_planned = self.reader.is_some();
                    self.look_again_if_open();
                }
                Err(trouble) => {
                    if let Err(over) = self.heed(trouble) {
                        return over;
                    }
                }
            }
            self.publish();
            match self.wait().await {
                Ok(()) => {}
                Err(over) => return over,
            }
        }
    }

    /// Trouble that passes leads back to the wait, and to another look soon; told when it does not pass.
    fn heed(&mut self, trouble: Trouble) -> Result<(), Over> {
        let Trouble::Transient(why) = trouble else {
            return Err(trouble.into());
        };
        tracing::debug!(why, "looking again soon");
        self.look_again_soon();
        if self.retries >= TELL_AFTER {
            self.stand("trouble", Some(Event::Warning { what: why }));
        }
        Ok(())
    }

    fn look_again_soon(&mut self) {
        let pause = FIRST_PAUSE * 2u32.saturating_pow(self.retries.min(6));
        self.retries += 1;
        self.retry_at = Some(Instant::now() + pause.min(LAST_PAUSE));
    }

    /// What was left undone is tried again: at once the first time, then ever later.
    fn look_again_if_open(&mut self) {
        if !self.is_unfinished {
            self.retries = 0;
            self.retry_at = None;
            self.stand("trouble", None);
        } else if self.retries == 0 {
            self.retries = 1;
            self.retry_at = Some(Instant::now());
        } else {
            self.look_again_soon();
        }
    }

    async fn settle(&mut self) -> Result<(), Trouble> {
        loop {
            self.is_unfinished = false;
            let fired = self.lookout.changed_already()?;
            self.note_fired(fired);
            let checked = self.check_owners().await;
            // Before the first look nobody knows for how many partitions a reader is to have room.
            if !self.view.members.is_empty() {
                self.find_brokers().await?;
            }
            checked?;
            self.recheck_held_back().await?;
            let expansion = self.look().await?;
            self.find_brokers().await?;
            let plan = self.plan(&expansion).await;
            self.hand_over(&plan).await;
            self.set_off();
            let discarded = self.discard_strays(&plan).await;
            self.claim(&plan).await?;
            discarded?;
            let fired = self.lookout.changed_already()?;
            self.note_fired(fired);
            if !self.fired.iter().any(|watched| self.concerns_us(watched)) {
                return Ok(());
            }
        }
    }

    /// What was pushed to the works sends its first request now: others wait for what we give up, while we go on claiming.
    fn set_off(&mut self) {
        if let Some(Some(done)) = self.works.next().now_or_never() {
            self.works.push(Box::pin(std::future::ready(done)));
        }
    }

    fn concerns_us(&self, watched: &Watched) -> bool {
        match watched {
            Watched::Members | Watched::Topics | Watched::Topic(_) | Watched::Brokers => {
                !self.lookout.is_armed(watched)
            }
            Watched::Owner(partition) => {
                self.held.contains_key(partition) || self.blocked.contains_key(partition)
            }
            Watched::Offset(partition) => self.held.contains_key(partition),
        }
    }

    /// Waits until there is something to look at; deals with everything else as it comes.
    async fn wait(&mut self) -> Result<(), Over> {
        loop {
            let next = self.next_moment();
            let notice = self.reader.as_ref().map(|reader| reader.notice());
            tokio::select! {
                biased;
                command = self.core.parts.commands.recv() => match command {
                    // The handle is gone: fence at once, no last commit (R6).
                    None => return Err(Over::Left),
                    Some(Command::Commit { reply }) => self.commit_asked(reply),
                    Some(Command::Pass { partition, offset, reply }) => {
                        let _ = reply.send(self.pass(&partition, offset));
                    }
                    Some(Command::Leave { until, reply }) => {
                        self.core.farewell = Some(reply);
                        self.leave(until).await;
                        return Err(Over::Left);
                    }
                },
                fired = self.lookout.changed() => {
                    self.note_fired(fired?);
                    return Ok(());
                }
                Some(done) = self.works.next() => {
                    match self.finish(done).await {
                        Ok(false) => {}
                        Ok(true) => return Ok(()),
                        Err(trouble) => self.heed(trouble)?,
                    }
                }
                troubles = self.core.parts.common.troubles() => {
                    for (ownership, trouble) in troubles {
                        self.on_trouble(&ownership, trouble);
                    }
                    self.begin_again();
                }
                notice = notice.unwrap_or_else(|| Box::pin(std::future::pending())) => self.on_notice(notice),
                () = sleep_until(next) => {
                    match self.on_time().await {
                        Ok(false) => {}
                        Ok(true) => return Ok(()),
                        Err(trouble) => self.heed(trouble)?,
                    }
                }
            }
            self.publish();
        }
    }

    /// Takes up what a piece of work came to. `true` if that calls for a look.
    async fn finish(&mut self, done: Done) -> Result<bool, Trouble> {
        match done {
            Done::Parted(partitions, answer) => {
                for partition in &partitions {
                    self.parting.remove(partition);
                }
                self.note_holding();
                self.forget_asking();
                for parted in answer? {
                    if parted.is_lost {
                        self.limbo.insert(parted.partition.clone());
                    }
                    if parted.is_forced {
                        self.forced.insert(parted.partition);
                    }
                }
                Ok(true)
            }
            Done::Begun(reader, partitions, begun) => {
                for partition in &partitions {
                    self.beginning.remove(partition);
                }
                let mut trouble = begun.trouble;
                for mut ended in begun.list {
                    if reader != self.reader_number {
                        ended.begun = without_reader(ended.begun);
                    }
                    // Every one is taken up, whatever became of another.
                    if let Err(another) = self.on_begun(ended).await {
                        trouble = Some(another);
                    }
                }
                self.part_with_deferred();
                trouble.map_or(Ok(false), Err)
            }
            Done::Committed(commits, results) => {
                let waiters = std::mem::take(&mut self.commit_waiters_served);
                self.on_committed(commits, results, waiters)?;
                self.part_with_deferred();
                self.serve_waiters();
                Ok(false)
            }
            Done::Listened(call, ran) => {
                let reason = match ran {
                    Some(Ran::Done | Ran::Closed) => return Ok(false),
                    Some(Ran::Panicked(message)) => format!("it panicked: {message}"),
                    None => "it did not end within its time".to_owned(),
                };
                self.tell(Event::ListenerFailed { call, reason });
                Ok(false)
            }
            Done::Heard(reader, answers) => {
                if reader == self.reader_number {
                    self.on_heard(answers);
                }
                Ok(false)
            }
            Done::ReaderClosed => Ok(false),
        }
    }

    /// A look comes by itself, at a time that is set.
    fn is_look_to_come(&self) -> bool {
        self.retry_at.is_some() || self.takeover_at.is_some()
    }

    fn next_moment(&self) -> Instant {
        let retries = self
            .held
            .iter()
            .filter_map(|(partition, held)| self.begins_at(partition, held));
        let blocked = (!self.blocked.is_empty()).then_some(self.next_poll);
        // While a look is to come anyway, what is due waits for it.
        let due = self
            .blocked
            .values()
            .any(|blocked| blocked.is_freed)
            .then(Instant::now)
            .filter(|_| !self.is_look_to_come());
        let stuck = self
            .blocked
            .values()
            .filter_map(|blocked| self.next_word(blocked));
        let moments = [
            Some(self.next_check),
            Some(self.next_listen),
            blocked,
            self.retry_at,
            self.takeover_at,
        ];
        let commit = self
            .core
            .parts
            .config
            .auto_commit
            .then_some(self.next_commit);
        retries
            .chain(stuck)
            .chain(due)
            .chain(moments.into_iter().flatten())
            .chain(commit)
            .min()
            .unwrap_or(self.next_check)
    }

    /// Deals with what the time has come for. `true` if that calls for a look.
    async fn on_time(&mut self) -> Result<bool, Trouble> {
        let now = Instant::now();
        self.begin_again();
        if self.core.parts.config.auto_commit && now >= self.next_commit {
            self.next_commit = now + self.core.parts.config.auto_commit_interval;
            self.commit();
        }
        self.tell_of_waiting(now);
        if now >= self.next_listen {
            self.listen(now);
        }
        if now >= self.next_poll {
            self.next_poll = now + self.session.terms().session_timeout() / 2;
            self.poll_blocked().await?;
        }
        let is_checking = now >= self.next_check;
        if is_checking {
            let check = self.core.parts.config.registration_check_interval;
            self.next_check = now + check.mul_f64(0.75 + self.core.toss() / 2.0);
            self.check().await?;
        }
        let is_due = [self.retry_at, self.takeover_at]
            .into_iter()
            .flatten()
            .any(|at| now >= at);
        if is_due {
            self.retry_at = self.retry_at.filter(|at| now < *at);
            self.takeover_at = self.takeover_at.filter(|at| now < *at);
        }
        let is_free =
            !self.is_look_to_come() && self.blocked.values().any(|blocked| blocked.is_freed);
        // A look ends every self-check: it costs nothing if all is as it was, and bounds whatever no watch told.
        Ok(is_due || is_checking || is_free)
    }

    fn publish(&self) {
        let blocked = self.blocked.iter();
        let snapshot = Snapshot {
            phase: if self.leave_until.is_some() {
                Phase::Leaving
            } else {
                Phase::Joined
            },
            session: Some(self.session.id()),
            lease: Some(self.session.lease.clone()),
            members: self.view.members.len(),
            generation: self.generation,
            is_planned: self.is_planned && !self.is_unfinished && self.retry_at.is_none(),
            held: self
                .held
                .iter()
                .map(|(p, held)| (p.clone(), (held.stream.clone(), held.ownership.clone())))
                .collect(),
            waiting: blocked
                .clone()
                .map(|(p, blocked)| (p.clone(), (blocked.holder.clone(), blocked.since)))
                .collect(),
            stuck: blocked
                .filter(|(_, blocked)| blocked.is_stuck)
                .map(|(p, _)| p.clone())
                .collect(),
            releasing: self.parting.len(),
            starting: self
                .held
                .values()
                .filter(|h| matches!(h.state, HeldState::Beginning | HeldState::Later { .. }))
                .count(),
            held_back: self
                .held
                .iter()
                .filter_map(|(p, held)| held_back(p, held))
                .collect(),
            suspended: self
                .held
                .iter()
                .filter(|(_, held)| held.node.ahead.is_some())
                .map(|(p, _)| p.clone())
                .collect(),
            has_brokers: self.reader.is_some() && !self.standing.contains_key("kafka"),
            failure: None,
        };
        self.core.publish(|old| *old = snapshot);
    }
}

fn held_back(partition: &TopicPartition, held: &Held) -> Option<(TopicPartition, String)> {
    match &held.state {
        HeldState::HeldBack { reason } => Some((partition.clone(), reason.clone())),
        _ => None,
    }
}
