//! Answers that are none, or come in pieces: the connection or the session ends with a word, nothing panics, and memory stays what it was.

use std::time::Duration;

use evenkeel::Event;
use evenkeel::registry::Connection;
use evenkeel::registry::Dialect;
use evenkeel::registry::Fault;
use evenkeel::registry::Registry;
use evenkeel::zk::ZkRegistry;
use evenkeel::zk::ZkSettings;

use crate::stage::Group;
use crate::stage::commit;
use crate::stage::dialect;
use crate::stage::on_each;
use crate::stage::server;
use crate::support::Corruption;
use crate::support::Direction;
use crate::support::LONG;
use crate::support::Matcher;
use crate::support::Op;
use crate::support::Proxy;
use crate::support::Tree;
use crate::support::block_on;
use crate::support::until;

const ALL: [Corruption; 8] = [
    Corruption::Length(-1),
    Corruption::Length(0),
    Corruption::Length(3),
    Corruption::Length(i32::MAX),
    Corruption::Short(0),
    Corruption::Short(10),
    Corruption::Short(16),
    Corruption::Torn,
];

/// What the process holds in memory, in MiB.
fn memory() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    (pages * 4096) >> 20
}

fn registry(version: &str, proxy: &Proxy) -> (ZkRegistry, Dialect) {
    let timeout = Duration::from_secs(1);
    let registry = ZkRegistry::new(ZkSettings {
        hosts: vec![proxy.connect_string()],
        chroot: Some("/garbled".into()),
        session_timeout: timeout,
        connection_timeout: timeout * 4,
    });
    (registry, dialect(version))
}

async fn soon<T>(what: &str, call: impl Future<Output = T>) -> T {
    let answer = tokio::time::timeout(LONG, call).await;
    answer.unwrap_or_else(|_| panic!("{what} never ends"))
}

/// Goes on until a call is answered again or the session is over. A connection that waits for two GiB is never given up by the client, and
/// its calls end one by one.
async fn until_well_or_over(how: Corruption, connection: &dyn Connection) {
    for _ in 0..8 {
        match soon("a call", connection.stat("/a")).await {
            Ok(found) => {
                assert!(found.is_some());
                return;
            }
            Err(Fault::Unknown(_)) => {}
            Err(Fault::SessionLost) => return,
            Err(other) => panic!("{how:?}: {other}"),
        }
    }
    assert_eq!(how, Corruption::Length(i32::MAX), "it never ends");
}

#[test]
fn haz_x8_garbled_answers_end_a_call_with_a_word() {
    on_each(|version| {
        let proxy = Proxy::start(server(version).port());
        Tree::connect(server(version)).make("/garbled/a", "text");
        let (registry, dialect) = registry(version, &proxy);
        let before = memory();
        block_on(async {
            for how in ALL {
                for op in [Op::GetData, Op::SetData, Op::GetChildren2, Op::Ping] {
                    let connection = soon("an opening", registry.open(dialect)).await.unwrap();
                    let met = proxy.fired().len();
                    proxy.corrupt(Matcher::of(&[op]), how);
                    let fault = match op {
                        Op::GetData => soon("it", connection.data("/a")).await.err(),
                        Op::SetData => soon("it", connection.set("/a", b"x", None)).await.err(),
                        Op::GetChildren2 => soon("it", connection.children("/")).await.err(),
                        _ => {
                            let is_met = async {
                                while proxy.fired().len() == met {
                                    tokio::time::sleep(Duration::from_millis(5)).await;
                                }
                            };
                            soon("a ping", is_met).await;
                            None
                        }
                    };
                    let is_typed =
                        |fault: &Fault| matches!(fault, Fault::Unknown(_) | Fault::SessionLost);
                    assert!(
                        op == Op::Ping || fault.as_ref().is_some_and(is_typed),
                        "{how:?} {op:?}: {fault:?}"
                    );
                    until_well_or_over(how, &*connection).await;
                    soon("a close", connection.close()).await;
                }
            }
        });
        assert_eq!(proxy.fired().len(), ALL.len() * 4);
        let grown = memory().saturating_sub(before);
        println!("{version}: {grown} MiB more");
        assert!(grown < 512, "{grown} MiB more");
    });
}

#[test]
fn haz_x8_garbled_openings_fail_or_are_tried_again() {
    on_each(|version| {
        let proxy = Proxy::start(server(version).port());
        Tree::connect(server(version)).make("/garbled/a", "text");
        let (registry, dialect) = registry(version, &proxy);
        block_on(async {
            for how in ALL {
                proxy.corrupt(Matcher::of(&[Op::Connect]), how);
                match soon("an opening", registry.open(dialect)).await {
                    Ok(connection) => {
                        soon("a close", connection.close()).await;
                    }
                    Err(error) => println!("{version} {how:?}: {error}"),
                }
            }
        });
        assert_eq!(proxy.fired().len(), ALL.len());
    });
}

#[test]
fn haz_x8_a_member_gets_over_garbled_answers() {
    on_each(|version| {
        let mut group = Group::new(version, "haz_x8");
        group.wrong_versions = usize::MAX;
        let (member, rival) = (group.join(Duration::from_millis(1500)), group.rival());
        group.wait_shared(&[&member, &rival]);
        for how in ALL {
            let met = group.proxy.fired().len();
            group.proxy.corrupt(commit(), how);
            until("the garbled answer", LONG, || {
                group.proxy.fired().len() > met
            });
            group.wait_finished(&member, 20);
        }
        // A commit that nobody answered, and the look at what became of it.
        group.proxy.lose_reply(commit(), 1);
        let look = Matcher::of(&[Op::GetData]).at("*/offsets/*/*");
        group.proxy.corrupt(look, Corruption::Short(16));
        until("both", LONG, || group.proxy.fired().len() == ALL.len() + 2);
        group.wait_finished(&member, 20);
        let told = member.events();
        let lost = told
            .iter()
            .filter(|event| matches!(event, Event::SessionLost { .. }));
        println!("{version}: {} sessions lost", lost.count());
        let again = group.finish(vec![member, rival], Vec::new());
        println!("{again} delivered again");
    });
}

#[test]
fn haz_n2_resets_half_closes_and_a_trickle_lose_nothing() {
    on_each(|version| {
        let group = Group::new(version, "haz_n2");
        let (member, rival) = (group.join(Duration::from_secs(20)), group.rival());
        group.wait_shared(&[&member, &rival]);
        group.proxy.split(Direction::Both);
        let back = |deed: &dyn Fn()| {
            let before = group.proxy.sessions().len();
            deed();
            until("it is back", LONG, || group.proxy.sessions().len() > before);
            group.wait_finished(&member, 20);
        };
        back(&|| assert_eq!(group.proxy.rst(), 1));
        back(&|| assert_eq!(group.proxy.fin(), 1));
        back(&|| group.proxy.corrupt(commit(), Corruption::Torn));
        group.proxy.hurry();
        group.proxy.delay(
            Direction::Both,
            Duration::from_millis(5),
            Duration::from_millis(20),
        );
        group.wait_finished(&member, 100);
        let counts = group.proxy.counts();
        assert!(counts.pieced > 0 && counts.delayed > 0);
        let sessions = group.proxy.sessions();
        assert!(
            sessions
                .iter()
                .rev()
                .take(4)
                .all(|session| Some(session) == sessions.last())
        );
        assert_eq!(group.finish(vec![member, rival], Vec::new()), 0);
    });
}
