//! The thread that all members of a process live on.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind, Result};

/// The thread of the members of this process, while there are any.
static SHARED: Mutex<Weak<Host>> = Mutex::new(Weak::new());

/// One thread with a runtime of its own, so that a service that blocks its workers cannot lose the group.
///
/// It ends when the last member is gone: a task keeps the host alive until it is done.
pub(super) struct Host {
    handle: Handle,
    /// Dropped with the host; that ends the thread.
    _alive: oneshot::Sender<()>,
    process: u32,
}

impl Host {
    /// The host of this process, started if need be.
    pub fn shared() -> Result<Arc<Self>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        // A fork has its parent's memory and none of its threads.
        if let Some(host) = shared
            .upgrade()
            .filter(|host| host.process == std::process::id())
        {
            return Ok(host);
        }
        let host = Arc::new(Self::start()?);
        *shared = Arc::downgrade(&host);
        Ok(host)
    }

    fn start() -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Internal, "starting the members' thread").with_source(error)
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (alive, gone) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("evenkeel".to_owned())
            .spawn(move || {
                let _ = runtime.block_on(gone);
            })
            .map_err(failed)?;
        Ok(Self {
            handle,
            _alive: alive,
            process: std::process::id(),
        })
    }

    /// Runs a task on the thread; it keeps the host until it is done.
    pub fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let host = self.clone();
        self.handle.spawn(async move {
            task.await;
            drop(host);
        });
    }

    /// Runs a task on the thread and hands its answer back.
    pub fn run<T: Send + 'static>(
        self: &Arc<Self>,
        task: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (answer, answered) = oneshot::channel();
        self.spawn(async move {
            let _ = answer.send(task.await);
        });
        answered
    }
}
