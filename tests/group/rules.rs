//! What is no matter of speed but of the rule: which nodes a join touches, and how much is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::registry::{
    Connection, Dialect, Fault, Later, MultiFault, Op, Registry, Reply, Stat, Watch,
};
use evenkeel::testing::{Fate, Kind, Latency, MemoryRegistry, Request};
use evenkeel::{Error, Event};
use tokio::time::Instant;

use crate::kit::{GROUP, Kit, Member, T, range_of, until};

const PARTITIONS: i32 = 240;

/// Every request, when it left, in its order.
type Asked = Arc<Mutex<Vec<(Instant, Request)>>>;

fn kit() -> (Kit, Asked) {
    let asked = Asked::default();
    let seen = asked.clone();
    let registry = MemoryRegistry::new()
        .with_tick(Duration::from_millis(500))
        .with_latency(Latency::fixed(Duration::from_millis(1)))
        .with_fate(move |request| {
            let entry = (Instant::now(), request.clone());
            seen.lock().unwrap().push(entry);
            Fate::Deliver
        });
    (Kit::on(registry), asked)
}

async fn eight(kit: &Kit) -> Vec<Member> {
    let members: Vec<Member> = (0..8)
        .map(|host| kit.join(&format!("h{host}"), &[("t", 1)]))
        .collect();
    let all: Vec<&Member> = members.iter().collect();
    until("eight share", || {
        kit.owners("t") == range_of(&all, PARTITIONS)
    })
    .await;
    for member in &members {
        member.settled().await;
    }
    members
}

/// What a member asked for between two looks at the clock, by what it is about.
struct Account {
    /// Reads and their instants, without those that keep the lease.
    reads: Vec<(Instant, Request)>,
    /// Transactions that write.
    writes: usize,
}

impl Account {
    fn of(session: i64, asked: &Asked) -> Self {
        let asked = asked.lock().unwrap();
        let its = asked
            .iter()
            .filter(|(_, request)| request.session == session);
        let (writes, reads): (Vec<_>, Vec<_>) = its.cloned().partition(|(_, r)| r.is_write());
        let is_proof = |r: &Request| r.ops.iter().all(|op| matches!(op, Op::Check { .. }));
        Self {
            reads,
            writes: writes.iter().filter(|(_, r)| !is_proof(r)).count(),
        }
    }

    fn about<'a>(&'a self, kind: Kind, below: &'a str) -> impl Iterator<Item = Instant> + 'a {
        let reads = self.reads.iter();
        reads
            .filter(move |(_, r)| r.kind == kind && r.path.starts_with(below))
            .map(|(at, _)| *at)
    }

    /// At how many moments something was asked for: what is pipelined leaves at one.
    fn moments(&self, kind: Kind, below: &str) -> usize {
        self.about(kind, below).collect::<BTreeSet<_>>().len()
    }
}

fn sessions(members: &[Member]) -> Vec<i64> {
    members.iter().map(Member::session).collect()
}

/// The partitions of each owner that were somebody else's before, by who had them.
fn gains<'a>(
    before: &'a BTreeMap<i32, String>,
    after: &'a BTreeMap<i32, String>,
    stream: &str,
) -> BTreeMap<&'a str, usize> {
    let mut from = BTreeMap::new();
    for (partition, owner) in after {
        let former = before[partition].as_str();
        if owner == stream && former != stream {
            *from.entry(former).or_default() += 1;
        }
    }
    from
}

#[tokio::test(start_paused = true)]
async fn a_ninth_member_moves_what_the_rule_moves_and_asks_for_no_more_than_its_due() {
    // W8, I17
    let (kit, asked) = kit();
    kit.create("t", PARTITIONS);
    let mut members = eight(&kit).await;
    let before = kit.owners("t");
    asked.lock().unwrap().clear();
    let (zxid, began) = (kit.registry.zxid(), Instant::now());
    let counted = |session| {
        let kinds = [Kind::Data, Kind::Stat, Kind::Children, Kind::Create];
        let kinds = kinds
            .into_iter()
            .chain([Kind::Set, Kind::Delete, Kind::Multi]);
        kinds
            .map(|kind| kit.registry.requests(session, kind))
            .sum::<u64>()
    };
    let sums: Vec<u64> = sessions(&members).into_iter().map(counted).collect();
    members.push(kit.join("h8", &[("t", 1)]));
    let all: Vec<&Member> = members.iter().collect();
    until("nine share", || {
        kit.owners("t") == range_of(&all, PARTITIONS)
    })
    .await;
    for member in &members {
        member.settled().await;
    }
    // A round trip is 2 ms. However many partitions move, there are only so many round trips.
    assert!(
        began.elapsed() <= Duration::from_millis(40),
        "{:?}",
        began.elapsed()
    );

    let after = kit.owners("t");
    let moved = (0..PARTITIONS).filter(|partition| before[partition] != after[partition]);
    let moved: BTreeSet<String> = moved.map(|p| Kit::owner_path("t", p)).collect();
    let owners = format!("/consumers/{GROUP}/owners/t/");
    let touched = kit.writes_below(&owners, zxid).into_iter();
    let touched: BTreeSet<String> = touched.map(|write| write.path).collect();
    assert_eq!(
        touched, moved,
        "exactly what the rule gives to somebody else"
    );

    for (place, member) in members.iter().enumerate() {
        let account = Account::of(member.session(), &asked);
        let is_new = place == 8;
        let gains = gains(&before, &after, &format!("{}-0", member.name));
        let gained: usize = gains.values().sum();
        // Ours and those of all others are new to the newcomer, and so is the topic; to the others only the newcomer is.
        let (changed_members, changed_topics) = if is_new { (9, 1) } else { (1, 0) };
        // Whatever moves was held by another when it was first looked at. Seeing it go takes a watch on its owner node, a
        // watch is armed by a read and tells once: one more for each than a free partition needs (hazards W8).
        let blocked = gained;
        // A newcomer looks whether the parent of its registration is there.
        let parent = usize::from(is_new);
        let due = 2 + changed_members + changed_topics + 2 * gained + blocked + parent;
        assert!(
            account.reads.len() <= due,
            "{}: {} reads, {due} are its due",
            member.name,
            account.reads.len()
        );
        // One batch gives up, one claims for each member that gave something up; the newcomer registers.
        let batches = gains.len() + 1;
        assert!(
            account.writes <= batches,
            "{}: {} batches of {batches}",
            member.name,
            account.writes
        );
        if !is_new {
            // The registry's own count, which has the proofs and packets for the lease besides.
            let sum = counted(member.session()) - sums[place];
            assert!(sum <= (due + batches + 2) as u64, "{}: {sum}", member.name);
        }

        let ids = format!("/consumers/{GROUP}/ids/");
        assert!(account.moments(Kind::Data, &ids) <= 1, "members at once");
        // Watched when found taken, and once more after each batch of claims.
        let waves = gains.len();
        assert!(account.moments(Kind::Data, &owners) <= 1 + waves);
        let offsets = format!("/consumers/{GROUP}/offsets/t/");
        assert!(account.moments(Kind::Data, &offsets) <= waves);
    }
    let newcomer = Account::of(members[8].session(), &asked);
    assert_eq!(newcomer.about(Kind::Data, "/consumers/g/ids/").count(), 9);
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_nobody_held_is_had_for_two_reads() {
    // W8
    let (kit, asked) = kit();
    kit.create("t", 1);
    let member = kit.join("h1", &[("t", 1), ("u", 1)]);
    until("it has what there is", || member.owned().len() == 1).await;
    asked.lock().unwrap().clear();
    kit.create("u", PARTITIONS);
    let gained = PARTITIONS as usize;
    until("it has all", || member.owned().len() == gained + 1).await;
    member.settled().await;
    let account = Account::of(member.session(), &asked);
    // The topic, the list of its owners, and for each its offset and the watch on its owner node.
    let due = 2 + 1 + 2 * gained;
    assert!(
        account.reads.len() <= due,
        "{} reads, {due} are its due",
        account.reads.len()
    );
    let ids = format!("/consumers/{GROUP}/ids");
    assert_eq!(account.about(Kind::Data, &ids).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_goes_between_the_list_and_its_reading_counts_as_gone() {
    // W5
    let kit = Kit::new();
    kit.create("t", 4);
    let stranger = kit.stranger().await;
    stranger.register_for("g_a", "t", 1).await;
    let (hand, id) = (kit.registry.clone(), Kit::id_path("g_a"));
    let mut is_first = true;
    let _ = kit.registry.clone().with_fate(move |request| {
        if request.kind == Kind::Data && request.path == id && std::mem::take(&mut is_first) {
            hand.delete(&id);
        }
        Fate::Deliver
    });
    let member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    assert_eq!(kit.owners("t"), range_of(&[&member], 4));
    assert_eq!(member.connector().health().members, 1);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_that_the_servers_cut_is_told_and_the_lease_is_half_of_what_they_grant() {
    // S10
    let kit = Kit::new();
    kit.create("t", 1);
    let mut config = kit.config();
    config.session_timeout = Duration::from_secs(60);
    let mut member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    let told = member
        .tells("the cut", |event| {
            matches!(event, Event::TimeoutClamped { .. })
        })
        .await;
    let (asked, granted) = (Duration::from_secs(60), Duration::from_secs(10));
    assert_eq!(told, Event::TimeoutClamped { asked, granted });
    member.settled().await;
    let left = member.connector().health().lease_left.unwrap();
    assert!(left <= granted / 2, "{left:?}");
    kit.registry.cut(member.session());
    let began = Instant::now();
    until("the lease lapses", || {
        member.connector().health().lease_left == Some(Duration::ZERO)
    })
    .await;
    assert!(began.elapsed() <= granted / 2, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_it_lives_and_proves_nothing_is_given_up() {
    // S16
    let mut kit = Kit::new();
    kit.create("t", 2);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    let first = member.session();
    let _ = kit.registry.clone().with_fate(move |request| {
        let is_proof = request.ops.iter().all(|op| matches!(op, Op::Check { .. }));
        if request.session == first && request.kind == Kind::Multi && is_proof {
            Fate::Refuse(Fault::Refused("not today".to_owned()))
        } else {
            Fate::Deliver
        }
    });
    let began = Instant::now();
    member
        .tells(
            "that it gives the session up",
            |event| matches!(event, Event::SessionLost { session } if *session == first),
        )
        .await;
    assert!(began.elapsed() <= T * 4, "{:?}", began.elapsed());
    until("it has another", || {
        let session = member.connector().health().session;
        session.is_some_and(|session| session != first)
    })
    .await;
    member.settled().await;
    kit.send("t", 2);
    kit.drain().await;
}

/// A session whose watch on the members never tells.
struct Deaf(Arc<dyn Connection>);

impl Connection for Deaf {
    fn session_id(&self) -> i64 {
        self.0.session_id()
    }
    fn session_timeout(&self) -> Duration {
        self.0.session_timeout()
    }
    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        self.0.data(path)
    }
    fn data_and_watch(&self, path: &str) -> Reply<(Vec<u8>, Stat, Watch)> {
        self.0.data_and_watch(path)
    }
    fn stat(&self, path: &str) -> Reply<Option<Stat>> {
        self.0.stat(path)
    }
    fn stat_and_watch(&self, path: &str) -> Reply<(Option<Stat>, Watch)> {
        self.0.stat_and_watch(path)
    }
    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)> {
        self.0.children(path)
    }
    fn children_and_watch(&self, path: &str) -> Reply<(Vec<String>, Stat, Watch)> {
        let answer = self.0.children(path);
        Box::pin(async move {
            let (names, stat) = answer.await?;
            let never: Watch = Box::pin(std::future::pending());
            Ok((names, stat, never))
        })
    }
    fn create(&self, path: &str, data: &[u8], ephemeral: bool) -> Reply<()> {
        self.0.create(path, data, ephemeral)
    }
    fn set(&self, path: &str, data: &[u8], version: Option<i32>) -> Reply<Stat> {
        self.0.set(path, data, version)
    }
    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()> {
        self.0.delete(path, version)
    }
    fn multi(&self, ops: Vec<Op>) -> Later<Result<Vec<Option<Stat>>, MultiFault>> {
        self.0.multi(ops)
    }
    fn ended(&self) -> Later<()> {
        self.0.ended()
    }
    fn close(&self) -> Later<()> {
        self.0.close()
    }
}

struct DeafRegistry(MemoryRegistry);

impl Registry for DeafRegistry {
    fn open(&self, dialect: Dialect) -> Later<Result<Arc<dyn Connection>, Error>> {
        let opening = self.0.open(dialect);
        Box::pin(async move {
            let deaf: Arc<dyn Connection> = Arc::new(Deaf(opening.await?));
            Ok(deaf)
        })
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_that_no_watch_tells_of_is_found_by_the_self_check() {
    // W10
    let mut kit = Kit::new();
    kit.create("t", 4);
    let config = kit.config();
    let check = config.registration_check_interval;
    let registry = kit.registry.clone().with_session_timeout(T);
    let builder = kit.builder("h1", config);
    let builder = builder.with_registry(Arc::new(DeafRegistry(registry)));
    let mut deaf = kit.join_with(builder, &[("t", 1)]);
    deaf.settled().await;
    let other = kit.join("h2", &[("t", 1)]);
    let began = Instant::now();
    let told = deaf
        .tells("what it found", |event| {
            matches!(event, Event::Repaired { .. })
        })
        .await;
    assert!(told.to_string().contains("without a watch"), "{told}");
    assert!(began.elapsed() <= check * 2, "{:?}", began.elapsed());
    until("they share", || {
        kit.owners("t") == range_of(&[&deaf, &other], 4)
    })
    .await;
    kit.send("t", 4);
    kit.drain().await;
}

/// How often something was asked for within a minute.
async fn in_a_minute(count: impl Fn() -> usize) -> usize {
    let before = count();
    tokio::time::sleep(Duration::from_secs(60)).await;
    count() - before
}

#[tokio::test(start_paused = true)]
async fn trouble_that_lasts_is_met_with_ever_longer_pauses() {
    // I17, S15
    let refused = || Fate::Refuse(Fault::Refused("not today".to_owned()));

    // A look that fails.
    let (kit, asked) = (Kit::new(), Arc::new(Mutex::new(0)));
    kit.create("t", 2);
    let counted = asked.clone();
    let _ = kit.registry.clone().with_fate(move |request| {
        *counted.lock().unwrap() += 1;
        if request.path == "/brokers/topics/t" {
            refused()
        } else {
            Fate::Deliver
        }
    });
    let member = kit.join("h1", &[("t", 1)]);
    let looks = in_a_minute(|| *asked.lock().unwrap()).await;
    assert!((50..=100).contains(&looks), "{looks}");
    assert!(member.owned().is_empty());

    // A release that fails.
    let (kit, asked) = (Kit::new(), Arc::new(Mutex::new(0)));
    kit.create("t", 2);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    let counted = asked.clone();
    let _ = kit.registry.clone().with_fate(move |request| {
        let is_delete = |op: &Op| matches!(op, Op::Delete { path, .. } if path.contains("owners"));
        if request.ops.iter().any(is_delete) {
            *counted.lock().unwrap() += 1;
            return refused();
        }
        Fate::Deliver
    });
    let connector = member.connector.take().unwrap();
    let leaving = connector.shutdown(Duration::from_secs(61));
    let (left, releases) = tokio::join!(leaving, in_a_minute(|| *asked.lock().unwrap()));
    assert_eq!(left.unwrap().forced.len(), 2);
    assert!((50..=75).contains(&releases), "{releases}");

    // A session that cannot be opened.
    let kit = Kit::new();
    kit.registry.refuse("nobody is there");
    let mut member = kit.join("h1", &[("t", 1)]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let told = member.told();
    let is_try = |event: &&Event| matches!(event, Event::ConnectFailed { .. });
    let tries = told.iter().filter(is_try).count();
    assert!((30..=65).contains(&tries), "{tries}");
}
