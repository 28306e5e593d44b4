//! Every kind of write, each with its request or its answer lost: one owner, the right offset, nothing doubled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel::Event;
use evenkeel::registry::Op;
use evenkeel::testing::{Act, Fate, Kind, MemoryRegistry, Request};
use tokio::time::sleep;

use crate::kit::{Kit, Member, range_of, until};

/// What is written, by what it touches.
#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Parent,
    Register,
    Stamp,
    OffsetNode,
    Claim,
    Start,
    Commit,
    Release,
    Unregister,
}

const ALL: [What; 9] = [
    What::Parent,
    What::Register,
    What::Stamp,
    What::OffsetNode,
    What::Claim,
    What::Start,
    What::Commit,
    What::Release,
    What::Unregister,
];

impl What {
    fn is(self, request: &Request) -> bool {
        let below = |dir: &str| {
            request.path.starts_with(dir) || request.ops.iter().any(|op| op.path().starts_with(dir))
        };
        let any = |fits: &dyn Fn(&Op) -> bool| request.ops.iter().any(fits);
        let creates =
            |dir: &str| any(&|op| matches!(op, Op::Create { path, .. } if path.starts_with(dir)));
        let deletes = any(&|op| matches!(op, Op::Delete { .. }));
        let is_fenced = any(
            &|op| matches!(op, Op::Check { path, .. } if path.starts_with("/consumers/g/owners/t/")),
        );
        let sets = |is_start: bool| {
            any(
                &|op| matches!(op, Op::Set { path, data, .. } if path.starts_with("/consumers/g/offsets/t/") && (data == b"0") == is_start),
            )
        };
        if !request.is_write() {
            return false;
        }
        match self {
            Self::Parent => request.kind == Kind::Create && request.path == "/consumers/g/ids",
            Self::Register => creates("/consumers/g/ids/"),
            Self::Stamp => request.kind == Kind::Set && below("/consumers/g/ids/"),
            Self::Claim => creates("/consumers/g/owners/t/"),
            Self::OffsetNode => creates("/consumers/g/offsets/t/"),
            Self::Start => is_fenced && sets(true),
            Self::Commit => is_fenced && sets(false),
            Self::Release => below("/consumers/g/owners/t/") && deletes,
            Self::Unregister => request.kind == Kind::Delete && below("/consumers/g/ids/"),
        }
    }
}

async fn try_with(version: u32, what: What, fate: Fate, is_session_lost: bool) {
    let words = format!("3.{version} {what:?} {fate:?} session lost: {is_session_lost}");
    let registry = MemoryRegistry::new()
        .with_version(3, version)
        .with_tick(Duration::from_millis(500));
    let mut kit = Kit::on(registry);
    kit.create("t", 6);
    let fired = Arc::new(AtomicBool::new(false));
    let (flag, ensemble) = (fired.clone(), kit.registry.clone());
    let (doomed_in, mut doomed) = tokio::sync::mpsc::unbounded_channel();
    let mut left = 2;
    let _ = kit.registry.clone().with_fate(move |request: &Request| {
        if left == 0 || !what.is(request) {
            return Fate::Deliver;
        }
        left -= 1;
        flag.store(true, Ordering::SeqCst);
        if is_session_lost && left == 1 {
            let _ = doomed_in.send(request.session);
        }
        fate.clone()
    });
    // Sessions that are to end do so while the outcome of that request is not known yet.
    let reaper = tokio::spawn(async move {
        while let Some(session) = doomed.recv().await {
            ensemble.expire(session);
        }
    });
    let mut config = kit.config();
    config.auto_commit_interval = Duration::from_millis(400);
    let mut a = kit.join_with(kit.builder("h1", config.clone()), &[("t", 1)]);
    a.settled().await;
    for _ in 0..3 {
        kit.send("t", 6);
        sleep(Duration::from_millis(500)).await;
    }
    let mut b = kit.join_with(kit.builder("h2", config.clone()), &[("t", 1)]);
    until(&words, || kit.owners("t") == range_of(&[&a, &b], 6)).await;
    kit.send("t", 6);
    kit.drain().await;
    assert_nothing_foreign(&mut a, &words);
    a.leave().await;
    until(&words, || kit.owners("t") == range_of(&[&b], 6)).await;
    kit.send("t", 6);
    kit.drain().await;
    b.settled().await;
    b.connector().commit().await.unwrap();
    assert_nothing_foreign(&mut b, &words);
    b.leave().await;
    for partition in 0..6 {
        assert_eq!(kit.offset("t", partition).as_deref(), Some("5"), "{words}");
    }
    assert!(kit.owners("t").is_empty(), "{words}");
    assert!(kit.members().is_empty(), "{words}");
    if !is_session_lost {
        assert_eq!(kit.duplicates(), 0, "{words}");
    }
    // On 3.5 and later the stamp goes with the create.
    let is_sent = version < 5 || what != What::Stamp;
    assert_eq!(fired.load(Ordering::SeqCst), is_sent, "{words}");
    assert_offsets_only_rise(&kit, &words);
    reaper.abort();
}

/// Nobody but the members wrote, so that none of them can have met a foreign hand.
fn assert_nothing_foreign(member: &mut Member, words: &str) {
    for event in member.told() {
        assert!(!is_foreign(&event), "{words}: {event}");
    }
}

fn is_foreign(event: &Event) -> bool {
    matches!(
        event,
        Event::RewindRepaired { .. } | Event::ForeignAdvance { .. } | Event::Repaired { .. }
    )
}

/// I3.
fn assert_offsets_only_rise(kit: &Kit, words: &str) {
    let mut last = std::collections::BTreeMap::new();
    for write in kit.registry.log() {
        let is_offset = write.path.starts_with("/consumers/g/offsets/t/");
        if !is_offset || !matches!(write.act, Act::Create | Act::Set) {
            continue;
        }
        let text = String::from_utf8(write.data.unwrap()).unwrap();
        let offset: i64 = text.parse().unwrap();
        let before = last.insert(write.path.clone(), offset);
        assert!(
            before.is_none_or(|before| before <= offset),
            "{words}: {} {before:?} {offset}",
            write.path
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_outcome_is_unknown_is_settled_by_reading() {
    // A1, O3, A7, A15, N2, S6, S7
    for version in [9, 4] {
        for what in ALL {
            for fate in [
                Fate::LoseBefore,
                Fate::LoseAfter,
                Fate::BreakBefore,
                Fate::BreakAfter,
            ] {
                try_with(version, what, fate, false).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_while_a_write_is_under_way_leaves_nothing_wrong() {
    // A1, O3, S6, S7, r001, r020
    for version in [9, 4] {
        for what in ALL {
            for fate in [Fate::LoseBefore, Fate::LoseAfter, Fate::Deliver] {
                try_with(version, what, fate, true).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_outcome_nobody_could_tell_is_no_foreign_hand_later() {
    // O3
    let mut kit = Kit::on(MemoryRegistry::new());
    kit.create("t", 1);
    let is_bad = Arc::new(AtomicBool::new(false));
    let flag = is_bad.clone();
    // Commits are carried out and not answered, and the look at what came of them is lost as well.
    let _ = kit.registry.clone().with_fate(move |request: &Request| {
        if !flag.load(Ordering::SeqCst) || !request.concerns(&Kit::offset_path("t", 0)) {
            Fate::Deliver
        } else if request.is_write() {
            Fate::LoseAfter
        } else {
            Fate::LoseBefore
        }
    });
    let mut config = kit.config();
    config.auto_commit_interval = Duration::from_millis(400);
    let mut member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    member.settled().await;
    for is_bad_now in [false, true, true, false] {
        is_bad.store(is_bad_now, Ordering::SeqCst);
        kit.send("t", 1);
        sleep(Duration::from_secs(1)).await;
    }
    kit.drain().await;
    member.connector().commit().await.unwrap();
    let told = member.told();
    let has_failed = |event: &Event| matches!(event, Event::CommitFailed { .. });
    assert!(told.iter().any(has_failed), "{told:?}");
    let foreign = told.iter().find(|event| is_foreign(event));
    assert_eq!(foreign, None);
    assert_eq!(kit.offset("t", 0).as_deref(), Some("4"));
    // One that is foreign is told all the same.
    kit.registry.put(&Kit::offset_path("t", 0), "2");
    kit.send("t", 1);
    kit.drain().await;
    member.connector().commit().await.unwrap();
    assert!(member.told().iter().any(is_foreign));
}
