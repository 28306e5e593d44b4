//! The lease: what renews it, from when on, and who looks at it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::clock::{LeaseClock, TokioClock};
use evenkeel::config::LeaseMode;
use evenkeel::lease::Moment;
use evenkeel::registry::Op;
use evenkeel::testing::{Fate, Kind, Request};
use evenkeel::{ErrorKind, Event};
use futures_util::FutureExt;
use tokio::time::{Instant, sleep};

use crate::kit::{Kit, Member, T, next_owned, range_of, topic, until};

#[tokio::test(start_paused = true)]
async fn a_proof_that_is_answered_late_counts_from_its_sending() {
    // S3, N6
    const LATE: Duration = Duration::from_secs(1);
    let mut kit = Kit::new();
    kit.create("t", 2);
    let sent: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let leaves = sent.clone();
    let _ = kit.registry.clone().with_fate(move |request: &Request| {
        // What the quorum is asked, what is claimed and what is committed begins with a check.
        if !matches!(request.ops.first(), Some(Op::Check { .. })) {
            return Fate::Deliver;
        }
        leaves.lock().unwrap().push(Instant::now());
        Fate::DelayAnswer(LATE)
    });
    let mut config = kit.config();
    config.auto_commit_interval = Duration::from_millis(1300);
    let member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
    for round in 0..4000 {
        if round % 200 == 0 {
            kit.send("t", 2);
        }
        sleep(Duration::from_millis(5)).await;
        let Some(left) = member.connector().health().lease_left else {
            continue;
        };
        let now = Instant::now();
        let sent = sent.lock().unwrap();
        let newest = sent.iter().rev().find(|at| **at + LATE <= now);
        let until = newest.map_or(now, |at| (*at + T / 2).max(now));
        assert!(
            now + left <= until,
            "{left:?} left and not {:?}",
            until - now
        );
    }
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_server_answers_by_itself_does_not_renew_the_lease() {
    // S2
    let mut kit = Kit::new();
    kit.create("t", 2);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    let session = member.session();
    let packets = kit.registry.requests(session, Kind::Stat);
    // Its server has lost the leader: it answers heartbeats and reads, and nothing that takes the quorum.
    let _ = kit.registry.clone().with_fate(|request: &Request| {
        if request.is_write() {
            Fate::LoseBefore
        } else {
            Fate::Deliver
        }
    });
    let began = Instant::now();
    member
        .tells("that it lapsed", |event| matches!(event, Event::Lapsed))
        .await;
    assert!(began.elapsed() <= T / 2, "{:?}", began.elapsed());
    assert!(kit.registry.requests(session, Kind::Stat) > packets);
    kit.send("t", 2);
    sleep(T).await;
    assert!(kit.finished.lock().unwrap().is_empty());
    // The leader has not heard of it.
    kit.registry.without_faults();
    kit.registry.expire(session);
    kit.drain().await;
}

/// The clock of a host that may sleep: timers stand still then, and it does not.
#[derive(Clone)]
struct Waking {
    clock: TokioClock,
    slept: Arc<AtomicU64>,
}

impl Waking {
    fn sleeps(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap();
        self.slept.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl LeaseClock for Waking {
    fn now(&self) -> Moment {
        let slept = Duration::from_nanos(self.slept.load(Ordering::SeqCst));
        self.clock.now().plus(slept)
    }

    fn wall_ms(&self) -> u64 {
        self.clock.wall_ms()
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_slept_delivers_and_commits_nothing_on_its_old_lease() {
    // S13, S1
    let mut kit = Kit::new();
    kit.create("t", 1);
    for _ in 0..3 {
        kit.send("t", 1);
    }
    let clock = Waking {
        clock: TokioClock::new(),
        slept: Arc::default(),
    };
    let builder = kit.builder("h1", kit.config());
    let builder = builder.with_clock(Arc::new(clock.clone()));
    let (member, mut streams) = kit.join_unread(builder, &[("t", 1)]);
    let mut stream = streams.remove(&topic("t")).unwrap().remove(0);
    next_owned(&mut stream).await.ack();
    let held = next_owned(&mut stream).await;
    assert!(held.is_valid());
    clock.sleeps(T / 2);
    assert!(!held.is_valid());
    assert!(stream.recv_owned().now_or_never().is_none());
    let error = member.connector().commit().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    // The servers slept as well, so that the session lives, and the next proof shows it.
    assert_eq!(next_owned(&mut stream).await.offset(), 2);
    assert!(held.is_valid());
    member.connector().commit().await.unwrap();
    assert_eq!(kit.offset("t", 0).as_deref(), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn between_two_lent_messages_the_lease_is_looked_at() {
    // S1
    let mut kit = Kit::new();
    kit.create("t", 1);
    for _ in 0..3 {
        kit.send("t", 1);
    }
    let (member, mut streams) = kit.join_unread(kit.builder("h1", kit.config()), &[("t", 1)]);
    let mut stream = streams.remove(&topic("t")).unwrap().remove(0);
    for offset in 0..2 {
        assert_eq!(stream.recv().await.unwrap().offset(), offset);
    }
    kit.registry.cut(member.session());
    sleep(T / 2).await;
    assert!(stream.recv().now_or_never().is_none());
    kit.registry.heal(member.session());
    assert_eq!(stream.recv().await.unwrap().offset(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_a_lease_delivery_goes_on_through_what_would_be_a_lapse() {
    // docs/promises.md, 1
    for lease in [LeaseMode::Quorum, LeaseMode::Off] {
        let mut kit = Kit::new();
        kit.create("t", 2);
        let mut config = kit.config();
        config.lease = lease;
        let mut member = kit.join_with(kit.builder("h1", config), &[("t", 1)]);
        member.settled().await;
        kit.send("t", 2);
        kit.drain().await;
        let session = member.session();
        kit.registry.cut(session);
        sleep(T / 2 + Duration::from_millis(100)).await;
        kit.send("t", 2);
        sleep(Duration::from_millis(500)).await;
        let is_blind = lease == LeaseMode::Off;
        assert_eq!(kit.is_all_finished(), is_blind, "{lease:?}");
        assert_eq!(
            member
                .connector()
                .health()
                .lease_left
                .is_some_and(|left| left.is_zero()),
            !is_blind
        );
        kit.registry.heal(session);
        kit.drain().await;
        // What it did meanwhile is committed, since the session lived.
        member.connector().commit().await.unwrap();
        assert_eq!(kit.offset("t", 1).as_deref(), Some("2"));
        assert_eq!(member.session(), session);
        let told = member.told();
        let is_lapse = |event: &&Event| matches!(event, Event::Lapsed | Event::Resumed { .. });
        assert_eq!(
            told.iter().filter(is_lapse).count(),
            if is_blind { 0 } else { 2 }
        );
        // That it is blind is told when it is set up.
        let is_warned = told.iter().any(|event| {
            matches!(event, Event::Warning { .. }) && event.to_string().contains("lease")
        });
        assert_eq!(is_warned, is_blind, "{told:#?}");
    }
}

/// The clock on the wall of somebody who cannot leave it alone.
#[derive(Clone)]
struct Jumping {
    clock: TokioClock,
    jumps: Arc<AtomicU64>,
}

impl LeaseClock for Jumping {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn wall_ms(&self) -> u64 {
        // From the epoch to the year 2200 and back, by what no two looks have in common.
        let jump = self.jumps.fetch_add(1, Ordering::SeqCst);
        jump.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 7_258_118_400_000
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_on_the_wall_that_jumps_decides_nothing() {
    // S12
    let mut kit = Kit::new();
    kit.create("t", 6);
    let clock = Jumping {
        clock: TokioClock::new(),
        jumps: Arc::default(),
    };
    let join = |host: &str| {
        let builder = kit.builder(host, kit.config());
        kit.join_with(builder.with_clock(Arc::new(clock.clone())), &[("t", 1)])
    };
    let mut members: Vec<Member> = ["h1", "h2", "h3"].map(join).into();
    let share = |kit: &Kit, members: &[Member]| {
        kit.owners("t") == range_of(&members.iter().collect::<Vec<_>>(), 6)
    };
    until("they share", || share(&kit, &members)).await;
    for _ in 0..20 {
        kit.send("t", 6);
        sleep(T / 4).await;
        assert!(share(&kit, &members), "and nobody looks at the calendar");
    }
    kit.drain().await;
    assert_eq!(kit.duplicates(), 0);
    for member in &mut members {
        let told = member.told();
        let is_trouble = |event: &&Event| {
            matches!(
                event,
                Event::Lapsed | Event::Lost { .. } | Event::SessionLost { .. }
            )
        };
        assert_eq!(told.iter().find(is_trouble), None);
    }
    // A session that ends is replaced, a death is got over.
    kit.expire(members[0].session());
    until("they share again", || share(&kit, &members)).await;
    members.remove(1).die(&kit.registry);
    until("two share", || share(&kit, &members)).await;
    kit.send("t", 6);
    kit.drain().await;
    assert!(
        clock.jumps.load(Ordering::SeqCst) > 0,
        "somebody looked at it"
    );
}
