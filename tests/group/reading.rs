//! Reading: lending, handing over, acknowledging, bounds, lapses and trouble.

use std::time::Duration;

use evenkeel::testing::{Act, Record};
use evenkeel::{Config, Event, Message, MessageStream};
use futures_util::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep, timeout};

use crate::kit::{Kit, Member, T, at, next_owned, topic, until};

/// One member with one stream, nothing of which is read yet.
fn alone(kit: &Kit, config: Config) -> (Member, MessageStream) {
    let (member, mut streams) = kit.join_unread(kit.builder("h1", config), &[("t", 1)]);
    let stream = streams.remove(&topic("t")).unwrap().remove(0);
    (member, stream)
}

async fn committed(kit: &Kit, member: &Member, partition: i32) -> i64 {
    member.connector().commit().await.unwrap();
    kit.offset("t", partition).unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn asking_for_the_next_message_marks_the_lent_one_done() {
    // O5
    let mut kit = Kit::new();
    kit.create("t", 1);
    for _ in 0..3 {
        kit.send("t", 1);
    }
    let (member, mut stream) = alone(&kit, kit.config());
    member.settled().await;
    for offset in 0..3 {
        let message = stream.recv().await.unwrap();
        assert_eq!((message.offset(), message.partition()), (offset, 0));
        assert_eq!(message.payload(), Some(&b"t-0"[..]));
        assert!(message.is_valid());
        assert_eq!(committed(&kit, &member, 0).await, offset, "it is only lent");
    }
    assert!(stream.recv().now_or_never().is_none());
    assert_eq!(
        committed(&kit, &member, 0).await,
        3,
        "the first poll marks it done"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lent_message_can_be_finished_without_asking_for_the_next() {
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    let (member, mut stream) = alone(&kit, kit.config());
    stream.recv().await.unwrap();
    stream.done();
    assert_eq!(committed(&kit, &member, 0).await, 1);
    member.leave().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_still_lent_when_the_stream_is_dropped_is_not_done() {
    // O5
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    let (member, mut stream) = alone(&kit, kit.config());
    stream.recv().await.unwrap();
    drop(stream);
    assert_eq!(committed(&kit, &member, 0).await, 0);
    let began = Instant::now();
    member.leave().await;
    assert!(
        began.elapsed() < Duration::from_millis(100),
        "nothing is in hand any more"
    );
    assert_eq!(kit.offset("t", 0).as_deref(), Some("0"));
}

#[tokio::test(start_paused = true)]
async fn a_message_left_undone_is_never_passed_by_a_commit_and_comes_again() {
    // I4
    let mut kit = Kit::new();
    kit.create("t", 1);
    for _ in 0..4 {
        kit.send("t", 1);
    }
    let (member, mut stream) = alone(&kit, kit.config());
    stream.recv().await.unwrap();
    let failed = stream.recv().await.unwrap();
    assert_eq!(failed.offset(), 1);
    failed.leave_undone();
    stream.recv().await.unwrap();
    stream.recv().await.unwrap();
    assert!(stream.recv().now_or_never().is_none());
    assert_eq!(committed(&kit, &member, 0).await, 1);
    member.leave().await;
    assert_eq!(kit.offset("t", 0).as_deref(), Some("1"));
    let next = kit.join("h2", &[("t", 1)]);
    next.settled().await;
    until("it comes again", || kit.finished.lock().unwrap().len() == 3).await;
}

#[tokio::test(start_paused = true)]
async fn acknowledgements_count_in_any_order_and_only_the_unbroken_part_is_committed() {
    // O6
    let mut kit = Kit::new();
    kit.create("t", 1);
    // Offsets 0, 3, 4, 9: a compacted log, a transaction.
    kit.send_to("t", 0);
    kit.log.skip(&at("t", 0), 2).unwrap();
    kit.send_to("t", 0);
    kit.send_to("t", 0);
    kit.log.skip(&at("t", 0), 4).unwrap();
    kit.send_to("t", 0);
    let (member, mut stream) = alone(&kit, kit.config());
    let mut messages = Vec::new();
    for offset in [0, 3, 4, 9] {
        let message = next_owned(&mut stream).await;
        assert_eq!(message.offset(), offset);
        messages.push(message);
    }
    let mut ack = |place: usize| messages.remove(place).ack();
    ack(3);
    assert_eq!(committed(&kit, &member, 0).await, 0);
    ack(0);
    assert_eq!(committed(&kit, &member, 0).await, 1);
    ack(1);
    assert_eq!(committed(&kit, &member, 0).await, 1);
    let last: Message = messages.remove(0);
    // From any thread.
    std::thread::spawn(move || last.ack()).join().unwrap();
    assert_eq!(committed(&kit, &member, 0).await, 10);
}

#[tokio::test(start_paused = true)]
async fn both_ways_of_reading_may_be_mixed() {
    // O6
    let mut kit = Kit::new();
    kit.create("t", 1);
    for _ in 0..6 {
        kit.send("t", 1);
    }
    let (member, mut stream) = alone(&kit, kit.config());
    assert_eq!(stream.recv().await.unwrap().offset(), 0);
    let owned = next_owned(&mut stream).await;
    assert_eq!(committed(&kit, &member, 0).await, 1, "the lent one is done");
    let (token, copy) = owned.detach();
    assert_eq!((token.offset(), copy.offset), (1, 1));
    let mut many = stream.recv_many(2).await;
    assert_eq!(many.len(), 2);
    assert!(stream.recv_many(0).await.is_empty());
    let copied = many.remove(0).into_copied();
    assert_eq!(copied.payload(), Some(&b"t-0"[..]));
    copied.ack();
    token.ack();
    many.remove(0).ack();
    let mut messages = stream.into_messages();
    for offset in 4..6 {
        let message = messages.next().await.unwrap();
        assert_eq!(message.offset(), offset);
        message.ack();
    }
    assert_eq!(committed(&kit, &member, 0).await, 6);
    member.leave().await;
    assert!(messages.next().await.is_none(), "it ends with the member");
}

#[tokio::test(start_paused = true)]
async fn tombstones_keys_headers_and_times_come_through() {
    let kit = Kit::new();
    kit.create("t", 1);
    let record = Record {
        key: Some(b"k".to_vec()),
        payload: None,
        timestamp_ms: Some(77),
        headers: vec![("h".into(), Some(b"1".to_vec())), ("h".into(), None)],
    };
    kit.log.append(&at("t", 0), record).unwrap();
    let (_member, mut stream) = alone(&kit, kit.config());
    let message = next_owned(&mut stream).await;
    assert_eq!((message.key(), message.payload()), (Some(&b"k"[..]), None));
    assert_eq!(message.timestamp_ms(), Some(77));
    assert_eq!(message.headers(), [("h", Some(&b"1"[..])), ("h", None)]);
    assert_eq!(message.topic_partition(), &at("t", 0));
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_partition_come_in_order_and_partitions_take_turns() {
    // I5
    let mut kit = Kit::new();
    kit.create("t", 3);
    for _ in 0..2000 {
        kit.send("t", 3);
    }
    let (member, mut stream) = alone(&kit, kit.config());
    member.settled().await;
    let mut next = [0i64; 3];
    let mut longest = 0;
    let mut run = (0, 0);
    for _ in 0..6000 {
        let message = stream.recv().await.unwrap();
        let partition = message.partition() as usize;
        assert_eq!(message.offset(), next[partition]);
        next[partition] += 1;
        run = if run.0 == partition {
            (partition, run.1 + 1)
        } else {
            (partition, 1)
        };
        longest = longest.max(run.1);
    }
    assert!(longest <= 1000, "{longest}");
}

#[tokio::test(start_paused = true)]
async fn a_message_dropped_without_ack_is_told_and_stops_delivery_at_the_bound() {
    // R4
    let mut kit = Kit::new();
    kit.create("t", 2);
    let mut config = kit.config();
    config.max_unacked_messages = 10;
    config.unacked_warn_age = Duration::from_secs(20);
    config.registration_check_interval = Duration::from_secs(5);
    let (mut member, mut streams) = kit.join_unread(kit.builder("h1", config), &[("t", 2)]);
    let mut streams = streams.remove(&topic("t")).unwrap();
    member.settled().await;
    for _ in 0..30 {
        kit.send("t", 2);
    }
    drop(next_owned(&mut streams[0]).await);
    for _ in 0..9 {
        next_owned(&mut streams[0]).await.ack();
    }
    assert!(
        streams[0].recv_owned().now_or_never().is_none(),
        "the bound is reached"
    );
    for _ in 0..30 {
        next_owned(&mut streams[1]).await.ack();
    }
    let told = member
        .tells("the age", |event| {
            matches!(event, Event::Unacknowledged { .. })
        })
        .await;
    let Event::Unacknowledged {
        partition,
        offset,
        age,
        is_at_bound,
    } = told
    else {
        unreachable!()
    };
    assert_eq!((offset, is_at_bound), (0, true));
    assert!(age >= Duration::from_secs(20));
    let holding = &member.connector().health().held[&partition];
    assert_eq!((holding.undone, holding.oldest.unwrap().0), (10, 0));
    sleep(Duration::from_secs(60)).await;
    let again = member.told();
    let again = again
        .iter()
        .filter(|event| matches!(event, Event::Unacknowledged { .. }));
    assert_eq!(again.count(), 0, "told once");
    // It is not in anybody's hands any more, so that nobody waits for it.
    let began = Instant::now();
    member.leave().await;
    assert!(
        began.elapsed() < Duration::from_millis(100),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn an_acknowledgement_frees_a_stream_at_its_bound() {
    // R4
    let mut kit = Kit::new();
    kit.create("t", 1);
    let mut config = kit.config();
    config.max_unacked_bytes = 8;
    for _ in 0..6 {
        kit.send("t", 1);
    }
    let (_member, mut stream) = alone(&kit, config);
    let mut held = Vec::new();
    for _ in 0..3 {
        // Three bytes each.
        held.push(next_owned(&mut stream).await);
    }
    let waiting = tokio::spawn(async move { stream.recv_owned().await.unwrap().offset() });
    sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished());
    held.remove(0).ack();
    assert_eq!(waiting.await.unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_token_of_an_earlier_ownership_is_counted_and_changes_nothing() {
    // O7
    let mut kit = Kit::new();
    kit.create("t", 1);
    for _ in 0..3 {
        kit.send("t", 1);
    }
    let (mut member, mut stream) = alone(&kit, kit.config());
    let old: Vec<Message> = stream.recv_many(3).await;
    let token = old[0].token();
    kit.registry.delete(&Kit::owner_path("t", 0));
    member
        .tells("the loss", |event| {
            matches!(event, Event::Lost { undone: 3, .. })
        })
        .await;
    let again = next_owned(&mut stream).await;
    assert_eq!(again.offset(), 0, "it is delivered again");
    assert!(again.token() > token, "tokens rise from owner to owner");
    for message in old {
        assert!(!message.is_valid());
        message.ack();
    }
    assert_eq!(committed(&kit, &member, 0).await, 0);
    assert_eq!(member.connector().health().late_acks, 3);
}

#[tokio::test(start_paused = true)]
async fn a_token_from_before_a_reset_does_not_count_for_the_same_offset_after_it() {
    // O7, O9
    let mut kit = Kit::new();
    kit.create("t", 1);
    for _ in 0..3 {
        kit.send("t", 1);
    }
    let (mut member, mut stream) = alone(&kit, kit.config());
    let old: Vec<Message> = stream.recv_many(3).await;
    kit.log.delete(&topic("t"));
    kit.log.create(&topic("t"), 1);
    kit.log.append(&at("t", 0), Record::new("new")).unwrap();
    let new = next_owned(&mut stream).await;
    member
        .tells("the reset", |event| {
            matches!(event, Event::OffsetReset { from: Some(3), .. })
        })
        .await;
    assert_eq!((new.offset(), new.payload()), (0, Some(&b"new"[..])));
    for message in old {
        message.ack();
    }
    assert_eq!(committed(&kit, &member, 0).await, 0);
    new.ack();
    assert_eq!(committed(&kit, &member, 0).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_left_behind_after_the_drain_and_holds_up_nothing_else() {
    // R4, r044, r094
    let mut kit = Kit::new();
    kit.create("t", 4);
    for _ in 0..2 {
        kit.send("t", 4);
    }
    let mut config = kit.config();
    config.drain_timeout = Duration::from_secs(3);
    let (mut slow, mut streams) = kit.join_unread(kit.builder("h1", config), &[("t", 1)]);
    slow.settled().await;
    let mut stream = streams.remove(&topic("t")).unwrap().remove(0);
    // It holds the first message of every partition, finishes those of two, and does nothing more.
    let mut held: Vec<Message> = Vec::new();
    while held.len() < 4 {
        let message = next_owned(&mut stream).await;
        if held
            .iter()
            .any(|other| other.partition() == message.partition())
        {
            message.ack();
        } else {
            held.push(message);
        }
    }
    let began = Instant::now();
    // Whichever half moves: one of each half is still in hand.
    held.retain(|message| message.partition() % 2 == 0);
    let other = kit.join("h2", &[("t", 1)]);
    until("what is not in hand moves at once", || {
        other.owned().len() == 1
    })
    .await;
    assert!(
        began.elapsed() < Duration::from_millis(200),
        "{:?}",
        began.elapsed()
    );
    until("the rest moves by force", || other.owned().len() == 2).await;
    assert!(
        began.elapsed() >= Duration::from_secs(3) && began.elapsed() < Duration::from_millis(3200),
        "{:?}",
        began.elapsed()
    );
    let mut forced = Vec::new();
    for event in slow.told() {
        if let Event::Released {
            partition,
            is_forced: true,
            undone,
            ..
        } = event
        {
            assert!(undone > 0);
            forced.push(partition);
        }
    }
    assert_eq!(forced.len(), 1);
    other.settled().await;
    let of_forced = held
        .iter()
        .find(|message| *message.topic_partition() == forced[0]);
    assert!(!of_forced.unwrap().is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_when_the_last_message_in_hand_is_done() {
    // r044
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    let (member, mut stream) = alone(&kit, kit.config());
    let held = next_owned(&mut stream).await;
    kit.send("t", 1);
    let finisher = tokio::spawn(async move {
        sleep(Duration::from_millis(700)).await;
        held.ack();
    });
    let began = Instant::now();
    assert!(member.leave().await.forced.is_empty());
    assert_eq!(began.elapsed().as_millis() / 100, 7);
    finisher.await.unwrap();
    assert_eq!(kit.offset("t", 0).as_deref(), Some("1"));
    assert!(
        stream.recv().await.is_none(),
        "nothing more comes after the fence"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lapse_pauses_delivery_and_nothing_is_lost_or_doubled() {
    // S1, S2, S5, N1, N3, r056
    let mut kit = Kit::new();
    kit.create("t", 2);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    for round in 0..5 {
        kit.send("t", 2);
        kit.drain().await;
        let before = kit.registry.zxid();
        kit.registry.cut(member.session());
        until("the lease lapses", || {
            member.connector().health().lease_left == Some(Duration::ZERO)
        })
        .await;
        kit.send("t", 2);
        sleep(T / 6).await;
        assert!(!kit.is_all_finished(), "round {round}");
        kit.registry.heal(member.session());
        kit.drain().await;
        assert_eq!(
            kit.writes_below("/consumers/g/owners", before),
            [],
            "nothing is claimed anew"
        );
    }
    assert_eq!(kit.duplicates(), 0);
    let told = member.told();
    assert_eq!(
        told.iter()
            .filter(|event| matches!(event, Event::Lapsed))
            .count(),
        5
    );
    assert_eq!(
        told.iter()
            .filter(|event| matches!(event, Event::Resumed { .. }))
            .count(),
        5
    );
}

#[tokio::test(start_paused = true)]
async fn no_quorum_for_minutes_is_a_pause_and_no_rebalance() {
    // S11, N7, r026, r028
    for outage in [T + Duration::from_secs(1), Duration::from_secs(5 * 60)] {
        let mut kit = Kit::new();
        kit.create("t", 6);
        let members: Vec<Member> = (0..3)
            .map(|n| kit.join(&format!("h{n}"), &[("t", 1)]))
            .collect();
        for member in &members {
            member.settled().await;
        }
        until("they share", || {
            members.iter().all(|member| member.owned().len() == 2)
        })
        .await;
        kit.send("t", 6);
        kit.drain().await;
        for member in &members {
            member.connector().commit().await.unwrap();
        }
        let (before, owners) = (kit.registry.zxid(), kit.owners("t"));
        kit.registry.halt();
        sleep(outage / 2).await;
        kit.send("t", 6);
        sleep(outage / 2).await;
        assert!(!kit.is_all_finished());
        assert_eq!(kit.owners("t"), owners);
        kit.registry.resume();
        kit.drain().await;
        for member in &members {
            member.settled().await;
        }
        assert_eq!(kit.owners("t"), owners);
        assert_eq!(kit.duplicates(), 0);
        // After 1.4 timeouts a client gives its session up by itself. The member comes back in another, and to its own.
        let writes = kit.writes_below("/consumers/g/owners/t/", before);
        let is_short = outage < T * 7 / 5;
        assert_eq!(writes.is_empty(), is_short, "{writes:?}");
        for made in writes.iter().filter(|write| write.act == Act::Create) {
            let (_, partition) = made.path.rsplit_once('/').unwrap();
            let owner = &owners[&partition.parse().unwrap()];
            assert_eq!(made.data.as_deref(), Some(owner.as_bytes()), "{made:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_process_delivers_nothing_when_it_wakes_up_too_late() {
    // S1, r151, r148
    let mut kit = Kit::new();
    kit.create("t", 1);
    let (mut old, mut stream) = alone(&kit, kit.config());
    old.settled().await;
    kit.registry.cut(old.session());
    kit.send("t", 1);
    // It sleeps for three timeouts; another takes over and reads.
    let other = kit.join("h2", &[("t", 1)]);
    sleep(T / 2 + Duration::from_millis(1)).await;
    assert!(
        stream.recv_owned().now_or_never().is_none(),
        "its lease is over"
    );
    kit.drain().await;
    let first = timeout(T * 3, stream.recv_owned()).await;
    assert!(first.is_err(), "{first:?}");
    old.tells("that it is over", |event| {
        matches!(event, Event::SessionLost { .. })
    })
    .await;
    until("one owns it", || {
        other.owned().len() + old.owned().len() == 1
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn trouble_with_one_partition_is_told_and_tried_again_from_the_same_place() {
    // K6, T5
    let mut kit = Kit::new();
    kit.create("t", 2);
    kit.send("t", 2);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.drain().await;
    for _ in 0..3 {
        let bad = evenkeel::stream::Trouble::Failed("bad batch".into());
        kit.log.trouble(&at("t", 0), &bad);
        kit.send("t", 2);
        member
            .tells("the trouble", |event| {
                matches!(event, Event::ReadFailed { partition: Some(p), reason } if *p == at("t", 0) && reason == "bad batch")
            })
            .await;
        kit.drain().await;
    }
    assert_eq!(kit.duplicates(), 0);
    assert_eq!(member.owned().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_a_broker_the_share_is_kept_and_that_is_told() {
    // K6, N3, r130
    let mut kit = Kit::new();
    kit.create("t", 2);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.log.go_down("all brokers are down");
    member
        .tells("that they are down", |event| {
            matches!(event, Event::BrokersMissing { reason } if reason == "all brokers are down")
        })
        .await;
    until("health says so", || {
        !member.connector().health().has_brokers
    })
    .await;
    sleep(T * 3).await;
    assert_eq!(member.owned().len(), 2);
    kit.send("t", 2);
    kit.log.come_up();
    member
        .tells("that they are back", |event| {
            matches!(event, Event::BrokersBack)
        })
        .await;
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_partition_without_a_leader_is_held_and_the_others_flow() {
    // T5, r052
    let mut kit = Kit::new();
    kit.create("t", 2);
    kit.log.set_leader(&at("t", 0), false).unwrap();
    let member = kit.join("h1", &[("t", 1)]);
    until("it holds both", || member.owned().len() == 2).await;
    kit.send_to("t", 1);
    kit.drain().await;
    kit.send_to("t", 0);
    sleep(Duration::from_secs(10)).await;
    kit.log.set_leader(&at("t", 0), true).unwrap();
    kit.drain().await;
    member.settled().await;
}
