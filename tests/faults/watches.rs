//! What changes while a member is cut off is seen when it is back.

use std::time::Duration;

use evenkeel::Event;
use evenkeel::event::LostCause;
use evenkeel::registry::Fired;
use evenkeel::registry::Registry;
use evenkeel::zk::ZkRegistry;
use evenkeel::zk::ZkSettings;

use crate::stage::Group;
use crate::stage::PARTITIONS;
use crate::stage::dialect;
use crate::stage::on_each;
use crate::stage::server;
use crate::support::LONG;
use crate::support::Op;
use crate::support::Proxy;
use crate::support::Tree;
use crate::support::block_on;
use crate::support::until;

/// Long enough for a session to survive it on a slow machine.
const T: Duration = Duration::from_secs(20);

/// A change while nobody behind the proxy reaches the server.
fn while_cut<R>(proxy: &Proxy, change: impl FnOnce() -> R) -> R {
    proxy.refuse();
    assert_eq!(proxy.cut(), 1);
    let changed = change();
    proxy.admit();
    changed
}

#[test]
fn haz_w1_every_watch_tells_of_a_change_while_cut() {
    on_each(|version| {
        let (tree, proxy) = (
            Tree::connect(server(version)),
            Proxy::start(server(version).port()),
        );
        for path in ["/w1/written", "/w1/deleted", "/w1/parent/a", "/w1/still"] {
            tree.make(path, "");
        }
        let settings = ZkSettings {
            hosts: vec![proxy.connect_string()],
            chroot: Some("/w1".into()),
            session_timeout: T,
            connection_timeout: T,
        };
        block_on(async {
            let registry = ZkRegistry::new(settings);
            let connection = registry.open(dialect(version)).await.unwrap();
            let (_, _, written) = connection.data_and_watch("/written").await.unwrap();
            let (_, _, deleted) = connection.data_and_watch("/deleted").await.unwrap();
            let (_, _, parent) = connection.children_and_watch("/parent").await.unwrap();
            let (_, made) = connection.stat_and_watch("/made").await.unwrap();
            let (_, _, still) = connection.data_and_watch("/still").await.unwrap();
            while_cut(&proxy, || {
                tree.make("/w1/written", "anew");
                tree.delete("/w1/deleted");
                tree.make("/w1/parent/b", "");
                tree.make("/w1/made", "");
            });
            for watch in [written, deleted, parent, made] {
                let fired = tokio::time::timeout(LONG, watch).await;
                assert_eq!(fired.expect("every change is told"), Fired::Changed);
            }
            // What did not change is still watched.
            tree.make("/w1/still", "no more");
            let fired = tokio::time::timeout(LONG, still).await;
            assert_eq!(fired.expect("this one too"), Fired::Changed);
            connection.close().await;
        });
        let is_rearmed = |op| {
            proxy
                .exchanges()
                .iter()
                .any(|exchange| exchange.request.op == op)
        };
        assert!(is_rearmed(Op::SetWatches) || is_rearmed(Op::Other(105)));
        let sessions = proxy.sessions();
        assert_eq!(sessions.len(), 2);
        assert_eq!(sessions[0], sessions[1]);
    });
}

#[test]
fn haz_w2_a_member_heeds_what_happened_while_it_was_cut() {
    on_each(|version| {
        let group = Group::new(version, "haz_w2");
        let member = group.join(T);
        group.wait_shared(&[&member]);
        group.wait_finished(&member, 20);

        let rival = while_cut(&group.proxy, || group.rival());
        group.wait_shared(&[&member, &rival]);

        // Who holds a node says so a little after the node is there.
        until("it knows its share", LONG, || {
            member.held() == PARTITIONS as usize / 2
        });
        let owned = member.connector().owned();
        let partition = owned.keys().next().expect("it has some");
        let owner = format!(
            "/consumers/g/owners/{}/{}",
            group.topic, partition.partition
        );
        let before = group.tree.node(&owner).expect("it is owned").1.czxid;
        while_cut(&group.proxy, || group.tree.delete(&owner));
        member.wait_for("the loss", |event| {
            matches!(event, Event::Lost { partition: lost, cause: LostCause::OwnerNodeGone, .. } if lost == partition)
        });
        until("it is claimed anew", LONG, || {
            group
                .tree
                .node(&owner)
                .is_some_and(|(_, stat)| stat.czxid > before)
        });
        group.wait_shared(&[&member, &rival]);

        let (_, left) = while_cut(&group.proxy, || rival.leave());
        group.wait_shared(&[&member]);
        let sessions = group.proxy.sessions();
        let last = sessions.last().copied();
        assert!(
            sessions
                .iter()
                .rev()
                .take(4)
                .all(|session| Some(*session) == last)
        );
        group.finish(vec![member], left);
    });
}
