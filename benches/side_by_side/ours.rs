//! A process of our members under command, as `tests/java/Member.java` is one of the JVM's: this program itself, started anew.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{ChildStdin, ChildStdout, Command};
use std::time::Duration;

use evenkeel::config::Reset;
use evenkeel::{Config, ConsumerConnector, Topic};

use crate::support::{Output, Process, scratch};

/// The word that makes this program such a process.
pub const MEMBER: &str = "--as-members";

/// Such a process, seen from outside. Dropping it kills it.
pub struct OurMembers {
    process: Process,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    started: usize,
}

impl OurMembers {
    /// Starts it without a member in it.
    pub fn start(zookeeper: &str, group: &str, topic: &str) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.args([MEMBER, zookeeper, group, topic]);
        let log = scratch("ours").join("log");
        let name = format!("our members of {group}");
        let mut process = Process::start(&name, &mut command, &log, Output::Pipes);
        let commands = process.take_stdin().expect("started with pipes");
        let answers = process.take_stdout().expect("started with pipes");
        Self {
            process,
            commands,
            answers: BufReader::new(answers).lines(),
            started: 0,
        }
    }

    /// One more member under this `consumer.id`; its number. Waits until it is registered.
    pub fn join(&mut self, id: &str) -> usize {
        self.ask(&format!("start {id}"));
        self.started += 1;
        self.started - 1
    }

    /// A member leaves in order; waits until it has left.
    pub fn leave(&mut self, member: usize) {
        self.ask(&format!("shutdown {member}"));
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.process.kill();
    }

    /// The process id.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    fn ask(&mut self, command: &str) {
        let answer = writeln!(self.commands, "{command}")
            .ok()
            .and_then(|()| self.answers.next()?.ok());
        assert!(
            answer.as_deref() == Some("done"),
            "{command} was answered by {answer:?}; {}",
            self.process.tail()
        );
    }
}

/// Such a process from inside: commands on standard input, `done` on standard output for each.
pub fn serve(args: &[String]) {
    let [zookeeper, group, topic] = args else {
        panic!("{MEMBER} wants a server, a group and a topic");
    };
    let mut config = Config::new(group, zookeeper).expect("a good configuration");
    config.auto_offset_reset = Reset::Smallest;
    let topic = Topic::new(topic).expect("a topic's name");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut members: BTreeMap<usize, ConsumerConnector> = BTreeMap::new();
    let mut started = 0;
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        match line.split_once(' ') {
            Some(("start", id)) => {
                let mut config = config.clone();
                config.consumer_id = Some(id.to_owned());
                members.insert(started, runtime.block_on(start(config, topic.clone())));
                started += 1;
            }
            Some(("shutdown", number)) => {
                let member = number.parse().ok().and_then(|n| members.remove(&n));
                let member = member.expect("a member that was started");
                let farewell = runtime.block_on(member.shutdown(Duration::from_secs(10)));
                assert!(farewell.expect("a clean end").forced.is_empty());
            }
            _ => panic!("not understood: {line}"),
        }
        println!("done");
    }
}

async fn start(config: Config, topic: Topic) -> ConsumerConnector {
    let connector = ConsumerConnector::connect(config)
        .await
        .expect("the servers are there");
    let streams = connector
        .streams([(topic, 1)])
        .await
        .expect("nothing is in the way of joining");
    for mut stream in streams.into_values().flatten() {
        tokio::spawn(async move { while stream.recv().await.is_some() {} });
    }
    connector
}
