//! Partitions that give nothing: who is begun anew, who is left alone, and what it costs the brokers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::registry::Later;
use evenkeel::stream::{Edge, Notice, Opened, Reader, ReaderSource, Start};
use evenkeel::testing::MemoryLog;
use evenkeel::wire::Broker;
use evenkeel::{Config, Error, Event, Message, MessageStream, TopicPartition};
use futures_util::FutureExt;
use tokio::time::{Instant, sleep};

use crate::kit::{Kit, Member, at, next_owned, topic, until};

/// So long a partition may give nothing with messages ahead.
const PATIENCE: Duration = Duration::from_secs(30);

/// By then a partition that fell silent is read again: two looks until it is suspected, and the patience.
const AT_LAST: Duration = Duration::from_secs(61);

const LONG: Duration = Duration::from_secs(600);

/// When the end of which log was asked for.
type Questions = Arc<Mutex<Vec<(TopicPartition, Instant)>>>;

/// Brokers that write down what they are asked, and take their time to begin.
#[derive(Default)]
struct Asked {
    log: MemoryLog,
    questions: Questions,
    pause: Duration,
}

struct AskedReader {
    reader: Arc<dyn Reader>,
    questions: Questions,
    pause: Duration,
}

impl ReaderSource for Asked {
    fn needs_brokers(&self) -> bool {
        false
    }

    fn open(&self, _: &[Broker], _: usize) -> Result<Arc<dyn Reader>, Error> {
        Ok(Arc::new(AskedReader {
            reader: self.log.reader(),
            questions: self.questions.clone(),
            pause: self.pause,
        }))
    }
}

impl Reader for AskedReader {
    fn read(&self, starts: Vec<Start>) -> Later<Opened> {
        let (reader, pause) = (self.reader.clone(), self.pause);
        Box::pin(async move {
            sleep(pause).await;
            reader.read(starts).await
        })
    }

    fn stop(&self, partitions: &[TopicPartition]) {
        self.reader.stop(partitions);
    }

    fn edge(&self, partition: &TopicPartition, edge: Edge) -> Later<Result<i64, Error>> {
        if edge == Edge::Latest {
            let question = (partition.clone(), Instant::now());
            self.questions.lock().unwrap().push(question);
        }
        self.reader.edge(partition, edge)
    }

    fn notice(&self) -> Later<Notice> {
        self.reader.notice()
    }

    fn close(&self) -> Later<()> {
        self.reader.close()
    }
}

/// One member with one stream, nothing of which is read yet, and what it asks.
fn alone(kit: &Kit, config: Config) -> (Member, MessageStream, Questions) {
    let questions = Questions::default();
    let source = Asked {
        log: kit.log.clone(),
        questions: questions.clone(),
        ..Asked::default()
    };
    let builder = kit
        .builder("h1", config)
        .with_reader_source(Arc::new(source));
    let (member, mut streams) = kit.join_unread(builder, &[("t", 1)]);
    let stream = streams.remove(&topic("t")).unwrap().remove(0);
    (member, stream, questions)
}

/// Where reading of a partition began, every time.
fn starts(kit: &Kit, partition: i32) -> Vec<i64> {
    let of_it = |(p, offset)| (p == at("t", partition)).then_some(offset);
    kit.log.starts().into_iter().filter_map(of_it).collect()
}

fn is_silent(event: &Event) -> bool {
    matches!(event, Event::Silent { .. })
}

/// What lies ahead of the partitions that were begun anew since this was last asked.
fn begun_anew(member: &mut Member) -> Vec<(TopicPartition, i64)> {
    let ahead = |event| match event {
        Event::Silent {
            partition, ahead, ..
        } => Some((partition, ahead)),
        _ => None,
    };
    member.told().into_iter().filter_map(ahead).collect()
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_falls_silent_is_begun_anew_and_nothing_is_lost_or_doubled() {
    // K2
    let mut kit = Kit::new();
    kit.create("t", 2);
    kit.send("t", 2);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.drain().await;
    for round in 1..4 {
        kit.log.mute(&at("t", 0));
        for _ in 0..3 {
            kit.send("t", 2);
        }
        let began = Instant::now();
        let told = member.tells("the silence", is_silent).await;
        let Event::Silent {
            partition,
            ahead,
            waited,
        } = told
        else {
            unreachable!()
        };
        assert_eq!((partition, ahead), (at("t", 0), 3));
        assert!(waited >= PATIENCE, "{waited:?}");
        kit.drain().await;
        let took = began.elapsed();
        assert!((PATIENCE..AT_LAST).contains(&took), "{took:?}");
        assert_eq!(member.connector().health().silences, round);
        sleep(LONG).await;
    }
    assert_eq!(kit.duplicates(), 0);
    assert_eq!(starts(&kit, 0), [0, 1, 4, 7]);
    assert_eq!(starts(&kit, 1), [0], "the other was let alone");
    member.leave().await;
    assert_eq!(kit.offset("t", 0).as_deref(), Some("10"));
}

#[tokio::test(start_paused = true)]
async fn what_is_in_hand_while_its_partition_is_begun_anew_still_counts() {
    // K2, O7
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    kit.send("t", 1);
    let (mut member, mut stream, _) = alone(&kit, kit.config());
    let held: Vec<Message> = stream.recv_many(9).await;
    assert_eq!(held.len(), 2);
    kit.log.mute(&at("t", 0));
    kit.send("t", 1);
    assert!(stream.recv_owned().now_or_never().is_none(), "it is muted");
    member.tells("the silence", is_silent).await;
    let next = next_owned(&mut stream).await;
    assert_eq!(next.offset(), 2);
    for message in held {
        assert!(message.is_valid());
        message.ack();
    }
    next.ack();
    member.connector().commit().await.unwrap();
    assert_eq!(kit.offset("t", 0).as_deref(), Some("3"));
    assert_eq!(member.connector().health().late_acks, 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_comes_while_its_partition_is_begun_anew_comes_once() {
    // K2
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    let source = Asked {
        log: kit.log.clone(),
        pause: Duration::from_secs(2),
        ..Asked::default()
    };
    let builder = kit.builder("h1", kit.config());
    let builder = builder.with_reader_source(Arc::new(source));
    let mut member = kit.join_with(builder, &[("t", 1)]);
    kit.drain().await;
    kit.log.skip(&at("t", 0), 1).unwrap();
    member.tells("the silence", is_silent).await;
    kit.send("t", 1);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(starts(&kit, 0), [0], "it is not begun yet");
    kit.drain().await;
    kit.send("t", 1);
    kit.drain().await;
    assert_eq!(starts(&kit, 0), [0, 1]);
    assert_eq!(kit.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_idle_group_is_left_alone_and_asks_brokers_little() {
    // K2
    const PARTITIONS: i32 = 100;
    let mut kit = Kit::new();
    kit.create("t", PARTITIONS);
    kit.send("t", PARTITIONS);
    let (mut member, mut stream, questions) = alone(&kit, kit.config());
    for _ in 0..PARTITIONS {
        next_owned(&mut stream).await.ack();
    }
    let reading = tokio::spawn(async move { stream.recv_owned().await.is_some() });
    sleep(LONG).await;
    assert!(!reading.is_finished());
    assert_eq!(kit.log.starts().len(), PARTITIONS as usize);
    assert_eq!(begun_anew(&mut member), []);
    let questions = questions.lock().unwrap();
    for (_, since) in questions.iter() {
        let within =
            |(_, then): &&(TopicPartition, Instant)| (*since..*since + PATIENCE).contains(then);
        let count = questions.iter().filter(within).count();
        assert!(count <= 16, "{count} questions within {PATIENCE:?}");
    }
    let asked: BTreeSet<&TopicPartition> = questions.iter().map(|(p, _)| p).collect();
    assert_eq!(asked.len(), PARTITIONS as usize, "each has its turn");
}

#[tokio::test(start_paused = true)]
async fn a_few_idle_partitions_are_asked_about_no_oftener_than_the_patience() {
    // K2
    let kit = Kit::new();
    kit.create("t", 2);
    let (member, mut stream, questions) = alone(&kit, kit.config());
    member.settled().await;
    assert!(stream.recv_owned().now_or_never().is_none());
    sleep(LONG).await;
    let questions = questions.lock().unwrap().len() as u128;
    let most = 2 * LONG.as_millis() / PATIENCE.as_millis();
    assert!((most / 2..=most).contains(&questions), "{questions}");
}

#[tokio::test(start_paused = true)]
async fn an_application_that_does_not_ask_is_no_silence() {
    // K2
    let mut kit = Kit::new();
    kit.create("t", 2);
    kit.send("t", 2);
    let (mut member, mut stream, questions) = alone(&kit, kit.config());
    // It asks not at all, then has found nothing and asks no more, then stops amid what there is.
    sleep(LONG).await;
    for _ in 0..2 {
        next_owned(&mut stream).await.ack();
    }
    assert!(stream.recv_owned().now_or_never().is_none());
    kit.send("t", 2);
    sleep(LONG).await;
    next_owned(&mut stream).await.ack();
    kit.send("t", 2);
    sleep(LONG).await;
    assert_eq!(kit.log.starts().len(), 2);
    assert_eq!(begun_anew(&mut member), []);
    assert_eq!(questions.lock().unwrap().len(), 0);
    for _ in 0..3 {
        next_owned(&mut stream).await.ack();
    }
    assert!(stream.recv_owned().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stream_at_its_bound_is_no_silence() {
    // K2, R4
    let mut kit = Kit::new();
    kit.create("t", 2);
    let mut config = kit.config();
    config.max_unacked_messages = 2;
    let (mut member, mut stream, questions) = alone(&kit, config);
    member.settled().await;
    assert!(stream.recv_owned().now_or_never().is_none());
    kit.log.mute(&at("t", 0));
    kit.send("t", 2);
    kit.send_to("t", 1);
    let held = [next_owned(&mut stream).await, next_owned(&mut stream).await];
    assert!(stream.recv_owned().now_or_never().is_none(), "the bound");
    sleep(LONG).await;
    assert_eq!(kit.log.starts().len(), 2);
    assert_eq!(begun_anew(&mut member), []);
    assert_eq!(questions.lock().unwrap().len(), 0);
    held.into_iter().for_each(Message::ack);
    let began = Instant::now();
    member.tells("the silence", is_silent).await;
    let late = next_owned(&mut stream).await;
    assert_eq!((late.partition(), late.offset()), (0, 0));
    assert!(began.elapsed() < AT_LAST, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_gap_at_the_end_of_a_log_is_tried_once_and_not_again_until_the_end_moves() {
    // K2
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.send("t", 1);
    let mut member = kit.join("h1", &[("t", 1)]);
    kit.drain().await;
    kit.log.skip(&at("t", 0), 3).unwrap();
    sleep(LONG * 3).await;
    assert_eq!(begun_anew(&mut member), [(at("t", 0), 3)]);
    kit.log.skip(&at("t", 0), 1).unwrap();
    sleep(LONG * 3).await;
    assert_eq!(begun_anew(&mut member), [(at("t", 0), 4)]);
    assert_eq!(starts(&kit, 0), [0, 1, 1]);
    kit.send("t", 1);
    kit.drain().await;
    sleep(LONG).await;
    assert_eq!(begun_anew(&mut member), []);
    // It is watched as before, if with more patience.
    kit.log.mute(&at("t", 0));
    kit.send("t", 1);
    sleep(LONG).await;
    assert_eq!(begun_anew(&mut member), [(at("t", 0), 1)]);
    kit.drain().await;
    assert_eq!(starts(&kit, 0), [0, 1, 1, 6]);
    assert_eq!(kit.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn gaps_that_come_again_and_again_make_it_patient_and_a_find_makes_it_alert() {
    // K2
    let mut kit = Kit::new();
    kit.create("t", 1);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    let mut counts = Vec::new();
    for _ in 0..3 {
        for _ in 0..10 {
            // As a producer's transactions leave them.
            kit.send("t", 1);
            kit.log.skip(&at("t", 0), 1).unwrap();
            sleep(PATIENCE * 4).await;
        }
        counts.push(begun_anew(&mut member).len());
    }
    assert!(counts[0] >= 1 && counts[0] <= 3, "{counts:?}");
    assert_eq!(counts[1..], [0, 0]);
    kit.send("t", 1);
    kit.drain().await;
    for is_first in [true, false] {
        kit.log.mute(&at("t", 0));
        kit.send("t", 1);
        let began = Instant::now();
        while !kit.is_all_finished() {
            sleep(Duration::from_millis(100)).await;
            assert!(began.elapsed() < PATIENCE * 16);
        }
        let took = began.elapsed();
        assert_eq!(took < AT_LAST, !is_first, "{took:?}");
    }
    assert_eq!(kit.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn while_brokers_are_away_silence_says_nothing() {
    // K2, K6
    let mut kit = Kit::new();
    kit.create("t", 2);
    let (mut member, mut stream, questions) = alone(&kit, kit.config());
    member.settled().await;
    assert!(stream.recv_owned().now_or_never().is_none());
    kit.log.go_down("all brokers are down");
    kit.send("t", 2);
    assert!(stream.recv_owned().now_or_never().is_none());
    sleep(LONG).await;
    assert_eq!(questions.lock().unwrap().len(), 0);
    kit.log.come_up();
    kit.log.set_leader(&at("t", 0), false).unwrap();
    next_owned(&mut stream).await.ack();
    assert!(stream.recv_owned().now_or_never().is_none());
    sleep(LONG).await;
    assert_eq!(
        begun_anew(&mut member),
        [],
        "nobody knows where the log ends"
    );
    assert_eq!(kit.log.starts().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_a_message_or_not_at_all_changes_nothing() {
    // K2
    let mut kit = Kit::new();
    kit.create("t", 1);
    kit.log = kit.log.with_delay(Duration::from_secs(8));
    let (mut member, mut stream, questions) = alone(&kit, kit.config());
    member.settled().await;
    assert!(stream.recv_owned().now_or_never().is_none());
    let reading = tokio::spawn(async move {
        while let Some(message) = stream.recv_owned().await {
            message.ack();
        }
    });
    for _ in 0..20 {
        kit.log.skip(&at("t", 0), 1).unwrap();
        let before = questions.lock().unwrap().len();
        until("it was asked twice", || {
            questions.lock().unwrap().len() >= before + 2
        })
        .await;
        // It is read at once, before the answer that would have decided.
        kit.send("t", 1);
    }
    kit.log.skip(&at("t", 0), 1).unwrap();
    kit.log = kit.log.with_delay(Duration::from_secs(12));
    sleep(LONG).await;
    assert_eq!(begun_anew(&mut member), []);
    assert_eq!(starts(&kit, 0), [0]);
    let began = Instant::now();
    member.leave().await;
    assert!(began.elapsed() < Duration::from_secs(1));
    reading.await.unwrap();
}
