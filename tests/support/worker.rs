//! A member of ours at work in a process of its own: it takes down what it does for the judge of runs, tells its figures, and can be stopped,
//! woken and told to leave in order.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel::Config;
use evenkeel::ConsumerConnector;
use evenkeel::Event;
use evenkeel::Message;
use evenkeel::MessageStream;
use evenkeel::Topic;
use evenkeel::id::IdContext;
use evenkeel::testing::check::Fact;
use serde::Deserialize;
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::sync::watch;

use super::child::Child;
use super::child::Told;
use super::child::tell;
use super::child::told;
use super::journal::Journal;
use super::ours::Finished;
use super::process::random;
use super::time::now;
use super::wait::LONG;
use super::wait::until;
use super::wait::until_some_or;

/// A process that was not stopped looks at the clock more often than that, however busy the machine.
const STILL_NS: u64 = 2_000_000_000;

/// What such a process shall do beside being a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Work {
    /// Where its event log goes.
    pub folder: PathBuf,
    /// Which start of a member of this name it is.
    pub incarnation: u32,
    /// The host it pretends to run on; none for this one.
    pub host: Option<String>,
    /// Each stream takes so many messages, acknowledges the first three fifths of them and keeps the others, and asks no more until
    /// [`Worker::toil`].
    pub keep: Option<usize>,
    /// A message is acknowledged so long after it was handed out, while others are read.
    pub hold_ms: u64,
}

impl Work {
    /// Everything read at once and acknowledged at once.
    pub fn plain(folder: PathBuf, incarnation: u32) -> Self {
        Self {
            folder,
            incarnation,
            host: None,
            keep: None,
            hold_ms: 0,
        }
    }
}

/// What such a process has counted so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Messages handed out to it.
    pub handed: u64,
    /// Messages it acknowledged.
    pub acknowledged: u64,
    /// Streams that were told to [`Worker::toil`] and do.
    pub toiling: u64,
    /// Streams that have done so, and ask for more.
    pub asking: u64,
    /// Messages that librdkafka put into its queues. Only with `kafka.debug=msg`.
    pub fetched: u64,
    /// Acknowledgements that its member counted as late.
    pub late_acks: u64,
}

/// Such a process, seen from outside. Dropping it kills it.
pub struct Worker(Child);

impl Worker {
    /// Starts it and waits until it has joined: see [`Child::join`].
    pub fn join(test: &str, properties: &str, topics: &[(&str, u32)], work: &Work) -> Self {
        let orders = json!({"properties": properties, "topics": topics, "work": work});
        Self(Child::start(test, &orders, None))
    }

    /// The name under `ids`.
    pub fn name(&self) -> String {
        self.0.name()
    }

    /// What was delivered to it so far.
    pub fn finished(&self) -> Vec<Finished> {
        self.0.finished()
    }

    /// What its member told so far.
    pub fn events(&self) -> Vec<Told> {
        self.0.events()
    }

    /// Those of one name.
    pub fn told(&self, event: &str) -> Vec<Told> {
        let mut told = self.events();
        told.retain(|told| told.event == event);
        told
    }

    /// SIGSTOP.
    pub fn pause(&mut self) {
        self.0.pause();
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        self.0.resume();
    }

    /// Its streams are busy with what they keep until they have stood still for some time; then each asks for more at once. Half of what
    /// they keep is acknowledged then as well, and the other half once the member has joined anew.
    pub fn toil(&mut self, streams: u32) {
        self.0.command("toil");
        until("its streams toil", LONG, || {
            self.figures().toiling == u64::from(streams)
        });
    }

    /// Everybody goes before the member's own thread from now on, or it is as any other. Only root may do that; for others nothing changes.
    pub fn put_last(&self, is_last: bool) {
        self.0.renice("evenkeel", if is_last { 19 } else { 0 });
    }

    /// Asks it to commit, without waiting for anything: also while it is stopped.
    pub fn ask_to_commit(&mut self) {
        self.0.command("commit");
    }

    /// Commits what is done, and waits for that. Answers why it could not.
    pub fn commit(&mut self) -> Result<(), String> {
        let answer = self.ask("commit");
        match answer["failed"].as_str() {
            Some(why) => Err(why.to_owned()),
            None => Ok(()),
        }
    }

    /// What it has counted.
    pub fn figures(&mut self) -> Figures {
        let answer = self.ask("figures");
        Figures::deserialize(&answer["figures"]).expect("figures")
    }

    /// SIGTERM: it leaves in order. What was delivered to it.
    ///
    /// # Panics
    ///
    /// When it left by force or did not leave.
    pub fn leave(mut self) -> Vec<Finished> {
        self.0.terminate();
        let answers = self.wait_for("left", 0);
        assert_eq!(answers["forced"], 0, "{answers}");
        self.finished()
    }

    fn ask(&mut self, command: &str) -> serde_json::Value {
        let before = self.answers_to(command).len();
        self.0.command(command);
        self.wait_for(command, before)
    }

    fn answers_to(&self, command: &str) -> Vec<serde_json::Value> {
        let mut answers = self.0.answers();
        answers.retain(|answer| answer["answer"] == command);
        answers
    }

    fn wait_for(&self, command: &str, before: usize) -> serde_json::Value {
        let look = || self.answers_to(command).into_iter().nth(before);
        until_some_or(LONG, look, || {
            format!("an answer to {command}; {}", self.0.tail())
        })
    }
}

/// What the tasks of such a process share.
struct Desk {
    journal: Journal,
    hold: Duration,
    handed: AtomicU64,
    acknowledged: AtomicU64,
    toiling: AtomicU64,
    asking: AtomicU64,
    toil: watch::Receiver<bool>,
    joined: watch::Receiver<usize>,
}

impl Desk {
    fn handed(&self, message: &Message) {
        self.journal.note(Fact::Delivered {
            partition: message.topic_partition().clone(),
            token: message.token(),
            offset: message.offset(),
        });
        self.handed.fetch_add(1, Ordering::Relaxed);
        let value = String::from_utf8_lossy(message.payload().unwrap_or_default());
        tell(
            &json!({"topic": message.topic().as_str(), "partition": message.partition(), "offset": message.offset(), "value": value}),
            "",
        );
    }

    fn done(&self, message: Message) {
        self.journal.note(Fact::Done {
            partition: message.topic_partition().clone(),
            token: message.token(),
            offset: message.offset(),
        });
        message.ack();
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }

    fn figures(&self, connector: &ConsumerConnector, fetched: &AtomicU64) -> Figures {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Figures {
            handed: read(&self.handed),
            acknowledged: read(&self.acknowledged),
            toiling: read(&self.toiling),
            asking: read(&self.asking),
            fetched: read(fetched),
            late_acks: connector.health().late_acks,
        }
    }
}

/// Such a process from inside. Returns when it was told to leave and has left.
pub(super) fn work(config: Config, topics: Vec<(Topic, u32)>, work: &Work) {
    let fetched = fetched::count();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let (asks, asked) = mpsc::channel(1);
    // Ends the process when its parent is gone.
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if asks.blocking_send(line.expect("a line")).is_err() {
                return;
            }
        }
        std::process::exit(1);
    });
    runtime.block_on(serve(config, topics, work, asked, &fetched));
    std::process::exit(0);
}

async fn serve(
    config: Config,
    topics: Vec<(Topic, u32)>,
    work: &Work,
    mut asked: mpsc::Receiver<String>,
    fetched: &AtomicU64,
) {
    // Before anybody knows of us: without it the signal would end the process.
    let end = tokio::signal::unix::SignalKind::terminate();
    let mut end = tokio::signal::unix::signal(end).expect("a signal");
    let (toil, told) = watch::channel(false);
    let (desk, connector) = start(config, topics, work, told).await;
    loop {
        let command = tokio::select! {
            _ = end.recv() => break,
            Some(command) = asked.recv() => command,
        };
        match command.as_str() {
            "toil" => drop(toil.send_replace(true)),
            "commit" => {
                let failed = connector.commit().await.err();
                let failed = failed.map(|error| error.to_string());
                tell(&json!({"answer": "commit", "failed": failed}), "");
            }
            "figures" => {
                let figures = desk.figures(&connector, fetched);
                tell(&json!({"answer": "figures", "figures": figures}), "");
            }
            _ => panic!("not understood: {command}"),
        }
    }
    let farewell = connector.shutdown(Duration::from_secs(20)).await;
    let forced = farewell.expect("a clean end").forced.len();
    desk.journal.note(Fact::Other("stop".into()));
    tell(&json!({"answer": "left", "forced": forced}), "");
}

async fn start(
    config: Config,
    topics: Vec<(Topic, u32)>,
    work: &Work,
    toil: watch::Receiver<bool>,
) -> (Arc<Desk>, ConsumerConnector) {
    let group = config.group.clone();
    let mut builder = ConsumerConnector::builder(config);
    if let Some(host) = &work.host {
        let chance = format!("{:016x}", random(u64::from(std::process::id())));
        let context = IdContext::new(host, &group, chance).expect("a host's name");
        builder = builder.with_id_context(context);
    }
    let connector = builder.connect().await.expect("the servers are there");
    let name = connector.consumer_id().as_str();
    let (joins, joined) = watch::channel(0);
    let desk = Arc::new(Desk {
        journal: Journal::create(&work.folder, name, work.incarnation),
        hold: Duration::from_millis(work.hold_ms),
        handed: AtomicU64::new(0),
        acknowledged: AtomicU64::new(0),
        toiling: AtomicU64::new(0),
        asking: AtomicU64::new(0),
        toil,
        joined,
    });
    desk.journal.note(Fact::Other("start".into()));
    let (heard, mut events) = (desk.clone(), connector.events());
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            heard.journal.hear(&event);
            tell(&told(&event), "");
            if let Event::Joined { .. } = event {
                joins.send_modify(|joins| *joins += 1);
            }
        }
    });
    let streams = connector.streams(topics).await.expect("it joins");
    // The harness has begun a line.
    tell(&json!({"joined": name}), "\n");
    for stream in streams.into_values().flatten() {
        tokio::spawn(read(stream, desk.clone(), work.keep));
    }
    (desk, connector)
}

async fn read(mut stream: MessageStream, desk: Arc<Desk>, keep: Option<usize>) {
    if let Some(keep) = keep {
        take_and_keep(&mut stream, &desk, keep).await;
    }
    while let Some(message) = stream.recv_owned().await {
        desk.handed(&message);
        if desk.hold.is_zero() {
            desk.done(message);
            continue;
        }
        let desk = desk.clone();
        tokio::spawn(async move {
            tokio::time::sleep(desk.hold).await;
            desk.done(message);
        });
    }
}

async fn take_and_keep(stream: &mut MessageStream, desk: &Arc<Desk>, keep: usize) {
    let mut kept = Vec::new();
    for number in 0..keep {
        let message = stream.recv_owned().await.expect("the stream goes on");
        desk.handed(&message);
        if number < keep * 3 / 5 {
            desk.done(message);
        } else {
            kept.push(message);
        }
    }
    let mut toil = desk.toil.clone();
    toil.wait_for(|told| *told)
        .await
        .expect("its sender lives on");
    desk.toiling.fetch_add(1, Ordering::Relaxed);
    stand_still();
    desk.asking.fetch_add(1, Ordering::Relaxed);
    let rest = kept.split_off(kept.len() / 2);
    let (desk, mut joined) = (desk.clone(), desk.joined.clone());
    tokio::spawn(async move {
        for message in kept {
            desk.done(message);
        }
        joined.wait_for(|joins| *joins > 1).await.expect("as above");
        for message in rest {
            desk.done(message);
        }
    });
}

/// Ends when this process has stood still, as soon as this thread can run: the naps are short.
fn stand_still() {
    let mut last = now();
    loop {
        let moment = now();
        if moment - last > STILL_NS {
            return;
        }
        last = moment;
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// How many messages librdkafka has put into its queues, by its own log: nothing else tells what it holds that nobody asked for.
mod fetched {
    use std::fmt::Debug;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering;

    use tracing::field::Field;
    use tracing::field::Visit;
    use tracing::span;
    use tracing::{Event, Metadata, Subscriber};

    struct Ear(Arc<AtomicU64>);

    impl Subscriber for Ear {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "librdkafka"
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            event.record(&mut Count(&self.0));
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    struct Count<'a>(&'a AtomicU64);

    impl Visit for Count<'_> {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            if field.name() == "message"
                && let Some(count) = enqueued(&format!("{value:?}"))
            {
                self.0.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    /// `… Enqueue 342 message(s) (34200 bytes, …`
    fn enqueued(line: &str) -> Option<u64> {
        let (_, rest) = line.split_once("Enqueue ")?;
        let mut words = rest.split(' ');
        let count = words.next()?.parse().ok()?;
        (words.next()? == "message(s)").then_some(count)
    }

    pub(super) fn count() -> Arc<AtomicU64> {
        let count = Arc::new(AtomicU64::new(0));
        tracing::subscriber::set_global_default(Ear(count.clone())).expect("the only one");
        count
    }
}
