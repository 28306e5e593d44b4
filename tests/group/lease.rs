//! The lease: what renews it, from when on, and who looks at it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::clock::{LeaseClock, TokioClock};
use evenkeel::lease::Moment;
use evenkeel::registry::Op;
use evenkeel::testing::{Fate, Kind, Request};
use evenkeel::{ErrorKind, Event};
use futures_util::FutureExt;
use tokio::time::{Instant, sleep};

use crate::kit::{Kit, T, next_owned, topic};

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
