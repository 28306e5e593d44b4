//! The servers, and on them the same group twice: eight members in one process and a place for a ninth in another, ours and the JVM's.

use std::time::Duration;

use crate::ours::OurMembers;
use crate::support::{Beginning, History, Passage};
use crate::support::{
    Broker, BrokerOptions, Flow, JvmMember, JvmMemberOptions, Producer, ZooKeeper, ZooKeeperOptions,
};
use crate::{Wish, say};

/// The release of the broker and of the JVM's members.
pub const RELEASE: &str = "1.1.1";
/// The one topic of both groups.
pub const TOPIC: &str = "t";
/// Its partitions.
pub const PARTITIONS: i32 = 240;
/// Between two messages of a partition.
const PAUSE: Duration = Duration::from_millis(200);
/// Members that stay.
pub const STAYING: usize = 8;

/// Whose members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// This library's.
    Ours,
    /// The old consumer's.
    Jvm,
}

impl Side {
    /// Both, in the order of this round: each goes first every other time.
    pub fn both(round: usize) -> [Self; 2] {
        if round.is_multiple_of(2) {
            [Self::Ours, Self::Jvm]
        } else {
            [Self::Jvm, Self::Ours]
        }
    }
}

/// A process with members of one group.
pub enum Members {
    /// Ours.
    Ours(OurMembers),
    /// The JVM's.
    Jvm(JvmMember),
}

impl Members {
    /// Starts a process without members.
    pub fn start(side: Side, zookeeper: &ZooKeeper, group: &str, topic: &str) -> Self {
        let address = zookeeper.connect_string();
        match side {
            Side::Ours => Self::Ours(OurMembers::start(&address, group, topic)),
            Side::Jvm => Self::Jvm(JvmMember::start(
                RELEASE,
                &address,
                group,
                &[(topic, 1)],
                jvm_options(),
            )),
        }
    }

    /// One more member; its number in the process.
    pub fn join(&mut self, id: &str) -> usize {
        match self {
            Self::Ours(members) => members.join(id),
            Self::Jvm(members) => members.join(Some(id)),
        }
    }

    /// It leaves in order.
    pub fn leave(&mut self, member: usize) {
        match self {
            Self::Ours(members) => members.leave(member),
            Self::Jvm(members) => members.leave(member),
        }
    }

    /// The process dies.
    pub fn kill(self) {
        match self {
            Self::Ours(members) => members.kill(),
            Self::Jvm(members) => drop(members.kill()),
        }
    }

    /// Its id.
    pub fn process_id(&self) -> u32 {
        match self {
            Self::Ours(members) => members.process_id(),
            Self::Jvm(members) => members.process_id(),
        }
    }
}

/// A JVM as a service would run it: both compilers and the collector that Java itself picks.
pub fn jvm_options() -> JvmMemberOptions {
    let flags = [
        "-XX:TieredStopAtLevel=4",
        "-XX:-UseSerialGC",
        "-XX:+UseG1GC",
    ];
    JvmMemberOptions {
        members: 0,
        quiet: false,
        heap_mb: 512,
        flags: flags.map(str::to_owned).to_vec(),
        ..JvmMemberOptions::default()
    }
    // The tests' members have it lower; this is how it comes, and also ours.
    .with("fetch.wait.max.ms", "100")
}

/// The servers with ticks of two seconds, as they come.
pub fn servers(wish: &Wish) -> (ZooKeeper, Broker) {
    say(&format!(
        "starting ZooKeeper {} and broker {RELEASE}",
        wish.zookeeper
    ));
    let best = ["-XX:TieredStopAtLevel=4".to_owned()];
    // The tests' server neither writes through to the disk nor makes its log larger in advance, to be quick; this one does both.
    let flags = [
        "-Dzookeeper.forceSync=yes",
        "-Dzookeeper.preAllocSize=65536",
    ];
    let flags = flags.map(str::to_owned).into_iter().chain(best.clone());
    let options = ZooKeeperOptions {
        tick_ms: 2000,
        heap_mb: 512,
        flags: flags.collect(),
        ..ZooKeeperOptions::default()
    };
    let zookeeper = ZooKeeper::start_with(&wish.zookeeper, options);
    let options = BrokerOptions {
        heap_mb: 1024,
        lines: vec![format!("log.message.format.version={}", wish.format)],
        flags: best.to_vec(),
        ..BrokerOptions::default()
    };
    let broker = Broker::start_with(RELEASE, &zookeeper, options);
    (zookeeper, broker)
}

/// One group of eight that stay and the ninth's process.
pub struct Crew {
    /// The group's name.
    pub group: String,
    ninth: Members,
    _staying: Members,
}

/// Servers and both crews.
pub struct Stage {
    /// What the server tells.
    pub history: History,
    /// The server.
    pub zookeeper: ZooKeeper,
    ours: Crew,
    jvm: Crew,
    broker: Broker,
}

impl Stage {
    /// Starts everything, and lets a ninth member of each side come and go until it is warm.
    pub fn start(wish: &Wish, warming: usize) -> Self {
        let (zookeeper, broker) = servers(wish);
        broker.create_topic(TOPIC, PARTITIONS);
        let mut history = History::of(&zookeeper);
        let mut crew = |side, group: &str| Crew::start(side, group, &zookeeper, &mut history);
        let (ours, jvm) = (crew(Side::Ours, "ours"), crew(Side::Jvm, "jvm"));
        let mut stage = Self {
            history,
            zookeeper,
            ours,
            jvm,
            broker,
        };
        say(&format!("warming up with {warming} rounds"));
        for round in 0..warming {
            for side in Side::both(round) {
                stage.come_and_go(side, round);
            }
        }
        stage
    }

    /// From now on every partition gets a message again and again, until this is dropped.
    pub fn flow(&self) -> Flow {
        let flow = Producer::connect(&self.broker, TOPIC).flow(0..PARTITIONS, PAUSE);
        flow.await_more(0..PARTITIONS, 2);
        flow
    }

    /// The crew of a side.
    pub fn crew(&mut self, side: Side) -> &mut Crew {
        match side {
            Side::Ours => &mut self.ours,
            Side::Jvm => &mut self.jvm,
        }
    }

    /// The ninth joins; its number, and what the group went through.
    pub fn join(&mut self, side: Side, round: usize) -> (usize, Passage) {
        let crew = self.crew(side);
        let (number, group) = (crew.ninth.join(&ninth(round)), crew.group.clone());
        (number, self.follow(&group, Beginning::Join, STAYING + 1))
    }

    /// It leaves.
    pub fn leave(&mut self, side: Side, number: usize) -> Passage {
        let crew = self.crew(side);
        crew.ninth.leave(number);
        let group = crew.group.clone();
        self.follow(&group, Beginning::Leave, STAYING)
    }

    /// Both.
    pub fn come_and_go(&mut self, side: Side, round: usize) -> (Passage, Passage) {
        let (number, joined) = self.join(side, round);
        (joined, self.leave(side, number))
    }

    /// The ninth's process dies.
    pub fn kill(&mut self, side: Side) -> Passage {
        let group = self.crew(side).group.clone();
        let fresh = Members::start(side, &self.zookeeper, &group, TOPIC);
        std::mem::replace(&mut self.crew(side).ninth, fresh).kill();
        self.follow(&group, Beginning::Death, STAYING)
    }

    fn follow(&mut self, group: &str, beginning: Beginning, members: usize) -> Passage {
        self.history
            .follow(group, Some(beginning), members, PARTITIONS)
    }
}

/// Where the ninth sorts among the eight goes round: before all, between, behind all.
fn ninth(round: usize) -> String {
    format!("m{}5", round % (STAYING + 1))
}

impl Crew {
    fn start(side: Side, group: &str, zookeeper: &ZooKeeper, history: &mut History) -> Self {
        say(&format!("eight members of the group {group}"));
        let mut staying = Members::start(side, zookeeper, group, TOPIC);
        for number in 1..=STAYING {
            staying.join(&format!("m{number}0"));
        }
        history.follow(group, None, STAYING, PARTITIONS);
        let ninth = Members::start(side, zookeeper, group, TOPIC);
        Self {
            group: group.to_owned(),
            ninth,
            _staying: staying,
        }
    }
}
