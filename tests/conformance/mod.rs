//! What every registry promises, said once and asked of each of them. A function's name is the sentence it proves.
//!
//! What real servers do decides. A registry in memory that differs from them is wrong.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;

use evenkeel::registry::Connection;
use evenkeel::registry::Dialect;
use evenkeel::registry::Fault;
use evenkeel::registry::Fired;
use evenkeel::registry::Later;
use evenkeel::registry::MultiFault;
use evenkeel::registry::Op;
use evenkeel::registry::Registry;
use evenkeel::registry::Watch;

/// Calls the given macro with the names of all checks.
#[macro_export]
macro_rules! every_check {
    ($run:ident) => {
        $run! {
            a_session_has_a_number_of_its_own_and_a_timeout
            a_lasting_node_starts_at_version_zero
            an_ephemeral_node_names_its_session
            a_node_is_created_once_and_below_a_parent
            a_node_that_is_not_there_is_not_there_for_anybody
            a_path_without_its_slash_is_refused
            a_write_counts_up_and_minds_the_version
            a_delete_minds_version_and_children
            children_are_listed_and_their_changes_counted
            a_transaction_applies_all_steps_or_none
            a_transaction_names_the_first_step_that_does_not_hold
            a_transaction_may_only_check
            no_step_at_all_is_an_empty_answer
            later_steps_see_earlier_ones
            a_claim_is_at_version_one_and_its_token_is_the_czxid
            the_old_dialect_is_told_by_unsupported
            a_data_watch_fires_on_a_write_and_on_a_delete
            a_stat_watch_fires_on_creation_write_and_delete
            a_children_watch_fires_on_creation_and_delete
            a_watch_leaves_other_changes_alone
            two_watches_on_one_node_both_fire
            a_read_of_a_missing_node_arms_nothing
            a_session_is_told_of_its_own_changes
            a_watch_is_told_of_the_end_of_its_session
            ephemeral_nodes_go_with_the_close_at_once
            lasting_nodes_stay_after_the_close
            a_dropped_connection_closes_its_session
            a_closed_session_answers_nothing_any_more
            a_close_does_not_wait_for_answers_nobody_wants
            requests_are_carried_out_in_the_order_of_their_first_poll
            a_request_is_sent_at_its_first_poll_and_not_before
            what_is_too_large_is_refused_before_it_is_sent
        }
    };
}

/// A registry, what its servers speak, and a node of one's own to work below.
pub struct Bench<'a> {
    registry: &'a dyn Registry,
    dialect: Dialect,
    top: String,
}

impl<'a> Bench<'a> {
    /// `dialect` is what the servers of the registry know. `name` is used once a server.
    pub async fn new(registry: &'a dyn Registry, dialect: Dialect, name: &str) -> Self {
        let bench = Self {
            registry,
            dialect,
            top: format!("/{name}"),
        };
        let connection = bench.open().await;
        soon(connection.create(&bench.top, b"", false))
            .await
            .unwrap();
        soon(connection.close()).await;
        bench
    }

    /// A new session in the dialect of the servers.
    pub async fn open(&self) -> Arc<dyn Connection> {
        self.open_in(self.dialect).await
    }

    async fn open_in(&self, dialect: Dialect) -> Arc<dyn Connection> {
        soon(self.registry.open(dialect)).await.unwrap()
    }

    /// The path of a node below one's own.
    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.top)
    }

    async fn open_with(&self, name: &str, data: &[u8]) -> (Arc<dyn Connection>, String) {
        let connection = self.open().await;
        let path = self.path(name);
        soon(connection.create(&path, data, false)).await.unwrap();
        (connection, path)
    }
}

/// What must come, and comes long before this is over.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, what)
        .await
        .expect("it comes within half a minute")
}

fn check(path: &str) -> Op {
    Op::Check {
        path: path.into(),
        version: None,
    }
}

fn check_at(path: &str, version: i32) -> Op {
    Op::Check {
        path: path.into(),
        version: Some(version),
    }
}

fn create(path: &str, ephemeral: bool) -> Op {
    Op::Create {
        path: path.into(),
        data: b"text".to_vec(),
        ephemeral,
    }
}

fn set(path: &str, version: Option<i32>) -> Op {
    Op::Set {
        path: path.into(),
        data: b"text".to_vec(),
        version,
    }
}

fn delete(path: &str, version: Option<i32>) -> Op {
    Op::Delete {
        path: path.into(),
        version,
    }
}

fn failed(index: usize, fault: Fault) -> MultiFault {
    MultiFault {
        index: Some(index),
        fault,
    }
}

/// Asks once, without waiting.
fn has_fired(watch: &mut Watch) -> bool {
    watch.now_or_never().is_some()
}

/// Sends a request, by a first poll, and does not wait for its answer.
fn sent<T: Send + 'static>(mut reply: Later<T>) -> Later<T> {
    match (&mut reply).now_or_never() {
        Some(answer) => Box::pin(std::future::ready(answer)),
        None => reply,
    }
}

pub async fn a_session_has_a_number_of_its_own_and_a_timeout(bench: &Bench<'_>) {
    let (one, other) = (bench.open().await, bench.open().await);
    assert_ne!(one.session_id(), 0);
    assert_ne!(one.session_id(), other.session_id());
    assert!(one.session_timeout() > Duration::ZERO);
}

pub async fn a_lasting_node_starts_at_version_zero(bench: &Bench<'_>) {
    let (connection, path) = bench.open_with("a", b"hello").await;
    let (data, stat) = soon(connection.data(&path)).await.unwrap();
    assert_eq!(data, b"hello");
    assert_eq!(
        (stat.version, stat.cversion, stat.ephemeral_owner),
        (0, 0, 0)
    );
    assert_eq!(stat.czxid, stat.mzxid);
    assert_eq!(stat.ctime, stat.mtime);
    assert!(stat.czxid > 0 && stat.ctime > 0);
    assert_eq!(soon(connection.stat(&path)).await, Ok(Some(stat)));
}

pub async fn an_ephemeral_node_names_its_session(bench: &Bench<'_>) {
    let (one, other) = (bench.open().await, bench.open().await);
    let path = bench.path("e");
    soon(one.create(&path, b"", true)).await.unwrap();
    let stat = soon(other.stat(&path)).await.unwrap().unwrap();
    assert_eq!(stat.ephemeral_owner, one.session_id());
    let below = format!("{path}/child");
    let fault = soon(one.create(&below, b"", false)).await.unwrap_err();
    assert!(matches!(fault, Fault::Refused(_)), "{fault:?}");
}

pub async fn a_node_is_created_once_and_below_a_parent(bench: &Bench<'_>) {
    let (connection, path) = bench.open_with("a", b"first").await;
    assert_eq!(
        soon(connection.create(&path, b"second", true)).await,
        Err(Fault::NodeExists)
    );
    assert_eq!(
        soon(connection.create(&bench.path("b/c"), b"", false)).await,
        Err(Fault::NoNode)
    );
    let (data, stat) = soon(connection.data(&path)).await.unwrap();
    assert_eq!((data.as_slice(), stat.version), (&b"first"[..], 0));
}

pub async fn a_node_that_is_not_there_is_not_there_for_anybody(bench: &Bench<'_>) {
    let connection = bench.open().await;
    let path = bench.path("none");
    assert_eq!(soon(connection.stat(&path)).await, Ok(None));
    assert_eq!(
        soon(connection.data(&path)).await.unwrap_err(),
        Fault::NoNode
    );
    assert_eq!(
        soon(connection.children(&path)).await.unwrap_err(),
        Fault::NoNode
    );
    assert_eq!(
        soon(connection.set(&path, b"", None)).await.unwrap_err(),
        Fault::NoNode
    );
    assert_eq!(
        soon(connection.delete(&path, None)).await.unwrap_err(),
        Fault::NoNode
    );
}

pub async fn a_path_without_its_slash_is_refused(bench: &Bench<'_>) {
    let connection = bench.open().await;
    let fault = soon(connection.create("name", b"", false))
        .await
        .unwrap_err();
    assert!(matches!(fault, Fault::Refused(_)), "{fault:?}");
    let steps = vec![check(&bench.top), set("name", None)];
    let fault = soon(connection.multi(steps)).await.unwrap_err();
    assert_eq!(fault.index, Some(1));
    assert!(matches!(fault.fault, Fault::Refused(_)), "{fault:?}");
}

pub async fn a_write_counts_up_and_minds_the_version(bench: &Bench<'_>) {
    let (connection, path) = bench.open_with("a", b"0").await;
    let before = soon(connection.stat(&path)).await.unwrap().unwrap();
    let first = soon(connection.set(&path, b"1", Some(0))).await.unwrap();
    assert_eq!((first.version, first.czxid), (1, before.czxid));
    assert!(first.mzxid > before.mzxid);
    assert_eq!(
        soon(connection.set(&path, b"x", Some(0))).await,
        Err(Fault::BadVersion)
    );
    assert_eq!(
        soon(connection.set(&path, b"2", None))
            .await
            .unwrap()
            .version,
        2
    );
    let (data, stat) = soon(connection.data(&path)).await.unwrap();
    assert_eq!((data.as_slice(), stat.version), (&b"2"[..], 2));
}

pub async fn a_delete_minds_version_and_children(bench: &Bench<'_>) {
    let (connection, path) = bench.open_with("a", b"").await;
    let child = bench.path("a/b");
    soon(connection.create(&child, b"", false)).await.unwrap();
    assert_eq!(
        soon(connection.delete(&path, None)).await,
        Err(Fault::NotEmpty)
    );
    assert_eq!(
        soon(connection.delete(&child, Some(1))).await,
        Err(Fault::BadVersion)
    );
    assert_eq!(soon(connection.delete(&child, Some(0))).await, Ok(()));
    assert_eq!(soon(connection.delete(&path, None)).await, Ok(()));
    assert_eq!(soon(connection.stat(&path)).await, Ok(None));
}

pub async fn children_are_listed_and_their_changes_counted(bench: &Bench<'_>) {
    let (connection, path) = bench.open_with("a", b"").await;
    for name in ["a/y", "a/x"] {
        soon(connection.create(&bench.path(name), b"", name == "a/x"))
            .await
            .unwrap();
    }
    let (mut names, stat) = soon(connection.children(&path)).await.unwrap();
    names.sort();
    assert_eq!(names, ["x", "y"]);
    assert_eq!((stat.version, stat.cversion), (0, 2));
    soon(connection.delete(&bench.path("a/x"), None))
        .await
        .unwrap();
    let (names, stat) = soon(connection.children(&path)).await.unwrap();
    assert_eq!((names, stat.cversion), (vec!["y".to_owned()], 3));
}

pub async fn a_transaction_applies_all_steps_or_none(bench: &Bench<'_>) {
    let (connection, a) = bench.open_with("a", b"0").await;
    let b = bench.path("b");
    soon(connection.create(&b, b"", false)).await.unwrap();
    let steps = vec![set(&a, Some(0)), delete(&b, Some(7))];
    assert_eq!(
        soon(connection.multi(steps)).await,
        Err(failed(1, Fault::BadVersion))
    );
    assert_eq!(soon(connection.data(&a)).await.unwrap().0, b"0");
    let steps = vec![check(&b), set(&a, Some(0)), delete(&b, Some(0))];
    let results = soon(connection.multi(steps)).await.unwrap();
    let (data, stat) = soon(connection.data(&a)).await.unwrap();
    assert_eq!(data, b"text");
    assert_eq!(results, [None, Some(stat), None]);
    assert_eq!(soon(connection.stat(&b)).await, Ok(None));
}

pub async fn a_transaction_names_the_first_step_that_does_not_hold(bench: &Bench<'_>) {
    let (connection, a) = bench.open_with("a", b"").await;
    soon(connection.create(&bench.path("a/child"), b"", false))
        .await
        .unwrap();
    let none = bench.path("none");
    for (steps, index, fault) in [
        (vec![check(&none), set(&a, None)], 0, Fault::NoNode),
        (
            vec![check(&a), check_at(&a, 3), delete(&none, None)],
            1,
            Fault::BadVersion,
        ),
        (
            vec![set(&a, Some(0)), set(&a, Some(0))],
            1,
            Fault::BadVersion,
        ),
        (
            vec![check(&a), delete(&none, None), check(&none)],
            1,
            Fault::NoNode,
        ),
        (
            vec![check(&a), check(&a), delete(&a, None)],
            2,
            Fault::NotEmpty,
        ),
        (vec![set(&none, None)], 0, Fault::NoNode),
    ] {
        assert_eq!(
            soon(connection.multi(steps.clone())).await,
            Err(failed(index, fault)),
            "{steps:?}"
        );
    }
    assert_eq!(soon(connection.stat(&a)).await.unwrap().unwrap().version, 0);
    if bench.dialect == Dialect::V3_5 {
        for (steps, index, fault) in [
            (vec![check(&a), create(&a, true)], 1, Fault::NodeExists),
            (
                vec![create(&bench.path("none/x"), false), create(&a, true)],
                0,
                Fault::NoNode,
            ),
            (
                vec![create(&none, false), create(&none, false)],
                1,
                Fault::NodeExists,
            ),
        ] {
            assert_eq!(
                soon(connection.multi(steps.clone())).await,
                Err(failed(index, fault)),
                "{steps:?}"
            );
        }
        assert_eq!(soon(connection.stat(&none)).await, Ok(None));
    }
}

pub async fn a_transaction_may_only_check(bench: &Bench<'_>) {
    let (connection, a) = bench.open_with("a", b"").await;
    let results = soon(connection.multi(vec![check(&a), check_at(&a, 0)])).await;
    assert_eq!(results, Ok(vec![None, None]));
    let results = soon(connection.multi(vec![check_at(&a, 1)])).await;
    assert_eq!(results, Err(failed(0, Fault::BadVersion)));
}

pub async fn no_step_at_all_is_an_empty_answer(bench: &Bench<'_>) {
    let connection = bench.open().await;
    assert_eq!(soon(connection.multi(Vec::new())).await, Ok(Vec::new()));
}

pub async fn later_steps_see_earlier_ones(bench: &Bench<'_>) {
    let (connection, a) = bench.open_with("a", b"").await;
    let steps = vec![
        set(&a, Some(0)),
        check_at(&a, 1),
        set(&a, Some(1)),
        delete(&a, Some(2)),
    ];
    let results = soon(connection.multi(steps)).await.unwrap();
    let versions: Vec<_> = results
        .iter()
        .map(|stat| stat.map(|stat| stat.version))
        .collect();
    assert_eq!(versions, [Some(1), None, Some(2), None]);
    if bench.dialect == Dialect::V3_5 {
        soon(connection.create(&a, b"", false)).await.unwrap();
        let steps = vec![delete(&a, None), create(&a, true), check_at(&a, 0)];
        assert_eq!(soon(connection.multi(steps)).await, Ok(vec![None; 3]));
        let stat = soon(connection.stat(&a)).await.unwrap().unwrap();
        assert_eq!(stat.ephemeral_owner, connection.session_id());
    }
}

pub async fn a_claim_is_at_version_one_and_its_token_is_the_czxid(bench: &Bench<'_>) {
    let (connection, registration) = bench.open_with("r", b"").await;
    let owner = bench.path("o");
    let stat = match bench.dialect {
        Dialect::V3_5 => {
            let steps = vec![
                check(&registration),
                create(&owner, true),
                set(&owner, Some(0)),
            ];
            let results = soon(connection.multi(steps)).await.unwrap();
            assert_eq!(results[..2], [None, None]);
            assert_eq!(results[2].unwrap().mzxid, results[2].unwrap().czxid);
            results[2]
        }
        Dialect::V3_4 => {
            soon(connection.create(&owner, b"text", true))
                .await
                .unwrap();
            let steps = vec![check(&registration), set(&owner, Some(0))];
            soon(connection.multi(steps)).await.unwrap()[1]
        }
    };
    let stat = stat.unwrap();
    assert_eq!(
        (stat.version, stat.ephemeral_owner),
        (1, connection.session_id())
    );
    assert_eq!(
        soon(connection.data(&owner)).await,
        Ok((b"text".to_vec(), stat))
    );
}

pub async fn the_old_dialect_is_told_by_unsupported(bench: &Bench<'_>) {
    if bench.dialect == Dialect::V3_5 {
        // A newer server knows the old requests as well.
        let connection = bench.open_in(Dialect::V3_4).await;
        let path = bench.path("a");
        assert_eq!(soon(connection.create(&path, b"", true)).await, Ok(()));
        assert_eq!(
            soon(connection.multi(vec![delete(&path, None)])).await,
            Ok(vec![None])
        );
        return;
    }
    for dialect in [Dialect::V3_4, Dialect::V3_5] {
        let connection = bench.open_in(dialect).await;
        let path = bench.path("a");
        let fault = soon(connection.multi(vec![check(&bench.top), create(&path, true)]))
            .await
            .unwrap_err();
        assert_eq!(fault.fault, Fault::Unsupported);
        assert_eq!(soon(connection.stat(&path)).await, Ok(None));
    }
    let connection = bench.open_in(Dialect::V3_5).await;
    assert_eq!(
        soon(connection.create(&bench.path("a"), b"", true)).await,
        Err(Fault::Unsupported)
    );
    // The server cuts the connection over it, but the session lives on: in-between nobody knows.
    let stat = loop {
        match soon(connection.stat(&bench.path("a"))).await {
            Err(Fault::Unknown(_)) => continue,
            other => break other,
        }
    };
    assert_eq!(stat, Ok(None));
}

pub async fn a_data_watch_fires_on_a_write_and_on_a_delete(bench: &Bench<'_>) {
    let (one, path) = bench.open_with("a", b"0").await;
    let other = bench.open().await;
    let (data, stat, mut watch) = soon(one.data_and_watch(&path)).await.unwrap();
    assert_eq!((data.as_slice(), stat.version), (&b"0"[..], 0));
    assert!(!has_fired(&mut watch));
    soon(other.set(&path, b"1", None)).await.unwrap();
    assert_eq!(soon(watch).await, Fired::Changed);
    let (data, _, watch) = soon(one.data_and_watch(&path)).await.unwrap();
    assert_eq!(data, b"1");
    soon(other.multi(vec![delete(&path, None)])).await.unwrap();
    assert_eq!(soon(watch).await, Fired::Changed);
}

pub async fn a_stat_watch_fires_on_creation_write_and_delete(bench: &Bench<'_>) {
    let (one, other) = (bench.open().await, bench.open().await);
    let path = bench.path("a");
    let (stat, mut watch) = soon(one.stat_and_watch(&path)).await.unwrap();
    assert_eq!(stat, None);
    assert!(!has_fired(&mut watch));
    soon(other.create(&path, b"", true)).await.unwrap();
    assert_eq!(soon(watch).await, Fired::Changed);
    let (stat, watch) = soon(one.stat_and_watch(&path)).await.unwrap();
    assert_eq!(stat.unwrap().version, 0);
    soon(other.set(&path, b"", None)).await.unwrap();
    assert_eq!(soon(watch).await, Fired::Changed);
    let (stat, watch) = soon(one.stat_and_watch(&path)).await.unwrap();
    assert_eq!(stat.unwrap().version, 1);
    soon(other.delete(&path, None)).await.unwrap();
    assert_eq!(soon(watch).await, Fired::Changed);
}

pub async fn a_children_watch_fires_on_creation_and_delete(bench: &Bench<'_>) {
    let (one, path) = bench.open_with("a", b"").await;
    let other = bench.open().await;
    let child = bench.path("a/b");
    let (names, _, mut watch) = soon(one.children_and_watch(&path)).await.unwrap();
    assert!(names.is_empty() && !has_fired(&mut watch));
    soon(other.create(&child, b"", false)).await.unwrap();
    assert_eq!(soon(watch).await, Fired::Changed);
    let (names, stat, watch) = soon(one.children_and_watch(&path)).await.unwrap();
    assert_eq!((names, stat.cversion), (vec!["b".to_owned()], 1));
    soon(other.delete(&child, None)).await.unwrap();
    assert_eq!(soon(watch).await, Fired::Changed);
    let (_, _, watch) = soon(one.children_and_watch(&path)).await.unwrap();
    soon(other.delete(&path, None)).await.unwrap();
    assert_eq!(soon(watch).await, Fired::Changed);
}

pub async fn a_watch_leaves_other_changes_alone(bench: &Bench<'_>) {
    let (one, path) = bench.open_with("a", b"").await;
    let other = bench.open().await;
    let child = bench.path("a/b");
    soon(other.create(&child, b"", false)).await.unwrap();
    let (_, _, mut data) = soon(one.data_and_watch(&path)).await.unwrap();
    let (_, mut stat) = soon(one.stat_and_watch(&path)).await.unwrap();
    let (_, _, mut children) = soon(one.children_and_watch(&path)).await.unwrap();
    // A grandchild and a child's data concern none of them.
    soon(other.set(&child, b"x", None)).await.unwrap();
    soon(other.create(&bench.path("a/b/c"), b"", false))
        .await
        .unwrap();
    soon(other.multi(vec![check(&path)])).await.unwrap();
    assert_eq!(
        soon(other.set(&path, b"x", Some(9))).await,
        Err(Fault::BadVersion)
    );
    soon(one.multi(vec![check(&path)])).await.unwrap();
    assert!(!has_fired(&mut data) && !has_fired(&mut stat) && !has_fired(&mut children));
    // Its children concern the third only, its data the others only.
    soon(other.create(&bench.path("a/d"), b"", false))
        .await
        .unwrap();
    assert_eq!(soon(&mut children).await, Fired::Changed);
    assert!(!has_fired(&mut data) && !has_fired(&mut stat));
    let (_, _, mut children) = soon(one.children_and_watch(&path)).await.unwrap();
    soon(other.set(&path, b"x", None)).await.unwrap();
    assert_eq!(soon(data).await, Fired::Changed);
    assert_eq!(soon(stat).await, Fired::Changed);
    assert!(!has_fired(&mut children));
}

pub async fn two_watches_on_one_node_both_fire(bench: &Bench<'_>) {
    let (one, path) = bench.open_with("a", b"").await;
    let other = bench.open().await;
    let (_, _, first) = soon(one.data_and_watch(&path)).await.unwrap();
    let (_, _, second) = soon(one.data_and_watch(&path)).await.unwrap();
    soon(other.set(&path, b"", None)).await.unwrap();
    assert_eq!(
        (soon(first).await, soon(second).await),
        (Fired::Changed, Fired::Changed)
    );
}

pub async fn a_read_of_a_missing_node_arms_nothing(bench: &Bench<'_>) {
    let connection = bench.open().await;
    let path = bench.path("none");
    assert_eq!(
        soon(connection.children_and_watch(&path)).await.err(),
        Some(Fault::NoNode)
    );
    assert_eq!(
        soon(connection.data_and_watch(&path)).await.err(),
        Some(Fault::NoNode)
    );
    soon(connection.create(&path, b"", false)).await.unwrap();
    assert_eq!(
        soon(connection.stat(&path)).await.unwrap().unwrap().version,
        0
    );
}

pub async fn a_session_is_told_of_its_own_changes(bench: &Bench<'_>) {
    let (connection, path) = bench.open_with("a", b"").await;
    let (_, _, data) = soon(connection.data_and_watch(&path)).await.unwrap();
    let (_, _, children) = soon(connection.children_and_watch(&bench.top))
        .await
        .unwrap();
    soon(connection.set(&path, b"", None)).await.unwrap();
    soon(connection.create(&bench.path("b"), b"", true))
        .await
        .unwrap();
    assert_eq!(
        (soon(data).await, soon(children).await),
        (Fired::Changed, Fired::Changed)
    );
}

pub async fn a_watch_is_told_of_the_end_of_its_session(bench: &Bench<'_>) {
    let (connection, path) = bench.open_with("a", b"").await;
    let (_, _, data) = soon(connection.data_and_watch(&path)).await.unwrap();
    let (_, stat) = soon(connection.stat_and_watch(&bench.path("none")))
        .await
        .unwrap();
    let (_, _, children) = soon(connection.children_and_watch(&path)).await.unwrap();
    soon(connection.close()).await;
    for watch in [data, stat, children] {
        assert_eq!(soon(watch).await, Fired::SessionLost);
    }
}

pub async fn ephemeral_nodes_go_with_the_close_at_once(bench: &Bench<'_>) {
    let (one, other) = (bench.open().await, bench.open().await);
    let path = bench.path("e");
    soon(one.create(&path, b"", true)).await.unwrap();
    let (_, _, data) = soon(other.data_and_watch(&path)).await.unwrap();
    let (_, _, children) = soon(other.children_and_watch(&bench.top)).await.unwrap();
    soon(one.close()).await;
    assert_eq!(soon(other.stat(&path)).await, Ok(None));
    assert_eq!(
        (soon(data).await, soon(children).await),
        (Fired::Changed, Fired::Changed)
    );
}

pub async fn lasting_nodes_stay_after_the_close(bench: &Bench<'_>) {
    let (one, path) = bench.open_with("a", b"stays").await;
    soon(one.close()).await;
    let other = bench.open().await;
    assert_eq!(soon(other.data(&path)).await.unwrap().0, b"stays");
}

pub async fn a_dropped_connection_closes_its_session(bench: &Bench<'_>) {
    let (one, other) = (bench.open().await, bench.open().await);
    let path = bench.path("e");
    soon(one.create(&path, b"", true)).await.unwrap();
    let (_, watch) = soon(other.stat_and_watch(&path)).await.unwrap();
    let ended = one.ended();
    drop(one);
    soon(ended).await;
    assert_eq!(soon(watch).await, Fired::Changed);
    assert_eq!(soon(other.stat(&path)).await, Ok(None));
}

pub async fn a_closed_session_answers_nothing_any_more(bench: &Bench<'_>) {
    let (connection, path) = bench.open_with("a", b"").await;
    let mut ended = connection.ended();
    assert!((&mut ended).now_or_never().is_none());
    soon(connection.close()).await;
    soon(ended).await;
    soon(connection.ended()).await;
    let lost = Some(Fault::SessionLost);
    assert_eq!(soon(connection.data(&path)).await.err(), lost);
    assert_eq!(soon(connection.data_and_watch(&path)).await.err(), lost);
    assert_eq!(soon(connection.stat(&path)).await.err(), lost);
    assert_eq!(soon(connection.stat_and_watch(&path)).await.err(), lost);
    assert_eq!(soon(connection.children(&path)).await.err(), lost);
    assert_eq!(soon(connection.children_and_watch(&path)).await.err(), lost);
    assert_eq!(soon(connection.create(&path, b"", true)).await.err(), lost);
    assert_eq!(soon(connection.set(&path, b"", None)).await.err(), lost);
    assert_eq!(soon(connection.delete(&path, None)).await.err(), lost);
    let fault = soon(connection.multi(vec![check(&path)]))
        .await
        .unwrap_err();
    assert_eq!((fault.index, fault.fault), (None, Fault::SessionLost));
    soon(connection.close()).await;
}

pub async fn a_close_does_not_wait_for_answers_nobody_wants(bench: &Bench<'_>) {
    let (one, path) = bench.open_with("a", b"").await;
    let (other, gone) = (bench.open().await, bench.path("e"));
    soon(one.create(&gone, b"", true)).await.unwrap();
    let (read, look) = (sent(one.data(&path)), sent(one.stat_and_watch(&path)));
    soon(one.close()).await;
    assert_eq!(soon(other.stat(&gone)).await, Ok(None));
    // Whoever asks after all is not kept waiting.
    for fault in [soon(read).await.err(), soon(look).await.err()] {
        assert!(
            matches!(fault, None | Some(Fault::SessionLost)),
            "{fault:?}"
        );
    }
}

pub async fn requests_are_carried_out_in_the_order_of_their_first_poll(bench: &Bench<'_>) {
    let connection = bench.open().await;
    let path = bench.path("a");
    let created = sent(connection.create(&path, b"0", false));
    let write = |version| sent(connection.set(&path, b"x", Some(version)));
    let writes: Vec<_> = (0..20).map(write).collect();
    let read = sent(connection.data(&path));
    let steps = vec![set(&path, Some(20)), delete(&path, Some(21))];
    let stamped = sent(connection.multi(steps));
    let last = sent(connection.stat(&path));
    // Waiting for them in another order changes nothing.
    assert_eq!(soon(last).await, Ok(None));
    assert!(soon(stamped).await.is_ok());
    assert_eq!(soon(read).await.unwrap().1.version, 20);
    let versions: Vec<_> = soon(join_all(writes))
        .await
        .into_iter()
        .map(|stat| stat.unwrap().version)
        .collect();
    assert_eq!(versions, (1..=20).collect::<Vec<_>>());
    assert_eq!(soon(created).await, Ok(()));
}

pub async fn a_request_is_sent_at_its_first_poll_and_not_before(bench: &Bench<'_>) {
    let connection = bench.open().await;
    let (path, unsent) = (bench.path("sent"), bench.path("unsent"));
    drop(connection.create(&unsent, b"", false));
    drop(sent(connection.create(&path, b"", false)));
    assert!(soon(connection.stat(&path)).await.unwrap().is_some());
    assert_eq!(soon(connection.stat(&unsent)).await, Ok(None));
}

pub async fn what_is_too_large_is_refused_before_it_is_sent(bench: &Bench<'_>) {
    let (connection, path) = bench.open_with("a", b"").await;
    let (_, _, mut watch) = soon(connection.children_and_watch(&bench.top))
        .await
        .unwrap();
    let large = vec![b'x'; 1024 * 1024];
    assert_eq!(
        soon(connection.set(&path, &large, None)).await,
        Err(Fault::TooLarge)
    );
    let fault = soon(connection.create(&bench.path("b"), &large, false)).await;
    assert_eq!(fault, Err(Fault::TooLarge));
    // Many small steps add up.
    let steps = vec![set(&path, None); 20_000];
    let fault = soon(connection.multi(steps)).await.unwrap_err();
    assert_eq!((fault.index, fault.fault), (None, Fault::TooLarge));
    // What is taken here, servers take.
    let fits = &large[..1000 * 1024];
    assert_eq!(
        soon(connection.set(&path, fits, None))
            .await
            .unwrap()
            .version,
        1
    );
    assert_eq!(
        soon(connection.data(&path)).await.unwrap().0.len(),
        fits.len()
    );
    assert!(!has_fired(&mut watch));
}
