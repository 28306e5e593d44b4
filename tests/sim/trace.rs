//! A registry that notes every request, every answer and every watch that fires in one running hash.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel::Error;
use evenkeel::registry::{
    Connection, Dialect, Later, MultiFault, Op, Registry, Reply, Stat, Watch,
};

/// The hash of all that was noted, in its order, with the virtual time.
#[derive(Clone)]
pub struct Trace {
    hasher: Arc<Mutex<DefaultHasher>>,
    zero: tokio::time::Instant,
    /// `EVENKEEL_STORY` is set: everything is printed as well.
    is_told: bool,
}

impl Trace {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self {
            hasher: Arc::default(),
            zero: tokio::time::Instant::now(),
            is_told: std::env::var_os("EVENKEEL_STORY").is_some(),
        }
    }

    /// One more thing.
    pub fn note(&self, what: &(impl Debug + ?Sized)) {
        let line = format!("{:?} {what:?}", self.zero.elapsed());
        if self.is_told {
            println!("{line}");
        }
        let mut hasher = self.hasher.lock().unwrap_or_else(PoisonError::into_inner);
        line.hash(&mut *hasher);
    }

    /// Of all so far.
    pub fn hash(&self) -> u64 {
        let hasher = self.hasher.lock().unwrap_or_else(PoisonError::into_inner);
        hasher.finish()
    }
}

/// The registry as one member sees it.
pub struct Traced<R> {
    pub registry: R,
    pub trace: Trace,
}

impl<R: Registry> Registry for Traced<R> {
    fn open(&self, dialect: Dialect) -> Later<Result<Arc<dyn Connection>, Error>> {
        let (opening, trace) = (self.registry.open(dialect), self.trace.clone());
        Box::pin(async move {
            let opened = opening.await;
            trace.note(&opened.as_ref().map(|connection| connection.session_id()));
            let connection: Arc<dyn Connection> = Arc::new(TracedConnection {
                inner: opened?,
                trace,
            });
            Ok(connection)
        })
    }

    fn describe(&self) -> String {
        self.registry.describe()
    }
}

struct TracedConnection {
    inner: Arc<dyn Connection>,
    trace: Trace,
}

impl TracedConnection {
    fn noted<T: Send + 'static, E: Debug + Send + 'static>(
        &self,
        request: &(impl Debug + ?Sized),
        answer: Later<Result<T, E>>,
        show: impl Fn(&T) -> String + Send + 'static,
    ) -> Later<Result<T, E>> {
        let (trace, session) = (self.trace.clone(), self.inner.session_id());
        trace.note(&(session, request));
        Box::pin(async move {
            let answer = answer.await;
            trace.note(&(session, answer.as_ref().map(&show)));
            answer
        })
    }

    fn watched(&self, path: &str, watch: Watch) -> Watch {
        let (trace, session, path) = (self.trace.clone(), self.inner.session_id(), path.to_owned());
        Box::pin(async move {
            let fired = watch.await;
            trace.note(&(session, path, &fired));
            fired
        })
    }

    /// The same, with the watch of the answer noted when it fires.
    fn armed<T: Send + 'static>(&self, path: &str, answer: Reply<(T, Watch)>) -> Reply<(T, Watch)> {
        let (inner, trace, path) = (self.inner.clone(), self.trace.clone(), path.to_owned());
        Box::pin(async move {
            let (content, watch) = answer.await?;
            let connection = Self { inner, trace };
            let watch = connection.watched(&path, watch);
            Ok((content, watch))
        })
    }
}

fn flat<A: Send + 'static, B: Send + 'static>(
    answer: Reply<(A, B, Watch)>,
) -> Reply<((A, B), Watch)> {
    Box::pin(async move {
        let (one, other, watch) = answer.await?;
        Ok(((one, other), watch))
    })
}

fn unflat<A: Send + 'static, B: Send + 'static>(
    answer: Reply<((A, B), Watch)>,
) -> Reply<(A, B, Watch)> {
    Box::pin(async move {
        let ((one, other), watch) = answer.await?;
        Ok((one, other, watch))
    })
}

impl Connection for TracedConnection {
    fn session_id(&self) -> i64 {
        self.inner.session_id()
    }

    fn session_timeout(&self) -> Duration {
        self.inner.session_timeout()
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        self.noted(&("data", path), self.inner.data(path), |d| format!("{d:?}"))
    }

    fn data_and_watch(&self, path: &str) -> Reply<(Vec<u8>, Stat, Watch)> {
        let answer = flat(self.inner.data_and_watch(path));
        let answer = self.noted(&("data!", path), answer, |(d, _)| format!("{d:?}"));
        unflat(self.armed(path, answer))
    }

    fn stat(&self, path: &str) -> Reply<Option<Stat>> {
        self.noted(&("stat", path), self.inner.stat(path), |s| format!("{s:?}"))
    }

    fn stat_and_watch(&self, path: &str) -> Reply<(Option<Stat>, Watch)> {
        let answer = self.inner.stat_and_watch(path);
        let answer = self.noted(&("stat!", path), answer, |(s, _)| format!("{s:?}"));
        self.armed(path, answer)
    }

    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)> {
        let answer = self.inner.children(path);
        self.noted(&("children", path), answer, |c| format!("{c:?}"))
    }

    fn children_and_watch(&self, path: &str) -> Reply<(Vec<String>, Stat, Watch)> {
        let answer = flat(self.inner.children_and_watch(path));
        let answer = self.noted(&("children!", path), answer, |(c, _)| format!("{c:?}"));
        unflat(self.armed(path, answer))
    }

    fn create(&self, path: &str, data: &[u8], ephemeral: bool) -> Reply<()> {
        let answer = self.inner.create(path, data, ephemeral);
        self.noted(&("create", path, data, ephemeral), answer, |()| {
            String::new()
        })
    }

    fn set(&self, path: &str, data: &[u8], version: Option<i32>) -> Reply<Stat> {
        let answer = self.inner.set(path, data, version);
        self.noted(&("set", path, data, version), answer, |s| format!("{s:?}"))
    }

    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()> {
        let answer = self.inner.delete(path, version);
        self.noted(&("delete", path, version), answer, |()| String::new())
    }

    fn multi(&self, ops: Vec<Op>) -> Later<Result<Vec<Option<Stat>>, MultiFault>> {
        let request = format!("{ops:?}");
        let answer = self.inner.multi(ops);
        self.noted(&request, answer, |stats| format!("{stats:?}"))
    }

    fn ended(&self) -> Later<()> {
        self.inner.ended()
    }

    fn close(&self) -> Later<()> {
        self.trace.note(&("close", self.inner.session_id()));
        self.inner.close()
    }
}
