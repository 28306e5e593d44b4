//! Kafka within the process: topics whose partitions hold records, and readers of them.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, Result};
use crate::group::{Topic, TopicPartition};
use crate::registry::Later;
use crate::stream::{
    Bell, Content, Edge, Notice, Polled, Queue, Reader, ReaderSource, Start, Trouble,
};
use crate::wire::Broker;

/// One record, but for its offset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// The key, if it has one.
    pub key: Option<Vec<u8>>,
    /// The payload; none is a tombstone.
    pub payload: Option<Vec<u8>>,
    /// Milliseconds since the epoch, if it has a time.
    pub timestamp_ms: Option<i64>,
    /// The headers in their order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    /// A record with this payload and nothing else.
    pub fn new(payload: impl Into<Vec<u8>>) -> Self {
        Self {
            payload: Some(payload.into()),
            ..Self::default()
        }
    }

    /// The same record with a key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }
}

struct Held {
    offset: i64,
    record: Arc<Record>,
}

impl Content for Held {
    fn offset(&self) -> i64 {
        self.offset
    }
    fn key(&self) -> Option<&[u8]> {
        self.record.key.as_deref()
    }
    fn payload(&self) -> Option<&[u8]> {
        self.record.payload.as_deref()
    }
    fn timestamp_ms(&self) -> Option<i64> {
        self.record.timestamp_ms
    }
    fn headers(&self) -> Vec<(&str, Option<&[u8]>)> {
        let headers = self.record.headers.iter();
        headers
            .map(|(name, value)| (name.as_str(), value.as_deref()))
            .collect()
    }
}

#[derive(Default)]
struct Partition {
    records: BTreeMap<i64, Arc<Record>>,
    start: i64,
    end: i64,
    is_leaderless: bool,
}

/// A partition that a reader fetches.
struct Fetch {
    generation: u64,
    position: i64,
    bell: Bell,
    trouble: Option<Trouble>,
    is_broken: bool,
    is_muted: bool,
}

impl Fetch {
    fn ring(&self) {
        if !self.is_muted {
            self.bell.ring();
        }
    }
}

#[derive(Default)]
struct Client {
    fetches: BTreeMap<TopicPartition, Fetch>,
    notices: VecDeque<Notice>,
    news: Arc<Notify>,
    is_closed: bool,
}

#[derive(Default)]
struct Brokers {
    topics: BTreeMap<Topic, Vec<Partition>>,
    clients: BTreeMap<u64, Client>,
    next: u64,
    down: Option<String>,
    delay: Duration,
    starts: Vec<(TopicPartition, i64)>,
}

impl Brokers {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn partition(&self, partition: &TopicPartition) -> Option<&Partition> {
        let number = usize::try_from(partition.partition).ok()?;
        self.topics.get(&partition.topic)?.get(number)
    }

    fn partition_mut(&mut self, partition: &TopicPartition) -> Result<&mut Partition> {
        let number = usize::try_from(partition.partition).ok();
        let topic = self.topics.get_mut(&partition.topic);
        topic
            .zip(number)
            .and_then(|(partitions, number)| partitions.get_mut(number))
            .ok_or_else(|| missing(partition))
    }

    fn fetches(&mut self) -> impl Iterator<Item = (&TopicPartition, &mut Fetch)> {
        self.clients.values_mut().flat_map(|c| c.fetches.iter_mut())
    }

    fn ring(&mut self, partition: &TopicPartition) {
        for client in self.clients.values() {
            if let Some(fetch) = client.fetches.get(partition) {
                fetch.ring();
            }
        }
    }

    fn ring_all(&mut self) {
        self.fetches().for_each(|(_, fetch)| fetch.ring());
    }

    fn tell(&mut self, notice: &Notice) {
        for client in self.clients.values_mut() {
            client.notices.push_back(notice.clone());
            client.news.notify_one();
        }
    }

    fn begin(&mut self, reader: u64, start: &Start) -> Result<u64> {
        let generation = self.number();
        self.starts.push((start.partition.clone(), start.offset));
        let client = self.clients.get_mut(&reader).filter(|c| !c.is_closed);
        let client = client.ok_or_else(closed)?;
        let fetch = Fetch {
            generation,
            position: start.offset,
            bell: start.bell.clone(),
            trouble: None,
            is_broken: false,
            is_muted: false,
        };
        // What is there already has to be told as well.
        start.bell.ring();
        client.fetches.insert(start.partition.clone(), fetch);
        Ok(generation)
    }

    fn poll(&mut self, reader: u64, partition: &TopicPartition, generation: u64) -> Polled {
        let found = self.find(reader, partition, generation);
        let client = self.clients.get_mut(&reader);
        let Some(fetch) = client.and_then(|c| c.fetches.get_mut(partition)) else {
            return Polled::Empty;
        };
        match &found {
            Polled::Message(content) => fetch.position = content.offset() + 1,
            Polled::Trouble(_) if fetch.generation == generation => fetch.is_broken = true,
            Polled::Trouble(_) | Polled::Empty => {}
        }
        found
    }

    fn find(&mut self, reader: u64, partition: &TopicPartition, generation: u64) -> Polled {
        let client = self.clients.get_mut(&reader);
        let fetch = client
            .and_then(|c| c.fetches.get_mut(partition))
            .filter(|fetch| fetch.generation == generation)
            .filter(|fetch| !fetch.is_broken && !fetch.is_muted);
        let Some(fetch) = fetch else {
            return Polled::Empty;
        };
        if let Some(trouble) = fetch.trouble.take() {
            return Polled::Trouble(trouble);
        }
        let position = fetch.position;
        if self.down.is_some() {
            return Polled::Empty;
        }
        match self.partition(partition) {
            None => Polled::Trouble(Trouble::Failed(missing(partition).to_string())),
            Some(log) if log.is_leaderless => Polled::Empty,
            Some(log) if !(log.start..=log.end).contains(&position) => {
                Polled::Trouble(Trouble::OutOfRange)
            }
            Some(log) => match log.records.range(position..).next() {
                None => Polled::Empty,
                Some((offset, record)) => Polled::Message(Box::new(Held {
                    offset: *offset,
                    record: record.clone(),
                })),
            },
        }
    }

    fn edge(&self, partition: &TopicPartition, edge: Edge) -> Result<i64> {
        if let Some(reason) = &self.down {
            let text = format!("cannot ask for an end of {partition}: {reason}");
            return Err(Error::new(ErrorKind::Kafka, text));
        }
        let log = self
            .partition(partition)
            .ok_or_else(|| missing(partition))?;
        if log.is_leaderless {
            let text = format!("cannot ask for an end of {partition}: it has no leader");
            return Err(Error::new(ErrorKind::Kafka, text));
        }
        Ok(match edge {
            Edge::Earliest => log.start,
            Edge::Latest => log.end,
        })
    }
}

fn missing(partition: &TopicPartition) -> Error {
    Error::new(
        ErrorKind::Kafka,
        format!("unknown topic or partition {partition}"),
    )
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the reader is closed")
}

/// Brokers within the process. A clone is another handle of the same brokers.
///
/// Partitions are logs of [`Record`]s with offsets from 0, kept until they are trimmed. Every reader sees what is
/// appended at once.
#[derive(Clone, Default)]
pub struct MemoryLog(Arc<Mutex<Brokers>>);

impl fmt::Debug for MemoryLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryLog")
    }
}

impl MemoryLog {
    /// Brokers without a topic.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Brokers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long it takes until a reader's [`read`](Reader::read) and [`edge`](Reader::edge) are answered. Zero unless set.
    #[must_use]
    pub fn with_delay(self, delay: Duration) -> Self {
        self.lock().delay = delay;
        self
    }

    /// Makes a topic with so many partitions, or adds what one that exists lacks; partitions never get fewer.
    pub fn create(&self, topic: &Topic, partitions: usize) {
        let mut brokers = self.lock();
        let logs = brokers.topics.entry(topic.clone()).or_default();
        while logs.len() < partitions {
            logs.push(Partition::default());
        }
        brokers.ring_all();
    }

    /// Deletes a topic with all it holds; who reads it is in trouble. One made later under the same name begins at 0.
    pub fn delete(&self, topic: &Topic) {
        let mut brokers = self.lock();
        brokers.topics.remove(topic);
        brokers.ring_all();
    }

    /// Appends a record; answers with its offset.
    ///
    /// # Errors
    /// [`Kafka`](ErrorKind::Kafka) if there is no such partition.
    pub fn append(&self, partition: &TopicPartition, record: Record) -> Result<i64> {
        let mut brokers = self.lock();
        let log = brokers.partition_mut(partition)?;
        let offset = log.end;
        log.records.insert(offset, Arc::new(record));
        log.end += 1;
        brokers.ring(partition);
        Ok(offset)
    }

    /// Leaves out so many offsets, as a compacted log or a transaction does.
    ///
    /// # Errors
    /// [`Kafka`](ErrorKind::Kafka) if there is no such partition.
    pub fn skip(&self, partition: &TopicPartition, offsets: u32) -> Result<()> {
        self.lock().partition_mut(partition)?.end += i64::from(offsets);
        Ok(())
    }

    /// Drops all records before an offset, as retention does; beyond the end it empties the log and leaves its end.
    ///
    /// # Errors
    /// [`Kafka`](ErrorKind::Kafka) if there is no such partition.
    pub fn trim(&self, partition: &TopicPartition, before: i64) -> Result<()> {
        let mut brokers = self.lock();
        let log = brokers.partition_mut(partition)?;
        log.start = before.clamp(log.start, log.end);
        log.records = log.records.split_off(&log.start);
        brokers.ring(partition);
        Ok(())
    }

    /// The oldest offset and the one the next record will get.
    ///
    /// # Errors
    /// [`Kafka`](ErrorKind::Kafka) if there is no such partition.
    pub fn bounds(&self, partition: &TopicPartition) -> Result<(i64, i64)> {
        let mut brokers = self.lock();
        let log = brokers.partition_mut(partition)?;
        Ok((log.start, log.end))
    }

    /// Takes the partition's leader away, or gives it one. Without a leader nothing is fetched, in silence.
    ///
    /// # Errors
    /// [`Kafka`](ErrorKind::Kafka) if there is no such partition.
    pub fn set_leader(&self, partition: &TopicPartition, is_there: bool) -> Result<()> {
        let mut brokers = self.lock();
        brokers.partition_mut(partition)?.is_leaderless = !is_there;
        brokers.ring(partition);
        Ok(())
    }

    /// Everybody who fetches the partition now meets this trouble next.
    pub fn trouble(&self, partition: &TopicPartition, trouble: &Trouble) {
        let mut brokers = self.lock();
        let fetches = brokers.fetches().filter(|(which, _)| *which == partition);
        for (_, fetch) in fetches {
            fetch.trouble = Some(trouble.clone());
            fetch.ring();
        }
    }

    /// Everybody who fetches the partition now gets nothing more of it, in silence, until it is begun anew: a client that
    /// has lost sight of it.
    pub fn mute(&self, partition: &TopicPartition) {
        let mut brokers = self.lock();
        let fetches = brokers.fetches().filter(|(which, _)| *which == partition);
        for (_, fetch) in fetches {
            fetch.is_muted = true;
        }
    }

    /// All brokers go down, for this reason; every reader is told, once. While they are down
    /// already, nothing changes.
    pub fn go_down(&self, reason: impl Into<String>) {
        let reason = reason.into();
        let mut brokers = self.lock();
        if brokers.down.is_none() {
            brokers.down = Some(reason.clone());
            brokers.tell(&Notice::BrokersDown(reason));
        }
    }

    /// The brokers are back.
    pub fn come_up(&self) {
        let mut brokers = self.lock();
        if brokers.down.take().is_some() {
            brokers.tell(&Notice::BrokersBack);
            brokers.ring_all();
        }
    }

    /// Tells every reader something.
    pub fn warn(&self, words: impl Into<String>) {
        self.lock().tell(&Notice::Warning(words.into()));
    }

    /// Where reading was begun, every time anew and by whomever, in order.
    pub fn starts(&self) -> Vec<(TopicPartition, i64)> {
        self.lock().starts.clone()
    }

    /// What is being fetched, with the next offset to be given out; a partition stands there once for each of its readers.
    pub fn fetching(&self) -> Vec<(TopicPartition, i64)> {
        let mut brokers = self.lock();
        let fetches = brokers.fetches();
        let mut all: Vec<_> = fetches.map(|(p, f)| (p.clone(), f.position)).collect();
        all.sort();
        all
    }

    /// A member's reader. Dropping it lets go of everything, as closing it does.
    pub fn reader(&self) -> Arc<dyn Reader> {
        let mut brokers = self.lock();
        let id = brokers.number();
        let mut client = Client::default();
        if let Some(reason) = &brokers.down {
            client
                .notices
                .push_back(Notice::BrokersDown(reason.clone()));
        }
        brokers.clients.insert(id, client);
        drop(brokers);
        Arc::new(MemoryReader {
            log: self.clone(),
            id,
        })
    }
}

/// Every member gets a reader of its own.
impl ReaderSource for MemoryLog {
    fn needs_brokers(&self) -> bool {
        false
    }

    fn open(&self, _: &[Broker], _: usize) -> Result<Arc<dyn Reader>> {
        Ok(self.reader())
    }
}

/// One member's reader.
struct MemoryReader {
    log: MemoryLog,
    id: u64,
}

impl Drop for MemoryReader {
    fn drop(&mut self) {
        self.log.lock().clients.remove(&self.id);
    }
}

async fn pause(time: Duration) {
    if time.is_zero() {
        tokio::task::yield_now().await;
    } else {
        tokio::time::sleep(time).await;
    }
}

impl Reader for MemoryReader {
    fn read(&self, starts: Vec<Start>) -> Later<Vec<(TopicPartition, Result<Box<dyn Queue>>)>> {
        let (log, reader) = (self.log.clone(), self.id);
        Box::pin(async move {
            let mut queues: Vec<(TopicPartition, Result<Box<dyn Queue>>)> = Vec::new();
            for start in starts {
                let begun = log.lock().begin(reader, &start);
                let partition = start.partition;
                let queue = begun.map(|generation| -> Box<dyn Queue> {
                    Box::new(MemoryQueue {
                        log: log.clone(),
                        reader,
                        partition: partition.clone(),
                        generation,
                    })
                });
                queues.push((partition, queue));
            }
            let delay = log.lock().delay;
            pause(delay).await;
            queues
        })
    }

    fn stop(&self, partitions: &[TopicPartition]) {
        let mut brokers = self.log.lock();
        if let Some(client) = brokers.clients.get_mut(&self.id) {
            client.fetches.retain(|p, _| !partitions.contains(p));
        }
    }

    fn edge(&self, partition: &TopicPartition, edge: Edge) -> Later<Result<i64>> {
        let (log, partition) = (self.log.clone(), partition.clone());
        Box::pin(async move {
            let delay = log.lock().delay;
            pause(delay).await;
            log.lock().edge(&partition, edge)
        })
    }

    fn notice(&self) -> Later<Notice> {
        let (log, reader) = (self.log.clone(), self.id);
        Box::pin(async move {
            loop {
                let news = match log.lock().clients.get_mut(&reader) {
                    None => None,
                    Some(client) => match client.notices.pop_front() {
                        Some(notice) => return notice,
                        None => Some(client.news.clone()),
                    },
                };
                match news {
                    Some(news) => news.notified().await,
                    None => std::future::pending().await,
                }
            }
        })
    }

    fn close(&self) -> Later<()> {
        let (log, reader) = (self.log.clone(), self.id);
        Box::pin(async move {
            if let Some(client) = log.lock().clients.get_mut(&reader) {
                client.fetches.clear();
                client.is_closed = true;
            }
            tokio::task::yield_now().await;
        })
    }
}

struct MemoryQueue {
    log: MemoryLog,
    reader: u64,
    partition: TopicPartition,
    generation: u64,
}

impl Queue for MemoryQueue {
    fn poll(&mut self) -> Polled {
        self.log
            .lock()
            .poll(self.reader, &self.partition, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn partition(number: i32) -> TopicPartition {
        TopicPartition::new(Topic::new("t").unwrap(), number)
    }

    fn log() -> MemoryLog {
        let log = MemoryLog::new();
        log.create(&Topic::new("t").unwrap(), 2);
        log
    }

    fn fill(log: &MemoryLog, count: i64) {
        for number in 0..count {
            log.append(&partition(0), Record::new(format!("v{number}")))
                .unwrap();
        }
    }

    async fn read(reader: &Arc<dyn Reader>, offset: i64) -> (Box<dyn Queue>, Bell) {
        let bell = Bell::default();
        let start = Start {
            partition: partition(0),
            offset,
            bell: bell.clone(),
        };
        let mut queues = reader.read(vec![start]).await;
        (queues.remove(0).1.unwrap(), bell)
    }

    fn offset(polled: &Polled) -> i64 {
        match polled {
            Polled::Message(content) => content.offset(),
            Polled::Empty => -1,
            Polled::Trouble(Trouble::OutOfRange) => -2,
            Polled::Trouble(Trouble::Failed(_)) => -3,
        }
    }

    fn offsets(queue: &mut Box<dyn Queue>, count: usize) -> Vec<i64> {
        (0..count).map(|_| offset(&queue.poll())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_gives_what_was_appended_before_and_after() {
        let log = log();
        fill(&log, 2);
        let reader = log.reader();
        let (mut queue, bell) = read(&reader, 1).await;
        bell.rung().await;
        assert_eq!(offsets(&mut queue, 2), [1, -1]);
        assert!(bell.rung().now_or_never().is_none());
        fill(&log, 1);
        bell.rung().await;
        assert_eq!(offsets(&mut queue, 2), [2, -1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_shows_all_that_was_appended() {
        let log = log();
        let record = Record {
            timestamp_ms: Some(5),
            headers: vec![("h".into(), Some(b"1".to_vec())), ("h".into(), None)],
            ..Record::new("v").with_key("k")
        };
        log.append(&partition(0), record).unwrap();
        log.append(&partition(0), Record::default()).unwrap();
        let reader = log.reader();
        let (mut queue, _) = read(&reader, 0).await;
        let Polled::Message(first) = queue.poll() else {
            panic!("no message");
        };
        let Polled::Message(second) = queue.poll() else {
            panic!("no message");
        };
        reader.close().await;
        drop((log, reader, queue));
        assert_eq!(first.key(), Some(&b"k"[..]));
        assert_eq!(first.payload(), Some(&b"v"[..]));
        assert_eq!(first.timestamp_ms(), Some(5));
        assert_eq!(first.headers(), [("h", Some(&b"1"[..])), ("h", None)]);
        assert_eq!((second.key(), second.payload()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn gaps_are_passed_over() {
        let log = log();
        log.skip(&partition(0), 3).unwrap();
        fill(&log, 1);
        log.skip(&partition(0), 2).unwrap();
        fill(&log, 1);
        let reader = log.reader();
        let (mut queue, _) = read(&reader, 0).await;
        assert_eq!(offsets(&mut queue, 3), [3, 6, -1]);
        assert_eq!(log.bounds(&partition(0)).unwrap(), (0, 7));
    }

    #[tokio::test(start_paused = true)]
    async fn an_offset_that_is_not_in_the_log_is_trouble_once() {
        let log = log();
        fill(&log, 4);
        log.trim(&partition(0), 2).unwrap();
        let reader = log.reader();
        for bad in [1, 5] {
            let (mut queue, _) = read(&reader, bad).await;
            assert_eq!(offsets(&mut queue, 2), [-2, -1]);
        }
        let (mut queue, _) = read(&reader, 2).await;
        assert_eq!(offsets(&mut queue, 3), [2, 3, -1]);
        assert_eq!(reader.edge(&partition(0), Edge::Earliest).await.unwrap(), 2);
        assert_eq!(reader.edge(&partition(0), Edge::Latest).await.unwrap(), 4);
        log.trim(&partition(0), 99).unwrap();
        assert_eq!(log.bounds(&partition(0)).unwrap(), (4, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_topic_made_anew_begins_at_zero() {
        let log = log();
        let topic = Topic::new("t").unwrap();
        fill(&log, 4);
        let reader = log.reader();
        let (mut queue, _) = read(&reader, 4).await;
        log.delete(&topic);
        assert_eq!(offsets(&mut queue, 2), [-3, -1]);
        assert!(reader.edge(&partition(0), Edge::Latest).await.is_err());
        assert!(log.append(&partition(0), Record::default()).is_err());
        log.create(&topic, 1);
        let (mut queue, _) = read(&reader, 4).await;
        assert_eq!(offsets(&mut queue, 1), [-2]);
        assert!(log.append(&partition(1), Record::default()).is_err());
        log.create(&topic, 2);
        assert_eq!(log.append(&partition(1), Record::default()).unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_stopped_or_begun_anew_gives_nothing_more() {
        let log = log();
        fill(&log, 4);
        let reader = log.reader();
        let (mut old, _) = read(&reader, 0).await;
        assert_eq!(offset(&old.poll()), 0);
        let (mut new, _) = read(&reader, 2).await;
        assert_eq!(offset(&old.poll()), -1);
        assert_eq!(offset(&new.poll()), 2);
        assert_eq!(log.fetching(), [(partition(0), 3)]);
        reader.stop(&[partition(0), partition(1)]);
        assert_eq!(offset(&new.poll()), -1);
        assert_eq!(log.starts(), [(partition(0), 0), (partition(0), 2)]);
        let (mut third, _) = read(&reader, 0).await;
        reader.close().await;
        assert_eq!(offset(&third.poll()), -1);
        let start = Start {
            partition: partition(0),
            offset: 0,
            bell: Bell::default(),
        };
        assert!(reader.read(vec![start]).await[0].1.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn readers_do_not_disturb_each_other() {
        let log = log();
        fill(&log, 2);
        let (one, two) = (log.reader(), log.reader());
        let (mut a, _) = read(&one, 0).await;
        let (mut b, _) = read(&two, 0).await;
        drop(one);
        assert_eq!(offsets(&mut a, 1), [-1]);
        assert_eq!(offsets(&mut b, 2), [0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_fetched_without_brokers_and_a_notice_comes_once() {
        let log = log();
        fill(&log, 1);
        let reader = log.reader();
        let (mut queue, bell) = read(&reader, 0).await;
        bell.rung().await;
        log.go_down("pulled the plug");
        log.go_down("again");
        drop(reader.notice());
        let down = Notice::BrokersDown("pulled the plug".into());
        assert_eq!(reader.notice().await, down);
        assert!(reader.notice().now_or_never().is_none());
        assert_eq!(log.reader().notice().await, down);
        assert_eq!(offset(&queue.poll()), -1);
        assert!(reader.edge(&partition(0), Edge::Latest).await.is_err());
        let waiting = tokio::spawn(reader.notice());
        tokio::task::yield_now().await;
        log.come_up();
        assert_eq!(waiting.await.unwrap(), Notice::BrokersBack);
        bell.rung().await;
        assert_eq!(offset(&queue.poll()), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_without_a_leader_is_silent() {
        let log = log();
        fill(&log, 1);
        let reader = log.reader();
        let (mut queue, bell) = read(&reader, 0).await;
        bell.rung().await;
        log.set_leader(&partition(0), false).unwrap();
        assert_eq!(offset(&queue.poll()), -1);
        assert!(reader.edge(&partition(0), Edge::Latest).await.is_err());
        log.set_leader(&partition(0), true).unwrap();
        bell.rung().await;
        assert_eq!(offset(&queue.poll()), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn trouble_comes_when_it_is_sent() {
        let log = log();
        fill(&log, 1);
        let reader = log.reader();
        let (mut queue, _) = read(&reader, 0).await;
        log.trouble(&partition(0), &Trouble::Failed("bad batch".into()));
        assert_eq!(offsets(&mut queue, 2), [-3, -1]);
        let (mut queue, _) = read(&reader, 0).await;
        assert_eq!(offsets(&mut queue, 2), [0, -1]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_muted_is_silent_until_it_is_begun_anew() {
        let log = log();
        fill(&log, 1);
        let reader = log.reader();
        let (mut queue, bell) = read(&reader, 0).await;
        bell.rung().await;
        log.mute(&partition(0));
        fill(&log, 1);
        log.trouble(&partition(0), &Trouble::OutOfRange);
        assert!(bell.rung().now_or_never().is_none());
        assert_eq!(offset(&queue.poll()), -1);
        assert_eq!(reader.edge(&partition(0), Edge::Latest).await.unwrap(), 2);
        let (mut queue, bell) = read(&reader, 0).await;
        bell.rung().await;
        assert_eq!(offsets(&mut queue, 3), [0, 1, -1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_broker_answers_late() {
        let log = log().with_delay(Duration::from_millis(70));
        let reader = log.reader();
        let zero = tokio::time::Instant::now();
        read(&reader, 0).await;
        let _ = reader.edge(&partition(0), Edge::Latest).await;
        assert_eq!(zero.elapsed(), Duration::from_millis(140));
    }
}
