//! One session of a member at work: look, plan, hand over, claim, feed, wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::config::MalformedPeer;
use crate::coordinator::begin::{Beginner, Beginning, Begun, From};
use crate::coordinator::keeper::Keeper;
use crate::coordinator::part::{Departure, Farewell, Parted};
use crate::coordinator::{Command, Coordinator, Over, Phase, Snapshot, stopped};
use crate::error::{Error, ErrorKind};
use crate::event::{Event, Holder, LostCause, ResetCause};
use crate::filter::{Expansion, expand};
use crate::group::{Assignment, ConsumerId, GroupView, StreamId, Topic, TopicPartition};
use crate::listener::{Ran, RebalanceListener};
use crate::rebalance::{Plan, plan};
use crate::registry::Later;
use crate::session::{
    Claim, Claimed, Commit, Committed, Lookout, OwnerNode, Session, Trouble, Want, Watched, holder,
};
use crate::stream::{Notice, Ownership, Reader, Trouble as ReadTrouble};
use crate::wire::paths;

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
    version: Option<i32>,
    committed: Option<i64>,
    state: HeldState,
    /// Somebody set the offset forward: nothing is committed until we pass it.
    ahead: Option<i64>,
    retries: u32,
    is_new: bool,
    /// The transaction that created the topic.
    topic_created: i64,
    /// The topic was made anew while this was being begun.
    remade: Option<From>,
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

/// A partition that should be ours and is held by somebody else.
struct Blocked {
    holder: Holder,
    since: Instant,
    /// When its owner node went, so that it may be claimed.
    freed: Option<Instant>,
    is_told: bool,
    is_stuck: bool,
}

/// Work that goes on beside the waiting, and what came of it.
pub(super) enum Done {
    Parted(Vec<TopicPartition>, Result<Vec<Parted>, Trouble>),
    Begun(
        Vec<TopicPartition>,
        Vec<(Arc<Ownership>, bool, Begun)>,
        Vec<Event>,
    ),
    Committed(
        Vec<Commit>,
        Result<BTreeMap<TopicPartition, Committed>, Trouble>,
    ),
    /// How a call of the listener ended; none if it did not in its time.
    Listened(&'static str, Option<Ran>),
    ReaderClosed,
}

pub(super) struct Serving<'a> {
    core: &'a mut Coordinator,
    session: Arc<Session>,
    lookout: Lookout,
    fired: BTreeSet<Watched>,
    held: BTreeMap<TopicPartition, Held>,
    parting: BTreeMap<TopicPartition, Arc<Ownership>>,
    /// Fenced, and waiting for a beginning or a commit that is under way before they are given up.
    deferred: BTreeMap<TopicPartition, (Farewell, bool)>,
    beginning: BTreeSet<TopicPartition>,
    is_committing: bool,
    commit_waiters: Vec<oneshot::Sender<Result<(), Error>>>,
    /// So many of them asked before the commit that is under way began.
    commit_waiters_served: usize,
    /// Claims that were sent and whose outcome is not known: an owner node of ours may stand there.
    limbo: BTreeSet<TopicPartition>,
    is_commit_asked: Arc<AtomicBool>,
    blocked: BTreeMap<TopicPartition, Blocked>,
    works: FuturesUnordered<Later<Done>>,
    reader: Option<Arc<dyn Reader>>,
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
    forced: BTreeSet<TopicPartition>,
    leave_until: Option<Instant>,
    has_claims_open: bool,
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
            is_committing: false,
            commit_waiters: Vec::new(),
            commit_waiters_served: 0,
            limbo: BTreeSet::new(),
            is_commit_asked: Arc::default(),
            blocked: BTreeMap::new(),
            works: left_over.into_iter().collect(),
            reader: None,
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
            forced: BTreeSet::new(),
            leave_until: None,
            has_claims_open: false,
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
        tokio::select! {
            biased;
            () = session.ended() => Over::SessionLost,
            trouble = keeper.keep() => trouble.into(),
            over = self.work() => over,
            () = stop => Over::Left,
        }
    }

    async fn work(&mut self) -> Over {
        loop {
            match self.settle().await {
                Ok(()) => {
                    self.is_planned = self.reader.is_some();
                    self.look_again_if_open();
                }
                Err(Trouble::Transient(why)) => {
                    tracing::debug!(why, "looking again soon");
                    self.retries += 1;
                    let pause =
                        Duration::from_millis(50) * 2u32.saturating_pow(self.retries.min(5));
                    self.retry_at = Some(Instant::now() + pause.min(Duration::from_secs(1)));
                }
                Err(trouble) => return trouble.into(),
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

    /// A claim that was not settled is tried again: at once the first time, then ever later.
    fn look_again_if_open(&mut self) {
        if !self.has_claims_open {
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

    // ---- look, plan, hand over, claim ----

    async fn settle(&mut self) -> Result<(), Trouble> {
        loop {
            let fired = self.lookout.changed_already()?;
            self.fired.extend(fired);
            self.find_brokers().await?;
            self.check_owners().await?;
            self.recheck_held_back().await?;
            let expansion = self.look().await?;
            self.find_brokers().await?;
            let plan = self.plan(&expansion).await;
            self.hand_over(&plan).await;
            self.discard_strays(&plan).await?;
            self.claim(&plan).await?;
            let fired = self.lookout.changed_already()?;
            self.fired.extend(fired);
            if !self.fired.iter().any(|watched| self.concerns_us(watched)) {
                return Ok(());
            }
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

    async fn find_brokers(&mut self) -> Result<(), Trouble> {
        if !self.core.parts.source.needs_brokers() {
            return self.open_reader(&[]);
        }
        if self.reader.is_some() && self.lookout.is_armed(&Watched::Brokers) {
            return Ok(());
        }
        self.fired.remove(&Watched::Brokers);
        let brokers = self.lookout.brokers().await?;
        if brokers.is_empty() {
            if self.reader.is_none() {
                let reason = format!(
                    "{} lists none; waiting for one to register",
                    paths::broker_ids()
                );
                self.stand("brokers", Some(Event::BrokersMissing { reason }));
            }
            return Ok(());
        }
        if self.standing.remove("brokers").is_some() {
            self.tell(Event::BrokersBack);
        }
        let addresses: BTreeSet<String> = brokers
            .iter()
            .flat_map(|b| b.endpoints.iter().map(ToString::to_string))
            .collect();
        if self.reader.is_some() && !self.brokers.is_disjoint(&addresses) {
            return Ok(());
        }
        // None of the brokers that the client knows is left (T6).
        self.brokers = addresses;
        self.drop_reader();
        self.open_reader(&brokers)
    }

    fn open_reader(&mut self, brokers: &[crate::wire::Broker]) -> Result<(), Trouble> {
        if self.reader.is_some() {
            return Ok(());
        }
        match self.core.parts.source.open(brokers, self.expected_share()) {
            Ok(reader) => {
                self.reader = Some(reader);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Config => Err(Trouble::Fatal(error)),
            Err(error) => Err(Trouble::Transient(error.to_string())),
        }
    }

    /// How many partitions we are likely to read: twice an equal share of what the present members have in common.
    fn expected_share(&self) -> usize {
        let own = self.core.parts.subscription.keys();
        let partitions: usize = own
            .filter_map(|topic| self.view.partitions.get(topic))
            .map(Vec::len)
            .sum();
        if partitions == 0 {
            // Its topics are still to come.
            return UNKNOWN_SHARE;
        }
        (partitions * 2)
            .div_ceil(self.view.members.len().max(1))
            .min(partitions)
    }

    fn drop_reader(&mut self) {
        let Some(reader) = self.reader.take() else {
            return;
        };
        let now = Instant::now();
        for held in self
            .held
            .values_mut()
            .filter(|held| matches!(held.state, HeldState::Reading))
        {
            // What it still gave out would come again, and be passed over by the commit.
            held.ownership.pause();
            if let Some(from) = resume(held) {
                held.state = HeldState::Later { at: now, from };
            }
        }
        self.works.push(Box::pin(async move {
            reader.close().await;
            Done::ReaderClosed
        }));
    }

    /// Owner nodes that changed: is what we hold still ours, is what we wait for free?
    async fn check_owners(&mut self) -> Result<(), Trouble> {
        let mut changed = BTreeSet::new();
        for watched in &self.fired {
            if let Watched::Owner(partition) = watched {
                changed.insert(partition.clone());
            }
        }
        let ours: BTreeSet<TopicPartition> = changed
            .iter()
            .filter(|p| self.held.contains_key(*p))
            .cloned()
            .collect();
        self.verify(&ours).await?;
        for partition in changed {
            if let Some(blocked) = self.blocked.get_mut(&partition) {
                blocked.freed.get_or_insert_with(Instant::now);
            }
            self.fired.remove(&Watched::Owner(partition));
        }
        Ok(())
    }

    /// Reads owner nodes that should be ours, watches them, and lets go of what is not ours any more.
    async fn verify(&mut self, partitions: &BTreeSet<TopicPartition>) -> Result<(), Trouble> {
        let nodes = self.lookout.watch_owners(partitions).await?;
        let mut lost = BTreeSet::new();
        for (partition, node) in nodes {
            let Some(held) = self.held.get(&partition) else {
                continue;
            };
            let is_ours = node.is_some_and(|OwnerNode { stat, .. }| {
                stat.czxid == held.ownership.token
                    && stat.ephemeral_owner == self.session.id()
                    && stat.version == 1
            });
            if !is_ours {
                lost.insert(partition);
            }
        }
        self.lose(&lost, LostCause::OwnerNodeGone);
        Ok(())
    }

    fn lose(&mut self, partitions: &BTreeSet<TopicPartition>, cause: LostCause) {
        let mut lost = BTreeSet::new();
        for partition in partitions {
            let Some(held) = self.held.remove(partition) else {
                continue;
            };
            let progress = held.ownership.end();
            lost.insert(partition.clone());
            self.tell(Event::Lost {
                partition: partition.clone(),
                cause,
                undone: progress.undone,
            });
        }
        self.note_holding();
        self.after_losing(lost, cause);
    }

    /// The lease is kept as long as there is something to keep it for.
    fn note_holding(&self) {
        self.holds
            .send_replace(!self.held.is_empty() || !self.parting.is_empty());
    }

    fn after_losing(&mut self, lost: BTreeSet<TopicPartition>, cause: LostCause) {
        if lost.is_empty() {
            return;
        }
        // What follows is found by a look, also if no watch told of the loss.
        self.retry_at = Some(Instant::now());
        self.is_planned = false;
        self.publish();
        if let Some(reader) = &self.reader {
            let list: Vec<TopicPartition> = lost.iter().cloned().collect();
            reader.stop(&list);
        }
        let listened = self.call("on_lost", move |listener| listener.on_lost(&lost, cause));
        self.works.extend(listened);
    }

    /// Calls the listener, if there is one, in its own place; nobody waits longer than its time.
    fn call(
        &self,
        name: &'static str,
        call: impl FnOnce(&dyn RebalanceListener) + Send + 'static,
    ) -> Option<Later<Done>> {
        let parts = &self.core.parts;
        let listener = parts.listener.clone()?;
        let ran = parts.outside.run(Box::new(move || call(&*listener)));
        let time = parts.config.drain_timeout;
        Some(Box::pin(async move {
            Done::Listened(name, timeout(time, ran).await.ok())
        }))
    }

    /// Offset nodes of partitions that are held back: somebody may have repaired them.
    async fn recheck_held_back(&mut self) -> Result<(), Trouble> {
        let changed: Vec<Watched> = self
            .fired
            .iter()
            .filter(|w| matches!(w, Watched::Offset(_)))
            .cloned()
            .collect();
        let now = Instant::now();
        for watched in changed {
            let Watched::Offset(partition) = &watched else {
                continue;
            };
            let created = self.lookout.topic_created(&partition.topic).unwrap_or(0);
            if let Some(held) = self.held.get_mut(partition)
                && matches!(held.state, HeldState::HeldBack { .. })
            {
                let stored = self.session.read_offset(partition, created).await?;
                held.version = stored.version;
                held.state = HeldState::Later {
                    at: now,
                    from: From::Stored(stored),
                };
            }
            self.fired.remove(&watched);
        }
        Ok(())
    }

    async fn look(&mut self) -> Result<Expansion, Trouble> {
        let internal = self.core.parts.config.internal_topics();
        let own: BTreeSet<Topic> = self.core.parts.subscription.keys().cloned().collect();
        let wants_all = self.core.parts.assignor.needs_all_topics();
        let interest = |view: &GroupView| {
            let mut topics = own.clone();
            if wants_all {
                topics.extend(
                    expand(view, internal)
                        .subscriptions
                        .into_values()
                        .flat_map(BTreeMap::into_keys),
                );
            }
            topics
        };
        for watched in [Watched::Members, Watched::Topics] {
            self.fired.remove(&watched);
        }
        self.fired
            .retain(|watched| !matches!(watched, Watched::Topic(_)));
        self.view = self.lookout.look(&interest).await?;
        for (topic, ids) in &self.view.partitions {
            let known = &mut self.core.known;
            known
                .entry(topic.clone())
                .or_insert_with(|| ids.iter().copied().collect());
        }
        self.begin_remade_topics_anew();
        let expansion = expand(&self.view, internal);
        self.tell_of_view(&expansion);
        Ok(expansion)
    }

    /// A topic that was deleted and made again between two looks: what we hold of it is another log now (ruling 26).
    fn begin_remade_topics_anew(&mut self) {
        let now = Instant::now();
        for (partition, held) in &mut self.held {
            let created = self.lookout.topic_created(&partition.topic);
            let Some(created) = created.filter(|created| *created != held.topic_created) else {
                continue;
            };
            held.topic_created = created;
            let from = From::Reset {
                cause: ResetCause::TopicRecreated,
                before: held.committed,
                version: held.version,
            };
            // A beginning that is under way takes it up when it is done.
            match held.state {
                HeldState::Beginning => held.remade = Some(from),
                _ => held.state = HeldState::Later { at: now, from },
            }
            held.ahead = None;
            held.ownership.pause();
        }
    }

    fn tell_of_view(&mut self, expansion: &Expansion) {
        let group = self.session.group().clone();
        let mut now: BTreeMap<String, Event> = BTreeMap::new();
        for (consumer, reason) in &self.view.malformed {
            let path = paths::id(&group, consumer).unwrap_or_default();
            now.insert(
                format!("member {consumer}"),
                Event::MemberMalformed {
                    path,
                    reason: reason.clone(),
                },
            );
        }
        for (topic, reason) in &self.view.unreadable {
            let event = Event::TopicMalformed {
                path: paths::topic(topic),
                reason: reason.clone(),
            };
            now.insert(format!("topic {topic}"), event);
        }
        for topic in self
            .core
            .parts
            .subscription
            .keys()
            .filter(|topic| self.lookout.is_missing(topic))
        {
            now.insert(
                format!("missing {topic}"),
                Event::TopicMissing {
                    topic: topic.clone(),
                },
            );
        }
        for (consumer, reason) in &expansion.beyond {
            let event = Event::FilterBeyondUs {
                consumer: consumer.clone(),
                reason: reason.clone(),
            };
            now.insert(format!("filter {consumer}"), event);
        }
        self.stand_all("member ", &mut now);
        self.stand_all("topic ", &mut now);
        self.stand_all("missing ", &mut now);
        self.stand_all("filter ", &mut now);
    }

    /// Conditions that stand are told when they begin, and again only after they had ended.
    fn stand_all(&mut self, family: &str, now: &mut BTreeMap<String, Event>) {
        self.standing
            .retain(|key, _| !key.starts_with(family) || now.contains_key(key));
        let new: Vec<String> = now
            .keys()
            .filter(|key| key.starts_with(family))
            .cloned()
            .collect();
        for key in new {
            let event = now.remove(&key);
            self.stand(&key, event);
        }
    }

    fn stand(&mut self, key: &str, event: Option<Event>) {
        match event {
            None => {
                self.standing.remove(key);
            }
            Some(event) => {
                if self.standing.get(key) != Some(&event) {
                    self.tell(event.clone());
                    self.standing.insert(key.to_owned(), event);
                }
            }
        }
    }

    async fn plan(&mut self, expansion: &Expansion) -> Plan {
        let held: BTreeMap<TopicPartition, StreamId> = self
            .held
            .iter()
            .map(|(p, h)| (p.clone(), h.stream.clone()))
            .collect();
        let keep = Plan {
            keep: held.keys().cloned().collect(),
            ..Plan::default()
        };
        // Releases are decided also while no broker is known; claims wait for one.
        let is_poisoned = self.core.parts.config.malformed_peer == MalformedPeer::AsJvm
            && !self.view.malformed.is_empty();
        // A rule that deals over all topics of the group is upset by any topic of any member.
        let is_beyond = self.core.parts.assignor.needs_all_topics() && !expansion.beyond.is_empty();
        if is_poisoned || is_beyond {
            return keep;
        }
        let mut frozen = expansion.unsure.clone();
        frozen.extend(self.view.unreadable.keys().cloned());
        match self.assign(expansion).await {
            Ok(assignment) => {
                self.stand("assignment", None);
                plan(self.session.me(), &assignment, &held, &frozen)
            }
            Err(reason) => {
                self.stand("assignment", Some(Event::AssignmentRefused { reason }));
                keep
            }
        }
    }

    async fn assign(&mut self, expansion: &Expansion) -> Result<Assignment, String> {
        let assignor = self.core.parts.assignor.clone();
        let subscriptions = expansion.subscriptions.clone();
        let partitions = self.view.partitions.clone();
        let size: usize = partitions.values().map(Vec::len).sum();
        if !self.core.parts.is_foreign_assignor && size <= LARGE {
            if let Some(doubt) = assignor.doubt(&subscriptions, &partitions) {
                self.stand("doubt", Some(Event::Warning { what: doubt }));
            }
            return assignor
                .assign(&subscriptions, &partitions)
                .map_err(|error| error.to_string());
        }
        let (answer, answered) = oneshot::channel();
        let ran = self.core.parts.outside.run(Box::new(move || {
            let _ = answer.send(assignor.assign(&subscriptions, &partitions));
        }));
        let deadline = self.session.terms().session_timeout();
        match timeout(deadline, ran).await {
            Ok(Ran::Done) => match answered.await {
                Ok(assignment) => assignment.map_err(|error| error.to_string()),
                Err(_) => Err("the assignor gave no answer".to_owned()),
            },
            Ok(Ran::Panicked(message)) => Err(format!("the assignor panicked: {message}")),
            Ok(Ran::Closed) => Err("there is no place left to run the assignor".to_owned()),
            Err(_) => Err(format!(
                "the assignor did not answer within {} ms",
                deadline.as_millis()
            )),
        }
    }

    // ---- hand over ----

    async fn hand_over(&mut self, plan: &Plan) {
        let wanted = plan.keep.len() + plan.claim.len();
        let waiting = plan.claim.len();
        if !plan.release.is_empty()
            || plan
                .claim
                .keys()
                .any(|p| !self.blocked.contains_key(p) && !self.is_leaving_us(p))
        {
            self.generation += 1;
            self.tell(Event::Rebalanced {
                generation: self.generation,
                members: self.view.members.len(),
                wanted,
                waiting,
                releasing: plan.release.len(),
            });
        }
        // What is not to be ours any more is not waited for either.
        self.blocked
            .retain(|partition, _| plan.claim.contains_key(partition));
        if plan.release.is_empty() {
            return;
        }
        let jvms = self.jvm_heirs(plan).await;
        let is_jvm = |heir: &Option<StreamId>| {
            heir.as_ref()
                .is_some_and(|stream| jvms.contains(&stream.consumer()))
        };
        let list = plan
            .release
            .iter()
            .map(|(partition, heir)| (partition.clone(), is_jvm(heir)))
            .collect();
        self.part_with(list);
    }

    fn is_leaving_us(&self, partition: &TopicPartition) -> bool {
        self.parting.contains_key(partition) || self.deferred.contains_key(partition)
    }

    async fn jvm_heirs(&mut self, plan: &Plan) -> BTreeSet<ConsumerId> {
        let heirs: BTreeSet<ConsumerId> = plan
            .release
            .values()
            .flatten()
            .map(StreamId::consumer)
            .collect();
        let mut jvms = BTreeSet::new();
        for heir in heirs {
            let looks_like_one = self
                .view
                .members
                .get(&heir)
                .is_some_and(|member| !member.is_ours);
            if looks_like_one && self.lookout.is_jvm(&heir).await {
                jvms.insert(heir);
            }
        }
        jvms
    }

    /// Fences these and begins to give them up.
    fn part_with(&mut self, list: Vec<(TopicPartition, bool)>) {
        let mut ready = Vec::new();
        let mut stopped = Vec::new();
        for (partition, is_to_jvm) in list {
            let Some(held) = self.held.remove(&partition) else {
                continue;
            };
            held.ownership.fence();
            stopped.push(partition.clone());
            self.parting
                .insert(partition.clone(), held.ownership.clone());
            let farewell = Farewell {
                ownership: held.ownership,
                version: held.version,
                committed: held.committed,
                // The offsets of a topic that was deleted are left as they are (T2).
                is_suspended: held.ahead.is_some() || self.lookout.is_missing(&partition.topic),
                is_to_jvm,
            };
            if self.is_committing || self.beginning.contains(&partition) {
                self.deferred.insert(partition, (farewell, is_to_jvm));
            } else {
                ready.push(farewell);
            }
        }
        if let Some(reader) = &self.reader {
            reader.stop(&stopped);
        }
        self.depart(ready);
    }

    /// Those that waited for something of ours to end go now, if it has.
    fn part_with_deferred(&mut self) {
        if self.is_committing {
            return;
        }
        let ready: Vec<TopicPartition> = self
            .deferred
            .keys()
            .filter(|p| !self.beginning.contains(*p))
            .cloned()
            .collect();
        let ready = ready
            .iter()
            .filter_map(|partition| self.deferred.remove(partition))
            .map(|(farewell, _)| farewell)
            .collect();
        self.depart(ready);
    }

    fn depart(&mut self, list: Vec<Farewell>) {
        if list.is_empty() {
            return;
        }
        let partitions = list
            .iter()
            .map(|farewell| farewell.ownership.partition.clone())
            .collect();
        let parts = &self.core.parts;
        let departure = Departure {
            session: self.session.clone(),
            common: parts.common.clone(),
            outlets: parts.outlets.clone(),
            listener: parts.listener.clone(),
            outside: parts.outside.clone(),
            commits: parts.config.auto_commit,
            is_commit_asked: self.is_commit_asked.clone(),
            drain_until: self.drain_until(),
            delay: parts.config.legacy_handover_delay,
        };
        self.works.push(Box::pin(async move {
            Done::Parted(partitions, departure.part(list).await)
        }));
    }

    /// When a drain is cut short. Before the end of a shutdown there must be time to commit what is done by then.
    fn drain_until(&self) -> Instant {
        let now = Instant::now();
        let until = now + self.core.parts.config.drain_timeout;
        match self.leave_until {
            None => until,
            Some(end) => {
                let left = end.saturating_duration_since(now);
                until.min(end - (left / 4).min(LAST_WORDS))
            }
        }
    }

    // ---- claim ----

    async fn claim(&mut self, plan: &Plan) -> Result<(), Trouble> {
        self.has_claims_open = false;
        if self.reader.is_none() || self.leave_until.is_some() {
            return Ok(());
        }
        let candidates: BTreeMap<TopicPartition, StreamId> = plan
            .claim
            .iter()
            .filter(|(partition, _)| {
                !self.held.contains_key(*partition) && !self.is_leaving_us(partition)
            })
            .filter(|(partition, _)| {
                self.blocked
                    .get(*partition)
                    .is_none_or(|blocked| self.is_due(blocked))
            })
            .map(|(partition, stream)| (partition.clone(), stream.clone()))
            .collect();
        if candidates.is_empty() {
            return Ok(());
        }
        let unknown: BTreeSet<TopicPartition> = candidates
            .keys()
            .filter(|partition| !self.blocked.contains_key(*partition))
            .cloned()
            .collect();
        let taken = self.find_taken(unknown).await?;
        let wants: Vec<Want> = candidates
            .into_iter()
            .filter(|(partition, _)| !taken.contains(partition))
            .map(|(partition, stream)| {
                let topic_created = self.lookout.topic_created(&partition.topic).unwrap_or(0);
                Want {
                    partition,
                    stream,
                    topic_created,
                }
            })
            .collect();
        if wants.is_empty() {
            return Ok(());
        }
        self.limbo
            .extend(wants.iter().map(|want| want.partition.clone()));
        let claims = self.session.claim(wants).await?;
        for (partition, claim) in &claims {
            if !matches!(claim, Claim::Unsettled) {
                self.limbo.remove(partition);
            }
        }
        self.take(claims).await
    }

    /// Owner nodes that an unsettled claim may have made and that are not to be ours any more (A6).
    async fn discard_strays(&mut self, plan: &Plan) -> Result<(), Trouble> {
        let is_stray = |partition: &TopicPartition| !plan.claim.contains_key(partition);
        let strays: BTreeSet<TopicPartition> =
            self.limbo.iter().filter(|p| is_stray(p)).cloned().collect();
        if strays.is_empty() {
            return Ok(());
        }
        self.session.discard(&strays).await?;
        self.limbo.retain(|partition| !strays.contains(partition));
        Ok(())
    }

    /// From when on a freed partition may be claimed. Where its owner's registration went too, as after a death, somebody's
    /// last commit may still be under way to another store: `takeover.delay.ms` is waited.
    fn due(&self, blocked: &Blocked) -> Option<Instant> {
        let is_gone = blocked
            .holder
            .member
            .as_ref()
            .is_none_or(|member| !self.view.members.contains_key(member));
        let delay = if is_gone {
            self.core.parts.config.takeover_delay
        } else {
            Duration::ZERO
        };
        blocked.freed.map(|freed| freed + delay)
    }

    fn is_due(&self, blocked: &Blocked) -> bool {
        self.due(blocked).is_some_and(|due| due <= Instant::now())
    }

    /// Which of these have an owner already; they are watched from now on.
    async fn find_taken(
        &mut self,
        partitions: BTreeSet<TopicPartition>,
    ) -> Result<BTreeSet<TopicPartition>, Trouble> {
        let topics: BTreeSet<Topic> = partitions
            .iter()
            .map(|partition| partition.topic.clone())
            .collect();
        if topics.is_empty() {
            return Ok(BTreeSet::new());
        }
        let owned = self.lookout.owned(&topics).await?;
        let owned: BTreeSet<TopicPartition> = owned.intersection(&partitions).cloned().collect();
        self.block(&owned).await
    }

    /// Watches owner nodes of others; answers with those that are still there.
    async fn block(
        &mut self,
        partitions: &BTreeSet<TopicPartition>,
    ) -> Result<BTreeSet<TopicPartition>, Trouble> {
        let mut taken = BTreeSet::new();
        for (partition, node) in self.lookout.watch_owners(partitions).await? {
            let Some(node) = node else { continue };
            if self.session.may_take_over(&node.stat) {
                continue;
            }
            let holder = self.known_holder(holder(node.text, &node.stat));
            let since = self
                .blocked
                .get(&partition)
                .map_or_else(Instant::now, |blocked| blocked.since);
            let is_told = self
                .blocked
                .get(&partition)
                .is_some_and(|blocked| blocked.is_told && blocked.holder == holder);
            let blocked = Blocked {
                holder,
                since,
                freed: None,
                is_told,
                is_stuck: false,
            };
            self.blocked.insert(partition.clone(), blocked);
            taken.insert(partition);
        }
        Ok(taken)
    }

    /// Names the member whose owner text it is. It is matched whole, never taken apart (ruling 3).
    fn known_holder(&self, mut holder: Holder) -> Holder {
        let is_its = |id: &ConsumerId| {
            let rest = holder.text.strip_prefix(id.as_str());
            rest.is_some_and(|rest| {
                rest.is_empty()
                    || rest
                        .strip_prefix('-')
                        .is_some_and(|n| n.parse::<u32>().is_ok())
            })
        };
        let longest = self
            .view
            .members
            .keys()
            .filter(|id| is_its(id))
            .max_by_key(|id| id.as_str().len());
        holder.member = longest.cloned();
        holder
    }

    async fn take(&mut self, claims: BTreeMap<TopicPartition, Claim>) -> Result<(), Trouble> {
        let mut begin = Vec::new();
        let mut ours = BTreeMap::new();
        let mut refused = BTreeSet::new();
        for (partition, claim) in claims {
            match claim {
                Claim::Ours(claimed) => {
                    ours.insert(partition.clone(), claimed.stream.clone());
                    begin.push(self.hold(partition, claimed));
                }
                Claim::HeldByAnother => {
                    refused.insert(partition);
                }
                Claim::Unsettled => self.has_claims_open = true,
            }
        }
        self.note_holding();
        self.begin(begin);
        if !ours.is_empty() {
            let told = ours.clone();
            let listened = self.call("after_claim", move |listener| listener.after_claim(&told));
            self.works.extend(listened);
        }
        let taken = self.block(&refused).await?;
        // Freed between the refusal and the read: claimed with the next look, which is at once.
        self.has_claims_open |= refused.len() > taken.len();
        self.verify(&ours.into_keys().collect()).await
    }

    fn hold(&mut self, partition: TopicPartition, claimed: Claimed) -> Beginning {
        self.blocked.remove(&partition);
        let Claimed {
            stream,
            token,
            stored,
        } = claimed;
        let core = self
            .core
            .parts
            .streams
            .get(&partition.topic)
            .and_then(|list| list.get(stream.number() as usize));
        let core = core
            .expect("only streams of our own subscription are assigned to us")
            .clone();
        let ownership = Arc::new(Ownership::new(
            partition.clone(),
            token,
            self.session.lease.clone(),
            core,
        ));
        let is_new = self
            .core
            .known
            .get(&partition.topic)
            .is_some_and(|known| !known.contains(&partition.partition));
        self.tell(Event::Claimed {
            partition: partition.clone(),
            stream: stream.clone(),
            token,
        });
        let held = Held {
            ownership: ownership.clone(),
            stream,
            version: stored.version,
            committed: None,
            state: HeldState::Beginning,
            ahead: None,
            retries: 0,
            is_new,
            topic_created: self.lookout.topic_created(&partition.topic).unwrap_or(0),
            remade: None,
        };
        self.held.insert(partition, held);
        Beginning {
            ownership,
            from: From::Stored(stored),
            is_new,
        }
    }

    // ---- feed ----

    fn begin(&mut self, list: Vec<Beginning>) {
        let Some(reader) = self.reader.clone() else {
            return;
        };
        if list.is_empty() {
            return;
        }
        let partitions: Vec<TopicPartition> =
            list.iter().map(|b| b.ownership.partition.clone()).collect();
        self.beginning.extend(partitions.iter().cloned());
        let beginner = Beginner {
            session: self.session.clone(),
            clock: self.core.parts.common.clock.clone(),
            reader,
            policy: self.core.parts.config.auto_offset_reset,
            malformed: self.core.parts.config.malformed_offset,
        };
        self.works.push(Box::pin(async move {
            let (begun, events) = beginner.begin(list).await;
            Done::Begun(partitions, begun, events)
        }));
    }

    fn begin_again(&mut self) {
        if self.reader.is_none() {
            return;
        }
        let now = Instant::now();
        let mut list = Vec::new();
        for held in self.held.values_mut() {
            if let HeldState::Later { at, from } = &held.state
                && *at <= now
            {
                let from = from.clone();
                held.state = HeldState::Beginning;
                list.push(Beginning {
                    ownership: held.ownership.clone(),
                    from,
                    is_new: held.is_new,
                });
            }
        }
        self.begin(list);
    }

    async fn on_begun(&mut self, ownership: Arc<Ownership>, begun: Begun) -> Result<(), Trouble> {
        let partition = ownership.partition.clone();
        let is_current = self
            .held
            .get(&partition)
            .is_some_and(|held| held.ownership.token == ownership.token);
        if !is_current {
            // It may have begun to read after it was fenced; nobody would stop it otherwise.
            if matches!(begun, Begun::Reading { .. })
                && let Some(reader) = &self.reader
                && !self.held.contains_key(&partition)
            {
                reader.stop(std::slice::from_ref(&partition));
            }
            if let (
                Some((farewell, _)),
                Begun::Reading {
                    version, committed, ..
                },
            ) = (self.deferred.get_mut(&partition), &begun)
            {
                farewell.version = *version;
                farewell.committed = *committed;
            }
            return Ok(());
        }
        let held = self.held.get_mut(&partition).expect("it was just found");
        if let Some(from) = held.remade.take() {
            held.state = HeldState::Later {
                at: Instant::now(),
                from: with_version(from, &begun),
            };
            return Ok(());
        }
        match begun {
            Begun::Reading {
                offset,
                version,
                committed,
                queue,
            } => {
                held.version = version;
                held.committed = committed.or(held.committed);
                held.retries = 0;
                held.state = HeldState::Reading;
                let resumes = ownership.read_position() == Some(offset);
                if !resumes {
                    ownership.start(offset);
                }
                ownership.stream.add(ownership.clone(), queue);
                self.tell(Event::Started { partition, offset });
            }
            Begun::HeldBack { reason, version } => {
                held.version = version;
                held.state = HeldState::HeldBack { reason };
                // It may have been repaired between the read and the watch (W1).
                if self.lookout.watch_offset(&partition).await? != version {
                    self.fired.insert(Watched::Offset(partition));
                    self.retry_at = Some(Instant::now());
                }
            }
            Begun::Failed { from, reason } => {
                let pause = FIRST_RETRY * 2u32.saturating_pow(held.retries.min(6));
                held.retries += 1;
                let is_first = held.retries == 1;
                held.state = HeldState::Later {
                    at: Instant::now() + pause.min(LAST_RETRY),
                    from,
                };
                if is_first {
                    self.tell(Event::ReadFailed {
                        partition: Some(partition),
                        reason,
                    });
                }
            }
            Begun::NotOurs => {
                self.lose(&BTreeSet::from([partition]), LostCause::OwnerNodeGone);
            }
        }
        Ok(())
    }

    fn on_trouble(&mut self, ownership: &Arc<Ownership>, trouble: ReadTrouble) {
        let partition = ownership.partition.clone();
        let Some(held) = self.held.get_mut(&partition) else {
            return;
        };
        if held.ownership.token != ownership.token || !matches!(held.state, HeldState::Reading) {
            return;
        }
        match trouble {
            ReadTrouble::OutOfRange => {
                let before = ownership.read_position();
                let from = From::Reset {
                    cause: ResetCause::OutOfRange,
                    before,
                    version: held.version,
                };
                held.state = HeldState::Later {
                    at: Instant::now(),
                    from,
                };
            }
            ReadTrouble::Failed(reason) => {
                let Some(from) = resume(held) else { return };
                let pause = FIRST_RETRY * 2u32.saturating_pow(held.retries.min(6));
                held.retries += 1;
                held.state = HeldState::Later {
                    at: Instant::now() + pause.min(LAST_RETRY),
                    from,
                };
                self.tell(Event::ReadFailed {
                    partition: Some(partition),
                    reason,
                });
            }
        }
    }

    fn on_notice(&mut self, notice: Notice) {
        match notice {
            Notice::BrokersDown(reason) => {
                self.stand("kafka", Some(Event::BrokersMissing { reason }))
            }
            Notice::BrokersBack => {
                if self.standing.remove("kafka").is_some() {
                    self.tell(Event::BrokersBack);
                }
            }
            Notice::Warning(what) => self.stand("reader", Some(Event::Warning { what })),
        }
    }

    // ---- commit ----

    /// Begins to commit what is done and not committed. `false` if there is nothing to commit or a commit is under way.
    fn commit(&mut self) -> bool {
        let commits: Vec<Commit> = self
            .held
            .iter_mut()
            .filter_map(|(partition, held)| pending(partition, held))
            .collect();
        let is_allowed = self
            .session
            .lease
            .allows_commit(self.core.parts.common.clock.now());
        if self.is_committing || commits.is_empty() || !is_allowed {
            return false;
        }
        self.is_committing = true;
        self.commit_waiters_served = self.commit_waiters.len();
        let session = self.session.clone();
        self.works.push(Box::pin(async move {
            let results = session.commit(commits.clone()).await;
            Done::Committed(commits, results)
        }));
        true
    }

    fn commit_asked(&mut self, reply: oneshot::Sender<Result<(), Error>>) {
        self.is_commit_asked.store(true, Ordering::SeqCst);
        self.commit_waiters.push(reply);
        self.serve_waiters();
    }

    /// Those who asked for a commit get one that began after they asked.
    fn serve_waiters(&mut self) {
        if self.commit_waiters.is_empty() {
            return self.forget_asking();
        }
        if self.is_committing || self.commit() {
            return;
        }
        let is_allowed = self
            .session
            .lease
            .allows_commit(self.core.parts.common.clock.now());
        let has_pending = self
            .held
            .iter_mut()
            .any(|(partition, held)| pending(partition, held).is_some());
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
    fn forget_asking(&self) {
        if self.parting.is_empty() {
            self.is_commit_asked.store(false, Ordering::SeqCst);
        }
    }

    fn on_committed(
        &mut self,
        commits: Vec<Commit>,
        results: Result<BTreeMap<TopicPartition, Committed>, Trouble>,
        waiters: usize,
    ) -> Result<(), Trouble> {
        self.is_committing = false;
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
    fn token_of(&self, partition: &TopicPartition) -> Option<i64> {
        let held = self.held.get(partition).map(|held| &held.ownership);
        let deferred = self.deferred.get(partition);
        let ownership = held.or(deferred.map(|(farewell, _)| &farewell.ownership));
        ownership.map(|ownership| ownership.token)
    }

    /// Writes down what a commit left at the offset node, for one that is held or waits to be given up.
    fn note_commit(&mut self, partition: &TopicPartition, ours: i64, result: &Committed) {
        let (version, written, ahead) = match result {
            Committed::Written { version, over } => {
                if let Some(theirs) = over {
                    let event = match theirs.parse() {
                        Ok(theirs) => Event::RewindRepaired {
                            partition: partition.clone(),
                            theirs,
                            ours,
                        },
                        Err(_) => Event::Repaired {
                            what: format!(
                                "the offset of {partition} held \"{}\" and was written again as {ours}",
                                crate::error::printable(theirs)
                            ),
                        },
                    };
                    self.tell(event);
                }
                (*version, Some(ours), None)
            }
            Committed::Ahead { theirs, version } => {
                self.tell(Event::ForeignAdvance {
                    partition: partition.clone(),
                    theirs: *theirs,
                    ours,
                });
                (*version, None, Some(*theirs))
            }
            Committed::NotOurs | Committed::Unsettled(_) => return,
        };
        if let Some(held) = self.held.get_mut(partition) {
            held.version = Some(version);
            held.committed = written.or(held.committed);
            held.ahead = ahead;
        } else if let Some((farewell, _)) = self.deferred.get_mut(partition) {
            farewell.version = Some(version);
            farewell.committed = written.or(farewell.committed);
            farewell.is_suspended = ahead.is_some();
        }
    }

    // ---- wait ----

    /// Waits until there is something to look at; deals with everything else as it comes.
    async fn wait(&mut self) -> Result<(), Over> {
        loop {
            let next = self.next_moment();
            let notice = self.reader.as_ref().map(|reader| reader.notice());
            tokio::select! {
                biased;
                command = self.core.parts.commands.recv() => match command {
                    // The handle is gone: fence at once, no last commit (ruling 29).
                    None => return Err(Over::Left),
                    Some(Command::Commit { reply }) => self.commit_asked(reply),
                    Some(Command::Leave { until, reply }) => {
                        self.core.farewell = Some(reply);
                        self.leave(until).await;
                        return Err(Over::Left);
                    }
                },
                fired = self.lookout.changed() => {
                    self.fired.extend(fired?);
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
                    if parted.is_forced {
                        self.forced.insert(parted.partition);
                    }
                }
                Ok(true)
            }
            Done::Begun(partitions, begun, events) => {
                for event in events {
                    self.tell(event);
                }
                for partition in &partitions {
                    self.beginning.remove(partition);
                }
                for (ownership, _, begun) in begun {
                    self.on_begun(ownership, begun).await?;
                }
                self.part_with_deferred();
                Ok(false)
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
            Done::ReaderClosed => Ok(false),
        }
    }

    fn next_moment(&self) -> Instant {
        let retries = self.held.values().filter_map(|held| match &held.state {
            HeldState::Later { at, .. } if self.reader.is_some() => Some(*at),
            _ => None,
        });
        let blocked = (!self.blocked.is_empty()).then_some(self.next_poll);
        let due = self
            .blocked
            .values()
            .filter_map(|blocked| self.due(blocked));
        let stuck = self
            .blocked
            .values()
            .filter_map(|blocked| self.next_word(blocked));
        let moments = [Some(self.next_check), blocked, self.retry_at];
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

    /// When there is next something to say about a partition we wait for.
    fn next_word(&self, blocked: &Blocked) -> Option<Instant> {
        match (blocked.is_told, blocked.is_stuck) {
            (false, _) => Some(blocked.since + self.core.parts.config.rebalance_backoff),
            (true, false) => Some(blocked.since + self.patience()),
            (true, true) => None,
        }
    }

    /// After so long a wait it is not the ordinary course of a hand-over any more (ruling 20).
    fn patience(&self) -> Duration {
        let config = &self.core.parts.config;
        let ordinary = self.session.terms().session_timeout() * 2 + config.drain_timeout;
        config.patience().max(ordinary)
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
        if now >= self.next_poll {
            self.next_poll = now + self.session.terms().session_timeout() / 2;
            self.poll_blocked().await?;
        }
        if now >= self.next_check {
            let check = self.core.parts.config.registration_check_interval;
            self.next_check = now + check.mul_f64(0.75 + self.core.toss() / 2.0);
            self.check().await?;
        }
        let is_due = self.retry_at.is_some_and(|at| now >= at);
        if is_due {
            self.retry_at = None;
        }
        Ok(is_due || self.blocked.values().any(|blocked| self.is_due(blocked)))
    }

    fn tell_of_waiting(&mut self, now: Instant) {
        let patience = self.patience();
        let backoff = self.core.parts.config.rebalance_backoff;
        let mut events = Vec::new();
        for (partition, blocked) in &mut self.blocked {
            let waited = now - blocked.since;
            let (partition, holder) = (partition.clone(), blocked.holder.clone());
            if !blocked.is_told && waited >= backoff {
                blocked.is_told = true;
                events.push(Event::Waiting { partition, holder });
            } else if !blocked.is_stuck && waited >= patience {
                blocked.is_stuck = true;
                events.push(Event::Stuck {
                    partition,
                    holder,
                    waited,
                });
            }
        }
        for event in events {
            self.tell(event);
        }
    }

    /// A watch that never fires must not leave us waiting for ever.
    async fn poll_blocked(&mut self) -> Result<(), Trouble> {
        let topics: BTreeSet<Topic> = self
            .blocked
            .keys()
            .map(|partition| partition.topic.clone())
            .collect();
        if topics.is_empty() {
            return Ok(());
        }
        let owned = self.lookout.owned(&topics).await?;
        for (partition, blocked) in &mut self.blocked {
            if !owned.contains(partition) {
                blocked.freed.get_or_insert_with(Instant::now);
            }
        }
        Ok(())
    }

    /// The self-check: is our registration as we want it, is all that we hold ours, is the group as we saw it?
    async fn check(&mut self) -> Result<(), Trouble> {
        if let Some(what) = self.session.audit_registration().await? {
            self.tell(Event::Repaired { what });
        }
        let topics: BTreeSet<Topic> = self
            .held
            .keys()
            .map(|partition| partition.topic.clone())
            .collect();
        let owned = self.lookout.owned(&topics).await?;
        let unsure: BTreeSet<TopicPartition> = self
            .held
            .keys()
            .filter(|partition| !owned.contains(*partition))
            .cloned()
            .collect();
        self.verify(&unsure).await?;
        if let Some(what) = self.lookout.audit().await? {
            self.tell(Event::Repaired { what });
            self.fired.insert(Watched::Members);
            self.retry_at = Some(Instant::now());
        }
        self.tell_of_unacknowledged();
        Ok(())
    }

    fn tell_of_unacknowledged(&mut self) {
        let limit = self.core.parts.config.unacked_warn_age;
        let now = self.core.parts.common.clock.now();
        let mut old = BTreeSet::new();
        let mut events = Vec::new();
        for (partition, held) in &self.held {
            let Some((offset, at)) = held.ownership.progress().oldest else {
                continue;
            };
            let age = now.since(at);
            if age < limit {
                continue;
            }
            old.insert(partition.clone());
            if !self.told_unacked.contains(partition) {
                let is_at_bound = held.ownership.stream.is_at_bound();
                events.push(Event::Unacknowledged {
                    partition: partition.clone(),
                    offset,
                    age,
                    is_at_bound,
                });
            }
        }
        self.told_unacked = old;
        for event in events {
            self.tell(event);
        }
    }

    // ---- the end ----

    /// Leaves in order until the deadline: streams end, everything is given up, then the registration goes.
    async fn leave(&mut self, until: Instant) {
        self.leave_until = Some(until);
        self.publish();
        for core in self.core.parts.streams.values().flatten() {
            core.close();
        }
        // Everybody else may be an heir; if any of them is a JVM member, it may be the one.
        let is_to_jvm = self.view.members.values().any(|member| !member.is_ours);
        let list = self
            .held
            .keys()
            .map(|partition| (partition.clone(), is_to_jvm))
            .collect();
        self.part_with(list);
        let all = async {
            while !self.parting.is_empty() || self.is_committing {
                let Some(done) = self.works.next().await else {
                    break;
                };
                if self.finish(done).await.is_err() {
                    break;
                }
            }
        };
        let _ = timeout_at(until, all).await;
        let _ = timeout_at(until, self.session.unregister()).await;
        if let Some(reader) = self.reader.take() {
            let _ = timeout_at(until, reader.close()).await;
        }
    }

    /// After the last turn: whatever is still in our hands is lost, and streams give nothing more of it.
    pub fn clean_up(&mut self, over: &Over) {
        self.session.lease.end();
        let cause = match over {
            Over::RegistrationGone => LostCause::RegistrationGone,
            _ => LostCause::SessionLost,
        };
        if matches!(over, Over::SessionLost) {
            self.tell(Event::SessionLost {
                session: self.session.id(),
            });
        }
        self.core.left_behind = std::mem::take(&mut self.forced);
        let mut lost = BTreeSet::new();
        let held = std::mem::take(&mut self.held)
            .into_iter()
            .map(|(partition, held)| (partition, held.ownership));
        for (partition, ownership) in held.chain(std::mem::take(&mut self.parting)) {
            let progress = ownership.end();
            self.tell(Event::Lost {
                partition: partition.clone(),
                cause,
                undone: progress.undone,
            });
            lost.insert(partition);
        }
        self.core.left_behind.extend(lost.iter().cloned());
        if !lost.is_empty() {
            // The next session hears how it ended.
            let listened = self.call("on_lost", move |listener| listener.on_lost(&lost, cause));
            self.core.left_over.extend(listened);
        }
        for waiter in self.commit_waiters.drain(..) {
            let _ = waiter.send(Err(Error::new(
                ErrorKind::SessionLost,
                "the session ended before everything was committed",
            )));
        }
        self.close_reader();
    }

    /// The next session opens its own.
    fn close_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            drop(reader.close());
        }
    }

    // ---- how it stands ----

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
            is_planned: self.is_planned && !self.has_claims_open && self.retry_at.is_none(),
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
                .filter(|(_, held)| held.ahead.is_some())
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

/// The offset node's version may have moved while the beginning that is now void was under way.
fn with_version(from: From, begun: &Begun) -> From {
    match (from, begun) {
        (
            From::Reset { cause, before, .. },
            Begun::Reading { version, .. } | Begun::HeldBack { version, .. },
        ) => From::Reset {
            cause,
            before,
            version: *version,
        },
        (from, _) => from,
    }
}

/// From where to read on after trouble: behind what was handed out.
fn resume(held: &Held) -> Option<From> {
    let offset = held.ownership.read_position()?;
    Some(From::Offset {
        offset,
        version: held.version,
        committed: held.committed.or(Some(offset)),
    })
}

/// What is to be committed of a held partition, if anything. An offset that somebody set forward is waited for.
fn pending(partition: &TopicPartition, held: &mut Held) -> Option<Commit> {
    let position = held.ownership.progress().position?;
    if held.ahead.is_some_and(|theirs| position < theirs) || held.committed == Some(position) {
        return None;
    }
    Some(Commit {
        partition: partition.clone(),
        token: held.ownership.token,
        offset: position,
        version: held.version,
        is_reset: false,
    })
}
