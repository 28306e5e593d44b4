//! `evenkeel consume` and `evenkeel describe` on real servers: a member like any other, and a look that writes nothing.
#![cfg(feature = "cli")]

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Broker, LONG, Producer, Tree, ZooKeeper, passed, until, zookeeper_versions};

const EVENKEEL: &str = env!("CARGO_BIN_EXE_evenkeel");

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
        let member = Running::start(&args);
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

        let told = Instant::now();
        member.signal("TERM");
        let mut member = member;
        let mut status = None;
        until("it leaves", LONG, || {
            status = member.child.try_wait().expect("it can be asked");
            status.is_some()
        });
        assert!(status.expect("it has left").success());
        assert!(told.elapsed() < LONG, "a bound on hanging, not on speed");
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

#[test]
fn a_wrong_address_is_told_in_time_and_ends_with_one() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("an address")
        .port();
    let at = format!("127.0.0.1:{port}");
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
    assert!(
        started.elapsed() < LONG + Duration::from_secs(3),
        "a bound on hanging"
    );
}
