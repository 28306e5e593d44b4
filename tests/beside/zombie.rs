//! A member stands still for three session timeouts with its hands full, its rival takes over, and it comes back.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel::testing::check::Counts;
use evenkeel::testing::check::Fact;

use crate::play::STEADY_MS;
use crate::scene::Scene;
use crate::scene::member_of;
use crate::scene::number;
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
/// So long it does at least.
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
            Self::Ours(ours) => places(ours),
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

/// S1, O1, O7, r151
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

/// S1, O1, r151
#[test]
fn a_member_stopped_past_its_session_beside_one_of_ours_delivers_and_commits_nothing() {
    let _others = stage::together();
    let mut scene = scene(Stage::new(), "zombie-beside-ours");
    let ours = scene.ours_joins(STEADY_MS, "consumer.id=a", |_| {});
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
    let partitions = PARTITIONS.unsigned_abs() as u64;
    let floors = Counts {
        claims: partitions,
        releases: partitions / 2,
        expiries: partitions / 2,
        stops: 1,
        deliveries: 2000,
        dones: 2000,
        late_dones: 400,
        commits: partitions / 2,
        settled: 1,
        ..Counts::default()
    };
    verdict
        .require(&floors)
        .unwrap_or_else(|what| panic!("{what}"));
}

/// J1, O1
#[test]
fn a_jvm_stopped_past_its_session_goes_on_with_what_it_had_and_its_rewind_is_repaired() {
    let _others = stage::together();
    for release in releases() {
        let stage = Stage::new();
        jvm_stands_still(scene(stage, &format!("zombie-{release}")), release);
        stage.passed(release);
    }
}

/// So many messages of each partition a JVM has committed before it is stopped,
const COMMITTED: u64 = 50;
/// so many more its application has had,
const HAD: u64 = 400;
/// and so many more have come.
const COME: u64 = 400;

fn jvm_stands_still(mut scene: Scene, release: &str) {
    let mut producer = Producer::connect_with(
        &scene.stage.broker,
        &scene.name,
        &[("enable.idempotence", "true")],
    );
    // What is in hand holds up the giving up for some time, in which the JVM says what it has to say.
    let more = "consumer.id=z\nauto.commit.interval.ms=3600000";
    let mut ours = scene.ours_joins(STEADY_MS, more, |work| work.hold_ms = 300);
    // Its timer is due again while it stands still.
    let options = JvmMemberOptions::default()
        .with("zookeeper.session.timeout.ms", &SESSION_MS.to_string())
        .with("auto.commit.interval.ms", "10000");
    let mut jvm = scene.jvm_joins(release, "a", options);
    scene.settle();
    let name = format!("{}_a", scene.name);
    let share = scene.share(&name);
    send(&mut scene, &mut producer, COMMITTED);
    let committed = i64::try_from(COMMITTED).expect("a count");
    until("its timer commits", LONG, || {
        let offsets = scene.offsets();
        share.iter().all(|one| offsets.get(one) == Some(&committed))
    });
    send(&mut scene, &mut producer, HAD);
    let had = (COMMITTED + HAD) as usize * share.len();
    jvm.wait_for("it has had them", LONG, |seen| {
        let its = seen.messages.iter();
        let its = its.filter(|message| share.contains(&message.partition));
        (its.count() == had).then_some(())
    });
    jvm.pause_reading();
    send(&mut scene, &mut producer, COME);

    let stopped = now();
    jvm.pause();
    let offsets = scene.offsets();
    for partition in &share {
        assert_eq!(offsets[partition], committed, "the timer was not due yet");
    }
    jvm.ask_to_resume_reading();
    scene
        .stage
        .tree
        .wait_for_owners("ours takes over", &scene.name, &scene.name, |owners| {
            owners.len() == 8 && owners.values().all(|owner| member_of(owner) != name)
        });
    let end = i64::try_from(COMMITTED + HAD + COME).expect("a count");
    until("ours delivers what the JVM had not committed", LONG, || {
        let by_ours: BTreeSet<(i32, i64)> = places(&ours);
        let mut share = share.iter();
        share.all(|p| (committed..end).all(|offset| by_ours.contains(&(*p, offset))))
    });
    until("all of it is acknowledged", LONG, || {
        let figures = ours.figures();
        figures.handed == figures.acknowledged
    });
    ours.commit().expect("it holds what it commits");
    assert!(scene.offsets().values().all(|offset| *offset == end));
    until_moment("three sessions pass", stopped + STILL_NS);

    let before = jvm.messages().len();
    let quiet = scene.history().len();
    // With something new to commit, ours meets what the JVM has written when it gives a partition up.
    let flow = producer.flow(0..PARTITIONS, Duration::from_millis(10));
    flow.await_more(0..PARTITIONS, 10);
    let woken = now();
    jvm.resume();
    // It registers anew, ours gives up its share, and it claims that.
    let claims = |scene: &mut Scene| {
        let history = scene.history();
        let changes = history[quiet..].iter().flat_map(|txn| &txn.changes);
        let claims = changes.filter(|change| match change {
            Change::Created { path, .. } => number(path, &scene.name, "owners").is_some(),
            _ => false,
        });
        claims.count()
    };
    until("it claims anew", LONG, || claims(&mut scene) >= share.len());
    scene.settle();
    flow.await_more(0..PARTITIONS, 10);
    scene.note_sent(&flow.stop().finish());
    until("everything is delivered", LONG, || {
        let messages = jvm.messages().into_iter();
        let mut by_both = places(&ours);
        by_both.extend(messages.map(|one| (one.partition, one.offset)));
        let mut ends = scene.ends().iter();
        ends.all(|(p, end)| (0..*end).all(|offset| by_both.contains(&(*p, offset))))
    });
    scene.settled();

    let after = jvm.messages().split_off(before);
    let late = after.iter().filter(|message| message.offset < end).count();
    let foreign = foreign_commits(&scene.history(), &scene.name);
    let rewinds = foreign.iter().filter(|(from, to)| to < from).count();
    let repaired = ours.told("RewindRepaired").len();
    println!(
        "{}: stopped for {} ms with {} messages had and not committed; awake: {late} delivered on the old ownership, {} committed over ours, \
         {rewinds} of them back; {repaired} rewinds repaired, {} owner nodes lost",
        scene.name,
        (woken - stopped) / 1_000_000,
        HAD as usize * share.len(),
        foreign.len(),
        ours.told("Lost").len(),
    );
    assert!(late > 0, "it delivered nothing of what it had had");
    assert_eq!((rewinds, repaired), (share.len(), share.len()));
    ours.leave();
    assert_eq!(jvm.shutdown().count("failed"), 0);
    let verdict = scene.judge();
    println!("{verdict}");
    let partitions = PARTITIONS.unsigned_abs() as u64;
    let before = partitions * (COMMITTED + HAD + COME);
    let floors = Counts {
        claims: partitions * 3 / 2,
        releases: partitions,
        clean: partitions / 2,
        others_claims: partitions,
        others_commits: partitions / 2,
        // All of its own, and what the other had not committed.
        deliveries: before - partitions / 2 * COMMITTED,
        dones: before - partitions / 2 * COMMITTED,
        commits: partitions,
        settled: 1,
        ..Counts::default()
    };
    verdict
        .require(&floors)
        .unwrap_or_else(|what| panic!("{what}"));
}

fn places(ours: &Worker) -> BTreeSet<(i32, i64)> {
    let finished = ours.finished().into_iter();
    finished.map(|one| (one.partition, one.offset)).collect()
}

/// Offsets that were written by a session that did not own the partition, from what to what.
fn foreign_commits(history: &[Txn], group: &str) -> Vec<(i64, i64)> {
    let (mut owners, mut offsets, mut foreign) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for txn in history {
        for change in &txn.changes {
            match change {
                Change::Created { path, data, .. } | Change::Set { path, data, .. } => {
                    if let Some(partition) = number(path, group, "offsets") {
                        let text = String::from_utf8_lossy(data);
                        let to: i64 = text.parse().expect("an offset");
                        let from = offsets.insert(partition, to).unwrap_or(0);
                        let owner = owners.get(&partition).copied();
                        if owner.is_some_and(|owner| owner != txn.session) {
                            foreign.push((from, to));
                        }
                    } else if let Some(partition) = number(path, group, "owners")
                        && matches!(change, Change::Created { .. })
                    {
                        owners.insert(partition, txn.session);
                    }
                }
                Change::Deleted { path } => {
                    if let Some(partition) = number(path, group, "owners") {
                        owners.remove(&partition);
                    }
                }
                Change::Closed => owners.retain(|_, owner| *owner != txn.session),
                _ => {}
            }
        }
    }
    foreign
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
