//! One message that nobody gets done is passed, wherever it is.

use std::time::Duration;

use evenkeel::{ErrorKind, Event, MessageStream};
use tokio::time::{sleep, timeout};

use crate::kit::{Kit, Member, at, next_owned, topic, until};

const POISON: i64 = 2;

/// A member of the one partition, with so many messages there, and its stream.
async fn alone(kit: &mut Kit, messages: usize) -> (Member, MessageStream) {
    kit.create("t", 1);
    for _ in 0..messages {
        kit.send("t", 1);
    }
    let mut config = kit.config();
    config.auto_commit_interval = Duration::from_millis(100);
    let (member, mut streams) = kit.join_unread(kit.builder("h1", config), &[("t", 1)]);
    member.settled().await;
    (member, streams.remove(&topic("t")).unwrap().remove(0))
}

async fn committed(kit: &Kit, offset: i64) {
    until(&format!("{offset} is committed"), || {
        kit.offset("t", 0) == Some(offset.to_string())
    })
    .await;
}

/// The next message, lent and then done; its offset.
async fn next_lent(stream: &mut MessageStream) -> i64 {
    let lent = timeout(Duration::from_secs(60), stream.recv()).await;
    lent.expect("a message comes").unwrap().offset()
}

async fn nothing_comes(stream: &mut MessageStream) {
    let asked = timeout(Duration::from_secs(5), stream.recv_owned()).await;
    assert!(asked.is_err(), "{asked:?}");
}

fn passed(was_handed_out: bool) -> Event {
    Event::Passed {
        partition: at("t", 0),
        offset: POISON,
        was_handed_out,
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_in_somebodys_hands_is_passed() {
    let mut kit = Kit::new();
    let (mut member, mut stream) = alone(&mut kit, 5).await;
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(next_owned(&mut stream).await);
    }
    let poison = held.remove(POISON as usize);
    held.into_iter().for_each(evenkeel::Message::ack);
    committed(&kit, POISON).await;
    member.connector().pass(&at("t", 0), POISON).await.unwrap();
    committed(&kit, 5).await;
    assert!(member.told().contains(&passed(true)));
    // Its holder comes to an end after all: that changes nothing.
    poison.ack();
    let health = member.connector().health();
    assert_eq!(health.held[&at("t", 0)].undone, 0);
    kit.send("t", 1);
    next_owned(&mut stream).await.ack();
    committed(&kit, 6).await;
    assert!(member.leave().await.forced.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_left_undone_is_passed_and_delivery_goes_on_at_the_bound() {
    let mut kit = Kit::new();
    kit.create("t", 1);
    for _ in 0..12 {
        kit.send("t", 1);
    }
    let mut config = kit.config();
    config.max_unacked_messages = 3;
    config.auto_commit_interval = Duration::from_millis(100);
    let (member, mut streams) = kit.join_unread(kit.builder("h1", config), &[("t", 1)]);
    let mut stream = streams.remove(&topic("t")).unwrap().remove(0);
    for offset in 0..5 {
        let lent = stream.recv().await.unwrap();
        assert_eq!(lent.offset(), offset);
        if offset == POISON {
            lent.leave_undone();
        }
    }
    stream.done();
    nothing_comes(&mut stream).await;
    assert_eq!(kit.offset("t", 0), Some(POISON.to_string()));
    member.connector().pass(&at("t", 0), POISON).await.unwrap();
    committed(&kit, 5).await;
    // Three that are skipped take no place either.
    for offset in 5..8 {
        let passed = member.connector().pass(&at("t", 0), offset).await;
        passed.unwrap();
    }
    for offset in 8..12 {
        assert_eq!(next_lent(&mut stream).await, offset);
    }
    stream.done();
    committed(&kit, 12).await;
    member.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_not_handed_out_yet_is_skipped_when_it_comes() {
    // Fetched and waiting in the stream, or not even sent; lent or handed over; with something in hand before it or not.
    for is_sent in [true, false] {
        for is_lent in [true, false] {
            for is_held in [true, false] {
                let mut kit = Kit::new();
                let sent = if is_sent { 5 } else { 1 };
                let (mut member, mut stream) = alone(&mut kit, sent).await;
                let first = next_owned(&mut stream).await;
                let held = if is_held {
                    Some(first)
                } else {
                    first.ack();
                    None
                };
                member.connector().pass(&at("t", 0), POISON).await.unwrap();
                assert!(member.told().contains(&passed(false)));
                for _ in sent..5 {
                    kit.send("t", 1);
                }
                for offset in [1, 3, 4] {
                    if is_lent {
                        assert_eq!(next_lent(&mut stream).await, offset);
                    } else {
                        let message = next_owned(&mut stream).await;
                        assert_eq!(message.offset(), offset);
                        message.ack();
                    }
                }
                stream.done();
                if let Some(held) = held {
                    sleep(Duration::from_secs(1)).await;
                    assert_eq!(kit.offset("t", 0).as_deref(), Some("0"));
                    held.ack();
                }
                committed(&kit, 5).await;
                let health = member.connector().health();
                assert_eq!(health.held[&at("t", 0)].undone, 0);
                assert!(member.leave().await.forced.is_empty());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_message_is_skipped_and_its_offset_committed_with_nothing_behind_it() {
    let mut kit = Kit::new();
    let (member, mut stream) = alone(&mut kit, 2).await;
    for _ in 0..2 {
        next_owned(&mut stream).await.ack();
    }
    member.connector().pass(&at("t", 0), POISON).await.unwrap();
    kit.send("t", 1);
    nothing_comes(&mut stream).await;
    committed(&kit, 3).await;
    member.leave().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_passed_is_refused_and_nothing_changes() {
    let mut kit = Kit::new();
    let (mut member, mut stream) = alone(&mut kit, 5).await;
    next_owned(&mut stream).await.ack();
    let held = next_owned(&mut stream).await;
    let most = i64::from(kit.config().max_unacked_messages);
    let refused = async |partition, offset| {
        let answer = member.connector().pass(&at("t", partition), offset).await;
        let error = answer.unwrap_err();
        (error.kind(), error.to_string())
    };
    for (partition, offset, kind, word) in [
        (1, 0, ErrorKind::NotOwned, "not ours"),
        (0, 0, ErrorKind::Config, "reading is at 2"),
        (0, -1, ErrorKind::Config, "reading is at 2"),
        (0, 2 + most, ErrorKind::Config, "max.unacked.messages"),
        (0, i64::MAX, ErrorKind::Config, "max.unacked.messages"),
    ] {
        let (of, text) = refused(partition, offset).await;
        assert_eq!(of, kind, "{text}");
        assert!(text.contains(word), "{text}");
    }
    assert_eq!(
        member.connector().pass(&at("t", 0), 1 + most).await.ok(),
        Some(())
    );
    let told = member.told();
    let count = told
        .iter()
        .filter(|event| matches!(event, Event::Passed { .. }));
    assert_eq!(count.count(), 1);
    held.ack();
    committed(&kit, 2).await;
    member.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_is_passed_while_its_partition_is_given_up_and_not_after_it_was_lost() {
    let mut kit = Kit::new();
    let (member, mut stream) = alone(&mut kit, 3).await;
    for _ in 0..POISON {
        next_owned(&mut stream).await.ack();
    }
    let poison = next_owned(&mut stream).await;
    // Another takes the partition over; the drain waits for what is in hand.
    let other = kit.builder("h0", kit.config());
    let (heir, _streams) = kit.join_unread(other, &[("t", 1)]);
    let (giver, taker) = if heir.name < member.name {
        (&member, &heir)
    } else {
        panic!("choose names so that the one that comes takes over")
    };
    until("it is being given up", || {
        !giver.connector().health().held.contains_key(&at("t", 0))
    })
    .await;
    let connector = giver.connector();
    let ahead = connector.pass(&at("t", 0), POISON + 1).await;
    assert_eq!(ahead.unwrap_err().kind(), ErrorKind::NotOwned);
    connector.pass(&at("t", 0), POISON).await.unwrap();
    drop(poison);
    taker.settled().await;
    assert_eq!(kit.offset("t", 0).as_deref(), Some("3"));
    let gone = connector.pass(&at("t", 0), POISON).await;
    assert_eq!(gone.unwrap_err().kind(), ErrorKind::NotOwned);
    heir.leave().await;
    member.leave().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_passed_and_not_committed_comes_again_to_the_next_owner() {
    let mut kit = Kit::new();
    let (mut member, mut stream) = alone(&mut kit, 4).await;
    let first = next_owned(&mut stream).await;
    member.connector().pass(&at("t", 0), POISON).await.unwrap();
    kit.expire(member.session());
    member
        .tells("that its session is over", |event| {
            matches!(event, Event::SessionLost { .. })
        })
        .await;
    drop(first);
    // The same member claims it anew and knows nothing of what was said of an earlier ownership.
    for offset in 0..4 {
        let message = next_owned(&mut stream).await;
        assert_eq!(message.offset(), offset);
        message.ack();
    }
    committed(&kit, 4).await;
    member.leave().await;
}
