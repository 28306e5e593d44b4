//! Sends messages at a steady rate, and writes down which of them the brokers have taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};

use crate::output::{Failure, Outcome};

use super::books::Books;
use super::fleet::{GROUPS, PARTITIONS};

/// Messages a second, over all topics.
const RATE: u32 = 480;

pub struct Producer {
    is_stopped: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

struct Receipts(Books);

impl ClientContext for Receipts {}

impl ProducerContext for Receipts {
    type DeliveryOpaque = Box<u64>;

    fn delivery(&self, result: &DeliveryResult<'_>, number: Box<u64>) {
        if result.is_ok() {
            self.0.sent(*number);
        }
    }
}

impl Producer {
    pub fn start(bootstrap: &str, books: Books) -> Outcome<Self> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::Failed(format!("the producer cannot start: {error}"))
        };
        let producer: ThreadedProducer<Receipts> = ClientConfig::new()
            .set("bootstrap.servers", bootstrap)
            .set("linger.ms", "5")
            // A message that is sent twice would look like one that was delivered twice.
            .set("retries", "0")
            .create_with_context(Receipts(books))
            .map_err(|error| failed(&error))?;
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stop = is_stopped.clone();
        let thread = thread::Builder::new()
            .name("producer".to_owned())
            .spawn(move || send_until(&producer, &stop))
            .map_err(|error| failed(&error))?;
        Ok(Self { is_stopped, thread })
    }

    /// Sends no more, and waits until the brokers have answered for the rest.
    pub async fn stop(self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
    }
}

fn send_until(producer: &ThreadedProducer<Receipts>, stop: &AtomicBool) {
    let start = Instant::now();
    for number in 0_u32.. {
        let due = start + Duration::from_secs(1) * number / RATE;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if stop.load(Ordering::SeqCst) {
            break;
        }
        send(producer, number);
    }
    let _ = producer.flush(Duration::from_secs(5));
}

/// To every partition in turn, so that a silence in one of them is a pause of its owner's.
fn send(producer: &ThreadedProducer<Receipts>, number: u32) {
    let topics = GROUPS.len();
    let turn = number as usize;
    let partition = (turn / topics) % PARTITIONS as usize;
    let (key, payload) = (format!("key-{number}"), format!("{number} of the demo"));
    let record = BaseRecord::with_opaque_to(GROUPS[turn % topics], Box::new(u64::from(number)))
        .partition(partition as i32)
        .key(&key)
        .payload(&payload);
    // What does not fit into the queue was not sent.
    let _ = producer.send(record);
}
