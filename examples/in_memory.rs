//! How to test a service of your own without servers: two members of a group, messages that flow, three faults, and a judge.
//!
//! ```text
//! cargo run --features testing --example in_memory
//! ```
//!
//! Registry and log are in memory and time is tokio's, paused: a session that ends after six seconds takes none. To make it
//! your own, put `evenkeel` with the feature `testing`, and `tokio` with `test-util`, below `[dev-dependencies]`, let `main` be a
//! `#[tokio::test(start_paused = true)]`, and let `serve` call what your service does.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::clock::TokioClock;
use evenkeel::config::Reset;
use evenkeel::id::IdContext;
use evenkeel::registry::Op;
use evenkeel::testing::check::{self, Case, Counts, Fact, Limits};
use evenkeel::testing::{Fate, Inline, MemoryLog, MemoryRegistry, Record, Script, history};
use evenkeel::wire::encode_topic;
use evenkeel::{
    Config, ConsumerConnector, Event, Events, GroupName, MessageStream, Topic, TopicPartition,
};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const GROUP: &str = "billing";
const TOPIC: &str = "orders";
const PARTITIONS: i32 = 6;
/// The session timeout.
const T: Duration = Duration::from_secs(6);

/// The service under test. It knows nothing of tests but its notes: `Delivered` when it has a message, `Done` before it asks
/// for the next, which acknowledges.
async fn serve(mut stream: MessageStream, book: Book, me: String) {
    while let Some(message) = stream.recv().await {
        let (partition, token) = (message.topic_partition().clone(), message.token());
        let offset = message.offset();
        book.note(
            &me,
            Fact::Delivered {
                partition: partition.clone(),
                token,
                offset,
            },
        );
        // Here the work is done. `message.payload()` has the bytes.
        book.done(partition.clone(), offset);
        book.note(
            &me,
            Fact::Done {
                partition,
                token,
                offset,
            },
        );
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
pub async fn main() -> Result<(), Box<dyn Error>> {
    // An ensemble that looks for dead sessions twice a second, and a cluster with one topic.
    let registry = MemoryRegistry::new().with_tick(Duration::from_millis(500));
    let log = MemoryLog::new();
    registry.put(
        "/brokers/ids/0",
        r#"{"version":1,"host":"h","port":9092,"jmx_port":-1,"timestamp":"0"}"#,
    );
    registry.put(
        &format!("/brokers/topics/{TOPIC}"),
        encode_topic(0..PARTITIONS),
    );
    log.create(&Topic::new(TOPIC)?, PARTITIONS as usize);
    let book = Book::new(&registry);
    let producer = tokio::spawn(produce(log.clone(), book.clone()));

    let world = World {
        registry,
        log,
        book,
    };
    let (first, second) = (world.join("app1")?, world.join("app2")?);
    sleep(T).await;

    // A commit of the first is carried out, and its answer lost.
    let session = first.session();
    let is_commit = move |op: &Op| matches!(op, Op::Set { path, .. } if path.contains("/offsets/"));
    let script = Script::new().then(
        move |request| request.session == session && request.ops.iter().any(is_commit),
        Fate::LoseAfter,
    );
    let _ = world.registry.clone().with_fate(script.into_fate());
    sleep(T).await;

    // The second is cut off for longer than its lease: it pauses, and keeps what it has.
    world.registry.cut(second.session());
    sleep(T * 2 / 3).await;
    world.registry.heal(second.session());
    sleep(T).await;

    // The process of the first dies. Its share is free once its session has ended.
    world.kill(first);
    sleep(T * 3).await;
    assert_eq!(second.connector.owned().len(), PARTITIONS as usize);

    // All that was sent is to be done in the end.
    producer.abort();
    let all_is_done = async {
        while !world.book.is_all_done() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(T * 10, all_is_done).await?;
    world.book.note("nemesis", Fact::Settled);
    let Member {
        connector, name, ..
    } = second;
    let farewell = connector.shutdown(Duration::from_secs(10)).await?;
    assert!(farewell.forced.is_empty());

    // The judge has the registry's own history and what everybody wrote down.
    let verdict = world.book.judge(&world.registry);
    println!("{name} was left over\n{verdict}");
    // So that a run in which nothing happened does not pass.
    let least = Counts {
        claims: PARTITIONS as u64 * 3 / 2,
        deaths: 1,
        commits: 10,
        deliveries: 500,
        ..Counts::default()
    };
    verdict.require(&least)?;
    Ok(())
}

/// A message to each partition ten times a second.
async fn produce(log: MemoryLog, book: Book) {
    let topic = Topic::new(TOPIC).expect("a good name");
    for number in 0u64.. {
        for partition in (0..PARTITIONS).map(|p| TopicPartition::new(topic.clone(), p)) {
            let record = Record::new(format!("order {number}"));
            let offset = log.append(&partition, record).expect("the topic is there");
            book.sent(partition, offset);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

struct World {
    registry: MemoryRegistry,
    log: MemoryLog,
    book: Book,
}

struct Member {
    connector: ConsumerConnector,
    name: String,
    /// The member itself, which is polled here and not on a thread of its own, so that it sees paused time.
    coordinator: JoinHandle<()>,
    service: JoinHandle<()>,
}

impl Member {
    fn session(&self) -> i64 {
        self.connector.health().session.unwrap_or_default()
    }
}

impl World {
    fn join(&self, host: &str) -> evenkeel::Result<Member> {
        let mut config = Config::new(GROUP, "memory:1")?;
        config.session_timeout = T;
        config.auto_commit_interval = Duration::from_secs(1);
        config.auto_offset_reset = Reset::Smallest;
        let registry = self.registry.clone().with_session_timeout(T);
        let context = IdContext::new(host, &GroupName::new(GROUP)?, "00c0ffee")?;
        let topic = Topic::new(TOPIC)?;
        let (connector, mut streams, coordinator) = ConsumerConnector::builder(config)
            .with_registry(Arc::new(registry))
            .with_reader_source(Arc::new(self.log.clone()))
            .with_clock(Arc::new(TokioClock::new()))
            .with_outside(Arc::new(Inline::new()))
            .with_id_context(context)
            .into_future([(topic.clone(), 1)])?;
        let name = connector.consumer_id().to_string();
        self.book.enter(&name);
        tokio::spawn(self.book.clone().follow(name.clone(), connector.events()));
        let stream = streams.remove(&topic).into_iter().flatten().next();
        let stream = stream.expect("one was asked for");
        Ok(Member {
            service: tokio::spawn(serve(stream, self.book.clone(), name.clone())),
            coordinator: tokio::spawn(coordinator),
            connector,
            name,
        })
    }

    /// Nothing of it runs any more, and nobody tells the servers.
    fn kill(&self, member: Member) {
        let fact = Fact::Killed {
            member: member.name.as_str().into(),
        };
        self.book.note("nemesis", fact);
        self.registry.kill(member.session());
        member.coordinator.abort();
        member.service.abort();
        // To drop a handle fences and closes the session, which a dead process cannot.
        std::mem::forget(member.connector);
    }
}

/// What everybody saw. All have a copy of the same.
#[derive(Clone)]
struct Book {
    registry: MemoryRegistry,
    began: Instant,
    pages: Arc<Mutex<Pages>>,
}

#[derive(Default)]
struct Pages {
    record: check::Record,
    members: BTreeSet<String>,
    sent: BTreeSet<(TopicPartition, i64)>,
    done: BTreeSet<(TopicPartition, i64)>,
}

impl Book {
    fn new(registry: &MemoryRegistry) -> Self {
        Self {
            registry: registry.clone(),
            began: Instant::now(),
            pages: Arc::default(),
        }
    }

    fn write(&self, entry: impl FnOnce(&mut Pages)) {
        entry(&mut self.pages.lock().expect("nobody panicked"));
    }

    fn note(&self, who: &str, fact: Fact) {
        let mono = u64::try_from(self.began.elapsed().as_nanos()).expect("it is no century");
        // The registry is at hand, so that it is known what came before what.
        let zxid = Some(self.registry.zxid());
        self.write(|pages| pages.record.note(&who.into(), 1, mono, zxid, fact));
    }

    fn enter(&self, member: &str) {
        self.write(|pages| _ = pages.members.insert(member.to_owned()));
    }

    fn sent(&self, partition: TopicPartition, offset: i64) {
        self.write(|pages| _ = pages.sent.insert((partition.clone(), offset)));
        self.note("producer", Fact::Sent { partition, offset });
    }

    fn done(&self, partition: TopicPartition, offset: i64) {
        self.write(|pages| _ = pages.done.insert((partition, offset)));
    }

    fn is_all_done(&self) -> bool {
        let pages = self.pages.lock().expect("nobody panicked");
        pages.sent == pages.done
    }

    /// What a member tells of itself and the judge wants to know.
    async fn follow(self, member: String, mut events: Events) {
        while let Some(event) = events.next().await {
            let fact = match event {
                Event::Joined { session, .. } => Fact::Joined { session },
                Event::OffsetReset {
                    partition,
                    from,
                    to: Some(to),
                    ..
                } => Fact::Reset {
                    partition,
                    from,
                    to,
                },
                Event::Released {
                    partition,
                    undone,
                    is_forced,
                    ..
                } => Fact::Released {
                    partition,
                    undone: undone as u64,
                    is_forced,
                },
                _ => continue,
            };
            self.note(&member, fact);
        }
    }

    fn judge(&self, registry: &MemoryRegistry) -> check::Verdict {
        let pages = self.pages.lock().expect("nobody panicked");
        Case::new(GroupName::new(GROUP).expect("a good name"))
            .with_ours(pages.members.iter().map(String::as_str))
            .with_history(history(&registry.log()))
            .with_events(pages.record.events().to_vec())
            .with_limits(Limits::exact(T))
            .judge()
    }
}
