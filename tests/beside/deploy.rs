//! A rolling deploy: each member of ours ends in order and is started anew, one after another, beside JVM members and with messages flowing.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::time::Duration;

use evenkeel::testing::check::Counts;
use evenkeel::testing::check::Fact;

use crate::ledger;
use crate::ledger::Place;
use crate::ledger::Window;
use crate::play::STEADY_MS;
use crate::play::assert_never_gave_up;
use crate::scene::Scene;
use crate::scene::member_of;
use crate::scene::number;
use crate::shares::Owners;
use crate::stage;
use crate::stage::Stage;
use crate::support::Change;
use crate::support::Finished;
use crate::support::JvmMember;
use crate::support::JvmMemberOptions;
use crate::support::LONG;
use crate::support::Producer;
use crate::support::Txn;
use crate::support::Worker;
use crate::support::everything;
use crate::support::now;
use crate::support::until;

/// How large the group is.
struct Size {
    ours: usize,
    jvms: usize,
    partitions: i32,
    /// Between two messages of a partition.
    pause: Duration,
}

/// I7, J4, r127
#[test]
fn a_rolling_deploy_beside_jvm_members_loses_and_doubles_nothing() {
    let _alone = stage::in_quiet();
    let size = if everything() {
        Size {
            ours: 8,
            jvms: 2,
            partitions: 240,
            pause: Duration::from_millis(200),
        }
    } else {
        Size {
            ours: 3,
            jvms: 1,
            partitions: 48,
            pause: Duration::from_millis(50),
        }
    };
    let stage = Stage::new();
    deploy(stage, "1.1.1", &size);
    stage.passed("1.1.1");
}

fn deploy(stage: &'static Stage, release: &str, size: &Size) {
    let name = format!("deploy-{release}");
    stage.broker.create_topic(&name, size.partitions);
    let mut scene = Scene::new(stage, &name, size.partitions, 1, STEADY_MS);
    let once = [("enable.idempotence", "true")];
    let producer = Producer::connect_with(&stage.broker, &name, &once);
    let flow = producer.flow(0..size.partitions, size.pause);
    let mut jvms = BTreeMap::new();
    for number in 0..size.jvms {
        let id = format!("jvm-{number}");
        let jvm = scene.jvm_joins(release, &id, JvmMemberOptions::default());
        jvms.insert(format!("{name}_{id}"), jvm);
    }
    let mut ours: VecDeque<Worker> = (0..size.ours)
        .map(|number| comes(&mut scene, format!("host-{number}")))
        .collect();
    scene.settle();

    let mut past = Vec::new();
    for prefix in ["", "new-"] {
        let mut steps = Steps::default();
        for number in 0..size.ours {
            // The owner nodes as they stand would not do: JVM members go on rebalancing for a while.
            let (before, from) = (scene.model(), now());
            let quiet = scene.history().len();
            let old = ours.pop_front().expect("as many as there were");
            let old_name = old.name();
            past.extend(old.leave());
            scene.leaves(&old_name);
            let new = comes(&mut scene, format!("{prefix}host-{number}"));
            scene.settle();
            let names = [old_name, new.name()];
            ours.push_back(new);
            steps.moved.push(moved(&before, &scene.model(), &names));
            let history = &scene.history()[quiet..];
            steps.gaps.extend(gaps(history, &name));
            steps.took_ms.push((now() - from) / 1_000_000);
        }
        steps.print(&name, prefix);
    }
    scene.note_sent(&flow.stop().finish());
    finish(scene, jvms, ours, past, size);
}

fn comes(scene: &mut Scene, host: String) -> Worker {
    scene.ours_joins(STEADY_MS, "", |work| work.host = Some(host))
}

/// What was seen of one round of restarts.
#[derive(Default)]
struct Steps {
    /// Partitions that had another owner after a restart than before it, and how many of them neither the one that ended nor the one that came
    /// in its place had.
    moved: Vec<(usize, usize)>,
    /// How long partitions had no owner, in milliseconds.
    gaps: Vec<i64>,
    took_ms: Vec<u64>,
}

impl Steps {
    fn print(&mut self, name: &str, prefix: &str) {
        let hosts = if prefix.is_empty() {
            "the same host names"
        } else {
            "new host names"
        };
        println!(
            "{name}, {hosts}: partitions moved at each step, and of them between others: {:?}; steps took {:?} ms; {} times without an owner: {}",
            self.moved,
            self.took_ms,
            self.gaps.len(),
            spread(&mut self.gaps)
        );
    }
}

fn spread(all: &mut [i64]) -> String {
    all.sort_unstable();
    let Some(last) = all.len().checked_sub(1) else {
        return "none".to_owned();
    };
    let at = |share: usize| all[last * share / 100];
    format!("p50 {} p99 {} max {} ms", at(50), at(99), all[last])
}

fn moved(before: &Owners, after: &Owners, names: &[String; 2]) -> (usize, usize) {
    let others = before
        .iter()
        .map(|(place, owner)| [member_of(owner), member_of(&after[place])])
        .filter(|[old, new]| old != new);
    let is_between = |two: &[&str; 2]| two.iter().all(|one| names.iter().all(|name| name != one));
    let all: Vec<_> = others.collect();
    (all.len(), all.iter().filter(|two| is_between(two)).count())
}

/// How long each owner node was missing that went and came again, in milliseconds of the server.
fn gaps(history: &[Txn], name: &str) -> Vec<i64> {
    let (mut gone, mut gaps) = (BTreeMap::new(), Vec::new());
    for txn in history {
        for change in &txn.changes {
            match change {
                Change::Deleted { path } => {
                    if let Some(partition) = number(path, name, "owners") {
                        gone.insert(partition, txn.time_ms);
                    }
                }
                Change::Created { path, .. } => {
                    let left = number(path, name, "owners").and_then(|one| gone.remove(&one));
                    gaps.extend(left.map(|left| txn.time_ms - left));
                }
                _ => {}
            }
        }
    }
    gaps
}

/// Waits until all is delivered, sees everybody leave, and checks what happened.
fn finish(
    mut scene: Scene,
    mut jvms: BTreeMap<String, JvmMember>,
    ours: VecDeque<Worker>,
    mut past: Vec<Finished>,
    size: &Size,
) {
    let name = scene.name.clone();
    until("everything is delivered", LONG, || {
        let mut last: BTreeMap<i32, i64> = BTreeMap::new();
        let by_ours = ours.iter().flat_map(Worker::finished);
        let by_ours = by_ours.map(|one| (one.partition, one.offset));
        let by_jvms = jvms.values().flat_map(JvmMember::messages);
        let by_jvms = by_jvms.map(|one| (one.partition, one.offset));
        for (partition, offset) in by_ours.chain(by_jvms) {
            let end = last.entry(partition).or_default();
            *end = (*end).max(offset + 1);
        }
        scene.ends().iter().all(|(p, end)| last.get(p) == Some(end))
    });
    for (who, jvm) in &mut jvms {
        assert!(jvm.is_running(), "{who} ended");
        assert_never_gave_up(jvm);
        assert_eq!(jvm.look(|seen| seen.count("failed")), 0, "{who}");
        assert!(!scene.share(who).is_empty(), "{who} has a share");
    }
    // Those shares are theirs now, as everything is as the rule says.
    scene.settle();
    scene.settled();
    for worker in ours {
        past.extend(worker.leave());
    }
    let jvms: BTreeMap<String, BTreeMap<i32, Vec<i64>>> = jvms
        .into_iter()
        .map(|(who, jvm)| {
            let mut offsets: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
            for message in jvm.shutdown().messages {
                let of = offsets.entry(message.partition).or_default();
                of.push(message.offset);
            }
            (who, offsets)
        })
        .collect();

    let history = scene.history();
    let windows = ledger::windows(&history, &name);
    let balance = Balance::of(&windows, &past, &jvms);
    let mut pauses = pauses(&scene, &history);
    println!(
        "{name}: {} sent, {} delivered by ours, {} by JVMs; doubled by a hand-over between ours: {}, by a JVM that went on after its last commit: {}, \
         by one that began before ours: {}; {} hand-overs between ours, from the last delivery to the next: {}",
        scene.ends().values().sum::<i64>(),
        past.len(),
        jvms.values()
            .flat_map(BTreeMap::values)
            .map(Vec::len)
            .sum::<usize>(),
        balance.by_ours,
        balance.late_by_jvm,
        balance.early_by_jvm,
        pauses.len(),
        spread(&mut pauses),
    );
    balance.assert_nothing_is_lost(scene.ends());
    assert_eq!(balance.by_ours, 0);
    let verdict = scene.judge();
    println!("{verdict}");
    // Each of ours and each that came in its place has had its share.
    let partitions = size.partitions.unsigned_abs() as usize;
    let lives = size.ours * 3;
    let shares = lives * (partitions / (size.ours + size.jvms));
    assert!(
        pauses.len() >= shares / 4,
        "{} hand-overs between ours",
        pauses.len()
    );
    let count = |number: usize| u64::try_from(number).expect("a count");
    let floors = Counts {
        registrations: count(lives),
        claims: count(shares),
        releases: count(shares),
        clean: count(shares / 2),
        others_claims: count(partitions / (size.ours + size.jvms)),
        others_commits: 1,
        deliveries: count(shares),
        dones: count(shares),
        commits: count(shares / 2),
        settled: 1,
        ..Counts::default()
    };
    verdict
        .require(&floors)
        .unwrap_or_else(|what| panic!("{what}"));
}

/// Who delivered what how often.
#[derive(Default)]
struct Balance {
    delivered: BTreeSet<(i32, i64)>,
    /// Deliveries by ours of what lay before the offset that they found when they claimed, or behind the one that they left.
    by_ours: usize,
    late_by_jvm: usize,
    early_by_jvm: usize,
}

impl Balance {
    fn of(
        windows: &BTreeMap<Place, Vec<Window>>,
        past: &[Finished],
        jvms: &BTreeMap<String, BTreeMap<i32, Vec<i64>>>,
    ) -> Self {
        let mut balance = Self::default();
        let by_ours = past.iter().map(|one| (one.partition, one.offset));
        balance.delivered.extend(by_ours);
        let mut due: i64 = 0;
        for ((_, partition), windows) in windows {
            for window in windows {
                if !jvms.contains_key(&window.member) {
                    due += window.to - window.from;
                }
            }
            for (who, offsets) in jvms {
                let offsets = offsets.get(partition).map_or(&[][..], Vec::as_slice);
                let delivered = offsets.iter().map(|offset| (*partition, *offset));
                balance.delivered.extend(delivered);
                let own = windows.iter().filter(|window| window.member == *who);
                balance.walk(own, offsets);
            }
        }
        balance.by_ours = past.len() - usize::try_from(due).expect("offsets rise");
        balance
    }

    /// Follows a JVM from one of its ownerships of a partition to the next: what it went on with after its last commit, what lies before the
    /// offset that it should have found, and then its due.
    fn walk<'a>(&mut self, windows: impl Iterator<Item = &'a Window>, offsets: &[i64]) {
        let (mut rest, mut left) = (offsets, None);
        for window in windows {
            if let Some(left) = left {
                let late = run(rest, left, window.from);
                self.late_by_jvm += late;
                rest = &rest[late..];
            }
            let early = rest.iter().take_while(|offset| **offset < window.from);
            let early = early.count();
            self.early_by_jvm += early;
            rest = &rest[early..];
            rest = &rest[run(rest, window.from, window.to)..];
            left = Some(window.to);
        }
        self.late_by_jvm += rest.len();
    }

    fn assert_nothing_is_lost(&self, ends: &BTreeMap<i32, i64>) {
        for (partition, end) in ends {
            let lost = (0..*end).find(|offset| !self.delivered.contains(&(*partition, *offset)));
            assert_eq!(lost, None, "lost of {partition}");
        }
    }
}

/// How many of these follow on each other from one offset to another.
fn run(offsets: &[i64], from: i64, to: i64) -> usize {
    let pairs = offsets.iter().zip(from..to);
    pairs
        .take_while(|(offset, expected)| **offset == *expected)
        .count()
}

/// From the last delivery of one of ours to the first of the next, where one of ours followed on another, in milliseconds.
fn pauses(scene: &Scene, history: &[Txn]) -> Vec<i64> {
    let mut seen: BTreeMap<(i32, i64), (u64, u64)> = BTreeMap::new();
    for event in scene.events() {
        if let Fact::Delivered {
            partition, token, ..
        } = event.fact
        {
            let key = (partition.partition, token);
            let times = seen.entry(key).or_insert((event.mono, event.mono));
            times.1 = event.mono;
        }
    }
    let mut owners: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
    for txn in history {
        for change in &txn.changes {
            if let Change::Created { path, .. } = change
                && let Some(partition) = number(path, &scene.name, "owners")
            {
                owners.entry(partition).or_default().push(txn.zxid);
            }
        }
    }
    let mut pauses = Vec::new();
    for (partition, tokens) in owners {
        for two in tokens.windows(2) {
            let at = |token| seen.get(&(partition, token));
            if let (Some((_, last)), Some((first, _))) = (at(two[0]), at(two[1])) {
                pauses.push(i64::try_from((first - last) / 1_000_000).expect("a short time"));
            }
        }
    }
    pauses
}
