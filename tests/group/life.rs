//! Joining, sharing, leaving, dying.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel::event::ResetCause;
use evenkeel::stream::{Reader, ReaderSource};
use evenkeel::testing::{Act, MemoryLog};
use evenkeel::wire::Broker;
use evenkeel::{Error, Event, TopicPartition};

use crate::kit::{Kit, Member, T, range_of, topic, until};

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
    // W9
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
async fn after_a_member_has_gone_nothing_new_is_claimed_for_the_takeover_delay_and_no_longer() {
    // hazards 2.8
    let (delay, breath) = (Duration::from_secs(3), Duration::from_millis(100));
    for is_orderly in [true, false] {
        let mut kit = Kit::new();
        kit.create("t", 6);
        let mut config = kit.config();
        config.takeover_delay = delay;
        let join = |host: &str| kit.join_with(kit.builder(host, config.clone()), &[("t", 1)]);
        let (first, second) = (join("h1"), join("h2"));
        until("both share", || {
            first.owned().len() == 3 && second.owned().len() == 3
        })
        .await;
        let (name, kept) = (first.name.clone(), second.owned());
        if is_orderly {
            first.leave().await;
        } else {
            first.die(&kit.registry);
        }
        until("it is gone", || !kit.members().contains(&name)).await;
        let gone = tokio::time::Instant::now();
        while gone.elapsed() < delay - breath {
            kit.send("t", 6);
            tokio::time::sleep(breath / 2).await;
            assert_eq!(second.owned(), kept, "after {:?}", gone.elapsed());
            assert_eq!(kit.owners("t").len(), 3);
            let finished = kit.finished.lock().unwrap();
            let finished: BTreeSet<(TopicPartition, i64)> =
                finished.iter().map(|(at, o, _)| (at.clone(), *o)).collect();
            let of_its_own = |(at, _): &&(TopicPartition, i64)| kept.contains(&at.to_string());
            let mut of_its_own = kit.sent.iter().filter(of_its_own);
            assert!(
                of_its_own.all(|sent| finished.contains(sent)),
                "what is held flows on"
            );
        }
        until("the other has all", || second.owned().len() == 6).await;
        assert!(gone.elapsed() < delay + breath, "{:?}", gone.elapsed());
        kit.drain().await;
        // Somebody who comes is no departure.
        let came = tokio::time::Instant::now();
        let third = kit.join_with(kit.builder("h3", config.clone()), &[("t", 1)]);
        until("they share", || third.owned().len() == 3).await;
        assert!(came.elapsed() < delay / 3, "{:?}", came.elapsed());
    }
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

fn share_rightly(kit: &Kit, name: &str, members: &[&Member], partitions: i32) -> bool {
    kit.owners(name) == range_of(members, partitions)
}

#[tokio::test(start_paused = true)]
async fn members_that_join_at_once_share_by_the_range_rule_in_every_round() {
    // r034, r046, r047, r055, r058, W3, W4
    for seed in 0..12 {
        let mut kit = Kit::slow(1, 5 + 7 * seed, seed);
        kit.create("t", 24);
        kit.send("t", 24);
        let mut config = kit.config();
        // What is overlooked stays so.
        config.registration_check_interval = Duration::from_secs(24 * 60 * 60);
        let join = |n| kit.join_with(kit.builder(&format!("h{n}"), config.clone()), &[("t", 1)]);
        let members: Vec<Member> = (0..5).map(join).collect();
        let all: Vec<&Member> = members.iter().collect();
        until("they share", || share_rightly(&kit, "t", &all, 24)).await;
        kit.send("t", 24);
        kit.drain().await;
        assert_eq!(
            kit.duplicates(),
            0,
            "seed {seed}: a clean hand-over doubles none"
        );
        for member in members {
            assert!(member.leave().await.forced.is_empty());
        }
        assert!(kit.owners("t").is_empty());
        assert!(kit.members().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_stays_registered_and_takes_over_when_the_owner_dies_or_leaves() {
    // r064, r065, r067, r131, A10
    let mut kit = Kit::new();
    kit.create("t", 1);
    let mut members: Vec<Member> = (0..4)
        .map(|n| kit.join(&format!("h{n}"), &[("t", 1)]))
        .collect();
    for round in 0..3 {
        for member in &members {
            member.settled().await;
        }
        until("one owns it", || kit.owners("t").len() == 1).await;
        kit.send("t", 1);
        kit.drain().await;
        let owner = members
            .iter()
            .position(|member| !member.owned().is_empty())
            .unwrap();
        let gone = members.remove(owner);
        assert_eq!(kit.members().len(), members.len() + 1);
        let began = tokio::time::Instant::now();
        if round == 1 {
            gone.leave().await;
        } else {
            gone.die(&kit.registry);
        }
        until("exactly one survivor takes over", || {
            members.iter().filter(|m| !m.owned().is_empty()).count() == 1
        })
        .await;
        let bound = if round == 1 {
            Duration::from_millis(500)
        } else {
            T + T / 4
        };
        assert!(began.elapsed() <= bound, "{:?}", began.elapsed());
    }
    kit.send("t", 1);
    kit.drain().await;
    let writes = kit.writes_below("/consumers/g/ids/", 0);
    let made = writes.iter().filter(|write| write.act == Act::Create);
    assert_eq!(made.count(), 4, "each registers once and for all");
}

#[tokio::test(start_paused = true)]
async fn members_that_leave_one_after_another_hand_over_without_loss_or_doubles() {
    // r127
    let mut kit = Kit::slow(1, 20, 7);
    kit.create("t", 12);
    let mut members: Vec<Member> = (0..5)
        .map(|n| kit.join(&format!("h{n}"), &[("t", 1)]))
        .collect();
    while members.len() > 1 {
        kit.send("t", 12);
        let all: Vec<&Member> = members.iter().collect();
        until("they share", || share_rightly(&kit, "t", &all, 12)).await;
        kit.send("t", 12);
        assert!(members.remove(0).leave().await.forced.is_empty());
    }
    kit.send("t", 12);
    kit.drain().await;
    assert_eq!(kit.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn fifty_members_in_one_process_see_one_group() {
    // r010, r034
    let mut kit = Kit::slow(0, 3, 3);
    kit.create("t", 60);
    let members: Vec<Member> = (0..50)
        .map(|n| kit.join(&format!("h{n}"), &[("t", 1)]))
        .collect();
    let all: Vec<&Member> = members.iter().collect();
    until("they share", || share_rightly(&kit, "t", &all, 60)).await;
    for member in &members {
        member.settled().await;
        assert_eq!(member.connector().health().members, 50);
    }
    kit.send("t", 60);
    kit.drain().await;
    assert_eq!(kit.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn two_groups_in_one_process_each_get_everything() {
    let mut kit = Kit::new();
    kit.create("t", 4);
    kit.send("t", 4);
    let mut config = kit.config();
    config.group = evenkeel::GroupName::new("other").unwrap();
    let first = kit.join("h1", &[("t", 1)]);
    let second = kit.join_with(kit.builder("h2", config), &[("t", 1)]);
    first.settled().await;
    second.settled().await;
    until("both read all", || kit.finished.lock().unwrap().len() == 8).await;
    assert_eq!(kit.registry.list("/consumers/other/owners/t").len(), 4);
    assert_eq!(kit.owners("t").len(), 4);
}

#[tokio::test(start_paused = true)]
async fn each_topic_goes_to_those_who_subscribe_to_it() {
    // r116
    let kit = Kit::new();
    kit.create("t1", 3);
    kit.create("t2", 3);
    let a = kit.join("h1", &[("t1", 1)]);
    let b = kit.join("h2", &[("t2", 1)]);
    a.settled().await;
    b.settled().await;
    assert_eq!(a.owned(), ["t1-0", "t1-1", "t1-2"]);
    assert_eq!(b.owned(), ["t2-0", "t2-1", "t2-2"]);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_comes_and_goes_does_not_touch_those_with_other_topics() {
    // r118, W9
    let mut kit = Kit::new();
    kit.create("t1", 3);
    kit.create("t2", 3);
    let a = kit.join("h1", &[("t1", 1)]);
    a.settled().await;
    let before = kit.registry.zxid();
    for _ in 0..10 {
        let b = kit.join("h2", &[("t2", 1)]);
        b.settled().await;
        kit.send("t1", 3);
        kit.send("t2", 3);
        kit.drain().await;
        b.leave().await;
    }
    assert_eq!(kit.writes_below("/consumers/g/owners/t1", before), []);
    assert_eq!(
        kit.log
            .starts()
            .iter()
            .filter(|(p, _)| p.topic.as_str() == "t1")
            .count(),
        3
    );
    assert_eq!(a.owned().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_stays_with_its_owner_flows_on_while_another_comes_and_goes() {
    // W9
    let mut kit = Kit::new();
    kit.create("t", 6);
    let first = kit.join("h1", &[("t", 1)]);
    first.settled().await;
    let (alone, before) = (kit.owners("t"), kit.registry.zxid());
    let mut staying: BTreeSet<i32> = (0..6).collect();
    for round in 0..10 {
        let second = kit.join("h2", &[("t", 1)]);
        until("they share", || {
            kit.owners("t") == range_of(&[&first, &second], 6)
        })
        .await;
        let shared = kit.owners("t");
        staying.retain(|partition| shared[partition] == alone[partition]);
        // While it comes and goes, what stays is finished as soon as it is sent.
        kit.send("t", 6);
        let flows = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let finished = kit.finished.lock().unwrap().clone();
            let count = |partition| {
                let its = finished
                    .iter()
                    .filter(|(at, _, _)| at.partition == partition);
                its.count()
            };
            for partition in &staying {
                assert_eq!(count(*partition), round + 1, "t-{partition}");
            }
        };
        tokio::join!(second.leave(), flows);
        until("one has all", || kit.owners("t") == alone).await;
    }
    assert!(!staying.is_empty());
    for partition in &staying {
        let path = Kit::owner_path("t", *partition);
        assert_eq!(kit.writes_below(&path, before), [], "t-{partition}");
    }
    kit.drain().await;
    assert_eq!(kit.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn new_partitions_are_seen_each_time_and_read_from_their_oldest_message() {
    // r100, r101, r103, T1
    let mut kit = Kit::new();
    kit.create("t", 4);
    let mut config = kit.config();
    config.auto_offset_reset = evenkeel::config::Reset::Largest;
    let member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    member.settled().await;
    kit.send("t", 4);
    for size in [6, 9] {
        // Messages that were there before we knew of the partition count too.
        kit.log.create(&topic("t"), size as usize);
        kit.send("t", size);
        kit.grow("t", size);
        until("it owns all", || member.owned().len() == size as usize).await;
        kit.drain().await;
    }
    assert_eq!(kit.duplicates(), 0);
    let again = kit
        .log
        .starts()
        .iter()
        .filter(|(p, _)| p.partition == 0)
        .count();
    assert_eq!(again, 1, "what was read goes on as it was");
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_does_not_exist_is_told_once_and_read_once_it_is_made() {
    // r104
    let mut kit = Kit::new();
    kit.create("t1", 2);
    let mut config = kit.config();
    config.auto_offset_reset = evenkeel::config::Reset::Largest;
    let mut member = kit.join_with(kit.builder("h1", config), &[("t1", 1), ("t2", 1)]);
    member.settled().await;
    assert_eq!(member.owned().len(), 2);
    let other = kit.join("h2", &[("t1", 1)]);
    other.settled().await;
    other.leave().await;
    kit.send("t1", 2);
    kit.drain().await;
    let missing =
        |event: &Event| matches!(event, Event::TopicMissing { topic } if topic.as_str() == "t2");
    assert_eq!(
        member.told().iter().filter(|event| missing(event)).count(),
        1
    );
    // Written before we know of the topic; nobody can have meant to skip it.
    kit.log.create(&topic("t2"), 2);
    kit.send("t2", 2);
    kit.create("t2", 2);
    until("it owns both", || member.owned().len() == 4).await;
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_topic_is_let_go_and_the_others_go_on() {
    // T2
    let mut kit = Kit::new();
    kit.create("t1", 2);
    kit.create("t2", 2);
    kit.send("t1", 2);
    let mut member = kit.join("h1", &[("t1", 1), ("t2", 1)]);
    member.settled().await;
    kit.drain().await;
    let before = kit.registry.zxid();
    kit.delete("t1");
    until("it is let go", || kit.owners("t1").is_empty()).await;
    member
        .tells("that it is missing", |event| {
            matches!(event, Event::TopicMissing { .. })
        })
        .await;
    assert_eq!(
        kit.writes_below("/consumers/g/offsets/t1", before),
        [],
        "offsets are left alone"
    );
    member.settled().await;
    kit.send("t2", 2);
    kit.drain().await;
    assert_eq!(member.owned(), ["t2-0", "t2-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_topic_made_anew_is_read_from_its_beginning() {
    // r109, T3
    for is_quick in [false, true] {
        let mut kit = Kit::new();
        kit.create("t", 2);
        for _ in 0..20 {
            kit.send("t", 2);
        }
        let mut member = kit.join("h1", &[("t", 1)]);
        member.settled().await;
        kit.drain().await;
        member.connector().commit().await.unwrap();
        assert_eq!(kit.offset("t", 0).as_deref(), Some("20"));
        kit.delete("t");
        if !is_quick {
            until("it is let go", || kit.owners("t").is_empty()).await;
        }
        kit.finished.lock().unwrap().clear();
        kit.sent.clear();
        kit.log.create(&topic("t"), 2);
        // Longer than what was read of the old one, so that no offset is out of range.
        for _ in 0..30 {
            kit.send("t", 2);
        }
        kit.create("t", 2);
        kit.drain().await;
        member
            .tells("the reset", |event| {
                matches!(
                    event,
                    Event::OffsetReset {
                        cause: ResetCause::TopicRecreated,
                        to: Some(0),
                        ..
                    }
                )
            })
            .await;
        if !is_quick {
            assert_eq!(kit.duplicates(), 0);
        }
        member.leave().await;
        assert_eq!(kit.offset("t", 0).as_deref(), Some("30"));
    }
}

/// A small generator, so that a run can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_comes_and_goes_the_rule_holds_in_the_end_and_nothing_is_lost() {
    // r053, r121, I1, I4, I14, A6
    for seed in 0..25 {
        let mut dice = Dice(seed);
        let mut kit = Kit::slow(0, 1 + seed, seed);
        kit.create("t", 12);
        let mut members: Vec<Member> = vec![kit.join("first", &[("t", 1)])];
        let mut is_clean = true;
        for step in 0..12 {
            kit.send("t", 12);
            match dice.roll(6) {
                0..=2 if members.len() < 6 => {
                    members.push(kit.join(&format!("h{step}"), &[("t", 1)]));
                }
                3 if members.len() > 1 => {
                    let place = dice.roll(members.len());
                    let gone = members.swap_remove(place);
                    if is_clean {
                        assert!(gone.leave().await.forced.is_empty(), "seed {seed}");
                    } else {
                        gone.leave().await;
                    }
                }
                4 if members.len() > 1 && seed % 2 == 1 => {
                    is_clean = false;
                    let place = dice.roll(members.len());
                    if members[place].connector().health().session.is_some() {
                        members.swap_remove(place).die(&kit.registry);
                    }
                }
                5 if seed % 2 == 1 => {
                    is_clean = false;
                    let place = dice.roll(members.len());
                    if let Some(session) = members[place].connector().health().session {
                        kit.registry.expire(session);
                    }
                }
                _ => {}
            }
            tokio::time::sleep(Duration::from_millis(dice.roll(1500) as u64)).await;
        }
        kit.send("t", 12);
        let all: Vec<&Member> = members.iter().collect();
        until("they share", || share_rightly(&kit, "t", &all, 12)).await;
        kit.drain().await;
        if is_clean {
            assert_eq!(kit.duplicates(), 0, "seed {seed}");
        }
        for member in &members {
            member.settled().await;
            assert!(member.connector().health().is_ready());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn members_without_a_broker_wait_for_one_and_begin_when_it_comes() {
    // r037, r059, A13
    let mut kit = Kit::new();
    kit.create("t", 4);
    kit.send("t", 4);
    kit.registry.delete("/brokers/ids/0");
    let builder = kit.builder("h1", kit.config());
    let builder = builder.with_reader_source(Arc::new(Seeking(kit.log.clone())));
    let mut member = kit.join_with(builder, &[("t", 1)]);
    member
        .tells("that there is no broker", |event| {
            matches!(event, Event::BrokersMissing { reason } if reason.contains("/brokers/ids"))
        })
        .await;
    assert!(!member.connector().health().is_ready());
    kit.registry.put(
        "/brokers/ids/3",
        r#"{"version":1,"host":"h3","port":9092,"jmx_port":-1,"timestamp":"0"}"#,
    );
    member.settled().await;
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn brokers_that_come_and_go_during_a_look_do_not_hold_it_up() {
    // r038, r052, T6
    let mut kit = Kit::slow(5, 20, 1);
    kit.create("t", 4);
    let builder = kit.builder("h1", kit.config());
    let builder = builder.with_reader_source(Arc::new(Seeking(kit.log.clone())));
    let member = kit.join_with(builder, &[("t", 1)]);
    for number in 1..60 {
        let node = format!("/brokers/ids/{number}");
        kit.registry.put(
            &node,
            format!(
                r#"{{"version":1,"host":"h{number}","port":9092,"jmx_port":-1,"timestamp":"0"}}"#
            ),
        );
        tokio::time::sleep(Duration::from_millis(number % 17)).await;
        kit.registry.delete(&format!("/brokers/ids/{}", number - 1));
    }
    member.settled().await;
    kit.send("t", 4);
    kit.drain().await;
    assert_eq!(member.owned().len(), 4);
}

/// Brokers that have to be found in the registry.
struct Seeking(MemoryLog);

impl ReaderSource for Seeking {
    fn needs_brokers(&self) -> bool {
        true
    }

    fn open(&self, brokers: &[Broker], _: usize) -> Result<Arc<dyn Reader>, Error> {
        assert!(!brokers.is_empty());
        Ok(self.0.reader())
    }
}
