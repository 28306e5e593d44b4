//! The listener: what it is told, when, and what it may do to the member.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use evenkeel::listener::RebalanceListener;
use evenkeel::testing::Inline;
use evenkeel::{Event, Message, TopicPartition};
use tokio::time::{Instant, sleep};

use crate::kit::{Diary, Kit, Member, next_owned, topic, until};

fn listened(kit: &Kit, host: &str, diary: &Diary) -> Member {
    let builder = kit
        .builder(host, kit.config())
        .with_listener(Arc::new(diary.clone()));
    kit.join_with(builder, &[("t", 1)])
}

#[tokio::test(start_paused = true)]
async fn calls_alternate_for_each_partition() {
    // I11
    let mut kit = Kit::slow(0, 10, 4);
    kit.create("t", 6);
    let diary = Diary::default();
    let mut member = listened(&kit, "h1", &diary);
    member.settled().await;
    assert_eq!(diary.names(), ["after_claim"]);
    for round in 0..6 {
        kit.send("t", 6);
        let other = kit.join(&format!("o{round}"), &[("t", 1)]);
        until("they share", || {
            other.owned().len() == 3 && member.owned().len() == 3
        })
        .await;
        if round % 2 == 0 {
            kit.registry.expire(member.session());
            member
                .tells("that it is back", |event| {
                    matches!(event, Event::Joined { .. })
                })
                .await;
        }
        other.leave().await;
        until("it has all", || member.owned().len() == 6).await;
    }
    kit.drain().await;
    member.leave().await;
    let mut ours = std::collections::BTreeSet::new();
    for (call, partitions) in diary.calls() {
        for partition in partitions {
            match call {
                "after_claim" => assert!(ours.insert(partition), "claimed twice"),
                _ => assert!(
                    ours.remove(&partition),
                    "{call} {partition} without a claim"
                ),
            }
        }
    }
    assert!(ours.is_empty());
    assert!(diary.names().contains(&"on_lost") && diary.names().contains(&"before_release"));
}

#[tokio::test(start_paused = true)]
async fn what_is_acknowledged_in_before_release_is_committed_before_the_release() {
    // R3, hazards 2.6
    for auto_commit in [true, false] {
        let mut kit = Kit::new();
        kit.create("t", 1);
        kit.send("t", 1);
        let mut config = kit.config();
        config.auto_commit = auto_commit;
        config.drain_timeout = Duration::from_millis(500);
        let diary = Diary::default();
        let builder = kit
            .builder("h1", config)
            .with_listener(Arc::new(diary.clone()));
        let (member, mut streams) = kit.join_unread(builder, &[("t", 1)]);
        member.settled().await;
        let message = next_owned(&mut streams.get_mut(&topic("t")).unwrap()[0]).await;
        let (token, _) = message.detach();
        let in_hand = Arc::new(Mutex::new(Some(token)));
        let owner = kit.registry.clone();
        *diary.on_release.lock().unwrap() = Some(Box::new(move |_| {
            assert!(
                owner.text(&Kit::owner_path("t", 0)).is_some(),
                "it is still ours"
            );
            if let Some(token) = in_hand.lock().unwrap().take() {
                token.ack();
            }
        }));
        let farewell = member.leave().await;
        assert_eq!(diary.names(), ["after_claim", "before_release"]);
        let expected = if auto_commit { "1" } else { "0" };
        assert_eq!(kit.offset("t", 0).as_deref(), Some(expected));
        assert!(farewell.forced.is_empty(), "all was done in the end");
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_asked_for_while_a_partition_is_given_up_covers_it_without_auto_commit() {
    // R3, docs/moving.md
    let mut kit = Kit::new();
    kit.create("t", 2);
    kit.send("t", 2);
    let mut config = kit.config();
    config.auto_commit = false;
    let diary = Diary::default();
    // The listener takes half a second, in which a commit is asked for, as it may itself.
    let builder = kit
        .builder("h1", config)
        .with_listener(Arc::new(diary.clone()))
        .with_outside(Arc::new(Inline::after(Duration::from_millis(500))));
    let member = kit.join_with(builder, &[("t", 1)]);
    member.settled().await;
    kit.drain().await;
    sleep(Duration::from_secs(1)).await;
    let other = kit.join("h2", &[("t", 1)]);
    until("one is given up", || member.owned().len() == 1).await;
    sleep(Duration::from_millis(100)).await;
    member.connector().commit().await.unwrap();
    until("it moved", || other.owned().len() == 1).await;
    for partition in 0..2 {
        assert_eq!(kit.offset("t", partition).as_deref(), Some("1"));
    }
    assert_eq!(kit.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_slow_listener_is_overrun_at_its_deadline_and_blocks_nobody_else() {
    // R2
    let mut kit = Kit::new();
    kit.create("t", 2);
    kit.send("t", 2);
    let diary = Diary::default();
    let builder = kit
        .builder("h1", kit.config())
        .with_listener(Arc::new(diary.clone()))
        .with_outside(Arc::new(Inline::after(Duration::from_secs(60))));
    let mut member = kit.join_with(builder, &[("t", 1)]);
    member.settled().await;
    kit.drain().await;
    member
        .tells("that after_claim was overrun", |event| {
            matches!(
                event,
                Event::ListenerFailed {
                    call: "after_claim",
                    ..
                }
            )
        })
        .await;
    let began = Instant::now();
    let other = kit.join("h2", &[("t", 1)]);
    sleep(Duration::from_millis(500)).await;
    kit.send("t", 2);
    until("what stays is read meanwhile", || {
        !kit.finished.lock().unwrap()[2..].is_empty()
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(1));
    until("the other has its share", || other.owned().len() == 1).await;
    assert!(
        began.elapsed() <= Duration::from_millis(3100),
        "{:?}",
        began.elapsed()
    );
    let told = member
        .tells("that it was overrun", |event| {
            matches!(
                event,
                Event::ListenerFailed {
                    call: "before_release",
                    ..
                }
            )
        })
        .await;
    assert!(told.to_string().contains("within its time"), "{told}");
    kit.drain().await;
    assert_eq!(
        kit.duplicates(),
        0,
        "what was done was committed nevertheless"
    );
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_takes_its_time_after_a_claim_is_waited_for_by_nobody() {
    // R2
    let mut kit = Kit::new();
    kit.create("t", 2);
    kit.send("t", 2);
    let diary = Diary::default();
    let builder = kit
        .builder("h1", kit.config())
        .with_listener(Arc::new(diary.clone()))
        .with_outside(Arc::new(Inline::after(Duration::from_secs(2))));
    let began = Instant::now();
    let member = kit.join_with(builder, &[("t", 1)]);
    kit.drain().await;
    member.connector().commit().await.unwrap();
    assert_eq!(kit.offset("t", 1).as_deref(), Some("1"));
    assert!(
        began.elapsed() < Duration::from_millis(100),
        "{:?}",
        began.elapsed()
    );
    assert!(diary.calls().is_empty(), "it is not done yet");
    until("it is", || diary.names() == ["after_claim"]).await;
}

struct Panicking;

impl RebalanceListener for Panicking {
    fn before_release(&self, _: &std::collections::BTreeSet<TopicPartition>) {
        panic!("in release");
    }
    fn after_claim(&self, _: &std::collections::BTreeMap<TopicPartition, evenkeel::StreamId>) {
        panic!("in claim");
    }
    fn on_lost(
        &self,
        _: &std::collections::BTreeSet<TopicPartition>,
        _: evenkeel::event::LostCause,
    ) {
        panic!("in loss");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_listener_is_caught_and_told() {
    // R1
    let mut kit = Kit::new();
    kit.create("t", 2);
    let builder = kit
        .builder("h1", kit.config())
        .with_listener(Arc::new(Panicking));
    let mut member = kit.join_with(builder, &[("t", 1)]);
    let mut failed = async |call: &'static str, words: &'static str| {
        member
            .tells(call, |event| {
                matches!(event, Event::ListenerFailed { call: of, reason } if *of == call && reason.contains(words))
            })
            .await;
    };
    failed("after_claim", "in claim").await;
    let other = kit.join("h2", &[("t", 1)]);
    failed("before_release", "in release").await;
    until("the other has its share", || other.owned().len() == 1).await;
    kit.registry.expire(member.session());
    member
        .tells("on_lost", |event| {
            matches!(event, Event::ListenerFailed { call: "on_lost", reason } if reason.contains("in loss"))
        })
        .await;
    kit.send("t", 2);
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_told_and_nothing_of_it_is_committed_afterwards() {
    // I11, A5
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    let diary = Diary::default();
    let builder = kit
        .builder("h1", kit.config())
        .with_listener(Arc::new(diary.clone()));
    let (member, mut streams) = kit.join_unread(builder, &[("t", 1)]);
    member.settled().await;
    let held: Message = next_owned(&mut streams.get_mut(&topic("t")).unwrap()[0]).await;
    let before = kit.registry.zxid();
    kit.registry.refuse("for a moment");
    kit.registry.expire(member.session());
    until("it is told", || diary.names() == ["after_claim", "on_lost"]).await;
    held.ack();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(kit.writes_below("/consumers/g/offsets", before), []);
}
