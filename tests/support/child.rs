//! A member of ours in a process of its own, so that it can be killed: the test binary runs itself once more, as a single test of it.

use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::process::ChildStdin;
use std::process::Command;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;

use evenkeel::Config;
use evenkeel::ConsumerConnector;
use evenkeel::Topic;
use serde_json::Value;
use serde_json::json;

use super::ours::Finished;
use super::process;
use super::process::Output;
use super::process::Process;
use super::wait::LONG;

/// The variable that tells a test binary to be a member.
const ORDERS: &str = "EVENKEEL_CHILD";

#[derive(Default)]
struct Told {
    name: Option<String>,
    finished: Vec<Finished>,
    ended: bool,
}

/// A process with one member of ours. Dropping it kills it.
pub struct Child {
    process: Process,
    // The end of its standard input is the child's end.
    _commands: ChildStdin,
    told: Arc<(Mutex<Told>, Condvar)>,
}

impl Child {
    /// Starts it and waits until it has joined. `test` is the test of this binary that calls [`obey`], by its full name; `properties` are the
    /// text of a properties file.
    pub fn join(test: &str, properties: &str, topics: &[(&str, u32)]) -> Self {
        let orders = json!({"properties": properties, "topics": topics});
        let binary = std::env::current_exe().expect("a test knows its binary");
        let folder = process::scratch("child");
        let mut command = Command::new(binary);
        command
            .args([test, "--exact", "--nocapture"])
            .env(ORDERS, orders.to_string())
            .current_dir(&folder);
        let mut process = Process::start(
            "a member of ours",
            &mut command,
            &folder.join("log"),
            Output::Pipes,
        );
        let commands = process.take_stdin().expect("started with pipes");
        let lines = BufReader::new(process.take_stdout().expect("started with pipes"));
        let child = Self {
            process,
            _commands: commands,
            told: Arc::default(),
        };
        let told = child.told.clone();
        std::thread::spawn(move || listen(lines, &told));
        child.wait_for_its_name();
        child
    }

    fn wait_for_its_name(&self) {
        let (told, news) = &*self.told;
        let waited = news.wait_timeout_while(told.lock().unwrap(), LONG, |told| {
            told.name.is_none() && !told.ended
        });
        let joined = waited.unwrap().0.name.is_some();
        assert!(joined, "the child did not join; {}", self.process.tail());
    }

    /// The name under `ids`.
    pub fn name(&self) -> String {
        let told = self.told.0.lock().unwrap();
        told.name.clone().expect("it has joined")
    }

    /// What it has told of so far.
    pub fn finished(&self) -> Vec<Finished> {
        self.told.0.lock().unwrap().finished.clone()
    }

    /// What it has told of after so many.
    pub fn finished_after(&self, many: usize) -> Vec<Finished> {
        self.told.0.lock().unwrap().finished[many..].to_vec()
    }

    /// SIGKILL. What it had told up to then.
    pub fn kill(mut self) -> Vec<Finished> {
        self.process.kill();
        let (told, news) = &*self.told;
        let told = news.wait_while(told.lock().unwrap(), |told| !told.ended);
        std::mem::take(&mut told.unwrap().finished)
    }
}

fn listen(lines: impl BufRead, told: &(Mutex<Told>, Condvar)) {
    for line in lines.lines() {
        // The test harness writes lines of its own, and a killed process may leave half a line.
        let Some(told_of) = line
            .ok()
            .and_then(|line| serde_json::from_str::<Value>(&line).ok())
        else {
            continue;
        };
        let text = |key: &str| told_of[key].as_str().map(str::to_owned);
        let mut told_now = told.0.lock().unwrap();
        match text("joined") {
            Some(name) => told_now.name = Some(name),
            None => told_now.finished.push(Finished {
                topic: text("topic").expect("a topic"),
                partition: told_of["partition"]
                    .as_i64()
                    .and_then(|number| i32::try_from(number).ok())
                    .expect("a partition"),
                offset: told_of["offset"].as_i64().expect("an offset"),
                value: text("value").expect("a text"),
            }),
        }
        told.1.notify_all();
    }
    told.0.lock().unwrap().ended = true;
    told.1.notify_all();
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
    let topics = topics
        .into_iter()
        .map(|(name, streams)| (Topic::new(&name).expect("a good name"), streams));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let connector = runtime.block_on(async {
        let connector = ConsumerConnector::connect(config)
            .await
            .expect("the servers are there");
        let streams = connector.streams(topics).await.expect("it joins");
        // The harness has begun a line.
        tell(&json!({"joined": connector.consumer_id().as_str()}), "\n");
        for mut stream in streams.into_values().flatten() {
            tokio::spawn(async move {
                while let Some(message) = stream.recv().await {
                    let value = String::from_utf8_lossy(message.payload().unwrap_or_default());
                    tell(
                        &json!({"topic": message.topic().as_str(), "partition": message.partition(), "offset": message.offset(), "value": value}),
                        "",
                    );
                }
            });
        }
        connector
    });
    for line in std::io::stdin().lines() {
        drop(line);
    }
    drop(connector);
    std::process::exit(0);
}

fn tell(what: &Value, before: &str) {
    let line = format!("{before}{what}\n");
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .expect("the parent listens");
}
