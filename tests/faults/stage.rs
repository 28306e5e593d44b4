//! The servers that all tests of this binary share, and a group of a test's own on them: a chroot, a topic, messages, a proxy.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use evenkeel::Config;
use evenkeel::Event;
use evenkeel::config::Reset;
use evenkeel::registry::Dialect;

use crate::audit;
use crate::support::Broker;
use crate::support::BrokerOptions;
use crate::support::Finished;
use crate::support::Flow;
use crate::support::LONG;
use crate::support::Matcher;
use crate::support::Op;
use crate::support::Ours;
use crate::support::Producer;
use crate::support::Proxy;
use crate::support::Tree;
use crate::support::TxnLog;
use crate::support::ZooKeeper;
use crate::support::passed;
use crate::support::until;
use crate::support::zookeeper_versions;

/// The server that the broker uses.
const BROKERS: &str = "3.9.5";

/// Partitions of every topic.
pub const PARTITIONS: i32 = 4;

/// A server of this release; it ends with the test process.
pub fn server(version: &'static str) -> &'static ZooKeeper {
    static ALL: Mutex<BTreeMap<&str, &ZooKeeper>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.entry(version)
        .or_insert_with(|| Box::leak(Box::new(ZooKeeper::start(version))))
}

/// The broker, for members of every group; it ends with the test process.
pub fn broker() -> &'static Broker {
    static ONE: std::sync::OnceLock<Broker> = std::sync::OnceLock::new();
    ONE.get_or_init(|| {
        let options = BrokerOptions {
            chroot: "/kafka".into(),
            session_ms: 30_000,
            ..BrokerOptions::default()
        };
        Broker::start_with("1.1.1", server(BROKERS), options)
    })
}

/// What a server of this release speaks.
pub fn dialect(version: &str) -> Dialect {
    if version.starts_with("3.4.") {
        Dialect::V3_4
    } else {
        Dialect::V3_5
    }
}

/// Does the same with every release that this run is about, at the same time.
pub fn on_each(test: impl Fn(&'static str) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for version in zookeeper_versions() {
            scope.spawn(move || {
                test(version);
                passed("faults", &[("zookeeper", version)]);
            });
        }
    });
}

/// A group with one topic, whose members reach ZooKeeper through a proxy or straight.
pub struct Group {
    pub proxy: Proxy,
    /// Where its server is.
    pub server: String,
    /// Below the chroot.
    pub tree: Tree,
    pub topic: String,
    pub chroot: String,
    /// How many commits may be refused for a wrong version, where nobody could know a better one.
    pub wrong_versions: usize,
    log_folder: PathBuf,
    flow: Option<Flow>,
}

impl Group {
    /// On the shared server of this release, with messages flowing to every partition. The name is of this test alone.
    pub fn new(version: &'static str, name: &str) -> Self {
        Self::on(server(version), name)
    }

    /// On a server of the test's own.
    pub fn on(zookeeper: &ZooKeeper, name: &str) -> Self {
        let chroot = format!("/{name}");
        let topic = format!("{name}-{}", zookeeper.version());
        broker().create_topic(&topic, PARTITIONS);
        let root = Tree::connect(zookeeper);
        let place = format!("{chroot}/brokers/topics/{topic}");
        root.make(&place, &partitions(PARTITIONS));
        // With the parents there, each write of a member is granted at its first try.
        for parent in [
            "ids".into(),
            format!("owners/{topic}"),
            format!("offsets/{topic}"),
        ] {
            root.make(&format!("{chroot}/consumers/g/{parent}"), "");
        }
        let once = [("enable.idempotence", "true")];
        let producer = Producer::connect_with(broker(), &topic, &once);
        Self {
            proxy: Proxy::start(zookeeper.port()),
            server: zookeeper.connect_string(),
            tree: Tree::connect_below(zookeeper, &chroot),
            topic,
            chroot,
            wrong_versions: 0,
            log_folder: zookeeper.log_folder(),
            flow: Some(producer.flow(0..PARTITIONS, Duration::from_millis(20))),
        }
    }

    fn config(&self, server: &str, timeout: Duration) -> Config {
        let mut config = Config::new("g", &format!("{server}{}", self.chroot)).unwrap();
        config.bootstrap_servers = vec![broker().bootstrap()];
        config.auto_offset_reset = Reset::Smallest;
        config.auto_commit_interval = Duration::from_millis(100);
        config.session_timeout = timeout;
        // Nothing is to be found by the self-check.
        config.registration_check_interval = Duration::from_secs(3600);
        config
    }

    /// A member behind the proxy.
    pub fn join(&self, timeout: Duration) -> Ours {
        let config = self.config(&self.proxy.connect_string(), timeout);
        Ours::join(config, &[(&self.topic, 1)])
    }

    /// One that no fault touches.
    pub fn rival(&self) -> Ours {
        let config = self.config(&self.server, Duration::from_secs(20));
        Ours::join(config, &[(&self.topic, 1)])
    }

    /// The log of its server, from the beginning.
    pub fn log(&self) -> TxnLog {
        TxnLog::in_folder(&self.log_folder)
    }

    /// Waits until these members share the partitions evenly.
    #[track_caller]
    pub fn wait_shared(&self, members: &[&Ours]) {
        let share = PARTITIONS as usize / members.len();
        let names: Vec<String> = members.iter().map(|member| member.name()).collect();
        let is_so = |owners: &BTreeMap<i32, String>| {
            let has = |name: &String| {
                owners
                    .values()
                    .filter(|owner| owner.starts_with(name))
                    .count()
            };
            names.iter().all(|name| has(name) == share)
        };
        let what = format!("{} members share", members.len());
        self.tree.wait_for_owners(&what, "g", &self.topic, is_so);
    }

    /// Waits until every partition got this many more messages.
    pub fn flow_on(&self, more: usize) {
        let flow = self.flow.as_ref().expect("it flows");
        flow.await_more(0..PARTITIONS, more);
    }

    /// Waits until a member has finished so many more messages.
    #[track_caller]
    pub fn wait_finished(&self, member: &Ours, more: usize) {
        let before = member.finished().len();
        until("messages are finished", LONG, || {
            member.finished().len() >= before + more
        });
    }

    /// The end of every case: the members share, all that was sent is delivered and committed, they leave, nothing stays behind, and the log
    /// has nothing against them. Answers how many messages were delivered again, what those who left before had finished among them.
    #[track_caller]
    pub fn finish(mut self, members: Vec<Ours>, before: Vec<Finished>) -> usize {
        self.wait_shared(&members.iter().collect::<Vec<_>>());
        self.flow_on(5);
        let sent = self.flow.take().expect("it flowed").stop().finish();
        let mut ends: BTreeMap<i32, i64> = BTreeMap::new();
        for sent in &sent {
            let end = ends.entry(sent.partition).or_default();
            *end = (*end).max(sent.offset + 1);
        }
        let sent: BTreeSet<String> = sent.into_iter().map(|sent| sent.value).collect();
        until("all that was sent is delivered", LONG, || {
            let earlier = before.iter().map(|message| message.value.clone());
            let got: BTreeSet<String> = members
                .iter()
                .flat_map(Ours::texts)
                .chain(earlier)
                .collect();
            sent.is_subset(&got)
        });
        // The last one is done when the next is asked for.
        until("all that was sent is committed", LONG, || {
            members.iter().for_each(Ours::commit);
            self.tree.offsets("g", &self.topic) == ends
        });
        let owners = self.tree.owners("g", &self.topic);
        assert_eq!(owners.len(), PARTITIONS as usize, "{owners:?}");
        assert_eq!(self.tree.members("g").len(), members.len());
        members.iter().for_each(assert_nothing_foreign);
        let mut finished = before;
        for member in members {
            let (farewell, all) = member.leave();
            assert!(farewell.forced.is_empty(), "{farewell:?}");
            finished.extend(all);
        }
        let all = finished.len();
        let owners = self.tree.owners("g", &self.topic);
        assert!(owners.is_empty(), "left behind: {owners:?}");
        assert_eq!(self.tree.members("g"), Vec::<String>::new());
        assert_eq!(self.tree.offsets("g", &self.topic), ends);
        let wrongs = audit::wrongs(&self.log().more(), &format!("{}/consumers/g", self.chroot));
        assert!(wrongs.is_empty(), "{wrongs:#?}");
        self.assert_versions_were_known();
        let distinct: BTreeSet<_> = finished.into_iter().collect();
        all - distinct.len()
    }

    /// Whoever knows the version of an offset node is never refused for it.
    fn assert_versions_were_known(&self) {
        let exchanges = self.proxy.exchanges();
        let refused = exchanges.iter().filter(|exchange| {
            commit().matches(&exchange.request) && exchange.error == Some(BAD_VERSION)
        });
        let refused = refused.count();
        assert!(
            refused <= self.wrong_versions,
            "{refused} commits with a wrong version"
        );
    }
}

/// The server's word for another version than the one that was named.
const BAD_VERSION: i32 = -103;

/// A fenced commit.
pub fn commit() -> Matcher {
    Matcher::of(&[Op::Multi])
        .with(&[Op::Check], "*/owners/*/*")
        .with(&[Op::SetData], "*/offsets/*/*")
}

/// A topic node's text.
pub fn partitions(count: i32) -> String {
    let each: Vec<String> = (0..count)
        .map(|number| format!("\"{number}\":[0]"))
        .collect();
    format!("{{\"version\":1,\"partitions\":{{{}}}}}", each.join(","))
}

/// Nobody but the members wrote, so that none of them can have met a foreign hand.
fn assert_nothing_foreign(member: &Ours) {
    for event in member.events() {
        let is_foreign = matches!(
            event,
            Event::RewindRepaired { .. } | Event::ForeignAdvance { .. } | Event::Repaired { .. }
        );
        assert!(!is_foreign, "{event}");
    }
}
