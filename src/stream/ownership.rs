//! One ownership of one partition: what was handed out of it, and the fence.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::ack::{Freed, Ledger, Pass};
use crate::clock::LeaseClock;
use crate::group::TopicPartition;
use crate::lease::{LeaseGuard, Moment};

use crate::stream::core::StreamCore;
use crate::stream::message::AckToken;
use crate::stream::reader::Trouble;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic of the application's while it held a message must not take the member down.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes the one task that reads a stream. Rung while nobody waits, it is remembered once.
#[derive(Clone, Default)]
pub struct Bell {
    reader: Arc<Notify>,
    /// Up since a ring: which of the partitions behind one stream's bell it was.
    flag: Option<Arc<AtomicBool>>,
}

impl Bell {
    /// Rings it. Cheap, callable from any thread.
    pub fn ring(&self) {
        if let Some(flag) = &self.flag {
            flag.store(true, Ordering::SeqCst);
        }
        self.reader.notify_one();
    }

    /// Waits for the next ring.
    pub async fn rung(&self) {
        self.reader.notified().await;
    }

    /// The same bell with a flag that goes up with every ring of this handle.
    fn with_flag(&self, flag: Arc<AtomicBool>) -> Self {
        Self {
            reader: self.reader.clone(),
            flag: Some(flag),
        }
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bell")
    }
}

/// How much of a stream may be in somebody's hands without being done; beyond it delivery waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Messages.
    pub messages: usize,
    /// Bytes of keys and payloads.
    pub bytes: usize,
}

/// What is common to all streams of a member.
pub(crate) struct Common {
    pub clock: Arc<dyn LeaseClock>,
    troubles: Mutex<Vec<(Arc<Ownership>, Trouble)>>,
    troubled: Notify,
    late_acks: AtomicU64,
    silences: AtomicU64,
}

impl Common {
    pub fn new(clock: Arc<dyn LeaseClock>) -> Self {
        Self {
            clock,
            troubles: Mutex::default(),
            troubled: Notify::new(),
            late_acks: AtomicU64::new(0),
            silences: AtomicU64::new(0),
        }
    }

    /// Waits until a stream met trouble, and takes what there is. Nothing is lost if the wait is dropped.
    pub async fn troubles(&self) -> Vec<(Arc<Ownership>, Trouble)> {
        loop {
            let taken = std::mem::take(&mut *lock(&self.troubles));
            if !taken.is_empty() {
                return taken;
            }
            self.troubled.notified().await;
        }
    }

    /// A partition cannot be read on: somebody will have to begin it anew.
    pub(super) fn report(&self, ownership: Arc<Ownership>, trouble: Trouble) {
        lock(&self.troubles).push((ownership, trouble));
        self.troubled.notify_one();
    }

    fn note_late_ack(&self) {
        self.late_acks.fetch_add(1, Ordering::Relaxed);
    }

    /// A partition gave nothing although its log goes on, and is begun anew.
    pub fn note_silence(&self) {
        self.silences.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was so.
    pub fn silences(&self) -> u64 {
        self.silences.load(Ordering::Relaxed)
    }

    /// How many acknowledgements came for an ownership that had ended.
    pub fn late_acks(&self) -> u64 {
        self.late_acks.load(Ordering::Relaxed)
    }
}

/// One ownership of one partition: from the claim until it is released or lost.
///
/// The coordinator and the stream both hold it. Handing a message out and fencing exclude each other, so that after
/// [`fence`](Self::fence) returns, nothing more is handed out.
pub(crate) struct Ownership {
    pub partition: TopicPartition,
    /// The transaction that created the owner node.
    pub token: i64,
    pub lease: Arc<LeaseGuard>,
    pub stream: Arc<StreamCore>,
    /// Its queue was filled since this was last taken down.
    flag: Arc<AtomicBool>,
    /// The owner node has changed, and nobody has read it since.
    is_doubted: Arc<AtomicBool>,
    state: Mutex<State>,
    idle: Notify,
}

struct State {
    /// None until the start position is known.
    ledger: Option<Ledger>,
    is_fenced: bool,
    is_over: bool,
    /// Counts the beginnings: a message of an earlier one says nothing about the same offset of a later one.
    beginning: u32,
    /// Messages and detached tokens that may still be acknowledged.
    in_hand: usize,
}

/// What came of the wish to settle one message and be handed out another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exchange {
    /// Both was done.
    Done,
    /// The other may not be handed out, now or later; the first is not settled.
    Refused,
    /// They do not belong together; neither was done.
    NotNow,
}

/// What came of the wish to pass a message. `next` is the lowest offset that may be handed out next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passing {
    /// It was handed out and is done now.
    Done,
    /// It will not be handed out.
    ToCome,
    /// It is done, or there was no message at that offset.
    Behind { next: i64 },
    /// It lies further ahead than allowed.
    TooFar { next: i64 },
    /// Where reading begins is not known yet.
    NotBegun,
    /// The ownership ended, or is ending and hands out nothing more.
    Over,
}

/// A few figures about one ownership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// What to commit; none until reading has begun.
    pub position: Option<i64>,
    /// Messages handed out and not committable.
    pub undone: usize,
    /// The oldest of them.
    pub oldest: Option<(i64, Moment)>,
}

impl Ownership {
    pub fn new(
        partition: TopicPartition,
        token: i64,
        lease: Arc<LeaseGuard>,
        stream: Arc<StreamCore>,
    ) -> Self {
        let state = State {
            ledger: None,
            is_fenced: false,
            is_over: false,
            beginning: 0,
            in_hand: 0,
        };
        Self {
            partition,
            token,
            lease,
            stream,
            flag: Arc::default(),
            is_doubted: Arc::default(),
            state: Mutex::new(state),
            idle: Notify::new(),
        }
    }

    /// The stream's bell, which also says that it was this partition.
    pub fn bell(&self) -> Bell {
        self.stream.bell.with_flag(self.flag.clone())
    }

    /// Whether the bell was rung since the flag was taken down.
    pub(super) fn was_rung(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }

    /// Takes the flag down. What is in the queue by then must be looked for afterwards.
    pub(super) fn lower_flag(&self) {
        self.flag.store(false, Ordering::SeqCst);
    }

    /// Reading begins, or begins anew, at this offset. What was handed out before stays in the ledger unless it begins anew
    /// elsewhere; then it is forgotten, since its acknowledgements would move the position back.
    pub fn start(&self, offset: i64) {
        let mut state = lock(&self.state);
        self.free(&state);
        state.ledger = Some(Ledger::new(offset));
        state.beginning += 1;
    }

    /// The offset after the last message handed out, from which to read on after trouble.
    pub fn read_position(&self) -> Option<i64> {
        lock(&self.state).ledger.as_ref().map(Ledger::next)
    }

    /// Whether messages of it may still be worked on.
    pub fn is_valid(&self) -> bool {
        let is_over = lock(&self.state).is_over;
        !is_over && self.lease.is_valid(self.stream.common.clock.now())
    }

    pub fn is_fenced(&self) -> bool {
        lock(&self.state).is_fenced
    }

    /// The owner node has changed: nothing is handed out until it was read and found to be ours still.
    pub fn doubt(&self) {
        self.is_doubted.store(true, Ordering::SeqCst);
    }

    /// Raised, it is a [`doubt`](Self::doubt).
    pub fn alarm(&self) -> Arc<AtomicBool> {
        self.is_doubted.clone()
    }

    /// It is ours.
    pub fn trust(&self) {
        if self.is_doubted.swap(false, Ordering::SeqCst) {
            self.stream.bell.ring();
        }
    }

    pub(super) fn is_doubted(&self) -> bool {
        self.is_doubted.load(Ordering::SeqCst)
    }

    /// From now on nothing is handed out. Acknowledgements still count.
    pub fn fence(&self) {
        lock(&self.state).is_fenced = true;
        self.stream.remove(&self.partition, self.token);
    }

    /// Nothing is handed out until reading is begun anew.
    pub fn pause(&self) {
        self.stream.remove(&self.partition, self.token);
    }

    /// What was handed out counts no more, since reading will begin elsewhere: there is no position to commit until it has.
    pub fn forget(&self) {
        self.pause();
        let mut state = lock(&self.state);
        state.beginning += 1;
        self.free(&state);
        state.ledger = None;
    }

    /// The stream counts what was handed out no more, unless the end has seen to that.
    fn free(&self, state: &State) {
        if let Some(ledger) = state.ledger.as_ref().filter(|_| !state.is_over) {
            self.stream.forget(Freed {
                messages: ledger.len(),
                bytes: ledger.bytes(),
            });
        }
    }

    /// From now on acknowledgements do not count either. Answers with the last figures.
    pub fn end(&self) -> Progress {
        self.fence();
        let mut state = lock(&self.state);
        let progress = progress(&state);
        self.free(&state);
        state.is_over = true;
        progress
    }

    pub fn progress(&self) -> Progress {
        progress(&lock(&self.state))
    }

    /// Has the message at an offset count as done. `ahead` bounds how far off one may be that is still to come.
    pub fn pass(&self, offset: i64, ahead: i64) -> Passing {
        let mut state = lock(&self.state);
        let (is_over, is_fenced) = (state.is_over, state.is_fenced);
        let Some(ledger) = &mut state.ledger else {
            return Passing::NotBegun;
        };
        let next = ledger.next();
        // What is being given up hands out no more; what it handed out may still be done.
        if is_over || is_fenced && offset >= next {
            return Passing::Over;
        }
        match ledger.pass(offset, ahead) {
            Pass::Done(freed) => {
                self.stream.forget(freed);
                Passing::Done
            }
            Pass::ToCome => Passing::ToCome,
            Pass::Behind => Passing::Behind { next },
            Pass::TooFar => Passing::TooFar { next },
        }
    }

    /// Resolves when nothing is in anybody's hands any more. Only for after [`fence`](Self::fence); before it, nobody is woken.
    pub async fn drained(&self) {
        loop {
            let idle = self.idle.notified();
            let mut idle = std::pin::pin!(idle);
            idle.as_mut().enable();
            if self.is_drained() {
                return;
            }
            idle.await;
        }
    }

    pub fn is_drained(&self) -> bool {
        lock(&self.state).in_hand == 0
    }

    /// Notes that a message is handed out; `None` if it may not be.
    pub(super) fn hand_out(
        self: &Arc<Self>,
        offset: i64,
        bytes: usize,
        now: Moment,
    ) -> Option<AckToken> {
        let mut state = lock(&self.state);
        if state.is_fenced {
            return None;
        }
        let ledger = state.ledger.as_mut()?;
        let is_passed = ledger.is_passed(offset);
        let bytes = if is_passed { 0 } else { bytes };
        if !ledger.hand_out(offset, bytes, now) {
            return None;
        }
        self.stream.note(bytes);
        if is_passed {
            // It takes its place, so that nothing behind what is before it is committed, and is in nobody's hands.
            let freed = ledger.done(offset);
            self.stream.forget(freed);
            return None;
        }
        state.in_hand += 1;
        Some(AckToken::new(self.clone(), offset, state.beginning))
    }

    /// Settles a message as done and hands out another for it, `offset` taking the place of `done`.
    pub(super) fn exchange(
        &self,
        done: (i64, u32),
        offset: i64,
        bytes: usize,
        now: Moment,
    ) -> Exchange {
        let mut state = lock(&self.state);
        let (done, beginning) = done;
        if state.is_fenced {
            return Exchange::Refused;
        }
        if state.beginning != beginning {
            return Exchange::NotNow;
        }
        let Some(ledger) = &mut state.ledger else {
            return Exchange::NotNow;
        };
        if ledger.is_passed(offset) {
            return Exchange::NotNow;
        }
        if !ledger.hand_out(offset, bytes, now) {
            return Exchange::Refused;
        }
        let freed = ledger.done(done);
        self.stream.exchange(bytes, freed);
        Exchange::Done
    }

    pub(super) fn settle(&self, offset: i64, beginning: u32, is_done: bool) {
        let mut state = lock(&self.state);
        state.in_hand -= 1;
        // Only who has fenced it waits for that.
        let is_awaited = state.in_hand == 0 && state.is_fenced;
        if is_done {
            let is_late = state.is_over || state.beginning != beginning;
            match &mut state.ledger {
                Some(ledger) if !is_late => {
                    let freed = ledger.done(offset);
                    self.stream.forget(freed);
                }
                _ => {
                    self.stream.common.note_late_ack();
                }
            }
        }
        drop(state);
        if is_awaited {
            self.idle.notify_waiters();
        }
    }
}

fn progress(state: &State) -> Progress {
    match &state.ledger {
        Some(ledger) => Progress {
            position: Some(ledger.position()),
            undone: ledger.len(),
            oldest: ledger.oldest(),
        },
        None => Progress {
            position: None,
            undone: 0,
            oldest: None,
        },
    }
}

impl fmt::Debug for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.partition, self.token)
    }
}
