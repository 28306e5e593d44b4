//! The door to ZooKeeper: sessions with real servers, which keep the promises of `registry`.
//!
//! One session is one client of the crate `zookeeper_client`, which is never replaced under it.

mod calls;
mod fault;
mod open;
mod probe;

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::Acls;
use zookeeper_client::Client;
use zookeeper_client::CreateMode;
use zookeeper_client::CreateOptions;
use zookeeper_client::Error as ClientError;
use zookeeper_client::EventType;
use zookeeper_client::MultiWriteError;
use zookeeper_client::MultiWriteResult;
use zookeeper_client::MultiWriter;
use zookeeper_client::OneshotWatcher;
use zookeeper_client::StateWatcher;

use crate::config::Config;
use crate::error::Error;
use crate::registry::Connection;
use crate::registry::Dialect;
use crate::registry::Fault;
use crate::registry::Fired;
use crate::registry::Later;
use crate::registry::MultiFault;
use crate::registry::Op;
use crate::registry::Registry;
use crate::registry::Reply;
use crate::registry::Stat;
use crate::registry::Watch;
use crate::zk::calls::Calls;

/// How large a request may be: `jute.maxbuffer` as servers have it, less what a leader adds when it passes the request on.
const ROOM: usize = 1024 * 1024 - 4096;

/// How long a close waits for the server's word.
const CLOSING: Duration = Duration::from_secs(1);

/// Where the servers are and how long to wait for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZkSettings {
    /// The servers, each as `host`, `host:port` or `[address]:port`; the port is 2181 when none is given.
    pub hosts: Vec<String>,
    /// The node that all paths are below, `None` or `/` for the root. It must exist (L-7). A `/` at its end is left out.
    pub chroot: Option<String>,
    /// How long a session is asked to live without a sign of life. The servers grant what their own limits allow.
    pub session_timeout: Duration,
    /// How long [`Registry::open`] may take. It has no influence on a session once that is open.
    pub connection_timeout: Duration,
}

impl ZkSettings {
    /// What a member's configuration says of them.
    pub fn of(config: &Config) -> Self {
        let hosts = config.zookeeper.hosts().iter();
        Self {
            hosts: hosts.map(ToString::to_string).collect(),
            chroot: Some(config.zookeeper.chroot().to_owned()).filter(|chroot| !chroot.is_empty()),
            session_timeout: config.session_timeout,
            connection_timeout: config.connection_timeout(),
        }
    }
}

/// ZooKeeper servers, of version 3.4 or later.
#[derive(Debug, Clone)]
pub struct ZkRegistry {
    settings: Arc<ZkSettings>,
}

impl ZkRegistry {
    /// These servers. Nothing is connected, or looked at, before [`Registry::open`].
    pub fn new(settings: ZkSettings) -> Self {
        Self {
            settings: Arc::new(settings),
        }
    }
}

impl Registry for ZkRegistry {
    /// # Errors
    ///
    /// Of kind `Config` when the settings cannot be a connect string, else of kind `Connection`. The text says for every
    /// server what answered there, when it was not a session.
    fn open(&self, dialect: Dialect) -> Later<Result<Arc<dyn Connection>, Error>> {
        let settings = Arc::clone(&self.settings);
        Box::pin(async move {
            let client = open::open(&settings, dialect).await?;
            let connection: Arc<dyn Connection> =
                Arc::new(ZkConnection::new(client, open::chroot(&settings).len()));
            Ok(connection)
        })
    }

    fn describe(&self) -> String {
        open::connect_string(&self.settings)
    }
}

struct ZkConnection {
    calls: Arc<Calls>,
    states: StateWatcher,
    session_id: i64,
    session_timeout: Duration,
    /// How much longer a path is on the wire.
    prefix: usize,
}

impl ZkConnection {
    fn new(client: Client, prefix: usize) -> Self {
        let states = client.state_watcher();
        let session_id = client.session_id().0;
        let session_timeout = client.session_timeout();
        tracing::debug!(session = %client.session_id(), ?session_timeout, "connected");
        Self {
            calls: Arc::new(Calls::new(client)),
            states,
            session_id,
            session_timeout,
            prefix,
        }
    }

    /// Sends on the first poll, and waits for the answer as long as the session may last without the server.
    fn call<T, E, F>(&self, arms: bool, request: F) -> Later<Result<T, Trouble<E>>>
    where
        T: Send + 'static,
        E: Send + 'static,
        F: FnOnce(Client) -> Later<Result<T, E>> + Send + 'static,
    {
        let calls = Arc::clone(&self.calls);
        let patience = self.session_timeout;
        Box::pin(async move {
            let call = calls.start(arms, request).map_err(Trouble::Ours)?;
            match tokio::time::timeout(patience, call).await {
                Ok(Some(answer)) => answer.map_err(Trouble::Answer),
                Ok(None) => Err(Trouble::Ours(Fault::SessionLost)),
                Err(_) => Err(Trouble::Silence(patience)),
            }
        })
    }

    fn request<T, F>(&self, arms: bool, request: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnOnce(Client) -> Later<Result<T, ClientError>> + Send + 'static,
    {
        let reply = self.call(arms, request);
        let verdict = self.verdict();
        Box::pin(async move {
            reply
                .await
                .map_err(|trouble| verdict(trouble.into_fault(fault::of)))
        })
    }

    /// The last word on a fault: nobody can find out any more what became of a request once its session is over.
    fn verdict(&self) -> impl Fn(Fault) -> Fault + Send + 'static {
        let states = self.states.clone();
        let calls = Arc::clone(&self.calls);
        move |fault| match fault {
            Fault::Unknown(_) if states.peek_state().is_terminated() => Fault::SessionLost,
            // Also when a server disowns the session: nothing of it is to be used again.
            Fault::SessionLost => {
                calls.end();
                Fault::SessionLost
            }
            other => other,
        }
    }
}

impl Drop for ZkConnection {
    fn drop(&mut self) {
        self.calls.end();
    }
}

/// Why there is no good answer.
enum Trouble<E> {
    Answer(E),
    Silence(Duration),
    Ours(Fault),
}

impl<E> Trouble<E> {
    fn into_fault(self, of: impl FnOnce(E) -> Fault) -> Fault {
        match self {
            Self::Answer(error) => of(error),
            Self::Silence(patience) => Fault::Unknown(format!("no answer within {patience:?}")),
            Self::Ours(fault) => fault,
        }
    }
}

impl Connection for ZkConnection {
    fn session_id(&self) -> i64 {
        self.session_id
    }

    fn session_timeout(&self) -> Duration {
        self.session_timeout
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        let path = path.to_owned();
        self.request(false, |client| {
            Box::pin(async move {
                let (data, stat) = client.get_data(&path).await?;
                Ok((data, stat_of(&stat)))
            })
        })
    }

    fn data_and_watch(&self, path: &str) -> Reply<(Vec<u8>, Stat, Watch)> {
        let path = path.to_owned();
        self.request(true, |client| {
            Box::pin(async move {
                let (data, stat, watcher) = client.get_and_watch_data(&path).await?;
                Ok((data, stat_of(&stat), watch(watcher)))
            })
        })
    }

    fn stat(&self, path: &str) -> Reply<Option<Stat>> {
        let path = path.to_owned();
        self.request(false, |client| {
            Box::pin(async move { Ok(client.check_stat(&path).await?.as_ref().map(stat_of)) })
        })
    }

    fn stat_and_watch(&self, path: &str) -> Reply<(Option<Stat>, Watch)> {
        let path = path.to_owned();
        self.request(true, |client| {
            Box::pin(async move {
                let (stat, watcher) = client.check_and_watch_stat(&path).await?;
                Ok((stat.as_ref().map(stat_of), watch(watcher)))
            })
        })
    }

    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)> {
        let path = path.to_owned();
        self.request(false, |client| {
            Box::pin(async move {
                let (names, stat) = client.get_children(&path).await?;
                Ok((names, stat_of(&stat)))
            })
        })
    }

    fn children_and_watch(&self, path: &str) -> Reply<(Vec<String>, Stat, Watch)> {
        let path = path.to_owned();
        self.request(true, |client| {
            Box::pin(async move {
                let (names, stat, watcher) = client.get_and_watch_children(&path).await?;
                Ok((names, stat_of(&stat), watch(watcher)))
            })
        })
    }

    fn create(&self, path: &str, data: &[u8], ephemeral: bool) -> Reply<()> {
        let op = Op::Create {
            path: path.to_owned(),
            data: data.to_owned(),
            ephemeral,
        };
        self.single(op, |_| Ok(()))
    }

    fn set(&self, path: &str, data: &[u8], version: Option<i32>) -> Reply<Stat> {
        let op = Op::Set {
            path: path.to_owned(),
            data: data.to_owned(),
            version,
        };
        self.single(op, |stat| {
            stat.ok_or_else(|| ClientError::UnexpectedError("a write without a stat".into()))
        })
    }

    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()> {
        let op = Op::Delete {
            path: path.to_owned(),
            version,
        };
        self.single(op, |_| Ok(()))
    }

    fn multi(&self, ops: Vec<Op>) -> Later<Result<Vec<Option<Stat>>, MultiFault>> {
        if ops.is_empty() {
            return done(Ok(Vec::new()));
        }
        if !self.fits(&ops) {
            return done(Err(MultiFault {
                index: None,
                fault: Fault::TooLarge,
            }));
        }
        let creates = ops.iter().any(|op| matches!(op, Op::Create { .. }));
        let reply = self.call(false, |client| {
            Box::pin(async move { commit(&client, &ops).await })
        });
        let verdict = self.verdict();
        Box::pin(async move {
            let results = reply.await.map_err(|trouble| {
                let mut index = None;
                let fault = trouble.into_fault(|error| {
                    let (at, source) = split(error);
                    index = at;
                    fault::of_multi(source, creates)
                });
                MultiFault {
                    index,
                    fault: verdict(fault),
                }
            })?;
            Ok(results.iter().map(written).collect())
        })
    }

    fn ended(&self) -> Later<()> {
        Box::pin(over(self.states.clone()))
    }

    fn close(&self) -> Later<()> {
        let calls = Arc::clone(&self.calls);
        let states = self.states.clone();
        Box::pin(async move {
            calls.end();
            if tokio::time::timeout(CLOSING, over(states)).await.is_err() {
                tracing::debug!("no server to close the session with, it will time out");
            }
        })
    }
}

impl ZkConnection {
    /// A write of one node, in no transaction.
    fn single<T, F>(&self, op: Op, answer: F) -> Reply<T>
    where
        T: Send + 'static,
        F: FnOnce(Option<Stat>) -> Result<T, ClientError> + Send + 'static,
    {
        if !self.fits(std::slice::from_ref(&op)) {
            return done(Err(Fault::TooLarge));
        }
        self.request(false, |client| {
            Box::pin(async move { answer(write(&client, &op).await?) })
        })
    }

    fn fits(&self, ops: &[Op]) -> bool {
        let sizes = ops.iter().map(|op| op.size() + self.prefix);
        sizes.fold(0, usize::saturating_add) <= ROOM
    }
}

async fn write(client: &Client, op: &Op) -> Result<Option<Stat>, ClientError> {
    match op {
        Op::Create {
            path,
            data,
            ephemeral,
        } => client
            .create(path, data, &options(*ephemeral))
            .await
            .map(|_| None),
        Op::Set {
            path,
            data,
            version,
        } => client
            .set_data(path, data, *version)
            .await
            .map(|stat| Some(stat_of(&stat))),
        Op::Delete { path, version } => client.delete(path, *version).await.map(|()| None),
        Op::Check { .. } => Err(ClientError::BadArguments(
            &"a check is part of a transaction",
        )),
    }
}

/// Everything goes out when this is polled for the first time.
async fn commit(client: &Client, ops: &[Op]) -> Result<Vec<MultiWriteResult>, MultiWriteError> {
    let mut writer = client.new_multi_writer();
    for (index, op) in ops.iter().enumerate() {
        add(&mut writer, op)
            .map_err(|source| MultiWriteError::OperationFailed { index, source })?;
    }
    let sent = writer.commit();
    sent.await
}

fn add(writer: &mut MultiWriter<'_>, op: &Op) -> Result<(), ClientError> {
    match op {
        // On the wire, minus one stands for any version.
        Op::Check { path, version } => writer.add_check_version(path, version.unwrap_or(-1)),
        Op::Create {
            path,
            data,
            ephemeral,
        } => writer.add_create(path, data, &options(*ephemeral)),
        Op::Set {
            path,
            data,
            version,
        } => writer.add_set_data(path, data, *version),
        Op::Delete { path, version } => writer.add_delete(path, *version),
    }
}

fn options(ephemeral: bool) -> CreateOptions<'static> {
    let mode = if ephemeral {
        CreateMode::Ephemeral
    } else {
        CreateMode::Persistent
    };
    mode.with_acls(Acls::anyone_all())
}

fn split(error: MultiWriteError) -> (Option<usize>, ClientError) {
    match error {
        MultiWriteError::OperationFailed { index, source } => (Some(index), source),
        MultiWriteError::RequestFailed { source } => (None, source),
    }
}

fn written(result: &MultiWriteResult) -> Option<Stat> {
    match result {
        MultiWriteResult::SetData { stat } => Some(stat_of(stat)),
        // What servers before 3.8.2 say about a create is not valid.
        _ => None,
    }
}

fn stat_of(stat: &zookeeper_client::Stat) -> Stat {
    Stat {
        czxid: stat.czxid,
        mzxid: stat.mzxid,
        ctime: stat.ctime,
        mtime: stat.mtime,
        version: stat.version,
        cversion: stat.cversion,
        ephemeral_owner: stat.ephemeral_owner,
    }
}

fn watch(watcher: OneshotWatcher) -> Watch {
    Box::pin(async move {
        match watcher.changed().await.event_type {
            EventType::Session => Fired::SessionLost,
            _ => Fired::Changed,
        }
    })
}

async fn over(mut states: StateWatcher) {
    while !states.state().is_terminated() {
        states.changed().await;
    }
}

fn done<T: Send + 'static>(answer: T) -> Later<T> {
    Box::pin(std::future::ready(answer))
}
