//! Real servers keep the promises of a registry, the same as the in-memory one; and what only real servers can show.
// Waiting for other processes needs real clocks.
#![allow(clippy::disallowed_methods)]

mod conformance;
#[cfg(feature = "testing")]
#[path = "conformance/scripts/mod.rs"]
mod scripts;
mod support;

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Read;
use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use evenkeel::error::Error;
use evenkeel::error::ErrorKind;
use evenkeel::registry::Connection;
use evenkeel::registry::Dialect;
use evenkeel::registry::Fault;
use evenkeel::registry::Fired;
use evenkeel::registry::Registry;
use evenkeel::zk::ZkRegistry;
use evenkeel::zk::ZkSettings;

use conformance::Bench;
use conformance::soon;
use support::ZooKeeper;
use support::passed;
use support::zookeeper_versions;

/// One server of each release for all tests that leave it alone; it ends with the test process.
fn shared(version: &str) -> String {
    static SERVERS: Mutex<BTreeMap<String, &'static ZooKeeper>> = Mutex::new(BTreeMap::new());
    let mut servers = SERVERS.lock().unwrap_or_else(|broken| broken.into_inner());
    let start = || &*Box::leak(Box::new(ZooKeeper::start(version)));
    let server = servers.entry(version.to_owned()).or_insert_with(start);
    server.connect_string()
}

fn dialect(version: &str) -> Dialect {
    if version.starts_with("3.4.") {
        Dialect::V3_4
    } else {
        Dialect::V3_5
    }
}

fn settings(host: &str) -> ZkSettings {
    ZkSettings {
        hosts: vec![host.to_owned()],
        chroot: None,
        session_timeout: Duration::from_secs(10),
        connection_timeout: Duration::from_secs(30),
    }
}

fn registry(host: &str) -> ZkRegistry {
    ZkRegistry::new(settings(host))
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(work)
}

/// The checks with every release of the server.
mod servers {
    use super::*;

    macro_rules! with_servers {
        ($($name:ident)*) => {
            $(
                #[test]
                fn $name() {
                    for version in zookeeper_versions() {
                        println!("ZooKeeper {version}");
                        let registry = registry(&shared(version));
                        run(async {
                            let bench = Bench::new(&registry, dialect(version), stringify!($name)).await;
                            conformance::$name(&bench).await;
                        });
                        passed("registry", &[("zookeeper", version)]);
                    }
                }
            )*
        };
    }

    every_check!(with_servers);
}

/// Random scripts, played with every release of the server and in memory: the answers are the same.
#[cfg(feature = "testing")]
mod random {
    use evenkeel::memory::MemoryRegistry;

    use super::scripts::Pair;
    use super::scripts::draw::Habit;
    use super::scripts::play::Stage;
    use super::scripts::scripts;
    use super::*;

    fn in_memory(version: &str) -> MemoryRegistry {
        let mut numbers = version.split('.').map(|number| number.parse().unwrap());
        let (major, minor) = (numbers.next().unwrap(), numbers.next().unwrap());
        MemoryRegistry::new().with_version(major, minor)
    }

    fn are_answered_alike(habit: Habit) {
        for version in zookeeper_versions() {
            println!("ZooKeeper {version}");
            let host = shared(version);
            run(async {
                // Longer than any pause of a busy machine.
                let real = ZkRegistry::new(ZkSettings {
                    session_timeout: Duration::from_secs(60),
                    ..settings(&host)
                });
                let memory = in_memory(version);
                let stage = |registry| Stage {
                    registry,
                    dialect: dialect(version),
                };
                let pair = Pair {
                    one: stage(&real),
                    other: stage(&memory),
                };
                pair.are_alike(scripts(habit)).await;
            });
            passed("registry", &[("zookeeper", version)]);
        }
    }

    #[test]
    fn random_scripts_are_answered_alike_in_memory_and_by_real_servers() {
        are_answered_alike(Habit::OneByOne);
    }

    #[test]
    fn random_requests_in_one_pipe_are_answered_alike_in_memory_and_by_real_servers() {
        are_answered_alike(Habit::Pipelined);
    }
}

async fn open(registry: &ZkRegistry, version: &str) -> Arc<dyn Connection> {
    soon(registry.open(dialect(version))).await.unwrap()
}

/// Servers that a test may stop, and a session with them.
fn with_own_server<F: Future>(
    timeout: Duration,
    test: impl Fn(ZooKeeper, ZkRegistry, &'static str) -> F,
) {
    for version in zookeeper_versions() {
        println!("ZooKeeper {version}");
        let server = ZooKeeper::start(version);
        let registry = ZkRegistry::new(ZkSettings {
            session_timeout: timeout,
            ..settings(&server.connect_string())
        });
        run(test(server, registry, version));
        passed("registry", &[("zookeeper", version)]);
    }
}

/// A read that goes through, however often the connection breaks before.
async fn version_of(connection: &dyn Connection, path: &str) -> Option<i32> {
    loop {
        match soon(connection.stat(path)).await {
            Err(Fault::Unknown(_)) => tokio::task::yield_now().await,
            other => return other.unwrap().map(|stat| stat.version),
        }
    }
}

#[test]
fn watches_and_ephemeral_nodes_survive_a_restart_of_the_server() {
    with_own_server(
        Duration::from_secs(30),
        |mut server, registry, version| async move {
            let (one, other) = (
                open(&registry, version).await,
                open(&registry, version).await,
            );
            // A node for each watch, so that none hears what is told of another.
            soon(one.create("/a", b"", false)).await.unwrap();
            soon(one.create("/c", b"", false)).await.unwrap();
            soon(one.create("/e", b"", true)).await.unwrap();
            let (_, _, data) = soon(one.data_and_watch("/a")).await.unwrap();
            let (_, stat) = soon(one.stat_and_watch("/none")).await.unwrap();
            let (_, _, children) = soon(one.children_and_watch("/c")).await.unwrap();
            let restarted = tokio::task::spawn_blocking(move || {
                server.restart();
                server
            });
            let _server = restarted.await.unwrap();
            assert_eq!(version_of(&*other, "/e").await, Some(0));
            for path in ["/none", "/c/b"] {
                soon(other.create(path, b"", true)).await.unwrap();
            }
            soon(other.set("/a", b"", None)).await.unwrap();
            for watch in [data, stat, children] {
                assert_eq!(soon(watch).await, Fired::Changed);
            }
            assert_eq!(version_of(&*one, "/e").await, Some(0));
        },
    );
}

#[test]
fn a_session_without_a_server_ends_and_says_so_everywhere() {
    with_own_server(
        Duration::from_secs(1),
        |mut server, registry, version| async move {
            let connection = open(&registry, version).await;
            let timeout = connection.session_timeout();
            soon(connection.create("/a", b"", false)).await.unwrap();
            let (_, _, watch) = soon(connection.data_and_watch("/a")).await.unwrap();
            server.kill();
            let start = Instant::now();
            // It may have been on its way, or it waits for a server in vain.
            let fault = soon(connection.set("/a", b"", None)).await.unwrap_err();
            assert!(
                matches!(fault, Fault::Unknown(_) | Fault::SessionLost),
                "{fault:?}"
            );
            soon(connection.ended()).await;
            assert!(start.elapsed() < timeout * 10, "{:?}", start.elapsed());
            assert_eq!(soon(watch).await, Fired::SessionLost);
            assert_eq!(soon(connection.stat("/a")).await, Err(Fault::SessionLost));
        },
    );
}

#[test]
fn a_silent_server_leaves_the_outcome_unknown_and_the_write_may_have_happened() {
    with_own_server(
        Duration::from_secs(2),
        |mut server, registry, version| async move {
            let connection = open(&registry, version).await;
            soon(connection.create("/a", b"", false)).await.unwrap();
            server.pause();
            let start = Instant::now();
            let fault = soon(connection.set("/a", b"", None)).await.unwrap_err();
            assert!(matches!(fault, Fault::Unknown(_)), "{fault:?}");
            assert!(start.elapsed() < connection.session_timeout() * 2);
            // Closing it does not wait for the server either.
            let start = Instant::now();
            soon(connection.close()).await;
            assert!(start.elapsed() < Duration::from_secs(5));
            server.resume();
            let other = open(&registry, version).await;
            assert!(version_of(&*other, "/a").await.is_some());
        },
    );
}

#[test]
fn a_reply_nobody_waits_for_costs_no_connection() {
    with_own_server(
        Duration::from_secs(30),
        |server, registry, version| async move {
            let connection = open(&registry, version).await;
            soon(connection.create("/a", b"", false)).await.unwrap();
            // One whose answer is still to come, and one whose caller never came back for it.
            for _ in 0..20 {
                let mut look = connection.data_and_watch("/a");
                assert!(futures_util::FutureExt::now_or_never(&mut look).is_none());
                drop(look);
                soon(connection.stat("/a")).await.unwrap();
            }
            let mut sent = connection.stat_and_watch("/none");
            assert!(futures_util::FutureExt::now_or_never(&mut sent).is_none());
            assert_eq!(
                soon(connection.stat("/a")).await.unwrap().unwrap().version,
                0
            );
            assert_eq!(soon(sent).await.unwrap().0, None);
            let connections = server.ask("cons").unwrap();
            assert_eq!(connections.matches("sid=").count(), 1, "{connections}");
            assert!(!server.tail().contains("EndOfStream"), "{}", server.tail());
        },
    );
}

#[test]
fn paths_are_below_the_chroot() {
    for version in zookeeper_versions() {
        let host = shared(version);
        run(async {
            let whole = open(&registry(&host), version).await;
            soon(whole.create("/chrooted", b"", false)).await.unwrap();
            soon(whole.create("/chrooted/a", b"x", false))
                .await
                .unwrap();
            let below = ZkRegistry::new(ZkSettings {
                chroot: Some("/chrooted/".into()),
                ..settings(&host)
            });
            assert_eq!(below.describe(), format!("{host}/chrooted"));
            let connection = open(&below, version).await;
            assert_eq!(soon(connection.data("/a")).await.unwrap().0, b"x");
            assert_eq!(soon(connection.children("/")).await.unwrap().0, ["a"]);
            let (_, _, watch) = soon(connection.children_and_watch("/")).await.unwrap();
            soon(whole.create("/chrooted/b", b"", false)).await.unwrap();
            assert_eq!(soon(watch).await, Fired::Changed);
        });
        passed("registry", &[("zookeeper", version)]);
    }
}

async fn refused(settings: ZkSettings) -> Error {
    let connection_timeout = settings.connection_timeout;
    let start = Instant::now();
    let Err(error) = ZkRegistry::new(settings).open(Dialect::V3_5).await else {
        panic!("there is nothing to connect to");
    };
    let slack = Duration::from_secs(2);
    assert!(
        start.elapsed() < connection_timeout + slack,
        "{:?}: {error}",
        start.elapsed()
    );
    assert_eq!(error.kind(), ErrorKind::Connection);
    error
}

#[track_caller]
fn tells(error: &Error, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[test]
fn a_missing_chroot_is_named() {
    for version in zookeeper_versions() {
        let missing = ZkSettings {
            chroot: Some("/not/there".into()),
            ..settings(&shared(version))
        };
        tells(
            &run(refused(missing)),
            &["chroot /not/there", "does not exist"],
        );
    }
}

/// A port where something listens that does the same to everybody.
fn listener(deed: impl Fn(std::net::TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || listener.incoming().flatten().for_each(deed));
    host
}

fn quick(hosts: &[&str]) -> ZkSettings {
    ZkSettings {
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        connection_timeout: Duration::from_secs(2),
        ..settings("")
    }
}

#[test]
fn a_port_where_nobody_listens_is_told_for_each_server() {
    let free = || {
        TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .to_string()
    };
    let (one, other) = (free(), free());
    let error = run(refused(quick(&[&one, &other])));
    tells(
        &error,
        &[
            &format!("{one}: nobody listens"),
            &format!("{other}: nobody listens"),
        ],
    );
}

#[test]
fn something_that_is_not_zookeeper_is_quoted() {
    let host = listener(|mut socket| {
        let mut request = [0; 4];
        let _ = socket.read(&mut request);
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    tells(
        &run(refused(quick(&[&host]))),
        &["something else listens", "HTTP/1.1 400"],
    );
}

#[test]
fn a_port_that_speaks_tls_is_told() {
    let host = listener(|mut socket| {
        let mut request = [0; 4];
        let _ = socket.read(&mut request);
        let _ = socket.write_all(&[0x15, 3, 3, 0, 2, 2, 80]);
    });
    tells(&run(refused(quick(&[&host]))), &["TLS"]);
}

/// As ZooKeeper's own TLS port does it.
#[test]
fn a_port_that_waits_for_a_tls_record_is_told() {
    let host = listener(|mut socket| {
        let mut header = [0; 5];
        let _ = socket.read_exact(&mut header);
    });
    tells(&run(refused(quick(&[&host]))), &["TLS", "fifth byte"]);
}

#[test]
fn a_listener_that_says_nothing_is_told() {
    let held = Mutex::new(Vec::new());
    let host = listener(move |socket| held.lock().unwrap().push(socket));
    tells(&run(refused(quick(&[&host]))), &["no answer"]);
}

#[test]
fn a_server_at_its_limit_of_connections_is_told() {
    let host = listener(drop);
    let text = run(refused(quick(&[&host]))).to_string();
    assert!(text.contains("limit of connections"), "{text}");
}

/// Behaves as 3.3 does: sessions and pings, `srvr`, and no answer to a transaction.
fn before_transactions(mut socket: std::net::TcpStream) -> std::io::Result<()> {
    let frame = |socket: &mut std::net::TcpStream| -> std::io::Result<Vec<u8>> {
        let mut head = [0; 4];
        socket.read_exact(&mut head)?;
        if &head == b"srvr" {
            return Ok(head.to_vec());
        }
        let mut body = vec![0; u32::from_be_bytes(head) as usize];
        socket.read_exact(&mut body)?;
        Ok(body)
    };
    if frame(&mut socket)? == b"srvr" {
        return socket
            .write_all(b"Zookeeper version: 3.3.3-1073969, built on 02/23/2011 22:27 GMT\n");
    }
    let mut welcome = 36_u32.to_be_bytes().to_vec();
    welcome.extend([
        0, 0, 0, 0, 0, 0, 0x27, 0x10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 16,
    ]);
    welcome.extend([7; 16]);
    socket.write_all(&welcome)?;
    let ping = (-2_i32).to_be_bytes();
    loop {
        if frame(&mut socket)?.starts_with(&ping) {
            let mut pong = 16_u32.to_be_bytes().to_vec();
            pong.extend(ping);
            pong.extend([0; 12]);
            socket.write_all(&pong)?;
        }
    }
}

#[test]
fn a_server_without_transactions_is_refused_with_its_version() {
    let host = listener(|socket| {
        std::thread::spawn(|| before_transactions(socket));
    });
    let error = run(refused(quick(&[&host])));
    tells(
        &error,
        &["first transaction", "ZooKeeper 3.3.3", "3.4 is needed"],
    );
}
