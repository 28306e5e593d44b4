//! The servers of a test, the members on them, and what is awaited of these again and again.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::RwLockReadGuard;
use std::sync::RwLockWriteGuard;
use std::time::Duration;

use evenkeel::wire::encode_topic;

use super::Child;
use super::Delivery;
use super::Ensemble;
use super::EnsembleOptions;
use super::LONG;
use super::OwnLog;
use super::Tree;
use super::Txn;
use super::TxnLog;
use super::now;
use super::record;
use super::record::Window;
use super::until_some_or;

/// `tickTime` where nothing else is said.
pub const TICK: Duration = Duration::from_millis(200);

/// For so long a follower takes no notice of a leader that is away, where nothing else is said.
pub const BLIND: Duration = Duration::from_secs(2);

/// So many partitions has the topic.
pub const PARTITIONS: u32 = 6;

const LOG: OwnLog = OwnLog {
    partitions: PARTITIONS,
    messages: 30_000,
    pause_ms: 5,
};

/// An ensemble with a topic.
pub struct Stage {
    pub ensemble: Ensemble,
}

/// How a member joins.
#[derive(Clone, Copy)]
pub struct Manner {
    /// Its session timeout.
    pub timeout: Duration,
    /// How many streams it has. A stream reads one partition for long before it turns to another of its own.
    pub streams: u32,
    /// Whether it knows the server that it runs beside, and no other.
    pub is_bound: bool,
    /// Whether it commits, five times a second. If not, nothing but probes renews its lease.
    pub commits: bool,
}

impl Stage {
    /// Starts it.
    pub fn start(version: &str, tick: Duration, blind: Duration) -> Self {
        let ensemble = Ensemble::start(version, EnsembleOptions { tick, blind });
        let partitions = 0..i32::try_from(PARTITIONS).expect("few");
        let topic = String::from_utf8(encode_topic(partitions)).expect("JSON");
        ensemble.tree().make("/brokers/topics/t", &topic);
        Self { ensemble }
    }

    /// A member joins beside a server.
    pub fn join(&self, server: usize, manner: Manner) -> Child {
        let connect = match manner.is_bound {
            true => self.ensemble.server(server).connect_string(),
            false => self.ensemble.connect_string(),
        };
        let properties = format!(
            "zookeeper.connect={connect}\ngroup.id=g\nconsumer.id=s{server}\nauto.offset.reset=smallest\nauto.commit.interval.ms={}\n\
             zookeeper.session.timeout.ms={}\nzookeeper.connection.timeout.ms=10000\n",
            if manner.commits { 200 } else { 600_000 },
            manner.timeout.as_millis()
        );
        let test = "a_child_without_orders_does_nothing";
        let topics = [("t", manner.streams)];
        Child::join_in(
            self.ensemble.beside(server),
            test,
            &properties,
            &topics,
            LOG,
        )
    }

    /// A member joins beside each server; they share the partitions one a stream.
    pub fn join_everywhere(&self, timeout: Duration, is_bound: bool) -> Vec<Child> {
        let servers = self.ensemble.servers();
        let manner = Manner {
            timeout,
            streams: PARTITIONS / u32::try_from(servers.len()).expect("few"),
            is_bound,
            commits: true,
        };
        servers.map(|server| self.join(server, manner)).collect()
    }

    /// What the servers agreed on, in order.
    pub fn agreed(&self) -> Vec<Txn> {
        self.ensemble.agreed()
    }

    /// The last transaction so far.
    pub fn last(&self) -> i64 {
        self.agreed().last().expect("something happened").zxid
    }

    /// A reader of a server's transaction log that has read all there is, and what it read.
    pub fn log_of(&self, server: usize) -> (TxnLog, Vec<Txn>) {
        let mut log = TxnLog::of(self.ensemble.server(server));
        let txns = log.more();
        (log, txns)
    }

    /// Waits until the members share all partitions evenly, and each has been given messages since it was asked for.
    #[track_caller]
    pub fn settle(&self, tree: &Tree, members: &[&Child]) {
        let share = PARTITIONS as usize / members.len();
        let is_fair = |owners: &BTreeMap<i32, String>| {
            members.iter().all(|member| {
                let prefix = format!("{}-", member.name());
                let own = owners.values().filter(|owner| owner.starts_with(&prefix));
                own.count() == share
            })
        };
        tree.wait_for_owners("the members share evenly", "g", "t", is_fair);
        deliver(members);
    }
}

/// Waits until each member has been given a message since now.
#[track_caller]
pub fn deliver(members: &[&Child]) {
    let start = now();
    for member in members {
        let has_more = || member.last_delivery().filter(|last| last.at > start);
        until_some_or(LONG, has_more, || {
            format!(
                "messages for {}; {:#?}; {}",
                member.name(),
                member.events(),
                member.tail()
            )
        });
    }
}

/// Waits until a member was told of an event after this moment; gives when.
#[track_caller]
pub fn await_event(member: &Child, event: &str, after: u64) -> u64 {
    let look = || {
        let events = member.events().into_iter();
        let mut later = events.filter(|told| told.at > after && told.event == event);
        later.next().map(|told| told.at)
    };
    until_some_or(LONG, look, || {
        format!("{event} of {}; {:#?}", member.name(), member.events())
    })
}

/// The longest time without a message from this moment on.
pub fn longest_pause(member: &Child, from: u64) -> Duration {
    let mut last = from;
    let mut longest = 0;
    for delivery in member
        .deliveries()
        .iter()
        .filter(|delivery| delivery.at > from)
    {
        longest = longest.max(delivery.at - last);
        last = delivery.at;
    }
    Duration::from_nanos(longest)
}

/// Within an ownership nothing is skipped and nothing comes twice.
pub fn assert_contiguous(deliveries: &[Delivery]) {
    let mut next: BTreeMap<(i64, i32), i64> = BTreeMap::new();
    for delivery in deliveries {
        let place = (delivery.token, delivery.partition);
        if let Some(expected) = next.insert(place, delivery.offset + 1) {
            assert_eq!(delivery.offset, expected, "{delivery:?}");
        }
    }
}

/// The session in which a member is registered.
pub fn session(windows: &[Window], member: &Child) -> i64 {
    let name = member.name();
    record::session_of(windows, &name).unwrap_or_else(|| panic!("{name} is not registered"))
}

/// How long something took or is ahead, for printing; negative when it is behind.
pub fn ms(from: u64, to: u64) -> i64 {
    let nanos = i128::from(to) - i128::from(from);
    i64::try_from(nanos / 1_000_000).expect("a time of a test")
}

static QUIET: RwLock<()> = RwLock::new(());

/// Held by a test that may run beside others.
pub fn together() -> RwLockReadGuard<'static, ()> {
    QUIET.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a test that measures, and so wants the machine for itself.
pub fn in_quiet() -> RwLockWriteGuard<'static, ()> {
    QUIET.write().unwrap_or_else(PoisonError::into_inner)
}
