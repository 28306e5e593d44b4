//! One test for each line of what the ensemble models.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::*;
use crate::registry::{Connection, Dialect, Fault, Fired, Op, Registry};

type Session = Arc<dyn Connection>;

async fn open(ensemble: &MemoryRegistry) -> Session {
    ensemble.open(Dialect::V3_5).await.unwrap()
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn check(path: &str) -> Op {
    Op::Check {
        path: path.into(),
        version: None,
    }
}

fn create(path: &str) -> Op {
    Op::Create {
        path: path.into(),
        data: b"x".to_vec(),
        ephemeral: true,
    }
}

fn set(path: &str, version: i32) -> Op {
    Op::Set {
        path: path.into(),
        data: b"y".to_vec(),
        version: Some(version),
    }
}

async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

// ---- transactions ----

#[tokio::test(start_paused = true)]
async fn every_write_that_reaches_the_ensemble_takes_a_number() {
    let e = MemoryRegistry::new();
    let a = open(&e).await;
    assert_eq!(e.zxid(), 1);
    a.create("/a", b"", false).await.unwrap();
    a.multi(vec![check("/a")]).await.unwrap();
    assert_eq!(a.create("/a", b"", false).await, Err(Fault::NodeExists));
    assert!(a.multi(vec![check("/b")]).await.is_err());
    assert_eq!(e.zxid(), 5);
    a.data("/a").await.unwrap();
    assert_eq!(a.multi(Vec::new()).await, Ok(Vec::new()));
    assert!(matches!(
        a.create("bad", b"", false).await,
        Err(Fault::Refused(_))
    ));
    assert_eq!(e.zxid(), 5);
    assert_eq!(e.requests(a.session_id(), Kind::Multi), 2);
    assert_eq!(e.requests(a.session_id(), Kind::Create), 2);
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_one_transaction_and_answers_with_the_stamp() {
    let e = MemoryRegistry::new();
    e.put("/f", "17");
    let a = open(&e).await;
    let ops = vec![check("/f"), create("/o"), set("/o", 0), set("/f", 0)];
    let steps = a.multi(ops.clone()).await.unwrap();
    assert_eq!((steps[0], steps[1]), (None, None));
    let owner = steps[2].unwrap();
    assert_eq!(owner.ephemeral_owner, a.session_id());
    assert_eq!((owner.version, owner.czxid), (1, owner.mzxid));
    assert_eq!(steps[3].unwrap().version, 1);
    let fault = a.multi(ops).await.unwrap_err();
    assert_eq!((fault.index, fault.fault), (Some(1), Fault::NodeExists));
    let log = e.log_since(owner.czxid - 1);
    assert_eq!(log.len(), 4);
    assert!(
        log.iter()
            .all(|w| w.zxid == owner.czxid && w.session == a.session_id())
    );
    assert_eq!(log[2].act, Act::Set);
    assert_eq!((log[2].version, log[2].owner), (1, a.session_id()));
}

#[tokio::test(start_paused = true)]
async fn what_is_too_large_never_leaves() {
    let e = MemoryRegistry::new();
    let a = open(&e).await;
    let large = vec![0; 1024 * 1024];
    assert_eq!(a.create("/a", &large, false).await, Err(Fault::TooLarge));
    a.create("/a", &large[..1019 * 1024], false).await.unwrap();
    assert_eq!(a.set("/a", &large, None).await, Err(Fault::TooLarge));
    let half = Op::Set {
        path: "/a".into(),
        data: large[..512 * 1024].to_vec(),
        version: None,
    };
    let fault = a.multi(vec![half.clone(), half]).await.unwrap_err();
    assert_eq!((fault.index, fault.fault), (None, Fault::TooLarge));
    assert_eq!(e.zxid(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_dropped_after_its_first_poll_is_carried_out() {
    for latency in [Latency::none(), Latency::fixed(ms(20))] {
        let e = MemoryRegistry::new().with_latency(latency);
        let a = open(&e).await;
        drop(a.create("/never", b"", false));
        assert!(a.create("/a", b"", false).now_or_never().is_none());
        let create = a.create("/b", b"", false);
        a.create("/c", b"", false).await.unwrap();
        create.await.unwrap();
        let log = e.log();
        let paths: Vec<&str> = log.iter().map(|w| w.path.as_str()).collect();
        assert_eq!(paths, ["", "/a", "/c", "/b"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_never_comes_within_the_same_turn() {
    let e = MemoryRegistry::new();
    let a = open(&e).await;
    assert!(a.stat("/a").now_or_never().is_none());
    let raise = |session: Session| async move {
        let (data, stat) = session.data("/n").await.unwrap();
        let next = data[0] + 1;
        session.set("/n", &[next], Some(stat.version)).await
    };
    e.put("/n", [0]);
    let b = open(&e).await;
    let both = join_all([raise(a), raise(b)]).await;
    assert_eq!(
        both[1],
        Err(Fault::BadVersion),
        "the two did not interleave"
    );
}

#[tokio::test(start_paused = true)]
async fn latency_keeps_the_order_of_one_connection() {
    let e = MemoryRegistry::new().with_latency(Latency::between(ms(0), ms(50), 42));
    let a = open(&e).await;
    let paths: Vec<String> = (10..60).map(|n| format!("/{n}")).collect();
    let calls = paths.iter().map(|path| {
        let call = a.create(path, b"", false);
        async move {
            call.await.unwrap();
            Instant::now()
        }
    });
    let answered = join_all(calls).await;
    let log = e.log_since(1);
    assert!(log.iter().map(|w| &w.path).eq(&paths));
    assert!(answered.is_sorted());
    assert!(answered[0] < answered[49]);
}

#[tokio::test(start_paused = true)]
async fn times_are_the_ensembles_and_follow_the_clock() {
    let e = MemoryRegistry::new().with_latency(Latency::fixed(ms(30)));
    let a = open(&e).await;
    a.create("/a", b"", false).await.unwrap();
    let (_, before) = e.read("/a").unwrap();
    tokio::time::advance(secs(9)).await;
    let after = a.set("/a", b"", None).await.unwrap();
    assert_eq!(after.ctime, before.ctime);
    // There, back, nine seconds, there.
    assert_eq!(after.mtime - before.mtime, 30 + 9000 + 30);
}

// ---- watches ----

#[tokio::test(start_paused = true)]
async fn a_watch_on_a_missing_node_fires_on_its_creation_only_once() {
    let e = MemoryRegistry::new();
    let a = open(&e).await;
    let (stat, mut watch) = a.stat_and_watch("/a").await.unwrap();
    assert_eq!(stat, None);
    e.put("/b", "");
    assert!((&mut watch).now_or_never().is_none());
    e.put("/a", "");
    e.put("/a", "again");
    assert_eq!(watch.await, Fired::Changed);
    assert_eq!(e.session(a.session_id()).unwrap().watches, 0);
}

#[tokio::test(start_paused = true)]
async fn a_data_watch_fires_on_write_and_delete_and_not_on_children() {
    let e = MemoryRegistry::new();
    e.put("/a", "");
    let a = open(&e).await;
    let (_, _, mut watch) = a.data_and_watch("/a").await.unwrap();
    e.put("/a/child", "");
    assert!((&mut watch).now_or_never().is_none());
    e.put("/a", "new");
    assert_eq!(watch.await, Fired::Changed);
    let (_, _, watch) = a.data_and_watch("/a").await.unwrap();
    e.delete("/a");
    assert_eq!(watch.await, Fired::Changed);
    assert!(a.data_and_watch("/a").await.is_err());
    assert_eq!(e.session(a.session_id()).unwrap().watches, 0);
}

#[tokio::test(start_paused = true)]
async fn a_child_watch_fires_on_children_and_on_the_nodes_own_end() {
    let e = MemoryRegistry::new();
    e.put("/a/b", "");
    let a = open(&e).await;
    let (names, _, mut watch) = a.children_and_watch("/a").await.unwrap();
    assert_eq!(names, ["b"]);
    e.put("/a", "data");
    e.put("/a/b", "data");
    e.put("/a/b/c", "");
    assert!((&mut watch).now_or_never().is_none());
    e.put("/a/d", "");
    assert_eq!(watch.await, Fired::Changed);
    let (_, _, watch) = a.children_and_watch("/a").await.unwrap();
    e.delete("/a/d");
    assert_eq!(watch.await, Fired::Changed);
    let (_, _, watch) = a.children_and_watch("/a/b/c").await.unwrap();
    e.delete("/a/b/c");
    assert_eq!(watch.await, Fired::Changed);
    assert!(a.children_and_watch("/no").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_event_comes_before_the_data_that_it_tells_of() {
    let e = MemoryRegistry::new().with_latency(Latency::between(ms(1), ms(40), 3));
    e.put("/a", "old");
    let a = open(&e).await;
    let (_, _, watch) = a.data_and_watch("/a").await.unwrap();
    let seen = Arc::new(Mutex::new(false));
    let noted = seen.clone();
    tokio::spawn(async move {
        watch.await;
        *noted.lock().unwrap() = true;
    });
    settle().await;
    tokio::spawn({
        let e = e.clone();
        async move {
            tokio::time::sleep(ms(100)).await;
            e.put("/a", "new");
        }
    });
    loop {
        let (data, _) = a.data("/a").await.unwrap();
        if data == b"new" {
            break;
        }
    }
    assert!(*seen.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_dropped_is_taken_back() {
    let e = MemoryRegistry::new();
    let a = open(&e).await;
    let (_, watch) = a.stat_and_watch("/a").await.unwrap();
    drop(watch);
    let state = e.session(a.session_id()).unwrap();
    assert_eq!((state.watches, state.requests[&Kind::Unwatch]), (0, 1));
    a.create("/b", b"", true).await.unwrap();
}

// ---- sessions ----

#[tokio::test(start_paused = true)]
async fn timeouts_are_granted_within_two_and_twenty_ticks() {
    let e = MemoryRegistry::new().with_tick(ms(100));
    for (asked, granted) in [(50, 200), (700, 700), (60_000, 2000)] {
        let handle = e.clone().with_session_timeout(ms(asked));
        assert_eq!(open(&handle).await.session_timeout(), ms(granted));
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_lives_on() {
    let e = MemoryRegistry::new();
    let a = open(&e).await;
    a.create("/a", b"", true).await.unwrap();
    tokio::time::advance(secs(3600)).await;
    assert_eq!(
        a.stat("/a").await.unwrap().unwrap().ephemeral_owner,
        a.session_id()
    );
}

#[tokio::test(start_paused = true)]
async fn a_dead_process_is_noticed_at_the_timeout_though_nobody_touches_anything() {
    let e = MemoryRegistry::new();
    let (dead, alive) = (open(&e).await, open(&e).await);
    dead.create("/o", b"", true).await.unwrap();
    let (_, watch) = alive.stat_and_watch("/o").await.unwrap();
    tokio::time::advance(ms(1200)).await;
    let zero = Instant::now();
    // The watch waits before the death is known.
    let waiting = tokio::spawn(watch);
    settle().await;
    assert!(e.kill(dead.session_id()));
    drop(dead);
    assert_eq!(waiting.await.unwrap(), Fired::Changed);
    // Killed at 1.2 s: heard of no more for 6 s, at the end of a tick of 0.5 s.
    assert_eq!(zero.elapsed(), ms(6300));
    assert!(e.read("/o").is_none());
    assert_eq!(e.log().last().unwrap().act, Act::Delete);
}

#[tokio::test(start_paused = true)]
async fn a_death_that_is_due_before_another_wakes_who_waits() {
    let e = MemoryRegistry::new();
    let long = open(&e.clone().with_session_timeout(secs(10))).await;
    let short = open(&e.clone().with_session_timeout(secs(1))).await;
    let other = open(&e).await;
    short.create("/o", b"", true).await.unwrap();
    let (_, watch) = other.stat_and_watch("/o").await.unwrap();
    let zero = Instant::now();
    e.kill(long.session_id());
    let waiting = tokio::spawn(watch);
    settle().await;
    e.kill(short.session_id());
    waiting.await.unwrap();
    assert_eq!(zero.elapsed(), ms(1500));
}

#[tokio::test(start_paused = true)]
async fn the_nodes_of_a_session_go_in_one_transaction_at_its_time() {
    let e = MemoryRegistry::new();
    let a = open(&e).await;
    a.create("/a", b"", true).await.unwrap();
    a.create("/b", b"", true).await.unwrap();
    let opened = e.log()[0].time_ms;
    e.kill(a.session_id());
    tokio::time::advance(secs(100)).await;
    let log = e.log_since(3);
    let acts: Vec<_> = log
        .iter()
        .map(|w| (w.zxid, w.act, w.path.as_str()))
        .collect();
    assert_eq!(
        acts,
        [
            (4, Act::Close, ""),
            (4, Act::Delete, "/a"),
            (4, Act::Delete, "/b")
        ]
    );
    // Nobody looked for 100 s; it happened when it was due all the same.
    assert_eq!(log[0].time_ms - opened, 6500);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_hears_late_ends_a_session_sooner() {
    let e = MemoryRegistry::new().with_lag(ms(700));
    let a = open(&e).await;
    let b = open(&e).await;
    a.create("/a", b"", true).await.unwrap();
    let (_, gone) = b.stat_and_watch("/a").await.unwrap();
    let zero = Instant::now();
    e.kill(a.session_id());
    gone.await;
    assert_eq!(zero.elapsed(), ms(5500));
}

#[tokio::test(start_paused = true)]
async fn a_close_takes_the_nodes_along_and_ends_everything() {
    let e = MemoryRegistry::new();
    let a = open(&e).await;
    a.create("/a", b"", true).await.unwrap();
    let (_, watch) = a.stat_and_watch("/b").await.unwrap();
    let ended = a.ended();
    a.close().await;
    assert!(e.read("/a").is_none());
    ended.await;
    a.ended().await;
    assert_eq!(watch.await, Fired::SessionLost);
    assert_eq!(a.data("/").await.unwrap_err(), Fault::SessionLost);
    a.close().await;
    assert!(!e.session(a.session_id()).unwrap().is_open);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_connection_closes_its_session() {
    for latency in [Latency::none(), Latency::fixed(ms(20))] {
        let e = MemoryRegistry::new().with_latency(latency);
        let (a, b) = (open(&e).await, open(&e).await);
        a.create("/a", b"", true).await.unwrap();
        let (_, watch) = b.stat_and_watch("/a").await.unwrap();
        let zero = Instant::now();
        drop(a);
        assert_eq!(watch.await, Fired::Changed);
        assert!(zero.elapsed() <= ms(40));
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_session_knows_at_once_if_it_is_connected() {
    let e = MemoryRegistry::new();
    let a = open(&e).await;
    a.create("/a", b"", true).await.unwrap();
    let (_, watch) = a.stat_and_watch("/b").await.unwrap();
    let ended = tokio::spawn(a.ended());
    settle().await;
    assert!(e.expire(a.session_id()));
    assert!(!e.expire(a.session_id()));
    ended.await.unwrap();
    assert_eq!(watch.await, Fired::SessionLost);
    assert_eq!(a.create("/b", b"", true).await, Err(Fault::SessionLost));
}

// ---- cut off ----

#[tokio::test(start_paused = true)]
async fn a_short_cut_only_delays() {
    let e = MemoryRegistry::new();
    let a = open(&e).await;
    let (_, watch) = a.stat_and_watch("/w").await.unwrap();
    e.cut(a.session_id());
    let call = tokio::spawn(a.create("/a", b"", true));
    tokio::time::sleep(ms(2300)).await;
    e.put("/w", "");
    assert!(e.read("/a").is_none());
    assert!(e.heal(a.session_id()));
    call.await.unwrap().unwrap();
    assert_eq!(watch.await, Fired::Changed);
    assert!(e.read("/a").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_cut_that_is_noticed_leaves_what_was_sent_unknown_and_lets_the_rest_wait() {
    let e = MemoryRegistry::new();
    let a = open(&e).await;
    e.cut(a.session_id());
    let zero = Instant::now();
    let sent = a.create("/sent", b"", true).await;
    assert!(matches!(sent, Err(Fault::Unknown(_))));
    assert_eq!(zero.elapsed(), ms(2400));
    let calls: Vec<_> = ["/1", "/2"]
        .map(|path| tokio::spawn(a.create(path, b"", true)))
        .into();
    tokio::time::sleep(secs(2)).await;
    assert!(e.list("/").is_empty());
    e.heal(a.session_id());
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(e.list("/"), ["1", "2"]);
    tokio::time::sleep(secs(60)).await;
    assert!(e.session(a.session_id()).unwrap().is_open);
}

#[tokio::test(start_paused = true)]
async fn a_reconnect_tells_of_what_changed_meanwhile_and_keeps_the_other_watches() {
    let e = MemoryRegistry::new();
    e.put("/data", "");
    e.put("/gone", "");
    e.put("/dir", "");
    e.put("/calm/child", "");
    let a = open(&e).await;
    let (_, _, data) = a.data_and_watch("/data").await.unwrap();
    let (_, gone) = a.stat_and_watch("/gone").await.unwrap();
    let (_, born) = a.stat_and_watch("/born").await.unwrap();
    let (_, _, dir) = a.children_and_watch("/dir").await.unwrap();
    let (_, mut brief) = a.stat_and_watch("/brief").await.unwrap();
    let (_, _, mut calm) = a.children_and_watch("/calm").await.unwrap();
    e.cut(a.session_id());
    tokio::time::sleep(secs(3)).await;
    e.put("/data", "new");
    e.delete("/gone");
    e.put("/born", "");
    e.put("/dir/child", "");
    e.put("/brief", "");
    e.delete("/brief");
    e.put("/calm", "data");
    e.heal(a.session_id());
    for watch in [data, gone, born, dir] {
        assert_eq!(watch.await, Fired::Changed);
    }
    // A node that came and went leaves no trace, as with real servers.
    assert!((&mut brief).now_or_never().is_none());
    assert!((&mut calm).now_or_never().is_none());
    e.delete("/calm/child");
    assert_eq!(calm.await, Fired::Changed);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stays_cut_off_gives_up_after_seven_fifths() {
    let e = MemoryRegistry::new();
    let (a, b) = (open(&e).await, open(&e).await);
    a.create("/a", b"", true).await.unwrap();
    let (_, mine) = a.stat_and_watch("/a").await.unwrap();
    let (_, theirs) = b.stat_and_watch("/a").await.unwrap();
    let zero = Instant::now();
    e.cut(a.session_id());
    tokio::time::sleep(secs(3)).await;
    let waiting = tokio::spawn(a.data("/a"));
    assert_eq!(theirs.await, Fired::Changed);
    assert_eq!(zero.elapsed(), ms(6500));
    assert_eq!(mine.await, Fired::SessionLost);
    assert_eq!(zero.elapsed(), ms(8400));
    assert_eq!(waiting.await.unwrap().unwrap_err(), Fault::SessionLost);
    a.ended().await;
    assert!(!e.heal(a.session_id()));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_back_too_late_is_told() {
    let e = MemoryRegistry::new();
    let a = open(&e).await;
    e.cut(a.session_id());
    tokio::time::sleep(secs(7)).await;
    assert!(e.session(a.session_id()).unwrap().is_alive);
    let call = tokio::spawn(a.create("/a", b"", false));
    settle().await;
    e.heal(a.session_id());
    assert_eq!(call.await.unwrap(), Err(Fault::SessionLost));
    a.ended().await;
    assert!(e.read("/a").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_close_while_cut_off_ends_and_leaves_the_nodes_to_the_timeout() {
    for pause in [0, 3] {
        let e = MemoryRegistry::new();
        let a = open(&e).await;
        a.create("/a", b"", true).await.unwrap();
        e.cut(a.session_id());
        tokio::time::sleep(secs(pause)).await;
        a.close().await;
        a.ended().await;
        assert!(e.read("/a").is_some());
        drop(a);
        tokio::time::sleep(secs(7)).await;
        assert!(e.read("/a").is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_severed_connection_loses_answers_and_keeps_the_session() {
    let e = MemoryRegistry::new().with_latency(Latency::fixed(ms(20)));
    let a = open(&e).await;
    let (_, watch) = a.stat_and_watch("/w").await.unwrap();
    let calls = [a.create("/1", b"", true), a.create("/2", b"", true)].map(tokio::spawn);
    tokio::time::sleep(ms(30)).await;
    let late = tokio::spawn(a.create("/3", b"", true));
    settle().await;
    assert!(e.sever(a.session_id()));
    for call in calls {
        assert!(matches!(call.await.unwrap(), Err(Fault::Unknown(_))));
    }
    assert!(matches!(late.await.unwrap(), Err(Fault::Unknown(_))));
    // What had arrived is there, what was on its way is not.
    assert_eq!(e.list("/"), ["1", "2"]);
    a.create("/3", b"", true).await.unwrap();
    e.put("/w", "");
    assert_eq!(watch.await, Fired::Changed);
}

#[tokio::test(start_paused = true)]
async fn without_a_quorum_nobody_ends_and_all_have_their_time_anew() {
    let e = MemoryRegistry::new();
    let (a, dead) = (open(&e).await, open(&e).await);
    a.create("/a", b"", true).await.unwrap();
    dead.create("/dead", b"", true).await.unwrap();
    e.kill(dead.session_id());
    tokio::time::sleep(secs(3)).await;
    e.halt();
    assert!(e.open(Dialect::V3_5).await.is_err());
    tokio::time::sleep(secs(8)).await;
    assert_eq!(e.list("/"), ["a", "dead"]);
    e.resume();
    assert!(a.stat("/a").await.unwrap().is_some());
    tokio::time::sleep(ms(5900)).await;
    assert_eq!(e.list("/"), ["a", "dead"]);
    tokio::time::sleep(ms(700)).await;
    assert_eq!(e.list("/"), ["a"]);
    assert!(e.session(a.session_id()).unwrap().is_open);
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_spares_the_dead_for_a_whole_timeout() {
    let e = MemoryRegistry::new();
    let dead = open(&e).await;
    dead.create("/dead", b"", true).await.unwrap();
    e.kill(dead.session_id());
    tokio::time::sleep(secs(3)).await;
    e.halt();
    tokio::time::sleep(secs(1)).await;
    e.resume();
    tokio::time::sleep(ms(6400)).await;
    assert_eq!(e.list("/"), ["dead"]);
    tokio::time::sleep(ms(200)).await;
    assert!(e.list("/").is_empty());
}

// ---- faults ----

#[tokio::test(start_paused = true)]
async fn each_fate_does_what_it_says() {
    let unknown = |fault: &Fault| matches!(fault, Fault::Unknown(_));
    for (fate, is_applied) in [
        (Fate::LoseBefore, false),
        (Fate::LoseAfter, true),
        (Fate::BreakBefore, false),
        (Fate::BreakAfter, true),
    ] {
        let script = Script::new().then(|r| r.kind == Kind::Create, fate.clone());
        let e = MemoryRegistry::new().with_fate(script.into_fate());
        let a = open(&e).await;
        let outcome = a.create("/a", b"", true).await;
        assert!(unknown(&outcome.unwrap_err()), "{fate:?}");
        assert_eq!(e.read("/a").is_some(), is_applied, "{fate:?}");
        a.create("/b", b"", true).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_is_refused_or_delayed_as_the_script_says() {
    let script = Script::new()
        .then(|r| r.concerns("/no"), Fate::Refuse(Fault::NoAuth))
        .then(|r| r.concerns("/late"), Fate::Delay(secs(2)))
        .then(|r| r.concerns("/slow"), Fate::DelayAnswer(secs(2)));
    let e = MemoryRegistry::new().with_fate(script.into_fate());
    let a = open(&e).await;
    assert_eq!(a.create("/no", b"", true).await, Err(Fault::NoAuth));
    let zero = Instant::now();
    for path in ["/late", "/slow"] {
        let call = tokio::spawn(a.create(path, b"", true));
        tokio::time::sleep(secs(1)).await;
        assert_eq!(e.read(path).is_some(), path == "/slow");
        call.await.unwrap().unwrap();
    }
    assert_eq!(zero.elapsed(), secs(4));
}

#[tokio::test(start_paused = true)]
async fn a_watch_whose_answer_is_lost_leaves_nothing() {
    let script = Script::new().then(|r| r.is_watching, Fate::LoseAfter);
    let e = MemoryRegistry::new().with_fate(script.into_fate());
    let a = open(&e).await;
    assert!(a.stat_and_watch("/a").await.is_err());
    assert_eq!(e.session(a.session_id()).unwrap().watches, 0);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_answer_may_outlive_the_session() {
    let fate = Script::new().then(|r| r.kind == Kind::Set, Fate::DelayAnswer(secs(20)));
    let e = MemoryRegistry::new().with_fate(fate.into_fate());
    e.put("/a", "");
    let a = open(&e).await;
    let call = tokio::spawn(a.set("/a", b"new", None));
    tokio::time::sleep(secs(1)).await;
    e.expire(a.session_id());
    assert_eq!(call.await.unwrap().unwrap_err(), Fault::SessionLost);
    assert_eq!(e.text("/a").unwrap(), "new");
}

#[tokio::test(start_paused = true)]
async fn opening_can_be_refused_and_take_time() {
    let e = MemoryRegistry::new().with_opening(ms(300));
    e.refuse("under repair");
    let zero = Instant::now();
    let error = e.open(Dialect::V3_5).await.err().unwrap();
    assert_eq!(error.kind(), crate::error::ErrorKind::Connection);
    assert!(error.to_string().ends_with("under repair"));
    e.accept();
    open(&e).await;
    assert_eq!(zero.elapsed(), ms(600));
    assert_eq!(e.describe(), "memory");
}

// ---- 3.4 ----

#[tokio::test(start_paused = true)]
async fn old_servers_hang_up_on_a_new_clients_create() {
    let e = MemoryRegistry::new().with_version(3, 4);
    e.put("/n", "");
    let a = open(&e).await;
    let calls = [a.create("/a", b"", true), a.create("/b", b"", true)];
    let outcomes = join_all(calls).await;
    assert_eq!(outcomes[0], Err(Fault::Unsupported));
    let fault = a.multi(vec![set("/n", 0), create("/a")]).await.unwrap_err();
    assert_eq!((fault.index, fault.fault), (None, Fault::Unsupported));
    assert_eq!(e.read("/n").unwrap().1.version, 0);
    assert!(e.session(a.session_id()).unwrap().is_connected);
    assert_eq!(e.list("/"), ["n"]);
}

#[tokio::test(start_paused = true)]
async fn old_servers_know_the_old_dialect() {
    let e = MemoryRegistry::new().with_version(3, 4);
    let a = e.open(Dialect::V3_4).await.unwrap();
    a.create("/a", b"", true).await.unwrap();
    let fault = a.multi(vec![create("/b")]).await.unwrap_err();
    assert_eq!(fault.fault, Fault::Unsupported);
    a.multi(vec![check("/a"), set("/a", 0)]).await.unwrap();
    let delete = Op::Delete {
        path: "/a".into(),
        version: Some(1),
    };
    a.multi(vec![check("/a"), delete]).await.unwrap();
    let new = MemoryRegistry::new();
    let b = new.open(Dialect::V3_4).await.unwrap();
    b.create("/a", b"", true).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn old_servers_hang_up_when_a_watch_is_dropped() {
    let e = MemoryRegistry::new()
        .with_version(3, 4)
        .with_latency(Latency::fixed(ms(10)));
    let a = e.open(Dialect::V3_4).await.unwrap();
    let (_, watch) = a.stat_and_watch("/a").await.unwrap();
    let (_, kept) = a.stat_and_watch("/b").await.unwrap();
    let call = tokio::spawn(a.data("/"));
    settle().await;
    drop(watch);
    assert!(matches!(call.await.unwrap(), Err(Fault::Unknown(_))));
    e.put("/b", "");
    assert_eq!(kept.await, Fired::Changed);
}

// ---- the hand from outside, and the whole ----

#[tokio::test(start_paused = true)]
async fn a_hand_from_outside_makes_and_clears_whole_branches() {
    let e = MemoryRegistry::new();
    e.put("/a/b/c", "1");
    e.put("/a/b/c", "2");
    e.put("/a/b-", "3");
    assert_eq!(e.text("/a/b/c").unwrap(), "2");
    assert_eq!(e.read("/a/b/c").unwrap().1.version, 1);
    assert_eq!(e.list("/a"), ["b", "b-"]);
    e.delete("/a");
    e.delete("/a");
    assert!(e.list("/").is_empty());
    assert!(e.log().iter().all(|w| w.session == 0));
}

#[tokio::test(start_paused = true)]
async fn a_driver_takes_over_and_leaves_without_a_trace() {
    let e = MemoryRegistry::new();
    let (a, b) = (open(&e).await, open(&e).await);
    a.create("/a", b"", true).await.unwrap();
    let (_, gone) = b.stat_and_watch("/a").await.unwrap();
    let waiting = tokio::spawn(gone);
    let driver = tokio::spawn({
        let e = e.clone();
        async move { e.drive().await }
    });
    settle().await;
    e.kill(a.session_id());
    tokio::time::sleep(secs(1)).await;
    driver.abort();
    let _ = driver.await;
    assert_eq!(waiting.await.unwrap(), Fired::Changed);
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_history() {
    async fn history(seed: u64) -> Vec<Write> {
        let e = MemoryRegistry::new().with_latency(Latency::between(ms(1), ms(30), seed));
        let mut tasks = Vec::new();
        for member in 0..4 {
            let session = open(&e).await;
            tasks.push(tokio::spawn(async move {
                for n in 0..20 {
                    let path = format!("/{}", (n * 7 + member) % 5);
                    if session.create(&path, &[member], true).await.is_err() {
                        let _ = session.delete(&path, None).await;
                    }
                }
                session.close().await;
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        e.log()
    }
    let first = history(1).await;
    assert_eq!(first, history(1).await);
    assert_ne!(first, history(2).await);
}
