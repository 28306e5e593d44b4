//! How many messages a second one stream gives to one reader.

use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel::config::Reset;
use evenkeel::{Config, ConsumerConnector, Topic};
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use crate::crew::{RELEASE, jvm_options, servers};
use crate::support::{
    Broker, JvmMember, JvmMemberOptions, Output, Process, Seen, ZooKeeper, scratch,
};
use crate::table::{Better, Row};
use crate::{Wish, say};

/// The clock runs between these shares of the messages: not while things warm up, not while some partitions have run dry.
const FROM: f64 = 0.25;
const TO: f64 = 0.95;
const LIMIT: Duration = Duration::from_secs(180);

/// The word that makes this program a reader's process.
pub const READER: &str = "--as-reader";

/// Messages that lie ready.
struct Load {
    topic: String,
    bytes: usize,
    partitions: i32,
    messages: u64,
}

/// Who reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reader {
    Ours,
    Jvm,
    StreamAlike,
    StreamAsItComes,
}

const READERS: [Reader; 4] = [
    Reader::Ours,
    Reader::Jvm,
    Reader::StreamAlike,
    Reader::StreamAsItComes,
];

/// When a reader had read how much, for the part that counts.
struct Mark {
    at: Instant,
    messages: u64,
    bytes: u64,
}

/// Messages and payload bytes in a second.
#[derive(Clone, Copy)]
struct Speed {
    messages: f64,
    bytes: f64,
}

/// Runs the rounds that are asked for.
pub fn run(wish: &Wish) -> Vec<Row> {
    let (zookeeper, broker) = servers(wish);
    let mut rows = Vec::new();
    for (bytes, messages) in [(100, 5_000_000_u64), (1024, 1_000_000)] {
        for partitions in [12, 240] {
            let load = Load {
                topic: format!("b{bytes}p{partitions}"),
                bytes,
                partitions,
                messages: messages * u64::from(wish.percent) / 100,
            };
            load.fill(&broker);
            let mut speeds: [Vec<f64>; 4] = Default::default();
            for round in 0..wish.rounds {
                for turn in 0..READERS.len() {
                    let place = (turn + round) % READERS.len();
                    let group = format!("{}r{round}p{place}", load.topic);
                    let speed = read(READERS[place], &zookeeper, &broker, &group, &load);
                    speeds[place].push(speed.messages);
                    say(&format!(
                        "{bytes} B, {partitions} partitions, {:?}: {:.0} messages, {:.0} MB a second",
                        READERS[place],
                        speed.messages,
                        speed.bytes / 1e6
                    ));
                }
            }
            rows.extend(load.rows(&speeds));
            broker.delete_topic(&load.topic);
        }
    }
    rows
}

impl Load {
    fn rows(&self, speeds: &[Vec<f64>; 4]) -> Vec<Row> {
        let [ours, others @ ..] = speeds;
        let jvm_aim = if self.bytes == 100 { ">= 1.5" } else { ">= 4" };
        let names = [
            ("JVM 1.1.1", jvm_aim),
            ("StreamConsumer alike", ">= 0.9"),
            ("StreamConsumer bare", ""),
        ];
        let one = |((rival, aim), theirs): ((&'static str, &'static str), &Vec<f64>)| Row {
            what: format!(
                "{:.1} M x {} B, {} partitions",
                self.messages as f64 / 1e6,
                self.bytes,
                self.partitions
            ),
            unit: "messages/s",
            ours: ours.clone(),
            rival,
            theirs: theirs.clone(),
            better: Better::More,
            aim,
        };
        names.into_iter().zip(others).map(one).collect()
    }

    fn of(&self, share: f64) -> u64 {
        (self.messages as f64 * share) as u64
    }

    /// In runs of some hundred for each partition, so that batches are of a natural size, and in full once.
    fn fill(&self, broker: &Broker) {
        const RUN: u64 = 250;
        say(&format!(
            "writing {} messages of {} B to {} partitions",
            self.messages, self.bytes, self.partitions
        ));
        broker.create_topic(&self.topic, self.partitions);
        let producer: BaseProducer = broker
            .client_config()
            .set("linger.ms", "20")
            .set("queue.buffering.max.messages", "500000")
            .set("queue.buffering.max.kbytes", "262144")
            .create()
            .expect("a producer");
        let payload = vec![b'x'; self.bytes];
        let mut partition = 0;
        for number in 0..self.messages {
            if number % RUN == 0 {
                partition = (partition + 1) % self.partitions;
            }
            let mut record = BaseRecord::<(), [u8]>::to(&self.topic)
                .partition(partition)
                .payload(&payload);
            while let Err((_, refused)) = producer.send(record) {
                producer.poll(Duration::from_millis(10));
                record = refused;
            }
        }
        producer.flush(LIMIT).expect("the broker takes all");
        let ends = (0..self.partitions).map(|p| broker.watermarks(&self.topic, p).1);
        assert_eq!(
            ends.sum::<i64>(),
            i64::try_from(self.messages).expect("a count")
        );
    }
}

/// Each reader has a process to itself, new for every reading; what it reads before the clock starts warms it.
fn read(reader: Reader, zookeeper: &ZooKeeper, broker: &Broker, group: &str, load: &Load) -> Speed {
    match reader {
        Reader::Jvm => jvm(zookeeper, group, load),
        Reader::Ours => in_a_process(reader, &zookeeper.connect_string(), group, load),
        Reader::StreamAlike | Reader::StreamAsItComes => {
            in_a_process(reader, &broker.bootstrap(), group, load)
        }
    }
}

/// This program itself, started anew as the reader of one load.
fn in_a_process(reader: Reader, servers: &str, group: &str, load: &Load) -> Speed {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args([READER, &format!("{reader:?}"), servers, group, &load.topic]);
    command.args([load.partitions.to_string(), load.messages.to_string()]);
    let log = scratch("reader").join("log");
    let mut process = Process::start(group, &mut command, &log, Output::Pipes);
    let mut answer = String::new();
    let mut output = process.take_stdout().expect("started with pipes");
    output.read_to_string(&mut answer).expect("text");
    let figures = answer.trim().split_once(' ').and_then(|(messages, bytes)| {
        let messages = messages.parse().ok()?;
        let bytes = bytes.parse().ok()?;
        Some(Speed { messages, bytes })
    });
    figures.unwrap_or_else(|| panic!("{group} answered {answer:?}; {}", process.tail()))
}

/// Such a process from inside: reads, and prints messages and bytes in a second.
pub fn serve(args: &[String]) {
    let [reader, servers, group, topic, partitions, messages] = args else {
        panic!("{READER} wants a reader, servers, a group, a topic, its partitions and messages");
    };
    let load = Load {
        topic: topic.clone(),
        bytes: 0,
        partitions: partitions.parse().expect("a number"),
        messages: messages.parse().expect("a number"),
    };
    let speed = match reader.as_str() {
        "Ours" => on_a_runtime(ours(servers, group, &load)),
        "StreamAlike" => {
            // What our configuration makes of the same names, the bound on what lies fetched being for all partitions together.
            let alike = [
                ("fetch.queue.backoff.ms", "10"),
                ("fetch.wait.max.ms", "100"),
                ("fetch.max.bytes", "52428800"),
                ("fetch.message.max.bytes", "1048576"),
                ("queued.max.messages.kbytes", "65536"),
            ];
            on_a_runtime(plain(servers, &load, &alike))
        }
        "StreamAsItComes" => on_a_runtime(plain(servers, &load, &[])),
        other => panic!("no reader: {other}"),
    };
    println!("{} {}", speed.messages, speed.bytes);
}

fn on_a_runtime(work: impl Future<Output = Speed> + Send) -> Speed {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(work)
}

/// Counts, and takes the time at both ends of the part that counts.
struct Count<'a> {
    load: &'a Load,
    messages: u64,
    bytes: u64,
    marks: Vec<Mark>,
}

impl<'a> Count<'a> {
    fn of(load: &'a Load) -> Self {
        Self {
            load,
            messages: 0,
            bytes: 0,
            marks: Vec::new(),
        }
    }

    /// `true` once it was the last that counts.
    fn take(&mut self, payload: Option<&[u8]>) -> bool {
        self.messages += 1;
        self.bytes += payload.map_or(0, <[u8]>::len) as u64;
        let next = if self.marks.is_empty() { FROM } else { TO };
        if self.messages == self.load.of(next) {
            self.marks.push(Mark {
                at: Instant::now(),
                messages: self.messages,
                bytes: self.bytes,
            });
        }
        self.marks.len() == 2
    }

    fn speed(&self) -> Speed {
        let (from, to) = (&self.marks[0], &self.marks[1]);
        let time = (to.at - from.at).as_secs_f64();
        Speed {
            messages: (to.messages - from.messages) as f64 / time,
            bytes: (to.bytes - from.bytes) as f64 / time,
        }
    }
}

/// Each message is done when the next is asked for; commits go out every second.
async fn ours(zookeeper: &str, group: &str, load: &Load) -> Speed {
    let mut config = Config::new(group, zookeeper).expect("a good configuration");
    config.auto_offset_reset = Reset::Smallest;
    config.auto_commit_interval = Duration::from_secs(1);
    let connector = ConsumerConnector::connect(config)
        .await
        .expect("the servers are there");
    let topic = Topic::new(&load.topic).expect("a topic's name");
    let streams = connector
        .streams([(topic, 1)])
        .await
        .expect("nothing is in the way of joining");
    let mut stream = streams
        .into_values()
        .flatten()
        .next()
        .expect("one stream was asked for");
    let mut count = Count::of(load);
    while let Some(message) = stream.recv().await {
        if count.take(message.payload()) {
            break;
        }
    }
    drop(stream);
    let left = connector.shutdown(Duration::from_secs(10)).await;
    left.expect("a clean end");
    count.speed()
}

async fn plain(bootstrap: &str, load: &Load, settings: &[(&str, &str)]) -> Speed {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("broker.address.family", "v4")
        .set("group.id", "plain")
        .set("enable.auto.commit", "false");
    for (key, value) in settings {
        config.set(*key, *value);
    }
    let consumer: StreamConsumer = config.create().expect("a consumer");
    let mut all = TopicPartitionList::new();
    for partition in 0..load.partitions {
        all.add_partition_offset(&load.topic, partition, Offset::Offset(0))
            .expect("an offset");
    }
    consumer.assign(&all).expect("an assignment");
    let mut count = Count::of(load);
    loop {
        let message = consumer.recv().await.expect("a message");
        if count.take(message.payload()) {
            return count.speed();
        }
    }
}

/// From the counts that the process tells ten times a second, between them in proportion.
fn jvm(zookeeper: &ZooKeeper, group: &str, load: &Load) -> Speed {
    let options = JvmMemberOptions {
        members: 1,
        quiet: true,
        heap_mb: 1024,
        ..jvm_options()
    };
    let member = JvmMember::start_unready(
        RELEASE,
        &zookeeper.connect_string(),
        group,
        &[(&load.topic, 1)],
        options.with("auto.commit.interval.ms", "1000"),
    );
    let (from, to) = (load.of(FROM) as f64, load.of(TO) as f64);
    let counts = |seen: &Seen| -> Vec<(f64, f64, f64)> {
        let counts = seen.events.iter().filter(|event| event["event"] == "count");
        let of = |event: &serde_json::Value, key: &str| event[key].as_f64().expect("a number");
        counts
            .map(|event| {
                (
                    of(event, "messages"),
                    of(event, "nanos"),
                    of(event, "bytes"),
                )
            })
            .collect()
    };
    let counts = member.wait_for("all is read", LIMIT, |seen| {
        let counts = counts(seen);
        counts
            .last()
            .is_some_and(|last| last.0 >= to)
            .then_some(counts)
    });
    let at = |messages: f64| {
        let next = counts.iter().position(|count| count.0 >= messages);
        let next = next.expect("it came so far").max(1);
        let (one, other) = (counts[next - 1], counts[next]);
        let share = (messages - one.0) / (other.0 - one.0);
        (
            one.1 + share * (other.1 - one.1),
            one.2 + share * (other.2 - one.2),
        )
    };
    let (start, end) = (at(from), at(to));
    let time = (end.0 - start.0) / 1e9;
    drop(member.kill());
    Speed {
        messages: (to - from) / time,
        bytes: (end.1 - start.1) / time,
    }
}
