//! Messages with texts that occur once in the world, and an account of what the broker took.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::Message;
use rdkafka::producer::BaseProducer;
use rdkafka::producer::BaseRecord;
use rdkafka::producer::DeliveryResult;
use rdkafka::producer::Producer as _;
use rdkafka::producer::ProducerContext;
use rdkafka::producer::ThreadedProducer;

use super::broker::Broker;
use super::process::random;
use super::time::now;
use super::wait::LONG;
use super::wait::until;

/// A message the broker took.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sent {
    /// The partition.
    pub partition: i32,
    /// Where the broker put it.
    pub offset: i64,
    /// The payload.
    pub value: String,
    /// When the broker had it for certain, by the clock of [`now`].
    pub at: u64,
}

#[derive(Clone, Default)]
struct Account(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    sent: Vec<Sent>,
    refused: Vec<String>,
}

impl ClientContext for Account {}

impl ProducerContext for Account {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let mut taken = self.0.lock().unwrap();
        match result {
            Ok(message) => taken.sent.push(Sent {
                partition: message.partition(),
                offset: message.offset(),
                value: String::from_utf8(message.payload().unwrap_or_default().to_vec())
                    .expect("we wrote a text"),
                at: now(),
            }),
            Err((error, _)) => taken.refused.push(error.to_string()),
        }
    }
}

/// Produces to chosen partitions of one topic. The payloads are `TOPIC/PARTITION/NUMBER/…` and never occur twice.
pub struct Producer {
    topic: String,
    account: Account,
    producer: ThreadedProducer<Account>,
    next: BTreeMap<i32, u64>,
    mark: String,
    filler: String,
    asked: usize,
}

impl Producer {
    /// A producer for a topic of this broker, which must exist.
    pub fn connect(broker: &Broker, topic: &str) -> Self {
        Self::connect_with(broker, topic, &[])
    }

    /// The same with settings of rdkafka, for example `compression.codec`.
    pub fn connect_with(broker: &Broker, topic: &str, settings: &[(&str, &str)]) -> Self {
        let account = Account::default();
        let mut config = broker.client_config();
        config.set("linger.ms", "0");
        for (key, value) in settings {
            config.set(*key, *value);
        }
        let producer = config
            .create_with_context(account.clone())
            .expect("a producer");
        let mark = format!("{:016x}", random(u64::from(std::process::id())));
        Self {
            topic: topic.to_string(),
            account,
            producer,
            next: BTreeMap::new(),
            mark,
            filler: String::new(),
            asked: 0,
        }
    }

    /// Every later payload is filled up to at least this many bytes.
    pub fn with_size(mut self, bytes: usize) -> Self {
        self.filler = ".".repeat(bytes);
        self
    }

    /// Hands `count` messages for a partition to the producer without waiting for the broker.
    pub fn push(&mut self, partition: i32, count: u64) {
        for _ in 0..count {
            let number = self.next.entry(partition).or_default();
            let mut value = format!("{}/{partition}/{number}/{}", self.topic, self.mark);
            *number += 1;
            if value.len() < self.filler.len() {
                value += &self.filler[value.len()..];
            }
            until("room in the producer's queue", LONG, || {
                self.producer
                    .send(
                        BaseRecord::<(), str>::to(&self.topic)
                            .partition(partition)
                            .payload(&value),
                    )
                    .is_ok()
            });
            self.asked += 1;
        }
    }

    /// Waits until the broker has answered for everything, and gives all that was sent by this producer, by partition and offset.
    ///
    /// # Panics
    ///
    /// When the broker refused one.
    pub fn finish(&self) -> Vec<Sent> {
        self.producer.flush(LONG).expect("the broker answers");
        until("the producer's account complete", LONG, || {
            let taken = self.account.0.lock().unwrap();
            assert!(
                taken.refused.is_empty(),
                "messages were refused: {:?}",
                taken.refused
            );
            taken.sent.len() == self.asked
        });
        let mut sent = self.account.0.lock().unwrap().sent.clone();
        sent.sort();
        sent
    }

    /// `count` messages to every one of these partitions, and waits for the broker. Gives all that was sent by this producer.
    pub fn produce(&mut self, partitions: std::ops::Range<i32>, count: u64) -> Vec<Sent> {
        for partition in partitions {
            self.push(partition, count);
        }
        self.finish()
    }

    /// Goes on in a thread of its own: a message to every one of these partitions in turn, again and again with a pause after each round.
    pub fn flow(mut self, partitions: std::ops::Range<i32>, pause: Duration) -> Flow {
        let stop = Arc::new(AtomicBool::new(false));
        let (account, told) = (self.account.clone(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                for partition in partitions.clone() {
                    self.push(partition, 1);
                }
                std::thread::sleep(pause);
            }
            self
        });
        Flow {
            stop,
            account,
            thread: Some(thread),
        }
    }
}

/// A stream of messages to every partition, until it is stopped. Dropping it stops it.
pub struct Flow {
    stop: Arc<AtomicBool>,
    account: Account,
    thread: Option<JoinHandle<Producer>>,
}

impl Flow {
    /// How many messages the broker has taken so far, by partition.
    pub fn counts(&self) -> BTreeMap<i32, usize> {
        let mut counts = BTreeMap::new();
        for sent in &self.account.0.lock().unwrap().sent {
            *counts.entry(sent.partition).or_default() += 1;
        }
        counts
    }

    /// Waits until every one of these partitions has taken `more` messages from now on.
    pub fn await_more(&self, partitions: std::ops::Range<i32>, more: usize) {
        let before = self.counts();
        until("messages flow to every partition", LONG, || {
            let now = self.counts();
            let of = |counts: &BTreeMap<i32, usize>, partition| {
                counts.get(&partition).copied().unwrap_or_default()
            };
            partitions
                .clone()
                .all(|partition| of(&now, partition) >= of(&before, partition) + more)
        });
    }

    /// Stops, waits for the broker, and gives the producer back; all that was sent is in its [`Producer::finish`].
    pub fn stop(mut self) -> Producer {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .take()
            .expect("it was not stopped before")
            .join()
            .expect("the flow did not panic")
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
