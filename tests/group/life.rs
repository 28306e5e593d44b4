//! Joining, sharing, leaving, dying.

use std::time::Duration;

use evenkeel::Event;

use crate::kit::{Kit, T, until};

#[tokio::test(start_paused = true)]
async fn one_member_owns_and_reads_everything() {
    let mut kit = Kit::new();
    kit.create("t", 4);
    kit.send("t", 4);
    let member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    assert_eq!(kit.owners("t").len(), 4);
    kit.drain().await;
    assert!(member.leave().await.forced.is_empty());
    assert_eq!(kit.offset("t", 3).as_deref(), Some("1"));
    assert_eq!(kit.members(), Vec::<String>::new());
    assert!(kit.owners("t").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_gets_its_share_and_only_the_difference_moves() {
    let mut kit = Kit::new();
    kit.create("t", 12);
    let first = kit.join("h1", &[("t", 1)]);
    first.settled().await;
    kit.send("t", 12);
    let before = kit.registry.zxid();
    let second = kit.join("h2", &[("t", 1)]);
    until("both have half", || {
        first.owned().len() == 6 && second.owned().len() == 6
    })
    .await;
    second.settled().await;
    let owner_writes = kit
        .registry
        .log_since(before)
        .into_iter()
        .filter(|write| write.path.contains("/owners/t/"));
    assert!(owner_writes.clone().count() >= 12);
    let touched: std::collections::BTreeSet<String> =
        owner_writes.map(|write| write.path).collect();
    assert_eq!(touched.len(), 6, "only what moves is touched");
    kit.send("t", 12);
    kit.drain().await;
    assert_eq!(kit.duplicates(), 0, "a clean hand-over doubles none");
}

#[tokio::test(start_paused = true)]
async fn when_one_leaves_the_other_takes_over_at_once() {
    let mut kit = Kit::new();
    kit.create("t", 6);
    let first = kit.join("h1", &[("t", 1)]);
    let second = kit.join("h2", &[("t", 1)]);
    first.settled().await;
    second.settled().await;
    until("both share", || {
        first.owned().len() == 3 && second.owned().len() == 3
    })
    .await;
    kit.send("t", 6);
    let started = tokio::time::Instant::now();
    first.leave().await;
    until("the other has all", || second.owned().len() == 6).await;
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
    kit.send("t", 6);
    kit.drain().await;
    assert_eq!(kit.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_dead_members_share_is_taken_when_its_session_ends() {
    let mut kit = Kit::new();
    kit.create("t", 6);
    let first = kit.join("h1", &[("t", 1)]);
    let second = kit.join("h2", &[("t", 1)]);
    until("both share", || {
        first.owned().len() == 3 && second.owned().len() == 3
    })
    .await;
    kit.send("t", 6);
    first.die(&kit.registry);
    until("the other has all", || second.owned().len() == 6).await;
    kit.send("t", 6);
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_is_replaced() {
    let mut kit = Kit::new();
    kit.create("t", 4);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.registry.expire(member.session());
    member
        .tells("the loss", |event| {
            matches!(event, Event::SessionLost { .. })
        })
        .await;
    member
        .tells("that it is back", |event| {
            matches!(event, Event::Joined { .. })
        })
        .await;
    member.settled().await;
    kit.send("t", 4);
    kit.drain().await;
    assert_eq!(kit.members().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_cut_off_stops_before_its_session_can_end() {
    let mut kit = Kit::new();
    kit.create("t", 2);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.registry.cut(member.session());
    let cut = tokio::time::Instant::now();
    member
        .tells("that it lapsed", |event| matches!(event, Event::Lapsed))
        .await;
    assert!(
        cut.elapsed() <= T / 2 + Duration::from_millis(50),
        "{:?}",
        cut.elapsed()
    );
    kit.send("t", 2);
    tokio::time::sleep(T / 4).await;
    assert!(
        kit.finished.lock().unwrap().is_empty(),
        "nothing is delivered without a lease"
    );
    kit.registry.heal(member.session());
    kit.drain().await;
    member
        .tells("that it resumed", |event| {
            matches!(event, Event::Resumed { .. })
        })
        .await;
    assert_eq!(member.owned().len(), 2);
}
