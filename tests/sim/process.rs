//! A member as a process: it can be stopped, which is not to be polled, and killed, which is to be forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel::event::LostCause;
use evenkeel::listener::{Outside, Ran, RebalanceListener};
use evenkeel::registry::Later;
use evenkeel::{ConsumerConnector, Message, MessageStream, StreamId, TopicPartition};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{Notify, OwnedMutexGuard, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use evenkeel::testing::check::{Fact, Phase};

use crate::book::{delivered, done};
use crate::facts::Facts;
use crate::plan::{Manner, Work};
use crate::trace::Line;

/// What a listener that panics says.
pub const PANIC: &str = "a listener that panics on purpose";

/// Whether a process runs.
#[derive(Clone, Default)]
pub struct Switch(Arc<Mutex<Power>>);

#[derive(Default)]
struct Power {
    is_off: bool,
    is_dead: bool,
    waiting: Vec<Waker>,
}

impl Switch {
    fn lock(&self) -> std::sync::MutexGuard<'_, Power> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on nothing under it is polled.
    pub fn stop(&self) {
        self.lock().is_off = true;
    }

    /// Nor ever again.
    pub fn kill(&self) {
        let mut power = self.lock();
        (power.is_off, power.is_dead) = (true, true);
    }

    /// It is again.
    pub fn go(&self) {
        let mut power = self.lock();
        if power.is_dead {
            return;
        }
        power.is_off = false;
        let wakers = std::mem::take(&mut power.waiting);
        drop(power);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The future as a part of this process.
    pub fn over<F: Future>(&self, future: F) -> Under<F> {
        Under {
            switch: self.clone(),
            future: Box::pin(future),
        }
    }
}

/// A future that is polled only as long as its process runs.
pub struct Under<F> {
    switch: Switch,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Under<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut power = self.switch.lock();
        if power.is_off {
            power.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        drop(power);
        self.future.as_mut().poll(cx)
    }
}

/// One process with one member in it.
pub struct Process {
    /// The member's id.
    pub name: String,
    /// The host it says it is on, and the random part of its id.
    pub host: String,
    pub random: String,
    /// Its handle; none once it was asked to leave.
    pub connector: Option<ConsumerConnector>,
    /// Whether it runs.
    pub switch: Switch,
    /// Its way to the servers.
    pub line: Line,
    /// Its coordinator and its readers.
    pub tasks: Vec<JoinHandle<()>>,
}

impl Process {
    /// The session it has, if it has one.
    pub fn session(&self) -> Option<i64> {
        self.connector.as_ref()?.health().session
    }
}

/// Whether everything is healed. It wakes those who wait in the order in which they came; tokio's `watch` rolls dice for that.
#[derive(Clone, Default)]
pub struct Calm(Arc<(AtomicBool, Notify)>);

impl Calm {
    /// It is, from now on.
    pub fn begin(&self) {
        self.0.0.store(true, Ordering::SeqCst);
        self.0.1.notify_waiters();
    }

    pub fn is_there(&self) -> bool {
        self.0.0.load(Ordering::SeqCst)
    }

    async fn comes(&self) {
        let notified = self.0.1.notified();
        if !self.is_there() {
            notified.await;
        }
    }
}

/// The application of one stream.
pub struct Application {
    pub name: String,
    pub facts: Facts,
    pub dice: StdRng,
    pub calm: Calm,
}

impl Application {
    pub fn new(name: &str, facts: &Facts, seed: u64, calm: Calm) -> Self {
        Self {
            name: name.to_owned(),
            facts: facts.clone(),
            dice: StdRng::seed_from_u64(seed),
            calm,
        }
    }

    pub async fn run(self, stream: MessageStream, work: Work) {
        match work {
            Work::Lend { ms } => self.lend(stream, ms).await,
            Work::Hold {
                messages,
                kept_one_in,
            } => self.hold(stream, messages, kept_one_in).await,
        }
    }

    async fn lend(mut self, mut stream: MessageStream, ms: u64) {
        while let Some(message) = stream.recv().await {
            let (at, token) = (message.topic_partition().clone(), message.token());
            let offset = message.offset();
            drop(message);
            self.facts.note(&self.name, delivered(&at, token, offset));
            let is_calm = self.calm.is_there();
            if ms > 0 && !is_calm {
                sleep(Duration::from_millis(self.dice.random_range(0..=ms))).await;
            }
            self.facts.note(&self.name, done(&at, token, offset));
        }
    }

    async fn hold(mut self, mut stream: MessageStream, messages: usize, kept_one_in: u64) {
        let (mut bag, mut kept): (Vec<Message>, Vec<Message>) = (Vec::new(), Vec::new());
        loop {
            if self.calm.is_there() {
                self.finish(&mut kept);
            }
            let next = tokio::select! {
                biased;
                next = stream.recv_owned() => Some(next),
                () = self.calm.comes(), if !kept.is_empty() => None,
                () = sleep(Duration::from_millis(40)), if !bag.is_empty() => None,
            };
            match next {
                Some(Some(message)) => {
                    let (token, offset) = (message.token(), message.offset());
                    let fact = delivered(message.topic_partition(), token, offset);
                    self.facts.note(&self.name, fact);
                    bag.push(message);
                }
                Some(None) => break,
                None => self.finish_some(&mut bag, &mut kept, kept_one_in),
            }
            if bag.len() >= messages {
                self.finish_some(&mut bag, &mut kept, kept_one_in);
            }
        }
        self.finish(&mut bag);
        self.finish(&mut kept);
    }

    /// One of them, whichever.
    fn finish_some(&mut self, bag: &mut Vec<Message>, kept: &mut Vec<Message>, kept_one_in: u64) {
        if bag.is_empty() {
            return;
        }
        let message = bag.swap_remove(self.dice.random_range(0..bag.len()));
        if !self.calm.is_there() && self.dice.random_range(0..kept_one_in) == 0 {
            kept.push(message);
        } else {
            self.finish(&mut vec![message]);
        }
    }

    fn finish(&self, messages: &mut Vec<Message>) {
        for message in messages.drain(..) {
            let (token, offset) = (message.token(), message.offset());
            let fact = done(message.topic_partition(), token, offset);
            self.facts.note(&self.name, fact);
            message.ack();
        }
    }
}

/// Writes down what it is told, and panics now and then.
pub struct Listener {
    /// Set as soon as the member has one.
    pub name: Arc<OnceLock<String>>,
    pub facts: Facts,
    pub panics: bool,
    pub calls: Mutex<u32>,
    /// How a call that takes its time ends, once it does.
    ending: Option<Ending>,
}

type Ending = Arc<Mutex<Option<Fact>>>;

impl Listener {
    /// Its calls end when the place says so, if there is one.
    pub fn new(
        name: &Arc<OnceLock<String>>,
        facts: &Facts,
        manner: &Manner,
        place: Option<&Place>,
    ) -> Self {
        Self {
            name: name.clone(),
            facts: facts.clone(),
            panics: manner.panics,
            calls: Mutex::new(0),
            ending: place.map(|place| place.ending.clone()),
        }
    }

    fn called<'a>(&self, call: &'static str, of: impl Iterator<Item = &'a TopicPartition>) {
        let partitions: Vec<TopicPartition> = of.cloned().collect();
        let fact = |phase| Fact::Callback {
            name: call.to_owned(),
            phase,
            partitions: partitions.clone(),
        };
        let name = self.name.get().expect("the member has begun");
        self.facts.note(name, fact(Phase::Enter));
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls += 1;
        let is_bad = self.panics && calls.is_multiple_of(3);
        drop(calls);
        let end = fact(if is_bad { Phase::Panic } else { Phase::Leave });
        match &self.ending {
            Some(ending) => *lock(ending) = Some(end),
            None => self.facts.note(name, end),
        }
        if is_bad {
            std::panic::panic_any(PANIC);
        }
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

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the calls of a listener run that takes its time over each: one after another, and whoever comes meanwhile waits for his turn.
#[derive(Clone)]
pub struct Place {
    name: Arc<OnceLock<String>>,
    facts: Facts,
    switch: Switch,
    time: Duration,
    turn: Arc<tokio::sync::Mutex<()>>,
    ending: Ending,
}

impl Place {
    /// A part of the process with this switch.
    pub fn new(
        name: &Arc<OnceLock<String>>,
        facts: &Facts,
        switch: &Switch,
        time: Duration,
    ) -> Self {
        Self {
            name: name.clone(),
            facts: facts.clone(),
            switch: switch.clone(),
            time,
            turn: Arc::default(),
            ending: Ending::default(),
        }
    }

    fn name(&self) -> &str {
        self.name.get().expect("the member has begun")
    }

    /// The call has begun; it ends in its time.
    async fn end(self, ran: Ran, turn: OwnedMutexGuard<()>) -> Ran {
        sleep(self.time).await;
        let end = lock(&self.ending).take();
        end.into_iter()
            .for_each(|end| self.facts.note(self.name(), end));
        drop(turn);
        ran
    }
}

fn begin(work: Box<dyn FnOnce() + Send>) -> Ran {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(()) => Ran::Done,
        Err(_) => Ran::Panicked(format!("it panicked: {PANIC}")),
    }
}

impl Outside for Place {
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> Later<Ran> {
        let place = self.clone();
        let (answer, answered) = oneshot::channel();
        match self.turn.clone().try_lock_owned() {
            Ok(turn) => {
                let ran = begin(work);
                tokio::spawn(self.switch.over(async move {
                    let _ = answer.send(place.end(ran, turn).await);
                }));
            }
            Err(_) => {
                self.facts.note(self.name(), Fact::Queued);
                tokio::spawn(self.switch.over(async move {
                    let turn = place.turn.clone().lock_owned().await;
                    let ran = begin(work);
                    let _ = answer.send(place.end(ran, turn).await);
                }));
            }
        }
        Box::pin(async move { answered.await.unwrap_or(Ran::Closed) })
    }
}
