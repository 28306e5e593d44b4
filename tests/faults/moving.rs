//! A server that goes on somewhere else.

use std::time::Duration;

use evenkeel::Event;

use crate::stage::Group;
use crate::stage::on_each;
use crate::support::LONG;
use crate::support::Ours;
use crate::support::Tree;
use crate::support::ZooKeeper;
use crate::support::until;

fn claims(member: &Ours) -> usize {
    let events = member.events();
    let claims = events
        .iter()
        .filter(|event| matches!(event, Event::Claimed { .. }));
    claims.count()
}

#[test]
fn haz_n4_a_server_on_another_port_is_found_and_nothing_is_claimed_anew() {
    on_each(|version| {
        let mut server = ZooKeeper::start(version);
        let mut group = Group::on(&server, "haz_n4");
        let member = group.join(Duration::from_secs(20));
        group.wait_shared(&[&member]);
        group.wait_finished(&member, 20);
        let (before, session) = (claims(&member), group.proxy.sessions().pop());
        let connections = group.proxy.counts().connections;
        server.move_away();
        group.proxy.retarget(server.port());
        group.server = server.connect_string();
        group.tree = Tree::connect_below(&server, &group.chroot);
        until("it is back", LONG, || {
            group.proxy.sessions().len() > connections
        });
        group.wait_finished(&member, 20);
        assert_eq!(group.proxy.sessions().pop(), session);
        assert_eq!(claims(&member), before);
        assert!(
            !member
                .events()
                .iter()
                .any(|event| matches!(event, Event::Lost { .. }))
        );
        let rival = group.rival();
        assert_eq!(group.finish(vec![member, rival], Vec::new()), 0);
    });
}
