//! What all handles of one ensemble share, and how those who wait for it move it on.
//!
//! Everything happens in the order of one agenda, at the moment it is due, no matter how late somebody looks: whoever
//! touches the ensemble first carries out what has fallen due, and whoever waits for something sleeps until the next
//! entry. So no task of its own is needed, and a node of a dead session goes on time though nobody asks for it.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::faults::{Fate, Request};
use super::world::World;

pub(super) type FateHook = Box<dyn FnMut(&Request) -> Fate + Send>;

/// What all handles of one ensemble share.
pub(super) struct Ensemble {
    world: Mutex<World>,
    /// Told when something falls due sooner than sleepers know.
    rearm: Notify,
    drivers: AtomicUsize,
    fate: Mutex<Option<FateHook>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ensemble {
    pub fn new() -> Self {
        Self {
            world: Mutex::new(World::new(Instant::now())),
            rearm: Notify::new(),
            drivers: AtomicUsize::new(0),
            fate: Mutex::new(None),
        }
    }

    /// Brings the world up to now and does something to it.
    pub fn with<T>(&self, deed: impl FnOnce(&mut World) -> T) -> T {
        let mut world = lock(&self.world);
        let before = world.next_due();
        world.advance(Instant::now());
        let answer = deed(&mut world);
        let is_sooner = match (before, world.next_due()) {
            (Some(before), Some(after)) => after < before,
            (None, after) => after.is_some(),
            (Some(_), None) => false,
        };
        drop(world);
        if is_sooner {
            self.rearm.notify_waiters();
        }
        answer
    }

    pub fn set_fate(&self, hook: Option<FateHook>) {
        *lock(&self.fate) = hook;
    }

    pub fn fate(&self, request: &Request) -> Fate {
        match lock(&self.fate).as_mut() {
            Some(hook) => hook(request),
            None => Fate::Deliver,
        }
    }

    /// Waits for something of the ensemble's while carrying out what falls due.
    pub async fn wait<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            let mut rearm = pin!(self.rearm.notified());
            rearm.as_mut().enable();
            let due = self.with(|world| world.next_due());
            let due = due.filter(|_| self.drivers.load(Ordering::SeqCst) == 0);
            tokio::select! {
                biased;
                output = &mut future => return output,
                () = rearm => {}
                () = alarm(due) => {}
            }
        }
    }

    /// Carries out what falls due for as long as it is polled, so that others need not wake for it.
    pub async fn drive(&self) {
        let _driving = Driving::new(self);
        loop {
            let mut rearm = pin!(self.rearm.notified());
            rearm.as_mut().enable();
            let due = self.with(|world| world.next_due());
            tokio::select! {
                biased;
                () = rearm => {}
                () = alarm(due) => {}
            }
        }
    }
}

async fn alarm(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

struct Driving<'a>(&'a Ensemble);

impl<'a> Driving<'a> {
    fn new(ensemble: &'a Ensemble) -> Self {
        ensemble.drivers.fetch_add(1, Ordering::SeqCst);
        Self(ensemble)
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        self.0.drivers.fetch_sub(1, Ordering::SeqCst);
        self.0.rearm.notify_waiters();
    }
}
