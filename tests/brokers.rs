//! Reading from real brokers of every release through a whole member: what producers wrote in every format, from where we were, through
//! all that can happen to a topic and a broker meanwhile.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::OnceLock;
use std::time::Duration;

use evenkeel::Config;
use evenkeel::Event;
use evenkeel::config::Reset;
use evenkeel::event::ResetCause;
use evenkeel::stream::Copied;
use rdkafka::ClientConfig;
use rdkafka::Offset;
use rdkafka::TopicPartitionList;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};

use support::{
    Broker, BrokerOptions, Got, Jars, LONG, Ours, Producer, Reading, Tree, ZooKeeper, block_on,
    config_below, run_class, until, until_some,
};

/// One for the whole binary; the watchdog ends it.
fn zookeeper() -> &'static ZooKeeper {
    static ONE: OnceLock<ZooKeeper> = OnceLock::new();
    ONE.get_or_init(|| ZooKeeper::start("3.9.5"))
}

/// A broker with its part of ZooKeeper. One without ZooKeeper has it all the same: the test writes there what such a broker does not.
struct Site {
    chroot: String,
    broker: Broker,
    tree: Tree,
}

impl Site {
    /// The site of a release that tests share; they differ by topic and group.
    fn shared(version: &str) -> &'static Self {
        static ALL: Mutex<BTreeMap<String, &'static Site>> = Mutex::new(BTreeMap::new());
        let mut all = ALL
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        all.entry(version.to_owned())
            .or_insert_with(|| Box::leak(Box::new(Self::new(version, "shared", &[]))))
    }

    fn new(version: &str, name: &str, lines: &[&str]) -> Self {
        let chroot = format!("/{name}-{version}");
        let own = [
            "transaction.state.log.num.partitions=1",
            "log.cleaner.enable=true",
            "log.cleaner.backoff.ms=100",
            "log.cleaner.dedupe.buffer.size=2097152",
        ];
        let options = BrokerOptions {
            chroot: chroot.clone(),
            lines: own.iter().chain(lines).map(ToString::to_string).collect(),
            ..Default::default()
        };
        let root = Tree::connect(zookeeper());
        root.make(&format!("{chroot}/consumers"), "");
        let broker = Broker::start_with(version, zookeeper(), options);
        Self {
            tree: Tree::connect_below(zookeeper(), &chroot),
            chroot,
            broker,
        }
    }

    fn version(&self) -> (u32, u32) {
        let mut numbers = self.broker.version().split('.').map(|n| n.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    fn has_zookeeper(&self) -> bool {
        self.version() < (4, 0)
    }

    fn config(&self, group: &str) -> Config {
        let config = config_below(zookeeper(), &self.chroot, group);
        if self.has_zookeeper() {
            return config;
        }
        config.with_bootstrap_servers(vec![self.broker.bootstrap()])
    }

    /// What a broker with ZooKeeper writes by itself.
    fn write_topic(&self, topic: &str, partitions: i32) {
        if self.has_zookeeper() {
            return;
        }
        let list: Vec<String> = (0..partitions).map(|p| format!("\"{p}\":[1]")).collect();
        let text = format!("{{\"version\":1,\"partitions\":{{{}}}}}", list.join(","));
        self.tree.make(&format!("/brokers/topics/{topic}"), &text);
    }

    fn create(&self, topic: &str, partitions: i32) {
        self.broker.create_topic(topic, partitions);
        self.write_topic(topic, partitions);
    }

    /// With settings of the topic's own.
    fn create_with(&self, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
        if settings.is_empty() {
            return self.create(topic, partitions);
        }
        if self.version() >= (1, 0) {
            let admin: AdminClient<DefaultClientContext> =
                self.broker.client_config().create().expect("an admin");
            until(&format!("topic {topic} made"), LONG, || {
                let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
                let new = settings.iter().fold(new, |new, (k, v)| new.set(k, v));
                block_on(admin.create_topics([&new], &AdminOptions::new()))
                    .is_ok_and(|results| results[0].is_ok())
            });
        } else {
            let count = partitions.to_string();
            let mut args = vec![
                "--zookeeper",
                self.broker.zookeeper_connect(),
                "--create",
                "--topic",
                topic,
            ];
            args.extend(["--partitions", &count, "--replication-factor", "1"]);
            let settings: Vec<String> = settings.iter().map(|(k, v)| format!("{k}={v}")).collect();
            for setting in &settings {
                args.extend(["--config", setting]);
            }
            let jars = Jars::kafka(self.broker.version());
            let output = run_class(&jars, "kafka.admin.TopicCommand", &args);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains("Created topic"), "{said}");
        }
        let client: BaseConsumer = self.broker.client_config().create().expect("a client");
        let last = std::cell::RefCell::new(String::new());
        let made = || {
            let answer = client.fetch_metadata(Some(topic), Duration::from_secs(5));
            let led = answer.map(|found| {
                let partitions = found.topics().iter().flat_map(|topic| topic.partitions());
                partitions
                    .filter(|partition| partition.leader() >= 0)
                    .count()
            });
            last.replace(format!("{led:?}"));
            (led == Ok(usize::try_from(partitions).unwrap())).then_some(())
        };
        support::until_some_or(LONG, made, || {
            format!("leaders of {topic}: {}", last.borrow())
        });
        for partition in 0..partitions {
            let found = client.fetch_watermarks(topic, partition, Duration::from_secs(5));
            assert_eq!(found, Ok((0, 0)), "{topic}-{partition}");
        }
        self.write_topic(topic, partitions);
    }

    fn grow(&self, topic: &str, partitions: i32) {
        self.broker.add_partitions(topic, partitions);
        self.write_topic(topic, partitions);
    }

    fn delete(&self, topic: &str) {
        self.broker.delete_topic(topic);
        let path = format!("/brokers/topics/{topic}");
        if self.has_zookeeper() {
            until("the topic's node gone", LONG, || {
                self.tree.node(&path).is_none()
            });
        } else {
            self.tree.delete(&path);
        }
    }

    fn store(&self, group: &str, topic: &str, partition: i32, text: &str) {
        let path = format!("/consumers/{group}/offsets/{topic}/{partition}");
        self.tree.make(&path, text);
    }
}

// ---- what producers wrote ----

const CODECS: [&str; 4] = ["none", "gzip", "snappy", "lz4"];
const COUNT: i64 = 300;
/// This one is far larger than what a fetch asks for.
const LARGE_AT: i64 = 150;
const SMALL_FETCH: u32 = 4_000;
/// Where a stored offset points into the middle of a batch.
const MIDDLE: i64 = 137;
const TIME: i64 = 1_500_000_000_000;

/// A format of messages: its number, the topic's settings and the producer's that make the broker keep it.
type Format = (
    u8,
    Vec<(&'static str, &'static str)>,
    Vec<(&'static str, &'static str)>,
);

fn formats(version: (u32, u32)) -> Vec<Format> {
    let old_producer = vec![
        ("api.version.request", "false"),
        ("broker.version.fallback", "0.9.0.1"),
    ];
    let zero = (0, vec![("message.format.version", "0.9.0")], old_producer);
    let one = (1, vec![("message.format.version", "0.10.2")], vec![]);
    match version {
        (0, 8 | 9) => vec![(0, vec![], vec![])],
        (0, 10) => vec![zero, (1, vec![], vec![])],
        (1, _) => vec![zero, one, (2, vec![], vec![])],
        _ => vec![(2, vec![], vec![])],
    }
}

/// The message at this offset. It is much the same for all, so that compressed batches hold many.
fn message(format: u8, offset: i64) -> Copied {
    let mut payload =
        format!("payload {offset} {}", "the same again and again ".repeat(6)).into_bytes();
    if offset == LARGE_AT {
        // Bytes that no codec makes smaller.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        payload = (0..300_000)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            })
            .collect();
    }
    let headers = vec![
        ("first".to_owned(), Some(offset.to_string().into_bytes())),
        ("first".to_owned(), Some(b"again".to_vec())),
        ("none".to_owned(), None),
    ];
    Copied {
        offset,
        key: (offset % 3 != 0).then(|| format!("key {offset}").into_bytes()),
        payload: (offset % 10 != 7).then_some(payload),
        timestamp_ms: (format > 0).then_some(TIME + offset),
        headers: if format > 1 { headers } else { Vec::new() },
    }
}

/// A message with nothing but this text.
fn saying(text: &str) -> Copied {
    Copied {
        payload: Some(text.as_bytes().to_vec()),
        ..Copied::default()
    }
}

/// Panics when a message was not taken.
struct Strict;

impl rdkafka::ClientContext for Strict {}

impl ProducerContext for Strict {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            panic!("a message was refused: {error}");
        }
    }
}

fn producer(mut config: ClientConfig, settings: &[(&str, &str)]) -> BaseProducer<Strict> {
    config
        .set("linger.ms", "200")
        .set("batch.num.messages", "100")
        .set("max.in.flight", "1");
    for (key, value) in settings {
        config.set(*key, *value);
    }
    config.create_with_context(Strict).expect("a producer")
}

fn send(producer: &BaseProducer<Strict>, topic: &str, partition: i32, what: &Copied) {
    let mut record = BaseRecord::<[u8], [u8]>::to(topic).partition(partition);
    if let Some(key) = &what.key {
        record = record.key(key);
    }
    if let Some(payload) = &what.payload {
        record = record.payload(payload);
    }
    if let Some(time) = what.timestamp_ms {
        record = record.timestamp(time);
    }
    if !what.headers.is_empty() {
        let headers = what.headers.iter();
        let headers = headers.fold(OwnedHeaders::new(), |all, (key, value)| {
            all.insert(Header {
                key,
                value: value.as_deref(),
            })
        });
        record = record.headers(headers);
    }
    producer.send(record).map_err(|(error, _)| error).unwrap();
}

/// One partition of the topic for each codec.
fn write(site: &Site, topic: &str, format: u8, settings: &[(&str, &str)]) {
    for (partition, codec) in (0..).zip(CODECS) {
        let mut settings = settings.to_vec();
        settings.push(("compression.codec", codec));
        let producer = producer(site.broker.client_config(), &settings);
        for offset in 0..COUNT {
            send(&producer, topic, partition, &message(format, offset));
        }
        producer.flush(LONG).expect("the broker takes them");
        assert_eq!(site.broker.watermarks(topic, partition), (0, COUNT));
    }
}

fn by_partition(all: Vec<Got>) -> BTreeMap<i32, Vec<Copied>> {
    let mut sorted: BTreeMap<i32, Vec<Copied>> = BTreeMap::new();
    for got in all {
        sorted.entry(got.partition).or_default().push(got.what);
    }
    sorted
}

/// Compared one by one, since a difference of large messages is not to be read.
#[track_caller]
fn assert_same(found: &BTreeMap<i32, Vec<Copied>>, format: u8, from: i64, what: &str) {
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3]);
    for (partition, messages) in found {
        let codec = CODECS[usize::try_from(*partition).unwrap()];
        let offsets: Vec<i64> = messages.iter().map(|m| m.offset).collect();
        assert_eq!(
            offsets,
            (from..COUNT).collect::<Vec<_>>(),
            "{what}, format {format}, {codec}"
        );
        for found in messages {
            assert!(
                *found == message(format, found.offset),
                "{what}, format {format}, {codec}, offset {}",
                found.offset
            );
        }
    }
}

#[test]
fn every_release_gives_every_codec_and_format_rightly_from_the_start_and_from_within_a_batch() {
    for version in support::broker_versions() {
        let site = Site::shared(version);
        for (format, topic_settings, producer_settings) in formats(site.version()) {
            let topic = format!("format-{format}");
            site.create_with(&topic, 4, &topic_settings);
            write(site, &topic, format, &producer_settings);

            let mut all = Reading::join(site.config(&format!("all-{format}")), &topic);
            let found = by_partition(all.take(4 * COUNT as usize));
            assert_same(&found, format, 0, version);
            all.leave();
            let stored = site.tree.offsets(&format!("all-{format}"), &topic);
            assert_eq!(stored, (0..4).map(|p| (p, COUNT)).collect());

            let group = format!("within-{format}");
            for partition in 0..4 {
                site.store(&group, &topic, partition, &MIDDLE.to_string());
            }
            let config = site
                .config(&group)
                .with_fetch_message_max_bytes(SMALL_FETCH);
            let mut within = Reading::join(config, &topic);
            let count = 4 * (COUNT - MIDDLE) as usize;
            let found = by_partition(within.take(count));
            assert_same(&found, format, MIDDLE, version);
            within.leave();
        }
        support::passed("brokers", &[("broker", version)]);
    }
}

// ---- where to start ----

#[test]
fn an_offset_out_of_range_is_reset_by_the_policy_and_told() {
    for version in support::broker_versions() {
        let site = Site::shared(version);
        site.create("range", 1);
        let mut producer = Producer::connect(&site.broker, "range");
        producer.produce(0..1, 10);
        for group in ["smallest", "largest", "none"] {
            site.store(group, "range", 0, "5000");
        }
        let is_reset = |to: Option<i64>| move |event: &Event| matches!(event, Event::OffsetReset { from: Some(5000), to: found, cause: ResetCause::OutOfRange, .. } if *found == to);
        let mut smallest = Reading::join(site.config("smallest"), "range");
        assert_eq!(smallest.take(10)[0].offset(), 0);
        smallest.hear("begun anew", is_reset(Some(0)));

        let mut largest = Reading::join(
            site.config("largest")
                .with_auto_offset_reset(Reset::Largest),
            "range",
        );
        largest.hear_asking("set to the end", is_reset(Some(10)));
        assert_eq!(site.tree.offsets("largest", "range")[&0], 10);

        let mut none = Reading::join(
            site.config("none").with_auto_offset_reset(Reset::None),
            "range",
        );
        none.hear_asking("held back", is_reset(None));
        until("health says why it is not read", LONG, || {
            none.connector.health().held_back.len() == 1
        });
        assert_eq!(site.tree.owners("none", "range").len(), 1);
        assert_eq!(site.tree.offset_texts("none", "range")[&0], "5000");

        producer.produce(0..1, 1);
        assert_eq!(largest.take(1)[0].offset(), 10);
        // Whoever knows better writes the offset, and it goes on.
        site.store("none", "range", 0, "4");
        assert_eq!(none.take(1)[0].offset(), 4);
        for member in [smallest, largest, none] {
            member.leave();
        }
    }
}

#[test]
fn what_retention_took_away_before_us_is_an_offset_out_of_range() {
    let site = Site::shared("1.1.1");
    site.create("retained", 1);
    Producer::connect(&site.broker, "retained").produce(0..1, 20);
    let admin: AdminClient<DefaultClientContext> = site.broker.client_config().create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset("retained", 0, Offset::Offset(12))
        .unwrap();
    block_on(admin.delete_records(&list, &AdminOptions::new())).expect("deleted");
    assert_eq!(site.broker.watermarks("retained", 0), (12, 20));
    site.store("g", "retained", 0, "3");
    let mut member = Reading::join(site.config("g"), "retained");
    assert_eq!(member.take(1)[0].offset(), 12);
    member.hear("begun at what is left", |event| {
        matches!(
            event,
            Event::OffsetReset {
                from: Some(3),
                to: Some(12),
                cause: ResetCause::OutOfRange,
                ..
            }
        )
    });
    member.leave();
}

#[test]
fn a_topic_made_anew_is_read_from_its_start_and_new_partitions_from_theirs() {
    // r109, D-25
    for version in support::broker_versions() {
        let site = Site::shared(version);
        site.create("anew", 2);
        Producer::connect(&site.broker, "anew").produce(0..2, 30);
        let config = site.config("anew").with_auto_offset_reset(Reset::Smallest);
        let mut member = Reading::join(config, "anew");
        member.take(60);
        member.commit();
        assert_eq!(site.tree.offsets("anew", "anew")[&1], 30);
        site.delete("anew");
        member.hear("it is gone", |event| {
            matches!(event, Event::TopicMissing { .. })
        });
        until("nothing is held", LONG, || {
            member.connector.owned().is_empty()
        });
        site.create("anew", 2);
        // More than was read before: by the offset alone nobody could tell.
        let sent = Producer::connect(&site.broker, "anew").produce(0..2, 50);
        let found = member.take(100);
        let mut found: Vec<_> = found
            .iter()
            .map(|got| (got.partition, got.offset(), got.text()))
            .collect();
        found.sort();
        let sent: Vec<_> = sent
            .into_iter()
            .map(|sent| (sent.partition, sent.offset, sent.value))
            .collect();
        assert_eq!(found, sent, "{version}");
        for partition in 0..2 {
            member.hear("begun anew", |event| {
                matches!(event, Event::OffsetReset { partition: of, from: Some(30), to: Some(0), cause: ResetCause::TopicRecreated, .. }
                    if of.partition == partition)
            });
        }
        site.grow("anew", 4);
        let mut producer = Producer::connect(&site.broker, "anew");
        producer.produce(2..4, 10);
        let new: BTreeSet<_> = member
            .take(20)
            .iter()
            .map(|got| (got.partition, got.offset()))
            .collect();
        assert_eq!(
            new,
            (2..4).flat_map(|p| (0..10).map(move |o| (p, o))).collect()
        );
        member.leave();
    }
}

#[test]
fn messages_written_to_a_new_partition_before_we_knew_of_it_are_read_under_largest_too() {
    // D-25
    let site = Site::shared("1.1.1");
    site.create("grown", 1);
    let config = site.config("grown").with_auto_offset_reset(Reset::Largest);
    let mut member = Reading::join(config, "grown");
    member.settle();
    site.grow("grown", 2);
    Producer::connect(&site.broker, "grown").produce(1..2, 5);
    let offsets: Vec<i64> = member.take(5).iter().map(Got::offset).collect();
    assert_eq!(offsets, [0, 1, 2, 3, 4]);
    member.leave();
}

#[test]
fn brokers_may_be_named_by_hand_whatever_their_age() {
    // docs/brokers.md
    for version in support::broker_versions() {
        let site = Site::shared(version);
        site.create("named", 2);
        let sent = Producer::connect(&site.broker, "named").produce(0..2, 20);
        let config = site.config("named");
        let config = config.with_bootstrap_servers(vec![site.broker.bootstrap()]);
        let mut member = Reading::join(config, "named");
        assert_eq!(member.take(sent.len()).len(), sent.len(), "{version}");
        member.leave();
    }
}

// ---- gaps ----

fn has_transactions(version: &str) -> bool {
    !version.starts_with("0.")
}

#[test]
fn transactions_and_their_gaps_stall_nobody_and_aborted_messages_are_read_as_the_jvm_reads_them() {
    // O6: what was delivered counts in its order; offsets may have gaps.
    for version in support::broker_versions() {
        if !has_transactions(version) {
            continue;
        }
        let site = Site::shared(version);
        site.create("txn", 1);
        let settings = [("transactional.id", "txn"), ("linger.ms", "0")];
        let producer = producer(site.broker.client_config(), &settings);
        producer.init_transactions(LONG).expect("transactions");
        let (mut committed, mut all) = (Vec::new(), Vec::new());
        for round in 0..6 {
            producer.begin_transaction().unwrap();
            for number in 0..10 {
                send(&producer, "txn", 0, &saying(&format!("{round}/{number}")));
                all.push(format!("{round}/{number}"));
            }
            if round % 2 == 0 {
                producer.commit_transaction(LONG).unwrap();
                committed.extend(all[all.len() - 10..].to_vec());
            } else {
                // What was not sent yet is dropped by an abort.
                producer.flush(LONG).unwrap();
                producer.abort_transaction(LONG).unwrap();
            }
        }
        let texts = |found: Vec<Got>| found.iter().map(Got::text).collect::<Vec<_>>();
        let mut blind = Reading::join(site.config("blind"), "txn");
        assert_eq!(texts(blind.take(all.len())), all, "{version}");
        let config = site
            .config("wary")
            .with_kafka("isolation.level", "read_committed");
        let mut wary = Reading::join(config, "txn");
        assert_eq!(texts(wary.take(committed.len())), committed, "{version}");
        // Behind the gap at the end it goes on.
        producer.begin_transaction().unwrap();
        send(&producer, "txn", 0, &saying("last"));
        producer.commit_transaction(LONG).unwrap();
        assert_eq!(texts(wary.take(1)), ["last"]);
        assert_eq!(texts(blind.take(1)), ["last"]);
        let offset = 60 + 6;
        wary.commit();
        assert_eq!(site.tree.offsets("wary", "txn")[&0], offset + 1);
        blind.leave();
        wary.leave();
    }
}

#[test]
fn gaps_of_a_compacted_topic_are_no_loss_and_no_stall() {
    // O6: what was delivered counts in its order; offsets may have gaps.
    let site = Site::shared("1.1.1");
    let settings = [
        ("cleanup.policy", "compact"),
        ("segment.bytes", "20000"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("delete.retention.ms", "100000"),
    ];
    site.create_with("compacted", 1, &settings);
    let producer = producer(site.broker.client_config(), &[("batch.num.messages", "7")]);
    for number in 0..1000 {
        let mut what = message(2, number);
        what.key = Some(format!("key {}", number % 13).into_bytes());
        what.payload =
            (number % 5 != 0).then(|| format!("{number} {}", "x".repeat(100)).into_bytes());
        send(&producer, "compacted", 0, &what);
    }
    producer.flush(LONG).unwrap();
    let mut round = 0;
    let found = until_some("the log is cleaned", LONG * 2, || {
        round += 1;
        let mut member = Reading::join(site.config(&format!("compacted-{round}")), "compacted");
        let mut found: Vec<i64> = Vec::new();
        while found.last() != Some(&999) {
            found.push(member.take(1)[0].offset());
        }
        member.leave();
        (found.len() < 900).then_some(found)
    });
    assert!(found.windows(2).all(|pair| pair[0] < pair[1]));
    let group = format!("compacted-{round}");
    assert_eq!(site.tree.offsets(&group, "compacted")[&0], 1000);
    // Somebody committed an offset that is gone now: the next one there is comes first.
    let gone = (0..999).find(|offset| !found.contains(offset)).unwrap();
    let next = *found.iter().find(|offset| **offset > gone).unwrap();
    site.store("compacted-gone", "compacted", 0, &gone.to_string());
    let mut member = Reading::join(site.config("compacted-gone"), "compacted");
    // The cleaner may have gone on meanwhile.
    let first = member.take(1)[0].offset();
    assert!(first >= next && found.contains(&first), "{gone} {first}");
    member.leave();
}

// ---- brokers come and go ----

/// The transaction that made each owner node: it stays as long as the ownership does.
fn owners(tree: &Tree, group: &str, topic: &str) -> BTreeMap<String, i64> {
    let parent = format!("/consumers/{group}/owners/{topic}");
    let names = tree.children(&parent).into_iter();
    names
        .map(|name| {
            let (_, stat) = tree.node(&format!("{parent}/{name}")).expect("it is there");
            (name, stat.czxid)
        })
        .collect()
}

#[test]
fn a_broker_that_comes_late_restarts_and_moves_costs_a_member_nothing_of_its_share() {
    // r037, A13, K6, T6, N3
    for version in support::broker_versions() {
        let chroot = format!("/late-{version}");
        let is_bare = version.starts_with("4.");
        Tree::connect(zookeeper()).make(&format!("{chroot}/consumers"), "");
        let early = (!is_bare).then(|| {
            let ours = Ours::join(config_below(zookeeper(), &chroot, "late"), &[("t", 1)]);
            ours.wait_for("no broker yet", |event| {
                matches!(event, Event::BrokersMissing { .. })
            });
            assert!(
                !ours.connector().health().has_brokers && !ours.connector().health().is_ready()
            );
            ours
        });
        let lines = ["auto.create.topics.enable=true"];
        let mut site = Site::new(version, "late", &lines);
        site.create("t", 3);
        let ours = early.unwrap_or_else(|| Ours::join(site.config("late"), &[("t", 1)]));
        let mut producer = Producer::connect(&site.broker, "t");
        let mut sent = producer.produce(0..3, 20);
        let read_all = |ours: &Ours, sent: &[support::Sent]| {
            let is_all = || (ours.finished().len() >= sent.len()).then_some(());
            support::until_some_or(LONG, is_all, || {
                let read = ours.finished().len();
                format!(
                    "{read} of {} from {version}: {:#?}",
                    sent.len(),
                    ours.events()
                )
            });
            let mut found: Vec<_> = ours.finished().into_iter().map(|m| m.value).collect();
            found.sort();
            let mut sent: Vec<_> = sent.iter().map(|sent| sent.value.clone()).collect();
            sent.sort();
            assert_eq!(found, sent, "{version}");
        };
        read_all(&ours, &sent);
        let before = owners(&site.tree, "late", "t");
        assert_eq!(before.len(), 3);

        // A broker that is starting may turn us away once more, so the last word counts.
        let is_away = |ours: &Ours| {
            let told = ours.events().into_iter().rev();
            told.filter_map(|event| match event {
                Event::BrokersMissing { .. } => Some(true),
                Event::BrokersBack => Some(false),
                _ => None,
            })
            .next()
        };
        site.broker.stop();
        until("the loss is told", LONG, || is_away(&ours) == Some(true));
        let has_brokers = || ours.connector().health().has_brokers;
        until("health says so", LONG, || !has_brokers());
        site.broker.restart();
        sent.extend(Producer::connect(&site.broker, "t").produce(0..3, 20));
        read_all(&ours, &sent);
        until("its return is told", LONG, || is_away(&ours) == Some(false));
        assert_eq!(owners(&site.tree, "late", "t"), before, "{version}");

        if !is_bare {
            site.broker.move_elsewhere();
            sent.extend(Producer::connect(&site.broker, "t").produce(0..3, 20));
            read_all(&ours, &sent);
            until("its return is told", LONG, || is_away(&ours) == Some(false));
            until("health says so", LONG, has_brokers);
            assert_eq!(owners(&site.tree, "late", "t"), before, "{version}");
        }
        let made: BTreeSet<String> = site.tree.children("/brokers/topics").into_iter().collect();
        println!("{version}: topics afterwards {made:?}");
        ours.leave();
    }
}

#[test]
fn a_deleted_topic_does_not_come_back_because_we_ask_for_it() {
    // r106. Before 0.11 the broker's own setting decides alone.
    let site = Site::new("1.1.1", "auto", &["auto.create.topics.enable=true"]);
    site.create("t", 2);
    site.create("other", 1);
    let config = site
        .config("g")
        .with_kafka("topic.metadata.refresh.interval.ms", "100");
    let ours = Ours::join(config, &[("t", 1), ("other", 1)]);
    let mut producer = Producer::connect(&site.broker, "t");
    producer.produce(0..2, 10);
    until("all is read", LONG, || ours.finished().len() == 20);
    site.delete("t");
    ours.wait_for("it is gone", |event| {
        matches!(event, Event::TopicMissing { .. })
    });
    let flow = Producer::connect(&site.broker, "other").flow(0..1, Duration::from_millis(20));
    flow.await_more(0..1, 100);
    let sent = flow.stop().finish().len();
    until("the other is read", LONG, || {
        ours.finished().len() == 20 + sent
    });
    let topics = site.tree.children("/brokers/topics");
    assert!(!topics.contains(&"t".to_owned()), "{topics:?}");
    ours.leave();
}

// ---- fences ----

/// Every message exactly once and in order, whoever reads it.
#[derive(Default)]
struct Account {
    next: BTreeMap<i32, i64>,
}

impl Account {
    #[track_caller]
    fn enter(&mut self, found: &[Got]) {
        for got in found {
            let next = self.next.entry(got.partition).or_default();
            assert_eq!(got.offset(), *next, "partition {}", got.partition);
            *next += 1;
        }
    }
}

#[test]
fn after_a_hand_over_nothing_that_was_fetched_before_is_delivered() {
    // K1
    const ROUNDS: usize = 20;
    let site = Site::shared("1.1.1");
    site.create("handed", 4);
    Producer::connect(&site.broker, "handed")
        .with_size(100)
        .produce(0..4, 20_000);
    let mut account = Account::default();
    let mut stays = Reading::join(site.config("handed").with_consumer_id("a".into()), "handed");
    for round in 0..ROUNDS {
        stays.settle();
        assert_eq!(stays.connector.owned().len(), 4, "round {round}");
        account.enter(&stays.take(700));
        let mut comes = Reading::join(site.config("handed").with_consumer_id("b".into()), "handed");
        until("both have half", LONG, || {
            [&stays, &comes].iter().all(|member| {
                let health = member.connector.health();
                health.is_ready() && health.held.len() == 2 && health.members == 2
            })
        });
        let of = |member: &Reading| -> BTreeSet<i32> {
            let owned = member.connector.owned().into_keys();
            owned.map(|partition| partition.partition).collect()
        };
        let theirs = (of(&stays), of(&comes));
        for (member, own) in [(&mut stays, &theirs.0), (&mut comes, &theirs.1)] {
            let found = member.take(700);
            assert!(
                found.iter().all(|got| own.contains(&got.partition)),
                "round {round}"
            );
            account.enter(&found);
        }
        comes.leave();
        until("all are back", LONG, || {
            stays.connector.owned().len() == 4 && stays.connector.health().members == 1
        });
    }
    stays.leave();
    let stored = site.tree.offsets("handed", "handed");
    assert_eq!(stored, account.next);
}

#[test]
fn a_message_outlives_its_stream_and_its_member() {
    // K3
    let site = Site::shared("1.1.1");
    site.create("outlived", 1);
    let sent = Producer::connect(&site.broker, "outlived").produce(0..1, 3);
    let mut member = Reading::join(site.config("outlived"), "outlived");
    let kept = member.next();
    let copied = member.next().into_copied();
    let Reading {
        connector, stream, ..
    } = member;
    drop(stream);
    let farewell = block_on(connector.shutdown(Duration::from_secs(20))).unwrap();
    assert_eq!(farewell.forced.len(), 1, "two were in hand");
    let read = std::thread::spawn(move || {
        assert_eq!(kept.offset(), 0);
        assert!(!kept.is_valid());
        let texts = [&kept, &copied]
            .map(|message| String::from_utf8(message.payload().unwrap().to_vec()).unwrap());
        kept.ack();
        texts
    });
    assert_eq!(
        read.join().unwrap(),
        [sent[0].value.clone(), sent[1].value.clone()]
    );
    assert_eq!(site.tree.offsets("outlived", "outlived")[&0], 0);
}
