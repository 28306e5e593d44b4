//! Where clients end: on one plain thread of the process, never where the last message happened to be dropped.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::consumer::base_consumer::PartitionQueue;

use crate::kafka::context::{Consumer, Watch};

/// After so long a client that does not end is left behind, and a fresh closer does the rest (K3).
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// A client that is closed when nobody holds it any more: by the closer, whoever let go of it last.
pub(super) struct Handle(Option<Arc<Consumer>>);

impl Handle {
    pub fn new(consumer: Consumer) -> Arc<Self> {
        Arc::new(Self(Some(Arc::new(consumer))))
    }

    pub fn consumer(&self) -> &Arc<Consumer> {
        self.0.as_ref().expect("only dropping takes it out")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(consumer) = self.0.take() {
            bury(Remains::Consumer { _last: consumer });
        }
    }
}

/// What the closer drops. Fields go in this order: the queue before its client.
pub(super) enum Remains {
    Consumer {
        _last: Arc<Consumer>,
    },
    Queue {
        _queue: PartitionQueue<Watch>,
        _handle: Arc<Handle>,
    },
}

struct Yard {
    waiting: VecDeque<Remains>,
    busy_since: Option<Instant>,
    /// Counts closers; one that is not the newest was given up and quits when it can.
    shift: u64,
}

static YARD: Mutex<Yard> = Mutex::new(Yard {
    waiting: VecDeque::new(),
    busy_since: None,
    shift: 0,
});
static FILLED: Condvar = Condvar::new();

fn yard() -> MutexGuard<'static, Yard> {
    YARD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands over something to be dropped. Never waits for it.
pub(super) fn bury(remains: Remains) {
    let mut yard = yard();
    yard.waiting.push_back(remains);
    relieve(&mut yard);
    FILLED.notify_one();
}

/// Replaces a closer that is stuck. Called where somebody waited for it in vain.
pub(super) fn relieve_if_stuck() {
    relieve(&mut yard());
}

fn relieve(yard: &mut Yard) {
    let is_stuck = yard
        .busy_since
        .is_some_and(|since| since.elapsed() > PATIENCE);
    if yard.shift > 0 && !is_stuck {
        return;
    }
    if is_stuck {
        tracing::warn!("a kafka client does not end and is left behind");
    }
    let shift = yard.shift + 1;
    let spawned = thread::Builder::new()
        .name("evenkeel-closer".into())
        .spawn(move || work(shift));
    match spawned {
        Ok(_) => {
            yard.shift = shift;
            yard.busy_since = None;
        }
        Err(error) => tracing::warn!(%error, "no closer for kafka clients, trying again later"),
    }
}

/// Ends with the process, or when it was given up.
fn work(shift: u64) {
    let mut yard = yard();
    while yard.shift == shift {
        let Some(remains) = yard.waiting.pop_front() else {
            yard = FILLED.wait(yard).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        yard.busy_since = Some(Instant::now());
        drop(yard);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(remains)));
        yard = self::yard();
        if yard.shift == shift {
            yard.busy_since = None;
        }
    }
}
