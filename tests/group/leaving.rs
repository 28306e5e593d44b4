//! Leaving: in order, at any moment, with the registry gone, and without a word.

use std::time::Duration;

use evenkeel::registry::Op;
use evenkeel::testing::{Act, Fate};
use evenkeel::{ErrorKind, Event};
use tokio::time::{Instant, sleep};

use crate::kit::{Diary, Kit, T, next_owned, topic, until};

#[tokio::test(start_paused = true)]
async fn a_member_may_leave_at_any_moment() {
    // r121, r122, r124, r128, R7
    for seed in 0..60 {
        let mut kit = Kit::slow(0, 20, seed);
        kit.create("t", 8);
        kit.send("t", 8);
        let other = kit.join("h0", &[("t", 1)]);
        if seed % 2 == 0 {
            other.settled().await;
        }
        let member = kit.join("h1", &[("t", 1)]);
        sleep(Duration::from_millis(seed * 7)).await;
        if seed % 3 == 0 {
            kit.grow("t", 9);
        }
        let began = Instant::now();
        let name = member.name.clone();
        assert!(member.leave().await.forced.is_empty(), "seed {seed}");
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "seed {seed}: {:?}",
            began.elapsed()
        );
        assert!(!kit.members().contains(&name), "seed {seed}");
        let all = if seed % 3 == 0 { 9 } else { 8 };
        until("the other has all", || other.owned().len() == all).await;
        kit.drain().await;
        assert_eq!(kit.duplicates(), 0, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_registration_goes_after_the_last_owner_node() {
    // R7
    // Whoever sees it go finds everything free.
    let mut kit = Kit::slow(5, 20, 7);
    kit.create("t", 8);
    let member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.send("t", 8);
    let (session, registration) = (member.session(), Kit::id_path(&member.name));
    assert!(member.leave().await.forced.is_empty());
    let deleted: Vec<String> = kit
        .registry
        .log()
        .into_iter()
        .filter(|write| write.session == session && write.act == Act::Delete)
        .map(|write| write.path)
        .collect();
    assert_eq!(deleted.len(), 9, "{deleted:?}");
    assert_eq!(deleted[8], registration);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_waits_for_a_partition_leaves_at_once() {
    // r040
    let kit = Kit::new();
    kit.create("t", 2);
    let stranger = kit.stranger().await;
    stranger.own("t", 1, "x-0").await;
    let member = kit.join("h1", &[("t", 1)]);
    sleep(Duration::from_secs(60)).await;
    let began = Instant::now();
    assert!(member.leave().await.forced.is_empty());
    assert!(
        began.elapsed() < Duration::from_millis(100),
        "{:?}",
        began.elapsed()
    );
    assert!(kit.members().is_empty());
    assert_eq!(kit.owners("t").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn with_the_registry_gone_the_deadline_is_kept() {
    // r128, S17
    for how in [
        "halt",
        "cut",
        "cut while it looks",
        "cut while it opens",
        "cut while it registers",
    ] {
        let mut kit = Kit::slow(5, 5, 0);
        kit.create("t", 2);
        kit.send("t", 2);
        let mut member = kit.join("h1", &[("t", 1)]);
        match how {
            "cut while it registers" => sleep(Duration::from_millis(12)).await,
            "cut while it opens" => {
                let _ = kit.registry.clone().with_opening(Duration::from_secs(600));
                sleep(Duration::from_millis(1)).await;
            }
            _ => member.settled().await,
        }
        match how {
            "halt" => kit.registry.halt(),
            "cut while it looks" => {
                kit.grow("t", 4);
                sleep(Duration::from_millis(2)).await;
                kit.registry.cut(member.session());
                sleep(Duration::from_millis(100)).await;
            }
            _ => kit.registry.sessions().iter().for_each(|session| {
                kit.registry.cut(session.id);
            }),
        }
        let connector = member.connector.take().unwrap();
        let began = Instant::now();
        let held = connector.owned().len();
        let farewell = connector.shutdown(Duration::from_secs(2)).await.unwrap();
        assert!(
            began.elapsed() <= Duration::from_millis(2010),
            "{how}: {:?}",
            began.elapsed()
        );
        assert!(farewell.forced.len() >= held, "{how}: {farewell:?}");
        member
            .tells("that it left", |event| matches!(event, Event::Left { .. }))
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_while_we_leave_is_not_followed_by_another() {
    // R7, r128
    for how in ["expire", "registration"] {
        let mut kit = Kit::new();
        kit.create("t", 1);
        kit.send("t", 1);
        let (mut member, mut streams) =
            kit.join_unread(kit.builder("h1", kit.config()), &[("t", 1)]);
        member.settled().await;
        let held = next_owned(&mut streams.get_mut(&topic("t")).unwrap()[0]).await;
        let connector = member.connector.take().unwrap();
        let session = connector.health().session.unwrap();
        let (registry, id) = (kit.registry.clone(), Kit::id_path(&member.name));
        let doom = async {
            sleep(Duration::from_millis(300)).await;
            match how {
                "expire" => assert!(registry.expire(session)),
                _ => registry.delete(&id),
            }
        };
        let began = Instant::now();
        let (farewell, ()) = tokio::join!(connector.shutdown(Duration::from_secs(10)), doom);
        assert_eq!(farewell.unwrap().forced.len(), 1, "{how}");
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "{how}: {:?}",
            began.elapsed()
        );
        drop(held);
        sleep(T).await;
        assert_eq!(
            kit.registry.sessions().len(),
            1,
            "{how}: it does not come back"
        );
        assert!(kit.members().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_done_is_committed_though_the_time_is_short() {
    // R7
    let mut kit = Kit::new();
    kit.create("t", 1);
    for _ in 0..3 {
        kit.send("t", 1);
    }
    let (mut member, mut streams) = kit.join_unread(kit.builder("h1", kit.config()), &[("t", 1)]);
    member.settled().await;
    let stream = &mut streams.get_mut(&topic("t")).unwrap()[0];
    next_owned(stream).await.ack();
    next_owned(stream).await.ack();
    let held = next_owned(stream).await;
    let began = Instant::now();
    let connector = member.connector.take().unwrap();
    let farewell = connector
        .shutdown(Duration::from_millis(800))
        .await
        .unwrap();
    assert_eq!(farewell.forced.len(), 1);
    assert!(
        began.elapsed() <= Duration::from_millis(800),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(kit.offset("t", 0).as_deref(), Some("2"));
    assert!(kit.owners("t").is_empty() && kit.members().is_empty());
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_handle_fences_at_once_and_closes_the_session() {
    // R6
    for is_cut in [false, true] {
        let mut kit = Kit::new();
        kit.create("t", 2);
        let (member, mut streams) = kit.join_unread(kit.builder("h1", kit.config()), &[("t", 2)]);
        member.settled().await;
        kit.send("t", 2);
        let streams = streams.get_mut(&topic("t")).unwrap();
        let held = next_owned(&mut streams[0]).await;
        let session = member.session();
        if is_cut {
            kit.registry.cut(session);
        }
        let began = Instant::now();
        let coordinator = member.drop_handle();
        assert!(streams[0].recv().await.is_none());
        assert!(
            streams[1].recv().await.is_none(),
            "nothing more is delivered"
        );
        held.ack();
        coordinator.await.unwrap();
        assert!(
            began.elapsed() <= Duration::from_millis(1010),
            "{:?}",
            began.elapsed()
        );
        if !is_cut {
            assert!(!kit.registry.session(session).unwrap().is_open);
            assert!(kit.members().is_empty() && kit.owners("t").is_empty());
        }
        assert_eq!(
            kit.offset("t", 0).as_deref(),
            Some("0"),
            "there is no last commit"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn leaving_goes_on_when_nobody_waits_for_it_any_more() {
    // R10
    let mut kit = Kit::slow(20, 20, 0);
    kit.create("t", 2);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.send("t", 2);
    kit.drain().await;
    let connector = member.connector.take().unwrap();
    let left = tokio::time::timeout(
        Duration::from_millis(1),
        connector.shutdown(Duration::from_secs(5)),
    );
    assert!(left.await.is_err());
    member
        .tells("that it left", |event| {
            *event == Event::Left { forced: [].into() }
        })
        .await;
    assert!(kit.members().is_empty() && kit.owners("t").is_empty());
    assert_eq!(kit.offset("t", 0).as_deref(), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn a_blocked_listener_does_not_hold_up_leaving_beyond_the_deadline() {
    // R2, R7
    let kit = Kit::new();
    kit.create("t", 2);
    let builder = kit
        .builder("h1", kit.config())
        .with_listener(std::sync::Arc::new(Diary::default()))
        .with_outside(std::sync::Arc::new(evenkeel::testing::Inline::after(
            Duration::from_secs(600),
        )));
    let mut member = kit.join_with(builder, &[("t", 1)]);
    member.settled().await;
    let connector = member.connector.take().unwrap();
    let began = Instant::now();
    let farewell = connector.shutdown(Duration::from_secs(2)).await.unwrap();
    assert!(began.elapsed() <= Duration::from_secs(2));
    let _ = farewell;
    assert!(kit.members().is_empty() && kit.owners("t").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_member_that_was_ended_says_why_to_whoever_asks() {
    let kit = Kit::new();
    kit.create("t", 1);
    let first = kit.join("h1", &[("t", 1)]);
    first.settled().await;
    let mut second = kit.join("h1", &[("t", 1)]);
    let error = second.connector().settled().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdHeld);
    let connector = second.connector.take().unwrap();
    let error = connector
        .shutdown(Duration::from_secs(1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdHeld);
}

#[tokio::test(start_paused = true)]
async fn a_successor_that_claimed_before_our_release_arrived_keeps_its_node() {
    // A7, I10
    for has_more in [false, true] {
        let mut kit = Kit::new();
        kit.create("t", 2);
        let member = kit.join("h1", &[("t", 1)]);
        member.settled().await;
        kit.send("t", 2);
        kit.drain().await;
        member.connector().commit().await.unwrap();
        if has_more {
            kit.send("t", 2);
            kit.drain().await;
        }
        // While the release is under way somebody deletes the node, and the next owner claims: made, stamped, the offset confirmed.
        let (registry, path) = (kit.registry.clone(), Kit::owner_path("t", 1));
        let (offset, successor) = (Kit::offset_path("t", 1), path.clone());
        let mut is_done = false;
        let _ = kit.registry.clone().with_fate(move |request| {
            let deletes =
                |op: &Op| matches!(op, Op::Delete { path: deleted, .. } if *deleted == path);
            if !is_done && request.ops.iter().any(deletes) {
                is_done = true;
                registry.delete(&path);
                registry.put(&path, "g_next-0");
                registry.put(&path, "g_next-0");
                registry.put(&offset, registry.text(&offset).unwrap());
            }
            Fate::Deliver
        });
        member.leave().await;
        kit.registry.without_faults();
        let text = kit.registry.text(&successor);
        assert_eq!(text.as_deref(), Some("g_next-0"), "{has_more}");
        assert_eq!(kit.owners("t").len(), 1, "what is ours is released");
    }
}
