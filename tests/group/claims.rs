//! Claims: held by others, lost replies, hands from outside, ids that are taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel::config;
use evenkeel::event::LostCause;
use evenkeel::registry::{Dialect, Fault, Op};
use evenkeel::testing::{Act, Fate, Kind, MemoryRegistry, Request, Script};
use evenkeel::{ErrorKind, Event};
use tokio::time::{Instant, sleep};

use crate::kit::{Diary, GROUP, Kit, T, at, range_of, registration_for, until};

#[tokio::test(start_paused = true)]
async fn a_partition_that_somebody_else_holds_is_waited_for_while_the_others_are_served() {
    // r029, r050, A2, A3, A4
    let mut kit = Kit::new();
    kit.create("t", 4);
    let stranger = kit.stranger().await;
    stranger.own("t", 1, "g_old-0").await;
    let mut member = kit.join("h1", &[("t", 1)]);
    let told = member
        .tells("that it waits", |event| {
            matches!(event, Event::Waiting { .. })
        })
        .await;
    let Event::Waiting { partition, holder } = told else {
        unreachable!()
    };
    assert_eq!(partition, at("t", 1));
    assert_eq!(
        (holder.text.as_str(), holder.session),
        ("g_old-0", stranger.id())
    );
    assert_eq!(member.owned(), ["t-0", "t-2", "t-3"]);
    kit.send("t", 4);
    until("the others are read", || {
        kit.finished.lock().unwrap().len() == 3
    })
    .await;
    let began = Instant::now();
    let told = member
        .tells("that it is stuck", |event| {
            matches!(event, Event::Stuck { .. })
        })
        .await;
    assert!(told.to_string().contains("g_old-0"), "{told}");
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    until("health says so", || {
        member.connector().health().stuck.contains(&at("t", 1))
    })
    .await;
    assert!(!member.connector().health().is_ready());
    assert_eq!(
        kit.owners("t")[&1],
        "g_old-0",
        "it is never taken from a stranger"
    );
    let freed = Instant::now();
    stranger.delete(&Kit::owner_path("t", 1)).await;
    until("it is claimed", || member.owned().len() == 4).await;
    assert!(
        freed.elapsed() < Duration::from_millis(100),
        "{:?}",
        freed.elapsed()
    );
    kit.drain().await;
    member.settled().await;
    assert!(member.connector().health().is_ready());
}

#[tokio::test(start_paused = true)]
async fn waiting_and_stuck_are_told_once() {
    // r029, r062
    let kit = Kit::new();
    kit.create("t", 2);
    let stranger = kit.stranger().await;
    stranger.own("t", 1, "x-0").await;
    let mut member = kit.join("h1", &[("t", 1)]);
    sleep(Duration::from_secs(120)).await;
    let told = member.told();
    let waiting = told
        .iter()
        .filter(|event| matches!(event, Event::Waiting { .. }))
        .count();
    let stuck = told
        .iter()
        .filter(|event| matches!(event, Event::Stuck { .. }))
        .count();
    assert_eq!((waiting, stuck), (1, 1), "{told:#?}");
    let writes = kit.writes_below(&Kit::owner_path("t", 1), 0);
    assert_eq!(writes.len(), 1, "nobody hammers at it: {writes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lasting_owner_node_is_reported_and_left_alone() {
    // r029
    let kit = Kit::new();
    kit.create("t", 2);
    kit.registry.put(&Kit::owner_path("t", 0), "ghost-0");
    let mut member = kit.join("h1", &[("t", 1)]);
    member
        .tells("who holds it", |event| {
            matches!(event, Event::Stuck { holder, .. } if holder.session == 0 && holder.text == "ghost-0")
        })
        .await;
    assert_eq!(member.owned(), ["t-1"]);
    kit.registry.delete(&Kit::owner_path("t", 0));
    until("it is claimed", || member.owned().len() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_node_with_our_text_but_of_a_strangers_session_is_not_ours() {
    // J3, S8, r005
    let mut kit = Kit::new();
    kit.create("t", 2);
    let first = kit.join("h1", &[("t", 1)]);
    let text = format!("{}-0", first.name);
    first.settled().await;
    first.leave().await;
    let stranger = kit.stranger().await;
    stranger.own("t", 0, &text).await;
    let member = kit.join("h1", &[("t", 1)]);
    assert_eq!(format!("{}-0", member.name), text);
    until("it waits", || {
        !member.connector().health().waiting.is_empty()
    })
    .await;
    kit.send("t", 2);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(member.owned(), ["t-1"]);
    assert_eq!(kit.finished.lock().unwrap().len(), 1);
    stranger.close().await;
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_session_of_ours_left_behind_is_taken_over_at_once() {
    // S8, r007, r008, r001
    let mut kit = Kit::new();
    kit.create("t", 3);
    kit.send("t", 3);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    let old = member.session();
    // Its registration is deleted behind its back, and its session cannot be ended: the nodes linger.
    let _ = kit.registry.clone().with_fate(move |request: &Request| {
        if request.session == old && request.kind == Kind::Close {
            Fate::LoseBefore
        } else {
            Fate::Deliver
        }
    });
    let began = Instant::now();
    kit.registry.delete(&Kit::id_path(&member.name));
    member
        .tells(
            "that it is back",
            |event| matches!(event, Event::Joined { session, .. } if *session != old),
        )
        .await;
    member.settled().await;
    assert_eq!(member.owned().len(), 3);
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    for partition in 0..3 {
        assert_eq!(kit.owner_session("t", partition), Some(member.session()));
    }
    sleep(T * 2).await;
    assert_eq!(kit.owners("t").len(), 3, "nothing of it vanishes later");
    assert_eq!(kit.members(), [member.name.clone()]);
    kit.send("t", 3);
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_node_that_is_deleted_by_hand_is_lost_at_once_and_claimed_anew() {
    // A5, r149
    let mut kit = Kit::new();
    kit.create("t", 3);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.send("t", 3);
    kit.drain().await;
    let began = Instant::now();
    kit.registry.delete(&Kit::owner_path("t", 1));
    member
        .tells("that it is lost", |event| {
            matches!(event, Event::Lost { partition, cause: LostCause::OwnerNodeGone, .. } if *partition == at("t", 1))
        })
        .await;
    until("it is claimed anew", || {
        kit.owner_session("t", 1) == Some(member.session())
    })
    .await;
    assert!(
        began.elapsed() < Duration::from_millis(200),
        "{:?}",
        began.elapsed()
    );
    kit.send("t", 3);
    kit.drain().await;
    assert_eq!(member.owned().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_owner_node_that_could_not_be_watched_when_it_was_claimed_is_watched_soon_after() {
    // A5, W1
    for lost in 0..3 {
        let kit = Kit::new();
        kit.create("t", 3);
        let path = Kit::owner_path("t", lost);
        let script = Script::new().then(
            move |request| request.is_watching && request.path == path,
            Fate::LoseBefore,
        );
        let _ = kit.registry.clone().with_fate(script.into_fate());
        let mut member = kit.join("h1", &[("t", 1)]);
        member.settled().await;
        sleep(Duration::from_secs(2)).await;
        for partition in 0..3 {
            let began = Instant::now();
            kit.registry.delete(&Kit::owner_path("t", partition));
            member
                .tells("that it is lost", |event| {
                    matches!(event, Event::Lost { partition: which, .. } if *which == at("t", partition))
                })
                .await;
            assert!(
                began.elapsed() < Duration::from_millis(200),
                "{lost}, {partition}: {:?}",
                began.elapsed()
            );
            member.settled().await;
        }
        member.leave().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_was_read_counts_also_if_another_read_failed() {
    // A5
    let mut kit = Kit::new();
    kit.create("t", 2);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    // Both are looked at, and one cannot be read for long.
    let path = Kit::owner_path("t", 1);
    let _ = kit.registry.clone().with_fate(move |request| {
        if request.is_watching && request.path == path {
            return Fate::LoseBefore;
        }
        Fate::Deliver
    });
    let began = Instant::now();
    kit.registry.put(&Kit::owner_path("t", 1), "touched");
    kit.registry.delete(&Kit::owner_path("t", 0));
    member
        .tells(
            "that it is lost",
            |event| matches!(event, Event::Lost { partition, .. } if *partition == at("t", 0)),
        )
        .await;
    assert!(began.elapsed() < Duration::from_millis(200));
    kit.registry.without_faults();
    member.settled().await;
    kit.send("t", 2);
    kit.drain().await;
    member.leave().await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_node_that_was_replaced_is_lost_and_never_touched() {
    // r032, A5, A7, I10
    let mut kit = Kit::new();
    kit.create("t", 2);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    let stranger = kit.stranger().await;
    let path = Kit::owner_path("t", 0);
    let replace = vec![
        Op::Delete {
            path: path.clone(),
            version: None,
        },
        Op::Create {
            path,
            data: b"other-0".to_vec(),
            ephemeral: true,
        },
    ];
    stranger.0.multi(replace).await.unwrap();
    member
        .tells("that it is lost", |event| {
            matches!(event, Event::Lost { .. })
        })
        .await;
    kit.send("t", 2);
    until("the other is read", || {
        kit.finished.lock().unwrap().len() == 1
    })
    .await;
    member.leave().await;
    assert_eq!(kit.owners("t")[&0], "other-0");
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_is_deleted_by_hand_is_made_again() {
    // r004, r019
    let mut kit = Kit::new();
    kit.create("t", 4);
    let mut member = kit.join("h1", &[("t", 1)]);
    let other = kit.join("h2", &[("t", 1)]);
    until("they share", || {
        kit.owners("t") == range_of(&[&member, &other], 4)
    })
    .await;
    kit.send("t", 4);
    kit.registry.delete(&Kit::id_path(&member.name));
    let lost = member
        .tells("that it is lost", |event| {
            matches!(event, Event::Lost { .. })
        })
        .await;
    assert!(
        matches!(
            lost,
            Event::Lost {
                cause: LostCause::RegistrationGone,
                ..
            }
        ),
        "{lost}"
    );
    until("they share again", || {
        kit.owners("t") == range_of(&[&member, &other], 4)
    })
    .await;
    assert_eq!(kit.members().len(), 2);
    kit.send("t", 4);
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_was_overwritten_is_put_right() {
    // r025
    for holds in [true, false] {
        let kit = Kit::new();
        kit.create("t", i32::from(holds));
        let member = kit.join("h1", &[("t", 1)]);
        if holds {
            member.settled().await;
        }
        let path = Kit::id_path(&member.name);
        until("it is registered", || kit.registry.text(&path).is_some()).await;
        kit.registry.put(&path, "{}");
        until("it is written again", || {
            kit.registry
                .text(&path)
                .is_some_and(|text| text.contains(r#""t":1"#))
        })
        .await;
        assert_eq!(kit.members().len(), 1);
        if holds {
            member.settled().await;
            assert_eq!(member.owned().len(), 1);
        }
        assert!(member.leave().await.forced.is_empty());
        assert!(kit.members().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_that_a_live_session_holds_is_an_error_after_a_bounded_wait() {
    // r002, r013, A11, S9
    let kit = Kit::new();
    kit.create("t", 2);
    let first = kit.join("h1", &[("t", 1)]);
    first.settled().await;
    let began = Instant::now();
    let mut second = kit.join("h1", &[("t", 1)]);
    let error = second.connector().settled().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdHeld);
    let holder = format!("0x{:x}", first.session());
    let text = error.to_string();
    assert!(
        text.contains(&holder) && text.contains(&first.name),
        "{text}"
    );
    assert!(
        began.elapsed() >= T * 7 / 2 && began.elapsed() <= T * 4,
        "{:?}",
        began.elapsed()
    );
    assert!(
        second
            .told()
            .iter()
            .any(|event| matches!(event, Event::IdHeld { .. }))
    );
    assert_eq!(
        second.connector().commit().await.unwrap_err().kind(),
        ErrorKind::IdHeld
    );
    assert_eq!(first.owned().len(), 2, "the first is untouched");
    first.leave().await;
    let third = kit.join("h1", &[("t", 1)]);
    third.settled().await;
}

#[tokio::test(start_paused = true)]
async fn an_id_that_a_dead_session_holds_is_waited_for() {
    // r002, S9
    let kit = Kit::new();
    kit.create("t", 2);
    let first = kit.join("h1", &[("t", 1)]);
    first.settled().await;
    first.die(&kit.registry);
    let second = kit.join("h1", &[("t", 1)]);
    second.settled().await;
    assert_eq!(second.owned().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_was_taken_after_a_lost_session_is_waited_for_as_long_as_it_takes() {
    // S9
    let kit = Kit::new();
    kit.create("t", 2);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    let old = member.session();
    let stranger = kit.stranger().await;
    kit.registry.refuse("for a moment");
    kit.registry.expire(old);
    member
        .tells("the loss", |event| {
            matches!(event, Event::SessionLost { .. })
        })
        .await;
    stranger.register_for(&member.name, "t", 1).await;
    kit.registry.accept();
    member
        .tells(
            "who has it",
            |event| matches!(event, Event::IdHeld { session, .. } if *session == stranger.id()),
        )
        .await;
    sleep(T * 20).await;
    assert!(member.connector().health().failure.is_none());
    let freed = Instant::now();
    stranger.close().await;
    member.settled().await;
    assert!(
        freed.elapsed() < Duration::from_secs(1),
        "{:?}",
        freed.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn the_servers_dialect_is_found_out() {
    // hazards 2.2
    let mut kit = Kit::on(MemoryRegistry::new().with_version(3, 4));
    kit.create("t", 6);
    kit.send("t", 6);
    let member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.drain().await;
    let other = kit.join("h2", &[("t", 1)]);
    until("they share", || {
        kit.owners("t") == range_of(&[&member, &other], 6)
    })
    .await;
    kit.send("t", 6);
    kit.drain().await;
    assert_eq!(kit.duplicates(), 0);
    let session = kit.registry.session(member.session()).unwrap();
    assert_eq!(session.dialect, Dialect::V3_4);
    assert_stamped(&kit, "t", 6);
    assert!(member.leave().await.forced.is_empty());
    until("the other has all", || other.owned().len() == 6).await;
    assert!(other.leave().await.forced.is_empty());
    for partition in 0..6 {
        assert_eq!(kit.offset("t", partition).as_deref(), Some("2"));
    }
}

#[tokio::test(start_paused = true)]
async fn servers_that_change_their_dialect_under_a_member_are_followed() {
    // hazards 2.2
    let mut kit = Kit::new();
    kit.create("t", 4);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    let _ = kit.registry.clone().with_version(3, 4);
    kit.send("t", 4);
    kit.drain().await;
    kit.grow("t", 6);
    kit.send("t", 6);
    member
        .tells("that it joined anew", |event| {
            let new = member_session(event);
            new.is_some_and(|new| kit.registry.session(new).unwrap().dialect == Dialect::V3_4)
        })
        .await;
    kit.drain().await;
    member.settled().await;
    assert_eq!(member.owned().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_dialect_that_is_set_and_not_spoken_there_ends_the_member_with_words() {
    let kit = Kit::on(MemoryRegistry::new().with_version(3, 4));
    kit.create("t", 1);
    let mut config = kit.config();
    config.zookeeper_dialect = config::Dialect::V3_5;
    let member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    let error = member.connector().settled().await.unwrap_err();
    assert!(error.to_string().contains("zookeeper.dialect"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_old_dialect_is_spoken_to_newer_servers_if_that_is_asked_for() {
    // hazards 2.2
    let mut kit = Kit::new();
    kit.create("t", 6);
    kit.send("t", 6);
    let mut config = kit.config();
    config.zookeeper_dialect = config::Dialect::V3_4;
    let old = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    old.settled().await;
    let session = kit.registry.session(old.session()).unwrap();
    assert_eq!(session.dialect, Dialect::V3_4);
    assert_stamped(&kit, "t", 6);
    // One that finds it out shares with it.
    let new = kit.join("h2", &[("t", 1)]);
    until("they share", || {
        kit.owners("t") == range_of(&[&old, &new], 6)
    })
    .await;
    let session = kit.registry.session(new.session()).unwrap();
    assert_eq!(session.dialect, Dialect::V3_5);
    kit.send("t", 6);
    kit.drain().await;
    assert_eq!(kit.duplicates(), 0);
    assert_stamped(&kit, "t", 6);
    assert!(old.leave().await.forced.is_empty());
    until("the other has all", || new.owned().len() == 6).await;
    assert!(new.leave().await.forced.is_empty());
    for partition in 0..6 {
        assert_eq!(kit.offset("t", partition).as_deref(), Some("2"));
    }
}

fn member_session(event: &Event) -> Option<i64> {
    match event {
        Event::Joined { session, .. } => Some(*session),
        _ => None,
    }
}

/// Every owner node of ours, and our registration, is at version 1, which a JVM's never is (hazards 2.2).
fn assert_stamped(kit: &Kit, name: &str, partitions: i32) {
    for partition in 0..partitions {
        let (_, stat) = kit
            .registry
            .read(&Kit::owner_path(name, partition))
            .unwrap();
        assert_eq!(stat.version, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn registrations_and_owner_nodes_are_stamped() {
    // J2, A7, A15
    for version in [4, 9] {
        let kit = Kit::on(MemoryRegistry::new().with_version(3, version));
        kit.create("t", 3);
        let member = kit.join("h1", &[("t", 1)]);
        member.settled().await;
        assert_stamped(&kit, "t", 3);
        let (_, stat) = kit.registry.read(&Kit::id_path(&member.name)).unwrap();
        assert_eq!(stat.version, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn members_whose_names_begin_alike_are_told_apart() {
    // r017
    let kit = Kit::new();
    kit.create("t", 12);
    let named = |id: &str| {
        let mut config = kit.config();
        config.consumer_id = Some(id.to_owned());
        kit.join_with(kit.builder("h1", config), &[("t", 2)])
    };
    let (a, b) = (named("a"), named("a-1"));
    until("they share as strings sort", || {
        let owners = kit.owners("t");
        owners.len() == 12
            && owners[&0] == "g_a-0"
            && owners[&3] == "g_a-1"
            && owners[&6] == "g_a-1-0"
            && owners[&9] == "g_a-1-1"
    })
    .await;
    a.settled().await;
    b.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_outcome_stayed_unknown_is_not_forgotten() {
    // A1, A6
    let mut kit = Kit::new();
    kit.create("t", 4);
    kit.send("t", 4);
    let owners = format!("/consumers/{GROUP}/owners/t/");
    kit.registry.put(owners.trim_end_matches('/'), "");
    kit.registry
        .put(&format!("/consumers/{GROUP}/offsets/t"), "");
    // The claim is carried out and its answer lost; so is every look at the owner nodes, until something else has changed.
    let is_blind = Arc::new(AtomicBool::new(true));
    let blind = is_blind.clone();
    let mut is_first = true;
    let _ = kit.registry.clone().with_fate(move |request: &Request| {
        let is_about_owners = request.path.starts_with(&owners)
            || request.ops.iter().any(|op| op.path().starts_with(&owners));
        if !is_about_owners || request.kind == Kind::Children || !blind.load(Ordering::SeqCst) {
            Fate::Deliver
        } else if request.kind == Kind::Multi && std::mem::take(&mut is_first) {
            Fate::LoseAfter
        } else if is_first {
            Fate::Deliver
        } else {
            Fate::LoseBefore
        }
    });
    let member = kit.join("h1", &[("t", 1)]);
    until("it has claimed", || kit.owners("t").len() == 4).await;
    assert!(member.owned().is_empty(), "it does not know");
    // Meanwhile half of it becomes somebody else's.
    let other = kit.join("h2", &[("t", 1)]);
    sleep(Duration::from_secs(1)).await;
    is_blind.store(false, Ordering::SeqCst);
    let began = Instant::now();
    until("they share", || {
        kit.owners("t") == range_of(&[&member, &other], 4)
    })
    .await;
    assert!(began.elapsed() < T, "{:?}", began.elapsed());
    kit.drain().await;
    member.settled().await;
    other.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_member_asks_for_little_when_something_changes() {
    // W8, W11, I17
    let kit = Kit::new();
    kit.create("t", 24);
    let member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    let session = member.session();
    let before = kit.registry.session(session).unwrap().requests;
    let other = kit.join("h2", &[("t", 1)]);
    until("they share", || {
        kit.owners("t") == range_of(&[&member, &other], 24)
    })
    .await;
    member.settled().await;
    let after = kit.registry.session(session).unwrap().requests;
    let asked: u64 = after.values().sum::<u64>() - before.values().sum::<u64>();
    // A list and one member's data; the batch that gives up; a proof and a packet for the lease.
    assert!(asked <= 6, "{before:?} {after:?}");
    assert!(kit.registry.session(session).unwrap().watches <= 12 + 4);
    let of_other = kit.registry.session(other.session()).unwrap().requests;
    let sum: u64 = of_other.values().sum();
    assert!(sum <= 16 + 3 * 12, "{of_other:?}");
}

#[tokio::test(start_paused = true)]
async fn a_standby_sends_nothing_but_its_self_check() {
    // r145, r077
    let kit = Kit::new();
    kit.create("t", 1);
    let a = kit.join("h1", &[("t", 1)]);
    let b = kit.join("h2", &[("t", 1)]);
    a.settled().await;
    b.settled().await;
    until("one owns it", || kit.owners("t").len() == 1).await;
    let standby = if a.owned().is_empty() { &a } else { &b };
    let count = || {
        let requests = kit.registry.session(standby.session()).unwrap().requests;
        requests.values().sum::<u64>()
    };
    let before = count();
    sleep(Duration::from_secs(20)).await;
    assert_eq!(count(), before);
    sleep(Duration::from_secs(100)).await;
    assert!(count() - before <= 5 * 4, "{}", count() - before);
    let writes = kit.registry.log_since(0).into_iter();
    let writes =
        writes.filter(|write| write.session == standby.session() && write.act == Act::Check);
    assert_eq!(writes.count(), 0, "it proves nothing to the quorum");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_refused_half_way_leaves_nothing_in_the_way_of_others() {
    // A6, X1, I8
    let registry = MemoryRegistry::new().with_version(3, 4);
    let kit = Kit::on(registry.with_tick(Duration::from_millis(500)));
    kit.create("t", 2);
    // The offset node may be read and not be written: on 3.4 the owner node stands by then.
    let path = Kit::offset_path("t", 0);
    let _ = kit.registry.clone().with_fate(move |request: &Request| {
        let is_it = |op: &Op| matches!(op, Op::Set { path: at, .. } if *at == path);
        match request.ops.iter().position(is_it) {
            Some(step) => Fate::RefuseStep(step, Fault::NoAuth),
            None => Fate::Deliver,
        }
    });
    let mut member = kit.join("h1", &[("t", 1)]);
    let is_told = |event: &Event| matches!(event, Event::Warning { what } if what.contains("cannot claim t-0"));
    member.tells("that it is refused", is_told).await;
    assert!(kit.owners("t").contains_key(&0));
    // It is to be another's, who is first by its name.
    let stranger = kit.stranger_speaking(Dialect::V3_4).await;
    stranger.register_for("g_0", "t", 1).await;
    until("it is out of the way", || !kit.owners("t").contains_key(&0)).await;
    assert!(kit.owners("t").contains_key(&1));
    stranger.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_node_that_was_written_over_while_it_is_given_up_keeps_its_partition_from_nobody()
{
    // A5, A6
    let kit = Kit::new();
    kit.create("t", 2);
    let diary = Diary::default();
    let registry = kit.registry.clone();
    *diary.on_release.lock().unwrap() = Some(Box::new(move |partitions| {
        for partition in partitions {
            registry.put(&Kit::owner_path("t", partition.partition), "somebody-0");
        }
    }));
    let builder = kit
        .builder("h1", kit.config())
        .with_listener(Arc::new(diary));
    let member = kit.join_with(builder, &[("t", 1)]);
    member.settled().await;
    let other = kit.join("h2", &[("t", 1)]);
    until("each has its share", || {
        kit.owners("t") == range_of(&[&member, &other], 2)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_node_that_was_written_over_as_another_came_for_it_keeps_its_partition_from_nobody()
 {
    // A5, A6
    let kit = Kit::new();
    kit.create("t", 2);
    let member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    let stranger = kit.stranger().await;
    let path = Kit::owner_path("t", 1);
    let both = vec![
        Op::Set {
            path: path.clone(),
            data: b"somebody-0".to_vec(),
            version: None,
        },
        Op::Create {
            path: Kit::id_path("zzz"),
            data: registration_for("t", 1).into_bytes(),
            ephemeral: true,
        },
    ];
    stranger.0.multi(both).await.unwrap();
    until("it is free", || kit.registry.text(&path).is_none()).await;
    assert_eq!(member.owned(), ["t-0"]);
}

type Which = fn(&Request) -> bool;

#[tokio::test(start_paused = true)]
async fn what_is_taken_away_while_something_else_is_awaited_is_not_delivered() {
    // A5, I1
    let is_claim = |request: &Request| {
        let new = Kit::owner_path("t", 2);
        let makes = |op: &Op| matches!(op, Op::Create { path, .. } if *path == new);
        request.ops.iter().any(makes)
    };
    let is_look = |request: &Request| request.is_watching && request.path == "/brokers/topics/t";
    for (passed, is_it) in [(0, is_claim as Which), (1, is_look)] {
        let mut kit = Kit::new();
        kit.create("t", 2);
        let mut script = Script::new();
        for _ in 0..passed {
            script = script.then(is_it, Fate::Deliver);
        }
        let script = script.then(is_it, Fate::Delay(T / 3));
        let _ = kit.registry.clone().with_fate(script.into_fate());
        let mut member = kit.join("h1", &[("t", 1)]);
        member.settled().await;
        kit.send("t", 2);
        kit.drain().await;
        kit.grow("t", 3);
        let began = Instant::now();
        // So soon that nothing else has woken it.
        sleep(Duration::from_millis(1)).await;
        let before = kit.finished.lock().unwrap().len();
        kit.registry.delete(&Kit::owner_path("t", 0));
        sleep(Duration::from_millis(1)).await;
        kit.send("t", 2);
        sleep(T / 20).await;
        let after = kit.finished.lock().unwrap()[before..].to_vec();
        assert!(began.elapsed() < T / 3 && kit.owners("t").len() == 1);
        let partitions: Vec<i32> = after.iter().map(|(at, _, _)| at.partition).collect();
        assert_eq!(partitions, [1], "the other goes on");
        let is_loss = |event: &Event| matches!(event, Event::Lost { .. });
        member.tells("that it is lost", is_loss).await;
        kit.drain().await;
        member.settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_came_back_otherwise_and_could_not_be_read_is_read_though_another_came() {
    // W5, L-12
    let kit = Kit::new();
    kit.create("t", 12);
    let member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    let (first, second) = (kit.stranger().await, kit.stranger().await);
    first.register_for("zzz", "t", 1).await;
    until("half is let go", || member.owned().len() == 6).await;
    let mut script = Script::new();
    for _ in 0..4 {
        let is_read =
            |request: &Request| request.kind == Kind::Data && request.path == Kit::id_path("zzz");
        script = script.then(is_read, Fate::LoseBefore);
    }
    let _ = kit.registry.clone().with_fate(script.into_fate());
    let path = Kit::id_path("zzz");
    let anew = vec![
        Op::Delete {
            path: path.clone(),
            version: None,
        },
        Op::Create {
            path,
            data: registration_for("t", 2).into_bytes(),
            ephemeral: true,
        },
    ];
    first.0.multi(anew).await.unwrap();
    sleep(Duration::from_millis(60)).await;
    second.register_for("zzy", "t", 1).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(member.owned().len(), 3, "one of four streams is its");
}
