//! A group in one process: registry, log, members and the applications that read from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::clock::TokioClock;
use evenkeel::event::LostCause;
use evenkeel::id::IdContext;
use evenkeel::listener::RebalanceListener;
use evenkeel::registry::{Connection, Dialect, Registry};
use evenkeel::testing::check::Fact;
use evenkeel::testing::{Inline, Latency, MemoryLog, MemoryRegistry, Record, Write};
use evenkeel::wire::encode_topic;
use evenkeel::{
    Builder, Config, ConsumerConnector, Event, Events, GroupName, Message, MessageStream, StreamId,
    Topic, TopicPartition,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::book::Book;

pub const GROUP: &str = "g";
pub const T: Duration = Duration::from_secs(6);

/// What the applications finished: partition, offset, and who did it.
pub type Finished = Arc<Mutex<Vec<(TopicPartition, i64, String)>>>;

pub struct Kit {
    pub registry: MemoryRegistry,
    pub log: MemoryLog,
    pub finished: Finished,
    pub sent: BTreeSet<(TopicPartition, i64)>,
    pub book: Book,
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
    book: Book,
}

impl Kit {
    pub fn new() -> Self {
        Self::on(MemoryRegistry::new().with_tick(Duration::from_millis(500)))
    }

    /// With requests that take their time; equal seeds give equal runs.
    pub fn slow(low: u64, high: u64, seed: u64) -> Self {
        let (low, high) = (Duration::from_millis(low), Duration::from_millis(high));
        Self::on(
            MemoryRegistry::new()
                .with_tick(Duration::from_millis(500))
                .with_latency(Latency::between(low, high, seed)),
        )
    }

    pub fn on(registry: MemoryRegistry) -> Self {
        registry.put(
            "/brokers/ids/0",
            r#"{"version":1,"host":"h","port":9092,"jmx_port":-1,"timestamp":"0"}"#,
        );
        Self {
            book: Book::new(&registry),
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

    /// The topic gets more partitions.
    pub fn grow(&self, name: &str, partitions: i32) {
        self.create(name, partitions);
    }

    /// The topic goes, with its messages.
    pub fn delete(&self, name: &str) {
        self.log.delete(&topic(name));
        self.registry.delete(&format!("/brokers/topics/{name}"));
    }

    /// One more message on one partition.
    pub fn send_to(&mut self, name: &str, partition: i32) -> i64 {
        let at = at(name, partition);
        let offset = self.log.append(&at, Record::new(format!("{at}"))).unwrap();
        self.book.sent(at.clone(), offset);
        self.sent.insert((at, offset));
        offset
    }

    /// One more message on every partition of a topic.
    pub fn send(&mut self, name: &str, partitions: i32) {
        for partition in 0..partitions {
            self.send_to(name, partition);
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
            .with_reader_source(Arc::new(self.log.clone()))
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
            let (finished, book) = (self.finished.clone(), self.book.clone());
            let name = book.enter(&member.name);
            member
                .readers
                .push(tokio::spawn(read(stream, finished, book, name)));
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
        self.book.follow(self.book.enter(&name), connector.events());
        let member = Member {
            connector: Some(connector),
            events,
            name,
            coordinator: tokio::spawn(coordinator),
            readers: Vec::new(),
            book: self.book.clone(),
        };
        (member, streams)
    }

    /// The servers end a session that they still hear of.
    pub fn expire(&self, session: i64) {
        self.book.note("nemesis", Fact::Expired { session });
        self.registry.expire(session);
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

    pub fn owner_path(name: &str, partition: i32) -> String {
        format!("/consumers/{GROUP}/owners/{name}/{partition}")
    }

    pub fn offset_path(name: &str, partition: i32) -> String {
        format!("/consumers/{GROUP}/offsets/{name}/{partition}")
    }

    pub fn id_path(id: &str) -> String {
        format!("/consumers/{GROUP}/ids/{id}")
    }

    /// The session of an owner node; 0 for a lasting one, none if it is not there.
    pub fn owner_session(&self, name: &str, partition: i32) -> Option<i64> {
        let (_, stat) = self.registry.read(&Self::owner_path(name, partition))?;
        Some(stat.ephemeral_owner)
    }

    /// What tells the ownership that stands there from others.
    pub fn owner_token(&self, name: &str, partition: i32) -> i64 {
        let node = self.registry.read(&Self::owner_path(name, partition));
        node.expect("an owner").1.czxid
    }

    /// Writes below a path since a transaction.
    pub fn writes_below(&self, path: &str, since: i64) -> Vec<Write> {
        let log = self.registry.log_since(since).into_iter();
        log.filter(|write| {
            write.path.starts_with(path) && write.act != evenkeel::testing::Act::Check
        })
        .collect()
    }

    /// A session that is not one of our members': a scripted one.
    pub async fn stranger(&self) -> Stranger {
        self.stranger_speaking(Dialect::V3_5).await
    }

    pub async fn stranger_speaking(&self, dialect: Dialect) -> Stranger {
        let registry = self.registry.clone().with_session_timeout(T);
        Stranger(registry.open(dialect).await.unwrap())
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

async fn read(mut stream: MessageStream, finished: Finished, book: Book, name: Arc<str>) {
    book.note_as(&name, Fact::Other("reads".into()));
    while let Some(message) = stream.recv().await {
        let (at, offset) = (message.topic_partition().clone(), message.offset());
        book.delivered(&name, &at, message.token(), offset);
        book.done(&name, &at, message.token(), offset);
        let entry = (at, offset, name.to_string());
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

/// Who owns what by the old range rule, counted here on its own: streams in the order of their texts, partitions in that
/// of their numbers, the first streams one more each.
pub fn range(streams: &[String], partitions: i32) -> BTreeMap<i32, String> {
    let mut streams = streams.to_vec();
    streams.sort();
    let count = streams.len() as i32;
    let (each, more) = (partitions / count, partitions % count);
    let mut owners = BTreeMap::new();
    let mut next = 0;
    for (place, stream) in streams.into_iter().enumerate() {
        let share = each + i32::from((place as i32) < more);
        for _ in 0..share {
            owners.insert(next, stream.clone());
            next += 1;
        }
    }
    owners
}

/// What the range rule says of members with one stream each.
pub fn range_of(members: &[&Member], partitions: i32) -> BTreeMap<i32, String> {
    let streams: Vec<String> = members.iter().map(|m| format!("{}-0", m.name)).collect();
    range(&streams, partitions)
}

/// A session of somebody else's.
pub struct Stranger(pub Arc<dyn Connection>);

impl Stranger {
    pub fn id(&self) -> i64 {
        self.0.session_id()
    }

    async fn parents(&self, path: &str) {
        let mut at = 1;
        while let Some(next) = path[at..].find('/') {
            at += next;
            let _ = self.0.create(&path[..at], b"", false).await;
            at += 1;
        }
    }

    pub async fn make(&self, path: &str, data: &str) {
        self.parents(path).await;
        self.0.create(path, data.as_bytes(), true).await.unwrap();
    }

    pub async fn own(&self, name: &str, partition: i32, text: &str) {
        self.make(&Kit::owner_path(name, partition), text).await;
    }

    /// Registers as a JVM does: with this text, at version 0.
    pub async fn register(&self, id: &str, data: &str) {
        self.make(&Kit::id_path(id), data).await;
    }

    /// Registers for one topic as a JVM does.
    pub async fn register_for(&self, id: &str, name: &str, streams: u32) {
        self.register(id, &registration_for(name, streams)).await;
    }

    pub async fn delete(&self, path: &str) {
        self.0.delete(path, None).await.unwrap();
    }

    pub async fn close(self) {
        self.0.close().await;
    }
}

/// The registration of a JVM for one topic.
pub fn registration_for(name: &str, streams: u32) -> String {
    format!(
        r#"{{"version":1,"subscription":{{"{name}":{streams}}},"pattern":"static","timestamp":"1441234567890"}}"#
    )
}

/// Writes down what a listener is told, and may do something in it.
#[derive(Default, Clone)]
pub struct Diary {
    pub calls: Arc<Mutex<Vec<Call>>>,
    pub on_release: Arc<Mutex<Option<Deed>>>,
}

/// Which call it was, and the partitions it was about.
pub type Call = (&'static str, Vec<String>);

pub type Deed = Box<dyn FnMut(&BTreeSet<TopicPartition>) + Send>;

impl Diary {
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.calls().into_iter().map(|(name, _)| name).collect()
    }

    fn note<'a>(&self, what: &'static str, of: impl Iterator<Item = &'a TopicPartition>) {
        let of = of.map(ToString::to_string).collect();
        self.calls.lock().unwrap().push((what, of));
    }
}

impl RebalanceListener for Diary {
    fn before_release(&self, partitions: &BTreeSet<TopicPartition>) {
        self.note("before_release", partitions.iter());
        if let Some(deed) = self.on_release.lock().unwrap().as_mut() {
            deed(partitions);
        }
    }

    fn after_claim(&self, partitions: &BTreeMap<TopicPartition, StreamId>) {
        self.note("after_claim", partitions.keys());
    }

    fn on_lost(&self, partitions: &BTreeSet<TopicPartition>, _: LostCause) {
        self.note("on_lost", partitions.iter());
    }
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

    /// Whether its task is over, in whatever way.
    pub fn has_ended(&self) -> bool {
        self.coordinator.is_finished()
    }

    /// Drops the handle; the member's task goes on as it will.
    pub fn drop_handle(mut self) -> JoinHandle<()> {
        drop(self.connector.take());
        self.coordinator
    }

    /// The process dies: nothing of it runs any more, its session lingers.
    pub fn die(mut self, registry: &MemoryRegistry) {
        let member = self.name.as_str().into();
        self.book.note("nemesis", Fact::Killed { member });
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
