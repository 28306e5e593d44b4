//! Messages without a copy, and the queue that they come from.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::Message;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers};
use self_cell::self_cell;

use crate::group::TopicPartition;
use crate::kafka::closer::{Handle, Remains, bury};
use crate::kafka::context::{Watch, code, describe};
use crate::stream::{Bell, Content, Polled, Queue, Trouble};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One partition's queue in one client, split off before the partition is first assigned and kept until the client ends.
///
/// Kept, since librdkafka has one queue for all times that a partition is read, and dropping any handle of it silences
/// its callback. Messages hold it, and through it the client.
pub(super) struct Slot {
    queue: Option<PartitionQueue<Watch>>,
    handle: Option<Arc<Handle>>,
    bell: Arc<Mutex<Option<Bell>>>,
}

impl Slot {
    /// Splits the queue off. `None` if librdkafka knows no such partition.
    pub fn split(handle: &Arc<Handle>, partition: &TopicPartition) -> Option<Arc<Self>> {
        let mut queue = handle
            .consumer()
            .split_partition_queue(partition.topic.as_str(), partition.partition)?;
        let bell = Arc::new(Mutex::new(None));
        let rung = bell.clone();
        queue.set_nonempty_callback(move || {
            // K7: called from C, with the queue locked. A waker is foreign code.
            let _ = catch_unwind(AssertUnwindSafe(|| ring(&rung)));
        });
        Some(Arc::new(Self {
            queue: Some(queue),
            handle: Some(handle.clone()),
            bell,
        }))
    }

    /// From now on this bell is rung.
    pub fn hang(&self, bell: Bell) {
        *lock(&self.bell) = Some(bell);
    }

    fn queue(&self) -> &PartitionQueue<Watch> {
        self.queue.as_ref().expect("only dropping takes it out")
    }
}

fn ring(bell: &Mutex<Option<Bell>>) {
    let bell = lock(bell).clone();
    if let Some(bell) = bell {
        bell.ring();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let (Some(queue), Some(handle)) = (self.queue.take(), self.handle.take()) {
            bury(Remains::Queue {
                _queue: queue,
                _handle: handle,
            });
        }
    }
}

/// Whether one start of a partition still gives messages. Shut before the next start begins, so that an old queue
/// cannot take what belongs to a new one.
pub(super) struct Gate {
    way: Mutex<Way>,
    bell: Bell,
}

enum Way {
    Open,
    Troubled(Trouble),
    Shut,
}

impl Gate {
    pub fn open(bell: Bell) -> Arc<Self> {
        Arc::new(Self {
            way: Mutex::new(Way::Open),
            bell,
        })
    }

    /// When this returns, nothing more comes through.
    pub fn shut(&self) {
        *lock(&self.way) = Way::Shut;
    }

    /// The next poll says so, and it is the last that says anything.
    pub fn trouble(&self, why: &str) {
        let mut way = lock(&self.way);
        if matches!(*way, Way::Open) {
            *way = Way::Troubled(Trouble::Failed(why.to_owned()));
        }
        drop(way);
        self.bell.ring();
    }

    pub fn is_shut(&self) -> bool {
        matches!(*lock(&self.way), Way::Shut)
    }
}

self_cell!(
    struct Drawn {
        owner: Arc<Slot>,
        #[covariant]
        dependent: BorrowedMessage,
    }
);

/// One message, where librdkafka received it.
struct Fetched {
    drawn: Drawn,
    // The first look at headers parses them within librdkafka, which is not made for two at a time.
    parsing: Mutex<()>,
}

impl Fetched {
    fn message(&self) -> &BorrowedMessage<'_> {
        self.drawn.borrow_dependent()
    }
}

impl Content for Fetched {
    fn offset(&self) -> i64 {
        self.message().offset()
    }

    fn key(&self) -> Option<&[u8]> {
        self.message().key()
    }

    fn payload(&self) -> Option<&[u8]> {
        self.message().payload()
    }

    fn timestamp_ms(&self) -> Option<i64> {
        self.message().timestamp().to_millis()
    }

    fn headers(&self) -> Vec<(&str, Option<&[u8]>)> {
        let parsing = lock(&self.parsing);
        let headers = self.message().headers();
        drop(parsing);
        let Some(headers) = headers else {
            return Vec::new();
        };
        let header = |index| {
            // A name that is not UTF-8 makes rdkafka panic; the writer of a message must not stop its reader.
            catch_unwind(AssertUnwindSafe(|| headers.try_get(index)))
                .unwrap_or(None)
                .map_or(("\u{fffd}", None), |header| (header.key, header.value))
        };
        (0..headers.count()).map(header).collect()
    }
}

/// What one start of a partition gives.
pub(super) struct Source {
    pub slot: Arc<Slot>,
    pub gate: Arc<Gate>,
}

/// What a start gives that was stopped, or begun anew, before it came about.
pub(super) struct Silent;

impl Queue for Silent {
    fn poll(&mut self) -> Polled {
        Polled::Empty
    }
}

enum Missed {
    Nothing,
    Failed(KafkaError),
}

fn draw(slot: &Arc<Slot>) -> Result<Drawn, Missed> {
    Drawn::try_new(slot.clone(), |slot| {
        match slot.queue().poll(Duration::ZERO) {
            Some(Ok(message)) => Ok(message),
            Some(Err(error)) => Err(Missed::Failed(error)),
            None => Err(Missed::Nothing),
        }
    })
}

impl Queue for Source {
    fn poll(&mut self) -> Polled {
        let mut way = lock(&self.gate.way);
        match &*way {
            Way::Open => {}
            Way::Shut => return Polled::Empty,
            Way::Troubled(trouble) => {
                let trouble = trouble.clone();
                *way = Way::Shut;
                return Polled::Trouble(trouble);
            }
        }
        loop {
            match draw(&self.slot) {
                Ok(drawn) => {
                    return Polled::Message(Box::new(Fetched {
                        drawn,
                        parsing: Mutex::new(()),
                    }));
                }
                Err(Missed::Nothing) => return Polled::Empty,
                Err(Missed::Failed(KafkaError::PartitionEOF(_))) => {}
                Err(Missed::Failed(error)) => {
                    *way = Way::Shut;
                    return Polled::Trouble(trouble(&error));
                }
            }
        }
    }
}

fn trouble(error: &KafkaError) -> Trouble {
    let text = describe(error);
    match code(error) {
        // Any reset within librdkafka ends here, since ours forbid it: out of range, truncated, or no such offset.
        Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
            Trouble::OutOfRange
        }
        _ => Trouble::Failed(text),
    }
}
