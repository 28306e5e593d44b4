//! Members of ours within the test's process: joined, read from, asked and ended from a test that blocks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use evenkeel::Config;
use evenkeel::ConsumerConnector;
use evenkeel::Event;
use evenkeel::Farewell;
use evenkeel::Topic;
use evenkeel::config::Reset;

use super::tree::run_async;
use super::wait::LONG;
use super::wait::until;
use super::wait::until_some;
use super::zookeeper::ZooKeeper;

/// A message that a member of ours finished.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finished {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// The payload as text.
    pub value: String,
}

/// A member of ours that reads everything, each message done when the next is asked for.
pub struct Ours {
    connector: Option<ConsumerConnector>,
    finished: Arc<Mutex<Vec<Finished>>>,
    events: Arc<Mutex<Vec<Event>>>,
    readers: Vec<std::sync::mpsc::Receiver<()>>,
}

/// The settings of the tests: a session of 6 s, the smallest offset at the start, a commit every 60 s.
pub fn config(zookeeper: &ZooKeeper, group: &str) -> Config {
    config_below(zookeeper, "", group)
}

/// The same below a chroot.
pub fn config_below(zookeeper: &ZooKeeper, chroot: &str, group: &str) -> Config {
    let mut config = Config::new(group, &format!("{}{chroot}", zookeeper.connect_string()))
        .expect("a good configuration");
    config.auto_offset_reset = Reset::Smallest;
    config
}

impl Ours {
    /// Joins with these topics and stream counts; returns once registered.
    pub fn join(config: Config, topics: &[(&str, u32)]) -> Self {
        Self::join_with(config, topics, Duration::ZERO)
    }

    /// The same, with each message done only so long after it was handed out, while others are read.
    pub fn join_with(config: Config, topics: &[(&str, u32)], hold: Duration) -> Self {
        let topics: Vec<(Topic, u32)> = topics
            .iter()
            .map(|(name, streams)| (Topic::new(name).expect("a good name"), *streams))
            .collect();
        let finished: Arc<Mutex<Vec<Finished>>> = Arc::default();
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let (told, heard) = (events.clone(), finished.clone());
        let (connector, readers) = run_async(async move {
            let connector = ConsumerConnector::connect(config)
                .await
                .expect("the servers are there");
            let mut happens = connector.events();
            tokio::spawn(async move {
                while let Some(event) = happens.next().await {
                    told.lock().unwrap().push(event);
                }
            });
            let streams = connector
                .streams(topics)
                .await
                .expect("nothing is in the way of joining");
            let mut readers = Vec::new();
            for mut stream in streams.into_values().flatten() {
                let (over, ended) = std::sync::mpsc::channel();
                readers.push(ended);
                let finished = heard.clone();
                tokio::spawn(async move {
                    if hold.is_zero() {
                        while let Some(message) = stream.recv().await {
                            finished.lock().unwrap().push(note(
                                message.topic(),
                                message.partition(),
                                message.offset(),
                                message.payload(),
                            ));
                        }
                    } else {
                        while let Some(message) = stream.recv_owned().await {
                            finished.lock().unwrap().push(note(
                                message.topic(),
                                message.partition(),
                                message.offset(),
                                message.payload(),
                            ));
                            tokio::spawn(async move {
                                tokio::time::sleep(hold).await;
                                message.ack();
                            });
                        }
                    }
                    let _ = over.send(());
                });
            }
            (connector, readers)
        });
        Self {
            connector: Some(connector),
            finished,
            events,
            readers,
        }
    }

    pub fn connector(&self) -> &ConsumerConnector {
        self.connector.as_ref().expect("it has not left")
    }

    /// The name under `ids`.
    pub fn name(&self) -> String {
        self.connector().consumer_id().as_str().to_owned()
    }

    /// How many partitions it holds.
    pub fn held(&self) -> usize {
        self.connector().owned().len()
    }

    /// What it has finished so far.
    pub fn finished(&self) -> Vec<Finished> {
        self.finished.lock().unwrap().clone()
    }

    /// What it has finished after so many.
    pub fn finished_after(&self, many: usize) -> Vec<Finished> {
        self.finished.lock().unwrap()[many..].to_vec()
    }

    /// The distinct texts it has finished.
    pub fn texts(&self) -> BTreeSet<String> {
        self.finished
            .lock()
            .unwrap()
            .iter()
            .map(|message| message.value.clone())
            .collect()
    }

    /// What has happened to it so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// Waits until it has been told of something.
    #[track_caller]
    pub fn wait_for(&self, what: &str, is_it: impl Fn(&Event) -> bool) -> Event {
        until_some(what, LONG * 4, || {
            self.events
                .lock()
                .unwrap()
                .iter()
                .find(|event| is_it(event))
                .cloned()
        })
    }

    /// Waits until everything that is its own is claimed and read.
    #[track_caller]
    pub fn settle(&self) {
        until("our member settles", LONG * 4, || {
            self.connector().health().is_ready()
        });
    }

    /// Commits what is done.
    pub fn commit(&self) {
        block_on(self.connector().commit()).expect("a commit");
    }

    /// Leaves in order; the readers end with it. Gives what was finished.
    pub fn leave(mut self) -> (Farewell, Vec<Finished>) {
        let connector = self.connector.take().expect("it has not left");
        let farewell = run_async(async move {
            connector
                .shutdown(Duration::from_secs(10))
                .await
                .expect("a clean end")
        });
        for reader in self.readers.drain(..) {
            reader
                .recv_timeout(LONG)
                .expect("the reader ends with the stream");
        }
        (farewell, self.finished())
    }
}

fn note(topic: &Topic, partition: i32, offset: i64, payload: Option<&[u8]>) -> Finished {
    Finished {
        topic: topic.to_string(),
        partition,
        offset,
        value: String::from_utf8_lossy(payload.unwrap_or_default()).into_owned(),
    }
}

/// Waits for a future on this thread: the library's calls work from any executor.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(work)
}
