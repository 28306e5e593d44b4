//! Offsets: what is written, when, by whom, and what is not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel::config::{MalformedOffset, Reset};
use evenkeel::event::ResetCause;
use evenkeel::registry::{Fault, Op};
use evenkeel::testing::{Act, Fate, Kind, MemoryRegistry, Request};
use evenkeel::{ErrorKind, Event};
use tokio::time::{Instant, sleep};

use crate::kit::{Diary, GROUP, Kit, at, next_owned, range_of, until};

#[tokio::test(start_paused = true)]
async fn the_start_position_is_committed_before_anything_is_delivered() {
    // O4, r098
    for policy in [Reset::Largest, Reset::Smallest] {
        let mut kit = Kit::slow(5, 5, 0);
        kit.create("t", 1);
        for _ in 0..7 {
            kit.send("t", 1);
        }
        let mut config = kit.config();
        config.auto_offset_reset = policy;
        let (mut member, mut streams) = kit.join_unread(kit.builder("h1", config), &[("t", 1)]);
        let told = member
            .tells("the reset", |event| {
                matches!(event, Event::OffsetReset { .. })
            })
            .await;
        let start = if policy == Reset::Largest { 7 } else { 0 };
        assert_eq!(
            told,
            Event::OffsetReset {
                partition: at("t", 0),
                token: kit.owner_token("t", 0),
                from: None,
                to: Some(start),
                cause: ResetCause::NoOffset
            }
        );
        kit.send("t", 1);
        let mut stream = streams.remove(&crate::kit::topic("t")).unwrap().remove(0);
        let message = next_owned(&mut stream).await;
        assert_eq!(message.offset(), start);
        assert_eq!(
            kit.offset("t", 0),
            Some(start.to_string()),
            "written before the first delivery"
        );
        // It dies with the message in hand: whoever follows begins at the same place.
        member.die(&kit.registry);
        drop(message);
        let next = kit.join("h2", &[("t", 1)]);
        next.settled().await;
        until("it is read again", || {
            kit.finished
                .lock()
                .unwrap()
                .iter()
                .any(|(_, offset, _)| *offset == start)
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_group_writes_no_offsets() {
    // r077, O15
    let mut kit = Kit::new();
    kit.create("t", 100);
    kit.send("t", 100);
    let mut config = kit.config();
    config.auto_commit_interval = Duration::from_millis(500);
    let member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    member.settled().await;
    kit.drain().await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(kit.offset("t", 99).as_deref(), Some("1"));
    let before = kit.registry.zxid();
    sleep(Duration::from_secs(120)).await;
    assert_eq!(kit.writes_below("/consumers", before), []);
}

#[tokio::test(start_paused = true)]
async fn what_concerns_thousands_of_partitions_goes_in_several_transactions() {
    // A14
    let mut kit = Kit::new();
    kit.create("t", 4000);
    let member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.send("t", 4000);
    kit.drain().await;
    let session = member.session();
    assert!(member.leave().await.forced.is_empty());
    let mut sizes: BTreeMap<i64, usize> = BTreeMap::new();
    for write in kit.registry.log() {
        if write.session == session {
            let size = write.path.len() + write.data.map_or(0, |data| data.len()) + 64;
            *sizes.entry(write.zxid).or_default() += size;
        }
    }
    let largest = sizes.into_values().max().unwrap();
    assert!((64 << 10..=256 << 10).contains(&largest), "{largest} bytes");
    assert!((0..4000).all(|partition| kit.offset("t", partition).as_deref() == Some("1")));
}

#[tokio::test(start_paused = true)]
async fn what_is_done_is_committed_by_the_timer_in_one_transaction() {
    // r080, O15
    let mut kit = Kit::new();
    kit.create("t", 10);
    let mut config = kit.config();
    config.auto_commit_interval = Duration::from_secs(5);
    let member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    member.settled().await;
    for _ in 0..3 {
        kit.send("t", 10);
    }
    let before = kit.registry.zxid();
    kit.drain().await;
    until("it is committed", || {
        kit.offset("t", 7).as_deref() == Some("3")
    })
    .await;
    let writes = kit.writes_below("/consumers/g/offsets", before);
    assert_eq!(writes.len(), 10);
    assert!(writes.iter().all(|write| write.zxid == writes[0].zxid));
    member.die(&kit.registry);
    let next = kit.join("h2", &[("t", 1)]);
    next.settled().await;
    kit.send("t", 10);
    kit.drain().await;
    assert_eq!(kit.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_auto_commit_nothing_is_written_but_starts_and_what_is_asked_for() {
    // r076, docs/moving.md
    let mut kit = Kit::new();
    kit.create("t", 4);
    let mut config = kit.config();
    config.auto_commit = false;
    config.auto_commit_interval = Duration::from_millis(100);
    let member = kit.join_with(kit.builder("h1", config.clone()), &[("t", 1)]);
    member.settled().await;
    kit.send("t", 4);
    kit.drain().await;
    sleep(Duration::from_secs(5)).await;
    let other = kit.join_with(kit.builder("h2", config), &[("t", 1)]);
    until("they share", || {
        kit.owners("t") == range_of(&[&member, &other], 4)
    })
    .await;
    member.settled().await;
    for partition in 0..4 {
        assert_eq!(kit.offset("t", partition).as_deref(), Some("0"));
    }
    until("the moved ones are read again", || kit.duplicates() == 2).await;
    member.connector().commit().await.unwrap();
    other.connector().commit().await.unwrap();
    for partition in 0..4 {
        assert_eq!(kit.offset("t", partition).as_deref(), Some("1"));
    }
    kit.send("t", 4);
    kit.drain().await;
    member.leave().await;
    other.leave().await;
    assert_eq!(
        kit.offset("t", 0).as_deref(),
        Some("1"),
        "leaving commits nothing either"
    );
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_commits_what_is_done_and_only_that() {
    // r074, r083, r094, r097, r088
    let mut kit = Kit::new();
    kit.create("t", 1);
    for _ in 0..10 {
        kit.send("t", 1);
    }
    let (member, mut streams) = kit.join_unread(kit.builder("h1", kit.config()), &[("t", 1)]);
    member.settled().await;
    let stream = &mut streams.get_mut(&crate::kit::topic("t")).unwrap()[0];
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(next_owned(stream).await);
    }
    for message in held.drain(..4) {
        message.ack();
    }
    let farewell = member.leave().await;
    assert_eq!(
        farewell.forced.len(),
        1,
        "two messages were in hand to the end"
    );
    assert_eq!(kit.offset("t", 0).as_deref(), Some("4"));
    drop(held);
    let next = kit.join("h2", &[("t", 1)]);
    next.settled().await;
    until("the rest is read", || {
        kit.finished.lock().unwrap().len() == 6
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_is_asked_for_covers_what_was_done_before_it_was_asked_for() {
    // R10
    let mut kit = Kit::slow(40, 40, 0);
    kit.create("t", 1);
    for _ in 0..2 {
        kit.send("t", 1);
    }
    let mut config = kit.config();
    config.auto_commit_interval = Duration::from_secs(10);
    let (member, mut streams) = kit.join_unread(kit.builder("h1", config), &[("t", 1)]);
    member.settled().await;
    let stream = &mut streams.get_mut(&crate::kit::topic("t")).unwrap()[0];
    let first = next_owned(stream).await;
    let second = next_owned(stream).await;
    first.ack();
    // The first commit is under way when the second message is done.
    let one = member.connector().commit();
    let two = async {
        sleep(Duration::from_millis(20)).await;
        second.ack();
        member.connector().commit().await.unwrap();
        assert_eq!(kit.offset("t", 0).as_deref(), Some("2"));
    };
    let (one, ()) = tokio::join!(one, two);
    one.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_member_that_was_cut_off_cannot_write_over_its_successor() {
    // r082, r022, r152, O1, I2, I3
    for is_healed_early in [true, false] {
        let mut kit = Kit::new();
        kit.create("t", 1);
        for _ in 0..5 {
            kit.send("t", 1);
        }
        let (old, mut streams) = kit.join_unread(kit.builder("h1", kit.config()), &[("t", 1)]);
        old.settled().await;
        let stream = &mut streams.get_mut(&crate::kit::topic("t")).unwrap()[0];
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(next_owned(stream).await);
        }
        let session = old.session();
        kit.registry.cut(session);
        // A commit is on its way and hangs in the network.
        held.remove(0).ack();
        let late = async {
            let _ = old.connector().commit().await;
        };
        let others = async {
            let next = kit.join("h2", &[("t", 1)]);
            until("the other has it", || next.owned().len() == 1).await;
            until("all is read", || kit.finished.lock().unwrap().len() == 5).await;
            next.connector().commit().await.unwrap();
            assert_eq!(kit.offset("t", 0).as_deref(), Some("5"));
            let before = kit.registry.zxid();
            for message in held.drain(..) {
                assert!(!message.is_valid(), "its lease is over");
                message.ack();
            }
            if is_healed_early {
                kit.registry.heal(session);
            }
            sleep(Duration::from_secs(30)).await;
            let offsets = kit.writes_below("/consumers/g/offsets", before);
            assert!(
                offsets.iter().all(|write| write.session != session),
                "{offsets:?}"
            );
            assert_eq!(kit.offset("t", 0).as_deref(), Some("5"));
        };
        tokio::join!(late, others);
    }
}

#[tokio::test(start_paused = true)]
async fn an_offset_that_somebody_set_back_is_written_again() {
    // hazards 2.4, I3
    let mut kit = Kit::new();
    kit.create("t", 1);
    for _ in 0..5 {
        kit.send("t", 1);
    }
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.drain().await;
    member.connector().commit().await.unwrap();
    member.told();
    kit.registry.put(&Kit::offset_path("t", 0), "2");
    kit.send("t", 1);
    kit.drain().await;
    member.connector().commit().await.unwrap();
    assert_eq!(kit.offset("t", 0).as_deref(), Some("6"));
    let told = member.told();
    assert!(
        told.contains(&Event::RewindRepaired {
            partition: at("t", 0),
            theirs: 2,
            ours: 6
        }),
        "{told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn however_many_offsets_somebody_else_wrote_one_commit_or_release_gets_over_them() {
    // O3, I3
    const PARTITIONS: i32 = 24;
    for is_leaving in [false, true] {
        let mut kit = Kit::new();
        kit.create("t", PARTITIONS);
        let mut config = kit.config();
        config.auto_commit_interval = Duration::from_secs(600);
        let mut member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
        member.settled().await;
        kit.send("t", PARTITIONS);
        kit.drain().await;
        for partition in 0..PARTITIONS {
            kit.registry.put(&Kit::offset_path("t", partition), "0");
        }
        let session = member.session();
        let before = kit.registry.requests(session, Kind::Multi);
        if is_leaving {
            let connector = member.connector.take().unwrap();
            connector.shutdown(Duration::from_secs(5)).await.unwrap();
        } else {
            member.connector().commit().await.unwrap();
        }
        for partition in 0..PARTITIONS {
            assert_eq!(kit.offset("t", partition).as_deref(), Some("1"));
        }
        // One that is refused, one that is not; a release commits each by itself then.
        let sent = kit.registry.requests(session, Kind::Multi) - before;
        let most = if is_leaving { 2 + 2 * PARTITIONS } else { 2 };
        assert!(
            sent <= u64::from(most.unsigned_abs()),
            "{sent} transactions"
        );
        assert!(kit.owners("t").is_empty() == is_leaving);
    }
}

#[tokio::test(start_paused = true)]
async fn an_offset_that_a_reset_has_voided_is_not_written_again_by_a_release() {
    // O9, O4
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    let path = Kit::offset_path("t", 0);
    kit.registry.put(&path, "0");
    let mut config = kit.config();
    config.auto_offset_reset = Reset::None;
    let mut member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    member.settled().await;
    kit.drain().await;
    member.connector().commit().await.unwrap();
    assert_eq!(kit.offset("t", 0).as_deref(), Some("1"));
    kit.log.skip(&at("t", 0), 3).unwrap();
    kit.log.trim(&at("t", 0), 4).unwrap();
    let is_held_back = |event: &Event| matches!(event, Event::OffsetReset { to: None, .. });
    member.tells("that it is out of range", is_held_back).await;
    // Somebody clears it, to have the policy applied.
    kit.registry.delete(&path);
    sleep(Duration::from_secs(1)).await;
    let connector = member.connector.take().unwrap();
    connector.shutdown(Duration::from_secs(5)).await.unwrap();
    assert_eq!(kit.offset("t", 0).as_deref(), Some("-1"));
}

#[tokio::test(start_paused = true)]
async fn an_offset_that_is_set_back_again_and_again_during_a_release_ends_as_ours() {
    // I3, O1
    let mut kit = Kit::new();
    kit.create("t", 1);
    let mut config = kit.config();
    config.auto_commit_interval = Duration::from_secs(600);
    let mut member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    member.settled().await;
    kit.send("t", 1);
    kit.drain().await;
    member.connector().commit().await.unwrap();
    kit.send("t", 1);
    kit.drain().await;
    // Two commits of a member that should be silent, each just ahead of what gives the partition up.
    let (hand, owner) = (kit.registry.clone(), Kit::owner_path("t", 0));
    let mut theirs = ["0", "1"].into_iter();
    let _ = kit.registry.clone().with_fate(move |request: &Request| {
        let deletes = |op: &Op| matches!(op, Op::Delete { path, .. } if *path == owner);
        if request.ops.iter().any(deletes)
            && let Some(theirs) = theirs.next()
        {
            hand.put(&Kit::offset_path("t", 0), theirs);
        }
        Fate::Deliver
    });
    let connector = member.connector.take().unwrap();
    connector.shutdown(Duration::from_secs(5)).await.unwrap();
    assert_eq!(kit.offset("t", 0).as_deref(), Some("2"));
    let repaired = Event::RewindRepaired {
        partition: at("t", 0),
        theirs: 1,
        ours: 2,
    };
    let told = member.told();
    assert!(told.contains(&repaired), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reset_ends_the_suspension_by_an_offset_that_was_set_forward() {
    // O9
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.drain().await;
    kit.registry.put(&Kit::offset_path("t", 0), "50");
    kit.send("t", 1);
    kit.drain().await;
    member.connector().commit().await.unwrap();
    let is_advance = |event: &Event| matches!(event, Event::ForeignAdvance { theirs: 50, .. });
    member.tells("the advance", is_advance).await;
    assert!(!member.connector().health().suspended.is_empty());
    // The log has lost what is to be read next.
    kit.log.skip(&at("t", 0), 2).unwrap();
    kit.log.trim(&at("t", 0), 4).unwrap();
    let is_reset = |event: &Event| matches!(event, Event::OffsetReset { to: Some(4), .. });
    member.tells("the reset", is_reset).await;
    until("the start is committed", || {
        kit.offset("t", 0).as_deref() == Some("4")
    })
    .await;
    kit.send("t", 1);
    kit.drain().await;
    member.connector().commit().await.unwrap();
    assert_eq!(kit.offset("t", 0).as_deref(), Some("5"));
    assert!(member.connector().health().suspended.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_offset_that_somebody_set_forward_suspends_commits_until_we_pass_it() {
    // hazards 2.4
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.drain().await;
    member.connector().commit().await.unwrap();
    kit.registry.put(&Kit::offset_path("t", 0), "5");
    kit.send("t", 1);
    kit.drain().await;
    member.connector().commit().await.unwrap();
    member
        .tells("the advance", |event| {
            *event
                == Event::ForeignAdvance {
                    partition: at("t", 0),
                    theirs: 5,
                    ours: 2,
                }
        })
        .await;
    until("health says so", || {
        member.connector().health().suspended.contains(&at("t", 0))
    })
    .await;
    for _ in 0..2 {
        kit.send("t", 1);
        kit.drain().await;
        member.connector().commit().await.unwrap();
        assert_eq!(kit.offset("t", 0).as_deref(), Some("5"));
    }
    for _ in 0..2 {
        kit.send("t", 1);
    }
    kit.drain().await;
    member.connector().commit().await.unwrap();
    assert_eq!(kit.offset("t", 0).as_deref(), Some("6"));
    until("it is over", || {
        member.connector().health().suspended.is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_offset_that_was_set_forward_is_left_when_the_partition_is_given_up() {
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    let member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.drain().await;
    kit.registry.put(&Kit::offset_path("t", 0), "5");
    assert!(member.leave().await.forced.is_empty());
    assert_eq!(kit.offset("t", 0).as_deref(), Some("5"));
    assert!(kit.owners("t").is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_somebody_set_is_told_also_by_the_commit_before_a_release() {
    for (theirs, stands) in [("5", "5"), ("0", "2"), ("x", "2")] {
        let mut kit = Kit::new();
        kit.create("t", 1);
        kit.send("t", 1);
        let listening = kit.builder("h1", kit.config());
        let listening = listening.with_listener(Arc::new(Diary::default()));
        let mut member = kit.join_with(listening, &[("t", 1)]);
        member.settled().await;
        kit.drain().await;
        member.connector().commit().await.unwrap();
        kit.send("t", 1);
        kit.drain().await;
        kit.registry.put(&Kit::offset_path("t", 0), theirs);
        let connector = member.connector.take().unwrap();
        connector.shutdown(Duration::from_secs(10)).await.unwrap();
        let told = member.told();
        let is_it = |event: &Event| match (theirs, event) {
            (
                "5",
                Event::ForeignAdvance {
                    theirs: 5, ours, ..
                },
            )
            | (
                "0",
                Event::RewindRepaired {
                    theirs: 0, ours, ..
                },
            ) => *ours == 2,
            ("x", Event::Repaired { what }) => what.contains("written again as 2"),
            _ => false,
        };
        assert!(told.iter().any(is_it), "{theirs}: {told:?}");
        assert_eq!(kit.offset("t", 0).as_deref(), Some(stands));
    }
}

#[tokio::test(start_paused = true)]
async fn a_malformed_offset_holds_its_partition_only_and_is_read_once_repaired() {
    // O10
    for bad in ["", " 12", "NaN", "9223372036854775808", "12x"] {
        let mut kit = Kit::new();
        kit.create("t", 3);
        kit.send("t", 3);
        kit.registry.put(&Kit::offset_path("t", 1), bad);
        let mut member = kit.join("h1", &[("t", 1)]);
        let told = member
            .tells("what is wrong", |event| {
                matches!(event, Event::OffsetMalformed { .. })
            })
            .await;
        assert!(
            told.to_string().contains("/consumers/g/offsets/t/1"),
            "{told}"
        );
        member.settled().await;
        until("the others are read", || {
            kit.finished.lock().unwrap().len() == 2
        })
        .await;
        let health = member.connector().health();
        assert!(
            health.held_back.contains_key(&at("t", 1)) && !health.is_ready(),
            "{bad:?}"
        );
        assert_eq!(member.owned().len(), 3);
        assert_eq!(
            kit.offset("t", 1).as_deref(),
            Some(bad),
            "it is not written over"
        );
        let began = Instant::now();
        kit.registry.put(&Kit::offset_path("t", 1), "0");
        kit.drain().await;
        assert!(
            began.elapsed() < Duration::from_millis(100),
            "{:?}",
            began.elapsed()
        );
        until("it is ready", || member.connector().health().is_ready()).await;
        member.leave().await;
        assert_eq!(kit.offset("t", 1).as_deref(), Some("1"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_malformed_offset_counts_as_missing_if_that_is_asked_for() {
    // O10
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    kit.registry.put(&Kit::offset_path("t", 0), "x");
    let mut config = kit.config();
    config.malformed_offset = MalformedOffset::TreatAsMissing;
    let member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    member.settled().await;
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_negative_offset_means_none() {
    // O10, L-4
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    kit.registry.put(&Kit::offset_path("t", 0), "-2");
    let mut member = kit.join("h1", &[("t", 1)]);
    member
        .tells("the reset", |event| {
            matches!(
                event,
                Event::OffsetReset {
                    cause: ResetCause::Negative,
                    from: Some(-2),
                    to: Some(0),
                    ..
                }
            )
        })
        .await;
    member.settled().await;
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn an_offset_outside_the_log_follows_the_policy_and_is_stored() {
    // r085, O9, K5
    for (stored, policy, start) in [
        ("999999999", Reset::Smallest, 3),
        ("999999999", Reset::Largest, 6),
        ("1", Reset::Smallest, 3),
        ("1", Reset::Largest, 6),
    ] {
        let mut kit = Kit::new();
        kit.create("t", 1);
        for _ in 0..6 {
            kit.send("t", 1);
        }
        kit.log.trim(&at("t", 0), 3).unwrap();
        kit.registry.put(&Kit::offset_path("t", 0), stored);
        let mut config = kit.config();
        config.auto_offset_reset = policy;
        let mut member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
        let told = member
            .tells("the reset", |event| {
                matches!(event, Event::OffsetReset { .. })
            })
            .await;
        assert_eq!(
            told,
            Event::OffsetReset {
                partition: at("t", 0),
                token: kit.owner_token("t", 0),
                from: stored.parse().ok(),
                to: Some(start),
                cause: ResetCause::OutOfRange
            }
        );
        until("it is stored", || {
            kit.offset("t", 0) == Some(start.to_string())
        })
        .await;
        let last = kit.send_to("t", 0);
        until("the newest is read", || {
            kit.finished
                .lock()
                .unwrap()
                .iter()
                .any(|(_, offset, _)| *offset == last)
        })
        .await;
        member.leave().await;
        assert_eq!(kit.offset("t", 0).as_deref(), Some("7"));
    }
}

#[tokio::test(start_paused = true)]
async fn with_the_policy_none_a_partition_without_an_offset_is_held_and_not_read() {
    // O9, O4
    let mut kit = Kit::new();
    kit.create("t", 2);
    kit.send("t", 2);
    kit.registry.put(&Kit::offset_path("t", 1), "0");
    let mut config = kit.config();
    config.auto_offset_reset = Reset::None;
    let mut member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    member
        .tells("that it is not read", |event| {
            matches!(event, Event::OffsetReset { to: None, .. })
        })
        .await;
    member.settled().await;
    until("the other is read", || {
        kit.finished.lock().unwrap().len() == 1
    })
    .await;
    let held_back = member.connector().health().held_back;
    assert!(
        held_back[&at("t", 0)].contains("auto.offset.reset"),
        "{held_back:?}"
    );
    assert_eq!(kit.offset("t", 0).as_deref(), Some("-1"), "none, as before");
    // An operator says where to begin.
    kit.registry.put(&Kit::offset_path("t", 0), "0");
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn an_offset_repaired_between_its_reading_and_its_watch_is_seen() {
    // W1, O10
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    let path = Kit::offset_path("t", 0);
    kit.registry.put(&path, "bad");
    let registry = kit.registry.clone();
    let _ = kit.registry.clone().with_fate(move |request: &Request| {
        if request.kind == Kind::Stat && request.is_watching && request.path == path {
            registry.put(&path, "0");
        }
        Fate::Deliver
    });
    let _member = kit.join("h1", &[("t", 1)]);
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn offsets_belong_to_the_group_and_not_to_the_id() {
    // r014, r091
    let mut kit = Kit::new();
    kit.create("t", 2);
    kit.registry.put(&Kit::offset_path("t", 0), "2");
    for _ in 0..4 {
        kit.send("t", 2);
    }
    let first = kit.join("h1", &[("t", 1)]);
    until("all is read", || kit.finished.lock().unwrap().len() == 6).await;
    first.leave().await;
    let second = kit.join("h2", &[("t", 1)]);
    second.settled().await;
    assert_eq!(kit.offset("t", 0).as_deref(), Some("4"));
    assert!(kit.log.starts().contains(&(at("t", 0), 2)));
    assert!(kit.log.starts().contains(&(at("t", 0), 4)));
    assert_eq!(kit.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_partition_is_read_only_once_its_offset_is_known() {
    // r086, O2
    let mut kit = Kit::new();
    kit.create("t", 2);
    for _ in 0..4 {
        kit.send("t", 2);
    }
    kit.registry.put(&Kit::offset_path("t", 0), "3");
    let offsets = format!("/consumers/{GROUP}/offsets");
    let _ = kit.registry.clone().with_fate(move |request: &Request| {
        if request.kind == Kind::Data && request.path.starts_with(&offsets) {
            Fate::DelayAnswer(Duration::from_secs(1))
        } else {
            Fate::Deliver
        }
    });
    let member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    let starts = kit.log.starts();
    assert_eq!(starts, [(at("t", 0), 3), (at("t", 1), 0)]);
}

#[tokio::test(start_paused = true)]
async fn a_commit_without_a_lease_is_refused_in_time() {
    // S17, S1
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    let member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.drain().await;
    kit.registry.cut(member.session());
    until("the lease lapses", || {
        member.connector().health().lease_left == Some(Duration::ZERO)
    })
    .await;
    let began = Instant::now();
    let error = member.connector().commit().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(began.elapsed() < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn no_write_is_ever_made_by_one_who_does_not_own_the_partition() {
    // I2, I8, I10
    let mut kit = Kit::slow(0, 30, 5);
    kit.create("t", 8);
    let mut config = kit.config();
    config.auto_commit_interval = Duration::from_millis(300);
    let mut members = Vec::new();
    for round in 0..12 {
        kit.send("t", 8);
        members.push(kit.join_with(
            kit.builder(&format!("h{round}"), config.clone()),
            &[("t", 1)],
        ));
        sleep(Duration::from_millis(700)).await;
        if round % 3 == 2 {
            members.remove(0).leave().await;
        }
        if round % 4 == 3
            && let Some(session) = members[0].connector().health().session
        {
            kit.registry.expire(session);
        }
    }
    kit.drain().await;
    let mut owners = std::collections::BTreeMap::new();
    for write in kit.registry.log() {
        if let Some(partition) = write.path.strip_prefix("/consumers/g/owners/t/") {
            match write.act {
                Act::Create => {
                    let before = owners.insert(partition.to_owned(), write.owner);
                    assert_eq!(before, None, "one owner at a time");
                }
                Act::Delete => {
                    owners.remove(partition);
                }
                _ => {}
            }
        }
        if let Some(partition) = write.path.strip_prefix("/consumers/g/offsets/t/")
            && !partition.is_empty()
        {
            assert_eq!(owners.get(partition), Some(&write.session), "{write:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_offset_node_that_may_not_be_touched_does_not_keep_its_partition_from_others() {
    // X1, r154, I8
    for (version, what) in [9, 4]
        .into_iter()
        .flat_map(|version| ["touched", "looked at", "made again"].map(|what| (version, what)))
    {
        let words = format!("3.{version}, it may not be {what}");
        let registry = MemoryRegistry::new().with_version(3, version);
        let mut kit = Kit::on(registry.with_tick(Duration::from_millis(500)));
        kit.create("t", 2);
        let mut config = kit.config();
        config.auto_commit_interval = Duration::from_secs(600);
        let mut member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
        member.settled().await;
        kit.send("t", 2);
        kit.drain().await;
        let path = Kit::offset_path("t", 0);
        if what == "made again" {
            kit.registry.delete(&path);
        }
        let _ = kit.registry.clone().with_fate(move |request: &Request| {
            let is_allowed = match request.kind {
                Kind::Multi => true,
                Kind::Stat => what != "looked at",
                _ => false,
            };
            if request.path == path && !is_allowed {
                return Fate::Refuse(Fault::NoAuth);
            }
            // Deleting is another matter: that is the parent's to allow.
            let concerns = |op: &Op| op.path() == path;
            match request.ops.iter().position(concerns) {
                Some(step) => Fate::RefuseStep(step, Fault::NoAuth),
                None => Fate::Deliver,
            }
        });
        let begun = Instant::now();
        let connector = member.connector.take().unwrap();
        connector.shutdown(Duration::from_secs(20)).await.unwrap();
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(2), "{words}: {took:?}");
        assert!(kit.owners("t").is_empty(), "{words}");
        let told = member.told();
        let is_told = |event: &Event| matches!(event, Event::CommitFailed { partition, .. } if *partition == at("t", 0));
        assert!(told.iter().any(is_told), "{words}: {told:#?}");
        assert_eq!(kit.offset("t", 1).as_deref(), Some("1"), "{words}");
    }
}
