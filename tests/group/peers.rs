//! Members that are not ours: malformed ones, JVM members with filters, heirs that read offsets before they claim.

use std::sync::Arc;
use std::time::Duration;

use evenkeel::config::{MalformedPeer, Strategy};
use evenkeel::event::LostCause;
use evenkeel::testing::{Act, Inline};
use evenkeel::{ConsumerId, Event};
use tokio::time::{Instant, sleep};

use crate::kit::{Diary, Kit, Member, at, range, range_of, topic, until};

fn stream(member: &Member, number: u32) -> String {
    format!("{}-{number}", member.name)
}

#[tokio::test(start_paused = true)]
async fn a_malformed_registration_is_told_once_and_counts_as_absent() {
    // D1, D2, r011
    for bad in [
        "",
        "{",
        r#"{"t":1}"#,
        r#"{"version":1,"subscription":{"t":0},"pattern":"static","timestamp":"1"}"#,
    ] {
        let mut kit = Kit::new();
        kit.create("t", 4);
        let stranger = kit.stranger().await;
        stranger.register("g_bad", bad).await;
        let mut a = kit.join("h1", &[("t", 1)]);
        let b = kit.join("h2", &[("t", 1)]);
        until("they share", || kit.owners("t") == range_of(&[&a, &b], 4)).await;
        kit.send("t", 4);
        kit.drain().await;
        let c = kit.join("h3", &[("t", 1)]);
        until("they share", || {
            kit.owners("t") == range_of(&[&a, &b, &c], 4)
        })
        .await;
        let told = a.told();
        let told: Vec<&Event> = told
            .iter()
            .filter(|e| matches!(e, Event::MemberMalformed { .. }))
            .collect();
        assert_eq!(told.len(), 1, "{bad:?}");
        assert!(
            told[0].to_string().contains("/consumers/g/ids/g_bad"),
            "{}",
            told[0]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_left_and_came_back_between_two_looks_is_read_anew() {
    // W3
    let kit = Kit::new();
    kit.create("t", 4);
    kit.create("u", 4);
    let register = |name: &str| {
        let text = format!(
            r#"{{"version":1,"subscription":{{"{name}":1}},"pattern":"static","timestamp":"1"}}"#
        );
        kit.registry.put(&Kit::id_path("g_other"), text);
    };
    register("t");
    let mut config = kit.config();
    // What is overlooked stays so.
    config.registration_check_interval = Duration::from_secs(24 * 60 * 60);
    let member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    until("it has its half", || member.owned().len() == 2).await;
    // The watch tells of both at once, and the list is as it was.
    kit.registry.delete(&Kit::id_path("g_other"));
    register("u");
    until("it has all", || member.owned().len() == 4).await;
}

#[tokio::test(start_paused = true)]
async fn a_malformed_registration_stops_rebalances_if_we_are_to_do_as_a_jvm_does() {
    // D1
    let mut kit = Kit::new();
    kit.create("t", 4);
    let mut config = kit.config();
    config.malformed_peer = MalformedPeer::AsJvm;
    let a = kit.join_with(kit.builder("h1", config.clone()), &[("t", 1)]);
    a.settled().await;
    let stranger = kit.stranger().await;
    stranger.register("g_bad", "{").await;
    let b = kit.join_with(kit.builder("h2", config), &[("t", 1)]);
    sleep(Duration::from_secs(5)).await;
    kit.send("t", 4);
    kit.drain().await;
    assert_eq!(
        (a.owned().len(), b.owned().len()),
        (4, 0),
        "what is held is kept"
    );
    stranger.close().await;
    until("they share", || kit.owners("t") == range_of(&[&a, &b], 4)).await;
}

#[tokio::test(start_paused = true)]
async fn a_jvm_members_white_list_is_expanded_and_its_share_left_to_it() {
    // r110, r115, D7, D8
    let mut kit = Kit::new();
    kit.create("t1", 4);
    kit.create("u", 2);
    let stranger = kit.stranger().await;
    stranger
        .register("g_a", r#"{"version":1,"subscription":{"t.*":1},"pattern":"white_list","timestamp":"1441234567890"}"#)
        .await;
    let member = kit.join("h1", &[("t1", 1), ("u", 1), ("t2", 1)]);
    until("it has its share", || member.owned().len() == 4).await;
    let streams = ["g_a-0".to_owned(), stream(&member, 0)];
    let rule = range(&streams, 4);
    let mine: Vec<i32> = rule
        .iter()
        .filter(|(_, s)| **s == streams[1])
        .map(|(p, _)| *p)
        .collect();
    assert_eq!(kit.owners("t1").keys().copied().collect::<Vec<_>>(), mine);
    assert_eq!(kit.owners("u").len(), 2, "the pattern does not cover it");
    kit.create("t2", 4);
    until("a new topic is shared too", || kit.owners("t2").len() == 2).await;
    member.settled().await;
    stranger.close().await;
    until("all is ours", || member.owned().len() == 10).await;
    kit.send("t1", 4);
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn topics_that_a_filter_beyond_us_could_cover_are_held_and_not_newly_claimed() {
    // D7
    let mut kit = Kit::new();
    kit.create("t", 4);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    let stranger = kit.stranger().await;
    stranger
        .register("g_a", r#"{"version":1,"subscription":{"((a{100}){100}){100}":1},"pattern":"white_list","timestamp":"1441234567890"}"#)
        .await;
    member
        .tells("what is beyond us", |event| {
            matches!(event, Event::FilterBeyondUs { consumer, .. } if *consumer == ConsumerId::new("g_a"))
        })
        .await;
    kit.grow("t", 6);
    sleep(Duration::from_secs(5)).await;
    kit.send("t", 4);
    kit.drain().await;
    assert_eq!(member.owned().len(), 4, "held, and nothing new");
    stranger.close().await;
    until("the new ones too", || member.owned().len() == 6).await;
}

#[tokio::test(start_paused = true)]
async fn a_jvm_heir_is_given_time_only_if_the_last_commit_moved_something() {
    // J2
    for moves in [true, false] {
        let mut kit = Kit::new();
        kit.create("t", 4);
        let member = kit.join("h1", &[("t", 1)]);
        member.settled().await;
        kit.send("t", 4);
        kit.drain().await;
        if !moves {
            member.connector().commit().await.unwrap();
        }
        let stranger = kit.stranger().await;
        let before = kit.registry.zxid();
        stranger.register_for("g_0", "t", 1).await;
        until("it is given its half", || kit.owners("t").len() == 2).await;
        let writes = kit.registry.log_since(before);
        let time_of = |act: Act, below: &str| {
            let mut writes = writes.iter();
            writes
                .find(|w| w.act == act && w.path.starts_with(below))
                .map(|w| w.time_ms)
        };
        let deleted = time_of(Act::Delete, "/consumers/g/owners/t/").unwrap();
        let registered = time_of(Act::Create, "/consumers/g/ids/g_0").unwrap();
        if moves {
            let committed = time_of(Act::Set, "/consumers/g/offsets/t/").unwrap();
            assert!(
                (240..=260).contains(&(deleted - committed)),
                "{}",
                deleted - committed
            );
        } else {
            assert!(deleted - registered < 20, "{}", deleted - registered);
        }
        let began = Instant::now();
        let other = kit.join("h2", &[("t", 1)]);
        until("to ours it goes at once", || !other.owned().is_empty()).await;
        assert!(began.elapsed() < Duration::from_millis(50));
        member.connector().commit().await.unwrap();
        for partition in 0..4 {
            assert_eq!(kit.offset("t", partition).as_deref(), Some("1"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_somebody_wrote_over_our_offset_is_repaired_and_told_also_when_the_partition_is_given_up()
 {
    // J1, I3, O1
    for has_more in [true, false] {
        for is_to_jvm in [true, false] {
            let words = format!("more to commit: {has_more}, to a JVM: {is_to_jvm}");
            let mut kit = Kit::new();
            kit.create("t", 2);
            let mut member = kit.join("h1", &[("t", 1)]);
            member.settled().await;
            kit.send("t", 2);
            kit.send("t", 2);
            kit.drain().await;
            member.connector().commit().await.unwrap();
            member.told();
            // A JVM member that was away comes back and commits where it had been.
            kit.registry.put(&Kit::offset_path("t", 0), "1");
            kit.registry.put(&Kit::offset_path("t", 1), "9");
            if has_more {
                kit.send("t", 2);
                kit.drain().await;
            }
            let stranger = kit.stranger().await;
            if is_to_jvm {
                stranger.register_for("g_0", "t", 2).await;
                until(&words, || member.owned().is_empty()).await;
            } else {
                let connector = member.connector.take().unwrap();
                connector.shutdown(Duration::from_secs(10)).await.unwrap();
            }
            let ours = if has_more { 3 } else { 2 };
            let given = [kit.offset("t", 0), kit.offset("t", 1)];
            assert_eq!(
                given,
                [Some(ours.to_string()), Some("9".to_owned())],
                "{words}"
            );
            let told = member.told();
            let repaired = Event::RewindRepaired {
                partition: at("t", 0),
                theirs: 1,
                ours,
            };
            let ahead = Event::ForeignAdvance {
                partition: at("t", 1),
                theirs: 9,
                ours,
            };
            for event in [repaired, ahead] {
                assert!(told.contains(&event), "{words}: {event:?} in {told:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn leaving_gives_a_jvm_member_the_same_time() {
    // J2
    let mut kit = Kit::new();
    kit.create("t", 2);
    let stranger = kit.stranger().await;
    stranger.register_for("g_0", "t", 1).await;
    let member = kit.join("h1", &[("t", 1)]);
    until("it has its half", || member.owned().len() == 1).await;
    member.settled().await;
    let partition = *kit.owners("t").keys().next().unwrap();
    kit.send_to("t", partition);
    kit.drain().await;
    let began = Instant::now();
    member.leave().await;
    assert!(
        (250..300).contains(&began.elapsed().as_millis()),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn an_owner_text_without_a_stream_number_is_still_matched_to_its_member() {
    // L-5, A4
    let kit = Kit::new();
    kit.create("t", 2);
    let stranger = kit.stranger().await;
    stranger.register_for("pixy_host_1", "u", 1).await;
    stranger.own("t", 1, "pixy_host_1").await;
    let mut member = kit.join("h1", &[("t", 1)]);
    let told = member
        .tells("that it waits", |event| {
            matches!(event, Event::Waiting { .. })
        })
        .await;
    let Event::Waiting { holder, .. } = told else {
        unreachable!()
    };
    assert_eq!(holder.member, Some(ConsumerId::new("pixy_host_1")));
    stranger.close().await;
    until("it is claimed", || member.owned().len() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_outlives_its_session_degrades_the_group_and_does_not_kill_it() {
    // r031
    let mut kit = Kit::new();
    kit.create("t", 4);
    kit.registry.put(
        &Kit::id_path("g_ghost"),
        r#"{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1441234567890"}"#,
    );
    let member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    assert_eq!(member.owned().len(), 2);
    kit.send("t", 4);
    until("its half is read", || {
        kit.finished.lock().unwrap().len() == 2
    })
    .await;
    kit.registry.delete(&Kit::id_path("g_ghost"));
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_jvm_member_that_deletes_our_owner_node_is_noticed_before_we_commit() {
    // J1, A5, O1, hazards 0.5
    let mut kit = Kit::slow(5, 5, 0);
    kit.create("t", 1);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.send("t", 1);
    kit.drain().await;
    let stranger = kit.stranger().await;
    // As an old member replays after its session ended: delete, and take.
    kit.registry.delete(&Kit::owner_path("t", 0));
    let before = kit.registry.zxid();
    let committed = member.connector().commit().await;
    assert!(committed.is_err(), "{committed:?}");
    let writes = kit.writes_below("/consumers/g/offsets", before);
    let session = member.session();
    member
        .tells("the loss", |event| {
            matches!(
                event,
                Event::Lost {
                    cause: LostCause::OwnerNodeGone,
                    ..
                }
            )
        })
        .await;
    assert!(
        writes
            .iter()
            .all(|write| write.session != session || write.act == Act::Set),
        "{writes:?}"
    );
    until("it is claimed anew", || member.owned().len() == 1).await;
    drop(stranger);
}

#[tokio::test(start_paused = true)]
async fn a_topic_node_that_cannot_be_read_keeps_what_is_held() {
    // T4
    let mut kit = Kit::new();
    kit.create("t", 4);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.registry.put("/brokers/topics/t", "garbage");
    let told = member
        .tells("what is wrong", |event| {
            matches!(event, Event::TopicMalformed { .. })
        })
        .await;
    assert!(told.to_string().contains("/brokers/topics/t"), "{told}");
    let other = kit.join("h2", &[("t", 1)]);
    sleep(Duration::from_secs(5)).await;
    kit.send("t", 4);
    kit.drain().await;
    assert_eq!((member.owned().len(), other.owned().len()), (4, 0));
    kit.create("t", 4);
    until("they share", || {
        kit.owners("t") == range_of(&[&member, &other], 4)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn round_robin_deals_over_all_topics() {
    // r068, r070
    let mut kit = Kit::new();
    let names: Vec<String> = (0..12).map(|n| format!("t{n}")).collect();
    names.iter().for_each(|name| kit.create(name, 1));
    let topics: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    for (strategy, shares) in [
        (Strategy::Range, [0, 0, 12]),
        (Strategy::RoundRobin, [4, 4, 4]),
    ] {
        let mut config = kit.config();
        config.strategy = strategy;
        let members: Vec<Member> = (0..3)
            .map(|n| kit.join_with(kit.builder(&format!("h{n}"), config.clone()), &topics))
            .collect();
        until("they share", || {
            let mut owned: Vec<usize> = members.iter().map(|member| member.owned().len()).collect();
            owned.sort_unstable();
            owned == shares
        })
        .await;
        names.iter().for_each(|name| kit.send(name, 1));
        kit.drain().await;
        for member in members {
            member.leave().await;
        }
    }
    let _ = topic("t0");
}

#[tokio::test(start_paused = true)]
async fn more_streams_than_partitions_is_no_trouble() {
    // r061, r062, r073
    let mut kit = Kit::new();
    kit.create("t", 4);
    let mut member = kit.join("h1", &[("t", 24)]);
    member.settled().await;
    kit.send("t", 4);
    kit.drain().await;
    let told = member.told();
    assert!(
        told.iter()
            .all(|event| !matches!(event, Event::Warning { .. } | Event::Waiting { .. })),
        "{told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_moves_between_our_own_streams_is_handed_over_like_any_other() {
    // r088
    let mut kit = Kit::new();
    kit.create("t", 6);
    let diary = Diary::default();
    let builder = kit
        .builder("h1", kit.config())
        .with_listener(Arc::new(diary.clone()))
        .with_outside(Arc::new(Inline::new()));
    let member = kit.join_with(builder, &[("t", 2)]);
    member.settled().await;
    for _ in 0..3 {
        kit.send("t", 6);
        let other = kit.join("h2", &[("t", 1)]);
        let all = [stream(&member, 0), stream(&member, 1), stream(&other, 0)];
        until("they share", || kit.owners("t") == range(&all, 6)).await;
        kit.send("t", 6);
        other.leave().await;
        until("it has all", || kit.owners("t") == range(&all[..2], 6)).await;
    }
    kit.drain().await;
    assert_eq!(kit.duplicates(), 0);
}
