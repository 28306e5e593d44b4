//! `evenkeel consume` and `evenkeel describe` on real servers: a member like any other, and a look that writes nothing.
#![cfg(feature = "cli")]
// Waiting for other processes needs real clocks.
#![allow(clippy::disallowed_methods)]

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{
    Broker, LONG, Producer, Tree, ZooKeeper, free_port, passed, until, zookeeper_versions,
};

const EVENKEEL: &str = env!("CARGO_BIN_EXE_evenkeel");

/// What a busy machine may add to a bound.
const SLACK: Duration = Duration::from_secs(5);

/// A running command; killed when dropped.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(EVENKEEL);
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("the binary runs");
        let (told, lines) = channel();
        let out = child.stdout.take().expect("it was piped");
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = told.send(line);
            }
        });
        Self { child, lines }
    }

    /// The next line that was printed.
    fn line(&self) -> String {
        self.lines.recv_timeout(LONG).expect("a line comes")
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(sent.expect("kill runs").success());
    }
}

impl Running {
    /// Waits for its end; how it ended, and after what time.
    fn ended(&mut self) -> (ExitStatus, Duration) {
        let told = Instant::now();
        let mut status = None;
        until("it ends", LONG, || {
            status = self.child.try_wait().expect("it can be asked");
            status.is_some()
        });
        (status.expect("it has ended"), told.elapsed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn describe(zookeeper: &str, more: &[&str]) -> Value {
    let output = Command::new(EVENKEEL)
        .args(["describe", "--zookeeper", zookeeper, "--json"])
        .args(more)
        .output();
    let output = output.expect("the binary runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

// r127, r160, r164
#[test]
fn a_console_member_takes_its_share_is_seen_and_leaves_in_order() {
    for version in zookeeper_versions() {
        let zookeeper = ZooKeeper::start(version);
        let broker = Broker::start("1.1.1", &zookeeper);
        let tree = Tree::connect(&zookeeper);
        let at = zookeeper.connect_string();
        broker.create_topic("t", 4);
        let sent = Producer::connect(&broker, "t").produce(0..4, 5);
        let properties = ["--property", "auto.offset.reset=smallest"];
        let absent = describe(&at, &["--group", "console"]);
        assert_eq!(absent["groups"][0]["state"], "absent");

        let mut args = vec![
            "consume",
            "--zookeeper",
            &at,
            "--group",
            "console",
            "--topic",
            "t=2",
            "--json",
        ];
        args.extend(properties);
        let mut member = Running::start(&args);
        let mut texts = BTreeSet::new();
        for _ in 0..sent.len() {
            let line: Value = serde_json::from_str(&member.line()).expect("a JSON line");
            assert_eq!(line["topic"], "t");
            assert!(line["key"].is_null());
            texts.insert(line["value"].as_str().expect("a text").to_owned());
        }
        assert_eq!(texts, sent.iter().map(|sent| sent.value.clone()).collect());

        let live = describe(&at, &["--group", "console"]);
        let group = &live["groups"][0];
        assert_eq!(
            (&group["group"], &group["state"]),
            (&"console".into(), &"live".into())
        );
        assert_eq!(group["members"][0]["streams"]["t"], 2);
        let partitions = group["partitions"].as_array().expect("a list");
        assert_eq!(partitions.len(), 4);
        let name = tree.members("console").remove(0);
        let owned = |p: &Value| {
            p["owner"]
                .as_str()
                .is_some_and(|owner| owner.starts_with(&name))
        };
        assert!(
            partitions.iter().all(|p| owned(p) && p["end_offset"] == 5),
            "{group}"
        );

        member.signal("TERM");
        let (status, took) = member.ended();
        assert!(status.success());
        // What --shutdown-timeout is unless it is given, and some slack for the program's own end.
        let most = Duration::from_secs(5) + SLACK;
        assert!(took < most, "{took:?}");
        assert!(tree.members("console").is_empty() && tree.owners("console", "t").is_empty());
        assert!(
            tree.offsets("console", "t")
                .values()
                .all(|offset| *offset == 5)
        );

        let empty = describe(&at, &["--group", "console"]);
        assert_eq!(empty["groups"][0]["state"], "empty");
        assert_eq!(empty["groups"][0]["partitions"][0]["lag"], 0);
        passed("commands", &[("zookeeper", version)]);
    }
}

/// The arguments of a console member of its own group.
fn consuming<'a>(zookeeper: &'a str, group: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec![
        "consume",
        "--zookeeper",
        zookeeper,
        "--group",
        group,
        "--topic",
        "t=1",
    ];
    args.extend(["--property", "auto.offset.reset=smallest"]);
    args.extend(more);
    args
}

#[test]
fn an_interrupt_leaves_in_order_and_a_second_one_ends_at_once() {
    let version = "3.9.5";
    let mut zookeeper = ZooKeeper::start(version);
    let broker = Broker::start("1.1.1", &zookeeper);
    let tree = Tree::connect(&zookeeper);
    let at = zookeeper.connect_string();
    broker.create_topic("t", 2);
    let sent = Producer::connect(&broker, "t").produce(0..2, 5);

    let mut member = Running::start(&consuming(&at, "once", &[]));
    for _ in 0..sent.len() {
        member.line();
    }
    member.signal("INT");
    let (status, took) = member.ended();
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(5) + SLACK, "{took:?}");
    assert!(tree.members("once").is_empty() && tree.owners("once", "t").is_empty());
    let offsets = tree.offsets("once", "t");
    assert!(offsets.values().all(|offset| *offset == 5), "{offsets:?}");

    // The server is stopped where it stands, so that nobody can leave in order, and there is an hour to do it in.
    let mut member = Running::start(&consuming(&at, "twice", &["--shutdown-timeout", "3600"]));
    for _ in 0..sent.len() {
        member.line();
    }
    zookeeper.pause();
    let told = Instant::now();
    let mut status = None;
    // Two signals that come at once are one, so it is told again until it has heard the second.
    until("it ends", LONG, || {
        member.signal("INT");
        status = member.child.try_wait().expect("it can be asked");
        status.is_some()
    });
    zookeeper.resume();
    let (status, took) = (status.expect("it has ended"), told.elapsed());
    assert_eq!(status.code(), Some(1), "{status}");
    assert!(took < SLACK, "{took:?}");
    // The broker is the same for all: it is no column of the matrix.
    passed("commands", &[("zookeeper", version)]);
}

#[test]
fn a_wrong_address_is_told_in_time_and_ends_with_one() {
    let at = format!("127.0.0.1:{}", free_port());
    let started = Instant::now();
    let property = "zookeeper.connection.timeout.ms=3000";
    let output = Command::new(EVENKEEL)
        .args([
            "consume",
            "--zookeeper",
            &at,
            "--group",
            "g",
            "--topic",
            "t=1",
            "--property",
            property,
        ])
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("refused") && said.contains(&at), "{said}");
    // The connection is tried, and then looked at for what is wrong with it.
    let most = Duration::from_secs(3) * 2 + SLACK;
    assert!(started.elapsed() < most, "{:?}", started.elapsed());
}
