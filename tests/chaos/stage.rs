//! The servers of a run, what is sent, and the folder in which all evidence lies.

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use evenkeel::Topic;
use evenkeel::TopicPartition;
use evenkeel::testing::check::Fact;
use evenkeel::testing::check::Verdict;

use crate::crew::Slot;
use crate::faults::millis;
use crate::member::Orders;
use crate::support::Broker;
use crate::support::BrokerOptions;
use crate::support::CaseFile;
use crate::support::Flow;
use crate::support::Journal;
use crate::support::LONG;
use crate::support::Producer;
use crate::support::Tree;
use crate::support::ZooKeeper;
use crate::support::scratch;
use crate::support::verify;

pub const GROUP: &str = "chaos";
pub const TOPIC: &str = "chaos";
/// The servers' tick.
pub const TICK_MS: u64 = 100;
/// So long after the last fault the owners must be those of the rule, on a machine that has other things to do.
pub const CONVERGENCE: Duration = Duration::from_secs(15);

/// A server, a broker, a topic to which messages flow, and a folder.
pub struct Stage {
    pub zookeeper: Mutex<ZooKeeper>,
    pub broker: Broker,
    pub folder: PathBuf,
    timeout_ms: u64,
    pause: Duration,
    convergence: Option<Duration>,
    flows: Mutex<Vec<Flow>>,
    partitions: Mutex<i32>,
    is_over: Arc<AtomicBool>,
}

impl Stage {
    /// With so many partitions, each of which gets a message after each pause. When the faults are over, the group has so long to share; none,
    /// and it is only looked at in the end. The nodes of the dead may go so much sooner or later than they should.
    pub fn set(
        timeout_ms: u64,
        partitions: i32,
        pause_ms: u64,
        convergence: Option<Duration>,
        slack_ms: u64,
    ) -> Self {
        let zookeeper = ZooKeeper::start("3.9.5");
        let options = BrokerOptions {
            session_ms: 30_000,
            ..BrokerOptions::default()
        };
        let broker = Broker::start_with("1.1.1", &zookeeper, options);
        broker.create_topic(TOPIC, partitions);
        let folder = scratch("run");
        let case = CaseFile {
            convergence_ms: convergence
                .map(|time| u64::try_from(time.as_millis()).expect("a short time")),
            slack_ms,
            ..CaseFile::new(GROUP, timeout_ms, TICK_MS)
        };
        case.write(&folder);
        // What the server writes lies where the judge looks for it.
        std::os::unix::fs::symlink(zookeeper.log_folder(), folder.join("version-2"))
            .expect("a folder of our own");
        let clock = Journal::create(&folder, "clock", 1);
        clock.clock();
        let is_over = Arc::new(AtomicBool::new(false));
        let is_stopped = is_over.clone();
        // It ends with the stage.
        std::thread::spawn(move || {
            while !is_stopped.load(Ordering::SeqCst) {
                clock.clock();
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        let stage = Self {
            zookeeper: Mutex::new(zookeeper),
            broker,
            folder,
            timeout_ms,
            pause: millis(pause_ms),
            convergence,
            flows: Mutex::default(),
            partitions: Mutex::new(0),
            is_over,
        };
        stage.flow_to(partitions);
        stage
    }

    fn flow_to(&self, total: i32) {
        let mut partitions = self.partitions.lock().unwrap();
        let once = [("enable.idempotence", "true")];
        let producer = Producer::connect_with(&self.broker, TOPIC, &once);
        let flow = producer.flow(*partitions..total, self.pause);
        self.flows.lock().unwrap().push(flow);
        *partitions = total;
    }

    /// Raises the number of partitions.
    pub fn grow(&self, total: i32) {
        self.broker.add_partitions(TOPIC, total);
        self.flow_to(total);
    }

    /// An empty place in the group.
    pub fn slot(&self, number: usize, commit_ms: u64, hold_ms: u64) -> Slot {
        let orders = Orders {
            zookeeper: String::new(),
            bootstrap: self.broker.bootstrap(),
            group: GROUP.into(),
            topic: TOPIC.into(),
            id: String::new(),
            incarnation: 0,
            folder: self.folder.clone(),
            timeout_ms: self.timeout_ms,
            commit_ms,
            hold_ms,
        };
        Slot::new(number, self.zookeeper.lock().unwrap().port(), orders)
    }

    /// A look at the nodes.
    pub fn tree(&self) -> Tree {
        Tree::connect(&self.zookeeper.lock().unwrap())
    }

    /// Deletes one of a member's owner nodes, as an operator might. False if it has none.
    pub fn rob(&self, member: &str) -> bool {
        let tree = self.tree();
        let owners = tree.owners(GROUP, TOPIC);
        let own = owners
            .iter()
            .find(|(_, owner)| owner.starts_with(&format!("{member}-")));
        own.is_some_and(|(partition, _)| {
            tree.delete(&format!("/consumers/{GROUP}/owners/{TOPIC}/{partition}"))
        })
    }

    /// Ends the flow, takes down all that was sent, and waits until it is committed; then the group counts as settled, also if that took too
    /// long: the judge will say what is missing. Answers how long it took.
    pub fn settle(&self, nemesis: &Journal) -> Duration {
        let healed = Instant::now();
        nemesis.note(Fact::Healed);
        let due = healed + self.convergence.unwrap_or_default();
        let ends = self.end_flow();
        let tree = self.tree();
        while tree.offsets(GROUP, TOPIC) != ends && healed.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(50));
        }
        let took = healed.elapsed();
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        nemesis.note(Fact::Settled);
        took
    }

    /// Where each partition ends.
    fn end_flow(&self) -> BTreeMap<i32, i64> {
        let journal = Journal::create(&self.folder, "producer", 1);
        let topic = Topic::new(TOPIC).expect("a good name");
        let mut ends: BTreeMap<i32, i64> = BTreeMap::new();
        for flow in self.flows.lock().unwrap().drain(..) {
            for sent in flow.stop().finish() {
                let partition = TopicPartition::new(topic.clone(), sent.partition);
                let offset = sent.offset;
                journal.note_at(sent.at, Fact::Sent { partition, offset });
                let end = ends.entry(sent.partition).or_default();
                *end = (*end).max(offset + 1);
            }
        }
        ends
    }

    /// Judges what lies in the folder.
    ///
    /// # Panics
    ///
    /// When something of it cannot be read.
    pub fn judge(&self) -> Verdict {
        verify(&self.folder).unwrap_or_else(|error| panic!("{error}; {}", self.keep("unread")))
    }

    /// Copies the evidence to a place that lasts; says where.
    pub fn keep(&self, name: &str) -> String {
        let place = results().join(name);
        let _ = std::fs::remove_dir_all(&place);
        match copy(&self.folder, &place) {
            Ok(()) => format!("EVENKEEL_VERIFY={}", place.display()),
            Err(error) => format!("{} cannot be written: {error}", place.display()),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

/// Where reports, plans and evidence are put.
pub fn results() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target"));
    target.join("chaos")
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let path = entry?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            std::fs::copy(&path, &target)?;
        }
    }
    Ok(())
}
