//! A registry that notes every request, every answer and every watch that fires in one running hash.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel::registry::{
    Connection, Dialect, Fault, Later, MultiFault, Op, Registry, Reply, Stat, Watch,
};
use evenkeel::testing::{Lost, MemoryRegistry};
use evenkeel::{Error, ErrorKind};
use tokio::time::sleep;

use crate::sometimes::Sometimes;

/// How long a client tries to open a session that never gets through.
const VAIN: Duration = Duration::from_secs(1);

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

/// A member's way to the servers: new sessions may be cut off as the old one is.
#[derive(Clone, Default)]
pub struct Line(Arc<Mutex<Ends>>);

#[derive(Default)]
struct Ends {
    lost: Option<Lost>,
    session: Option<i64>,
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Ends> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this gets lost of its session, and of any that it tries to open.
    pub fn cut(&self, registry: &MemoryRegistry, lost: Lost) {
        let mut ends = self.lock();
        ends.lost = Some(lost);
        if let Some(session) = ends.session {
            registry.cut_one_way(session, lost);
        }
    }

    /// A session is opened.
    fn opened(&self, registry: &MemoryRegistry, session: i64) {
        let mut ends = self.lock();
        ends.session = Some(session);
        // It was under way when the line was cut.
        if let Some(lost) = ends.lost {
            registry.cut_one_way(session, lost);
        }
    }

    fn lost(&self) -> Option<Lost> {
        self.lock().lost
    }
}

/// The registry as one member sees it.
#[derive(Clone)]
pub struct Traced {
    pub registry: MemoryRegistry,
    pub trace: Trace,
    pub line: Line,
    /// Who counts what a member of ours does; nobody for others.
    pub sometimes: Option<Sometimes>,
}

impl Traced {
    /// Requests that are lost open nothing; an answer that is lost leaves a session that nobody has.
    async fn in_vain(&self, dialect: Dialect, lost: Lost) -> Error {
        if lost == Lost::Answers
            && let Ok(connection) = self.registry.open(dialect).await
        {
            self.registry.kill(connection.session_id());
        }
        sleep(VAIN).await;
        Error::new(ErrorKind::Connection, "cannot open a session: no answer")
    }
}

impl Registry for Traced {
    fn open(&self, dialect: Dialect) -> Later<Result<Arc<dyn Connection>, Error>> {
        let traced = self.clone();
        Box::pin(async move {
            let (trace, sometimes) = (traced.trace.clone(), traced.sometimes.clone());
            let opened = match traced.line.lost() {
                Some(lost) => Err(traced.in_vain(dialect, lost).await),
                None => traced.registry.open(dialect).await,
            };
            trace.note(&opened.as_ref().map(|connection| connection.session_id()));
            let inner = opened?;
            traced.line.opened(&traced.registry, inner.session_id());
            let connection: Arc<dyn Connection> = Arc::new(TracedConnection {
                inner,
                trace,
                sometimes,
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
    sometimes: Option<Sometimes>,
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

    /// A write, of which it is counted what becomes of it.
    fn counted<T: Send + 'static, E: Send + 'static>(
        &self,
        ops: &[Op],
        answer: Later<Result<T, E>>,
        fault: fn(&E) -> &Fault,
    ) -> Later<Result<T, E>> {
        let Some(sometimes) = self.sometimes.clone() else {
            return answer;
        };
        let sent = sometimes.sends(self.inner.session_id(), ops);
        Box::pin(async move {
            let answer = answer.await;
            sometimes.is_answered(&sent, answer.as_ref().err().map(fault));
            answer
        })
    }

    /// A read, of which it is counted if there was nothing to be read.
    fn sought<T: Send + 'static>(&self, path: &str, answer: Reply<T>) -> Reply<T> {
        let (sometimes, path) = (self.sometimes.clone(), path.to_owned());
        Box::pin(async move {
            let answer = answer.await;
            if let (Some(sometimes), Err(Fault::NoNode)) = (sometimes, &answer) {
                sometimes.is_missing(&path);
            }
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
        let sometimes = self.sometimes.clone();
        Box::pin(async move {
            let (content, watch) = answer.await?;
            let connection = Self {
                inner,
                trace,
                sometimes,
            };
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
        let answer = self.sought(path, self.inner.data(path));
        self.noted(&("data", path), answer, |d| format!("{d:?}"))
    }

    fn data_and_watch(&self, path: &str) -> Reply<(Vec<u8>, Stat, Watch)> {
        let answer = flat(self.sought(path, self.inner.data_and_watch(path)));
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
        let op = Op::Create {
            path: path.to_owned(),
            data: data.to_vec(),
            ephemeral,
        };
        let answer = self.inner.create(path, data, ephemeral);
        let answer = self.counted(&[op], answer, |fault| fault);
        self.noted(&("create", path, data, ephemeral), answer, |()| {
            String::new()
        })
    }

    fn set(&self, path: &str, data: &[u8], version: Option<i32>) -> Reply<Stat> {
        let op = Op::Set {
            path: path.to_owned(),
            data: data.to_vec(),
            version,
        };
        let answer = self.inner.set(path, data, version);
        let answer = self.counted(&[op], answer, |fault| fault);
        self.noted(&("set", path, data, version), answer, |s| format!("{s:?}"))
    }

    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()> {
        let answer = self.inner.delete(path, version);
        self.noted(&("delete", path, version), answer, |()| String::new())
    }

    fn multi(&self, ops: Vec<Op>) -> Later<Result<Vec<Option<Stat>>, MultiFault>> {
        let request = format!("{ops:?}");
        let counted = ops.clone();
        let answer = self.inner.multi(ops);
        let answer = self.counted(&counted, answer, |fault| &fault.fault);
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
