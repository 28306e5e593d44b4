//! A long time without ZooKeeper, then without Kafka: what a member costs meanwhile, how much it says, and how soon it is back.
//!
//! `EVENKEEL_OUTAGE` says how many seconds each lasts, 30 where nothing is said, and `EVENKEEL_OUTAGE_SESSION` how many milliseconds
//! the session timeout is, 6000 where nothing is said.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::Duration;
use std::time::Instant;

use tracing::field::Field;
use tracing::field::Visit;
use tracing::span;

use crate::CHILD;
use crate::record::changed_after;
use crate::support::Broker;
use crate::support::BrokerOptions;
use crate::support::Child;
use crate::support::LONG;
use crate::support::Producer;
use crate::support::TxnLog;
use crate::support::ZooKeeper;
use crate::support::until;

const PARTITIONS: i32 = 4;

/// A member at work says no more in a minute of an outage, the libraries below it included.
const LINES_A_MINUTE: f64 = 60.0;

/// What a waiting member may take of one core.
const SHARE_OF_A_CORE: f64 = 0.05;

/// What it may grow by.
const GROWTH_KIB: i64 = 8 << 10;

/// So long after the server serves again messages flow.
const BACK: Duration = Duration::from_secs(5);

/// Sets a child of this binary up to write what is logged at `info` and above, by whomever, to standard error.
pub fn log_if_ordered() {
    if std::env::var_os("EVENKEEL_CHILD").is_some() {
        tracing::subscriber::set_global_default(Lines).expect("nobody set one before");
    }
}

struct Lines;

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= tracing::Level::INFO
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = format!(
            "{} {}:",
            event.metadata().level(),
            event.metadata().target()
        );
        event.record(&mut Words(&mut line));
        let _ = writeln!(std::io::stderr(), "{}", line.replace('\n', " "));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Words<'a>(&'a mut String);

impl Visit for Words<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!(" {field}={value:?}"));
    }
}

fn length() -> Duration {
    let asked = std::env::var("EVENKEEL_OUTAGE").ok();
    Duration::from_secs(asked.map_or(30, |text| text.parse().expect("a number of seconds")))
}

/// What a process has cost so far.
#[derive(Clone, Copy, Debug)]
struct Cost {
    cpu: Duration,
    rss_kib: i64,
    lines: usize,
}

impl Cost {
    fn of(child: &Child) -> Self {
        let read = |file: &str| {
            let path = format!("/proc/{}/{file}", child.process_id());
            std::fs::read_to_string(path).expect("it runs")
        };
        let stat = read("stat");
        // Behind the name, which may hold anything.
        let (_, stat) = stat.rsplit_once(')').expect("a name in brackets");
        let fields: Vec<u64> = stat
            .split_whitespace()
            .map(|f| f.parse().unwrap_or(0))
            .collect();
        let status = read("status");
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss = rss.and_then(|line| line.split_whitespace().next()?.parse().ok());
        Self {
            // utime and stime, in the hundredths of a second that Linux tells them in.
            cpu: Duration::from_millis(10 * (fields[11] + fields[12])),
            rss_kib: rss.expect("a size"),
            lines: child.log().lines().count(),
        }
    }
}

/// The time of an outage that begins with a deed, looked at from without. What it `says` is to be in the log.
fn endure(what: &str, says: &str, child: &Child, length: Duration, deed: impl FnOnce()) {
    // What comes at once, when a connection breaks, is no part of the steady state.
    let first = Duration::from_secs(5).min(length / 3);
    let before = Cost::of(child);
    deed();
    std::thread::sleep(first);
    let start = Cost::of(child);
    std::thread::sleep(length - first);
    let end = Cost::of(child);
    let minutes = (length - first).as_secs_f64() / 60.0;
    let rate = (end.lines - start.lines) as f64 / minutes;
    let share = (end.cpu - start.cpu).as_secs_f64() / (length - first).as_secs_f64();
    let growth = end.rss_kib - start.rss_kib;
    println!(
        "{what} for {length:?}: {} lines in the first {first:?}, then {rate:.1} lines a minute, {:.2} % of a core, {growth} KiB more of {} KiB",
        start.lines - before.lines,
        share * 100.0,
        end.rss_kib
    );
    let log = child.log();
    let said: Vec<&str> = log.lines().skip(before.lines).collect();
    assert!(said.iter().any(|line| line.contains(says)), "{said:#?}");
    assert!(start.lines - before.lines <= 60, "{said:#?}");
    assert!(rate <= LINES_A_MINUTE, "{said:#?}");
    assert!(share <= SHARE_OF_A_CORE, "{share} of a core");
    assert!(growth <= GROWTH_KIB, "{growth} KiB");
}

/// Waits until a message that was sent after this moment is finished; prints how long that took.
fn back(what: &str, child: &Child, served: Instant) -> Duration {
    let before = child.finished().len();
    until("messages flow again", LONG * 8, || {
        child.finished().len() > before + 20
    });
    let took = served.elapsed();
    println!("{what}: messages {took:?} after the server is back");
    took
}

#[test]
fn a_long_time_without_zookeeper_and_one_without_kafka_cost_little_and_lose_nothing() {
    // N3, N7, S15, K6
    let mut zookeeper = ZooKeeper::start("3.9.5");
    let mut broker = Broker::start_with(
        "1.1.1",
        &zookeeper,
        BrokerOptions {
            session_ms: 60_000,
            ..BrokerOptions::default()
        },
    );
    broker.create_topic("t", PARTITIONS);
    let properties = format!(
        "zookeeper.connect={}\ngroup.id=g\nauto.offset.reset=smallest\nauto.commit.interval.ms=1000\nzookeeper.session.timeout.ms={}\n",
        zookeeper.connect_string(),
        std::env::var("EVENKEEL_OUTAGE_SESSION").unwrap_or_else(|_| "6000".to_owned())
    );
    let child = Child::join(CHILD, &properties, &[("t", 1)]);
    let producer = Producer::connect_with(&broker, "t", &[("message.timeout.ms", "0")]);
    let flow = producer.flow(0..PARTITIONS, Duration::from_millis(50));
    until("messages flow", LONG, || child.finished().len() > 100);

    let lapse = "the lease lapsed, delivery pauses";
    endure("without ZooKeeper", lapse, &child, length(), || {
        zookeeper.stop();
    });
    zookeeper.restart();
    let took = back("without ZooKeeper", &child, Instant::now());
    assert!(took <= BACK, "{took:?}; {}", child.tail());

    let mut log = TxnLog::of(&zookeeper);
    let mut txns = log.more();
    let settled = txns.last().expect("something happened").zxid;
    endure("without Kafka", "no broker: ", &child, length(), || {
        broker.stop();
    });
    broker.restart();
    let took = back("without Kafka", &child, Instant::now());
    assert!(took <= BACK, "{took:?}; {}", child.tail());
    txns.extend(log.more());
    let changed = changed_after(&txns, settled);
    assert!(changed.is_empty(), "rebalanced: {changed:#?}");

    let sent = flow.stop().finish();
    until("everything sent is finished", LONG, || {
        let finished: BTreeSet<String> = child.finished().into_iter().map(|f| f.value).collect();
        sent.iter().all(|sent| finished.contains(&sent.value))
    });
    println!("{} messages, none lost", sent.len());
}
