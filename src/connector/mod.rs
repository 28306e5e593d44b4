//! What a service holds in its hand: connect, take streams, commit, ask how it stands, leave.

mod host;
mod outside;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::assign::{Assignor, named};
use crate::clock::{BootClock, LeaseClock};
use crate::config::{self, Config};
use crate::coordinator::{Command, Coordinator, Outlets, Parts, Snapshot};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Holder};
use crate::group::{ConsumerId, StreamId, Topic, TopicPartition};
use crate::id::{Fixed, HashedHost, IdContext, IdStrategy, name};
use crate::listener::{Outside, RebalanceListener};
use crate::registry::{Dialect, Registry};
use crate::stream::{Bounds, Common, MessageStream, ReaderSource, StreamCore, Streams};
use crate::wire::MAX_STREAMS;
use crate::zk::{ZkRegistry, ZkSettings};

pub use crate::coordinator::Phase;

use self::host::Host;
use self::outside::Aside;
use self::source::KafkaSource;

/// So many events wait for a watcher that is slow; then the oldest are dropped.
const EVENTS: usize = 8192;

/// A member of a group.
///
/// `connect` finds the servers, [`streams`](Self::streams) joins the group, [`shutdown`](Self::shutdown) leaves it in order.
/// Everything in between goes on by itself on a thread that all members of the process share, so a service that blocks
/// its own threads does not lose the group. Calls work from any executor.
///
/// Dropping the connector fences at once (nothing more is delivered or committed), commits nothing, and closes the
/// session within a second behind your back; what was done since the last commit is delivered again to the next owner.
pub struct ConsumerConnector {
    config: Config,
    me: ConsumerId,
    commands: mpsc::Sender<Command>,
    stop: watch::Sender<Option<Instant>>,
    outlets: Outlets,
    snapshot: watch::Receiver<Snapshot>,
    /// What was told before anybody could ask, for the first who does.
    early: Mutex<Option<broadcast::Receiver<Event>>>,
    common: Arc<Common>,
    cores: Mutex<Vec<Arc<StreamCore>>>,
    waiting: Mutex<Option<Waiting>>,
    /// A child of a fork must not touch its parent's session (R8).
    process: u32,
}

/// All that a member needs, waiting for the topics.
struct Waiting {
    registry: Arc<dyn Registry>,
    source: Option<Arc<dyn ReaderSource>>,
    assignor: Arc<dyn Assignor>,
    is_foreign_assignor: bool,
    listener: Option<Arc<dyn RebalanceListener>>,
    outside: Arc<dyn Outside>,
    commands: mpsc::Receiver<Command>,
    stop: watch::Receiver<Option<Instant>>,
    seed: u64,
    dialect: Option<Dialect>,
    host: Option<Arc<Host>>,
}

/// Sets a member up with more than a [`Config`] can say.
pub struct Builder {
    config: Config,
    strategy: Option<Arc<dyn IdStrategy>>,
    instance: u32,
    assignor: Option<Arc<dyn Assignor>>,
    listener: Option<Arc<dyn RebalanceListener>>,
    registry: Option<Arc<dyn Registry>>,
    source: Option<Arc<dyn ReaderSource>>,
    outside: Option<Arc<dyn Outside>>,
    clock: Option<Arc<dyn LeaseClock>>,
    context: Option<IdContext>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Builder({:?})", self.config)
    }
}

impl Builder {
    /// How the member's name is made; [`HashedHost`] otherwise. `consumer.id` in the configuration wins over both.
    #[must_use]
    pub fn with_id_strategy(mut self, strategy: Arc<dyn IdStrategy>) -> Self {
        self.strategy = Some(strategy);
        self
    }

    /// Which of several processes of this group on this host it is, from 0, for the strategies that ask. Ignored together with
    /// [`with_id_context`](Self::with_id_context): that context has its own, see [`IdContext::with_instance`].
    #[must_use]
    pub fn with_instance(mut self, instance: u32) -> Self {
        self.instance = instance;
        self
    }

    /// Who should own what. **All members of the group must compute the same**, and nothing in ZooKeeper checks that.
    /// It runs outside the member's task, with the session timeout as its deadline.
    #[must_use]
    pub fn with_assignor(mut self, assignor: Arc<dyn Assignor>) -> Self {
        self.assignor = Some(assignor);
        self
    }

    /// Is told when partitions come and go.
    #[must_use]
    pub fn with_listener(mut self, listener: Arc<dyn RebalanceListener>) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Another registry than the ZooKeeper servers of the configuration, as the test kit's.
    #[must_use]
    pub fn with_registry(mut self, registry: Arc<dyn Registry>) -> Self {
        self.registry = Some(registry);
        self
    }

    /// Another source of messages than the Kafka brokers, as the test kit's.
    #[must_use]
    pub fn with_reader_source(mut self, source: Arc<dyn ReaderSource>) -> Self {
        self.source = Some(source);
        self
    }

    /// Another clock for the lease, as the test kit's.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn LeaseClock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Another place for the user's code to run, as the test kit's.
    #[must_use]
    pub fn with_outside(mut self, outside: Arc<dyn Outside>) -> Self {
        self.outside = Some(outside);
        self
    }

    /// What the id is made from, instead of this host's name, the time and chance: for pretended hosts and for tests.
    #[must_use]
    pub fn with_id_context(mut self, context: IdContext) -> Self {
        self.context = Some(context);
        self
    }

    /// Checks the settings and connects to ZooKeeper. Nothing is written yet.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) for a setting that cannot work, naming its key. [`Connection`](ErrorKind::Connection)
    /// within `zookeeper.connection.timeout.ms` if no server can be reached or serves us, saying which of the things it is.
    pub async fn connect(self) -> Result<ConsumerConnector> {
        let host = Host::shared()?;
        let mut connector = self.prepare()?;
        let waiting = connector
            .waiting
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let waiting = waiting.as_mut().expect("it was just made");
        waiting.host = Some(host.clone());
        let registry = waiting.registry.clone();
        let dialect = forced_dialect(&connector.config);
        // The session lives on the members' own thread; a first one shows that there is somebody to speak to.
        let tried = host.run(async move {
            let connection = registry.open(dialect).await?;
            connection.close().await;
            Ok::<(), Error>(())
        });
        tried
            .await
            .map_err(|_| Error::new(ErrorKind::Internal, "the members' thread is gone"))??;
        Ok(connector)
    }

    fn prepare(self) -> Result<ConsumerConnector> {
        self.config.check()?;
        let config = self.config;
        let (events, early) = broadcast::channel(EVENTS);
        let (snapshot_in, snapshot) = watch::channel(Snapshot::default());
        let outlets = Outlets {
            events,
            snapshot: snapshot_in,
        };
        let me = match (&config.consumer_id, self.context) {
            (Some(fixed), context) => {
                let context =
                    context.unwrap_or_else(|| IdContext::of_this_process(&config.group).0);
                name(&context, &Fixed::new(fixed.clone()))?
            }
            (None, Some(context)) => name(
                &context,
                &*self.strategy.unwrap_or_else(|| Arc::new(HashedHost)),
            )?,
            (None, None) => {
                let (context, from) = IdContext::of_this_process(&config.group);
                let context = context.with_instance(self.instance);
                if from.is_fallback() {
                    outlets.tell(Event::HostNameReplaced {
                        instead: context.host.clone(),
                    });
                }
                name(
                    &context,
                    &*self.strategy.unwrap_or_else(|| Arc::new(HashedHost)),
                )?
            }
        };
        for what in config.warnings() {
            outlets.tell(Event::Warning { what });
        }
        let clock: Arc<dyn LeaseClock> = self.clock.unwrap_or_else(|| Arc::new(BootClock));
        let seed = seed_of(&me, clock.wall_ms());
        let (commands_in, commands) = mpsc::channel(16);
        let (stop_in, stop) = watch::channel(None);
        let is_foreign_assignor = self.assignor.is_some();
        let assignor = match self.assignor {
            Some(assignor) => assignor,
            None => named(config.strategy, config.compat),
        };
        let waiting = Waiting {
            registry: self
                .registry
                .unwrap_or_else(|| Arc::new(ZkRegistry::new(ZkSettings::of(&config)))),
            source: self.source,
            assignor,
            is_foreign_assignor,
            listener: self.listener,
            outside: self.outside.unwrap_or_else(|| Arc::new(Aside::default())),
            commands,
            stop,
            seed,
            dialect: None,
            host: None,
        };
        Ok(ConsumerConnector {
            config,
            me,
            commands: commands_in,
            stop: stop_in,
            outlets,
            snapshot,
            early: Mutex::new(Some(early)),
            common: Arc::new(Common::new(clock)),
            cores: Mutex::default(),
            waiting: Mutex::new(Some(waiting)),
            process: std::process::id(),
        })
    }

    /// The member as a future for the caller to poll, pause and drop, in the caller's own runtime: for simulations with
    /// paused time. `topics` as for [`ConsumerConnector::streams`].
    ///
    /// # Errors
    /// As [`connect`](Self::connect) and [`streams`](ConsumerConnector::streams), as far as settings are concerned.
    #[cfg(any(test, feature = "testing"))]
    pub fn into_future(
        self,
        topics: impl IntoIterator<Item = (Topic, u32)>,
    ) -> Result<(
        ConsumerConnector,
        Streams,
        impl Future<Output = ()> + Send + 'static,
    )> {
        let connector = self.prepare()?;
        let (waiting, subscription) = connector.take_topics(topics)?;
        let (streams, coordinator, _joined, _host) = connector.assemble(waiting, subscription)?;
        Ok((connector, streams, coordinator.run()))
    }
}

fn forced_dialect(config: &Config) -> Dialect {
    match config.zookeeper_dialect {
        config::Dialect::V3_4 => Dialect::V3_4,
        _ => Dialect::V3_5,
    }
}

/// Only pauses depend on it, so that members do not come back in step.
fn seed_of(me: &ConsumerId, time: u64) -> u64 {
    me.as_str().bytes().fold(time, |seed, byte| {
        seed.rotate_left(5) ^ u64::from(byte).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

impl ConsumerConnector {
    /// Connects with the defaults for everything that a [`Config`] cannot say.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub async fn connect(config: Config) -> Result<Self> {
        Self::builder(config).connect().await
    }

    /// Sets a member up with an id strategy, an assignor or a listener of one's own.
    pub fn builder(config: Config) -> Builder {
        Builder {
            config,
            strategy: None,
            instance: 0,
            assignor: None,
            listener: None,
            registry: None,
            source: None,
            outside: None,
            clock: None,
            context: None,
        }
    }

    /// Joins the group: registers with these topics and stream counts, and answers with the streams once the registration
    /// stands. Partitions are claimed from then on; streams deliver as they come.
    ///
    /// A topic that does not exist is waited for. The streams of a topic are numbered from 0; which partitions a number
    /// owns follows from the assignor.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) before anything is taken or written: no topic, a stream count of 0 or more than 100,000
    /// in all, after which one may ask again; or a second call, which leaves the streams of the first as they are.
    /// [`IdHeld`](ErrorKind::IdHeld) if another live session holds our id, [`NoAuth`](ErrorKind::NoAuth) if we may not write
    /// below `/consumers`: after these two the connector is of no more use.
    pub async fn streams(&self, topics: impl IntoIterator<Item = (Topic, u32)>) -> Result<Streams> {
        self.check_process()?;
        let (waiting, subscription) = self.take_topics(topics)?;
        let (streams, coordinator, joined, host) = self.assemble(waiting, subscription)?;
        host.expect("connect sets it").spawn(coordinator.run());
        match joined.await {
            Ok(answer) => answer.map(|()| streams),
            Err(_) => Err(closed()),
        }
    }

    fn take_topics(
        &self,
        topics: impl IntoIterator<Item = (Topic, u32)>,
    ) -> Result<(Waiting, BTreeMap<Topic, u32>)> {
        let subscription: BTreeMap<Topic, u32> = topics.into_iter().collect();
        if subscription.is_empty() {
            return Err(Error::config(
                "no topic was given: name at least one, with its number of streams",
            ));
        }
        if let Some((topic, _)) = subscription.iter().find(|(_, streams)| **streams == 0) {
            return Err(Error::config(format!(
                "topic {topic} was given 0 streams: give it at least 1"
            )));
        }
        let sum: u64 = subscription
            .values()
            .map(|streams| u64::from(*streams))
            .sum();
        if sum > u64::from(MAX_STREAMS) {
            return Err(Error::config(format!(
                "{sum} streams are too many: a member has at most {MAX_STREAMS}"
            )));
        }
        let waiting = self
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let waiting = waiting.ok_or_else(|| {
            Error::config("streams were asked for twice: a connector has one subscription")
        })?;
        Ok((waiting, subscription))
    }

    #[allow(clippy::type_complexity)]
    fn assemble(
        &self,
        waiting: Waiting,
        subscription: BTreeMap<Topic, u32>,
    ) -> Result<(
        Streams,
        Coordinator,
        oneshot::Receiver<Result<()>>,
        Option<Arc<Host>>,
    )> {
        let bounds = Bounds {
            messages: self.config.max_unacked_messages as usize,
            bytes: self.config.max_unacked_bytes as usize,
        };
        let mut cores: BTreeMap<Topic, Vec<Arc<StreamCore>>> = BTreeMap::new();
        for (topic, count) in &subscription {
            let list = (0..*count)
                .map(|number| StreamCore::new(topic.clone(), number, self.common.clone(), bounds));
            cores.insert(topic.clone(), list.collect());
        }
        let streams = cores
            .iter()
            .map(|(topic, list)| {
                (
                    topic.clone(),
                    list.iter().cloned().map(MessageStream::new).collect(),
                )
            })
            .collect();
        *self.cores.lock().unwrap_or_else(PoisonError::into_inner) =
            cores.values().flatten().cloned().collect();
        let (joined_in, joined) = oneshot::channel();
        let source = waiting
            .source
            .unwrap_or_else(|| Arc::new(KafkaSource::new(&self.config)));
        let parts = Parts {
            config: self.config.clone(),
            me: self.me.clone(),
            subscription,
            registry: waiting.registry,
            source,
            assignor: waiting.assignor,
            is_foreign_assignor: waiting.is_foreign_assignor,
            listener: waiting.listener,
            outside: waiting.outside,
            common: self.common.clone(),
            streams: cores,
            outlets: self.outlets.clone(),
            commands: waiting.commands,
            stop: waiting.stop,
            joined: Some(joined_in),
            seed: waiting.seed,
            dialect: waiting.dialect,
        };
        Ok((streams, Coordinator::new(parts), joined, waiting.host))
    }

    fn check_process(&self) -> Result<()> {
        if std::process::id() == self.process {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Closed,
            "the connector belongs to the process that made it, not to a fork of it",
        ))
    }

    /// The member's name under `ids`.
    pub fn consumer_id(&self) -> &ConsumerId {
        &self.me
    }

    /// Commits all that is done, now, and waits for it. Cancel-safe: a commit that was begun goes on.
    ///
    /// # Errors
    /// [`NotOwned`](ErrorKind::NotOwned) if a partition was lost or its offset could not be written, naming the first;
    /// [`Timeout`](ErrorKind::Timeout) if the lease has nearly run out; [`SessionLost`](ErrorKind::SessionLost) if the session
    /// ended meanwhile; [`Closed`](ErrorKind::Closed) after the end.
    pub async fn commit(&self) -> Result<()> {
        self.check_process()?;
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(Command::Commit { reply })
            .await
            .map_err(|_| self.why_closed())?;
        answer.await.map_err(|_| self.why_closed())?
    }

    /// What is ours at the moment, and which stream has it.
    pub fn owned(&self) -> BTreeMap<TopicPartition, StreamId> {
        let snapshot = self.snapshot.borrow();
        snapshot
            .held
            .iter()
            .map(|(partition, (stream, _))| (partition.clone(), stream.clone()))
            .collect()
    }

    /// What happens: for the first who asks everything since the connector was made, for others from now on.
    pub fn events(&self) -> Events {
        let early = self
            .early
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        Events(early.unwrap_or_else(|| self.outlets.events.subscribe()))
    }

    /// How the member stands.
    pub fn health(&self) -> Health {
        Health::of(&self.snapshot.borrow(), &self.common)
    }

    /// Waits until the member is registered and everything that is its own by the rule is claimed and being read.
    ///
    /// # Errors
    /// [`Closed`](ErrorKind::Closed), or what ended the member, if it ends before.
    pub async fn settled(&self) -> Result<()> {
        let mut snapshot = self.snapshot.clone();
        let found = snapshot
            .wait_for(|snapshot| is_settled(snapshot) || snapshot.phase == Phase::Left)
            .await;
        match found {
            Ok(found) if found.phase != Phase::Left => Ok(()),
            _ => Err(self.why_closed()),
        }
    }

    fn why_closed(&self) -> Error {
        match &self.snapshot.borrow().failure {
            Some(error) => Error::new(error.kind(), error.to_string()),
            None => closed(),
        }
    }

    /// Leaves in order within this time: streams end, what is in hand may be finished and acknowledged (at most
    /// `drain.timeout.ms`), what is done is committed, the owner nodes go, then the registration, then the session.
    ///
    /// Past the time it leaves at once: what was not released goes with the session, and what was not committed is delivered
    /// again to the next owner. Answers how it went. If the future is dropped, the leaving goes on until its time is up.
    ///
    /// # Errors
    /// What had ended the member before, if something had.
    pub async fn shutdown(self, within: Duration) -> Result<Farewell> {
        self.check_process()?;
        let until = Instant::now() + within;
        if self
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
        {
            // It never joined.
            return Ok(Farewell {
                forced: BTreeSet::new(),
            });
        }
        self.stop.send_replace(Some(until));
        let (reply, answer) = oneshot::channel();
        if self
            .commands
            .send(Command::Leave { until, reply })
            .await
            .is_err()
        {
            return match &self.snapshot.borrow().failure {
                Some(error) => Err(Error::new(error.kind(), error.to_string())),
                None => Ok(Farewell {
                    forced: BTreeSet::new(),
                }),
            };
        }
        let forced = answer
            .await
            .unwrap_or_else(|_| self.owned().into_keys().collect());
        let mut snapshot = self.snapshot.clone();
        let _ = snapshot
            .wait_for(|snapshot| snapshot.phase == Phase::Left)
            .await;
        Ok(Farewell { forced })
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the member has left the group")
}

impl Drop for ConsumerConnector {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            return;
        }
        // The fence is ours to set, in this thread; the rest follows when the member sees that nobody commands it.
        for (_, ownership) in self.snapshot.borrow().held.values() {
            ownership.fence();
        }
        for core in self.cores.get_mut().unwrap_or_else(PoisonError::into_inner) {
            core.close();
        }
    }
}

impl fmt::Debug for ConsumerConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConsumerConnector({})", self.me)
    }
}

/// How a member left.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Farewell {
    /// Partitions that were given up while messages of them were still in somebody's hands, or that could not be given up
    /// in time: the next owner delivers what was not committed again. Empty for a clean end.
    pub forced: BTreeSet<TopicPartition>,
}

/// What happens to a member, in order. A watcher that is too slow is told how many events it missed.
#[derive(Debug)]
pub struct Events(broadcast::Receiver<Event>);

impl Events {
    /// The next event; `None` after the member's end. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(count)) => Some(Event::Missed { count }),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }

    /// The next event if there is one already.
    pub fn try_next(&mut self) -> Option<Event> {
        match self.0.try_recv() {
            Ok(event) => Some(event),
            Err(broadcast::error::TryRecvError::Lagged(count)) => Some(Event::Missed { count }),
            Err(_) => None,
        }
    }
}

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
    /// What ended the member, if something did.
    pub failure: Option<String>,
}

impl Health {
    fn of(snapshot: &Snapshot, common: &Common) -> Self {
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

fn is_settled(snapshot: &Snapshot) -> bool {
    snapshot.phase == Phase::Joined
        && snapshot.is_planned
        && snapshot.waiting.is_empty()
        && snapshot.releasing == 0
        && snapshot.starting == 0
}
