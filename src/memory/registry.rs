//! An ensemble within the process: the promise of a registry, and what a test may do to it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::ensemble::Ensemble;
use super::faults::{Fate, Kind, Latency, Lost, Request};
use super::tree::{Write, check_path, parent};
use super::world::Answer;
use crate::error::{Error, ErrorKind};
use crate::registry::{
    Connection, Dialect, Fault, Fired, Later, MultiFault, Op, Registry, Reply, Stat, Watch,
};

/// What is sent in one request, in bytes: what a server takes, less what a leader adds when it passes the request on.
const LIMIT: usize = 1024 * 1024 - 4096;

/// An ensemble within the process, with ZooKeeper's manners. A clone is another handle of the same ensemble.
///
/// It answers as real servers do, to which random scripts of requests are put as well. It keeps every line of
/// [`Connection`], and of ZooKeeper itself: a transaction number for each write that reaches it,
/// those that fail included; versions that start at 0; parents that must exist and must not be ephemeral; watches that
/// fire once, before the same connection can read what they tell of; sessions that end when the ensemble has not heard
/// of them for the granted timeout, rounded up to its next tick. A connection sends its heartbeats by itself as long as
/// it is neither cut off nor killed.
///
/// What a test can do goes by the session's number, [`Connection::session_id`]. Methods named `with_…` set something
/// for the whole ensemble, except [`with_session_timeout`](Self::with_session_timeout).
///
/// One server unless [`with_servers`](Self::with_servers) makes it more; then each session is with one of them, drawn anew
/// whenever it connects, and sees what that one has carried out so far.
///
/// Not modelled: elections (see [`halt`](Self::halt)), access lists (see [`Fate::Refuse`] and [`Fate::RefuseStep`]), sequential nodes, quotas.
#[derive(Clone)]
pub struct MemoryRegistry {
    ensemble: Arc<Ensemble>,
    asked: Duration,
}

/// What can be seen of a session from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionState {
    /// Its number.
    pub id: i64,
    /// The timeout it was granted.
    pub timeout: Duration,
    /// The dialect its client speaks.
    pub dialect: Dialect,
    /// The ensemble has it: its nodes are there.
    pub is_open: bool,
    /// Its client believes that it lives.
    pub is_alive: bool,
    /// Requests get through.
    pub is_connected: bool,
    /// The server it is or was last connected to; 0 leads.
    pub server: usize,
    /// Watches that have not fired.
    pub watches: usize,
    /// Requests sent so far, by kind. A kind that was never sent is absent.
    pub requests: BTreeMap<Kind, u64>,
}

impl Default for MemoryRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryRegistry")
    }
}

/// Setting up.
impl MemoryRegistry {
    /// An empty ensemble of version 3.9 with ticks of 500 ms, no latency and no faults, asked for sessions of 6 s.
    pub fn new() -> Self {
        Self {
            ensemble: Arc::new(Ensemble::new()),
            asked: Duration::from_secs(6),
        }
    }

    /// The ensemble's tick: session timeouts are granted from 2 to 20 of them, and expire at whole ones.
    #[must_use]
    pub fn with_tick(self, tick: Duration) -> Self {
        self.ensemble.with(|world| world.tick = tick);
        self
    }

    /// The session timeout that **this handle** asks for; others, also clones made before, keep theirs.
    #[must_use]
    pub fn with_session_timeout(mut self, timeout: Duration) -> Self {
        self.asked = timeout;
        self
    }

    /// The servers' version. Below 3.5 they speak [`Dialect::V3_4`] only: the create of a newer client is answered with
    /// [`Fault::Unsupported`] and a broken connection, a transaction that creates with the fault alone, and a watch
    /// that is dropped before it fired breaks the connection. (With real servers it does not when the session watches
    /// the same node for the same once more.)
    #[must_use]
    pub fn with_version(self, major: u32, minor: u32) -> Self {
        self.ensemble.with(|world| world.version = (major, minor));
        self
    }

    /// How long each way takes.
    #[must_use]
    pub fn with_latency(self, latency: Latency) -> Self {
        self.ensemble.with(|world| world.latency = latency);
        self
    }

    /// How much earlier than the last heartbeat the leader last heard of a session: followers pass heartbeats on with
    /// a delay, so a session may end this much sooner than its client would think. Zero unless set.
    #[must_use]
    pub fn with_lag(self, lag: Duration) -> Self {
        self.ensemble.with(|world| world.lag = lag);
        self
    }

    /// So many servers, the first of which leads; `relay` is the time from one to another, and its dice place the clients.
    /// Followers carry out writes so much later than the leader, and answer reads from what they have carried out.
    #[must_use]
    pub fn with_servers(self, count: usize, relay: Latency) -> Self {
        self.ensemble.with(|world| world.spread(count, relay));
        self
    }

    /// How long a follower that is cut off from the leader goes on answering; 5 s unless set.
    #[must_use]
    pub fn with_sync_limit(self, limit: Duration) -> Self {
        self.ensemble.with(|world| world.sync_limit = limit);
        self
    }

    /// Decides about every request before it leaves its client. It may look at the ensemble and change nodes, but not
    /// set another such function. See [`Script`](super::Script) for a ready one.
    #[must_use]
    pub fn with_fate(self, fate: impl FnMut(&Request) -> Fate + Send + 'static) -> Self {
        self.ensemble.set_fate(Some(Box::new(fate)));
        self
    }

    /// From now on every request is delivered.
    pub fn without_faults(&self) {
        self.ensemble.set_fate(None);
    }

    /// How long it takes to open a session, besides the latency.
    #[must_use]
    pub fn with_opening(self, time: Duration) -> Self {
        self.ensemble.with(|world| world.opening = time);
        self
    }

    /// From now on no session can be opened, for this reason, until [`accept`](Self::accept).
    pub fn refuse(&self, reason: impl Into<String>) {
        let reason = reason.into();
        self.ensemble.with(|world| world.refusal = Some(reason));
    }

    /// Sessions can be opened again.
    pub fn accept(&self) {
        self.ensemble.with(|world| world.refusal = None);
    }

    /// Carries out what falls due for as long as it is polled; never resolves. Nobody needs it: who waits for an
    /// answer or a watch does the same. It spares a simulation with many watches the waking of all of them.
    pub async fn drive(&self) {
        self.ensemble.drive().await;
    }
}

/// What may befall a session. Each answers whether there was such a session to befall.
impl MemoryRegistry {
    /// Ends the session on the servers' side, its nodes gone. A connected client knows at once, one that is cut off when it is
    /// healed or gives up.
    pub fn expire(&self, session: i64) -> bool {
        self.ensemble.with(|world| world.expire(session))
    }

    /// Cuts the client off, silently. What it sends waits in the network. After 2/5 of the timeout the client
    /// notices: what it had sent is [`Fault::Unknown`], what it is asked from then on waits. After the timeout the
    /// ensemble ends the session; after 7/5 of it the client does, whatever it heard. A process that is stopped looks the
    /// same from the servers: cut it, and do not poll its futures.
    pub fn cut(&self, session: i64) -> bool {
        self.ensemble.with(|world| world.cut(session, false))
    }

    /// Cuts one way of the client's connection: as [`cut`](Self::cut), but what goes the other way arrives. While answers are lost the
    /// servers hear of the session until its client gives it up, and end it a timeout later.
    pub fn cut_one_way(&self, session: i64, lost: Lost) -> bool {
        self.ensemble.with(|world| world.cut_one_way(session, lost))
    }

    /// Ends a [`cut`](Self::cut). What waited is delivered in its order; watches fire for what changed meanwhile; if the ensemble
    /// has ended the session, the client is told.
    pub fn heal(&self, session: i64) -> bool {
        self.ensemble.with(|world| world.heal(session))
    }

    /// The process dies without a word: a cut that cannot be healed. Its nodes stay for the timeout. Dropping the connection
    /// afterwards closes nothing.
    pub fn kill(&self, session: i64) -> bool {
        self.ensemble.with(|world| world.cut(session, true))
    }

    /// Breaks the connection; the client is back at once. What was in flight is [`Fault::Unknown`]; the session and its watches live on.
    pub fn sever(&self, session: i64) -> bool {
        self.ensemble.with(|world| {
            let is_connected = world
                .sessions
                .get(&session)
                .is_some_and(|s| s.is_connected());
            world.sever(session);
            is_connected
        })
    }

    /// The ensemble loses its quorum: everybody is cut off, nobody can come, and no session ends on the servers' side.
    pub fn halt(&self) {
        self.ensemble.with(|world| world.halt());
    }

    /// Ends a [`halt`](Self::halt): all who are not cut off besides are back, and every session has its whole timeout again.
    pub fn resume(&self) {
        self.ensemble.with(|world| world.resume());
    }

    /// Cuts a follower off from the leader. Its clients notice nothing for a while: reads and heartbeats are answered, from
    /// what it knew; writes hang; the leader hears nothing of their sessions and ends them in time. After the sync limit it
    /// sends its clients away, to other servers. Answers whether there was such a follower, not cut off yet, and enough
    /// others for a quorum; see [`halt`](Self::halt) for none.
    pub fn isolate(&self, server: usize) -> bool {
        self.ensemble.with(|world| world.isolate(server))
    }

    /// Ends an [`isolate`](Self::isolate): what the follower missed is on its way.
    pub fn rejoin(&self, server: usize) -> bool {
        self.ensemble.with(|world| world.rejoin(server))
    }

    /// All sessions that ever were, oldest first.
    pub fn sessions(&self) -> Vec<SessionState> {
        self.ensemble.with(|world| {
            let sessions = world.sessions.iter();
            sessions
                .map(|(id, s)| SessionState {
                    id: *id,
                    timeout: s.timeout,
                    dialect: s.dialect,
                    is_open: s.is_open,
                    is_alive: !s.is_over,
                    is_connected: s.is_connected(),
                    server: s.server,
                    watches: s.armed(),
                    requests: s.counts.clone(),
                })
                .collect()
        })
    }

    /// One session; none if there never was one of that number.
    pub fn session(&self, id: i64) -> Option<SessionState> {
        self.sessions().into_iter().find(|s| s.id == id)
    }

    /// How many requests of a kind a session has sent.
    pub fn requests(&self, session: i64, kind: Kind) -> u64 {
        let state = self.session(session);
        state.map_or(0, |s| s.requests.get(&kind).copied().unwrap_or(0))
    }
}

/// A hand from outside: an operator, or whoever else has the servers' ear. It belongs to no session and takes no time;
/// watches fire as for any other write.
impl MemoryRegistry {
    /// Writes a node's data, making it and the nodes above it if they are not there.
    ///
    /// # Panics
    /// If the path is none, or leads below an ephemeral node: a mistake of the test.
    pub fn put(&self, path: &str, data: impl AsRef<[u8]>) {
        if let Err(fault) = check_path(path).and_then(|()| self.try_put(path, data.as_ref())) {
            panic!("cannot put {path}: {fault}");
        }
    }

    fn try_put(&self, path: &str, data: &[u8]) -> Result<(), Fault> {
        self.ensemble.with(|world| {
            let mut missing = Vec::new();
            let mut above = parent(path);
            while world.tree.node(above).is_none() {
                missing.push(above.to_owned());
                above = parent(above);
            }
            let is_there = world.tree.node(path).is_some();
            let last = if is_there {
                let (path, data) = (path.to_owned(), data.to_vec());
                Op::Set {
                    path,
                    data,
                    version: None,
                }
            } else {
                lasting(path, data)
            };
            let ops = missing.iter().rev().map(|path| lasting(path, b""));
            for op in ops.chain([last]) {
                world.write(0, &[op]).map_err(|fault| fault.fault)?;
            }
            Ok(())
        })
    }

    /// Deletes a node and all below it, deepest first. One that is not there is no matter.
    pub fn delete(&self, path: &str) {
        self.ensemble.with(|world| {
            let mut doomed = vec![path.to_owned()];
            let mut at = 0;
            while at < doomed.len() {
                let above = doomed[at].clone();
                let children = world.tree.node(&above).map(|node| node.children.clone());
                doomed.extend(
                    children
                        .into_iter()
                        .flatten()
                        .map(|name| below(&above, &name)),
                );
                at += 1;
            }
            for path in doomed.into_iter().rev() {
                let op = Op::Delete {
                    path,
                    version: None,
                };
                let _ = world.write(0, &[op]);
            }
        });
    }

    /// A node's data and stat; none if it is not there.
    pub fn read(&self, path: &str) -> Option<(Vec<u8>, Stat)> {
        self.ensemble.with(|world| {
            let node = world.tree.node(path)?;
            Some((node.data.clone(), node.stat))
        })
    }

    /// A node's data as text, the bytes that are none replaced; none if the node is not there.
    pub fn text(&self, path: &str) -> Option<String> {
        let (data, _) = self.read(path)?;
        Some(String::from_utf8_lossy(&data).into_owned())
    }

    /// The names of a node's children in order; none at all if it is not there.
    pub fn list(&self, path: &str) -> Vec<String> {
        self.ensemble.with(|world| {
            let node = world.tree.node(path);
            node.into_iter()
                .flat_map(|node| node.children.iter().cloned())
                .collect()
        })
    }

    /// Every write that was carried out, in its order.
    pub fn log(&self) -> Vec<Write> {
        self.log_since(0)
    }

    /// The writes after a transaction, in their order.
    pub fn log_since(&self, zxid: i64) -> Vec<Write> {
        self.ensemble.with(|world| {
            let from = world.log.partition_point(|write| write.zxid <= zxid);
            world.log[from..].to_vec()
        })
    }

    /// The last transaction's number.
    pub fn zxid(&self) -> i64 {
        self.ensemble.with(|world| world.zxid)
    }
}

fn lasting(path: &str, data: &[u8]) -> Op {
    Op::Create {
        path: path.to_owned(),
        data: data.to_vec(),
        ephemeral: false,
    }
}

fn below(path: &str, name: &str) -> String {
    if path == "/" {
        format!("/{name}")
    } else {
        format!("{path}/{name}")
    }
}

// ---- the promise of a registry ----

impl Registry for MemoryRegistry {
    fn open(&self, dialect: Dialect) -> Later<Result<Arc<dyn Connection>, Error>> {
        let (ensemble, asked) = (self.ensemble.clone(), self.asked);
        Box::pin(async move {
            let time =
                ensemble.with(|world| world.opening + world.latency.draw() + world.latency.draw());
            pause(time).await;
            let opened = ensemble.with(|world| world.open(asked, dialect));
            let (session, timeout) = opened.map_err(|reason| {
                let text = format!("cannot open a session in memory: {reason}");
                Error::new(ErrorKind::Connection, text)
            })?;
            let connection: Arc<dyn Connection> = Arc::new(MemoryConnection {
                ensemble,
                session,
                timeout,
            });
            Ok(connection)
        })
    }

    fn describe(&self) -> String {
        "memory".into()
    }
}

async fn pause(time: Duration) {
    if time.is_zero() {
        tokio::task::yield_now().await;
    } else {
        tokio::time::sleep(time).await;
    }
}

/// One session in an ensemble in memory.
struct MemoryConnection {
    ensemble: Arc<Ensemble>,
    session: i64,
    timeout: Duration,
}

impl Drop for MemoryConnection {
    fn drop(&mut self) {
        self.ensemble.with(|world| world.let_go(self.session));
    }
}

/// A request under way, apart from the connection, which may be dropped meanwhile.
struct Call {
    ensemble: Arc<Ensemble>,
    session: i64,
}

impl Call {
    async fn send(&self, request: Request) -> Result<Answer, MultiFault> {
        let refused = |fault| MultiFault { index: None, fault };
        if request.ops.iter().map(Op::size).sum::<usize>() > LIMIT {
            return Err(refused(Fault::TooLarge));
        }
        if self.is_over() {
            return Err(refused(Fault::SessionLost));
        }
        for (index, op) in request.ops.iter().enumerate() {
            let index = Some(index);
            check_path(op.path()).map_err(|fault| MultiFault { index, fault })?;
        }
        if !request.path.is_empty() {
            check_path(&request.path).map_err(refused)?;
        }
        let (answer, answered) = oneshot::channel();
        let fate = self.ensemble.fate(&request);
        self.ensemble
            .with(|world| world.send(self.session, request, fate, answer));
        let outcome = self.ensemble.wait(answered).await;
        // An answer never comes within the same turn, or a test would see fewer interleavings than there are.
        tokio::task::yield_now().await;
        outcome.unwrap_or(Err(refused(Fault::SessionLost)))
    }

    fn is_over(&self) -> bool {
        self.ensemble.with(|world| {
            let session = world.sessions.get(&self.session);
            session.is_none_or(|s| s.is_over || s.is_closing)
        })
    }

    fn watch(&self, answer: &mut Answer) -> Watch {
        let Some((id, fired)) = answer.watch.take() else {
            return Box::pin(std::future::pending());
        };
        let armed = ArmedWatch {
            ensemble: self.ensemble.clone(),
            session: self.session,
            id,
        };
        Box::pin(async move {
            let armed = armed;
            let fired = armed.ensemble.wait(fired).await;
            fired.unwrap_or(Fired::SessionLost)
        })
    }
}

/// Takes the watch back when it is dropped; of one that has fired there is nothing to take.
struct ArmedWatch {
    ensemble: Arc<Ensemble>,
    session: i64,
    id: u64,
}

impl Drop for ArmedWatch {
    fn drop(&mut self) {
        self.ensemble
            .with(|world| world.unwatch(self.session, self.id));
    }
}

impl MemoryConnection {
    fn call(&self) -> Call {
        Call {
            ensemble: self.ensemble.clone(),
            session: self.session,
        }
    }

    fn request(&self, kind: Kind, path: &str) -> Request {
        Request {
            session: self.session,
            kind,
            path: path.into(),
            ops: Vec::new(),
            is_watching: false,
        }
    }

    fn watching(&self, kind: Kind, path: &str) -> Request {
        Request {
            is_watching: true,
            ..self.request(kind, path)
        }
    }

    fn writing(&self, kind: Kind, ops: Vec<Op>) -> Request {
        let path = ops.first().map(Op::path).unwrap_or_default().to_owned();
        Request {
            ops,
            ..self.request(kind, &path)
        }
    }

    fn ask<T: Send + 'static>(
        &self,
        request: Request,
        read: impl FnOnce(&Call, Answer) -> T + Send + 'static,
    ) -> Reply<T> {
        let call = self.call();
        Box::pin(async move {
            let answer = call.send(request).await.map_err(|fault| fault.fault)?;
            Ok(read(&call, answer))
        })
    }
}

impl Connection for MemoryConnection {
    fn session_id(&self) -> i64 {
        self.session
    }

    fn session_timeout(&self) -> Duration {
        self.timeout
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        self.ask(self.request(Kind::Data, path), |_, answer| {
            (answer.data, answer.stat.unwrap_or_default())
        })
    }

    fn data_and_watch(&self, path: &str) -> Reply<(Vec<u8>, Stat, Watch)> {
        self.ask(self.watching(Kind::Data, path), |call, mut answer| {
            let watch = call.watch(&mut answer);
            (answer.data, answer.stat.unwrap_or_default(), watch)
        })
    }

    fn stat(&self, path: &str) -> Reply<Option<Stat>> {
        self.ask(self.request(Kind::Stat, path), |_, answer| answer.stat)
    }

    fn stat_and_watch(&self, path: &str) -> Reply<(Option<Stat>, Watch)> {
        self.ask(self.watching(Kind::Stat, path), |call, mut answer| {
            let watch = call.watch(&mut answer);
            (answer.stat, watch)
        })
    }

    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)> {
        self.ask(self.request(Kind::Children, path), |_, answer| {
            (answer.names, answer.stat.unwrap_or_default())
        })
    }

    fn children_and_watch(&self, path: &str) -> Reply<(Vec<String>, Stat, Watch)> {
        self.ask(self.watching(Kind::Children, path), |call, mut answer| {
            let watch = call.watch(&mut answer);
            (answer.names, answer.stat.unwrap_or_default(), watch)
        })
    }

    fn create(&self, path: &str, data: &[u8], ephemeral: bool) -> Reply<()> {
        let op = Op::Create {
            path: path.into(),
            data: data.to_vec(),
            ephemeral,
        };
        self.ask(self.writing(Kind::Create, vec![op]), |_, _| ())
    }

    fn set(&self, path: &str, data: &[u8], version: Option<i32>) -> Reply<Stat> {
        let op = Op::Set {
            path: path.into(),
            data: data.to_vec(),
            version,
        };
        self.ask(self.writing(Kind::Set, vec![op]), |_, answer| {
            answer
                .steps
                .into_iter()
                .flatten()
                .next()
                .unwrap_or_default()
        })
    }

    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()> {
        let path = path.to_owned();
        let op = Op::Delete { path, version };
        self.ask(self.writing(Kind::Delete, vec![op]), |_, _| ())
    }

    fn multi(&self, ops: Vec<Op>) -> Later<Result<Vec<Option<Stat>>, MultiFault>> {
        if ops.is_empty() {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        }
        let call = self.call();
        let request = self.writing(Kind::Multi, ops);
        Box::pin(async move { Ok(call.send(request).await?.steps) })
    }

    fn ended(&self) -> Later<()> {
        let call = self.call();
        Box::pin(async move {
            if let Some(mut over) = call.ensemble.with(|world| world.over(call.session)) {
                let _ = call.ensemble.wait(over.wait_for(|over| *over)).await;
            }
        })
    }

    fn close(&self) -> Later<()> {
        let call = self.call();
        let request = self.request(Kind::Close, "");
        Box::pin(async move {
            let _ = call.send(request).await;
        })
    }
}
