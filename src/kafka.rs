//! The only door to rdkafka: fetches messages, and asks brokers how far their logs reach.
// librdkafka, and whoever waits for it on a thread of its own, goes by the host's clock.
#![allow(clippy::disallowed_methods)]

mod askers;
mod closer;
mod content;
mod context;
mod inbox;
mod probe;
mod service;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::config::FromClientConfigAndContext;
use tokio::sync::Notify;
use tokio::sync::oneshot;

pub use crate::kafka::probe::Generation;
pub use crate::kafka::probe::probe;
pub use crate::kafka::settings::Fetching;

use crate::error::{Error, ErrorKind, Result};
use crate::group::TopicPartition;
use crate::kafka::closer::Handle;
use crate::kafka::content::Gate;
use crate::kafka::context::{Consumer, Watch};
use crate::kafka::inbox::{Ask, Inbox, Letter, Opened, Read};
use crate::kafka::service::Service;
use crate::registry::Later;
use crate::stream::{Edge, Notice, Reader, Start};

/// Notices that nobody has fetched yet; beyond it warnings are dropped.
const NOTICES: usize = 64;

/// What a reader shares with its service.
#[derive(Default)]
struct Shared {
    inbox: Inbox,
    /// The newest start of each partition.
    gates: Mutex<BTreeMap<TopicPartition, Arc<Gate>>>,
    notices: Mutex<VecDeque<Notice>>,
    told: Notify,
}

impl Shared {
    fn gates(&self) -> MutexGuard<'_, BTreeMap<TopicPartition, Arc<Gate>>> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notices(&self) -> MutexGuard<'_, VecDeque<Notice>> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new start: the one before gives nothing more from now on.
    fn begin(&self, start: &Start) -> Arc<Gate> {
        let gate = Gate::open(start.bell.clone());
        let earlier = self.gates().insert(start.partition.clone(), gate.clone());
        if let Some(earlier) = earlier {
            earlier.shut();
        }
        gate
    }

    fn shut(&self, partition: &TopicPartition) {
        let gate = self.gates().remove(partition);
        if let Some(gate) = gate {
            gate.shut();
        }
    }

    fn shut_all(&self) {
        let gates = std::mem::take(&mut *self.gates());
        for gate in gates.values() {
            gate.shut();
        }
    }

    fn tell(&self, notice: Notice) {
        let mut notices = self.notices();
        if notices.len() < NOTICES || !matches!(notice, Notice::Warning(_)) {
            notices.push_back(notice);
        }
        drop(notices);
        self.told.notify_one();
    }

    fn next_notice(&self) -> Option<Notice> {
        let mut notices = self.notices();
        let notice = notices.pop_front();
        if !notices.is_empty() {
            // One ring may have stood for many.
            self.told.notify_one();
        }
        notice
    }
}

/// Fetches messages from brokers: one librdkafka client, made when it is first needed.
///
/// Nothing of it ever waits on the caller's thread. Reads and questions are answered within the deadline, with an
/// [`ErrorKind::Kafka`] error if no broker did. After a fatal error of the client every queue says so once, and the
/// next read makes a new client. Messages may outlive the reader; the client ends after the last of them, on a thread
/// of its own that never keeps the process from ending. A message shares the buffer it was fetched in, up to
/// `fetch.max.bytes`, so keeping one keeps all of that buffer.
///
/// Dropping the reader closes it without waiting.
pub struct KafkaReader {
    shared: Arc<Shared>,
    deadline: Duration,
}

impl KafkaReader {
    /// Checks the settings. Nothing is connected yet.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) if librdkafka does not take the settings, or no broker is named;
    /// [`Internal`](ErrorKind::Internal) if there is no thread to be had.
    pub fn new(fetching: Fetching) -> Result<Self> {
        fetching.config(Generation::default())?;
        let shared = Arc::new(Shared::default());
        let deadline = fetching.deadline;
        let served = shared.clone();
        thread::Builder::new()
            .name("evenkeel-kafka".into())
            .spawn(move || serve(&fetching, &served))
            .map_err(|error| {
                let text = "starting the thread that serves the kafka client";
                Error::new(ErrorKind::Internal, text).with_source(error)
            })?;
        Ok(Self { shared, deadline })
    }

    /// The brokers are now found here, each `host:port`. A client that reaches none of its old ones is made anew;
    /// otherwise they serve the next client.
    pub fn move_to(&self, brokers: Vec<String>) {
        self.shared.inbox.push(Letter::Brokers(brokers));
    }

    fn until(&self) -> Instant {
        Instant::now() + self.deadline
    }
}

/// Serves to the end. A panic costs the client, and what was read by it is read again.
fn serve(fetching: &Fetching, shared: &Arc<Shared>) {
    loop {
        let service = Service::new(fetching.clone(), shared.clone());
        if catch_unwind(AssertUnwindSafe(|| service.run())).is_ok() {
            return;
        }
        let what = "a defect stopped the service of the kafka client";
        shared.tell(Notice::Warning(what.into()));
        for gate in shared.gates().values() {
            gate.trouble(what);
        }
    }
}

/// Why there was no answer.
fn unanswered(shared: &Shared) -> Error {
    if shared.inbox.is_shut() {
        return Error::new(ErrorKind::Closed, "the kafka reader is closed");
    }
    Error::new(
        ErrorKind::Internal,
        "the service of the kafka client was interrupted, try again",
    )
}

impl Reader for KafkaReader {
    fn read(&self, starts: Vec<Start>) -> Later<Opened> {
        let partitions: Vec<_> = starts.iter().map(|start| start.partition.clone()).collect();
        let starts = starts.into_iter().map(|start| {
            let gate = self.shared.begin(&start);
            (start, gate)
        });
        let (answer, answered) = oneshot::channel();
        self.shared.inbox.push(Letter::Read(Read {
            starts: starts.collect(),
            until: self.until(),
            answer,
        }));
        let shared = self.shared.clone();
        Box::pin(async move {
            answered.await.unwrap_or_else(|_| {
                let refuse = |partition| (partition, Err(unanswered(&shared)));
                partitions.into_iter().map(refuse).collect()
            })
        })
    }

    fn stop(&self, partitions: &[TopicPartition]) {
        for partition in partitions {
            self.shared.shut(partition);
        }
        self.shared.inbox.stop(partitions);
    }

    fn edge(&self, partition: &TopicPartition, edge: Edge) -> Later<Result<i64>> {
        let (answer, answered) = oneshot::channel();
        self.shared.inbox.push(Letter::Ask(Ask {
            partition: partition.clone(),
            edge,
            until: self.until(),
            answer,
        }));
        let shared = self.shared.clone();
        Box::pin(async move { answered.await.unwrap_or_else(|_| Err(unanswered(&shared))) })
    }

    fn notice(&self) -> Later<Notice> {
        let shared = self.shared.clone();
        Box::pin(async move {
            loop {
                if let Some(notice) = shared.next_notice() {
                    return notice;
                }
                shared.told.notified().await;
            }
        })
    }

    fn close(&self) -> Later<()> {
        let (answer, answered) = oneshot::channel();
        self.shared.inbox.push(Letter::Close(answer));
        Box::pin(async move {
            let _ = answered.await;
        })
    }
}

impl Drop for KafkaReader {
    fn drop(&mut self) {
        self.shared.shut_all();
        self.shared.inbox.shut();
    }
}

impl fmt::Debug for KafkaReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KafkaReader")
    }
}

/// The oldest offset and the next one to be written of each partition, by a client of its own. Blocks, for about the
/// deadline of `fetching` at most; not for an async thread. A partition whose leader does not answer is left out.
///
/// # Errors
/// [`Config`](ErrorKind::Config) as for a reader; [`Kafka`](ErrorKind::Kafka) if no broker can be reached.
pub fn watermarks(
    fetching: &Fetching,
    partitions: &[TopicPartition],
) -> Result<BTreeMap<TopicPartition, (i64, i64)>> {
    let until = Instant::now() + fetching.deadline;
    let generation = if fetching.is_to_probe() {
        probe(&fetching.brokers, fetching.deadline)?
    } else {
        Generation::default()
    };
    let config = fetching.config(generation)?;
    let consumer = Consumer::from_config_and_context(&config, Watch::default())
        .map_err(|error| settings::refused(&error))?;
    let handle = Handle::new(consumer);
    let mut found = BTreeMap::new();
    let mut topics = BTreeMap::new();
    for partition in partitions {
        let topic = &partition.topic;
        if !topics.contains_key(topic) {
            // A partition that nobody knows or leads would be waited for until the end.
            let known = service::know(handle.consumer(), topic, until);
            topics.insert(topic.clone(), known.unwrap_or_default());
        }
        let known = &topics[topic];
        if !known.partitions.contains(&partition.partition)
            || known.leaderless.contains(&partition.partition)
        {
            continue;
        }
        if let Ok(edges) = service::edges(handle.consumer(), partition, until) {
            found.insert(partition.clone(), edges);
        }
    }
    Ok(found)
}
