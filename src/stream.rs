//! What an application reads from: streams of messages, and the promises of whoever fetches them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::Notify;

use crate::ack::{Freed, Ledger};
use crate::clock::LeaseClock;
use crate::error::Error;
use crate::group::{Topic, TopicPartition};
use crate::lease::{LeaseGuard, Moment};
use crate::registry::Later;
use crate::wire::Broker;

/// After so many messages of one partition a stream turns to its next.
const BURST: u32 = 500;

// ---- the promises of a reader ----

/// One message's content, wherever its bytes lie.
pub trait Content: Send + Sync {
    /// The offset in its partition.
    fn offset(&self) -> i64;
    /// The key, if it has one.
    fn key(&self) -> Option<&[u8]>;
    /// The payload; none is a tombstone.
    fn payload(&self) -> Option<&[u8]>;
    /// Milliseconds since the epoch, as the producer or the broker set it; none in the oldest format.
    fn timestamp_ms(&self) -> Option<i64>;
    /// The headers in their order; none in formats before 2.
    fn headers(&self) -> Vec<(&str, Option<&[u8]>)>;
}

/// What a look into a partition's queue found.
pub enum Polled {
    /// The next message.
    Message(Box<dyn Content>),
    /// Nothing at the moment. The bell is rung when there is.
    Empty,
    /// The partition cannot be read on from here; the queue gives nothing more.
    Trouble(Trouble),
}

/// Why a partition cannot be read on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The log does not have the offset that was asked for.
    OutOfRange,
    /// A broker or the client reported this; it is worth another try from the same position.
    Failed(String),
}

/// What was fetched of one partition since it was last started.
pub trait Queue: Send {
    /// Takes the next message without waiting.
    fn poll(&mut self) -> Polled;
}

/// Where to begin reading a partition, and the bell to ring whenever its queue becomes non-empty.
#[derive(Debug, Clone)]
pub struct Start {
    /// The partition.
    pub partition: TopicPartition,
    /// The first offset wanted.
    pub offset: i64,
    /// Rung when the queue, found empty before, has something; ringing too often does no harm.
    pub bell: Bell,
}

/// One end of a partition's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// The oldest offset there is.
    Earliest,
    /// The offset that the next message to be written will get.
    Latest,
}

/// Something about the brokers as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// No broker can be reached, for this reason. Told once until [`Notice::BrokersBack`].
    BrokersDown(String),
    /// One can be reached again.
    BrokersBack,
    /// Something else worth an event.
    Warning(String),
}

/// What became of each partition that was to be read.
pub type Opened = Vec<(TopicPartition, Result<Box<dyn Queue>, Error>)>;

/// Fetches messages. It decides nothing: positions, resets and commits are the member's.
pub trait Reader: Send + Sync {
    /// Begins to fetch these partitions, each from its offset; answers for each with its queue.
    /// A partition that is being fetched already begins anew; its old queue gives nothing more.
    fn read(&self, starts: Vec<Start>) -> Later<Opened>;

    /// Stops fetching these partitions. Does not wait, and does not mind one that is not being fetched.
    fn stop(&self, partitions: &[TopicPartition]);

    /// Asks the leader for one end of a partition's log.
    fn edge(&self, partition: &TopicPartition, edge: Edge) -> Later<Result<i64, Error>>;

    /// The next notice about the brokers; waits until there is one. Dropping the future loses none.
    fn notice(&self) -> Later<Notice>;

    /// Lets go of everything. Resolves when that is done, or cannot be done within the reader's own deadline.
    /// Messages that are still in somebody's hands stay readable.
    fn close(&self) -> Later<()>;
}

/// Makes a member's reader once it is known where the brokers are.
pub trait ReaderSource: Send + Sync {
    /// Whether the brokers must be found in ZooKeeper, since nobody named any.
    fn needs_brokers(&self) -> bool;

    /// Makes one for the brokers that are registered; they are ignored if others were named. `partitions` is how many are
    /// likely to be read at a time, which bounds what each may hold.
    ///
    /// # Errors
    /// A setting that the client refuses, or a registration from which no address can be had.
    fn open(&self, brokers: &[Broker], partitions: usize) -> Result<Arc<dyn Reader>, Error>;
}

// ---- what streams and the coordinator share ----

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic of the application's while it held a message must not take the member down.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes the one task that reads a stream. Rung while nobody waits, it is remembered once.
#[derive(Clone, Default)]
pub struct Bell(Arc<Notify>);

impl Bell {
    /// Rings it. Cheap, callable from any thread.
    pub fn ring(&self) {
        self.0.notify_one();
    }

    /// Waits for the next ring.
    pub async fn rung(&self) {
        self.0.notified().await;
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
}

impl Common {
    pub fn new(clock: Arc<dyn LeaseClock>) -> Self {
        Self {
            clock,
            troubles: Mutex::default(),
            troubled: Notify::new(),
            late_acks: AtomicU64::new(0),
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
    state: Mutex<State>,
    idle: Notify,
}

struct State {
    /// None until the start position is known.
    ledger: Option<Ledger>,
    is_fenced: bool,
    is_over: bool,
    /// Messages and detached tokens that may still be acknowledged.
    in_hand: usize,
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
            in_hand: 0,
        };
        Self {
            partition,
            token,
            lease,
            stream,
            state: Mutex::new(state),
            idle: Notify::new(),
        }
    }

    /// Reading begins, or begins anew, at this offset. What was handed out before stays in the ledger unless it begins anew
    /// elsewhere; then it is forgotten, since its acknowledgements would move the position back.
    pub fn start(&self, offset: i64) {
        let mut state = lock(&self.state);
        let forgotten = match &state.ledger {
            Some(ledger) => Freed {
                messages: ledger.len(),
                bytes: ledger.bytes(),
            },
            None => Freed::default(),
        };
        state.ledger = Some(Ledger::new(offset));
        self.stream.forget(forgotten);
    }

    /// The offset after the last message handed out, from which to read on after trouble.
    pub fn read_position(&self) -> Option<i64> {
        lock(&self.state).ledger.as_ref().map(Ledger::next)
    }

    pub fn is_fenced(&self) -> bool {
        lock(&self.state).is_fenced
    }

    /// From now on nothing is handed out. Acknowledgements still count.
    pub fn fence(&self) {
        lock(&self.state).is_fenced = true;
        self.stream.remove(&self.partition, self.token);
    }

    /// From now on acknowledgements do not count either. Answers with the last figures.
    pub fn end(&self) -> Progress {
        self.fence();
        let mut state = lock(&self.state);
        let progress = progress(&state);
        if !state.is_over {
            state.is_over = true;
            if let Some(ledger) = &state.ledger {
                self.stream.forget(Freed {
                    messages: ledger.len(),
                    bytes: ledger.bytes(),
                });
            }
        }
        progress
    }

    pub fn progress(&self) -> Progress {
        progress(&lock(&self.state))
    }

    /// Resolves when nothing is in anybody's hands any more. Meaningful after [`fence`](Self::fence).
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
    fn hand_out(self: &Arc<Self>, offset: i64, bytes: usize, now: Moment) -> Option<AckToken> {
        let mut state = lock(&self.state);
        if state.is_fenced || !state.ledger.as_mut()?.hand_out(offset, bytes, now) {
            return None;
        }
        state.in_hand += 1;
        self.stream.note(bytes);
        Some(AckToken {
            owed: Some((self.clone(), offset)),
        })
    }

    fn settle(&self, offset: i64, is_done: bool) {
        let mut state = lock(&self.state);
        state.in_hand -= 1;
        let is_idle = state.in_hand == 0;
        if is_done {
            let is_over = state.is_over;
            match &mut state.ledger {
                Some(ledger) if !is_over => {
                    let freed = ledger.done(offset);
                    self.stream.forget(freed);
                }
                _ => {
                    self.stream.common.late_acks.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        drop(state);
        if is_idle {
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

/// One partition that a stream reads.
struct Active {
    ownership: Arc<Ownership>,
    queue: Box<dyn Queue>,
    /// Taken from the queue and not handed out, since the lease had lapsed.
    stash: Option<Box<dyn Content>>,
}

#[derive(Default)]
struct Actives {
    list: Vec<Active>,
    cursor: usize,
    burst: u32,
}

/// The coordinator's end of a stream.
pub(crate) struct StreamCore {
    pub topic: Topic,
    pub number: u32,
    pub bell: Bell,
    common: Arc<Common>,
    bounds: Bounds,
    actives: Mutex<Actives>,
    is_closed: AtomicBool,
    is_stalled: AtomicBool,
    undone: AtomicUsize,
    bytes: AtomicUsize,
}

enum Step {
    Message(Message),
    Wait,
    Ended,
}

impl StreamCore {
    pub fn new(topic: Topic, number: u32, common: Arc<Common>, bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            topic,
            number,
            bell: Bell::default(),
            common,
            bounds,
            actives: Mutex::default(),
            is_closed: AtomicBool::new(false),
            is_stalled: AtomicBool::new(false),
            undone: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        })
    }

    /// Adds a partition that was started; an earlier queue of it is dropped.
    pub fn add(&self, ownership: Arc<Ownership>, queue: Box<dyn Queue>) {
        if ownership.is_fenced() {
            return;
        }
        let mut actives = lock(&self.actives);
        actives
            .list
            .retain(|active| active.ownership.partition != ownership.partition);
        actives.list.push(Active {
            ownership,
            queue,
            stash: None,
        });
        drop(actives);
        self.bell.ring();
    }

    fn remove(&self, partition: &TopicPartition, token: i64) {
        let mut actives = lock(&self.actives);
        let is_it = |active: &Active| {
            active.ownership.token == token && active.ownership.partition == *partition
        };
        let gone: Vec<Active> = actives
            .list
            .extract_if(.., |active| is_it(active))
            .collect();
        drop(actives);
        // Dropping a queue calls into the client's library; not under the lock.
        drop(gone);
    }

    /// The stream ends: `recv` answers none.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Delivery waits until something is acknowledged.
    pub fn is_at_bound(&self) -> bool {
        self.undone.load(Ordering::SeqCst) >= self.bounds.messages
            || self.bytes.load(Ordering::SeqCst) >= self.bounds.bytes
    }

    /// The lease was renewed: wakes the reader if it waits for that.
    pub fn lease_renewed(&self) {
        if self.is_stalled.swap(false, Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    fn note(&self, bytes: usize) {
        self.undone.fetch_add(1, Ordering::SeqCst);
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    fn forget(&self, freed: Freed) {
        if freed.messages == 0 {
            return;
        }
        let was_at_bound = self.is_at_bound();
        self.undone.fetch_sub(freed.messages, Ordering::SeqCst);
        self.bytes.fetch_sub(freed.bytes, Ordering::SeqCst);
        if was_at_bound {
            self.bell.ring();
        }
    }

    fn step(&self) -> Step {
        if self.is_closed.load(Ordering::Acquire) {
            return Step::Ended;
        }
        if self.is_at_bound() {
            return Step::Wait;
        }
        let mut actives = lock(&self.actives);
        let mut empty = 0;
        while empty < actives.list.len() {
            if actives.burst >= BURST || actives.cursor >= actives.list.len() {
                actives.turn();
            }
            let cursor = actives.cursor;
            match self.take(&mut actives.list[cursor]) {
                Taken::Message(message) => {
                    actives.burst += 1;
                    return Step::Message(message);
                }
                Taken::Refused => actives.burst += 1,
                Taken::Lapsed => return Step::Wait,
                Taken::Nothing => {
                    empty += 1;
                    actives.turn();
                }
                Taken::Trouble(trouble) => {
                    let active = actives.list.swap_remove(cursor);
                    lock(&self.common.troubles).push((active.ownership, trouble));
                    self.common.troubled.notify_one();
                }
            }
        }
        Step::Wait
    }

    fn take(&self, active: &mut Active) -> Taken {
        let content = match active.stash.take() {
            Some(content) => content,
            None => match active.queue.poll() {
                Polled::Message(content) => content,
                Polled::Empty => return Taken::Nothing,
                Polled::Trouble(trouble) => return Taken::Trouble(trouble),
            },
        };
        // The clock is read after the message was taken, immediately before it is handed out.
        let now = self.common.clock.now();
        if !active.ownership.lease.is_valid(now) && !self.is_renewed(&active.ownership.lease) {
            active.stash = Some(content);
            return Taken::Lapsed;
        }
        let bytes = content.key().map_or(0, <[u8]>::len) + content.payload().map_or(0, <[u8]>::len);
        match active.ownership.hand_out(content.offset(), bytes, now) {
            Some(token) => Taken::Message(Message { content, token }),
            // Fenced, or below the position asked for (brokers send whole batches).
            None => Taken::Refused,
        }
    }

    /// Says that we wait for the lease, then looks once more: a renewal in between would not have seen us waiting.
    fn is_renewed(&self, lease: &LeaseGuard) -> bool {
        self.is_stalled.store(true, Ordering::SeqCst);
        lease.is_valid(self.common.clock.now())
    }
}

enum Taken {
    Message(Message),
    Refused,
    Lapsed,
    Nothing,
    Trouble(Trouble),
}

impl Actives {
    fn turn(&mut self) {
        self.burst = 0;
        self.cursor = if self.cursor + 1 < self.list.len() {
            self.cursor + 1
        } else {
            0
        };
    }
}

// ---- what an application holds ----

/// The right to say that a message is done. Dropping it says nothing: the message stays undone.
///
/// It belongs to one ownership of the partition. Used after that ended, it is counted and changes nothing.
#[must_use = "a message is done only once it is acknowledged"]
pub struct AckToken {
    owed: Option<(Arc<Ownership>, i64)>,
}

impl AckToken {
    /// The message is done. Once all before it are done too, its offset is committed with the next commit.
    pub fn ack(mut self) {
        if let Some((ownership, offset)) = self.owed.take() {
            ownership.settle(offset, true);
        }
    }

    fn owed(&self) -> (&Arc<Ownership>, i64) {
        let (ownership, offset) = self
            .owed
            .as_ref()
            .expect("it is taken only by the one who consumes the token");
        (ownership, *offset)
    }

    /// The partition of the message.
    pub fn partition(&self) -> &TopicPartition {
        &self.owed().0.partition
    }

    /// The offset of the message.
    pub fn offset(&self) -> i64 {
        self.owed().1
    }

    /// The fencing token of the ownership it belongs to: the transaction that created the owner node. It rises from owner
    /// to owner of a partition, JVM members included, as long as the ensemble's history is one.
    pub fn token(&self) -> i64 {
        self.owed().0.token
    }

    /// Whether the message may still be worked on: the partition is ours and the lease has not run out.
    pub fn is_valid(&self) -> bool {
        let ownership = self.owed().0;
        let is_over = lock(&ownership.state).is_over;
        !is_over
            && ownership
                .lease
                .is_valid(ownership.stream.common.clock.now())
    }
}

impl Drop for AckToken {
    fn drop(&mut self) {
        if let Some((ownership, offset)) = self.owed.take() {
            ownership.settle(offset, false);
        }
    }
}

impl fmt::Debug for AckToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AckToken({}@{})", self.partition(), self.offset())
    }
}

/// A message, with the right to acknowledge it. It is owned, `Send`, and its bytes are not copied: it keeps the buffer it
/// was fetched in alive, which holds its neighbours too; [`into_copied`](Self::into_copied) lets go of that.
pub struct Message {
    content: Box<dyn Content>,
    token: AckToken,
}

impl Message {
    /// The topic.
    pub fn topic(&self) -> &Topic {
        &self.token.partition().topic
    }

    /// The partition's number.
    pub fn partition(&self) -> i32 {
        self.token.partition().partition
    }

    /// Topic and partition.
    pub fn topic_partition(&self) -> &TopicPartition {
        self.token.partition()
    }

    /// The offset in the partition.
    pub fn offset(&self) -> i64 {
        self.content.offset()
    }

    /// The key, if it has one.
    pub fn key(&self) -> Option<&[u8]> {
        self.content.key()
    }

    /// The payload; none is a tombstone.
    pub fn payload(&self) -> Option<&[u8]> {
        self.content.payload()
    }

    /// Milliseconds since the epoch, as the producer or the broker set it; none in the oldest format.
    pub fn timestamp_ms(&self) -> Option<i64> {
        self.content.timestamp_ms()
    }

    /// The headers in their order; none in formats before 2.
    pub fn headers(&self) -> Vec<(&str, Option<&[u8]>)> {
        self.content.headers()
    }

    /// The fencing token of the ownership, for a sink that refuses older ones. See [`AckToken::token`].
    pub fn token(&self) -> i64 {
        self.token.token()
    }

    /// Whether it may still be worked on. See [`AckToken::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.token.is_valid()
    }

    /// The message is done.
    pub fn ack(self) {
        self.token.ack();
    }

    /// Takes the message apart into the right to acknowledge it and a copy of its content.
    pub fn detach(self) -> (AckToken, Copied) {
        let copied = Copied::of(&*self.content);
        (self.token, copied)
    }

    /// The same message with its bytes copied, so that it does not keep the buffer it was fetched in.
    #[must_use]
    pub fn into_copied(self) -> Self {
        let (token, copied) = self.detach();
        Self {
            content: Box::new(copied),
            token,
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({}@{})", self.topic_partition(), self.offset())
    }
}

/// A message's content as a copy of its own, without the right to acknowledge it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Copied {
    /// The offset in its partition.
    pub offset: i64,
    /// The key, if it has one.
    pub key: Option<Vec<u8>>,
    /// The payload; none is a tombstone.
    pub payload: Option<Vec<u8>>,
    /// Milliseconds since the epoch.
    pub timestamp_ms: Option<i64>,
    /// The headers in their order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Copied {
    fn of(content: &dyn Content) -> Self {
        let header =
            |(name, value): (&str, Option<&[u8]>)| (name.to_owned(), value.map(<[u8]>::to_vec));
        Self {
            offset: content.offset(),
            key: content.key().map(<[u8]>::to_vec),
            payload: content.payload().map(<[u8]>::to_vec),
            timestamp_ms: content.timestamp_ms(),
            headers: content.headers().into_iter().map(header).collect(),
        }
    }
}

impl Content for Copied {
    fn offset(&self) -> i64 {
        self.offset
    }
    fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }
    fn payload(&self) -> Option<&[u8]> {
        self.payload.as_deref()
    }
    fn timestamp_ms(&self) -> Option<i64> {
        self.timestamp_ms
    }
    fn headers(&self) -> Vec<(&str, Option<&[u8]>)> {
        self.headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref()))
            .collect()
    }
}

/// A message that is lent until the next one is asked for, which marks it done.
pub struct Lent<'a> {
    message: Box<dyn Content>,
    stream: &'a mut MessageStream,
}

impl Lent<'_> {
    /// Leaves the message undone, as after a handler that failed: nothing at or after its offset is committed in this
    /// ownership, and the next owner, or this member after it claimed the partition anew, delivers it again.
    pub fn leave_undone(self) {
        self.stream.lent = None;
    }
}

/// A lent message reads like an owned one.
impl Lent<'_> {
    fn token(&self) -> &AckToken {
        self.stream
            .lent
            .as_ref()
            .expect("it is there as long as the message is lent")
    }

    /// Topic and partition.
    pub fn topic_partition(&self) -> &TopicPartition {
        self.token().partition()
    }

    /// The topic.
    pub fn topic(&self) -> &Topic {
        &self.topic_partition().topic
    }

    /// The partition's number.
    pub fn partition(&self) -> i32 {
        self.topic_partition().partition
    }

    /// The fencing token of the ownership. See [`AckToken::token`].
    pub fn fencing_token(&self) -> i64 {
        self.token().token()
    }

    /// Whether it may still be worked on. See [`AckToken::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.token().is_valid()
    }
}

impl Deref for Lent<'_> {
    type Target = dyn Content;

    fn deref(&self) -> &(dyn Content + 'static) {
        &*self.message
    }
}

impl fmt::Debug for Lent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Lent({}@{})",
            self.topic_partition(),
            self.message.offset()
        )
    }
}

/// One stream of messages: those of the partitions that its number owns at the moment.
///
/// Works from any executor; every call that waits is cancel-safe. Messages of one partition come in order.
/// A stream that is dropped delivers nothing more; its partitions stay with the member until it leaves.
pub struct MessageStream {
    core: Arc<StreamCore>,
    lent: Option<AckToken>,
}

impl MessageStream {
    pub(crate) fn new(core: Arc<StreamCore>) -> Self {
        Self { core, lent: None }
    }

    /// The topic it reads.
    pub fn topic(&self) -> &Topic {
        &self.core.topic
    }

    /// Its number among the member's streams of the topic, from 0.
    pub fn number(&self) -> u32 {
        self.core.number
    }

    /// Lends the next message; `None` once the member has left. Asking again marks the lent one done.
    ///
    /// To stop after a message and have it count, call [`done`](Self::done) before leaving. One that is still lent when
    /// the stream is dropped is not done.
    pub async fn recv(&mut self) -> Option<Lent<'_>> {
        let Message { content, token } = self.next().await?;
        self.lent = Some(token);
        Some(Lent {
            message: content,
            stream: self,
        })
    }

    /// Hands the next message over; `None` once the member has left. Only [`Message::ack`] marks it done.
    pub async fn recv_owned(&mut self) -> Option<Message> {
        self.next().await
    }

    /// Hands over up to `max` messages: what is there, at least one. Empty once the member has left, or if `max` is 0.
    pub async fn recv_many(&mut self, max: usize) -> Vec<Message> {
        let mut messages = Vec::new();
        if max == 0 {
            return messages;
        }
        messages.extend(self.next().await);
        while !messages.is_empty() && messages.len() < max {
            match self.core.step() {
                Step::Message(message) => messages.push(message),
                Step::Wait | Step::Ended => break,
            }
        }
        messages
    }

    /// Marks the lent message, if there is one, done without asking for the next.
    pub fn done(&mut self) {
        if let Some(token) = self.lent.take() {
            token.ack();
        }
    }

    /// The same as a [`Stream`] of owned messages.
    pub fn into_messages(self) -> Messages {
        Messages(Box::pin(unfold(self, |mut stream| async move {
            let message = stream.recv_owned().await?;
            Some((message, stream))
        })))
    }

    async fn next(&mut self) -> Option<Message> {
        self.done();
        loop {
            match self.core.step() {
                Step::Message(message) => return Some(message),
                Step::Ended => return None,
                Step::Wait => self.core.bell.rung().await,
            }
        }
    }
}

impl fmt::Debug for MessageStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageStream({}/{})", self.core.topic, self.core.number)
    }
}

/// A [`Stream`] of owned messages; ends when the member has left.
pub struct Messages(Pin<Box<dyn Stream<Item = Message> + Send>>);

impl Stream for Messages {
    type Item = Message;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Message>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Messages")
    }
}

/// The streams of a member: topic, then one for each stream number.
pub type Streams = BTreeMap<Topic, Vec<MessageStream>>;
