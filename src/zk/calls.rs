//! Requests that wait for their answer, kept together with the client so that the end of a session ends them all.
//!
//! A request that is under way holds the client, and the client's session lasts as long as anything holds it. So nobody
//! outside may hold a request: a caller has only its number.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::task::Context;
use std::task::Poll;
use std::task::Waker;

use zookeeper_client::Client;

use crate::registry::Fault;
use crate::registry::Later;

/// How many requests may wait at a time; while there is no server they gather. A large member claims by tens of thousands.
const MOST: usize = 100_000;

/// The client of one session, and its requests under way.
pub(super) struct Calls {
    /// The process that opened the session. A fork of it shares the socket and must not touch it.
    process: u32,
    inner: Mutex<Inner>,
}

struct Inner {
    /// `None` once the session was given up.
    client: Option<Client>,
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
}

struct Waiting {
    /// Away while it is being polled.
    work: Option<Later<()>>,
    waker: Waker,
}

impl Calls {
    pub(super) fn new(client: Client) -> Self {
        let inner = Inner {
            client: Some(client),
            next: 0,
            waiting: BTreeMap::new(),
        };
        Self {
            process: std::process::id(),
            inner: Mutex::new(inner),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here can panic half-way.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request to be sent at the first poll. Refused when the session was given up, or too many wait already.
    ///
    /// One that `arms` a watch stays here when its caller goes away: a watch that arrives and finds nobody is taken
    /// back by the client, and on 3.4 that costs the connection.
    pub(super) fn start<T, F>(self: &Arc<Self>, arms: bool, request: F) -> Result<Call<T>, Fault>
    where
        T: Send + 'static,
        F: FnOnce(Client) -> Later<T>,
    {
        if self.process != std::process::id() {
            return Err(Fault::SessionLost);
        }
        let mut inner = self.inner();
        let client = inner.client.clone().ok_or(Fault::SessionLost)?;
        if inner.waiting.len() >= MOST {
            return Err(Fault::Refused(format!("{MOST} requests wait already")));
        }
        let asked = request(client);
        let answer = Arc::new(Mutex::new(None));
        let place = Arc::clone(&answer);
        let work = Box::pin(async move {
            let value = asked.await;
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        });
        let number = inner.next;
        inner.next += 1;
        let waiting = Waiting {
            work: Some(work),
            waker: Waker::noop().clone(),
        };
        inner.waiting.insert(number, waiting);
        drop(inner);
        Ok(Call {
            calls: Arc::clone(self),
            number,
            arms,
            answer,
        })
    }

    /// Lets go of the client, and of all that holds it: the session is closed as soon as a server can be told.
    pub(super) fn end(&self) {
        let mut inner = self.inner();
        let client = inner.client.take();
        let waiting = std::mem::take(&mut inner.waiting);
        drop(inner);
        if self.process != std::process::id() {
            std::mem::forget((client, waiting));
            return;
        }
        // First the client: then a watch that arrives just now cannot be taken back any more.
        drop(client);
        let wakers: Vec<Waker> = waiting.into_values().map(|waiting| waiting.waker).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// True when there is nothing left to wait for.
    fn advance(&self, number: u64, cx: &mut Context<'_>) -> bool {
        let Some(mut work) = self.lend(number, cx.waker()) else {
            return true;
        };
        // Not under the lock: whatever is woken may come back here.
        let Ok(polled) = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) else {
            // The client takes an answer apart that is too short, and panics. Whoever sends such answers is not to be asked again (X8).
            tracing::warn!(
                "the client panicked over an answer of the server's, giving the session up"
            );
            self.end();
            return true;
        };
        let ready = polled.is_ready();
        let mut inner = self.inner();
        if ready {
            inner.waiting.remove(&number);
            return true;
        }
        match inner.waiting.get_mut(&number) {
            Some(waiting) => {
                waiting.work = Some(work);
                false
            }
            None => true,
        }
    }

    fn lend(&self, number: u64, waker: &Waker) -> Option<Later<()>> {
        let mut inner = self.inner();
        let waiting = inner.waiting.get_mut(&number)?;
        waiting.waker.clone_from(waker);
        waiting.work.take()
    }

    fn forget(&self, number: u64) {
        let waiting = self.inner().waiting.remove(&number);
        drop(waiting);
    }
}

/// One request. Its answer, or `None` when the session was given up before there was one.
pub(super) struct Call<T> {
    calls: Arc<Calls>,
    number: u64,
    arms: bool,
    answer: Arc<Mutex<Option<T>>>,
}

impl<T> Future for Call<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if !self.calls.advance(self.number, cx) {
            return Poll::Pending;
        }
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        Poll::Ready(answer.take())
    }
}

impl<T> Drop for Call<T> {
    fn drop(&mut self) {
        if !self.arms {
            self.calls.forget(self.number);
        }
    }
}
