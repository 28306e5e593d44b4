//! A group in one process: registry, log, members and the applications that read from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::clock::TokioClock;
use evenkeel::id::IdContext;
use evenkeel::stream::{Reader, ReaderSource};
use evenkeel::testing::{Inline, MemoryLog, MemoryRegistry, Record};
use evenkeel::wire::{Broker, encode_topic};
use evenkeel::{
    Builder, Config, ConsumerConnector, Error, Event, Events, GroupName, Message, MessageStream,
    Topic, TopicPartition,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub const GROUP: &str = "g";
pub const T: Duration = Duration::from_secs(6);

/// What the applications finished: partition, offset, and who did it.
pub type Finished = Arc<Mutex<Vec<(TopicPartition, i64, String)>>>;

pub struct Kit {
    pub registry: MemoryRegistry,
    pub log: MemoryLog,
    pub finished: Finished,
    pub sent: BTreeSet<(TopicPartition, i64)>,
}

pub struct Source(pub MemoryLog);

impl ReaderSource for Source {
    fn needs_brokers(&self) -> bool {
        false
    }

    fn open(&self, _: &[Broker], _: usize) -> Result<Arc<dyn Reader>, Error> {
        Ok(self.0.reader())
    }
}

pub fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

pub fn at(name: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(topic(name), partition)
}

/// A member whose coordinator is a task of the test's, and whose streams are read by another.
pub struct Member {
    pub connector: Option<ConsumerConnector>,
    pub events: Events,
    pub name: String,
    coordinator: JoinHandle<()>,
    readers: Vec<JoinHandle<()>>,
}

impl Kit {
    pub fn new() -> Self {
        Self::on(MemoryRegistry::new().with_tick(Duration::from_millis(500)))
    }

    pub fn on(registry: MemoryRegistry) -> Self {
        registry.put(
            "/brokers/ids/0",
            r#"{"version":1,"host":"h","port":9092,"jmx_port":-1,"timestamp":"0"}"#,
        );
        Self {
            registry,
            log: MemoryLog::new(),
            finished: Arc::default(),
            sent: BTreeSet::new(),
        }
    }

    pub fn create(&self, name: &str, partitions: i32) {
        self.log.create(&topic(name), partitions as usize);
        self.registry.put(
            &format!("/brokers/topics/{name}"),
            encode_topic(0..partitions),
        );
    }

    /// One more message on every partition of a topic.
    pub fn send(&mut self, name: &str, partitions: i32) {
        for partition in 0..partitions {
            let at = at(name, partition);
            let offset = self.log.append(&at, Record::new(format!("{at}"))).unwrap();
            self.sent.insert((at, offset));
        }
    }

    pub fn config(&self) -> Config {
        let mut config = Config::new(GROUP, "memory:1").unwrap();
        config.session_timeout = T;
        config.auto_offset_reset = evenkeel::config::Reset::Smallest;
        config
    }

    pub fn builder(&self, host: &str, config: Config) -> Builder {
        let group = GroupName::new(GROUP).unwrap();
        let context = IdContext::new(host, &group, "00c0ffee00c0ffee").unwrap();
        let registry = self
            .registry
            .clone()
            .with_session_timeout(config.session_timeout);
        ConsumerConnector::builder(config)
            .with_registry(Arc::new(registry))
            .with_reader_source(Arc::new(Source(self.log.clone())))
            .with_clock(Arc::new(TokioClock::new()))
            .with_outside(Arc::new(Inline::new()))
            .with_id_context(context)
    }

    pub fn join(&self, host: &str, topics: &[(&str, u32)]) -> Member {
        self.join_with(self.builder(host, self.config()), topics)
    }

    /// Joins and reads everything at once, each message done when the next is asked for.
    pub fn join_with(&self, builder: Builder, topics: &[(&str, u32)]) -> Member {
        let (mut member, streams) = self.join_unread(builder, topics);
        for stream in streams.into_values().flatten() {
            let (finished, name) = (self.finished.clone(), member.name.clone());
            member
                .readers
                .push(tokio::spawn(read(stream, finished, name)));
        }
        member
    }

    pub fn join_unread(
        &self,
        builder: Builder,
        topics: &[(&str, u32)],
    ) -> (Member, evenkeel::Streams) {
        let topics = topics.iter().map(|(name, streams)| (topic(name), *streams));
        let (connector, streams, coordinator) = builder.into_future(topics).unwrap();
        let events = connector.events();
        let name = connector.consumer_id().to_string();
        let member = Member {
            connector: Some(connector),
            events,
            name,
            coordinator: tokio::spawn(coordinator),
            readers: Vec::new(),
        };
        (member, streams)
    }

    /// Who owns what, by the owner nodes.
    pub fn owners(&self, name: &str) -> BTreeMap<i32, String> {
        let path = format!("/consumers/{GROUP}/owners/{name}");
        let node = |child: &String| self.registry.text(&format!("{path}/{child}")).unwrap();
        self.registry
            .list(&path)
            .iter()
            .map(|child| (child.parse().unwrap(), node(child)))
            .collect()
    }

    pub fn offset(&self, name: &str, partition: i32) -> Option<String> {
        self.registry
            .text(&format!("/consumers/{GROUP}/offsets/{name}/{partition}"))
    }

    pub fn members(&self) -> Vec<String> {
        self.registry.list(&format!("/consumers/{GROUP}/ids"))
    }

    /// What was finished more than once.
    pub fn duplicates(&self) -> usize {
        let finished = self.finished.lock().unwrap();
        let distinct: BTreeSet<(TopicPartition, i64)> =
            finished.iter().map(|(p, o, _)| (p.clone(), *o)).collect();
        finished.len() - distinct.len()
    }

    pub fn is_all_finished(&self) -> bool {
        let finished = self.finished.lock().unwrap();
        let distinct: BTreeSet<(TopicPartition, i64)> =
            finished.iter().map(|(p, o, _)| (p.clone(), *o)).collect();
        distinct == self.sent
    }

    /// Waits, in virtual time, until everything sent is finished.
    pub async fn drain(&self) {
        until("everything sent is finished", || self.is_all_finished()).await;
    }
}

async fn read(mut stream: MessageStream, finished: Finished, name: String) {
    while let Some(message) = stream.recv().await {
        let entry = (
            message.topic_partition().clone(),
            message.offset(),
            name.clone(),
        );
        finished.lock().unwrap().push(entry);
    }
}

/// Waits, in virtual time, until something holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(120), wait)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

impl Member {
    pub fn connector(&self) -> &ConsumerConnector {
        self.connector.as_ref().expect("it has not left")
    }

    pub async fn settled(&self) {
        let settled = timeout(Duration::from_secs(120), self.connector().settled()).await;
        settled
            .unwrap_or_else(|_| {
                panic!(
                    "{} never settled: {:?}",
                    self.name,
                    self.connector().health()
                )
            })
            .unwrap();
    }

    pub fn owned(&self) -> Vec<String> {
        self.connector()
            .owned()
            .keys()
            .map(ToString::to_string)
            .collect()
    }

    pub fn session(&self) -> i64 {
        self.connector().health().session.expect("it has a session")
    }

    /// Leaves in order and ends its readers.
    pub async fn leave(mut self) -> evenkeel::Farewell {
        let connector = self.connector.take().expect("it has not left");
        let farewell = connector.shutdown(Duration::from_secs(10)).await.unwrap();
        for reader in self.readers.drain(..) {
            reader.await.unwrap();
        }
        farewell
    }

    /// The process dies: nothing of it runs any more, its session lingers.
    pub fn die(mut self, registry: &MemoryRegistry) {
        registry.kill(self.session());
        self.coordinator.abort();
        self.readers.iter().for_each(JoinHandle::abort);
        // The handle's drop would fence, which a dead process cannot.
        std::mem::forget(self.connector.take());
    }

    /// Events that have come, without waiting.
    pub fn told(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.events.try_next()).collect()
    }

    /// Waits for an event.
    pub async fn tells(&mut self, what: &str, is_it: impl Fn(&Event) -> bool) -> Event {
        let wait = async {
            loop {
                match self.events.next().await {
                    Some(event) if is_it(&event) => return event,
                    Some(_) => {}
                    None => panic!("{} ended without telling {what}", self.name),
                }
            }
        };
        timeout(Duration::from_secs(120), wait)
            .await
            .unwrap_or_else(|_| panic!("{} never told {what}", self.name))
    }
}

/// One message that was handed over, for tests that hold it.
pub async fn next_owned(stream: &mut MessageStream) -> Message {
    timeout(Duration::from_secs(60), stream.recv_owned())
        .await
        .expect("a message comes")
        .expect("the stream is open")
}
