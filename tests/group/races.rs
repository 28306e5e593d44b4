//! Races: what changes between our reading and our writing, and what is answered after it no longer matters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel::Event;
use evenkeel::config::Reset;
use evenkeel::event::LostCause;
use evenkeel::registry::Op;
use evenkeel::testing::{Fate, Kind, MemoryRegistry, Record, Request};
use evenkeel::wire::encode_topic;
use tokio::time::{Instant, sleep};

use crate::kit::{GROUP, Kit, Member, at, next_owned, range, topic, until};

fn old_or_new(version: u32) -> Kit {
    let registry = MemoryRegistry::new().with_version(3, version);
    Kit::on(registry.with_tick(Duration::from_millis(500)))
}

fn creates(request: &Request, path: &str) -> bool {
    let is_it = |op: &Op| matches!(op, Op::Create { path: at, .. } if at == path);
    request.ops.iter().any(is_it)
}

fn deletes(request: &Request, path: &str) -> bool {
    let is_it = |op: &Op| matches!(op, Op::Delete { path: at, .. } if at == path);
    request.ops.iter().any(is_it)
}

fn sets(request: &Request, path: &str) -> bool {
    let is_it = |op: &Op| matches!(op, Op::Set { path: at, .. } if at == path);
    request.ops.iter().any(is_it)
}

fn sets_to(request: &Request, path: &str, text: &str) -> bool {
    let is_it = |op: &Op| matches!(op, Op::Set { path: at, data, .. } if at == path && data == text.as_bytes());
    request.ops.iter().any(is_it)
}

/// Something is done once, just ahead of the first request that fits.
fn ahead_of(
    kit: &Kit,
    fits: impl Fn(&Request) -> bool + Send + 'static,
    deed: impl FnOnce(&MemoryRegistry, &Request) + Send + 'static,
) {
    let (hand, mut deed) = (kit.registry.clone(), Some(deed));
    let _ = kit.registry.clone().with_fate(move |request: &Request| {
        if let Some(deed) = deed.take_if(|_| fits(request)) {
            deed(&hand, request);
        }
        Fate::Deliver
    });
}

/// Something is done once, just ahead of whatever follows the first request that fits.
fn behind(
    kit: &Kit,
    fits: impl Fn(&Request) -> bool + Send + Sync + 'static,
    deed: impl FnOnce(&MemoryRegistry) + Send + 'static,
) {
    let has_passed = std::sync::atomic::AtomicBool::new(false);
    let follows = move |request: &Request| {
        has_passed.swap(fits(request), std::sync::atomic::Ordering::SeqCst)
    };
    ahead_of(kit, follows, |hand, _| deed(hand));
}

#[tokio::test(start_paused = true)]
async fn what_comes_right_after_it_was_looked_for_is_seen_at_once() {
    // W1
    for comes in ["a member", "a partition"] {
        let kit = Kit::new();
        kit.create("t", 4);
        let began = Instant::now();
        let (owners, partitions) = if comes == "a member" {
            let ids = format!("/consumers/{GROUP}/ids");
            let is_list =
                move |request: &Request| request.kind == Kind::Children && request.path == ids;
            behind(&kit, is_list, |hand| {
                let data =
                    r#"{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}"#;
                hand.put(&Kit::id_path("g_0"), data);
            });
            (2, 4)
        } else {
            let is_read = |request: &Request| {
                request.kind == Kind::Data && request.path == "/brokers/topics/t"
            };
            let log = kit.log.clone();
            behind(&kit, is_read, move |hand| {
                log.create(&topic("t"), 6);
                hand.put("/brokers/topics/t", encode_topic(0..6));
            });
            (1, 6)
        };
        let member = kit.join("h1", &[("t", 1)]);
        let mine = format!("{}-0", member.name);
        let streams = [mine.clone(), "g_0-0".to_owned()];
        let rule = range(&streams[..owners], partitions);
        let share: Vec<String> = rule
            .iter()
            .filter(|(_, stream)| **stream == mine)
            .map(|(partition, _)| format!("t-{partition}"))
            .collect();
        until(comes, || member.owned() == share).await;
        // Long before the self-check.
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "{comes}: {:?}",
            began.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_offset_written_between_its_reading_and_the_claim_is_where_reading_begins() {
    // O2, I6
    for version in [9, 4] {
        for before in ["an offset", "none", "one of a former topic"] {
            let words = format!("3.{version}, {before}");
            let mut kit = old_or_new(version);
            let path = Kit::offset_path("t", 0);
            if before == "one of a former topic" {
                kit.registry.put(&path, "1");
            }
            kit.create("t", 1);
            if before == "an offset" {
                kit.registry.put(&path, "1");
            }
            for _ in 0..5 {
                kit.send("t", 1);
            }
            // An owner in between: it came, read, committed and went since we looked.
            let owner = Kit::owner_path("t", 0);
            ahead_of(
                &kit,
                move |request| creates(request, &owner),
                move |hand, _| hand.put(&path, "3"),
            );
            let member = kit.join("h1", &[("t", 1)]);
            member.settled().await;
            until(&words, || kit.finished.lock().unwrap().len() == 2).await;
            assert_eq!(kit.log.starts(), [(at("t", 0), 3)], "{words}");
            member.leave().await;
            assert_eq!(kit.offset("t", 0).as_deref(), Some("5"), "{words}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_node_with_our_text_made_just_ahead_of_our_claim_is_not_ours() {
    // S8, J3
    for version in [9, 4] {
        let mut kit = old_or_new(version);
        kit.create("t", 2);
        let owner = Kit::owner_path("t", 0);
        let path = owner.clone();
        ahead_of(
            &kit,
            move |request| creates(request, &path),
            |hand, request| {
                for op in &request.ops {
                    if let Op::Create { path, data, .. } = op {
                        hand.put(path, data);
                        break;
                    }
                }
            },
        );
        let mut member = kit.join("h1", &[("t", 1)]);
        until("it waits", || {
            !member.connector().health().waiting.is_empty()
        })
        .await;
        kit.send("t", 2);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(member.owned(), ["t-1"]);
        assert_eq!(kit.finished.lock().unwrap().len(), 1);
        let is_claim = |event: &Event| matches!(event, Event::Claimed { partition, .. } if *partition == at("t", 0));
        assert!(!member.told().iter().any(is_claim));
        kit.registry.delete(&owner);
        kit.drain().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_under_way_leaves_alone_what_somebody_made_in_its_place() {
    // A7, I10, J1
    for version in [9, 4] {
        for is_done in [true, false] {
            let words = format!("3.{version}, something to commit: {is_done}");
            let mut kit = old_or_new(version);
            kit.create("t", 1);
            let mut member = kit.join("h1", &[("t", 1)]);
            member.settled().await;
            if is_done {
                kit.send("t", 1);
                kit.drain().await;
            }
            let (owner, path) = (Kit::owner_path("t", 0), Kit::owner_path("t", 0));
            ahead_of(
                &kit,
                move |request| deletes(request, &path),
                move |hand, _| {
                    hand.delete(&owner);
                    hand.put(&owner, "other-0");
                },
            );
            let before = kit.registry.zxid();
            let connector = member.connector.take().unwrap();
            connector.shutdown(Duration::from_secs(10)).await.unwrap();
            assert_eq!(kit.owners("t")[&0], "other-0", "{words}");
            let offsets = kit.writes_below("/consumers/g/offsets", before);
            assert_eq!(offsets, [], "{words}");
            let is_loss = |event: &Event| {
                let cause = LostCause::OwnerNodeGone;
                matches!(event, Event::Lost { cause: of, .. } if *of == cause)
            };
            assert!(member.told().iter().any(is_loss), "{words}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_under_way_leaves_alone_the_next_owner_of_our_kind() {
    // A7, I10: its node is at the same version as ours was; that it claimed shows at the offset node.
    for version in [9, 4] {
        for is_done in [true, false] {
            for is_offset_gone in [true, false] {
                let words = format!(
                    "3.{version}, something to commit: {is_done}, offset deleted: {is_offset_gone}"
                );
                let mut kit = old_or_new(version);
                kit.create("t", 1);
                let mut member = kit.join("h1", &[("t", 1)]);
                member.settled().await;
                if is_done {
                    kit.send("t", 1);
                    kit.drain().await;
                }
                let (owner, offset) = (Kit::owner_path("t", 0), Kit::offset_path("t", 0));
                if is_offset_gone {
                    kit.registry.delete(&offset);
                }
                let path = owner.clone();
                ahead_of(
                    &kit,
                    move |request| deletes(request, &path),
                    move |hand, _| {
                        hand.delete(&owner);
                        hand.put(&owner, "other-0");
                        hand.put(&owner, "other-0");
                        hand.put(&offset, "7");
                    },
                );
                let connector = member.connector.take().unwrap();
                connector.shutdown(Duration::from_secs(10)).await.unwrap();
                assert_eq!(kit.owners("t")[&0], "other-0", "{words}");
                assert_eq!(kit.offset("t", 0).as_deref(), Some("7"), "{words}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_delivered_from_the_news_about_an_owner_node_until_it_was_read() {
    // A5, I1
    let mut kit = Kit::new();
    kit.create("t", 2);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.send("t", 1);
    kit.drain().await;
    // The lease is proved as ever; only the reads of that node fail.
    let (owner, is_lost) = (Kit::owner_path("t", 0), Arc::new(AtomicBool::new(true)));
    let (path, losing) = (owner.clone(), is_lost.clone());
    let _ = kit.registry.clone().with_fate(move |request: &Request| {
        let is_it = request.kind == Kind::Data && request.path == path;
        match is_it && losing.load(Ordering::SeqCst) {
            true => Fate::LoseBefore,
            false => Fate::Deliver,
        }
    });
    let before = kit.finished.lock().unwrap().len();
    kit.registry.delete(&owner);
    sleep(Duration::from_millis(100)).await;
    kit.send("t", 2);
    sleep(Duration::from_secs(4)).await;
    let after: Vec<i32> = kit.finished.lock().unwrap()[before..]
        .iter()
        .map(|(at, _, _)| at.partition)
        .collect();
    assert_eq!(after, [1], "the other goes on");
    is_lost.store(false, Ordering::SeqCst);
    let is_loss = |event: &Event| matches!(event, Event::Lost { .. });
    member.tells("that it is lost", is_loss).await;
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_word_about_a_former_ownership_says_nothing_about_the_present_one() {
    // S7, A5
    for is_refused in [false, true] {
        let mut kit = Kit::new();
        kit.create("t", 1);
        let mut member = kit.join("h1", &[("t", 1)]);
        member.settled().await;
        kit.send("t", 1);
        kit.drain().await;
        member.told();
        // The owner node goes just before or just after a commit, whose answer comes only with the news of that.
        let (hand, owner) = (kit.registry.clone(), Kit::owner_path("t", 0));
        let (path, mut is_first) = (Kit::offset_path("t", 0), true);
        let _ = kit.registry.clone().with_fate(move |request: &Request| {
            if !sets(request, &path) || !std::mem::take(&mut is_first) {
                return Fate::Deliver;
            }
            if is_refused {
                hand.delete(&owner);
            }
            Fate::DelayAnswer(Duration::from_millis(100))
        });
        let goes = async {
            sleep(Duration::from_millis(50)).await;
            if !is_refused {
                kit.registry.delete(&Kit::owner_path("t", 0));
            }
        };
        let (committed, ()) = tokio::join!(member.connector().commit(), goes);
        assert_eq!(committed.is_err(), is_refused);
        member
            .tells("that it claimed it anew", |event| {
                matches!(event, Event::Claimed { .. })
            })
            .await;
        let written = if is_refused { "0" } else { "1" };
        assert_eq!(kit.offset("t", 0).as_deref(), Some(written));
        sleep(Duration::from_secs(1)).await;
        kit.send("t", 1);
        kit.drain().await;
        member.connector().commit().await.unwrap();
        assert_eq!(kit.offset("t", 0).as_deref(), Some("2"));
        let is_wrong = |event: &Event| {
            matches!(
                event,
                Event::Lost { .. } | Event::RewindRepaired { .. } | Event::ForeignAdvance { .. }
            )
        };
        let told = member.told();
        assert!(!told.iter().any(is_wrong), "{told:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_refused_to_a_former_ownership_does_not_end_the_present_one() {
    // S7, A5
    let mut kit = Kit::new();
    kit.create("t", 1);
    // The owner node goes just before the start is committed, whose answer comes only with the news of that.
    let (hand, owner) = (kit.registry.clone(), Kit::owner_path("t", 0));
    let (path, mut is_first) = (Kit::offset_path("t", 0), true);
    let _ = kit.registry.clone().with_fate(move |request: &Request| {
        if !sets(request, &path) || !std::mem::take(&mut is_first) {
            return Fate::Deliver;
        }
        hand.delete(&owner);
        Fate::DelayAnswer(Duration::from_millis(100))
    });
    let mut member = kit.join("h1", &[("t", 1)]);
    let is_loss = |event: &Event| matches!(event, Event::Lost { .. });
    member.tells("that it is lost", is_loss).await;
    member
        .tells("that it claimed it anew", |event| {
            matches!(event, Event::Claimed { .. })
        })
        .await;
    kit.send("t", 1);
    kit.drain().await;
    sleep(Duration::from_secs(1)).await;
    let told = member.told();
    assert!(!told.iter().any(is_loss), "{told:#?}");
    assert_eq!(member.owned(), ["t-0"]);
}

/// Somebody writes just ahead of each commit of this text, so that it is refused and sent anew, as often as this says. Answers
/// how often that is still to come.
fn contended(kit: &Kit, path: &str, text: &'static str, times: usize) -> Arc<AtomicUsize> {
    let (hand, path) = (kit.registry.clone(), path.to_owned());
    let left = Arc::new(AtomicUsize::new(times));
    let counter = left.clone();
    let _ = kit.registry.clone().with_fate(move |request: &Request| {
        let is_left = |left: usize| left.checked_sub(1);
        if sets_to(request, &path, text)
            && counter
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_left)
                .is_ok()
        {
            hand.put(&path, "0");
        }
        Fate::Deliver
    });
    left
}

/// A member that has read twenty messages and is about to commit that, which somebody keeps it from for a while; the topic is
/// made anew meanwhile.
async fn remade_during_a_commit(kit: &mut Kit, reset: Reset) -> Member {
    kit.create("t", 1);
    for _ in 0..20 {
        kit.send("t", 1);
    }
    kit.registry.put(&Kit::offset_path("t", 0), "0");
    let mut config = kit.config();
    config.auto_commit_interval = Duration::from_secs(5);
    config.auto_offset_reset = reset;
    let mut member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    member.settled().await;
    kit.drain().await;
    let left = contended(kit, &Kit::offset_path("t", 0), "20", 6);
    until("the commit is refused", || left.load(Ordering::SeqCst) < 6).await;
    member.told();
    kit.delete("t");
    kit.create("t", 1);
    member
}

/// What a session wrote to the offset node.
fn offsets_of(kit: &Kit, session: i64) -> Vec<String> {
    kit.writes_below(&Kit::offset_path("t", 0), 0)
        .into_iter()
        .filter(|write| write.session == session)
        .filter_map(|write| String::from_utf8(write.data?).ok())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_commit_of_the_former_log_is_not_written_over_the_start_of_the_new_one() {
    // O9, T3, I3
    let mut kit = Kit::slow(10, 10, 1);
    let mut member = remade_during_a_commit(&mut kit, Reset::Smallest).await;
    let is_reset = |event: &Event| matches!(event, Event::Started { offset: 0, .. });
    member.tells("that the new log is read", is_reset).await;
    // The claim confirmed what stood there.
    let written = offsets_of(&kit, member.session());
    assert_eq!(written, ["0", "20", "-1", "0"]);
    assert_eq!(kit.offset("t", 0).as_deref(), Some("0"));
    // What is committed next builds on that.
    kit.log.append(&at("t", 0), Record::new("new")).unwrap();
    sleep(Duration::from_secs(6)).await;
    assert_eq!(kit.offset("t", 0).as_deref(), Some("1"));
    let told = member.told();
    let is_repair = |event: &Event| matches!(event, Event::RewindRepaired { .. });
    assert!(!told.iter().any(is_repair), "{told:#?}");
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_wrote_for_the_former_log_is_no_start_in_the_new_one() {
    // O9, T3
    let mut kit = Kit::new();
    kit.create("t", 1);
    for _ in 0..20 {
        kit.send("t", 1);
    }
    let mut member = kit.join("h1", &[("t", 1)]);
    kit.drain().await;
    until("all is committed", || {
        kit.offset("t", 0).as_deref() == Some("20")
    })
    .await;
    // Nothing is committed for a while, so that nobody notices.
    kit.registry.put(&Kit::offset_path("t", 0), "7");
    kit.delete("t");
    kit.finished.lock().unwrap().clear();
    kit.sent.clear();
    kit.log.create(&topic("t"), 1);
    for _ in 0..30 {
        kit.send("t", 1);
    }
    kit.create("t", 1);
    let is_start = |event: &Event| matches!(event, Event::Started { offset: 0, .. });
    member.tells("that the new log is read", is_start).await;
    kit.drain().await;
    member.leave().await;
    assert_eq!(kit.offset("t", 0).as_deref(), Some("30"));
}

#[tokio::test(start_paused = true)]
async fn an_offset_of_the_former_log_does_not_stay_where_it_would_be_taken_for_one_of_the_new() {
    // O9, T3, O4
    for is_leaving in [true, false] {
        let mut kit = Kit::slow(10, 10, 1);
        let mut member = remade_during_a_commit(&mut kit, Reset::None).await;
        // Long enough for the look, and for none of what follows.
        sleep(Duration::from_millis(90)).await;
        if !is_leaving {
            let is_held_back = |event: &Event| matches!(event, Event::OffsetReset { to: None, .. });
            member.tells("that it is held back", is_held_back).await;
            sleep(Duration::from_secs(10)).await;
            let told = member.told();
            let is_started = |event: &Event| matches!(event, Event::Started { .. });
            assert!(!told.iter().any(is_started), "{told:#?}");
            assert_eq!(kit.offset("t", 0).as_deref(), Some("-1"));
        }
        let session = member.session();
        let connector = member.connector.take().unwrap();
        connector.shutdown(Duration::from_secs(5)).await.unwrap();
        assert!(kit.owners("t").is_empty());
        let written = offsets_of(&kit, session);
        assert_eq!(written[..2], ["0", "20"], "the commit came through");
        assert_eq!(kit.offset("t", 0).as_deref(), Some("-1"), "{written:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_done_of_a_topic_that_was_made_anew_while_it_is_given_up_is_not_committed() {
    // T3, O9, I6
    let mut kit = Kit::new();
    kit.create("t", 2);
    for _ in 0..5 {
        kit.send("t", 2);
    }
    let mut config = kit.config();
    config.auto_commit_interval = Duration::from_secs(600);
    config.drain_timeout = Duration::from_secs(3);
    let (member, mut streams) = kit.join_unread(kit.builder("h1", config), &[("t", 1)]);
    member.settled().await;
    let mut stream = streams.remove(&topic("t")).unwrap().remove(0);
    let mut messages = Vec::new();
    for _ in 0..10 {
        messages.push(next_owned(&mut stream).await);
    }
    // One partition goes to another, and everything of it is in hand still.
    let other = kit.join("h2", &[("t", 1)]);
    until("one is given up", || member.owned().len() == 1).await;
    kit.delete("t");
    kit.create("t", 2);
    sleep(Duration::from_millis(500)).await;
    for _ in 0..8 {
        kit.send("t", 2);
    }
    for message in messages {
        message.ack();
    }
    other.settled().await;
    sleep(Duration::from_secs(1)).await;
    let starts: Vec<i64> = kit.log.starts().iter().map(|(_, offset)| *offset).collect();
    assert_eq!(starts, [0; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_commit_under_way_holds_up_no_other_partition() {
    // I14
    let mut kit = Kit::slow(10, 10, 1);
    kit.create("t", 2);
    let mut config = kit.config();
    config.auto_commit_interval = Duration::from_secs(5);
    let member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    member.settled().await;
    kit.send_to("t", 0);
    kit.drain().await;
    let left = contended(&kit, &Kit::offset_path("t", 0), "1", 6);
    until("the commit is refused", || left.load(Ordering::SeqCst) < 6).await;
    // Last by its name, so that it gets the other one.
    let stranger = kit.stranger().await;
    stranger.register_for("g_z", "t", 1).await;
    until("it is given up", || !kit.owners("t").contains_key(&1)).await;
    assert!(left.load(Ordering::SeqCst) > 0, "the commit goes on");
    stranger.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_gives_way_to_an_offset_that_was_written_since_it_was_chosen() {
    // O4, O2
    for version in [9, 4] {
        let mut kit = old_or_new(version);
        kit.create("t", 1);
        for _ in 0..5 {
            kit.send("t", 1);
        }
        // The policy chose the end; an operator says 3 just before that is committed.
        let path = Kit::offset_path("t", 0);
        let starts = move |request: &Request| sets_to(request, &path, "5");
        let path = Kit::offset_path("t", 0);
        ahead_of(&kit, starts, move |hand, _| hand.put(&path, "3"));
        let mut config = kit.config();
        config.auto_offset_reset = Reset::Largest;
        let mut member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
        let is_started = |event: &Event| matches!(event, Event::Started { .. });
        let started = member.tells("that it is read", is_started).await;
        let partition = at("t", 0);
        assert_eq!(
            started,
            Event::Started {
                partition,
                offset: 3
            },
            "3.{version}"
        );
        until("both are done", || kit.finished.lock().unwrap().len() == 2).await;
        member.leave().await;
        assert_eq!(kit.offset("t", 0).as_deref(), Some("5"), "3.{version}");
    }
}
