//! The public handle under whatever a program may do with it, in any order, against a small account of what must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel::testing::Kind;
use evenkeel::testing::check::Fact;
use evenkeel::{ErrorKind, Message, MessageStream, TopicPartition};
use proptest::prelude::*;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::kit::{Diary, Kit, Member, at, range_of, topic, until};

const PARTITIONS: i32 = 4;
const MEMBERS: usize = 3;

/// What the program, or the world around it, does. Places are taken modulo how many there are.
#[derive(Debug, Clone)]
enum Command {
    Send(i32),
    Take { member: usize, most: usize },
    Lend { member: usize, then: Then },
    Ack(usize),
    Forget(usize),
    Commit(usize),
    Join,
    Shutdown { member: usize, within: u64 },
    DropHandle(usize),
    Die(usize),
    Expire(usize),
    Cut(usize),
    Heal,
    DeleteOwner(i32),
    Wait(u64),
}

/// What becomes of a message that is lent.
#[derive(Debug, Clone, Copy)]
enum Then {
    Done,
    Undone,
    /// It is done when the next is asked for.
    Kept,
}

fn command() -> impl Strategy<Value = Command> {
    let member = 0..MEMBERS;
    let then = prop_oneof![Just(Then::Done), Just(Then::Undone), Just(Then::Kept)];
    prop_oneof![
        6 => (0..PARTITIONS).prop_map(Command::Send),
        6 => (member.clone(), 1..4usize).prop_map(|(member, most)| Command::Take { member, most }),
        4 => (member.clone(), then).prop_map(|(member, then)| Command::Lend { member, then }),
        8 => any::<usize>().prop_map(Command::Ack),
        1 => any::<usize>().prop_map(Command::Forget),
        3 => member.clone().prop_map(Command::Commit),
        3 => Just(Command::Join),
        1 => (member.clone(), 0..4000u64).prop_map(|(member, within)| Command::Shutdown { member, within }),
        1 => member.clone().prop_map(Command::DropHandle),
        1 => member.clone().prop_map(Command::Die),
        1 => member.clone().prop_map(Command::Expire),
        1 => member.prop_map(Command::Cut),
        2 => Just(Command::Heal),
        1 => (0..PARTITIONS).prop_map(Command::DeleteOwner),
        6 => (0..3000u64).prop_map(Command::Wait),
    ]
}

type Place = (TopicPartition, i64);

/// A member, its stream, and what was lent by it and will be done when the next is asked for.
struct Reader {
    name: Arc<str>,
    member: Member,
    stream: MessageStream,
    lent: Option<(Place, i64)>,
}

struct World {
    kit: Kit,
    readers: Vec<Reader>,
    /// Messages in the program's hands, with the member they came from.
    held: Vec<(Arc<str>, Message)>,
    /// What was marked done by one who owned the partition at that moment.
    done: BTreeSet<Place>,
    diaries: Vec<Diary>,
    /// Sessions that are cut off, whose they are, and since when.
    cut: Vec<(i64, Arc<str>, u64)>,
    /// Members whose handle was dropped.
    dropped: Vec<JoinHandle<()>>,
}

impl World {
    fn new() -> Self {
        let kit = Kit::new();
        kit.create("t", PARTITIONS);
        Self {
            kit,
            readers: Vec::new(),
            held: Vec::new(),
            done: BTreeSet::new(),
            diaries: Vec::new(),
            cut: Vec::new(),
            dropped: Vec::new(),
        }
    }

    fn join(&mut self) {
        let diary = Diary::default();
        let host = format!("h{}", self.diaries.len());
        let mut config = self.kit.config();
        config.auto_commit_interval = Duration::from_millis(700);
        let builder = self.kit.builder(&host, config);
        let builder = builder.with_listener(std::sync::Arc::new(diary.clone()));
        let (member, mut streams) = self.kit.join_unread(builder, &[("t", 1)]);
        let stream = streams.remove(&topic("t")).unwrap().remove(0);
        self.diaries.push(diary);
        let name: Arc<str> = member.name.as_str().into();
        self.kit.book.note_as(&name, Fact::Other("reads".into()));
        self.readers.push(Reader {
            name,
            member,
            stream,
            lent: None,
        });
    }

    fn place(&self, member: usize) -> Option<usize> {
        member.checked_rem(self.readers.len())
    }

    /// Only the mark of one who owns the partition counts, by the owner node that stands there now.
    fn mark(&mut self, who: &Arc<str>, place: Place, token: i64) {
        self.kit.book.done(who, &place.0, token, place.1);
        let path = Kit::owner_path("t", place.0.partition);
        let owner = self.kit.registry.read(&path);
        if owner.is_some_and(|(_, stat)| stat.czxid == token) {
            self.done.insert(place);
        }
    }

    /// Asking is what marks the lent one done, whether or not a message comes.
    fn settle_lent(&mut self, place: usize) -> Arc<str> {
        let name = self.readers[place].name.clone();
        if let Some((lent, token)) = self.readers[place].lent.take() {
            self.mark(&name, lent, token);
        }
        name
    }

    async fn take(&mut self, member: usize, most: usize) {
        let Some(place) = self.place(member) else {
            return;
        };
        let name = self.settle_lent(place);
        let asked = self.readers[place].stream.recv_many(most);
        let got = timeout(Duration::from_millis(20), asked).await;
        for message in got.unwrap_or_default() {
            let (partition, token) = (message.topic_partition(), message.token());
            let offset = message.offset();
            self.kit.book.delivered(&name, partition, token, offset);
            self.held.push((name.clone(), message));
        }
    }

    async fn lend(&mut self, member: usize, then: Then) {
        let Some(place) = self.place(member) else {
            return;
        };
        let name = self.settle_lent(place);
        let book = self.kit.book.clone();
        let reader = &mut self.readers[place];
        let asked = timeout(Duration::from_millis(20), reader.stream.recv()).await;
        let Ok(Some(message)) = asked else { return };
        let place_of = (message.topic_partition().clone(), message.offset());
        let token = message.token();
        book.delivered(&name, &place_of.0, token, place_of.1);
        match then {
            Then::Undone => message.leave_undone(),
            Then::Kept => reader.lent = Some((place_of, token)),
            Then::Done => {
                self.mark(&name, place_of, token);
                self.readers[place].stream.done();
            }
        }
    }

    fn pick(&mut self, place: usize) -> Option<(Arc<str>, Message)> {
        let place = place.checked_rem(self.held.len())?;
        Some(self.held.swap_remove(place))
    }

    async fn commit(&mut self, member: usize) {
        let Some(place) = self.place(member) else {
            return;
        };
        let connector = self.readers[place].member.connector();
        let asked = timeout(Duration::from_secs(60), connector.commit()).await;
        let Err(error) = asked.expect("a commit is answered") else {
            return;
        };
        let kinds = [
            ErrorKind::NotOwned,
            ErrorKind::Timeout,
            ErrorKind::SessionLost,
        ];
        assert!(kinds.contains(&error.kind()), "{error:?}");
    }

    fn session(&self, member: usize) -> Option<i64> {
        let reader = &self.readers[self.place(member)?];
        reader.member.connector().health().session
    }

    fn heal(&mut self) {
        for (session, member, from) in self.cut.drain(..) {
            let to = self.kit.book.mono();
            let fact = Fact::Cut { member, from, to };
            self.kit.book.note("nemesis", fact);
            self.kit.registry.heal(session);
        }
    }

    async fn shutdown(&mut self, place: usize, within: Duration) {
        let mut reader = self.readers.swap_remove(place);
        let connector = reader.member.connector.take().unwrap();
        let left = timeout(within + Duration::from_secs(2), connector.shutdown(within)).await;
        left.expect("it leaves in time").unwrap();
        if let Some((lent, token)) = reader.lent.take() {
            self.mark(&reader.name, lent, token);
        }
        let rest = timeout(Duration::from_secs(1), reader.stream.recv()).await;
        assert!(rest.expect("the stream ends").is_none());
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Send(partition) => {
                self.kit.send_to("t", partition);
            }
            Command::Take { member, most } => self.take(member, most).await,
            Command::Lend { member, then } => self.lend(member, then).await,
            Command::Ack(place) => {
                if let Some((name, message)) = self.pick(place) {
                    let place = (message.topic_partition().clone(), message.offset());
                    self.mark(&name, place, message.token());
                    message.ack();
                }
            }
            Command::Forget(place) => drop(self.pick(place)),
            Command::Commit(member) => self.commit(member).await,
            Command::Join if self.readers.len() < MEMBERS => self.join(),
            Command::Join => {}
            Command::Shutdown { member, within } => {
                if let Some(place) = self.place(member) {
                    self.shutdown(place, Duration::from_millis(within)).await;
                }
            }
            Command::DropHandle(member) => {
                if let Some(place) = self.place(member) {
                    let reader = self.readers.swap_remove(place);
                    self.dropped.push(reader.member.drop_handle());
                }
            }
            Command::Die(member) => {
                if self.session(member).is_some() {
                    let place = self.place(member).unwrap();
                    let reader = self.readers.swap_remove(place);
                    reader.member.die(&self.kit.registry);
                }
            }
            Command::Expire(member) => {
                if let Some(session) = self.session(member) {
                    self.kit.expire(session);
                }
            }
            Command::Cut(member) => {
                if let Some(session) = self.session(member) {
                    let name = self.readers[self.place(member).unwrap()].name.clone();
                    self.kit.registry.cut(session);
                    self.cut.push((session, name, self.kit.book.mono()));
                }
            }
            Command::Heal => self.heal(),
            Command::DeleteOwner(partition) => {
                self.kit.registry.delete(&Kit::owner_path("t", partition));
            }
            Command::Wait(ms) => sleep(Duration::from_millis(ms)).await,
        }
    }

    /// What holds after every command.
    fn check(&self) {
        for partition in 0..PARTITIONS {
            let committed = self.kit.offset("t", partition);
            let committed: i64 = committed.map_or(0, |text| text.parse().unwrap());
            let is_done = |offset: &i64| self.done.contains(&(at("t", partition), *offset));
            let prefix = (0..).take_while(is_done).count() as i64;
            assert!(
                committed <= prefix,
                "t-{partition}: {committed} is committed, and only {prefix} are done"
            );
        }
        for reader in &self.readers {
            assert!(!reader.member.has_ended(), "{}", reader.member.name);
        }
        self.diaries.iter().for_each(assert_alternate);
    }

    /// Everybody goes, and one who comes after them finishes what is left.
    async fn end(mut self) {
        self.heal();
        self.held.clear();
        while !self.readers.is_empty() {
            self.shutdown(0, Duration::from_secs(10)).await;
            self.check();
        }
        for dropped in std::mem::take(&mut self.dropped) {
            let ended = timeout(Duration::from_secs(2), dropped).await;
            ended.expect("it goes by itself").expect("without a panic");
        }
        let last = self.kit.join("last", &[("t", 1)]);
        let ends = |partition| {
            let (_, end) = self.kit.log.bounds(&at("t", partition)).unwrap();
            self.kit.offset("t", partition) == Some(end.to_string())
        };
        until("everything is committed", || (0..PARTITIONS).all(ends)).await;
        until("it owns everything", || {
            self.kit.owners("t") == range_of(&[&last], PARTITIONS)
        })
        .await;
        self.kit.book.note("world", Fact::Settled);
        last.leave().await;
        let finished = self.kit.finished.lock().unwrap().clone();
        let finished = finished.into_iter().map(|(p, offset, _)| (p, offset));
        let all: BTreeSet<Place> = finished.chain(self.done.iter().cloned()).collect();
        assert_eq!(all, self.kit.sent, "what is committed was done by somebody");
        crate::storms::assert_good(&self.kit, 0);
    }
}

/// For one partition a listener hears that it is claimed, then that it is released or lost, and so on. What could not be
/// given up in order after all is lost in the end.
fn assert_alternate(diary: &Diary) {
    let mut last: BTreeMap<String, &str> = BTreeMap::new();
    for (call, partitions) in diary.calls() {
        for partition in partitions {
            let before = last.insert(partition.clone(), call);
            let may_come = match call {
                "after_claim" => before != Some("after_claim"),
                "before_release" => before == Some("after_claim"),
                _ => matches!(before, Some("after_claim" | "before_release")),
            };
            assert!(may_come, "{partition}: {before:?}, then {call}");
        }
    }
}

fn play(commands: Vec<Command>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut world = World::new();
        world.join();
        for command in commands {
            world.obey(command).await;
            world.check();
        }
        world.end().await;
    });
}

#[test]
fn whatever_a_program_does_with_its_handle_nothing_undone_is_committed_and_nothing_is_lost() {
    // I3, I4, I11, O6, R6, R7
    let cases = std::env::var("EVENKEEL_PLAYS")
        .ok()
        .and_then(|text| text.parse().ok());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: cases.unwrap_or(40),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let commands = proptest::collection::vec(command(), 1..80);
    let played = runner.run(&commands, |commands| {
        play(commands);
        Ok(())
    });
    played.unwrap();
}

/// Real time, and a real thread of the member's own.
#[test]
fn a_program_that_blocks_its_own_thread_keeps_its_share() {
    // R5
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let kit = Kit::new();
    kit.create("t", PARTITIONS);
    let mut config = kit.config();
    config.session_timeout = Duration::from_secs(1);
    config.registration_check_interval = Duration::from_secs(10);
    let timeout = config.session_timeout;
    let builder = kit.builder("h1", config);
    let connector = runtime.block_on(async {
        let connector = builder.connect().await.unwrap();
        let _streams = connector.streams([(topic("t"), 1)]).await.unwrap();
        connector.settled().await.unwrap();
        connector
    });
    let session = connector.health().session.unwrap();
    let proofs = || kit.registry.requests(session, Kind::Multi);
    // The runtime stands still until its member has proved six times that it lives, once every quarter of the timeout.
    #[allow(clippy::disallowed_methods)] // the servers of this test go by the host's clock
    let (began, before) = (std::time::Instant::now(), proofs());
    while proofs() < before + 6 {
        std::thread::sleep(Duration::from_millis(1));
        assert!(began.elapsed() < Duration::from_secs(60), "{}", proofs());
    }
    assert!(began.elapsed() > timeout, "{:?}", began.elapsed());
    let health = connector.health();
    assert_eq!(health.session, Some(session));
    assert_eq!(health.held.len(), PARTITIONS as usize);
    assert!(health.is_ready(), "{health:?}");
    runtime
        .block_on(connector.shutdown(Duration::from_secs(10)))
        .unwrap();
    assert!(kit.members().is_empty());
}
