//! Connections that stay open while nothing comes through.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;
use std::time::Instant;

use evenkeel::Event;
use evenkeel::registry::Fault;
use evenkeel::registry::Op as Step;
use evenkeel::registry::Registry;
use evenkeel::zk::ZkRegistry;
use evenkeel::zk::ZkSettings;

use crate::stage::Group;
use crate::stage::PARTITIONS;
use crate::stage::commit;
use crate::stage::dialect;
use crate::stage::on_each;
use crate::stage::server;
use crate::support::Change;
use crate::support::Direction;
use crate::support::Exchange;
use crate::support::LONG;
use crate::support::Matcher;
use crate::support::Op;
use crate::support::Ours;
use crate::support::Proxy;
use crate::support::Tree;
use crate::support::block_on;
use crate::support::until;

/// The lease has lapsed and was not renewed since.
fn has_lapsed(member: &Ours) -> bool {
    let events = member.events();
    let is_about_it = |event: &&Event| matches!(event, Event::Lapsed | Event::Resumed { .. });
    let last = events.iter().rev().find(is_about_it);
    matches!(last, Some(Event::Lapsed))
}

/// Waits for the lapse of a member that hears nothing any more, and proves that nothing was delivered on a proof older than half the session
/// timeout.
fn deliveries_end_with_the_lease(group: &Group, member: &Ours, timeout: Duration) {
    let mut last = (member.finished().len(), Instant::now());
    let mut look = || {
        let count = member.finished().len();
        if count != last.0 {
            last = (count, Instant::now());
        }
        last
    };
    until("the lapse", LONG, || {
        look();
        has_lapsed(member)
    });
    let (count, at) = look();
    group.flow_on(10);
    // One that was handed out just before may be noted just after.
    assert!(
        member.finished().len() <= count + 1,
        "delivered after the lapse"
    );
    let exchanges = group.proxy.exchanges();
    let proofs = exchanges.iter().filter(|exchange| {
        exchange.request.op == Op::Multi && exchange.error == Some(0) && exchange.answered.is_some()
    });
    let proven = proofs
        .map(|proof| proof.asked)
        .max()
        .expect("there were some");
    let since = at.saturating_duration_since(proven);
    println!(
        "{}: last delivery {since:?} after the last proof, of {timeout:?}",
        group.topic
    );
    assert!(since <= timeout * 3 / 4, "{since:?} after the last proof");
}

fn tokens(group: &Group) -> BTreeMap<i32, i64> {
    let token = |partition: i32| {
        let path = format!("/consumers/g/owners/{}/{partition}", group.topic);
        group
            .tree
            .node(&path)
            .map(|(_, stat)| (partition, stat.czxid))
    };
    (0..PARTITIONS).filter_map(token).collect()
}

fn pause_and_resume(version: &'static str, name: &str, direction: Direction) {
    let timeout = Duration::from_secs(10);
    let group = Group::new(version, name);
    let (member, rival) = (group.join(timeout), group.rival());
    group.wait_shared(&[&member, &rival]);
    group.wait_finished(&member, 20);
    let (session, before) = (group.proxy.sessions().pop(), tokens(&group));
    group.proxy.blackhole(direction);
    deliveries_end_with_the_lease(&group, &member, timeout);
    assert!(group.proxy.counts().withheld > 0);
    group.proxy.heal();
    member.wait_for("delivery goes on", |event| {
        matches!(event, Event::Resumed { .. })
    });
    group.wait_finished(&member, 20);
    assert_eq!(group.proxy.sessions().pop(), session);
    assert_eq!(tokens(&group), before, "nothing was claimed anew");
    let told = member.events();
    assert!(
        !told.iter().any(|event| matches!(event, Event::Lost { .. })),
        "{told:?}"
    );
    assert_eq!(group.finish(vec![member, rival], Vec::new()), 0);
}

#[test]
fn haz_n1_a_half_open_connection_pauses_and_resumes_without_a_rebalance() {
    on_each(|version| pause_and_resume(version, "haz_n1_both", Direction::Both));
}

#[test]
fn haz_n1_answers_that_do_not_come_pause_and_resume_without_a_rebalance() {
    on_each(|version| pause_and_resume(version, "haz_n1_answers", Direction::ToClient));
}

#[test]
fn haz_n1_a_connection_that_stays_half_open_is_taken_over_from() {
    on_each(|version| {
        let timeout = Duration::from_secs(4);
        let group = Group::new(version, "haz_n1_lost");
        let (member, rival) = (group.join(timeout), group.rival());
        group.wait_shared(&[&member, &rival]);
        group.wait_finished(&member, 20);
        let session = group.proxy.sessions().pop().expect("it is there");
        group.proxy.blackhole(Direction::Both);
        deliveries_end_with_the_lease(&group, &member, timeout);
        let count = member.finished().len();
        group
            .log()
            .await_txn("the end of the session", LONG, |txn| {
                txn.session == session && txn.changes == [Change::Closed]
            });
        group.wait_shared(&[&rival]);
        group.wait_finished(&rival, 20);
        assert!(member.finished().len() <= count, "two delivered at a time");
        group.proxy.heal();
        let again = group.finish(vec![member, rival], Vec::new());
        println!("{again} delivered again");
    });
}

/// What a session left behind and others removed before it ended.
fn removed_from(group: &Group, session: i64) -> Vec<String> {
    let (mut left, mut removed) = (BTreeSet::new(), Vec::new());
    let below = format!("{}/consumers/g/", group.chroot);
    for txn in group.log().more() {
        let is_its = txn.session == session;
        for change in &txn.changes {
            match change {
                Change::Created { path, .. } if is_its && path.starts_with(&below) => {
                    left.insert(path.clone());
                }
                Change::Deleted { path } if left.remove(path) && !is_its => {
                    removed.push(path.clone());
                }
                Change::Closed if is_its => return removed,
                _ => {}
            }
        }
    }
    removed
}

#[test]
fn haz_s8_what_an_earlier_session_left_is_removed_and_made_anew() {
    on_each(|version| {
        let timeout = Duration::from_secs(5);
        let group = Group::new(version, "haz_s8");
        let (member, rival) = (group.join(timeout), group.rival());
        group.wait_shared(&[&member, &rival]);
        group.wait_finished(&member, 20);
        let session = group.proxy.sessions().pop().expect("it is there");
        // Its attempts to come back keep the session alive, and it never hears of it.
        group.proxy.blackhole(Direction::ToClient);
        member.wait_for("the session given up", |event| {
            matches!(event, Event::SessionLost { .. })
        });
        group.proxy.heal();
        let is_back = |event: &Event| matches!(event, Event::Joined { session: other, .. } if *other != session);
        let since = || -> Vec<Event> {
            let told = member.events().into_iter();
            told.skip_while(|event| !is_back(event)).collect()
        };
        until("its share claimed anew", LONG, || {
            let is_claim = |event: &&Event| matches!(event, Event::Claimed { .. });
            since().iter().filter(is_claim).count() >= PARTITIONS as usize / 2
        });
        group.wait_finished(&member, 20);
        let told = since();
        let is_loss = |event: &Event| matches!(event, Event::Lost { .. });
        assert!(!told.iter().any(is_loss), "taken for its own: {told:?}");
        let removed = removed_from(&group, session);
        assert_eq!(removed.len(), 1 + PARTITIONS as usize / 2, "{removed:?}");
        let again = group.finish(vec![member, rival], Vec::new());
        println!("{again} delivered again");
    });
}

#[test]
fn haz_s7_an_answer_that_comes_too_late_changes_nothing() {
    on_each(|version| {
        let group = Group::new(version, "haz_s7");
        // A read between them would find out sooner; it is the waiting that ends.
        group
            .proxy
            .hold(Matcher::of(&[Op::Multi]).with(&[Op::SetData], "*/owners/*/*"));
        let member = group.join(Duration::from_secs(3));
        until("the claim", LONG, || !group.proxy.fired().is_empty());
        group.wait_shared(&[&member]);
        group.wait_finished(&member, 20);
        group.proxy.hold(commit());
        until("the commit", LONG, || group.proxy.fired().len() == 2);
        let is_done = |exchange: &&Exchange| {
            commit().matches(&exchange.request) && exchange.answered.is_some()
        };
        let done = || group.proxy.exchanges().iter().filter(is_done).count();
        let before = done();
        until("another commit", LONG, || done() > before);
        assert_eq!(group.proxy.release(), 2, "the connection never broke");
        let rival = group.rival();
        assert_eq!(group.finish(vec![member, rival], Vec::new()), 0);
    });
}

async fn ends<T>(what: &str, timeout: Duration, call: impl Future<Output = T>) -> T {
    let start = Instant::now();
    let answer = tokio::time::timeout(LONG, call).await;
    let answer = answer.unwrap_or_else(|_| panic!("{what} never ends"));
    // The wait for a server, and the waits of those asked before.
    let limit = timeout * 3 + Duration::from_secs(2);
    assert!(start.elapsed() < limit, "{what} took {:?}", start.elapsed());
    answer
}

#[test]
fn haz_s17_every_call_of_a_session_ends_in_silence() {
    on_each(|version| {
        let timeout = Duration::from_secs(1);
        let proxy = Proxy::start(server(version).port());
        Tree::connect(server(version)).make("/s17", "");
        let registry = ZkRegistry::new(ZkSettings {
            hosts: vec![proxy.connect_string()],
            chroot: Some("/s17".into()),
            session_timeout: timeout,
            connection_timeout: timeout,
        });
        block_on(async {
            let connection = registry.open(dialect(version)).await.unwrap();
            connection.create("/a", b"", false).await.unwrap();
            let (_, _, watch) = connection.data_and_watch("/a").await.unwrap();
            proxy.blackhole(Direction::Both);
            let steps = vec![Step::Check {
                path: "/a".into(),
                version: None,
            }];
            let is_unknown = |fault: Fault| matches!(fault, Fault::Unknown(_) | Fault::SessionLost);
            let c = &*connection;
            let faults = ends("calls", timeout, async {
                tokio::join!(
                    async { c.data("/a").await.err() },
                    async { c.data_and_watch("/a").await.err() },
                    async { c.stat("/a").await.err() },
                    async { c.stat_and_watch("/b").await.err() },
                    async { c.children("/").await.err() },
                    async { c.children_and_watch("/").await.err() },
                    async { c.create("/b", b"", true).await.err() },
                    async { c.set("/a", b"", None).await.err() },
                    async { c.delete("/a", None).await.err() },
                    async { c.multi(steps).await.err().map(|refused| refused.fault) },
                )
            })
            .await;
            let (a, b, c, d, e, f, g, h, i, j) = faults;
            for fault in [a, b, c, d, e, f, g, h, i, j] {
                assert!(fault.clone().is_some_and(is_unknown), "{fault:?}");
            }
            ends("the session", timeout, connection.ended()).await;
            ends("a watch", timeout, watch).await;
            ends("a close", timeout, connection.close()).await;
            assert!(
                ends("an opening", timeout, registry.open(dialect(version)))
                    .await
                    .is_err()
            );
        });
        proxy.heal();
        assert!(block_on(registry.open(dialect(version))).is_ok());
    });
}

#[test]
fn haz_s17_a_member_commits_and_leaves_in_silence_within_its_time() {
    on_each(|version| {
        let timeout = Duration::from_secs(2);
        let group = Group::new(version, "haz_s17");
        let member = group.join(timeout);
        group.wait_shared(&[&member]);
        group.wait_finished(&member, 20);
        group.proxy.blackhole(Direction::Both);
        // One is on its way when silence falls, or the lease has run out: it is no success that nobody confirmed.
        let asked = Instant::now();
        let answer = block_on(ends("a commit", timeout, member.connector().commit()));
        println!("the commit ended after {:?}: {answer:?}", asked.elapsed());
        until("the lapse", LONG, || has_lapsed(&member));
        let start = Instant::now();
        let (farewell, finished) = member.leave();
        println!("left after {:?}: {farewell:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(10) + timeout * 2);
        group.proxy.heal();
        let rival = group.rival();
        group.finish(vec![rival], finished);
    });
}
