//! A group on the stage: who comes, stays and goes, while messages flow to every partition.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel::Config;
use evenkeel::Event;

use crate::ledger;
use crate::ledger::Account;
use crate::ledger::Balance;
use crate::ledger::Place;
use crate::shares;
use crate::shares::Group;
use crate::shares::Owners;
use crate::stage::Stage;
use crate::support::Child;
use crate::support::Finished;
use crate::support::Flow;
use crate::support::JvmMember;
use crate::support::JvmMemberOptions;
use crate::support::JvmMessage;
use crate::support::LONG;
use crate::support::Ours;
use crate::support::Sent;
use crate::support::TxnLog;
use crate::support::config;
use crate::support::until_some;

/// So long lives the session of a member that is not meant to lose it, on a machine however busy.
pub const STEADY_MS: u64 = 20_000;
/// So long lives the session of one that will be killed.
pub const BRIEF_MS: u64 = 1500;
/// The name of the test in which a child finds itself.
pub const CHILD: &str = "a_child_without_orders_does_nothing";
/// So many messages of each of its partitions an owner has to deliver before the play goes on.
const PROGRESS: usize = 15;

/// Who owns what, of members with their streams and of topics with their partitions.
type Rule = Box<dyn Fn(&Group, &BTreeMap<String, i32>) -> Owners>;

enum Player {
    Ours(Box<Ours>),
    Child(Box<Child>),
    /// A connector of a process, by their numbers.
    Jvm(usize, usize),
}

/// One group and its topics.
pub struct Play {
    pub stage: &'static Stage,
    pub group: String,
    topics: BTreeMap<String, i32>,
    flows: BTreeMap<String, Flow>,
    sent: BTreeMap<Place, Vec<Sent>>,
    hold: Duration,
    log: TxnLog,
    rule: Rule,
    present: BTreeMap<String, Player>,
    subscriptions: Group,
    processes: Vec<Option<JvmMember>>,
    accounts: BTreeMap<String, Account>,
}

/// What a member of ours says that it owns.
fn owned(ours: &Ours) -> Owners {
    let owned = ours.connector().owned().into_iter();
    owned
        .map(|(of, stream)| {
            let place = (of.topic.as_str().to_owned(), of.partition);
            (place, stream.as_str().to_owned())
        })
        .collect()
}

impl Play {
    /// Topics with their partitions, and messages flow. Their names are those of no other play on this stage.
    pub fn new(stage: &'static Stage, group: &str, topics: &[(&str, i32)]) -> Self {
        Self::with_flow(stage, group, topics, Duration::from_millis(10))
    }

    /// The same with this pause between one message to each partition and the next.
    pub fn with_flow(
        stage: &'static Stage,
        group: &str,
        topics: &[(&str, i32)],
        pause: Duration,
    ) -> Self {
        let topics: BTreeMap<String, i32> = topics
            .iter()
            .map(|(topic, partitions)| ((*topic).to_owned(), *partitions))
            .collect();
        let flows = topics
            .iter()
            .map(|(topic, partitions)| (topic.clone(), stage.flow(topic, *partitions, pause)));
        Self {
            stage,
            group: group.to_owned(),
            flows: flows.collect(),
            topics,
            sent: BTreeMap::new(),
            hold: Duration::ZERO,
            log: TxnLog::of(&stage.zookeeper),
            rule: Box::new(shares::range),
            present: BTreeMap::new(),
            subscriptions: Group::new(),
            processes: Vec::new(),
            accounts: BTreeMap::new(),
        }
    }

    /// Shares by another rule than range.
    pub fn with_rule(
        mut self,
        rule: impl Fn(&Group, &BTreeMap<String, i32>) -> Owners + 'static,
    ) -> Self {
        self.rule = Box::new(rule);
        self
    }

    /// Members of ours that join from now on take so long over each message.
    pub fn with_slow_hands(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// Every topic with this many streams.
    pub fn all(&self, streams: u32) -> BTreeMap<String, u32> {
        let topics = self.topics.keys();
        topics.map(|topic| (topic.clone(), streams)).collect()
    }

    /// A process of old consumers that waits for [`Play::jvm_joins`].
    pub fn jvm_process(
        &mut self,
        release: &str,
        topics: &BTreeMap<String, u32>,
        options: JvmMemberOptions,
    ) -> usize {
        let mut options = JvmMemberOptions {
            members: 0,
            ..options
        };
        let steady = STEADY_MS.to_string();
        options
            .properties
            .entry("zookeeper.session.timeout.ms".to_owned())
            .or_insert(steady);
        let zookeeper = self.stage.zookeeper.connect_string();
        let topics = pairs(topics);
        let process = JvmMember::start_unready(release, &zookeeper, &self.group, &topics, options);
        self.processes.push(Some(process));
        self.processes.len() - 1
    }

    /// One more connector of a process joins, with these topics as the others shall see them. Gives its name.
    pub fn jvm_joins(
        &mut self,
        process: usize,
        id: Option<&str>,
        topics: &BTreeMap<String, u32>,
    ) -> String {
        let before: BTreeSet<String> = self.members();
        let jvm = self.processes[process].as_mut().expect("it is alive");
        let number = jvm.join(id);
        let mut new = self.members();
        new.retain(|name| !before.contains(name));
        assert_eq!(new.len(), 1, "one joined");
        let name = new.pop_first().expect("one joined");
        self.enter(name, Player::Jvm(process, number), topics)
    }

    /// A member of ours joins, set up by the test.
    pub fn ours_joins(
        &mut self,
        topics: &BTreeMap<String, u32>,
        set_up: impl FnOnce(&mut Config),
    ) -> String {
        let mut config = config(&self.stage.zookeeper, &self.group);
        config.session_timeout = Duration::from_millis(STEADY_MS);
        set_up(&mut config);
        let ours = Ours::join_with(config, &pairs(topics), self.hold);
        self.enter(ours.name(), Player::Ours(Box::new(ours)), topics)
    }

    /// A member of ours joins from a process of its own, with a short session.
    pub fn child_joins(&mut self, topics: &BTreeMap<String, u32>) -> String {
        let properties = format!(
            "zookeeper.connect={}\ngroup.id={}\nauto.offset.reset=smallest\nzookeeper.session.timeout.ms={BRIEF_MS}\n\
             zookeeper.connection.timeout.ms=30000\n",
            self.stage.zookeeper.connect_string(),
            self.group
        );
        let child = Child::join(CHILD, &properties, &pairs(topics));
        self.enter(child.name(), Player::Child(Box::new(child)), topics)
    }

    fn enter(&mut self, name: String, player: Player, topics: &BTreeMap<String, u32>) -> String {
        self.subscriptions.insert(name.clone(), topics.clone());
        assert!(self.present.insert(name.clone(), player).is_none());
        name
    }

    /// The names under `ids`.
    pub fn members(&self) -> BTreeSet<String> {
        self.stage.tree.members(&self.group).into_iter().collect()
    }

    /// The owner nodes.
    pub fn owners(&self) -> Owners {
        let topics = self.topics.keys().map(|topic| {
            let owners = self.stage.tree.owners(&self.group, topic).into_iter();
            owners.map(|(partition, text)| ((topic.clone(), partition), text))
        });
        topics.flatten().collect()
    }

    /// What the model says of those who are present.
    pub fn model(&self) -> Owners {
        (self.rule)(&self.subscriptions, &self.topics)
    }

    /// Waits until every partition is owned as the model says, ours are settled, and each owner delivers from each of its partitions.
    #[track_caller]
    pub fn settle(&self) {
        let model = self.await_shares();
        for (name, player) in &self.present {
            if let Player::Ours(ours) = player {
                let mut expected = model.clone();
                expected.retain(|_, owner| owner.starts_with(&format!("{name}-")));
                // The nodes stand before the member has read the answer to its claim.
                let knows_it = || (owned(ours) == expected).then_some(());
                self.patiently(&format!("{name} knows what is its own"), knows_it);
                ours.settle();
            }
        }
        self.await_progress(&model);
        let names: BTreeSet<String> = self.present.keys().cloned().collect();
        assert_eq!(self.members(), names);
    }

    fn await_shares(&self) -> Owners {
        let model = self.model();
        let mut owners = Owners::new();
        let look = || {
            owners = self.owners();
            (owners == model).then_some(())
        };
        let what = format!("shares as in the model: {model:#?}");
        self.patiently(&what, look);
        model
    }

    fn await_progress(&self, model: &Owners) {
        let seen: BTreeMap<&String, usize> = self
            .present
            .iter()
            .map(|(name, player)| (name, self.told(player, 0).len()))
            .collect();
        let look = || {
            let mut counts: BTreeMap<(&str, Place), usize> = BTreeMap::new();
            for (name, player) in &self.present {
                for message in self.told(player, seen[name]) {
                    let place = (message.topic, message.partition);
                    *counts.entry((name, place)).or_default() += 1;
                }
            }
            let late = model.iter().find(|(place, owner)| {
                let member = owner.rsplit_once('-').expect("a stream's number").0;
                let key = (member, (*place).clone());
                counts.get(&key).copied().unwrap_or_default() < PROGRESS
            });
            late.is_none().then_some(())
        };
        self.patiently("every owner delivers from every partition", look);
    }

    /// Waits for the JVMs' sake without looking too often.
    #[track_caller]
    fn patiently(&self, what: &str, mut look: impl FnMut() -> Option<()>) {
        until_some(what, LONG, || {
            let answer = look();
            if answer.is_none() {
                self.assert_calm();
                std::thread::sleep(Duration::from_millis(20));
            }
            answer
        });
    }

    /// What a member has told after so many messages.
    fn told(&self, player: &Player, after: usize) -> Vec<Finished> {
        match player {
            Player::Ours(ours) => ours.finished_after(after),
            Player::Child(child) => child.finished_after(after),
            Player::Jvm(process, number) => {
                let jvm = self.processes[*process].as_ref().expect("it is alive");
                let number = i64::try_from(*number).expect("a small number");
                jvm.look(|seen| {
                    let mine = seen.messages.iter().filter(|m| m.member == number);
                    mine.skip(after).map(plain).collect()
                })
            }
        }
    }

    /// No JVM has failed or given up, no member of ours has lost anything.
    fn assert_calm(&self) {
        for jvm in self.processes.iter().flatten() {
            let failed = jvm.look(|seen| {
                let failed = seen.events.iter().filter(|seen| seen["event"] == "failed");
                failed.cloned().collect::<Vec<_>>()
            });
            assert!(failed.is_empty(), "{failed:?}\n{}", jvm.log());
        }
    }

    fn assert_ours_calm(&self, name: &str, ours: &Ours) {
        let trouble = ours.events().into_iter().find(|event| {
            matches!(
                event,
                Event::SessionLost { .. }
                    | Event::Lost { .. }
                    | Event::OffsetMalformed { .. }
                    | Event::MemberMalformed { .. }
                    | Event::RewindRepaired { .. }
                    | Event::ForeignAdvance { .. }
                    | Event::CommitFailed { .. }
                    | Event::FilterBeyondUs { .. }
                    | Event::AssignmentRefused { .. }
                    | Event::Missed { .. }
                    | Event::Released {
                        is_forced: true,
                        ..
                    }
            )
        });
        assert!(trouble.is_none(), "{name}: {trouble:?}");
    }

    /// A member leaves in order.
    pub fn leaves(&mut self, name: &str) {
        let player = self.present.remove(name).expect("it is present");
        self.subscriptions.remove(name);
        let is_jvm = matches!(player, Player::Jvm(..));
        let delivered = match player {
            Player::Ours(ours) => {
                self.assert_ours_calm(name, &ours);
                let (farewell, finished) = ours.leave();
                assert!(farewell.forced.is_empty(), "{farewell:?}");
                finished
            }
            Player::Child(_) => panic!("a child can only be killed"),
            Player::Jvm(process, number) => {
                let jvm = self.processes[process].as_mut().expect("it is alive");
                // Only up to here: one that is shut down while it rebalances says that it gave up (0.8.2, L-80).
                assert_never_gave_up(jvm);
                jvm.leave(number);
                self.told(&player, 0)
            }
        };
        self.account(name, is_jvm, false, delivered);
    }

    /// A member's process is killed, with nobody else in it.
    pub fn dies(&mut self, name: &str) {
        let player = self.present.remove(name).expect("it is present");
        self.subscriptions.remove(name);
        let is_jvm = matches!(player, Player::Jvm(..));
        let delivered = match player {
            Player::Ours(_) => panic!("it would take the test along"),
            Player::Child(child) => child.kill(),
            Player::Jvm(process, _) => {
                let jvm = self.processes[process].take().expect("it is alive");
                assert_never_gave_up(&jvm);
                jvm.kill().messages.iter().map(plain).collect()
            }
        };
        self.account(name, is_jvm, true, delivered);
    }

    fn account(&mut self, name: &str, is_jvm: bool, was_killed: bool, delivered: Vec<Finished>) {
        let account = Account {
            is_jvm,
            was_killed,
            delivered,
        };
        assert!(self.accounts.insert(name.to_owned(), account).is_none());
    }

    /// A process without members ends in order.
    pub fn process_ends(&mut self, process: usize) {
        let jvm = self.processes[process].take().expect("it is alive");
        assert_eq!(jvm.shutdown().count("failed"), 0);
    }

    /// Every JVM of a process commits.
    pub fn commit(&mut self, process: usize) {
        let jvm = self.processes[process].as_mut().expect("it is alive");
        jvm.commit();
    }

    /// A member of ours commits.
    pub fn commit_ours(&self, name: &str) {
        match &self.present[name] {
            Player::Ours(ours) => ours.commit(),
            _ => panic!("{name} commits when it likes"),
        }
    }

    /// The messages stop, and everything is delivered. Gives how many there were.
    pub fn still(&mut self) -> usize {
        for (topic, flow) in std::mem::take(&mut self.flows) {
            for message in flow.stop().finish() {
                let place = (topic.clone(), message.partition);
                self.sent.entry(place).or_default().push(message);
            }
        }
        for ((topic, partition), sent) in &self.sent {
            let (first, end) = self.stage.broker.watermarks(topic, *partition);
            let count = i64::try_from(sent.len()).expect("a count");
            assert_eq!((first, end), (0, count), "{topic}-{partition}");
        }
        if !self.present.is_empty() {
            self.await_end();
        }
        self.sent.values().map(Vec::len).sum()
    }

    /// The messages stop if they have not yet, everything is delivered, everybody leaves, and all is checked.
    pub fn end(mut self) -> Balance {
        self.still();
        for name in self.members() {
            self.leaves(&name);
            self.await_shares();
        }
        for process in 0..self.processes.len() {
            if self.processes[process].is_some() {
                self.process_ends(process);
            }
        }
        let windows = ledger::windows(&self.log.more(), &self.group);
        let balance = ledger::check(&windows, &self.accounts, &self.sent);
        println!(
            "{}: {} sent, {} delivered by ours, {} by JVMs, {} again after a death, {} late by a JVM",
            self.group,
            balance.sent,
            balance.ours.values().sum::<usize>(),
            balance.jvms.values().sum::<usize>(),
            balance.after_death,
            balance.late_by_jvm
        );
        balance
    }

    /// Waits until the last message of each partition was delivered by one of those who are present.
    fn await_end(&self) {
        let look = || {
            let mut last: BTreeMap<Place, i64> = BTreeMap::new();
            for message in self
                .present
                .values()
                .flat_map(|player| self.told(player, 0))
            {
                let last = last.entry((message.topic, message.partition)).or_default();
                *last = message.offset.max(*last);
            }
            let is_over = |(place, sent): (&Place, &Vec<Sent>)| {
                last.get(place).copied() == sent.last().map(|message| message.offset)
            };
            self.sent.iter().all(is_over).then_some(())
        };
        self.patiently("everything sent is delivered", look);
    }
}

fn pairs(topics: &BTreeMap<String, u32>) -> Vec<(&str, u32)> {
    let topics = topics.iter();
    topics.map(|(name, n)| (name.as_str(), *n)).collect()
}

fn plain(message: &JvmMessage) -> Finished {
    Finished {
        topic: message.topic.clone(),
        partition: message.partition,
        offset: message.offset,
        value: message.value.clone().unwrap_or_default(),
    }
}

/// The words of the exception that ends a rebalance for good (L-87).
pub fn assert_never_gave_up(jvm: &JvmMember) {
    let log = jvm.log();
    for words in ["can't rebalance after", "ConsumerRebalanceFailedException"] {
        let line = log.lines().find(|line| line.contains(words));
        assert!(line.is_none(), "a JVM gave up: {line:?}");
    }
}
