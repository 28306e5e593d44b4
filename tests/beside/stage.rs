//! The servers, which all tests of this binary share, each test with topics and groups of its own.

use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::RwLockReadGuard;
use std::sync::RwLockWriteGuard;
use std::time::Duration;

use crate::support::Broker;
use crate::support::Flow;
use crate::support::Producer;
use crate::support::Tree;
use crate::support::ZooKeeper;

/// The broker's release.
pub const BROKER: &str = "1.1.1";

/// A ZooKeeper server and a broker.
pub struct Stage {
    pub zookeeper: ZooKeeper,
    pub broker: Broker,
    pub tree: Tree,
}

impl Stage {
    fn start(zookeeper: &str) -> Self {
        let zookeeper = ZooKeeper::start(zookeeper);
        let broker = Broker::start(BROKER, &zookeeper);
        let tree = Tree::connect(&zookeeper);
        Self {
            zookeeper,
            broker,
            tree,
        }
    }

    /// On ZooKeeper 3.9.5.
    pub fn new() -> &'static Self {
        static ONE: OnceLock<Stage> = OnceLock::new();
        ONE.get_or_init(|| Self::start("3.9.5"))
    }

    /// On ZooKeeper 3.4.14, where our member speaks the other dialect.
    pub fn old() -> &'static Self {
        static ONE: OnceLock<Stage> = OnceLock::new();
        ONE.get_or_init(|| Self::start("3.4.14"))
    }

    /// Makes a topic through which messages flow from now on, to every partition in turn with a pause between the rounds.
    pub fn flow(&self, topic: &str, partitions: i32, pause: Duration) -> Flow {
        self.broker.create_topic(topic, partitions);
        // A message sent again when the broker is slow to answer would be one that nobody counts.
        let once = [("enable.idempotence", "true")];
        Producer::connect_with(&self.broker, topic, &once).flow(0..partitions, pause)
    }

    /// Enters into the matrix that a member of this release was beside ours here.
    pub fn passed(&self, member: &str) {
        crate::support::passed("beside", &[("member", member)]);
    }
}

static QUIET: RwLock<()> = RwLock::new(());

/// Held by a test that may run beside others.
pub fn together() -> RwLockReadGuard<'static, ()> {
    QUIET.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a test that wants the servers for itself.
pub fn in_quiet() -> RwLockWriteGuard<'static, ()> {
    QUIET.write().unwrap_or_else(PoisonError::into_inner)
}
