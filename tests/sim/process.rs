//! A member as a process: it can be stopped, which is not to be polled, and killed, which is to be forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel::event::LostCause;
use evenkeel::listener::RebalanceListener;
use evenkeel::{ConsumerConnector, Message, MessageStream, StreamId, TopicPartition};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use evenkeel::testing::check::{Fact, Phase};

use crate::book::{delivered, done};
use crate::facts::Facts;
use crate::plan::{Manner, Work};

/// What a listener that panics says.
pub const PANIC: &str = "a listener that panics on purpose";

/// Whether a process runs.
#[derive(Clone, Default)]
pub struct Switch(Arc<Mutex<(bool, Vec<Waker>)>>);

impl Switch {
    fn lock(&self) -> std::sync::MutexGuard<'_, (bool, Vec<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on nothing under it is polled.
    pub fn stop(&self) {
        self.lock().0 = true;
    }

    /// It is again.
    pub fn go(&self) {
        let mut state = self.lock();
        state.0 = false;
        let wakers = std::mem::take(&mut state.1);
        drop(state);
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
        let mut state = self.switch.lock();
        if state.0 {
            state.1.push(cx.waker().clone());
            return Poll::Pending;
        }
        drop(state);
        self.future.as_mut().poll(cx)
    }
}

/// One process with one member in it.
pub struct Process {
    /// The member's id.
    pub name: String,
    /// The host it says it is on.
    pub host: String,
    /// Its handle; none once it was asked to leave.
    pub connector: Option<ConsumerConnector>,
    /// Whether it runs.
    pub switch: Switch,
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
    pub name: OnceLock<String>,
    pub facts: Facts,
    pub panics: bool,
    pub calls: Mutex<u32>,
}

impl Listener {
    pub fn new(facts: &Facts, manner: &Manner) -> Self {
        Self {
            name: OnceLock::new(),
            facts: facts.clone(),
            panics: manner.panics,
            calls: Mutex::new(0),
        }
    }

    fn called<'a>(&self, call: &'static str, of: impl Iterator<Item = &'a TopicPartition>) {
        let partitions: Vec<TopicPartition> = of.cloned().collect();
        let note = |phase| {
            let fact = Fact::Callback {
                name: call.to_owned(),
                phase,
                partitions: partitions.clone(),
            };
            let name = self.name.get().expect("the member has begun");
            self.facts.note(name, fact);
        };
        note(Phase::Enter);
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls += 1;
        let is_bad = self.panics && calls.is_multiple_of(3);
        drop(calls);
        note(if is_bad { Phase::Panic } else { Phase::Leave });
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
