//! `evenkeel consume` and `evenkeel describe` on real servers: a member like any other, and a look that writes nothing.
#![cfg(feature = "cli")]
// Waiting for other processes needs real clocks.
#![allow(clippy::disallowed_methods)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
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
    /// What it says on standard error.
    words: Receiver<String>,
}

/// The lines of a pipe as they come.
fn lines_of(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (told, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let _ = told.send(line);
        }
    });
    lines
}

impl Running {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(EVENKEEL);
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let lines = lines_of(child.stdout.take().expect("it was piped"));
        let words = lines_of(child.stderr.take().expect("it was piped"));
        Self {
            child,
            lines,
            words,
        }
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

/// What `describe` shows to people, each line by its words.
fn shown(zookeeper: &str, more: &[&str]) -> Vec<Vec<String>> {
    let output = Command::new(EVENKEEL)
        .args(["describe", "--zookeeper", zookeeper])
        .args(more)
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("a text");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    text.lines().map(words).collect()
}

#[test]
fn brokers_may_be_named_keys_are_shown_and_events_come_one_a_line() {
    let version = "3.9.5";
    let zookeeper = ZooKeeper::start(version);
    let broker = Broker::start("1.1.1", &zookeeper);
    broker.create_topic("t", 2);
    let producer: BaseProducer = broker.client_config().create().expect("a producer");
    for (partition, key) in [(0, Some("k")), (1, None)] {
        let record = BaseRecord::to("t").partition(partition).payload("v");
        let record = match key {
            Some(key) => record.key(key),
            None => record,
        };
        producer.send(record).expect("there is room");
    }
    producer.flush(LONG).expect("the broker answers");
    // A tree in which no broker is registered: whoever reads was told where they are.
    let root = Tree::connect(&zookeeper);
    root.make("/bare/consumers", "");
    let topic = root.text("/brokers/topics/t").expect("it was made");
    root.make("/bare/brokers/topics/t", &topic);
    root.make("/bare/brokers/ids", "");
    let tree = Tree::connect_below(&zookeeper, "/bare");
    let at = format!("{}/bare", zookeeper.connect_string());
    let bootstrap = ["--bootstrap", &broker.bootstrap()];

    let mut args = consuming(&at, "named", &["--json"]);
    args.extend(["--property", "auto.commit.enable=false"]);
    // A name of its own wins over the property.
    args.extend(["--property", "bootstrap.servers=127.0.0.1:1"]);
    args.extend(bootstrap);
    let mut member = Running::start(&args);
    let mut keys = BTreeMap::new();
    for _ in 0..2 {
        let line: Value = serde_json::from_str(&member.line()).expect("a JSON line");
        assert_eq!((&line["value"], &line["offset"]), (&"v".into(), &0.into()));
        keys.insert(line["partition"].as_i64(), line["key"].clone());
    }
    let expected = [(Some(0), "k".into()), (Some(1), Value::Null)];
    assert_eq!(keys, BTreeMap::from(expected));

    let name = tree.members("named").remove(0);
    let rows = shown(&at, &[&["--group", "named"][..], &bootstrap].concat());
    let header = ["TOPIC", "PARTITION", "OFFSET", "END", "LAG", "OWNER"];
    let owner = format!("{name}-0");
    for row in [
        &["group", "named:", "live"][..],
        &["MEMBER", "HOST", "AGE", "SUBSCRIPTION"],
        &header,
        &["t", "0", "0", "1", "1", &owner],
        &["t", "1", "0", "1", "1", &owner],
    ] {
        assert!(
            rows.iter().any(|is| is == row),
            "{row:?} is not in {rows:#?}"
        );
    }

    member.signal("TERM");
    let (status, _) = member.ended();
    assert!(status.success());
    let words: Vec<String> = member.words.iter().collect();
    let count = |start: &str| words.iter().filter(|line| line.starts_with(start)).count();
    for (start, expected) in [
        ("connecting to ZooKeeper", 1),
        (&format!("joined as {name} (session 0x"), 1),
        ("claimed t-0 for ", 1),
        ("claimed t-1 for ", 1),
        ("reading t-0 from 0", 1),
        ("reading t-1 from 0", 1),
        ("released t-0", 1),
        ("released t-1", 1),
        ("left", 1),
    ] {
        assert_eq!(count(start), expected, "{start} {words:#?}");
    }
    let known = [
        "connecting",
        "joined",
        "rebalanced",
        "claimed",
        "reading",
        "released",
        "left",
        "warning: ",
        "t-",
    ];
    let is_known = |line: &&String| known.iter().any(|start| line.starts_with(start));
    let strange: Vec<&String> = words.iter().filter(|line| !is_known(line)).collect();
    assert!(
        strange.is_empty(),
        "no event is spread over lines: {strange:#?}"
    );
    passed("commands", &[("zookeeper", version)]);
}

#[test]
fn the_old_dialect_is_spoken_to_a_newer_server_if_that_is_asked_for() {
    let version = "3.9.5";
    let zookeeper = ZooKeeper::start(version);
    let broker = Broker::start("1.1.1", &zookeeper);
    let tree = Tree::connect(&zookeeper);
    let at = zookeeper.connect_string();
    broker.create_topic("t", 2);
    let sent = Producer::connect(&broker, "t").produce(0..2, 5);
    for (group, dialect, is_one_step) in [("old", "3.4", false), ("new", "auto", true)] {
        let property = format!("zookeeper.dialect={dialect}");
        let mut member = Running::start(&consuming(&at, group, &["--property", &property]));
        for _ in 0..sent.len() {
            member.line();
        }
        let nodes = [
            format!("/consumers/{group}/ids/{}", tree.members(group).remove(0)),
            format!("/consumers/{group}/owners/t/0"),
        ];
        for path in nodes {
            let (_, stat) = tree.node(&path).expect("it is there");
            assert_eq!(stat.version, 1, "{path} is stamped");
            // Later servers make and stamp a node in one transaction; the old ones cannot (hazards 2.2).
            assert_eq!(stat.czxid == stat.mzxid, is_one_step, "{path} {stat:?}");
        }
        member.signal("TERM");
        assert!(member.ended().0.success());
        assert_eq!(tree.offsets(group, "t"), BTreeMap::from([(0, 5), (1, 5)]));
    }
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
    // Trying to connect and looking for what is wrong share the time; the program has to start and end besides.
    let most = Duration::from_secs(3 + 2);
    assert!(started.elapsed() < most, "{:?}", started.elapsed());
}
