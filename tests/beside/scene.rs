//! A group whose members of ours have a process each and take down what they do: what happened is judged in the end (`src/check`).

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::PathBuf;

use evenkeel::Topic;
use evenkeel::TopicPartition;
use evenkeel::testing::check::Fact;
use evenkeel::testing::check::Verdict;
use evenkeel::testing::check::read_events;

use crate::play::CHILD;
use crate::play::STEADY_MS;
use crate::shares;
use crate::shares::Group;
use crate::shares::Owners;
use crate::stage::Stage;
use crate::support::CaseFile;
use crate::support::Journal;
use crate::support::JvmMember;
use crate::support::JvmMemberOptions;
use crate::support::LONG;
use crate::support::Sent;
use crate::support::Txn;
use crate::support::TxnLog;
use crate::support::Work;
use crate::support::Worker;
use crate::support::scratch;
use crate::support::until_some_or;
use crate::support::verify;

/// The only topic, which is called as the group is, and what is known of it.
pub struct Scene {
    pub stage: &'static Stage,
    /// The group and its topic.
    pub name: String,
    pub partitions: i32,
    /// Streams of each member.
    pub streams: u32,
    pub folder: PathBuf,
    pub members: Group,
    log: TxnLog,
    history: Vec<Txn>,
    clock: Journal,
    pub nemesis: Journal,
    producer: Journal,
    sent: BTreeMap<i32, i64>,
    starts: u32,
}

impl Scene {
    /// A topic without messages. `session_ms` is the session of those that are disturbed, for the judge.
    pub fn new(
        stage: &'static Stage,
        name: &str,
        partitions: i32,
        streams: u32,
        session_ms: u64,
    ) -> Self {
        let folder = scratch(name);
        // What the server writes lies where the judge looks for it.
        let log = stage.zookeeper.log_folder();
        std::os::unix::fs::symlink(log, folder.join("version-2")).expect("a fresh folder");
        CaseFile::new(name, session_ms, 100).write(&folder);
        let clock = Journal::create(&folder, "clock", 1);
        clock.clock();
        Self {
            stage,
            name: name.to_owned(),
            partitions,
            streams,
            members: Group::new(),
            log: TxnLog::of(&stage.zookeeper),
            history: Vec::new(),
            clock,
            nemesis: Journal::create(&folder, "nemesis", 1),
            producer: Journal::create(&folder, "producer", 1),
            sent: BTreeMap::new(),
            starts: 0,
            folder,
        }
    }

    /// A member of ours joins from a process of its own. `more` are further properties, which win over the scene's; `set_up` says what it
    /// shall do.
    pub fn ours_joins(
        &mut self,
        session_ms: u64,
        more: &str,
        set_up: impl FnOnce(&mut Work),
    ) -> Worker {
        let properties = format!(
            "zookeeper.connect={}\ngroup.id={}\nauto.offset.reset=smallest\nzookeeper.session.timeout.ms={session_ms}\n\
             zookeeper.connection.timeout.ms=30000\n{more}\n",
            self.stage.zookeeper.connect_string(),
            self.name
        );
        self.starts += 1;
        let mut work = Work::plain(self.folder.clone(), self.starts);
        set_up(&mut work);
        let worker = Worker::join(CHILD, &properties, &[(&self.name, self.streams)], &work);
        self.enter(worker.name());
        worker
    }

    /// A JVM member joins from a process of its own, under an id.
    pub fn jvm_joins(&mut self, release: &str, id: &str, options: JvmMemberOptions) -> JvmMember {
        let mut options = options.with_id(id);
        options
            .properties
            .entry("zookeeper.session.timeout.ms".to_owned())
            .or_insert(STEADY_MS.to_string());
        let zookeeper = self.stage.zookeeper.connect_string();
        let topics = [(self.name.as_str(), self.streams)];
        let jvm = JvmMember::start(release, &zookeeper, &self.name, &topics, options);
        self.enter(format!("{}_{id}", self.name));
        jvm
    }

    fn enter(&mut self, member: String) {
        let topics = BTreeMap::from([(self.name.clone(), self.streams)]);
        assert!(self.members.insert(member, topics).is_none());
    }

    /// A member is gone.
    pub fn leaves(&mut self, member: &str) {
        self.members.remove(member).expect("it was there");
    }

    /// Who should own what by the range rule.
    pub fn model(&self) -> Owners {
        let topics = BTreeMap::from([(self.name.clone(), self.partitions)]);
        shares::range(&self.members, &topics)
    }

    /// The partitions that a member should own.
    pub fn share(&self, member: &str) -> BTreeSet<i32> {
        let model = self.model().into_iter();
        model
            .filter(|(_, owner)| member_of(owner) == member)
            .map(|((_, partition), _)| partition)
            .collect()
    }

    /// The owner nodes.
    pub fn owners(&self) -> Owners {
        let owners = self.stage.tree.owners(&self.name, &self.name).into_iter();
        owners
            .map(|(partition, text)| ((self.name.clone(), partition), text))
            .collect()
    }

    /// The stored offsets.
    pub fn offsets(&self) -> BTreeMap<i32, i64> {
        self.stage.tree.offsets(&self.name, &self.name)
    }

    /// Waits until everything is owned as the range rule says, and only by those who are there.
    #[track_caller]
    pub fn settle(&self) {
        let model = self.model();
        let names: BTreeSet<&str> = self.members.keys().map(String::as_str).collect();
        let look = || {
            let there = self.stage.tree.members(&self.name);
            let there: BTreeSet<&str> = there.iter().map(String::as_str).collect();
            (there == names && self.owners() == model).then_some(())
        };
        until_some_or(LONG, look, || {
            format!("{names:?} share as {model:?} and not {:?}", self.owners())
        });
    }

    /// Messages went to the broker: they must all be finished in the end.
    pub fn note_sent(&mut self, sent: &[Sent]) {
        for message in sent {
            let end = self.sent.entry(message.partition).or_default();
            if message.offset < *end {
                continue;
            }
            assert_eq!(message.offset, *end, "nothing was sent twice");
            *end += 1;
            self.producer.note(Fact::Sent {
                partition: at(&self.name, message.partition),
                offset: message.offset,
            });
        }
    }

    /// How many messages each partition has got.
    pub fn ends(&self) -> &BTreeMap<i32, i64> {
        &self.sent
    }

    /// What the members of ours have taken down so far, each in its order.
    pub fn events(&self) -> Vec<evenkeel::testing::check::Event> {
        let mut events = Vec::new();
        for entry in std::fs::read_dir(&self.folder).expect("our folder") {
            let path = entry.expect("our folder").path();
            if path.extension().is_some_and(|ext| ext == "jsonl") {
                let file = std::fs::File::open(&path).expect("an event log");
                let file = std::io::BufReader::new(file);
                events.extend(read_events(file).expect("an event log that can be read"));
            }
        }
        events
    }

    /// The server's transaction log up to now.
    pub fn history(&mut self) -> Vec<Txn> {
        self.history.extend(self.log.more());
        self.history.clone()
    }

    /// Everybody had time enough to share and to finish: what comes now is the leaving.
    pub fn settled(&self) {
        self.clock.clock();
        self.clock.note(Fact::Settled);
    }

    /// Judges all that happened.
    ///
    /// # Panics
    ///
    /// When something was not right.
    pub fn judge(&self) -> Verdict {
        self.clock.clock();
        let verdict = verify(&self.folder).expect("a folder that can be judged");
        assert!(verdict.is_good(), "{}: {verdict}", self.name);
        verdict
    }
}

/// The member of an owner text.
pub fn member_of(owner: &str) -> &str {
    owner.rsplit_once('-').expect("a stream's number").0
}

/// A partition of a topic.
pub fn at(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(Topic::new(topic).expect("a good name"), partition)
}

/// The partition of a path `/consumers/GROUP/KIND/GROUP/PARTITION`.
pub fn number(path: &str, group: &str, kind: &str) -> Option<i32> {
    let prefix = format!("/consumers/{group}/{kind}/{group}/");
    path.strip_prefix(&prefix)?.parse().ok()
}
