//! The watches of a session. They are attended to whatever its member awaits: nothing is delivered of a partition whose owner
//! node has changed, though the member is busy with something else for long.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::registry::{Fired, Later, Watch};
use crate::session::Watched;

/// Shared by the two places in one task that poll them; nobody waits for the lock.
#[derive(Default)]
pub(crate) struct Watches(Mutex<State>);

#[derive(Default)]
struct State {
    armed: FuturesUnordered<Later<(Watched, Fired)>>,
    /// Fired, and not told yet.
    fired: VecDeque<(Watched, Fired)>,
    /// That of the task, as the last who waited left it.
    waker: Option<Waker>,
}

impl State {
    fn gather(&mut self) {
        let waker = self.waker.clone();
        let mut context = Context::from_waker(waker.as_ref().unwrap_or(Waker::noop()));
        while let Poll::Ready(Some(fired)) = self.armed.poll_next_unpin(&mut context) {
            self.fired.push_back(fired);
        }
    }

    fn poll(&mut self, context: &Context<'_>) {
        self.waker = Some(context.waker().clone());
        self.gather();
    }
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more. The alarm is raised as soon as it fires.
    pub fn add(&self, watched: Watched, watch: Watch, alarm: Option<Arc<AtomicBool>>) {
        let mut state = self.lock();
        state.armed.push(Box::pin(async move {
            let fired = watch.await;
            if let Some(alarm) = alarm {
                alarm.store(true, Ordering::SeqCst);
            }
            (watched, fired)
        }));
        // Whoever attends to them sees it only when something wakes the task.
        state.gather();
    }

    /// Raises the alarm of each as it fires. Never ends.
    pub async fn attend(&self) -> Infallible {
        poll_fn(|context| {
            self.lock().poll(context);
            Poll::Pending
        })
        .await
    }

    /// The next that fires.
    pub async fn next(&self) -> (Watched, Fired) {
        poll_fn(|context| {
            let mut state = self.lock();
            state.poll(context);
            state.fired.pop_front().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// The next that has fired already, if any.
    pub fn next_already(&self) -> Option<(Watched, Fired)> {
        let mut state = self.lock();
        state.gather();
        state.fired.pop_front()
    }

    /// Whether one of this has fired and nobody was told yet.
    pub fn has_fired(&self, watched: &Watched) -> bool {
        let mut state = self.lock();
        state.gather();
        state.fired.iter().any(|(one, _)| one == watched)
    }
}
