//! A process with a member in it, from inside: this program itself, started anew. It reads everything, and takes down what it sees.
//!
//! SIGTERM makes it leave in order. Commands come on standard input, one a line, and its end ends the process.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io::Write;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use evenkeel::Config;
use evenkeel::ConsumerConnector;
use evenkeel::MessageStream;
use evenkeel::StreamId;
use evenkeel::Topic;
use evenkeel::TopicPartition;
use evenkeel::clock::BootClock;
use evenkeel::clock::LeaseClock;
use evenkeel::config::Reset;
use evenkeel::event::LostCause;
use evenkeel::lease::Moment;
use evenkeel::listener::RebalanceListener;
use evenkeel::testing::check::Fact;
use evenkeel::testing::check::Phase;
use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Deserialize;
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::runtime::RuntimeFlavor;
use tokio::signal::unix::Signal;
use tokio::signal::unix::SignalKind;
use tokio::signal::unix::signal;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::support::Journal;
use crate::support::now;

/// The variable that makes this program a member.
pub const ORDERS: &str = "EVENKEEL_CHAOS_MEMBER";

/// So long a member has for leaving.
const FAREWELL: Duration = Duration::from_secs(10);

/// What a member is told at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Orders {
    /// Where it reaches ZooKeeper.
    pub zookeeper: String,
    /// Where it reaches the broker.
    pub bootstrap: String,
    /// Its group.
    pub group: String,
    /// Its topic.
    pub topic: String,
    /// `consumer.id`.
    pub id: String,
    /// The number of its first start.
    pub incarnation: u32,
    /// Where its event log belongs.
    pub folder: PathBuf,
    /// Its session timeout.
    pub timeout_ms: u64,
    /// How often it commits.
    pub commit_ms: u64,
    /// A message is done at most so long after it was handed over, while others are read.
    pub hold_ms: u64,
}

/// Makes this process a member for good, if it was started for that.
pub fn obey() {
    let Ok(orders) = std::env::var(ORDERS) else {
        return;
    };
    let orders: Orders = serde_json::from_str(&orders).expect("orders");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(serve(orders));
    std::process::exit(0);
}

async fn serve(mut orders: Orders) {
    let mut ends = signal(SignalKind::terminate()).expect("a handler");
    let (told, mut commands) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if told.blocking_send(line).is_err() {
                return;
            }
        }
        // Nobody is there any more.
        std::process::exit(0);
    });
    tokio::spawn(async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let tasks = TASKS.load(Ordering::Relaxed);
            tell(&json!({"tasks": tasks, "wall_ms": BootClock.wall_ms()}));
        }
    });
    loop {
        let Some(life) = Life::begin(&orders, &mut ends).await else {
            return;
        };
        let is_over = life.live(&mut ends, &mut commands).await;
        life.end().await;
        if is_over {
            return;
        }
        orders.incarnation += 1;
    }
}

/// One member, from its joining to its leaving.
struct Life {
    connector: ConsumerConnector,
    listener: Arc<Listener>,
    hearing: JoinHandle<()>,
    reading: Vec<JoinHandle<()>>,
}

impl Life {
    /// Joins, and tries for as long as it takes; none if the process is to end before.
    async fn begin(orders: &Orders, ends: &mut Signal) -> Option<Self> {
        let name = format!("{}_{}", orders.group, orders.id);
        let journal = Journal::create(&orders.folder, &name, orders.incarnation);
        let journal = Arc::new(journal);
        journal.note(Fact::Other("start".into()));
        let listener = Arc::new(Listener::new(journal.clone()));
        loop {
            let joining = Self::join(orders, &journal, &listener);
            let tried = tokio::select! {
                tried = joining => tried,
                _ = ends.recv() => return None,
            };
            match tried {
                Ok(life) => {
                    assert_eq!(life.connector.consumer_id().as_str(), name);
                    tell(&json!({"joined": orders.incarnation}));
                    return Some(life);
                }
                // The servers are away, or our last start is not forgotten yet.
                Err(error) => eprintln!("{name} cannot join yet: {error}"),
            }
            let pause = tokio::time::sleep(Duration::from_millis(50));
            tokio::select! {
                () = pause => {}
                _ = ends.recv() => return None,
            }
        }
    }

    async fn join(
        orders: &Orders,
        journal: &Arc<Journal>,
        listener: &Arc<Listener>,
    ) -> evenkeel::Result<Self> {
        let mut config = Config::new(&orders.group, &orders.zookeeper)?;
        config.bootstrap_servers = vec![orders.bootstrap.clone()];
        config.consumer_id = Some(orders.id.clone());
        config.auto_offset_reset = Reset::Smallest;
        config.session_timeout = Duration::from_millis(orders.timeout_ms);
        config.auto_commit_interval = Duration::from_millis(orders.commit_ms);
        let builder = ConsumerConnector::builder(config)
            .with_listener(listener.clone())
            .with_clock(Arc::new(Watch));
        let connector = builder.connect().await?;
        let (mut events, heard) = (connector.events(), journal.clone());
        let hearing = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                heard.hear(&event);
                eprintln!("{} {event}", now() / 1_000_000);
            }
        });
        let topic = Topic::new(&orders.topic)?;
        let streams = connector.streams([(topic, 1)]).await?;
        let streams = streams.into_values().flatten();
        let hold = orders.hold_ms;
        let reading = streams.map(|stream| tokio::spawn(read(stream, journal.clone(), hold)));
        Ok(Self {
            connector,
            listener: listener.clone(),
            hearing,
            reading: reading.collect(),
        })
    }

    /// Until it is to leave; whether that is for good.
    async fn live(&self, ends: &mut Signal, commands: &mut mpsc::Receiver<String>) -> bool {
        loop {
            let command = tokio::select! {
                command = commands.recv() => command,
                _ = ends.recv() => return true,
            };
            let Some(command) = command else {
                return true;
            };
            let (word, number) = command.split_once(' ').unwrap_or((&command, "0"));
            let number: u64 = number.parse().expect("a number");
            match word {
                "rejoin" => return false,
                "panic" => self.listener.panics.store(true, Ordering::SeqCst),
                "block" => self.listener.blocks_ms.store(number, Ordering::SeqCst),
                "hog" => hog(Duration::from_millis(number)),
                _ => panic!("not understood: {command}"),
            }
        }
    }

    async fn end(self) {
        let farewell = self.connector.shutdown(FAREWELL).await;
        for reader in self.reading {
            reader.await.expect("no reader panics");
        }
        self.hearing.await.expect("who hears does not panic");
        tell(&json!({"left": farewell.is_ok_and(|farewell| farewell.forced.is_empty())}));
    }
}

/// Tasks on the thread on which the members of this process live.
static TASKS: AtomicU64 = AtomicU64::new(0);

/// The ordinary clock. Since the members' thread looks at it all the time, it can tell what goes on there.
struct Watch;

impl LeaseClock for Watch {
    fn now(&self) -> Moment {
        if let Ok(there) = Handle::try_current()
            && there.runtime_flavor() == RuntimeFlavor::CurrentThread
        {
            let tasks = there.metrics().num_alive_tasks();
            TASKS.store(tasks as u64, Ordering::Relaxed);
        }
        BootClock.now()
    }

    fn wall_ms(&self) -> u64 {
        BootClock.wall_ms()
    }
}

/// Takes all processors for a while.
fn hog(time: Duration) {
    let until = Instant::now() + time;
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    for _ in 0..2 * cores {
        std::thread::spawn(move || {
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        });
    }
}

/// Reads a stream to its end. Messages are done in any order.
async fn read(mut stream: MessageStream, journal: Arc<Journal>, hold_ms: u64) {
    let mut dice = StdRng::seed_from_u64(now());
    let mut open = tokio::task::JoinSet::new();
    loop {
        let (looked, next) = {
            let mut next = pin!(stream.recv_owned());
            // The lease is looked at within the poll that gives the message.
            poll_fn(|cx| {
                let at = now();
                next.as_mut().poll(cx).map(|next| (at, next))
            })
            .await
        };
        let Some(message) = next else {
            break;
        };
        let (partition, token) = (message.topic_partition(), message.token());
        let offset = message.offset();
        let checked = Fact::Checked {
            partition: partition.clone(),
            token,
        };
        journal.note_at(looked, checked);
        journal.note(Fact::Delivered {
            partition: partition.clone(),
            token,
            offset,
        });
        let done = Fact::Done {
            partition: partition.clone(),
            token,
            offset,
        };
        let pause = Duration::from_millis(dice.random_range(0..=hold_ms));
        let journal = journal.clone();
        open.spawn(async move {
            tokio::time::sleep(pause).await;
            journal.note(done);
            message.ack();
        });
        while open.try_join_next().is_some() {}
    }
    while open.join_next().await.is_some() {}
}

/// Takes down what it is told, and fails when that is ordered.
struct Listener {
    journal: Arc<Journal>,
    panics: AtomicBool,
    blocks_ms: AtomicU64,
}

impl Listener {
    fn new(journal: Arc<Journal>) -> Self {
        Self {
            journal,
            panics: AtomicBool::new(false),
            blocks_ms: AtomicU64::new(0),
        }
    }

    fn called<'a>(&self, call: &str, of: impl Iterator<Item = &'a TopicPartition>) {
        let partitions: Vec<TopicPartition> = of.cloned().collect();
        let note = |phase| {
            self.journal.note(Fact::Callback {
                name: call.to_owned(),
                phase,
                partitions: partitions.clone(),
            });
        };
        note(Phase::Enter);
        let blocks_ms = self.blocks_ms.swap(0, Ordering::SeqCst);
        if blocks_ms > 0 {
            let name = call.to_owned();
            self.journal.note(Fact::Overrun { name });
            tell(&json!({"blocked": call}));
            std::thread::sleep(Duration::from_millis(blocks_ms));
        }
        if self.panics.swap(false, Ordering::SeqCst) {
            note(Phase::Panic);
            tell(&json!({"panicked": call}));
            std::panic::panic_any("ordered");
        }
        note(Phase::Leave);
    }
}

impl RebalanceListener for Listener {
    fn before_release(&self, partitions: &BTreeSet<TopicPartition>) {
        self.called("before_release", partitions.iter());
    }

    fn after_claim(&self, partitions: &BTreeMap<TopicPartition, StreamId>) {
        self.called("after_claim", partitions.keys());
    }

    fn on_lost(&self, partitions: &BTreeSet<TopicPartition>, _: LostCause) {
        self.called("on_lost", partitions.iter());
    }
}

fn tell(what: &serde_json::Value) {
    let line = format!("\n{what}\n");
    let mut out = std::io::stdout().lock();
    // The parent may be gone.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}
