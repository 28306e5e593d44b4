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
        let mut signals = Signals::new()?;
        for warning in config.warnings() {
            say(format_args!("warning: {warning}"));
        }
        say("connecting to ZooKeeper");
        let connector = tokio::select! {
            connected = ConsumerConnector::connect(config) => connected?,
            () = signals.next() => return Ok(()),
        };
        let events = tokio::spawn(tell(connector.events()));
        let outcome = self.take_part(connector, topics, &mut signals).await;
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
    ) -> Outcome {
        let streams = tokio::select! {
            streams = connector.streams(topics) => streams?,
            () = signals.next() => return self.leave(connector, signals).await,
        };
        let mut written = self.print(streams)?;
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
    fn print(&self, streams: Streams) -> Outcome<oneshot::Receiver<io::Result<()>>> {
        let (sender, messages) = mpsc::channel(UNDER_WAY);
        for stream in streams.into_values().flatten() {
            tokio::spawn(pass_on(stream, sender.clone()));
        }
        let (answer, written) = oneshot::channel();
        let form = if self.json { json_line } else { payload_line };
        std::thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || answer.send(write_all(messages, form, io::stdout())))
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

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Outcome<Self> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Failure::Failed(format!("cannot listen to signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
