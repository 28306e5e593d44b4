//! A member of ours in a process of its own, so that it can be killed: the test binary runs itself once more, as a single test of it.

use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::process::ChildStdin;
use std::process::Command;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;

use std::time::Duration;

use evenkeel::Builder;
use evenkeel::Config;
use evenkeel::ConsumerConnector;
use evenkeel::Event;
use evenkeel::MessageStream;
use evenkeel::Topic;
use serde::Deserialize;
use serde::Serialize;
use serde_json::Value;
use serde_json::json;

use super::netns::Namespace;
use super::ours::Finished;
use super::process;
use super::process::Output;
use super::process::Process;
use super::time::now;
use super::wait::LONG;

/// The variable that tells a test binary to be a member.
const ORDERS: &str = "EVENKEEL_CHILD";

/// Messages that a child has of its own, instead of a broker's: the same in every child, so that offsets mean the same.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct OwnLog {
    /// So many partitions has each topic.
    pub partitions: u32,
    /// So many messages has each partition.
    pub messages: u32,
    /// A stream pauses so long after each message.
    pub pause_ms: u64,
}

/// That a child with an [`OwnLog`] was given a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// When it had it, by the clock of [`now`].
    pub at: u64,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// The token of the ownership.
    pub token: i64,
}

/// What a child with an [`OwnLog`] was told of by its member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// When, by the clock of [`now`].
    pub at: u64,
    /// The event's name.
    pub event: String,
    /// The event in words.
    pub words: String,
}

#[derive(Default)]
struct Heard {
    name: Option<String>,
    finished: Vec<Finished>,
    deliveries: Vec<Delivery>,
    events: Vec<Told>,
    answers: Vec<Value>,
    ended: bool,
}

/// A process with one member of ours. Dropping it kills it.
pub struct Child {
    process: Process,
    // The end of its standard input is the child's end.
    commands: ChildStdin,
    heard: Arc<(Mutex<Heard>, Condvar)>,
}

impl Child {
    /// Starts it and waits until it has joined. `test` is the test of this binary that calls [`obey`], by its full name; `properties` are the
    /// text of a properties file.
    pub fn join(test: &str, properties: &str, topics: &[(&str, u32)]) -> Self {
        let orders = json!({"properties": properties, "topics": topics});
        Self::start(test, &orders, None)
    }

    /// The same in a namespace, with messages of its own.
    #[cfg(feature = "testing")]
    pub fn join_in(
        namespace: &Namespace,
        test: &str,
        properties: &str,
        topics: &[(&str, u32)],
        log: OwnLog,
    ) -> Self {
        let orders = json!({"properties": properties, "topics": topics, "log": log});
        Self::start(test, &orders, Some(namespace))
    }

    /// The same with other orders.
    pub(super) fn start(test: &str, orders: &Value, namespace: Option<&Namespace>) -> Self {
        let binary = std::env::current_exe().expect("a test knows its binary");
        let folder = process::scratch("child");
        let mut command = Command::new(binary);
        command
            .args([test, "--exact", "--nocapture"])
            .env(ORDERS, orders.to_string())
            .current_dir(&folder);
        let log = folder.join("log");
        let mut start = || Process::start("a member of ours", &mut command, &log, Output::Pipes);
        let mut process = match namespace {
            Some(namespace) => namespace.enter(start),
            None => start(),
        };
        let commands = process.take_stdin().expect("started with pipes");
        let lines = BufReader::new(process.take_stdout().expect("started with pipes"));
        let child = Self {
            process,
            commands,
            heard: Arc::default(),
        };
        let heard = child.heard.clone();
        std::thread::spawn(move || listen(lines, &heard));
        child.wait_for_its_name();
        child
    }

    fn wait_for_its_name(&self) {
        let (heard, news) = &*self.heard;
        let waited = news.wait_timeout_while(heard.lock().unwrap(), LONG, |heard| {
            heard.name.is_none() && !heard.ended
        });
        let joined = waited.unwrap().0.name.is_some();
        assert!(joined, "the child did not join; {}", self.process.tail());
    }

    /// The name under `ids`.
    pub fn name(&self) -> String {
        let heard = self.heard.0.lock().unwrap();
        heard.name.clone().expect("it has joined")
    }

    /// What it has told of so far.
    pub fn finished(&self) -> Vec<Finished> {
        self.heard.0.lock().unwrap().finished.clone()
    }

    /// What it has told of after so many.
    pub fn finished_after(&self, many: usize) -> Vec<Finished> {
        self.heard.0.lock().unwrap().finished[many..].to_vec()
    }

    /// What was delivered to it so far, in order.
    pub fn deliveries(&self) -> Vec<Delivery> {
        self.heard.0.lock().unwrap().deliveries.clone()
    }

    /// What was delivered to it at last.
    pub fn last_delivery(&self) -> Option<Delivery> {
        self.heard.0.lock().unwrap().deliveries.last().copied()
    }

    /// What its member told so far.
    pub fn events(&self) -> Vec<Told> {
        self.heard.0.lock().unwrap().events.clone()
    }

    /// SIGSTOP: its session lives until the server ends it.
    pub fn pause(&mut self) {
        self.process.pause();
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        self.process.resume();
    }

    /// Sets the niceness of its thread of this name, if we are root: nobody else could take it back.
    pub(super) fn renice(&self, thread: &str, niceness: i32) {
        use std::os::unix::fs::MetadataExt;
        if std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() != 0) {
            return;
        }
        let tasks = format!("/proc/{}/task", self.process.id());
        let tasks = std::fs::read_dir(tasks).into_iter().flatten().flatten();
        let is_it = |task: &std::fs::DirEntry| {
            let name = std::fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.trim_end() == thread)
        };
        for task in tasks.filter(is_it) {
            let mut renice = Command::new("renice");
            renice
                .args(["-n", &niceness.to_string(), "-p"])
                .arg(task.file_name());
            let said = renice.output().expect("renice");
            assert!(said.status.success(), "{said:?}");
        }
    }

    /// SIGTERM, and waits for the end, which must be a good one.
    pub(super) fn terminate(&mut self) {
        self.process.terminate(LONG);
        let status = self.process.wait(LONG);
        assert!(status.success(), "it ended with {status}; {}", self.tail());
    }

    /// Writes a line to it, also while it is stopped.
    pub(super) fn command(&mut self, line: &str) {
        writeln!(self.commands, "{line}").expect("the child listens");
    }

    /// What it answered to commands so far.
    pub(super) fn answers(&self) -> Vec<Value> {
        self.heard.0.lock().unwrap().answers.clone()
    }

    /// The process id.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// All that it wrote to standard error.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The end of what it logged, for messages.
    pub fn tail(&self) -> String {
        self.process.tail()
    }

    /// SIGKILL. What it had told up to then.
    pub fn kill(mut self) -> Vec<Finished> {
        self.process.kill();
        let (heard, news) = &*self.heard;
        let heard = news.wait_while(heard.lock().unwrap(), |heard| !heard.ended);
        std::mem::take(&mut heard.unwrap().finished)
    }
}

fn listen(lines: impl BufRead, heard: &(Mutex<Heard>, Condvar)) {
    for line in lines.lines() {
        // The test harness writes lines of its own, and a killed process may leave half a line.
        let Some(line) = line
            .ok()
            .and_then(|line| serde_json::from_str::<Value>(&line).ok())
        else {
            continue;
        };
        let mut heard_now = heard.0.lock().unwrap();
        if let Some(name) = line["joined"].as_str() {
            heard_now.name = Some(name.to_owned());
        } else if line["answer"].is_string() {
            heard_now.answers.push(line);
        } else if let Ok(delivery) = Delivery::deserialize(&line) {
            heard_now.deliveries.push(delivery);
        } else if let Ok(told) = Told::deserialize(&line) {
            heard_now.events.push(told);
        } else {
            heard_now.finished.push(finished(&line));
        }
        heard.1.notify_all();
    }
    heard.0.lock().unwrap().ended = true;
    heard.1.notify_all();
}

fn finished(line: &Value) -> Finished {
    let text = |key: &str| line[key].as_str().map(str::to_owned);
    Finished {
        topic: text("topic").expect("a topic"),
        partition: line["partition"]
            .as_i64()
            .and_then(|number| i32::try_from(number).ok())
            .expect("a partition"),
        offset: line["offset"].as_i64().expect("an offset"),
        value: text("value").expect("a text"),
    }
}

/// Is the member that [`Child::join`] wants, until the process is killed or its parent is gone. Without such orders it does nothing.
pub fn obey() {
    let Ok(orders) = std::env::var(ORDERS) else {
        return;
    };
    let orders: Value = serde_json::from_str(&orders).expect("orders in JSON");
    let properties = orders["properties"].as_str().expect("properties");
    let config = Config::from_properties(properties).expect("good properties");
    let topics: Vec<(String, u32)> =
        serde_json::from_value(orders["topics"].clone()).expect("topics with stream counts");
    let topics: Vec<(Topic, u32)> = topics
        .into_iter()
        .map(|(name, streams)| (Topic::new(&name).expect("a good name"), streams))
        .collect();
    #[cfg(feature = "testing")]
    if let Some(work) = Option::deserialize(&orders["work"]).expect("work") {
        return super::worker::work(config, topics, &work);
    }
    let log: Option<OwnLog> = Option::deserialize(&orders["log"]).expect("a log");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let connector = runtime.block_on(async {
        let connector = connect(config, &topics, log).await;
        if log.is_some() {
            tokio::spawn(tell_of(connector.events()));
        }
        let streams = connector.streams(topics).await.expect("it joins");
        // The harness has begun a line.
        tell(&json!({"joined": connector.consumer_id().as_str()}), "\n");
        for stream in streams.into_values().flatten() {
            match log {
                Some(log) => tokio::spawn(read_slowly(stream, log)),
                None => tokio::spawn(read(stream)),
            };
        }
        connector
    });
    for line in std::io::stdin().lines() {
        drop(line);
    }
    drop(connector);
    std::process::exit(0);
}

async fn connect(
    config: Config,
    topics: &[(Topic, u32)],
    log: Option<OwnLog>,
) -> ConsumerConnector {
    let mut builder = ConsumerConnector::builder(config);
    if let Some(log) = log {
        builder = with_messages(builder, topics, log);
    }
    builder.connect().await.expect("the servers are there")
}

#[cfg(not(feature = "testing"))]
fn with_messages(_: Builder, _: &[(Topic, u32)], _: OwnLog) -> Builder {
    unreachable!("nobody orders it");
}

#[cfg(feature = "testing")]
fn with_messages(builder: Builder, topics: &[(Topic, u32)], wanted: OwnLog) -> Builder {
    let log = evenkeel::testing::MemoryLog::new();
    for (topic, _) in topics {
        log.create(topic, wanted.partitions as usize);
        for partition in 0..wanted.partitions {
            let number = i32::try_from(partition).expect("few partitions");
            let partition = evenkeel::TopicPartition::new(topic.clone(), number);
            for _ in 0..wanted.messages {
                let record = evenkeel::testing::Record::default();
                log.append(&partition, record).expect("it was made");
            }
        }
    }
    builder.with_reader_source(Arc::new(log))
}

async fn read(mut stream: MessageStream) {
    while let Some(message) = stream.recv().await {
        let value = String::from_utf8_lossy(message.payload().unwrap_or_default());
        tell(
            &json!({"topic": message.topic().as_str(), "partition": message.partition(), "offset": message.offset(), "value": value}),
            "",
        );
    }
}

async fn read_slowly(mut stream: MessageStream, log: OwnLog) {
    while let Some(message) = stream.recv().await {
        let delivery = Delivery {
            at: now(),
            partition: message.partition(),
            offset: message.offset(),
            token: message.token(),
        };
        tell(&delivery, "");
        tokio::time::sleep(Duration::from_millis(log.pause_ms)).await;
    }
}

async fn tell_of(mut events: evenkeel::Events) {
    while let Some(event) = events.next().await {
        tell(&told(&event), "");
    }
}

pub(super) fn told(event: &Event) -> Told {
    let name = format!("{event:?}");
    let end = name.find(|letter: char| !letter.is_alphanumeric());
    Told {
        at: now(),
        event: name[..end.unwrap_or(name.len())].to_owned(),
        words: event.to_string(),
    }
}

pub(super) fn tell(what: &impl Serialize, before: &str) {
    let what = serde_json::to_string(what).expect("plain values");
    let line = format!("{before}{what}\n");
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .expect("the parent listens");
}
