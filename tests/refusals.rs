//! Bad input, one test for each kind: it is refused with a message that says what, or told by an event that names where, and costs nothing else.
// Waiting for other processes needs real clocks.
#![allow(clippy::disallowed_methods)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use evenkeel::config::Reset;
use evenkeel::event::LostCause;
use evenkeel::{Config, ConsumerConnector, Error, ErrorKind, Event, Topic, TopicPartition};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::types::RDKafkaErrorCode;
use support::{
    Broker, BrokerOptions, Jars, LONG, Ours, Producer, Reading, Tree, ZooKeeper, ZooKeeperOptions,
    block_on, config, config_below, nothing_more, run_class, scratch, until,
};

fn zookeeper() -> &'static ZooKeeper {
    static ONE: OnceLock<ZooKeeper> = OnceLock::new();
    ONE.get_or_init(|| ZooKeeper::start("3.9.5"))
}

fn broker() -> &'static Broker {
    static ONE: OnceLock<Broker> = OnceLock::new();
    ONE.get_or_init(|| Broker::start("1.1.1", zookeeper()))
}

fn tree() -> Tree {
    Tree::connect(zookeeper())
}

// ---- servers that cannot serve us ----

const PATIENCE: Duration = Duration::from_secs(4);

/// What a busy machine may add to a bound.
const SLACK: Duration = Duration::from_secs(1);

/// Why there is no connection; said within the connection time-out.
#[track_caller]
fn refusal(connect: &str) -> Error {
    let config = Config::new("g", connect).unwrap();
    let config = config.with_connection_timeout(PATIENCE);
    let start = Instant::now();
    let error = block_on(ConsumerConnector::connect(config)).expect_err("nobody serves there");
    let took = start.elapsed();
    assert!(took < PATIENCE + SLACK, "said after {took:?}: {error}");
    assert_eq!(error.kind(), ErrorKind::Connection, "{error}");
    error
}

#[track_caller]
fn assert_says(error: &Error, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is missing: {text}");
    }
}

/// A port of 127.0.0.1 where nobody listens.
fn closed_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn a_refused_connection_is_named_with_its_address() {
    let address = format!("127.0.0.1:{}", closed_port());
    let error = refusal(&address);
    assert_says(&error, &[&address, "refused"]);
}

#[test]
fn a_chroot_that_does_not_exist_is_named_and_not_made() {
    let place = format!("{}/no/such/place", zookeeper().connect_string());
    let error = refusal(&place);
    assert_says(
        &error,
        &["/no/such/place", "zookeeper.connect", "does not exist"],
    );
    assert!(tree().node("/no").is_none());
}

#[test]
fn zookeeper_3_3_is_named_with_what_is_needed() {
    let server = ZooKeeper::start("3.3.3");
    let error = refusal(&server.connect_string());
    assert_says(&error, &["3.3.3", "3.4 is needed"]);
}

#[test]
fn tls_on_a_plain_port_is_named() {
    let folder = scratch("tls");
    let keytool = |args: &[&str]| {
        let mut command = Command::new("keytool");
        command.args(args).args([
            "-alias",
            "a",
            "-storetype",
            "PKCS12",
            "-storepass",
            "secret",
        ]);
        let output = command
            .current_dir(&folder)
            .output()
            .expect("keytool comes with Java");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    };
    keytool(&[
        "-genkeypair",
        "-keyalg",
        "RSA",
        "-dname",
        "CN=localhost",
        "-keystore",
        "keys.p12",
    ]);
    keytool(&["-exportcert", "-keystore", "keys.p12", "-file", "a.crt"]);
    keytool(&[
        "-importcert",
        "-noprompt",
        "-keystore",
        "trust.p12",
        "-file",
        "a.crt",
    ]);
    let port = closed_port();
    let folder = folder.display();
    let lines = [
        format!("secureClientPort={port}"),
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
        format!("ssl.keyStore.location={folder}/keys.p12"),
        "ssl.keyStore.password=secret".to_owned(),
        "ssl.clientAuth=none".to_owned(),
        format!("ssl.trustStore.location={folder}/trust.p12"),
        "ssl.trustStore.password=secret".to_owned(),
    ];
    let server = ZooKeeper::start_with(
        "3.9.5",
        ZooKeeperOptions {
            lines: lines.to_vec(),
            ..Default::default()
        },
    );
    let error = refusal(&format!("127.0.0.1:{port}"));
    assert_says(&error, &[&port.to_string(), "TLS"]);
    drop(server);
}

// ---- what is refused before anything is written ----

/// Every node there is, with the transaction that changed it last.
fn all_nodes(tree: &Tree) -> BTreeMap<String, i64> {
    let mut found = BTreeMap::new();
    let mut left = vec!["/".to_owned()];
    while let Some(path) = left.pop() {
        let Some((_, stat)) = tree.node(&path) else {
            continue;
        };
        let below = path.trim_end_matches('/');
        let names = tree.children(&path).into_iter();
        left.extend(names.map(|name| format!("{below}/{name}")));
        found.insert(path, stat.mzxid.max(stat.pzxid));
    }
    found
}

#[test]
fn a_bad_group_subscription_or_properties_file_is_refused_before_anything_is_written() {
    let chroot = "/untouched";
    tree().make(chroot, "");
    let tree = Tree::connect_below(zookeeper(), chroot);
    let before = all_nodes(&tree);
    let place = format!("{}{chroot}", zookeeper().connect_string());
    for group in ["", "a/b", ".", "..", "ä"] {
        let error = Config::new(group, &place).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let text = format!("group.id={group}\nzookeeper.connect={place}\n");
        let error = Config::from_properties(&text).unwrap_err();
        assert_says(&error, &["group.id", "line 1"]);
    }
    for (key, value) in [
        ("auto.commit.interval.ms", "often"),
        ("fetch.message.max.bytes", "1 MB"),
        ("zookeeper.session.timeout.ms", "-1"),
        ("rebalance.max.retries", "99999999999"),
    ] {
        let text = format!("# mine\nzookeeper.connect={place}\n\ngroup.id=g\n{key}={value}\n");
        let error = Config::from_properties(&text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert_says(&error, &[key, value, "line 5"]);
    }
    let topic = |name| Topic::new(name).unwrap();
    for name in ["", "a/b", "."] {
        assert_eq!(Topic::new(name).unwrap_err().kind(), ErrorKind::Config);
    }
    let lists: [(Vec<(Topic, u32)>, &str); 3] = [
        (vec![], "no topic"),
        (
            vec![(topic("t"), 1), (topic("u"), 0)],
            "topic u was given 0 streams",
        ),
        (vec![(topic("t"), 100_001)], "100001 streams are too many"),
    ];
    for (topics, word) in lists {
        block_on(async {
            let config = Config::new("g", &place).unwrap();
            let connector = ConsumerConnector::connect(config).await.unwrap();
            let error = connector.streams(topics).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert_says(&error, &[word]);
        });
    }
    let mut wrong = Config::new("g", &place).unwrap();
    wrong.rebalance_max_retries = 0;
    let error = block_on(ConsumerConnector::connect(wrong)).unwrap_err();
    assert_says(&error, &["rebalance.max.retries"]);
    let wrong = Config::new("g", &place)
        .unwrap()
        .with_consumer_id("a/b".into());
    let error = block_on(ConsumerConnector::connect(wrong)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert_eq!(all_nodes(&tree), before);
}

// ---- what others wrote ----

fn at(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(Topic::new(topic).unwrap(), partition)
}

fn count(member: &mut Reading, is_it: impl Fn(&Event) -> bool) -> usize {
    member.heard().iter().filter(|event| is_it(event)).count()
}

#[test]
fn a_malformed_registration_counts_as_absent_and_its_path_is_told() {
    broker().create_topic("registered", 4);
    Producer::connect(broker(), "registered").produce(0..4, 5);
    let tree = tree();
    let path = "/consumers/registered/ids/registered_bad";
    tree.make(path, "{\"version\":1,\"subscription\":{\"regist\u{1b}");
    let mut member = Reading::join(config(zookeeper(), "registered"), "registered");
    assert_eq!(member.take(20).len(), 20);
    assert_eq!(member.connector.owned().len(), 4);
    let event = member.hear("it is told", |event| {
        matches!(event, Event::MemberMalformed { .. })
    });
    let text = event.to_string();
    assert!(text.contains(path) && !text.contains('\u{1b}'), "{text}");
    // As a JVM member it counts again once it is mended: its share is waited for no more than anybody's.
    tree.delete(path);
    until("it is forgotten", LONG, || {
        member.connector.health().members == 1
    });
    member.leave();
}

#[test]
fn an_owner_node_that_nobody_understands_is_named_waited_for_and_never_touched() {
    broker().create_topic("owned", 4);
    let mut producer = Producer::connect(broker(), "owned");
    producer.produce(0..4, 5);
    let tree = tree();
    let path = "/consumers/owned/owners/owned/2";
    tree.make(path, "nobody\u{1b}[31m");
    let config = config(zookeeper(), "owned").with_rebalance_backoff(Duration::from_millis(50));
    let mut member = Reading::join(config, "owned");
    assert_eq!(member.take(15).len(), 15, "the others are read");
    let event = member.hear("who is in the way", |event| {
        matches!(event, Event::Waiting { .. })
    });
    let text = event.to_string();
    assert!(text.contains(path), "{text}");
    assert!(
        text.contains("nobody") && text.contains("not registered") && !text.contains('\u{1b}'),
        "{text}"
    );
    until("it is waited for", LONG, || {
        !member.connector.health().waiting.is_empty()
    });
    let health = member.connector.health();
    assert!(health.waiting.contains_key(&at("owned", 2)) && !health.is_ready());
    assert_eq!(tree.text(path).as_deref(), Some("nobody\u{1b}[31m"));
    tree.delete(path);
    assert!(member.take(5).iter().all(|got| got.partition == 2));
    member.leave();
}

#[test]
fn an_offset_that_cannot_be_read_holds_its_partition_only_until_it_is_repaired() {
    broker().create_topic("offsets", 3);
    Producer::connect(broker(), "offsets").produce(0..3, 9);
    let tree = tree();
    let path = "/consumers/offsets/offsets/offsets/1";
    tree.make(path, "12x");
    tree.make("/consumers/offsets/offsets/offsets/2", "-2");
    let mut member = Reading::join(config(zookeeper(), "offsets"), "offsets");
    assert_eq!(
        member.take(18).len(),
        18,
        "the others are read, the negative one from the start"
    );
    let event = member.hear("the path is told", |event| {
        matches!(event, Event::OffsetMalformed { .. })
    });
    assert!(event.to_string().contains(path), "{event}");
    member.hear("a negative one is none", |event| {
        matches!(
            event,
            Event::OffsetReset {
                from: Some(-2),
                to: Some(0),
                ..
            }
        )
    });
    // Told first, published a moment later.
    until("it is held back", LONG, || {
        !member.connector.health().held_back.is_empty()
    });
    let health = member.connector.health();
    assert_eq!(
        health.held_back.keys().collect::<Vec<_>>(),
        [&at("offsets", 1)]
    );
    assert!(!health.is_ready());
    member.commit();
    assert_eq!(
        tree.text(path).as_deref(),
        Some("12x"),
        "nothing was written over it"
    );
    tree.make(path, "3");
    let offsets: Vec<i64> = member.take(6).iter().map(support::Got::offset).collect();
    assert_eq!(offsets, [3, 4, 5, 6, 7, 8]);
    until("it is well again", LONG, || {
        member.connector.health().is_ready()
    });
    member.leave();
    assert_eq!(tree.text(path).as_deref(), Some("9"));
}

#[test]
fn a_topic_that_does_not_exist_is_told_once_and_read_when_it_comes() {
    let tree = tree();
    let mut member = Reading::join(config(zookeeper(), "absent"), "absent");
    let is_it = |event: &Event| matches!(event, Event::TopicMissing { .. });
    let event = member.hear("it is told", is_it);
    assert!(event.to_string().contains("absent"), "{event}");
    // Others come and go, and it looks again each time.
    for round in 0..3 {
        let other = Reading::join(config(zookeeper(), "absent"), "absent");
        until("both are seen", LONG, || {
            member.connector.health().members == 2
        });
        other.leave();
        until("one is seen", LONG, || {
            member.connector.health().members == 1
        });
        assert_eq!(count(&mut member, is_it), 1, "round {round}");
    }
    assert_eq!(tree.members("absent").len(), 1);
    broker().create_topic("absent", 2);
    Producer::connect(broker(), "absent").produce(0..2, 3);
    assert_eq!(member.take(6).len(), 6);
    member.leave();
}

// ---- brokers that do not let us ----

#[test]
fn no_broker_in_reach_is_told_once_and_the_share_is_kept() {
    // K6: a registration and a topic, and nobody there.
    let root = tree();
    root.make("/deserted/consumers", "");
    let tree = Tree::connect_below(zookeeper(), "/deserted");
    let port = closed_port();
    let text = format!(
        "{{\"jmx_port\":-1,\"timestamp\":\"1\",\"host\":\"127.0.0.1\",\"port\":{port},\"version\":1}}"
    );
    tree.make("/brokers/ids/1", &text);
    tree.make(
        "/brokers/topics/t",
        "{\"version\":1,\"partitions\":{\"0\":[1],\"1\":[1]}}",
    );
    tree.make("/consumers/g/offsets/t/0", "7");
    let mut member = Reading::join(config_below(zookeeper(), "/deserted", "g"), "t");
    let is_it = |event: &Event| matches!(event, Event::BrokersMissing { .. });
    let event = member.hear("it is told", is_it);
    assert!(event.to_string().contains(&port.to_string()), "{event}");
    until("the share is held", LONG, || {
        tree.owners("g", "t").len() == 2
    });
    let held = tree.node("/consumers/g/owners/t/0").unwrap().1.czxid;
    // It is tried again and again: the second failure of one partition is no news.
    let failed = |event: &Event| matches!(event, Event::ReadFailed { .. });
    member.hear("reading failed", failed);
    let session = member.connector.health().session;
    let waited = Instant::now();
    until("time for some more attempts", LONG, || {
        waited.elapsed() > Duration::from_secs(8)
    });
    assert_eq!(count(&mut member, is_it), 1);
    assert_eq!(count(&mut member, failed), 2, "once for each partition");
    let health = member.connector.health();
    assert!(!health.has_brokers && !health.is_ready());
    assert_eq!(health.session, session);
    let (_, stat) = tree.node("/consumers/g/owners/t/0").unwrap();
    assert_eq!(stat.czxid, held);
    assert_eq!(
        tree.offset_texts("g", "t"),
        BTreeMap::from([(0, "7".to_owned()), (1, "-1".to_owned())]),
        "nothing but what the claim makes"
    );
    member.leave();
}

#[test]
fn a_group_that_a_brokers_acl_denies_is_told_once_and_reads_all_the_same() {
    // docs/brokers.md
    let chroot = "/denied";
    tree().make(chroot, "");
    let options = BrokerOptions {
        chroot: chroot.into(),
        lines: vec![
            "authorizer.class.name=kafka.security.auth.SimpleAclAuthorizer".into(),
            "allow.everyone.if.no.acl.found=true".into(),
        ],
        ..Default::default()
    };
    let broker = Broker::start_with("1.1.1", zookeeper(), options);
    broker.create_topic("t", 2);
    let place = format!("zookeeper.connect={}", broker.zookeeper_connect());
    let output = run_class(
        &Jars::kafka("1.1.1"),
        "kafka.admin.AclCommand",
        &[
            "--authorizer-properties",
            &place,
            "--add",
            "--deny-principal",
            "User:ANONYMOUS",
            "--group",
            "g",
        ],
    );
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("Deny"), "{said}");
    let mut producer = Producer::connect(&broker, "t");
    let mut client = broker.client_config();
    let client: BaseConsumer = client.set("group.id", "g").create().expect("a client");
    client.subscribe(&["t"]).expect("a subscription");
    until("the broker denies the group", LONG, || {
        let answer = client.poll(Duration::from_millis(100));
        let code = answer.and_then(|answer| answer.err()?.rdkafka_error_code());
        code == Some(RDKafkaErrorCode::GroupAuthorizationFailed)
    });
    drop(client);
    let ours = Ours::join(config_below(zookeeper(), chroot, "g"), &[("t", 1)]);
    producer.produce(0..2, 50);
    until("all is read", LONG, || ours.finished().len() == 100);
    ours.settle();
    let sent = producer.produce(0..2, 50);
    until("and all that comes", LONG, || {
        ours.texts().len() == sent.len()
    });
    let told = |event: &Event| {
        matches!(event, Event::Warning { .. }) && event.to_string().contains("deny us the group")
    };
    let event = ours.wait_for("it is told", told);
    let text = event.to_string();
    assert!(
        text.contains("GroupAuthorizationFailed") && text.contains("no error"),
        "{text}"
    );
    let events = ours.events();
    assert_eq!(events.iter().filter(|event| told(event)).count(), 1);
    assert!(
        !events.iter().any(|event| matches!(
            event,
            Event::Lost { .. } | Event::Released { .. } | Event::BrokersMissing { .. }
        )),
        "the share is kept: {events:#?}"
    );
    let (_, finished) = ours.leave();
    assert_eq!(finished.len(), sent.len());
    let tree = Tree::connect_below(zookeeper(), chroot);
    assert_eq!(tree.offsets("g", "t"), BTreeMap::from([(0, 100), (1, 100)]));
}

#[test]
fn a_topic_that_a_brokers_acl_denies_is_told_retried_and_kept() {
    let chroot = "/unreadable";
    tree().make(chroot, "");
    let options = BrokerOptions {
        chroot: chroot.into(),
        lines: vec![
            "authorizer.class.name=kafka.security.auth.SimpleAclAuthorizer".into(),
            "allow.everyone.if.no.acl.found=true".into(),
        ],
        ..Default::default()
    };
    let broker = Broker::start_with("1.1.1", zookeeper(), options);
    broker.create_topic("t", 2);
    Producer::connect(&broker, "t").produce(0..2, 5);
    let place = format!("zookeeper.connect={}", broker.zookeeper_connect());
    let acl = |word: &str| {
        let force = if word == "--remove" {
            "--force"
        } else {
            "--deny-principal"
        };
        let mut args = vec!["--authorizer-properties", &place, word];
        if word == "--remove" {
            args.extend([force, "--topic", "t"]);
        } else {
            args.extend([
                force,
                "User:ANONYMOUS",
                "--operation",
                "Read",
                "--topic",
                "t",
            ]);
        }
        let output = run_class(&Jars::kafka("1.1.1"), "kafka.admin.AclCommand", &args);
        assert!(output.status.success(), "{output:?}");
    };
    acl("--add");
    let mut member = Reading::join(config_below(zookeeper(), chroot, "g"), "t");
    member.hear_asking("it is told", |event| {
        matches!(event, Event::ReadFailed { .. } | Event::Warning { .. })
            && event.to_string().to_lowercase().contains("authorization")
    });
    assert_eq!(member.connector.owned().len(), 2);
    acl("--remove");
    assert_eq!(member.take(10).len(), 10);
    member.leave();
}

// ---- hands that reach into our nodes ----

fn lost(cause: LostCause) -> impl Fn(&Event) -> bool {
    move |event| matches!(event, Event::Lost { cause: found, .. } if *found == cause)
}

#[test]
fn our_registration_deleted_by_hand_is_noticed_fenced_and_made_anew_without_loss() {
    let tree = tree();
    broker().create_topic("unregistered", 3);
    let flow = Producer::connect(broker(), "unregistered").flow(0..3, Duration::from_millis(5));
    let ours = Ours::join(config(zookeeper(), "unregistered"), &[("unregistered", 1)]);
    ours.settle();
    flow.await_more(0..3, 20);
    ours.commit();
    for _ in 0..3 {
        let path = format!("/consumers/unregistered/ids/{}", ours.name());
        let made = tree.node(&path).expect("it is registered").1.czxid;
        assert!(tree.delete(&path));
        until("it is registered anew", LONG, || {
            tree.node(&path).is_some_and(|(_, stat)| stat.czxid > made)
        });
        ours.wait_for("the loss is told", lost(LostCause::RegistrationGone));
        ours.settle();
        flow.await_more(0..3, 20);
    }
    let sent = flow.stop().finish();
    let texts: BTreeSet<String> = sent.into_iter().map(|sent| sent.value).collect();
    until("nothing is lost", LONG, || ours.texts() == texts);
    ours.leave();
    assert!(tree.members("unregistered").is_empty());
    assert!(tree.owners("unregistered", "unregistered").is_empty());
}

#[test]
fn our_owner_node_deleted_by_hand_is_noticed_fenced_and_claimed_anew_without_loss() {
    let tree = tree();
    broker().create_topic("disowned", 3);
    let flow = Producer::connect(broker(), "disowned").flow(0..3, Duration::from_millis(5));
    let ours = Ours::join(config(zookeeper(), "disowned"), &[("disowned", 1)]);
    ours.settle();
    flow.await_more(0..3, 20);
    let path = "/consumers/disowned/owners/disowned/1";
    let others: Vec<i64> = [0, 2]
        .map(|p| {
            tree.node(&format!("/consumers/disowned/owners/disowned/{p}"))
                .unwrap()
                .1
                .czxid
        })
        .to_vec();
    for _ in 0..3 {
        let made = tree.node(path).expect("it is owned").1.czxid;
        assert!(tree.delete(path));
        until("it is claimed anew", LONG, || {
            tree.node(path).is_some_and(|(_, stat)| stat.czxid > made)
        });
        flow.await_more(0..3, 20);
    }
    let told = ours
        .events()
        .iter()
        .filter(|event| lost(LostCause::OwnerNodeGone)(event))
        .count();
    assert_eq!(told, 3);
    let sent = flow.stop().finish();
    let texts: BTreeSet<String> = sent.into_iter().map(|sent| sent.value).collect();
    until("nothing is lost", LONG, || ours.texts() == texts);
    let after: Vec<i64> = [0, 2]
        .map(|p| {
            tree.node(&format!("/consumers/disowned/owners/disowned/{p}"))
                .unwrap()
                .1
                .czxid
        })
        .to_vec();
    assert_eq!(after, others, "the others were left alone");
    ours.leave();
}

// ---- hands that let messages fall ----

#[test]
fn a_message_dropped_without_ack_is_in_health_and_events_and_delivery_stops_at_the_bound() {
    // R4
    const BOUND: u32 = 50;
    broker().create_topic("dropped", 1);
    Producer::connect(broker(), "dropped").produce(0..1, 200);
    let mut config = config(zookeeper(), "dropped")
        .with_max_unacked_messages(BOUND)
        .with_unacked_warn_age(Duration::from_millis(100))
        .with_registration_check_interval(Duration::from_millis(200));
    config.auto_offset_reset = Reset::Smallest;
    let mut member = Reading::join(config.clone(), "dropped");
    member.take(10);
    drop(member.next());
    // What comes behind it is done, and does not count.
    member.take(BOUND as usize - 1);
    assert!(nothing_more(&mut member.stream), "the bound is reached");
    let partition = at("dropped", 0);
    let holding = member.connector.health().held[&partition].clone();
    assert_eq!(holding.position, Some(10));
    assert_eq!(holding.undone, BOUND as usize);
    let (offset, age) = holding.oldest.expect("one is undone");
    assert_eq!(offset, 10);
    let event = member.hear("it is told", |event| {
        matches!(
            event,
            Event::Unacknowledged {
                offset: 10,
                is_at_bound: true,
                ..
            }
        )
    });
    assert!(event.to_string().contains("10"), "{event}");
    assert!(member.connector.health().held[&partition].oldest.unwrap().1 >= age);
    member.commit();
    assert_eq!(tree().offsets("dropped", "dropped")[&0], 10);
    let Reading {
        connector, stream, ..
    } = member;
    drop(stream);
    block_on(connector.shutdown(Duration::from_secs(10))).unwrap();
    let mut next = Reading::join(config, "dropped");
    assert_eq!(next.take(1)[0].offset(), 10, "it comes again");
    next.leave();
}
