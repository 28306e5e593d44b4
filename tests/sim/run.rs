//! One run: everything a plan says, then the calm in which all must come right, then the judgement.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use evenkeel::clock::TokioClock;
use evenkeel::config::Reset;
use evenkeel::id::IdContext;
use evenkeel::listener::Outside;
use evenkeel::testing::check::{Case, Fact, Hearing, Limits, Verdict};
use evenkeel::testing::{Fate, Inline, Kind, Latency, MemoryRegistry, Request, history};
use evenkeel::{ConsumerConnector, GroupName};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

mod calm;
mod deeds;
mod told;

use crate::facts::Facts;
use crate::kit::{GROUP, Kit, at};
use crate::legacy::Legacy;
use crate::plan::{Deed, LEGACY, MEMBERS, Manner, Mishap, PARTITIONS, Plan};
use crate::process::{Application, Calm, Listener, Place, Process, Switch};
use crate::reading::TracedLog;
use crate::sometimes::Sometimes;
use crate::trace::{Line, Trace, Traced};
use told::tell;

/// The writers of facts that are no members.
const NEMESIS: &str = "nemesis";
const PRODUCER: &str = "producer";

/// What members wait for what is in hand, and then for their listener.
const DRAIN: Duration = Duration::from_secs(2);

/// What came of a run.
pub struct Outcome {
    /// What the judge says.
    pub verdict: Verdict,
    /// What is wrong apart from that: the group did not come to rest, something was not finished.
    pub complaint: Option<String>,
    /// Of every request, answer, fact and event.
    pub hash: u64,
    /// The faults that requests met.
    pub met: Vec<(u64, Mishap)>,
    /// How many requests there were.
    pub requests: u64,
    /// What was counted.
    pub counters: BTreeMap<&'static str, u64>,
    /// The virtual time from the calm until the group stood right, and how long it might have taken.
    pub converged: Option<(Duration, Duration)>,
}

impl Outcome {
    /// All that is wrong, as text; none if nothing is.
    pub fn failure(&self) -> Option<String> {
        let complaint = self.complaint.clone();
        let verdict = (!self.verdict.is_good()).then(|| self.verdict.to_string());
        let all: Vec<String> = complaint.into_iter().chain(verdict).collect();
        (!all.is_empty()).then(|| all.join("\n"))
    }
}

/// Carries a plan out, in a runtime of its own with paused time.
pub fn run(plan: &Plan) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut run = Run::of(plan);
        let complaint = run.go().await;
        run.judge(complaint)
    })
}

/// What ends a fault that lasts.
enum Undo {
    Go(Switch, Option<i64>, String, u64),
    Heal(i64, String, u64),
    Rejoin(usize, Vec<String>, u64),
    Resume(Vec<String>, u64),
    Fast,
    Recreate,
    Mend(i32, i64),
    Respell,
    Clean(String),
    Lead(i32),
    Up,
    /// No fault, but messages for those who may still read and should not.
    Send,
}

struct Run<'a> {
    plan: &'a Plan,
    met: Met,
    kit: Kit,
    facts: Facts,
    trace: Trace,
    sometimes: Sometimes,
    dice: StdRng,
    members: Vec<Process>,
    legacy: Vec<Legacy>,
    jvms: HashSet<tokio::task::Id>,
    /// Everybody of ours that ever was.
    names: BTreeSet<String>,
    leaving: Vec<JoinHandle<()>>,
    rest: Vec<JoinHandle<()>>,
    /// Who take the events down; those of the dead wait for ever.
    watchers: Vec<JoinHandle<()>>,
    undo: BTreeMap<(Instant, u64), Undo>,
    /// How many of the faults that cut a session off are still there.
    silenced: BTreeMap<i64, usize>,
    partitions: i32,
    is_topic_there: bool,
    /// Whom nobody heals, since when, and what gets lost of it.
    stranded: Option<(Process, u64)>,
    joined: u64,
    faults: u64,
    calm: Calm,
    converged: Option<(Duration, Duration)>,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The session timeout that the servers grant.
fn granted(plan: &Plan) -> Duration {
    ms(plan.session_ms).clamp(ms(plan.tick_ms) * 2, ms(plan.tick_ms) * 20)
}

/// Between a client and its server.
fn latency(plan: &Plan) -> Latency {
    let [low, high] = plan.latency_ms.map(ms);
    Latency::between(low, high, plan.seed)
}

/// The faults that requests have met, by the requests' numbers.
type Met = Arc<Mutex<Vec<(u64, Mishap)>>>;

/// Which requests meet which fault. A close meets none, and is not counted.
fn faulty(plan: &Plan, met: Met) -> impl FnMut(&Request) -> Fate + Send + 'static {
    let mut dice = StdRng::seed_from_u64(plan.seed);
    let named: BTreeMap<u64, Mishap> = plan.mishaps.iter().copied().collect();
    let (mut number, one_in) = (0, plan.one_in);
    move |request| {
        if request.kind == Kind::Close {
            return Fate::Deliver;
        }
        number += 1;
        let is_drawn = one_in > 0 && dice.random_range(0..one_in) == 0;
        let mishap = match named.get(&number) {
            Some(mishap) => *mishap,
            None if is_drawn => Mishap::draw(&mut dice),
            None => return Fate::Deliver,
        };
        met.lock().expect("no panic").push((number, mishap));
        match mishap {
            Mishap::LoseBefore => Fate::LoseBefore,
            Mishap::LoseAfter => Fate::LoseAfter,
            Mishap::BreakBefore => Fate::BreakBefore,
            Mishap::BreakAfter => Fate::BreakAfter,
            Mishap::Delay { ms: time } => Fate::Delay(ms(time)),
            Mishap::DelayAnswer { ms: time } => Fate::DelayAnswer(ms(time)),
        }
    }
}

impl<'a> Run<'a> {
    fn of(plan: &'a Plan) -> Self {
        let mut registry = MemoryRegistry::new()
            .with_tick(ms(plan.tick_ms))
            .with_lag(ms(plan.lag_ms))
            .with_sync_limit(ms(plan.sync_limit_ms))
            .with_latency(latency(plan));
        if plan.is_old {
            registry = registry.with_version(3, 4);
        }
        if plan.servers > 1 {
            let [low, high] = plan.relay_ms.map(ms);
            let relay = Latency::between(low, high, !plan.seed);
            registry = registry.with_servers(plan.servers, relay);
        }
        let met = Met::default();
        let registry = registry.with_fate(faulty(plan, met.clone()));
        let trace = Trace::new();
        let facts = Facts::of(&registry, &trace);
        facts.came(NEMESIS);
        facts.came(PRODUCER);
        let sometimes = Sometimes::new(&facts, &registry);
        let kit = Kit::on(registry);
        let _ = kit.log.clone().with_delay(ms(plan.brokers_ms));
        kit.create("t", plan.partitions);
        // The servers' clock began with the run, and so did this one.
        let real_us = kit.registry.log()[0].time_ms * 1000;
        facts.note("clock", Fact::Clock { real_us });
        Self {
            plan,
            met,
            kit,
            facts,
            trace,
            sometimes,
            dice: StdRng::seed_from_u64(plan.seed.rotate_left(17)),
            members: Vec::new(),
            legacy: Vec::new(),
            jvms: HashSet::new(),
            names: BTreeSet::new(),
            leaving: Vec::new(),
            rest: Vec::new(),
            watchers: Vec::new(),
            undo: BTreeMap::new(),
            silenced: BTreeMap::new(),
            partitions: plan.partitions,
            is_topic_there: true,
            stranded: None,
            joined: 0,
            faults: 0,
            calm: Calm::default(),
            converged: None,
        }
    }

    async fn go(&mut self) -> Option<String> {
        let driver = self.kit.registry.clone();
        let driver = tokio::spawn(async move { driver.drive().await });
        self.send(1);
        for step in &self.plan.steps {
            self.pass(ms(step.after_ms)).await;
            self.carry_out(&step.deed);
        }
        self.pass(ms(500)).await;
        let complaint = self.calm_down().await.err();
        driver.abort();
        self.watchers.iter().for_each(JoinHandle::abort);
        complaint
    }

    /// Lets time pass, and what is due in it happen.
    async fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Some(entry) = self.undo.first_entry()
            && entry.key().0 <= until
        {
            let at = entry.key().0;
            let undo = entry.remove();
            sleep_until(at).await;
            self.put_right(undo);
        }
        sleep_until(until).await;
    }

    fn later(&mut self, after: u64, undo: Undo) {
        self.faults += 1;
        self.undo
            .insert((Instant::now() + ms(after), self.faults), undo);
    }

    /// Messages come all the time that a session may take to end.
    fn tempt(&mut self) {
        for hundredths in [52, 60, 68, 76, 84, 92, 99, 108] {
            self.later(self.plan.session_ms * hundredths / 100, Undo::Send);
        }
    }

    fn put_right(&mut self, undo: Undo) {
        self.sometimes.look();
        let registry = &self.kit.registry;
        match undo {
            Undo::Go(switch, session, member, from) => {
                let to = self.facts.now();
                let member = Arc::from(member.as_str());
                self.facts.note(NEMESIS, Fact::Stopped { member, from, to });
                if let Some(session) = session {
                    self.hear(session);
                }
                switch.go();
            }
            Undo::Heal(session, member, from) => {
                self.hear(session);
                self.was_cut(&[member], from);
            }
            Undo::Rejoin(server, members, from) => {
                registry.rejoin(server);
                self.was_cut(&members, from);
            }
            Undo::Resume(members, from) => {
                registry.resume();
                self.was_cut(&members, from);
            }
            Undo::Fast => {
                let _ = registry.clone().with_latency(latency(self.plan));
            }
            Undo::Recreate => self.make_topic(),
            Undo::Mend(partition, offset) => self.mend(partition, offset),
            Undo::Respell => self.respell(),
            Undo::Clean(path) => registry.delete(&path),
            Undo::Lead(partition) => {
                let _ = self.kit.log.set_leader(&at("t", partition), true);
            }
            Undo::Up => self.kit.log.come_up(),
            Undo::Send => self.send(1),
        }
    }

    fn was_cut(&self, members: &[String], from: u64) {
        let to = self.facts.now();
        for member in members {
            let member = Arc::from(member.as_str());
            self.facts.note(NEMESIS, Fact::Cut { member, from, to });
        }
    }

    fn everybody(&self) -> Vec<String> {
        self.members.iter().map(|m| m.name.clone()).collect()
    }

    // ---- deeds ----

    fn carry_out(&mut self, deed: &Deed) {
        self.trace.note(deed);
        self.sometimes.look();
        match *deed {
            Deed::Join if self.members.len() < MEMBERS => self.join(None),
            Deed::Leave { place, within_ms } if self.members.len() > 1 => {
                let process = self.take(place);
                self.leave(process, within_ms);
            }
            Deed::Drop { place } if self.members.len() > 1 => {
                let mut process = self.take(place);
                drop(process.connector.take());
                self.rest.append(&mut process.tasks);
            }
            Deed::Kill { place, returns } if self.members.len() > 1 => self.kill(place, returns),
            Deed::Send { each } => self.send(each),
            Deed::Grow if self.partitions < PARTITIONS && self.is_topic_there => {
                self.partitions += 1;
                self.kit.grow("t", self.partitions);
            }
            Deed::JoinLegacy if self.legacy.len() < LEGACY => self.join_legacy(),
            Deed::LeaveLegacy { place } if !self.legacy.is_empty() => {
                let legacy = self.legacy.swap_remove(place % self.legacy.len());
                legacy.leave();
                self.rest.push(legacy.task);
            }
            Deed::PauseLegacy { place, ms } if !self.legacy.is_empty() => {
                let legacy = &self.legacy[place % self.legacy.len()];
                let (switch, session) = (legacy.switch.clone(), legacy.session());
                self.stop(switch, session, legacy.name.clone(), ms);
            }
            ref other => self.disturb(other),
        }
    }

    /// A process stands still for a while, and its server hears nothing of it.
    fn stop(&mut self, switch: Switch, session: Option<i64>, name: String, ms: u64) {
        switch.stop();
        if let Some(session) = session {
            self.silence(session);
        }
        let from = self.facts.now();
        self.later(ms, Undo::Go(switch, session, name, from));
    }

    fn silence(&mut self, session: i64) {
        *self.silenced.entry(session).or_default() += 1;
        self.kit.registry.cut(session);
    }

    /// One of the reasons for its silence is over; the last of them heals it.
    fn hear(&mut self, session: i64) {
        let left = self.silenced.get_mut(&session);
        let left = left.map_or(0, |left| {
            *left -= 1;
            *left
        });
        if left == 0 {
            self.silenced.remove(&session);
            self.kit.registry.heal(session);
        }
    }

    fn take(&mut self, place: usize) -> Process {
        let place = place % self.members.len();
        self.members.swap_remove(place)
    }

    fn process(&self, place: usize) -> Option<&Process> {
        self.members.get(place % self.members.len().max(1))
    }

    fn session(&self, place: usize) -> Option<i64> {
        self.process(place)?.session()
    }

    fn send(&mut self, each: usize) {
        if !self.is_topic_there {
            return;
        }
        for partition in 0..self.partitions {
            for _ in 0..each {
                let offset = self.kit.send_to("t", partition);
                let partition = at("t", partition);
                self.facts.note(PRODUCER, Fact::Sent { partition, offset });
            }
        }
    }

    fn join_legacy(&mut self) {
        self.joined += 1;
        // Before and behind all of ours in their order.
        let name = format!(
            "{}jvm{}",
            if self.joined.is_multiple_of(2) {
                ""
            } else {
                "z"
            },
            self.joined
        );
        let registry = self.traced(&Line::default(), false);
        let legacy = Legacy::start(&name, &registry, &self.kit.log, &self.facts);
        self.jvms.insert(legacy.task.id());
        self.facts.count("legacy member");
        self.legacy.push(legacy);
    }

    /// A new member, or one that comes back under its old name.
    fn join(&mut self, again: Option<(String, String)>) {
        self.joined += 1;
        let manner = &self.plan.manners[self.joined as usize % self.plan.manners.len()];
        let joined = self.joined;
        let new = || (format!("h{joined}"), format!("{joined:016x}"));
        let (host, random) = again.unwrap_or_else(new);
        let mut config = self.kit.config();
        config.session_timeout = ms(self.plan.session_ms);
        config.auto_commit_interval = ms(manner.commit_every_ms);
        config.drain_timeout = DRAIN;
        config.legacy_handover_delay = ms(50);
        let group = GroupName::new(GROUP).expect("a good name");
        let context = IdContext::new(&host, &group, random.clone()).expect("a good host");
        let (line, switch) = (Line::default(), Switch::default());
        let registry = self.traced(&line, true);
        let name = Arc::default();
        let log = TracedLog {
            log: self.kit.log.clone(),
            trace: self.trace.clone(),
            sometimes: self.sometimes.clone(),
            name: Arc::clone(&name),
        };
        let slow = manner.listener_ms.filter(|time| *time > 0);
        let place = slow.map(|time| Place::new(&name, &self.facts, &switch, ms(time)));
        let listener = Listener::new(&name, &self.facts, manner, place.as_ref());
        let outside: Arc<dyn Outside> = match place {
            Some(place) => Arc::new(place),
            None => Arc::new(Inline::new()),
        };
        let mut builder = ConsumerConnector::builder(config)
            .with_registry(Arc::new(registry))
            .with_reader_source(Arc::new(log))
            .with_clock(Arc::new(TokioClock::new()))
            .with_outside(outside)
            .with_id_context(context);
        if manner.listener_ms.is_some() {
            builder = builder.with_listener(Arc::new(listener));
        }
        let process = self.start((host, random), builder, manner, (line, switch), &name);
        self.members.push(process);
    }

    fn traced(&self, line: &Line, is_ours: bool) -> Traced {
        let registry = self.kit.registry.clone();
        Traced {
            registry: registry.with_session_timeout(ms(self.plan.session_ms)),
            trace: self.trace.clone(),
            line: line.clone(),
            sometimes: is_ours.then(|| self.sometimes.clone()),
        }
    }

    fn start(
        &mut self,
        (host, random): (String, String),
        builder: evenkeel::Builder,
        manner: &Manner,
        (line, switch): (Line, Switch),
        known: &OnceLock<String>,
    ) -> Process {
        let topics = [(crate::kit::topic("t"), manner.streams)];
        let (connector, streams, coordinator) = builder.into_future(topics).expect("good settings");
        let name = connector.consumer_id().to_string();
        known.set(name.clone()).expect("it had none");
        self.facts.came(&name);
        self.names.insert(name.clone());
        let mut tasks = vec![tokio::spawn(switch.over(coordinator))];
        for stream in streams.into_values().flatten() {
            let seed = self.dice.random();
            let application = Application::new(&name, &self.facts, seed, self.calm.clone());
            let application = application.run(stream, manner.work.clone());
            tasks.push(tokio::spawn(switch.over(application)));
        }
        let (mut events, facts, trace) =
            (connector.events(), self.facts.clone(), self.trace.clone());
        let (member, sometimes, mut hearing) =
            (name.clone(), self.sometimes.clone(), Hearing::new());
        self.watchers.push(tokio::spawn(async move {
            while let Some(event) = events.next().await {
                trace.note(&(&member, &event));
                sometimes.hears(&member, &event);
                tell(&facts, &mut hearing, &member, event);
            }
        }));
        Process {
            name,
            host,
            random,
            connector: Some(connector),
            switch,
            line,
            tasks,
        }
    }

    fn leave(&mut self, mut process: Process, within: u64) {
        let connector = process.connector.take().expect("it has not left");
        self.rest.append(&mut process.tasks);
        self.leaving.push(tokio::spawn(async move {
            let _ = connector.shutdown(ms(within)).await;
        }));
    }

    fn kill(&mut self, place: usize, returns: bool) {
        let place = place % self.members.len();
        let Some(session) = self.members[place].session() else {
            return;
        };
        let mut process = self.members.swap_remove(place);
        self.kit.registry.kill(session);
        process.tasks.iter().for_each(JoinHandle::abort);
        process.switch.kill();
        // The handle's drop would fence, which a dead process cannot.
        std::mem::forget(process.connector.take());
        let member = Arc::from(process.name.as_str());
        self.facts.note(NEMESIS, Fact::Killed { member });
        if returns {
            self.join(Some((process.host, process.random)));
        }
    }

    fn requests(&self) -> u64 {
        let sessions = self.kit.registry.sessions().into_iter();
        let counts = sessions.flat_map(|session| session.requests);
        let counted = counts.filter(|(kind, _)| !matches!(kind, Kind::Close | Kind::Unwatch));
        counted.map(|(_, count)| count).sum()
    }

    fn judge(self, complaint: Option<String>) -> Outcome {
        let limits = Limits::exact(granted(self.plan));
        let case = Case::new(GroupName::new(GROUP).expect("a good name"))
            .with_ours(self.names.iter().map(String::as_str))
            .with_history(history(&self.kit.registry.log()))
            .with_events(self.facts.events())
            .with_policy(Reset::Smallest)
            .with_limits(limits);
        self.sometimes.sums_up();
        Outcome {
            verdict: case.judge(),
            complaint,
            hash: self.trace.hash(),
            met: self.met.lock().expect("no panic").clone(),
            requests: self.requests(),
            counters: self.facts.counters(),
            converged: self.converged,
        }
    }
}
