//! `evenkeel consume`: a console consumer that is a full member of its group.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use evenkeel::{ConsumerConnector, Events, Message, MessageStream, Streams, Topic};

use crate::output::{Failure, Outcome, bad, say};
use crate::settings::Settings;

/// Messages on their way to standard output.
const UNDER_WAY: usize = 1024;
/// After so many, what was written is flushed and acknowledged, even if more has come.
const BATCH: usize = 512;
/// How long the last lines are waited for once the member has left.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Take part in a group and print what it is given
///
/// A full member: it registers, claims its share beside the others (JVM members too), commits to ZooKeeper, and leaves in
/// order. Payloads go to standard output, one line each (a tombstone is an empty line); what happens to the member goes to
/// standard error, one line each. A message counts as done once it was written.
///
/// SIGINT or SIGTERM: what was written is committed, the share is given up, and the program ends, within --shutdown-timeout.
/// A second signal ends it at once; its share then stays taken until the session times out.
#[derive(Args)]
#[command(after_help = r#"Examples:
  evenkeel consume --zookeeper zk1:2181/kafka --group etl --topic orders=2
  evenkeel consume --zookeeper zk1 --group look --topic orders --property auto.offset.reset=smallest --json | jq .value
  evenkeel consume --config consumer.properties --topic orders=1 --topic returns=1

A --json line: {"topic": "orders", "partition": 3, "offset": 17, "key": "k", "value": "v"}. Key and value are null if there is
none, a text if they are UTF-8, else {"hex": "00ff"}."#)]
pub struct Consume {
    #[command(flatten)]
    settings: Settings,
    /// A topic and with how many streams to read it, 1 if not said; may be repeated
    #[arg(long = "topic", value_name = "TOPIC[=STREAMS]", required = true, value_parser = topic)]
    topics: Vec<(Topic, u32)>,
    /// Print one JSON line a message: topic, partition, offset, key, value
    #[arg(long)]
    json: bool,
    /// How long leaving may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    shutdown_timeout: Duration,
}

fn topic(text: &str) -> Result<(Topic, u32), String> {
    let (name, streams) = text.split_once('=').unwrap_or((text, "1"));
    let topic = Topic::new(name).map_err(|error| error.to_string())?;
    match streams.parse() {
        Ok(streams) if streams > 0 => Ok((topic, streams)),
        _ => Err(format!(
            "\"{}\" is not a number of streams from 1 on",
            streams.escape_debug()
        )),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|time| *time <= Duration::from_secs(86_400))
        .ok_or_else(|| "it is not a number of seconds from 0 to 86400".to_owned())
}

impl Consume {
    pub async fn run(&self) -> Outcome {
        let config = self.settings.config(None)?;
        let topics = self.subscription()?;
        let mut signals = Signals::listen()?;
        say("connecting to ZooKeeper");
        let connector = tokio::select! {
            connected = ConsumerConnector::connect(config) => connected?,
            () = signals.next() => return Ok(()),
        };
        let events = tokio::spawn(tell(connector.events()));
        let outcome = self
            .take_part(connector, topics, &mut signals, io::stdout())
            .await;
        let _ = timeout(LAST_WORDS, events).await;
        outcome
    }

    fn subscription(&self) -> Outcome<BTreeMap<Topic, u32>> {
        let mut topics = BTreeMap::new();
        for (topic, streams) in &self.topics {
            if topics.insert(topic.clone(), *streams).is_some() {
                return bad(format!("--topic {topic} is given twice"));
            }
        }
        Ok(topics)
    }

    async fn take_part(
        &self,
        connector: ConsumerConnector,
        topics: BTreeMap<Topic, u32>,
        signals: &mut Signals,
        out: impl Write + Send + 'static,
    ) -> Outcome {
        let streams = tokio::select! {
            streams = connector.streams(topics) => streams?,
            () = signals.next() => return self.leave(connector, signals).await,
        };
        let mut written = self.print(streams, out)?;
        let early = tokio::select! {
            result = &mut written => Some(result),
            () = signals.next() => None,
        };
        let left = self.leave(connector, signals).await;
        let last = match early {
            Some(result) => Ok(result),
            None => timeout(LAST_WORDS, written).await,
        };
        match last {
            Ok(Ok(Err(error))) => Err(error.into()),
            // All was written, or the reader of our output does not read and the messages stay undone.
            Ok(_) | Err(_) => left,
        }
    }

    /// Reads all streams, and writes on a thread of its own, since a pipe may be full.
    fn print(
        &self,
        streams: Streams,
        out: impl Write + Send + 'static,
    ) -> Outcome<oneshot::Receiver<io::Result<()>>> {
        let (sender, messages) = mpsc::channel(UNDER_WAY);
        for stream in streams.into_values().flatten() {
            tokio::spawn(pass_on(stream, sender.clone()));
        }
        let (answer, written) = oneshot::channel();
        let form = if self.json { json_line } else { payload_line };
        std::thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || answer.send(write_all(messages, form, out)))
            .map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
        Ok(written)
    }

    async fn leave(&self, connector: ConsumerConnector, signals: &mut Signals) -> Outcome {
        let farewell = tokio::select! {
            farewell = connector.shutdown(self.shutdown_timeout) => farewell?,
            () = signals.next() => {
                return Err(Failure::Failed("ended at the second signal, without leaving in order".to_owned()));
            }
        };
        if farewell.forced.is_empty() {
            return Ok(());
        }
        let forced: Vec<String> = farewell.forced.iter().map(ToString::to_string).collect();
        Err(Failure::Failed(format!(
            "left before everything read was written; it will be delivered again: {}",
            forced.join(", ")
        )))
    }
}

async fn tell(mut events: Events) {
    while let Some(event) = events.next().await {
        say(event);
    }
}

async fn pass_on(mut stream: MessageStream, sender: mpsc::Sender<Message>) {
    while let Some(message) = stream.recv_owned().await {
        if sender.send(message).await.is_err() {
            return;
        }
    }
}

type Form = fn(&Message, &mut dyn Write) -> io::Result<()>;

/// Until the last stream ends. What was flushed is done; what could not be written is not.
fn write_all(mut messages: mpsc::Receiver<Message>, form: Form, out: impl Write) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    let mut written = Vec::new();
    while let Some(first) = messages.blocking_recv() {
        let mut next = Some(first);
        while let Some(message) = next {
            form(&message, &mut out)?;
            written.push(message);
            next = if written.len() < BATCH {
                messages.try_recv().ok()
            } else {
                None
            };
        }
        out.flush()?;
        written.drain(..).for_each(Message::ack);
    }
    Ok(())
}

fn payload_line(message: &Message, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(message.payload().unwrap_or_default())?;
    out.write_all(b"\n")
}

fn json_line(message: &Message, out: &mut dyn Write) -> io::Result<()> {
    let line = json!({
        "topic": message.topic().as_str(),
        "partition": message.partition(),
        "offset": message.offset(),
        "key": as_json(message.key()),
        "value": as_json(message.payload()),
    });
    writeln!(out, "{line}")
}

fn as_json(bytes: Option<&[u8]>) -> Value {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => Value::Null,
        Some((_, Ok(text))) => json!(text),
        Some((bytes, Err(_))) => json!({ "hex": hex::encode(bytes) }),
    }
}

/// What asks us to end, each time it does.
struct Signals(mpsc::Receiver<()>);

impl Signals {
    /// SIGINT and SIGTERM.
    fn listen() -> Outcome<Self> {
        let (sender, receiver) = mpsc::channel(8);
        for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
            let signal = signal(kind)
                .map_err(|error| Failure::Failed(format!("cannot listen to signals: {error}")))?;
            tokio::spawn(pass_on_signals(signal, sender.clone()));
        }
        Ok(Self(receiver))
    }

    async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            // Nobody will ask any more.
            std::future::pending().await
        }
    }
}

async fn pass_on_signals(mut signal: Signal, sender: mpsc::Sender<()>) {
    while signal.recv().await.is_some() {
        let _ = sender.try_send(());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex};

    use clap::Parser;
    use evenkeel::testing::{MemoryLog, MemoryRegistry, Record};
    use evenkeel::wire::encode_topic;
    use evenkeel::{Config, TopicPartition};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        consume: Consume,
    }

    /// A pipe that somebody reads, does not read, or has closed.
    #[derive(Clone)]
    struct Pipe {
        text: Arc<Mutex<String>>,
        written: Sender<()>,
        is_closed: bool,
        is_full: bool,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.is_closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let _ = self.written.send(());
            if self.is_full {
                loop {
                    std::thread::park();
                }
            }
            let text = std::str::from_utf8(bytes).unwrap();
            self.text.lock().unwrap().push_str(text);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn pipe() -> (Pipe, Receiver<()>) {
        let (written, is_written) = channel();
        let pipe = Pipe {
            text: Arc::default(),
            written,
            is_closed: false,
            is_full: false,
        };
        (pipe, is_written)
    }

    /// A member for a topic of one partition with three messages.
    async fn member(registry: &MemoryRegistry) -> ConsumerConnector {
        let log = MemoryLog::new();
        let topic = Topic::new("t").unwrap();
        log.create(&topic, 1);
        for n in 0..3 {
            let at = TopicPartition::new(topic.clone(), 0);
            let record = Record::new(format!("m{n}"));
            let record = match n {
                0 => record,
                _ => record.with_key(format!("k{n}")),
            };
            log.append(&at, record).unwrap();
        }
        registry.put("/brokers/topics/t", encode_topic(0..1));
        let mut config = Config::new("g", "memory:1").unwrap();
        config.auto_offset_reset = evenkeel::config::Reset::Smallest;
        ConsumerConnector::builder(config)
            .with_registry(Arc::new(registry.clone()))
            .with_reader_source(Arc::new(log))
            .connect()
            .await
            .unwrap()
    }

    /// Runs `consume` against that member. The signals come once something was written.
    async fn consume(
        options: &[&str],
        registry: &MemoryRegistry,
        pipe: Pipe,
        is_written: Receiver<()>,
        signals: usize,
    ) -> Outcome {
        let line = ["consume", "--topic", "t"].iter().chain(options);
        let consume = Line::parse_from(line).consume;
        let topics = consume.subscription().unwrap();
        let (ask, asked) = mpsc::channel(8);
        std::thread::spawn(move || {
            let _ = is_written.recv();
            for _ in 0..signals {
                let _ = ask.try_send(());
            }
        });
        let member = member(registry).await;
        consume
            .take_part(member, topics, &mut Signals(asked), pipe)
            .await
    }

    fn offset(registry: &MemoryRegistry) -> Option<String> {
        registry.text("/consumers/g/offsets/t/0")
    }

    #[tokio::test]
    async fn what_was_written_is_committed_at_the_first_signal() {
        let (registry, (pipe, is_written)) = (MemoryRegistry::new(), pipe());
        let text = pipe.text.clone();
        consume(&[], &registry, pipe, is_written, 1).await.unwrap();
        // The first write may hold fewer than all.
        let text = text.lock().unwrap().clone();
        let lines = text.lines().count();
        assert!(lines > 0 && "m0\nm1\nm2\n".starts_with(&text), "{text:?}");
        assert_eq!(offset(&registry), Some(lines.to_string()));
        assert!(registry.list("/consumers/g/ids").is_empty());
    }

    #[tokio::test]
    async fn a_json_line_has_the_place_the_key_and_the_value() {
        let (registry, (pipe, is_written)) = (MemoryRegistry::new(), pipe());
        let text = pipe.text.clone();
        consume(&["--json"], &registry, pipe, is_written, 1)
            .await
            .unwrap();
        let text = text.lock().unwrap().clone();
        let mut expected = vec![
            json!({"topic": "t", "partition": 0, "offset": 0, "key": null, "value": "m0"}),
            json!({"topic": "t", "partition": 0, "offset": 1, "key": "k1", "value": "m1"}),
            json!({"topic": "t", "partition": 0, "offset": 2, "key": "k2", "value": "m2"}),
        ];
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<Value> = lines.collect();
        // The first write may hold fewer than all.
        expected.truncate(lines.len().max(1));
        assert_eq!(lines, expected);
    }

    #[tokio::test]
    async fn a_closed_pipe_ends_it_and_what_was_not_written_is_not_done() {
        let (registry, (mut pipe, is_written)) = (MemoryRegistry::new(), pipe());
        pipe.is_closed = true;
        let outcome = consume(&[], &registry, pipe, is_written, 0).await;
        assert!(matches!(outcome, Err(Failure::ClosedPipe)), "{outcome:?}");
        assert_eq!(offset(&registry).as_deref(), Some("0"));
        assert!(registry.list("/consumers/g/ids").is_empty());
    }

    #[tokio::test]
    async fn a_pipe_that_nobody_reads_keeps_nobody_from_leaving_in_time() {
        let (registry, (mut pipe, is_written)) = (MemoryRegistry::new(), pipe());
        pipe.is_full = true;
        let options = ["--shutdown-timeout", "0.2"];
        let outcome = consume(&options, &registry, pipe, is_written, 1).await;
        let Err(Failure::Failed(why)) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(why.contains("t-0"), "{why}");
        assert_eq!(offset(&registry).as_deref(), Some("0"));
    }

    #[tokio::test]
    async fn the_second_signal_ends_it_at_once() {
        let (registry, (mut pipe, is_written)) = (MemoryRegistry::new(), pipe());
        pipe.is_full = true;
        let options = ["--shutdown-timeout", "3600"];
        let outcome = consume(&options, &registry, pipe, is_written, 2).await;
        let Err(Failure::Failed(why)) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(why.contains("second signal"), "{why}");
    }

    #[test]
    fn a_topic_has_one_stream_unless_more_are_named() {
        assert_eq!(topic("t").unwrap().1, 1);
        assert_eq!(topic("t=3").unwrap().1, 3);
        for refused in ["", "=1", "t=", "t=0", "t=-1", "t=x", "a/b=1"] {
            assert!(topic(refused).is_err(), "{refused:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_in_hexadecimal() {
        assert_eq!(as_json(None), Value::Null);
        assert_eq!(as_json(Some("ä\n".as_bytes())), json!("ä\n"));
        assert_eq!(as_json(Some(b"\xff\x00")), json!({"hex": "ff00"}));
    }

    #[test]
    fn a_time_is_a_number_of_seconds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for refused in ["", "x", "-1", "NaN", "1e9"] {
            assert!(seconds(refused).is_err(), "{refused:?}");
        }
    }
}
