//! What a service holds in its hand: connect, take streams, commit, ask how it stands, leave.

mod builder;
mod health;
mod host;
mod outside;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::assign::Assignor;
use crate::config::Config;
use crate::coordinator::{Command, Coordinator, Outlets, Parts, Snapshot};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::group::{ConsumerId, StreamId, Topic, TopicPartition};
use crate::listener::{Outside, RebalanceListener};
use crate::registry::Registry;
use crate::stream::{Bounds, Common, MessageStream, ReaderSource, StreamCore, Streams};
use crate::wire::MAX_STREAMS;

pub use self::builder::Builder;
pub use self::health::{Health, Holding};
pub use crate::coordinator::Phase;

use self::health::is_settled;
use self::host::Host;
use self::source::KafkaSource;

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
    /// Weak, so that watchers see the end when the member is gone.
    events: broadcast::WeakSender<Event>,
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
    assignor_place: Arc<dyn Outside>,
    commands: mpsc::Receiver<Command>,
    stop: watch::Receiver<Option<Instant>>,
    outlets: Outlets,
    seed: u64,
    host: Option<Arc<Host>>,
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
        Builder::new(config)
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
    /// [`IdHeld`](ErrorKind::IdHeld) if another live session holds our id, after 3.5 session timeouts, [`NoAuth`](ErrorKind::NoAuth) if we may not write
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
            assignor_place: waiting.assignor_place,
            common: self.common.clone(),
            streams: cores,
            outlets: waiting.outlets,
            commands: waiting.commands,
            stop: waiting.stop,
            joined: Some(joined_in),
            seed: waiting.seed,
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
    /// A partition whose commits are suspended, since somebody set its offset forward, is passed over without an error:
    /// [`Health::suspended`] names it.
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

    /// Passes one message: it counts as done though nobody acknowledges it. For the message that no attempt gets through,
    /// without which nothing behind it is ever committed.
    ///
    /// ```no_run
    /// # async fn example(connector: &evenkeel::ConsumerConnector) -> evenkeel::Result<()> {
    /// // The oldest message of each partition that is in somebody's hands for longer than an hour.
    /// for (partition, holding) in connector.health().held {
    ///     if let Some((offset, age)) = holding.oldest
    ///         && age.as_secs() > 3_600
    ///     {
    ///         connector.pass(&partition, offset).await?;
    ///     }
    /// }
    /// connector.commit().await
    /// # }
    /// ```
    ///
    /// A message that was handed out is done at once, whether the application still holds it, left it undone or dropped it;
    /// acknowledging it afterwards changes nothing. One that was not handed out yet, be it fetched or not, is skipped when it
    /// comes. It is committed as whatever else is done: with the next commit, once all before it is done, and only while the
    /// partition is ours. That it was passed is told by [`Event::Passed`]. What was not committed when the partition goes is
    /// delivered to the next owner, also if it was passed here; and a reset of the position forgets what was passed ahead.
    ///
    /// It may lie less than `max.unacked.messages` offsets ahead of the next to be handed out, so that a slip of the hand
    /// does not skip what comes in a year. Cancel-safe: a dropped call may have been carried out.
    ///
    /// # Errors
    /// [`NotOwned`](ErrorKind::NotOwned) if the partition is not ours, is being given up, or is not read yet;
    /// [`Config`](ErrorKind::Config) if the offset lies behind what is in hand, or too far ahead; [`Closed`](ErrorKind::Closed)
    /// after the end. Nothing was changed then.
    pub async fn pass(&self, partition: &TopicPartition, offset: i64) -> Result<()> {
        self.check_process()?;
        let (reply, answer) = oneshot::channel();
        let command = Command::Pass {
            partition: partition.clone(),
            offset,
            reply,
        };
        let sent = self.commands.send(command).await;
        sent.map_err(|_| self.why_closed())?;
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
        let later = || self.events.upgrade().map(|events| events.subscribe());
        // After the end there is nothing to hear: a receiver whose sender is gone says so.
        Events(
            early
                .or_else(later)
                .unwrap_or_else(|| broadcast::channel(1).1),
        )
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
