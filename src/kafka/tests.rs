//! The reader against librdkafka's own mock of a cluster.

use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use rdkafka::ClientConfig;
use rdkafka::consumer::Consumer as _;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use super::*;
use crate::group::Topic;
use crate::stream::{Bell, Content, Polled, Queue, Trouble};

type Cluster = MockCluster<'static, DefaultProducerContext>;

const LONG: Duration = Duration::from_secs(30);

fn cluster(partitions: i32) -> Cluster {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("t", partitions, 1).unwrap();
    cluster
}

fn at(partition: i32) -> TopicPartition {
    TopicPartition::new(Topic::new("t").unwrap(), partition)
}

fn fetching(cluster: &Cluster) -> Fetching {
    Fetching::new(BTreeMap::new(), vec![cluster.bootstrap_servers()], 4)
}

fn reader(cluster: &Cluster) -> KafkaReader {
    KafkaReader::new(fetching(cluster)).unwrap()
}

fn producer(cluster: &Cluster) -> BaseProducer {
    producer_with(cluster, "20")
}

fn producer_with(cluster: &Cluster, linger_ms: &str) -> BaseProducer {
    ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .set("linger.ms", linger_ms)
        .set("batch.num.messages", "10000")
        .set("queue.buffering.max.messages", "1000000")
        .create()
        .unwrap()
}

/// Each payload is its offset, if the partition was empty.
fn send(producer: &BaseProducer, partition: i32, range: Range<i64>) {
    for offset in range {
        let payload = offset.to_string();
        let record = BaseRecord::<(), _>::to("t")
            .partition(partition)
            .payload(&payload);
        producer.send(record).unwrap();
    }
    producer.poll(Duration::ZERO);
}

/// A handful goes out as one batch.
fn produce(producer: &BaseProducer, partition: i32, range: Range<i64>) {
    send(producer, partition, range);
    producer.flush(LONG).unwrap();
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future)
        .await
        .expect("nothing came")
}

/// One partition that is being read.
struct Tap {
    queue: Box<dyn Queue>,
    bell: Bell,
}

impl Tap {
    /// Waits on nothing but the bell.
    async fn next(&mut self) -> std::result::Result<Box<dyn Content>, Trouble> {
        loop {
            match self.queue.poll() {
                Polled::Message(content) => return Ok(content),
                Polled::Trouble(trouble) => return Err(trouble),
                Polled::Empty => within(self.bell.rung()).await,
            }
        }
    }

    async fn offsets(&mut self, count: usize) -> Vec<i64> {
        let mut offsets = Vec::new();
        while offsets.len() < count {
            offsets.push(self.next().await.unwrap().offset());
        }
        offsets
    }

    fn is_empty(&mut self) -> bool {
        matches!(self.queue.poll(), Polled::Empty)
    }
}

fn start(partition: i32, offset: i64) -> Start {
    Start {
        partition: at(partition),
        offset,
        bell: Bell::default(),
    }
}

async fn read(reader: &KafkaReader, partition: i32, offset: i64) -> Result<Tap> {
    let start = start(partition, offset);
    let bell = start.bell.clone();
    let mut opened = within(reader.read(vec![start])).await;
    let (place, queue) = opened.pop().unwrap();
    assert!(opened.is_empty() && place == at(partition));
    queue.map(|queue| Tap { queue, bell })
}

#[tokio::test]
async fn reading_begins_at_the_offset_asked_for_also_inside_a_batch() {
    let cluster = cluster(1);
    produce(&producer(&cluster), 0, 0..100);
    let reader = reader(&cluster);
    for offset in [0, 7, 50, 99] {
        let mut tap = read(&reader, 0, offset).await.unwrap();
        let message = tap.next().await.unwrap();
        assert_eq!(message.offset(), offset);
        assert_eq!(message.payload(), Some(offset.to_string().as_bytes()));
        assert!(message.timestamp_ms().is_some());
    }
    within(reader.close()).await;
}

#[tokio::test]
async fn an_offset_beyond_the_log_is_out_of_range() {
    // O9
    let cluster = cluster(1);
    produce(&producer(&cluster), 0, 0..10);
    let reader = reader(&cluster);
    let mut tap = read(&reader, 0, 11).await.unwrap();
    assert_eq!(tap.next().await.err(), Some(Trouble::OutOfRange));
    assert!(tap.is_empty());
    // The end of the log is in range.
    let mut tap = read(&reader, 0, 10).await.unwrap();
    produce(&producer(&cluster), 0, 10..11);
    assert_eq!(tap.offsets(1).await, [10]);
}

#[tokio::test]
async fn after_a_stop_nothing_more_is_given() {
    let cluster = cluster(2);
    let producer = producer(&cluster);
    produce(&producer, 0, 0..1000);
    produce(&producer, 1, 0..1000);
    let reader = reader(&cluster);
    let mut stopped = read(&reader, 0, 0).await.unwrap();
    let mut other = read(&reader, 1, 0).await.unwrap();
    assert_eq!(stopped.offsets(10).await.len(), 10);
    reader.stop(&[at(0), at(7)]);
    assert!(stopped.is_empty());
    assert_eq!(other.offsets(1000).await.last(), Some(&999));
    assert!(stopped.is_empty());
}

#[tokio::test]
async fn a_second_start_silences_the_first() {
    // K1
    let cluster = cluster(1);
    produce(&producer(&cluster), 0, 0..1000);
    let reader = reader(&cluster);
    let mut first = read(&reader, 0, 0).await.unwrap();
    assert_eq!(first.offsets(3).await, [0, 1, 2]);
    let mut second = read(&reader, 0, 500).await.unwrap();
    assert!(first.is_empty());
    assert_eq!(second.offsets(3).await, [500, 501, 502]);
    assert!(first.is_empty());
}

#[tokio::test]
async fn a_stop_overtakes_a_read_that_was_not_answered_yet() {
    let cluster = cluster(1);
    produce(&producer(&cluster), 0, 0..10);
    let reader = reader(&cluster);
    let opened = reader.read(vec![start(0, 0)]);
    reader.stop(&[at(0)]);
    let (_, queue) = within(opened).await.pop().unwrap();
    let mut queue = queue.unwrap();
    // A later start works, and once it has delivered, the stopped one would have.
    let mut tap = read(&reader, 0, 0).await.unwrap();
    assert_eq!(tap.offsets(10).await.len(), 10);
    assert!(matches!(queue.poll(), Polled::Empty));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_stops_and_starts_under_load_lose_nothing_and_give_nothing_stale() {
    // K1, K2
    const PARTITIONS: usize = 4;
    let cluster = cluster(PARTITIONS as i32);
    let is_over = Arc::new(AtomicBool::new(false));
    let load = {
        let (producer, is_over) = (producer_with(&cluster, "1"), is_over.clone());
        thread::spawn(move || {
            let mut next = 0;
            while !is_over.load(Ordering::Relaxed) {
                for partition in 0..PARTITIONS as i32 {
                    send(&producer, partition, next..next + 100);
                }
                next += 100;
                // The mock forgets what is beyond 5 MiB.
                if next == 100_000 {
                    return;
                }
                producer.poll(Duration::from_millis(1));
            }
        })
    };
    let reader = reader(&cluster);
    let mut positions = [0i64; PARTITIONS];
    let mut kept = Vec::new();
    for round in 0..200 {
        let starts: Vec<_> = (0..PARTITIONS)
            .map(|p| start(p as i32, positions[p]))
            .collect();
        let bells: Vec<_> = starts.iter().map(|start| start.bell.clone()).collect();
        let opened = within(reader.read(starts)).await;
        assert_eq!(opened.len(), PARTITIONS);
        for ((place, queue), bell) in opened.into_iter().zip(bells) {
            let mut tap = Tap {
                queue: queue.unwrap(),
                bell,
            };
            let position = &mut positions[place.partition as usize];
            for _ in 0..(round % 7) * 40 + 1 {
                let message = tap.next().await.unwrap();
                assert_eq!(message.offset(), *position, "{place} in round {round}");
                assert_eq!(message.payload(), Some(position.to_string().as_bytes()));
                *position += 1;
                // Some messages are kept for long, and dropped at odd times.
                if *position % 97 == 0 {
                    kept.push(message);
                }
            }
        }
        if round % 3 != 0 {
            reader.stop(&[at(0), at(1), at(2), at(3)]);
        }
        if round % 20 == 0 {
            kept.clear();
        }
    }
    is_over.store(true, Ordering::Relaxed);
    load.join().unwrap();
}

#[tokio::test]
async fn the_bell_alone_leads_through_a_hundred_thousand_messages() {
    let cluster = cluster(1);
    let load = {
        let producer = producer_with(&cluster, "0");
        thread::spawn(move || {
            send(&producer, 0, 0..100_000);
            producer.flush(LONG).unwrap();
        })
    };
    let reader = reader(&cluster);
    let mut tap = read(&reader, 0, 0).await.unwrap();
    for offset in 0..100_000 {
        assert_eq!(tap.next().await.unwrap().offset(), offset);
    }
    load.join().unwrap();
}

#[tokio::test]
async fn a_message_of_an_earlier_start_does_not_take_the_bell_with_it() {
    let cluster = cluster(1);
    let producer = producer(&cluster);
    produce(&producer, 0, 0..2);
    let reader = reader(&cluster);
    let mut first = read(&reader, 0, 0).await.unwrap();
    let message = first.next().await.unwrap();
    let mut second = read(&reader, 0, 0).await.unwrap();
    assert_eq!(second.offsets(2).await, [0, 1]);
    drop((message, first));
    assert!(second.is_empty());
    produce(&producer, 0, 2..3);
    assert_eq!(second.offsets(1).await, [2]);
}

#[tokio::test]
async fn keys_tombstones_and_headers_arrive_as_they_were_sent() {
    let cluster = cluster(1);
    let producer = producer(&cluster);
    let headers = OwnedHeaders::new()
        .insert(Header {
            key: "a",
            value: Some("1"),
        })
        .insert(Header::<&str> {
            key: "b",
            value: None,
        })
        .insert(Header {
            key: "a",
            value: Some(""),
        });
    let full = BaseRecord::to("t")
        .partition(0)
        .key("k")
        .payload("v")
        .timestamp(1_234_567_890_123)
        .headers(headers);
    producer.send(full).unwrap();
    producer
        .send(BaseRecord::<str, str>::to("t").partition(0).key("gone"))
        .unwrap();
    producer
        .send(BaseRecord::<str, str>::to("t").partition(0).payload(""))
        .unwrap();
    producer.flush(LONG).unwrap();
    let reader = reader(&cluster);
    let mut tap = read(&reader, 0, 0).await.unwrap();

    let message = tap.next().await.unwrap();
    assert_eq!(message.key(), Some(&b"k"[..]));
    assert_eq!(message.payload(), Some(&b"v"[..]));
    assert_eq!(message.timestamp_ms(), Some(1_234_567_890_123));
    assert_eq!(
        message.headers(),
        [("a", Some(&b"1"[..])), ("b", None), ("a", Some(&b""[..])),]
    );
    let tombstone = tap.next().await.unwrap();
    assert_eq!(tombstone.key(), Some(&b"gone"[..]));
    assert_eq!(tombstone.payload(), None);
    assert!(tombstone.headers().is_empty());
    let empty = tap.next().await.unwrap();
    assert_eq!((empty.key(), empty.payload()), (None, Some(&b""[..])));
}

#[tokio::test]
async fn a_message_outlives_queue_reader_and_close() {
    // K3
    let cluster = cluster(1);
    produce(&producer(&cluster), 0, 0..3);
    let reader = reader(&cluster);
    let mut tap = read(&reader, 0, 1).await.unwrap();
    let message = tap.next().await.unwrap();
    within(reader.close()).await;
    assert!(tap.is_empty());
    drop((tap, reader, cluster));
    let reading = thread::spawn(move || {
        assert_eq!(message.payload(), Some(&b"1"[..]));
        assert!(message.headers().is_empty());
    });
    reading.join().unwrap();
}

#[tokio::test]
async fn closing_waits_for_the_clients_end_and_refuses_what_comes_later() {
    let cluster = cluster(1);
    produce(&producer(&cluster), 0, 0..3);
    let reader = reader(&cluster);
    let tap = read(&reader, 0, 0).await.unwrap();
    drop(tap);
    within(reader.close()).await;
    within(reader.close()).await;
    let error = read(&reader, 0, 0).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Closed);
    let error = within(reader.edge(&at(0), Edge::Latest)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn closing_ends_in_time_with_the_broker_away() {
    // K3
    let cluster = cluster(1);
    produce(&producer(&cluster), 0, 0..10_000);
    let reader = reader(&cluster);
    let mut tap = read(&reader, 0, 0).await.unwrap();
    tap.offsets(10).await;
    drop(tap);
    cluster.broker_down(1).unwrap();
    let before = Instant::now();
    within(reader.close()).await;
    assert!(before.elapsed() < closer::PATIENCE * 2);
}

#[tokio::test]
async fn brokers_that_go_and_come_back_are_told_once_each() {
    let cluster = cluster(1);
    let producer = producer(&cluster);
    produce(&producer, 0, 0..10);
    let reader = reader(&cluster);
    let mut tap = read(&reader, 0, 0).await.unwrap();
    tap.offsets(10).await;
    for round in 1..=2 {
        cluster.broker_down(1).unwrap();
        let notice = within(reader.notice()).await;
        assert!(matches!(notice, Notice::BrokersDown(_)), "{notice:?}");
        cluster.broker_up(1).unwrap();
        assert_eq!(within(reader.notice()).await, Notice::BrokersBack);
        // What was being read goes on by itself.
        produce(&producer, 0, 9 + round..10 + round);
        assert_eq!(tap.offsets(1).await, [9 + round]);
    }
    let waker = Waker::noop();
    let mut notice = reader.notice();
    let more = notice.as_mut().poll(&mut Context::from_waker(waker));
    assert!(more.is_pending(), "{more:?}");
}

#[tokio::test]
async fn a_client_that_does_not_find_brokers_which_are_there_is_made_anew() {
    let cluster = cluster(1);
    let producer = producer(&cluster);
    produce(&producer, 0, 0..10);
    // It takes connections and says nothing.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut fetching = fetching(&cluster);
    fetching
        .brokers
        .push(mute.local_addr().unwrap().to_string());
    let quick = ("api.version.request.timeout.ms".into(), "200".into());
    fetching.settings.extend([quick]);
    fetching.deadline = Duration::from_secs(2);
    let reader = KafkaReader::new(fetching).unwrap();
    let mut tap = read(&reader, 0, 0).await.unwrap();
    tap.offsets(10).await;
    cluster.broker_down(1).unwrap();
    let Err(Trouble::Failed(reason)) = tap.next().await else {
        panic!("the client goes, and its queues with it");
    };
    assert!(reason.contains("does not find them"), "{reason}");
    cluster.broker_up(1).unwrap();
    produce(&producer, 0, 10..11);
    let again = async {
        loop {
            if let Ok(tap) = read(&reader, 0, 10).await {
                return tap;
            }
        }
    };
    assert_eq!(within(again).await.offsets(1).await, [10]);
}

#[tokio::test]
async fn without_any_broker_a_read_is_refused_in_time() {
    let mut fetching = Fetching::new(BTreeMap::new(), vec!["127.0.0.1:1".into()], 1);
    fetching.deadline = Duration::from_millis(300);
    let reader = KafkaReader::new(fetching).unwrap();
    let before = Instant::now();
    let error = read(&reader, 0, 0).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Kafka);
    assert!(matches!(
        within(reader.notice()).await,
        Notice::BrokersDown(_)
    ));
    let error = within(reader.edge(&at(0), Edge::Latest)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Kafka);
    assert!(before.elapsed() < Duration::from_secs(5));
    within(reader.close()).await;
}

#[tokio::test]
async fn brokers_that_vanish_leave_no_question_hanging() {
    let cluster = cluster(2);
    let mut fetching = fetching(&cluster);
    fetching.deadline = Duration::from_millis(500);
    let reader = KafkaReader::new(fetching).unwrap();
    read(&reader, 0, 0).await.unwrap();
    cluster.create_topic("u", 1, 1).unwrap();
    cluster.broker_down(1).unwrap();
    let before = Instant::now();
    let edges: Vec<_> = (0..20).map(|_| reader.edge(&at(1), Edge::Latest)).collect();
    let mut unknown = start(0, 0);
    unknown.partition.topic = Topic::new("u").unwrap();
    let opened = reader.read(vec![unknown]);
    for edge in edges {
        assert_eq!(within(edge).await.unwrap_err().kind(), ErrorKind::Kafka);
    }
    let (_, queue) = within(opened).await.pop().unwrap();
    assert_eq!(queue.err().unwrap().kind(), ErrorKind::Kafka);
    assert!(before.elapsed() < Duration::from_secs(5));
    // A topic that is known can be started all the same; it will flow when brokers are back.
    let mut tap = read(&reader, 1, 0).await.unwrap();
    cluster.broker_up(1).unwrap();
    produce(&producer(&cluster), 1, 0..1);
    assert_eq!(tap.offsets(1).await, [0]);
}

#[tokio::test]
async fn an_unknown_topic_or_partition_is_refused_and_the_rest_is_read() {
    let cluster = cluster(1);
    produce(&producer(&cluster), 0, 0..1);
    let reader = reader(&cluster);
    let bell = Bell::default();
    let start = |topic: &str, partition| Start {
        partition: TopicPartition::new(Topic::new(topic).unwrap(), partition),
        offset: 0,
        bell: bell.clone(),
    };
    let opened = within(reader.read(vec![start("t", 0), start("t", 5), start("nope", 0)])).await;
    let opened: BTreeMap<_, _> = opened
        .into_iter()
        .map(|(place, queue)| (place.to_string(), queue))
        .collect();
    for refused in ["t-5", "nope-0"] {
        let error = opened[refused].as_ref().err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Kafka);
        assert!(error.to_string().contains(&refused[..1]), "{error}");
    }
    assert!(opened["t-0"].is_ok());
}

#[tokio::test]
async fn a_fatal_error_fails_every_queue_once_and_the_next_read_has_a_new_client() {
    // K6
    let cluster = cluster(2);
    let producer = producer(&cluster);
    produce(&producer, 0, 0..10);
    produce(&producer, 1, 0..10);
    let reader = reader(&cluster);
    let mut taps = vec![
        read(&reader, 0, 0).await.unwrap(),
        read(&reader, 1, 0).await.unwrap(),
    ];
    for tap in &mut taps {
        tap.offsets(10).await;
    }
    reader.shared.inbox.push(Letter::Fail("broken".into()));
    for tap in &mut taps {
        let failed = Trouble::Failed("broken".into());
        assert_eq!(tap.next().await.err(), Some(failed));
        assert!(tap.is_empty());
    }
    let mut tap = read(&reader, 0, 5).await.unwrap();
    assert_eq!(tap.offsets(5).await, [5, 6, 7, 8, 9]);
}

#[tokio::test]
async fn both_ends_of_a_log_are_known() {
    let cluster = cluster(3);
    produce(&producer(&cluster), 1, 0..42);
    let reader = reader(&cluster);
    assert_eq!(
        within(reader.edge(&at(1), Edge::Earliest)).await.unwrap(),
        0
    );
    assert_eq!(within(reader.edge(&at(1), Edge::Latest)).await.unwrap(), 42);
    let fetching = fetching(&cluster);
    let found = tokio::task::spawn_blocking(move || watermarks(&fetching, &[at(0), at(1), at(9)]));
    let found = within(found).await.unwrap().unwrap();
    assert_eq!(found, BTreeMap::from([(at(0), (0, 0)), (at(1), (0, 42))]));
}

#[tokio::test]
async fn new_brokers_are_used_once_the_old_ones_are_gone() {
    // T6
    let first = cluster(1);
    produce(&producer(&first), 0, 0..5);
    let second = cluster(1);
    produce(&producer(&second), 0, 0..10);
    let reader = reader(&first);
    let mut tap = read(&reader, 0, 0).await.unwrap();
    tap.offsets(5).await;
    first.broker_down(1).unwrap();
    assert!(matches!(
        within(reader.notice()).await,
        Notice::BrokersDown(_)
    ));
    reader.move_to(vec![second.bootstrap_servers()]);
    assert!(matches!(tap.next().await, Err(Trouble::Failed(_))));
    let mut tap = read(&reader, 0, 5).await.unwrap();
    assert_eq!(tap.offsets(5).await, [5, 6, 7, 8, 9]);
    assert_eq!(within(reader.notice()).await, Notice::BrokersBack);
}

#[tokio::test]
async fn a_panic_of_the_service_costs_the_client_and_no_more() {
    let cluster = cluster(1);
    produce(&producer(&cluster), 0, 0..10);
    let reader = reader(&cluster);
    let mut tap = read(&reader, 0, 0).await.unwrap();
    tap.offsets(10).await;
    reader.shared.inbox.push(Letter::Panic);
    assert!(matches!(tap.next().await, Err(Trouble::Failed(_))));
    let mut tap = read(&reader, 0, 8).await.unwrap();
    assert_eq!(tap.offsets(2).await, [8, 9]);
    within(reader.close()).await;
}

#[tokio::test]
async fn a_partition_without_a_leader_is_waited_for() {
    // T5
    let cluster = cluster(2);
    let producer = producer(&cluster);
    produce(&producer, 0, 0..3);
    produce(&producer, 1, 0..3);
    cluster.partition_leader("t", 0, None).unwrap();
    let reader = reader(&cluster);
    let mut headless = read(&reader, 0, 1).await.unwrap();
    let mut other = read(&reader, 1, 1).await.unwrap();
    assert_eq!(other.offsets(2).await, [1, 2]);
    let notice = within(reader.notice()).await;
    assert!(
        matches!(&notice, Notice::Warning(text) if text.contains("t-0 has no leader")),
        "{notice:?}"
    );
    assert!(headless.is_empty());
    cluster.partition_leader("t", 0, Some(1)).unwrap();
    assert_eq!(headless.offsets(2).await, [1, 2]);
}

#[tokio::test]
async fn a_dropped_reader_lets_go_of_its_client() {
    let cluster = cluster(1);
    produce(&producer(&cluster), 0, 0..3);
    let reader = reader(&cluster);
    let tap = read(&reader, 0, 0).await.unwrap();
    let shared = Arc::downgrade(&reader.shared);
    drop((reader, tap));
    // The service is the last that holds it; it ends.
    let ended = tokio::task::spawn_blocking(move || {
        while shared.strong_count() > 0 {
            thread::yield_now();
        }
    });
    within(ended).await.unwrap();
}

#[tokio::test]
async fn what_a_broker_refuses_is_trouble_of_the_partition() {
    let cluster = cluster(1);
    // From version 7 on the mock refuses the whole request.
    let version = cluster.apiversion(RDKafkaApiKey::Fetch, None, Some(6));
    version.unwrap();
    let producer = producer(&cluster);
    produce(&producer, 0, 0..3);
    let reader = reader(&cluster);
    let mut tap = read(&reader, 0, 0).await.unwrap();
    tap.offsets(3).await;
    let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    // The mock loses some of them.
    cluster.request_errors(RDKafkaApiKey::Fetch, &[refusal; 5]);
    let trouble = tap.next().await.err().unwrap();
    assert!(
        matches!(&trouble, Trouble::Failed(text) if text.contains("TopicAuthorizationFailed")),
        "{trouble:?}"
    );
    produce(&producer, 0, 3..5);
    assert!(tap.is_empty());
    // As a member does: once more, from the same position.
    loop {
        let mut tap = read(&reader, 0, 3).await.unwrap();
        match tap.next().await {
            Ok(message) => {
                assert_eq!(message.offset(), 3);
                break;
            }
            Err(again) => assert_eq!(again, trouble),
        }
    }
}

#[tokio::test]
async fn a_client_ends_on_the_closers_thread_whoever_drops_the_last_message() {
    // K3
    let cluster = cluster(1);
    produce(&producer(&cluster), 0, 0..1);
    let config = fetching(&cluster).config(Generation::default()).unwrap();
    let watch = Watch::default();
    let gone = watch.gone.clone();
    let handle = Handle::new(Consumer::from_config_and_context(&config, watch).unwrap());
    let slot = content::Slot::split(&handle, &at(0)).unwrap();
    let bell = Bell::default();
    slot.hang(bell.clone());
    let mut list = TopicPartitionList::new();
    list.add_partition_offset("t", 0, Offset::Offset(0))
        .unwrap();
    handle.consumer().incremental_assign(&list).unwrap();
    let gate = Gate::open(bell.clone());
    let queue = Box::new(content::Source { slot, gate });
    let mut tap = Tap { queue, bell };
    let message = tap.next().await.unwrap();
    drop((handle, tap));
    // Whatever the closer was given before this is done when a second client has ended.
    let second = Watch::default();
    let second_gone = second.gone.clone();
    let second = Consumer::from_config_and_context(&config, second).unwrap();
    drop(Handle::new(second));
    assert!(second_gone.wait(LONG));
    assert!(!gone.wait(Duration::ZERO));
    assert_eq!(message.payload(), Some(&b"0"[..]));
    drop(message);
    assert!(gone.wait(LONG));
    for ended in [gone, second_gone] {
        let place = ended.opened_on.get().unwrap().as_deref();
        assert_eq!(place, Some("evenkeel-closer"));
    }
}

#[tokio::test]
async fn a_group_that_brokers_deny_is_told_once_and_reading_goes_on() {
    // docs/brokers.md
    let cluster = cluster(1);
    let producer = producer(&cluster);
    produce(&producer, 0, 0..3);
    let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::FindCoordinator, &[refusal; 20]);
    let reader = reader(&cluster);
    let mut tap = read(&reader, 0, 0).await.unwrap();
    assert_eq!(tap.offsets(3).await, [0, 1, 2]);
    let notice = within(reader.notice()).await;
    assert!(
        matches!(&notice, Notice::Warning(text) if text.contains("deny us the group") && text.contains("no error")),
        "{notice:?}"
    );
    // Another client is denied again, which is no news.
    reader
        .shared
        .inbox
        .push(Letter::Fail("as a test wishes".into()));
    assert!(matches!(tap.next().await, Err(Trouble::Failed(_))));
    produce(&producer, 0, 3..5);
    let mut tap = read(&reader, 0, 3).await.unwrap();
    assert_eq!(tap.offsets(2).await, [3, 4]);
    let waker = Waker::noop();
    let mut notice = reader.notice();
    let more = notice.as_mut().poll(&mut Context::from_waker(waker));
    assert!(more.is_pending(), "{more:?}");
}
