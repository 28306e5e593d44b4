//! A member stands still for three session timeouts with its hands full, its rival takes over, and it comes back.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use evenkeel::testing::check::Fact;

use crate::scene::Scene;
use crate::scene::member_of;
use crate::stage;
use crate::stage::Stage;
use crate::support::Change;
use crate::support::JvmMember;
use crate::support::JvmMemberOptions;
use crate::support::LONG;
use crate::support::Producer;
use crate::support::Txn;
use crate::support::Worker;
use crate::support::jvm_versions;
use crate::support::now;
use crate::support::until;
use crate::support::until_some_or;

/// The session of the one that stands still.
const SESSION_MS: u64 = 4000;
/// So long it does.
const STILL_NS: u64 = 3 * SESSION_MS * 1_000_000;
const PARTITIONS: i32 = 8;
/// Each member has so many streams, and with them half the partitions.
const STREAMS: u32 = 2;
/// So many messages of each partition are there before the stop.
const BEFORE: u64 = 1500;
/// So many each stream of ours has taken by then.
const KEEP: usize = 1000;
/// So many messages of each partition come while it stands still, and again when it is back.
const MORE: u64 = 200;

/// The releases of which a member is a zombie or beside one.
fn releases() -> Vec<&'static str> {
    let mut releases = jvm_versions();
    releases.retain(|release| matches!(*release, "0.9.0.1" | "1.1.1"));
    releases
}

/// The other member, which stays.
enum Rival {
    Ours(Box<Worker>),
    Jvm(Box<JvmMember>),
}

impl Rival {
    fn commit(&mut self) {
        match self {
            Self::Ours(ours) => ours.commit().expect("it holds what it commits"),
            Self::Jvm(jvm) => jvm.commit(),
        }
    }

    /// What was delivered to it, as partitions and offsets.
    fn delivered(&self) -> BTreeSet<(i32, i64)> {
        match self {
            Self::Ours(ours) => {
                let finished = ours.finished().into_iter();
                finished.map(|one| (one.partition, one.offset)).collect()
            }
            Self::Jvm(jvm) => {
                let messages = jvm.messages().into_iter();
                messages.map(|one| (one.partition, one.offset)).collect()
            }
        }
    }

    fn leave(self) {
        match self {
            Self::Ours(ours) => drop(ours.leave()),
            Self::Jvm(jvm) => assert_eq!(jvm.shutdown().count("failed"), 0),
        }
    }
}

#[test]
fn a_member_stopped_past_its_session_beside_a_jvm_delivers_and_commits_nothing() {
    let _others = stage::together();
    for release in releases() {
        let stage = Stage::new();
        let mut scene = scene(stage, &format!("zombie-beside-{release}"));
        let jvm = scene.jvm_joins(release, "a", JvmMemberOptions::default());
        ours_stands_still(scene, Rival::Jvm(Box::new(jvm)));
        stage.passed(release);
    }
}

#[test]
fn a_member_stopped_past_its_session_beside_one_of_ours_delivers_and_commits_nothing() {
    let _others = stage::together();
    let mut scene = scene(Stage::new(), "zombie-beside-ours");
    let ours = scene.ours_joins(crate::play::STEADY_MS, "consumer.id=a", |_| {});
    ours_stands_still(scene, Rival::Ours(Box::new(ours)));
}

fn scene(stage: &'static Stage, name: &str) -> Scene {
    stage.broker.create_topic(name, PARTITIONS);
    Scene::new(stage, name, PARTITIONS, STREAMS, SESSION_MS)
}

fn send(scene: &mut Scene, producer: &mut Producer, count: u64) {
    let sent = producer.produce(0..PARTITIONS, count);
    scene.note_sent(&sent);
}

/// Only to be used once a time has to pass for its own sake.
fn until_moment(what: &str, moment: u64) {
    until(what, LONG, || now() >= moment);
}

fn ours_stands_still(mut scene: Scene, mut rival: Rival) {
    let mut producer = Producer::connect_with(
        &scene.stage.broker,
        &scene.name,
        &[("enable.idempotence", "true")],
    );
    let more = "consumer.id=z\nkafka.debug=msg\nauto.commit.interval.ms=3600000";
    let mut zombie = scene.ours_joins(SESSION_MS, more, |work| work.keep = Some(KEEP));
    let name = zombie.name();
    scene.settle();
    let share = scene.share(&name);
    assert_eq!(share.len(), 4, "half of all");
    send(&mut scene, &mut producer, BEFORE);
    let all = BEFORE * share.len() as u64;
    let held = until_some_or(
        LONG,
        || Some(zombie.figures()).filter(|held| held.fetched >= all && held.handed == 2000),
        || format!("{all} messages fetched and 2000 handed out"),
    );
    assert_eq!((held.fetched, held.acknowledged), (all, 1200));
    let registration = format!("/consumers/{}/ids/{name}", scene.name);
    let session = |scene: &Scene| {
        let (_, stat) = scene.stage.tree.node(&registration).expect("registered");
        stat.ephemeral_owner
    };
    let old = session(&scene);

    zombie.toil(STREAMS);
    // When it wakes up its streams ask before it can know anything: only the lease stands between them and the messages.
    zombie.put_last(true);
    let stopped = now();
    zombie.pause();
    // Read after the stop: what was done and is not committed now never will be by this session.
    let offsets = scene.offsets();
    for partition in &share {
        assert_eq!(offsets[partition], 0, "nothing but the start is committed");
    }
    // The first that it is asked when it wakes up.
    zombie.ask_to_commit();
    scene
        .stage
        .tree
        .wait_for_owners("the rival takes over", &scene.name, &scene.name, |owners| {
            owners.len() == 8 && owners.values().all(|owner| member_of(owner) != name)
        });
    send(&mut scene, &mut producer, MORE);
    let end = i64::try_from(BEFORE + MORE).expect("a count");
    let everything = |rival: &Rival, end: i64| {
        let delivered = rival.delivered();
        (0..PARTITIONS).all(|p| (0..end).all(|offset| delivered.contains(&(p, offset))))
    };
    until("the rival delivers everything anew", LONG, || {
        everything(&rival, end)
    });
    rival.commit();
    let committed = scene.offsets();
    assert!(committed.values().all(|offset| *offset == end));
    assert!(now() < stopped + STILL_NS, "all that while it stood still");
    until_moment("three sessions pass", stopped + STILL_NS);

    let woken = now();
    scene.nemesis.note(Fact::Stopped {
        member: name.as_str().into(),
        from: stopped,
        to: woken,
    });
    zombie.resume();
    until("its streams ask", LONG, || {
        zombie.figures().asking == u64::from(STREAMS)
    });
    zombie.put_last(false);
    until("it joins anew", LONG, || zombie.told("Joined").len() > 1);
    scene.settle();
    assert_ne!(session(&scene), old);
    send(&mut scene, &mut producer, MORE);
    let end = end + i64::try_from(MORE).expect("a count");
    // What it had in its hands was delivered again by the rival; this is what came after.
    until("everything is finished", LONG, || {
        let mut by_both = rival.delivered();
        let by_ours = zombie.finished().into_iter();
        by_both.extend(by_ours.map(|one| (one.partition, one.offset)));
        (0..PARTITIONS).all(|p| (0..end).all(|offset| by_both.contains(&(p, offset))))
    });
    let after = until_some_or(
        LONG,
        || Some(zombie.figures()).filter(|now| now.acknowledged == now.handed),
        || "everything that was handed out is acknowledged".to_owned(),
    );
    scene.settled();
    zombie.leave();
    rival.leave();

    let history = scene.history();
    let tokens = old_tokens(&history, &scene.name, old);
    let late = delivered_late(&scene, &name, &tokens, woken);
    let wrote = commits_of(&history, &scene.name, old);
    println!(
        "{}: stopped for {} ms with {} messages handed out, {} acknowledged and not committed, {} in its hands, {} in the client's queues; \
         awake: {late} delivered and {wrote} committed on the old ownership, {} acknowledgements dropped, {} delivered anew",
        scene.name,
        (woken - stopped) / 1_000_000,
        held.handed,
        held.acknowledged,
        held.handed - held.acknowledged,
        held.fetched - held.handed,
        after.late_acks,
        after.handed - held.handed,
    );
    assert_eq!(tokens.len(), share.len());
    assert_eq!((late, wrote), (0, 0));
    // The first half of what it kept may have been acknowledged before the member knew.
    assert!((400..=800).contains(&after.late_acks));
    let verdict = scene.judge();
    println!("{verdict}");
    assert!(verdict.counts.late_dones >= 400, "{verdict}");
}

/// The tokens of a session's owner nodes.
fn old_tokens(history: &[Txn], group: &str, session: i64) -> BTreeMap<i32, i64> {
    let mut tokens = BTreeMap::new();
    for txn in history.iter().filter(|txn| txn.session == session) {
        for change in &txn.changes {
            if let Change::Created { path, .. } = change
                && let Some(partition) = number(path, group, "owners")
            {
                tokens.insert(partition, txn.zxid);
            }
        }
    }
    tokens
}

/// How many messages a member was handed on these tokens from a moment on.
fn delivered_late(scene: &Scene, name: &str, tokens: &BTreeMap<i32, i64>, from: u64) -> usize {
    let events = scene.events().into_iter();
    let late = events.filter(|event| {
        let Fact::Delivered {
            partition, token, ..
        } = &event.fact
        else {
            return false;
        };
        let is_old = tokens.get(&partition.partition) == Some(token);
        &*event.member == name && is_old && event.mono >= from
    });
    late.count()
}

/// How many offsets a session has written of partitions that somebody else had claimed after it.
fn commits_of(history: &[Txn], group: &str, session: i64) -> usize {
    let (mut held, mut taken, mut wrote) = (BTreeSet::new(), BTreeSet::new(), 0);
    for txn in history {
        let is_its_own = txn.session == session;
        for change in &txn.changes {
            let (Change::Created { path, .. } | Change::Set { path, .. }) = change else {
                continue;
            };
            if let Some(partition) = number(path, group, "offsets") {
                wrote += usize::from(is_its_own && taken.contains(&partition));
            }
            // Setting an owner node is no claim.
            if let (Change::Created { .. }, Some(partition)) =
                (change, number(path, group, "owners"))
            {
                if is_its_own {
                    held.insert(partition);
                } else if held.contains(&partition) {
                    taken.insert(partition);
                }
            }
        }
    }
    assert_eq!(held, taken, "all that it held was claimed by somebody else");
    wrote
}

/// The partition of a path `/consumers/GROUP/KIND/GROUP/PARTITION`.
fn number(path: &str, group: &str, kind: &str) -> Option<i32> {
    let prefix = format!("/consumers/{group}/{kind}/{group}/");
    path.strip_prefix(&prefix)?.parse().ok()
}
