//! Old consumers of any release, in a Java process of their own (`tests/java/Member.java`).

use std::collections::BTreeMap;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::process::ChildStdin;
use std::process::ChildStdout;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use serde_json::Value;

use super::cache::Jars;
use super::process;
use super::process::Output;
use super::process::Process;
use super::wait::LONG;

/// What a process of old consumers is started with.
#[derive(Clone, Debug)]
pub struct JvmMemberOptions {
    /// `consumer.id`: the member is then `<group>_<id>` under `ids`. Only one connector can have it.
    pub id: Option<String>,
    /// How many connectors start at once. With 0 the process waits for [`JvmMember::join`].
    pub members: u32,
    /// Topics by white list with this many streams instead of topics by name.
    pub white_list: Option<(String, u32)>,
    /// The same by black list: all topics but those.
    pub black_list: Option<(String, u32)>,
    /// Properties of the consumer; they win over the defaults of the tests, which are the smallest offset at the start, a session of 6 s and a
    /// commit every 60 s, so that a test that wants commits asks for them.
    pub properties: BTreeMap<String, String>,
    /// Messages are only counted, as events `count` with `nanos`, `messages`, `bytes` ten times a second.
    pub quiet: bool,
    /// Java heap in MiB.
    pub heap_mb: u32,
    /// Further flags for Java. Those that compile better win over the lean ones: `-XX:TieredStopAtLevel=4`.
    pub flags: Vec<String>,
}

impl Default for JvmMemberOptions {
    fn default() -> Self {
        let (properties, flags) = (BTreeMap::new(), Vec::new());
        Self {
            id: None,
            members: 1,
            white_list: None,
            black_list: None,
            properties,
            quiet: false,
            heap_mb: 128,
            flags,
        }
    }
}

impl JvmMemberOptions {
    /// With a property of the consumer.
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.properties.insert(key.to_string(), value.to_string());
        self
    }

    /// With a `consumer.id`.
    pub fn with_id(mut self, id: &str) -> Self {
        self.id = Some(id.to_string());
        self
    }
}

/// A message that an old consumer's iterator gave out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JvmMessage {
    /// Which connector of the process, counted from 0.
    pub member: i64,
    /// Its place in the list of streams that the connector returned for the topic; not the number in the stream's id.
    pub stream: i64,
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// The payload as text, `None` for a tombstone.
    pub value: Option<String>,
}

/// What a process of old consumers has told so far.
#[derive(Default)]
pub struct Seen {
    /// Messages in the order they came.
    pub messages: Vec<JvmMessage>,
    /// Everything else: objects with `event` (`starting`, `started`, `releasing`, `fetching`, `committed`, `shutdown`, `paused`, `resumed`,
    /// `failed`, `count`) and mostly `member`.
    pub events: Vec<Value>,
    ended: bool,
}

impl Seen {
    /// How many events of this name there were.
    pub fn count(&self, event: &str) -> usize {
        self.events
            .iter()
            .filter(|seen| seen["event"] == event)
            .count()
    }

    /// The payloads by partition of a topic, in the order they came.
    pub fn values(&self, topic: &str) -> BTreeMap<i32, Vec<String>> {
        let mut values: BTreeMap<i32, Vec<String>> = BTreeMap::new();
        for message in self
            .messages
            .iter()
            .filter(|message| message.topic == topic)
        {
            values
                .entry(message.partition)
                .or_default()
                .extend(message.value.clone());
        }
        values
    }
}

type Told = Arc<(Mutex<Seen>, Condvar)>;

/// A process of old consumers of one group. Dropping it kills it.
pub struct JvmMember {
    name: String,
    process: Process,
    commands: ChildStdin,
    told: Told,
}

impl JvmMember {
    /// Starts the process and waits until its connectors have joined. `topics` are names with stream counts.
    pub fn start(
        release: &str,
        zookeeper: &str,
        group: &str,
        topics: &[(&str, u32)],
        options: JvmMemberOptions,
    ) -> Self {
        let wanted = options.members as usize;
        let member = Self::start_unready(release, zookeeper, group, topics, options);
        member.wait_for("it joined", LONG, |seen| {
            (seen.count("started") >= wanted).then_some(())
        });
        member
    }

    /// As [`JvmMember::start`], without waiting for anything.
    pub fn start_unready(
        release: &str,
        zookeeper: &str,
        group: &str,
        topics: &[(&str, u32)],
        options: JvmMemberOptions,
    ) -> Self {
        let name = format!("JVM member {release} of {group}");
        let folder = process::scratch(&format!("member-{release}"));
        let log4j = "log4j.rootLogger=INFO, err\nlog4j.appender.err=org.apache.log4j.ConsoleAppender\nlog4j.appender.err.target=System.err\n\
                     log4j.appender.err.layout=org.apache.log4j.PatternLayout\nlog4j.appender.err.layout.ConversionPattern=%d %p %m (%c)%n\n";
        std::fs::write(folder.join("log4j.properties"), log4j)
            .expect("log4j.properties can be written");
        let mut flags = vec![
            format!("-Xmx{}m", options.heap_mb),
            "-Djava.net.preferIPv4Stack=true".to_string(),
            format!(
                "-Dlog4j.configuration=file:{}",
                folder.join("log4j.properties").display()
            ),
        ];
        flags.extend(options.flags.iter().cloned());
        let mut command = Jars::member(release).java(&flags);
        command
            .arg("Member")
            .args(arguments(zookeeper, group, topics, &options))
            .current_dir(&folder);
        let mut process = Process::start(&name, &mut command, &folder.join("log"), Output::Pipes);
        let commands = process.take_stdin().expect("started with pipes");
        let lines = process.take_stdout().expect("started with pipes");
        let told = Told::default();
        let listening = Arc::clone(&told);
        std::thread::spawn(move || listen(lines, &listening));
        Self {
            name,
            process,
            commands,
            told,
        }
    }

    /// Waits until what was told answers the question.
    ///
    /// # Panics
    ///
    /// Past the limit, or when the process ended without an answer.
    #[track_caller]
    pub fn wait_for<T>(
        &self,
        what: &str,
        limit: Duration,
        mut question: impl FnMut(&Seen) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + limit;
        let (seen, news) = &*self.told;
        let mut seen = seen.lock().unwrap();
        loop {
            if let Some(answer) = question(&seen) {
                return answer;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || seen.ended {
                let account = account(&seen);
                drop(seen);
                panic!(
                    "{} was to tell: {what}; {account}; {}",
                    self.name,
                    self.process.tail()
                );
            }
            seen = news.wait_timeout(seen, left).unwrap().0;
        }
    }

    /// A look at what was told so far.
    pub fn look<T>(&self, read: impl FnOnce(&Seen) -> T) -> T {
        read(&self.told.0.lock().unwrap())
    }

    /// All messages so far.
    pub fn messages(&self) -> Vec<JvmMessage> {
        self.look(|seen| seen.messages.clone())
    }

    /// Starts one more connector in the same process and waits until it has joined; its number is the answer.
    pub fn join(&mut self, id: Option<&str>) -> usize {
        let before = self.look(|seen| seen.count("started"));
        self.command(&format!("start {}", id.unwrap_or_default()));
        self.wait_for("one more joined", LONG, |seen| {
            (seen.count("started") > before).then_some(before)
        })
    }

    /// Every connector stores its offsets; waits until that is done.
    pub fn commit(&mut self) {
        self.command_and_await("commit", "committed");
    }

    /// The readers stop at their next message, which an iterator has then given out and nobody told of.
    pub fn pause_reading(&mut self) {
        self.command_and_await("pause", "paused");
    }

    /// The readers go on as soon as the process can: also told while it is stopped.
    pub fn ask_to_resume_reading(&mut self) {
        self.command("resume");
    }

    /// The readers go on.
    pub fn resume_reading(&mut self) {
        self.command_and_await("resume", "resumed");
    }

    /// One connector leaves in order; the process stays. Waits until it has left.
    pub fn leave(&mut self, member: usize) {
        self.command_and_await(&format!("shutdown {member}"), "shutdown");
    }

    /// Every connector leaves in order, then the process ends. What was told, complete.
    pub fn shutdown(mut self) -> Seen {
        self.command("shutdown");
        self.command("exit");
        let status = self.process.wait(LONG);
        assert!(
            status.success(),
            "{} ended with {status}; {}",
            self.name,
            self.process.tail()
        );
        self.take()
    }

    /// SIGKILL. What was told up to then.
    pub fn kill(mut self) -> Seen {
        self.process.kill();
        self.take()
    }

    /// SIGSTOP: its sessions live until the server ends them.
    pub fn pause(&mut self) {
        self.process.pause();
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        self.process.resume();
    }

    /// Whether the process has not ended.
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// What the release logged.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The process id.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    fn take(&self) -> Seen {
        let (seen, news) = &*self.told;
        let mut seen = seen.lock().unwrap();
        while !seen.ended {
            seen = news.wait(seen).unwrap();
        }
        std::mem::take(&mut seen)
    }

    fn command(&mut self, line: &str) {
        writeln!(self.commands, "{line}").unwrap_or_else(|error| {
            panic!(
                "{} takes no command: {error}; {}",
                self.name,
                self.process.tail()
            )
        });
    }

    fn command_and_await(&mut self, line: &str, event: &str) {
        let before = self.look(|seen| seen.count(event));
        self.command(line);
        self.wait_for(event, LONG, |seen| {
            (seen.count(event) > before).then_some(())
        });
    }
}

fn arguments(
    zookeeper: &str,
    group: &str,
    topics: &[(&str, u32)],
    options: &JvmMemberOptions,
) -> Vec<String> {
    let mut properties: BTreeMap<String, String> = BTreeMap::new();
    let defaults = [
        ("zookeeper.connect", zookeeper),
        ("group.id", group),
        ("auto.offset.reset", "smallest"),
        ("auto.commit.interval.ms", "60000"),
        ("zookeeper.session.timeout.ms", "6000"),
        ("zookeeper.connection.timeout.ms", "30000"),
        ("fetch.wait.max.ms", "50"),
    ];
    properties.extend(defaults.map(|(key, value)| (key.to_string(), value.to_string())));
    properties.extend(
        options
            .id
            .iter()
            .map(|id| ("consumer.id".to_string(), id.clone())),
    );
    properties.extend(options.properties.clone());
    let pair = |flag: &str, value: String| [flag.to_string(), value];
    let mut arguments: Vec<String> = properties
        .iter()
        .flat_map(|(key, value)| pair("--property", format!("{key}={value}")))
        .collect();
    arguments.extend(
        topics
            .iter()
            .flat_map(|(topic, streams)| pair("--topic", format!("{topic}={streams}"))),
    );
    let lists = [
        ("--white-list", &options.white_list),
        ("--black-list", &options.black_list),
    ];
    for (flag, list) in lists {
        let Some((pattern, streams)) = list else {
            continue;
        };
        arguments.extend(pair(flag, pattern.clone()));
        arguments.extend(pair("--streams", streams.to_string()));
    }
    arguments.extend(pair("--members", options.members.to_string()));
    arguments.extend(options.quiet.then(|| "--quiet".to_string()));
    arguments
}

fn account(seen: &Seen) -> String {
    let why = if seen.ended {
        "it ended"
    } else {
        "the time is over"
    };
    let last = &seen.events[seen.events.len().saturating_sub(10)..];
    format!(
        "{why} after {} messages, the last events being {last:?}",
        seen.messages.len()
    )
}

fn listen(lines: ChildStdout, told: &Told) {
    let (seen, news) = &**told;
    for line in BufReader::new(lines).lines() {
        // A killed process may leave half a line.
        let Some(event) = line
            .ok()
            .and_then(|line| serde_json::from_str::<Value>(&line).ok())
        else {
            continue;
        };
        let mut seen = seen.lock().unwrap();
        if event["event"] == "message" {
            seen.messages.push(message(&event))
        } else {
            seen.events.push(event)
        }
        news.notify_all();
    }
    seen.lock().unwrap().ended = true;
    news.notify_all();
}

fn message(event: &Value) -> JvmMessage {
    let number = |key: &str| event[key].as_i64().expect("a number");
    JvmMessage {
        member: number("member"),
        stream: number("stream"),
        topic: event["topic"].as_str().expect("a topic").to_string(),
        partition: i32::try_from(number("partition")).expect("a partition"),
        offset: number("offset"),
        value: event["value"].as_str().map(str::to_string),
    }
}
