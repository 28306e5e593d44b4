//! The place where listeners run, for tests: at once, or after a time.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, oneshot};

use crate::listener::{Outside, Ran};
use crate::registry::Later;

/// Runs a listener's calls within the test's own task, or after a time on tokio's clock. A clone is the same place.
///
/// A call that runs at once must not wait for the member that makes it: nobody would be left to answer.
#[derive(Debug, Clone, Default)]
pub struct Inline {
    delay: Duration,
    turn: Arc<Mutex<()>>,
    is_closed: Arc<AtomicBool>,
}

impl Inline {
    /// Runs each piece of work before [`Outside::run`] returns.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs each piece of work so much later, one after another, whether or not somebody waits: a slow listener.
    /// Needs a tokio runtime, on which each piece is a task until it has run.
    pub fn after(delay: Duration) -> Self {
        Self {
            delay,
            ..Self::default()
        }
    }

    /// From now on nothing is run.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    fn run_now(&self, work: Box<dyn FnOnce() + Send>) -> Ran {
        if self.is_closed.load(Ordering::SeqCst) {
            return Ran::Closed;
        }
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(()) => Ran::Done,
            Err(panic) => Ran::Panicked(words(panic.as_ref())),
        }
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without words".into())
}

impl Outside for Inline {
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> Later<Ran> {
        if self.delay.is_zero() {
            return Box::pin(std::future::ready(self.run_now(work)));
        }
        let place = self.clone();
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            let _turn = place.turn.lock().await;
            tokio::time::sleep(place.delay).await;
            let _ = answer.send(place.run_now(work));
        });
        Box::pin(async move { answered.await.unwrap_or(Ran::Closed) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use tokio::time::Instant;

    use super::*;

    fn adding(count: &Arc<AtomicU32>) -> Box<dyn FnOnce() + Send> {
        let count = count.clone();
        Box::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        })
    }

    #[tokio::test(start_paused = true)]
    async fn work_runs_at_once() {
        let count = Arc::new(AtomicU32::new(0));
        let answer = Inline::new().run(adding(&count));
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert_eq!(answer.await, Ran::Done);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_caught_with_its_words() {
        let ran = Inline::new().run(Box::new(|| panic!("no {}", 7))).await;
        assert_eq!(ran, Ran::Panicked("no 7".into()));
        let ran = Inline::new().run(Box::new(|| panic!("plain"))).await;
        assert_eq!(ran, Ran::Panicked("plain".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_work_runs_in_turn_though_nobody_waits() {
        let place = Inline::after(Duration::from_secs(3));
        let count = Arc::new(AtomicU32::new(0));
        let zero = Instant::now();
        drop(place.run(adding(&count)));
        let second = place.run(adding(&count));
        assert_eq!(count.load(Ordering::SeqCst), 0);
        assert_eq!(second.await, Ran::Done);
        assert_eq!(zero.elapsed(), Duration::from_secs(6));
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_place_runs_nothing() {
        let place = Inline::new();
        place.close();
        assert_eq!(place.run(Box::new(|| ())).await, Ran::Closed);
    }
}
