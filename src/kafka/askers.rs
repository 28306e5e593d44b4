//! A few threads for what blocks: questions to brokers, each bounded by librdkafka or the socket.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// More than one, so that a partition without a leader does not hold up the others.
const MOST: usize = 4;
const IDLE: Duration = Duration::from_secs(10);

type Question = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Desk {
    waiting: VecDeque<Question>,
    count: usize,
    idle: usize,
}

/// They start when there is a question, and end by themselves when there was none for a while.
#[derive(Clone, Default)]
pub(super) struct Askers(Arc<(Mutex<Desk>, Condvar)>);

impl Askers {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn ask(&self, question: impl FnOnce() + Send + 'static) {
        let mut desk = self.desk();
        desk.waiting.push_back(Box::new(question));
        if desk.idle >= desk.waiting.len() || desk.count >= MOST {
            self.0.1.notify_one();
            return;
        }
        let askers = self.clone();
        let spawned = thread::Builder::new()
            .name("evenkeel-asker".into())
            .spawn(move || askers.work());
        match spawned {
            Ok(_) => desk.count += 1,
            // The question waits for an asker or for its deadline.
            Err(error) => tracing::warn!(%error, "no thread to ask kafka brokers"),
        }
    }

    /// Drops all that was not asked yet.
    pub fn clear(&self) {
        let dropped = std::mem::take(&mut self.desk().waiting);
        drop(dropped);
    }

    fn work(&self) {
        let mut desk = self.desk();
        loop {
            if let Some(question) = desk.waiting.pop_front() {
                drop(desk);
                let _ = catch_unwind(AssertUnwindSafe(question));
                desk = self.desk();
                continue;
            }
            desk.idle += 1;
            let waited = self.0.1.wait_timeout(desk, IDLE);
            let (back, time) = waited.unwrap_or_else(PoisonError::into_inner);
            desk = back;
            desk.idle -= 1;
            if time.timed_out() && desk.waiting.is_empty() {
                desk.count -= 1;
                return;
            }
        }
    }
}
