//! The thread on which a member's listener, and what else is the user's, runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::listener::{Outside, Ran};
use crate::registry::Later;

/// So many calls may wait behind one that does not end.
const WAITING: usize = 1024;

type Work = (Box<dyn FnOnce() + Send>, oneshot::Sender<Ran>);

/// One plain thread, started with the first piece of work and ended with the last holder. A piece of work that never
/// ends keeps the thread, and nothing else.
#[derive(Default)]
pub(super) struct Aside {
    queue: Mutex<Option<SyncSender<Work>>>,
}

impl Aside {
    fn queue(&self) -> Option<SyncSender<Work>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.is_none() {
            let (sender, receiver) = sync_channel::<Work>(WAITING);
            let thread = std::thread::Builder::new().name("evenkeel-listener".to_owned());
            let started = thread.spawn(move || {
                for (work, answer) in receiver {
                    let _ = answer.send(run(work));
                }
            });
            *queue = started.is_ok().then_some(sender);
        }
        queue.clone()
    }
}

fn run(work: Box<dyn FnOnce() + Send>) -> Ran {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(()) => Ran::Done,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Ran::Panicked(text.unwrap_or_else(|| "something that is no text".to_owned()))
        }
    }
}

impl Outside for Aside {
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> Later<Ran> {
        let (answer, answered) = oneshot::channel();
        let is_queued = self
            .queue()
            .is_some_and(|queue| queue.try_send((work, answer)).is_ok());
        Box::pin(async move {
            if is_queued {
                answered.await.unwrap_or(Ran::Closed)
            } else {
                Ran::Closed
            }
        })
    }
}
