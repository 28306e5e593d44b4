//! The promise of a coordination service: sessions, znodes with versions, and watches that fire once.
//!
//! Two implementations keep it: `zk` with real servers, `memory` within the process. One suite of tests runs over both.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::config;
use crate::error::Error;

/// A future that owns all it needs.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The answer to one request, to come.
///
/// The request is on its way once the future has been polled for the first time; dropping the future afterwards takes
/// nothing back. Requests polled first in some order are carried out in that order.
pub type Reply<T> = Later<Result<T, Fault>>;

/// Why a request was not carried out, or that nobody knows whether it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The node, or its parent, does not exist. Not applied.
    NoNode,
    /// The node exists already. Not applied.
    NodeExists,
    /// The node has another version. Not applied.
    BadVersion,
    /// The node has children. Not applied.
    NotEmpty,
    /// The server's access list forbids it. Not applied.
    NoAuth,
    /// The server does not know this kind of request: it speaks the other [`Dialect`]. Not applied.
    Unsupported,
    /// Larger than the server takes; refused here, before it was sent.
    TooLarge,
    /// The connection broke, or the answer did not come in time: it **may have been applied**. Read to find out.
    Unknown(String),
    /// The session is over: what it created for its lifetime is gone or will be; a lasting change may have been applied.
    SessionLost,
    /// Anything else that is certain not to have been applied.
    Refused(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNode => f.write_str("no such node"),
            Self::NodeExists => f.write_str("the node exists"),
            Self::BadVersion => f.write_str("the node has another version"),
            Self::NotEmpty => f.write_str("the node has children"),
            Self::NoAuth => f.write_str("not authorized"),
            Self::Unsupported => f.write_str("the server does not know this request"),
            Self::TooLarge => f.write_str("too large for one request"),
            Self::Unknown(why) => write!(f, "outcome unknown ({why})"),
            Self::SessionLost => f.write_str("the session is over"),
            Self::Refused(why) => write!(f, "refused ({why})"),
        }
    }
}

impl std::error::Error for Fault {}

/// What a server says about a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stat {
    /// The transaction that created the node; of an owner node it is the fencing token.
    pub czxid: i64,
    /// The transaction that last wrote its data.
    pub mzxid: i64,
    /// When it was created, ms since the epoch by the server's clock.
    pub ctime: i64,
    /// When its data was last written, ms since the epoch by the server's clock.
    pub mtime: i64,
    /// How often its data was written since it was created.
    pub version: i32,
    /// How often a child was created or deleted.
    pub cversion: i32,
    /// The session it lives and dies with, 0 for a lasting node.
    pub ephemeral_owner: i64,
}

/// One step of a [`Connection::multi`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Holds only if the node is there, at this version if one is given.
    Check {
        /// The node.
        path: String,
        /// Its expected version.
        version: Option<i32>,
    },
    /// Creates a node.
    Create {
        /// The node.
        path: String,
        /// Its data.
        data: Vec<u8>,
        /// Whether it lives and dies with the session.
        ephemeral: bool,
    },
    /// Writes a node's data.
    Set {
        /// The node.
        path: String,
        /// The new data.
        data: Vec<u8>,
        /// Its expected version, if any.
        version: Option<i32>,
    },
    /// Deletes a node.
    Delete {
        /// The node.
        path: String,
        /// Its expected version, if any.
        version: Option<i32>,
    },
}

impl Op {
    /// The node it concerns.
    pub fn path(&self) -> &str {
        match self {
            Self::Check { path, .. }
            | Self::Create { path, .. }
            | Self::Set { path, .. }
            | Self::Delete { path, .. } => path,
        }
    }

    /// Roughly what it takes on the wire, in bytes.
    pub fn size(&self) -> usize {
        let data = match self {
            Self::Create { data, .. } | Self::Set { data, .. } => data.len(),
            Self::Check { .. } | Self::Delete { .. } => 0,
        };
        // Header, lengths, version, flags and the access list of a create.
        self.path().len() + data + 64
    }
}

/// Why a [`Connection::multi`] changed nothing, or that nobody knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultiFault {
    /// The first step that did not hold, if it was a step and not the whole request that failed.
    pub index: Option<usize>,
    /// What was wrong with it.
    pub fault: Fault,
}

/// What a watch came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fired {
    /// The node was created, written or deleted, or its children changed. Look again.
    Changed,
    /// The session is over, and with it the watch.
    SessionLost,
}

/// A watch that was armed by a read; resolves once. Dropping it before takes the watch back,
/// which costs the connection on ZooKeeper 3.4, so a session keeps it until it fires.
pub type Watch = Later<Fired>;

/// Which requests the servers know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Dialect {
    /// ZooKeeper 3.5 and later: a transaction may create nodes.
    #[default]
    V3_5,
    /// ZooKeeper 3.4: nodes are created one by one, and stamped in a transaction.
    V3_4,
}

/// The dialect to begin with; what `auto` finds out is for the one who asks.
impl From<config::Dialect> for Dialect {
    fn from(setting: config::Dialect) -> Self {
        match setting {
            config::Dialect::V3_4 => Self::V3_4,
            config::Dialect::V3_5 | config::Dialect::Auto => Self::V3_5,
        }
    }
}

/// One session. All requests belong to it and to no other: nothing is ever repeated on a later one.
///
/// Paths are below the chroot. An implementation keeps the order of requests, reads its own writes, and never goes back
/// in time within the session.
pub trait Connection: Send + Sync {
    /// The session's number, as it stands in [`Stat::ephemeral_owner`].
    fn session_id(&self) -> i64;

    /// How long the servers keep the session without hearing of it, as they granted it.
    fn session_timeout(&self) -> Duration;

    /// The data of a node.
    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)>;

    /// The data of a node, and a watch for the next write or delete. [`Fault::NoNode`] arms nothing.
    fn data_and_watch(&self, path: &str) -> Reply<(Vec<u8>, Stat, Watch)>;

    /// Whether a node is there.
    fn stat(&self, path: &str) -> Reply<Option<Stat>>;

    /// Whether a node is there, and a watch for the next creation, write or delete.
    fn stat_and_watch(&self, path: &str) -> Reply<(Option<Stat>, Watch)>;

    /// The names of a node's children, in no order.
    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)>;

    /// The names of a node's children, and a watch for the next change among them. [`Fault::NoNode`] arms nothing.
    fn children_and_watch(&self, path: &str) -> Reply<(Vec<String>, Stat, Watch)>;

    /// Creates one node whose parent exists.
    fn create(&self, path: &str, data: &[u8], ephemeral: bool) -> Reply<()>;

    /// Writes a node's data, if it has the expected version.
    fn set(&self, path: &str, data: &[u8], version: Option<i32>) -> Reply<Stat>;

    /// Deletes a node without children, if it has the expected version.
    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()>;

    /// Carries out all steps or none. Answers with one entry a step, the node's stat for a [`Op::Set`], else `None`.
    /// No step at all is an empty answer without a request.
    fn multi(&self, ops: Vec<Op>) -> Later<Result<Vec<Option<Stat>>, MultiFault>>;

    /// Resolves when the session is over for good, however it ended.
    fn ended(&self) -> Later<()>;

    /// Ends the session; its ephemeral nodes go at once if a server can be reached. Resolves when that is known to be
    /// done or cannot be done; all later requests answer [`Fault::SessionLost`]. Dropping the connection does the same unseen.
    fn close(&self) -> Later<()>;
}

/// Opens sessions.
pub trait Registry: Send + Sync {
    /// Opens one. Tells within the connection timeout what is in the way.
    fn open(&self, dialect: Dialect) -> Later<Result<Arc<dyn Connection>, Error>>;

    /// Where it is, for messages: the connect string without secrets.
    fn describe(&self) -> String;
}
