//! The judge of runs over what real processes leave behind: event logs, and the transaction log of a real server.
//!
//! `EVENKEEL_VERIFY=<folder> cargo test --features testing --test verify -- --nocapture a_folder` judges any such folder.
#![cfg(feature = "testing")]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel::testing::check::{Counts, Fact, Rule};
use evenkeel::testing::{MemoryLog, Record};
use evenkeel::wire::encode_topic;
use evenkeel::{ConsumerConnector, Topic, TopicPartition};
use support::{
    CaseFile, Journal, LONG, Tree, ZooKeeper, block_on, config, run_async, scratch, until, verify,
};

const PARTITIONS: i32 = 4;

fn topic() -> Topic {
    Topic::new("t").unwrap()
}

fn at(partition: i32) -> TopicPartition {
    TopicPartition::new(topic(), partition)
}

/// A run beside a real server: messages in memory, event logs in a folder.
struct Run {
    zookeeper: ZooKeeper,
    log: MemoryLog,
    folder: PathBuf,
    producer: Journal,
    clock: Journal,
}

struct Member {
    connector: ConsumerConnector,
    has_ended: Arc<AtomicBool>,
}

impl Run {
    fn new() -> Self {
        let zookeeper = ZooKeeper::start("3.9.5");
        let tree = Tree::connect(&zookeeper);
        let broker = r#"{"version":1,"host":"h","port":9092,"jmx_port":-1,"timestamp":"0"}"#;
        tree.make("/brokers/ids/0", broker);
        let text = String::from_utf8(encode_topic(0..PARTITIONS)).unwrap();
        tree.make("/brokers/topics/t", &text);
        let log = MemoryLog::new();
        log.create(&topic(), PARTITIONS as usize);
        let folder = scratch("run");
        CaseFile::new("g", 6000, 100).write(&folder);
        let clock = Journal::create(&folder, "clock", 1);
        clock.clock();
        Self {
            producer: Journal::create(&folder, "producer", 1),
            zookeeper,
            log,
            folder,
            clock,
        }
    }

    fn send(&self, rounds: usize) {
        for _ in 0..rounds {
            for partition in 0..PARTITIONS {
                let record = Record::new("x");
                let offset = self.log.append(&at(partition), record).unwrap();
                let partition = at(partition);
                self.producer.note(Fact::Sent { partition, offset });
            }
        }
    }

    fn join(&self) -> Member {
        let config = config(&self.zookeeper, "g");
        let (log, folder) = (self.log.clone(), self.folder.clone());
        run_async(async move {
            let builder = ConsumerConnector::builder(config);
            let builder = builder.with_reader_source(Arc::new(log));
            let connector = builder.connect().await.expect("the server is there");
            let journal = Journal::create(&folder, connector.consumer_id().as_str(), 1);
            let (journal, mut events) = (Arc::new(journal), connector.events());
            journal.note(Fact::Other("start".into()));
            let heard = journal.clone();
            tokio::spawn(async move {
                while let Some(event) = events.next().await {
                    heard.hear(&event);
                }
            });
            let streams = connector.streams([(topic(), 1)]).await;
            let streams = streams.expect("nothing is in the way of joining");
            let mut stream = streams.into_values().flatten().next().expect("one");
            let has_ended = Arc::new(AtomicBool::new(false));
            let ended = has_ended.clone();
            tokio::spawn(async move {
                while let Some(message) = stream.recv_owned().await {
                    let (partition, token) = (message.topic_partition(), message.token());
                    let offset = message.offset();
                    journal.note(Fact::Delivered {
                        partition: partition.clone(),
                        token,
                        offset,
                    });
                    journal.note(Fact::Done {
                        partition: partition.clone(),
                        token,
                        offset,
                    });
                    message.ack();
                }
                ended.store(true, Ordering::SeqCst);
            });
            Member {
                connector,
                has_ended,
            }
        })
    }

    fn settle(&self, members: &[&Member], each: i32) {
        until("they share and are ready", LONG, || {
            members.iter().all(|member| {
                let owned = member.connector.owned().len() as i32;
                owned == each && member.connector.health().is_ready()
            })
        });
    }

    /// Waits until the verdict is that everything sent is done, by the logs as they stand.
    fn drained(&self, name: &str, counts: u64) {
        until(name, LONG, || {
            let verdict = verify(&self.folder);
            verdict.is_ok_and(|verdict| verdict.counts.dones >= counts)
        });
    }
}

fn leave(member: Member) {
    let farewell = block_on(member.connector.shutdown(Duration::from_secs(10)));
    assert!(farewell.unwrap().forced.is_empty());
    let ended = member.has_ended;
    until("its reader ends", LONG, || ended.load(Ordering::SeqCst));
}

/// Two members share, one leaves, the other finishes.
fn run() -> Run {
    let run = Run::new();
    // What the server writes lies where the judge looks for it.
    std::os::unix::fs::symlink(run.zookeeper.log_folder(), run.folder.join("version-2")).unwrap();
    run.send(20);
    let first = run.join();
    run.settle(&[&first], PARTITIONS);
    run.drained("the first has read all", 80);
    let second = run.join();
    run.settle(&[&first, &second], PARTITIONS / 2);
    run.send(20);
    run.drained("both have read all", 160);
    leave(first);
    run.settle(&[&second], PARTITIONS);
    run.send(5);
    run.drained("the second has read all", 180);
    run.clock.clock();
    run.clock.note(Fact::Settled);
    leave(second);
    run
}

fn add(folder: &Path, name: &str, line: &str) {
    let path = folder.join(name);
    let mut text = std::fs::read_to_string(&path).unwrap_or_default();
    text.push_str(line);
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_run_of_real_processes_is_judged_by_its_logs_and_the_servers() {
    let run = run();
    let verdict = verify(&run.folder).unwrap();
    println!("{verdict}");
    let floors = Counts {
        sent: 180,
        deliveries: 180,
        dones: 180,
        claims: 8,
        releases: 8,
        clean: 8,
        commits: 8,
        registrations: 2,
        settled: 1,
        ..Counts::default()
    };
    verdict.require(&floors).unwrap();
    assert_eq!(verdict.counts.redeliveries, 0);

    // A torn line is the mark of a kill.
    add(&run.folder, "nemesis.1.jsonl", "{\"v\":1,\"mem\":\"neme");
    assert!(verify(&run.folder).unwrap().is_good());
    // One more message was sent, and nobody read it.
    let sent =
        r#"{"v":1,"mem":"late","inc":1,"seq":1,"mono":1,"ev":"sent","t":"t","p":0,"off":1000}"#;
    add(&run.folder, "late.1.jsonl", &format!("{sent}\n"));
    let verdict = verify(&run.folder).unwrap();
    assert_eq!(verdict.rules(), [Rule::I16], "{verdict}");
    add(&run.folder, "late.1.jsonl", "no event\n");
    let error = verify(&run.folder).unwrap_err();
    assert!(
        error.contains("late.1.jsonl") && error.contains("line 2"),
        "{error}"
    );
}

#[test]
fn a_folder_that_is_named_is_judged() {
    let Some(folder) = std::env::var_os("EVENKEEL_VERIFY") else {
        let empty = scratch("empty");
        assert!(verify(&empty).unwrap_err().contains("case.json"));
        return;
    };
    let verdict = verify(Path::new(&folder)).unwrap();
    println!("{verdict}\n{}", verdict.to_json());
    assert!(verdict.is_good(), "{verdict}");
}
