//! The coordinator's end of a stream: its partitions, polled in turn, each message checked before it is handed out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::ack::Freed;
use crate::group::{Topic, TopicPartition};
use crate::lease::LeaseGuard;

use crate::stream::message::{AckToken, Message};
use crate::stream::ownership::{Bell, Bounds, Common, Exchange, Ownership, lock};
use crate::stream::reader::{Content, Polled, Queue, Trouble};

/// After so many messages of one partition a stream turns to its next.
const BURST: u32 = 500;

/// One partition that a stream reads.
struct Active {
    ownership: Arc<Ownership>,
    queue: Box<dyn Queue>,
    /// The queue was not found empty yet, or its bell has been rung since.
    has_more: bool,
    /// Taken from the queue and not handed out, since the lease had lapsed.
    stash: Option<Box<dyn Content>>,
}

#[derive(Default)]
struct Actives {
    list: Vec<Active>,
    cursor: usize,
    burst: u32,
}

/// Messages and bytes in somebody's hands, in one word: both are changed for every message.
///
/// 36 bits of bytes reach for 64 GiB, beyond any bound.
#[derive(Default)]
struct Undone(AtomicU64);

impl Undone {
    const BYTES: u32 = 36;

    fn word(messages: usize, bytes: usize) -> u64 {
        (messages as u64) << Self::BYTES | bytes as u64
    }

    fn is_reached(word: u64, bounds: Bounds) -> bool {
        let (messages, bytes) = (word >> Self::BYTES, word & ((1 << Self::BYTES) - 1));
        messages >= bounds.messages as u64 || bytes >= bounds.bytes as u64
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(Self::word(1, bytes), Ordering::SeqCst);
    }

    /// Answers whether the bound had been reached until then.
    fn remove(&self, freed: Freed, bounds: Bounds) -> bool {
        let freed = Self::word(freed.messages, freed.bytes);
        let before = self.0.fetch_sub(freed, Ordering::SeqCst);
        debug_assert!(before >= freed, "freed twice: {freed} of {before}");
        Self::is_reached(before, bounds)
    }

    fn exchange(&self, bytes: usize, freed: Freed) {
        let change = Self::word(1, bytes).wrapping_sub(Self::word(freed.messages, freed.bytes));
        self.0.fetch_add(change, Ordering::SeqCst);
    }

    fn has_reached(&self, bounds: Bounds) -> bool {
        Self::is_reached(self.0.load(Ordering::SeqCst), bounds)
    }
}

/// The coordinator's end of a stream.
pub(crate) struct StreamCore {
    pub topic: Topic,
    pub number: u32,
    pub bell: Bell,
    pub(super) common: Arc<Common>,
    bounds: Bounds,
    actives: Mutex<Actives>,
    is_closed: AtomicBool,
    is_stalled: AtomicBool,
    undone: Undone,
}

pub(super) enum Step {
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
            undone: Undone::default(),
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
            has_more: true,
            stash: None,
        });
        drop(actives);
        self.bell.ring();
    }

    pub(super) fn remove(&self, partition: &TopicPartition, token: i64) {
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

    /// The partitions whose queue was found empty and whose bell has not been rung since. None at the bound, where nobody asks.
    pub fn silent(&self) -> Vec<Arc<Ownership>> {
        if self.is_at_bound() {
            return Vec::new();
        }
        let actives = lock(&self.actives);
        let silent = actives.list.iter().filter(|active| active.is_silent());
        silent.map(|active| active.ownership.clone()).collect()
    }

    /// Delivery waits until something is acknowledged.
    pub fn is_at_bound(&self) -> bool {
        self.undone.has_reached(self.bounds)
    }

    /// The lease was renewed: wakes the reader if it waits for that.
    pub fn lease_renewed(&self) {
        if self.is_stalled.swap(false, Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    pub(super) fn note(&self, bytes: usize) {
        self.undone.add(bytes);
    }

    /// As a [`note`](Self::note) and a [`forget`](Self::forget). Nobody is woken: who reads the stream is the one who asks.
    pub(super) fn exchange(&self, bytes: usize, freed: Freed) {
        self.undone.exchange(bytes, freed);
    }

    pub(super) fn forget(&self, freed: Freed) {
        if freed.messages == 0 {
            return;
        }
        if self.undone.remove(freed, self.bounds) {
            self.bell.ring();
        }
    }

    pub(super) fn step(&self) -> Step {
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
                    self.common.report(active.ownership, trouble);
                }
            }
        }
        Step::Wait
    }

    /// The short way from a lent message to the next of the same partition: the one is done and the other handed out at
    /// once. `None` if it leads nowhere; nothing is lost then, and [`step`](Self::step) goes on, once the lent one is settled.
    pub(super) fn follow(&self, lent: &mut AckToken) -> Option<Box<dyn Content>> {
        if self.is_closed.load(Ordering::Acquire) || self.is_at_bound() {
            return None;
        }
        let mut actives = lock(&self.actives);
        if actives.burst >= BURST {
            return None;
        }
        actives.burst += 1;
        let cursor = actives.cursor;
        let active = actives.list.get_mut(cursor)?;
        if active.stash.is_some() || !lent.is_of(&active.ownership) {
            return None;
        }
        let content = match active.poll() {
            Polled::Message(content) => content,
            Polled::Empty => return None,
            Polled::Trouble(trouble) => {
                let active = actives.list.swap_remove(cursor);
                self.common.report(active.ownership, trouble);
                return None;
            }
        };
        let now = self.common.clock.now();
        let exchanged = if active.ownership.lease.is_valid(now) && !active.ownership.is_doubted() {
            lent.exchange(content.offset(), size(&*content), now)
        } else {
            Exchange::NotNow
        };
        match exchanged {
            Exchange::Done => Some(content),
            Exchange::Refused => None,
            Exchange::NotNow => {
                active.stash = Some(content);
                None
            }
        }
    }

    fn take(&self, active: &mut Active) -> Taken {
        let content = match active.stash.take() {
            Some(content) => content,
            None => match active.poll() {
                Polled::Message(content) => content,
                Polled::Empty => return Taken::Nothing,
                Polled::Trouble(trouble) => return Taken::Trouble(trouble),
            },
        };
        if active.ownership.is_doubted() {
            active.stash = Some(content);
            return Taken::Nothing;
        }
        // The clock is read after the message was taken, immediately before it is handed out.
        let now = self.common.clock.now();
        if !active.ownership.lease.is_valid(now) && !self.is_renewed(&active.ownership.lease) {
            active.stash = Some(content);
            return Taken::Lapsed;
        }
        match active
            .ownership
            .hand_out(content.offset(), size(&*content), now)
        {
            Some(token) => Taken::Message(Message::new(content, token)),
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

fn size(content: &dyn Content) -> usize {
    content.key().map_or(0, <[u8]>::len) + content.payload().map_or(0, <[u8]>::len)
}

enum Taken {
    Message(Message),
    Refused,
    Lapsed,
    Nothing,
    Trouble(Trouble),
}

impl Active {
    fn is_silent(&self) -> bool {
        !self.has_more && self.stash.is_none() && !self.ownership.was_rung()
    }

    /// Looks into the queue if there may be something: of hundreds of partitions most are empty at any moment.
    fn poll(&mut self) -> Polled {
        if !self.has_more && !self.ownership.was_rung() {
            return Polled::Empty;
        }
        let polled = self.queue.poll();
        self.has_more = !matches!(polled, Polled::Empty);
        if self.has_more {
            return polled;
        }
        // What came since the bell was last heard is found now, or will ring it again.
        self.ownership.lower_flag();
        let polled = self.queue.poll();
        self.has_more = !matches!(polled, Polled::Empty);
        polled
    }
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::clock::{BootClock, LeaseClock};
    use crate::lease::Terms;
    use crate::stream::delivery::MessageStream;
    use crate::stream::message::Copied;

    #[derive(Default)]
    struct Shelf {
        offsets: VecDeque<i64>,
        polls: usize,
    }

    struct Shelved(Arc<Mutex<Shelf>>);

    impl Queue for Shelved {
        fn poll(&mut self) -> Polled {
            let mut shelf = lock(&self.0);
            shelf.polls += 1;
            let Some(offset) = shelf.offsets.pop_front() else {
                return Polled::Empty;
            };
            Polled::Message(Box::new(Copied {
                offset,
                payload: Some(vec![0; 10]),
                ..Copied::default()
            }))
        }
    }

    struct Partition {
        ownership: Arc<Ownership>,
        shelf: Arc<Mutex<Shelf>>,
    }

    impl Partition {
        fn fill(&self, offsets: impl IntoIterator<Item = i64>) {
            lock(&self.shelf).offsets.extend(offsets);
            self.ownership.bell().ring();
        }

        fn begin(&self, offset: i64) {
            self.ownership.start(offset);
            let core = self.ownership.stream.clone();
            core.add(
                self.ownership.clone(),
                Box::new(Shelved(self.shelf.clone())),
            );
        }

        fn polls(&self) -> usize {
            lock(&self.shelf).polls
        }

        fn position(&self) -> Option<i64> {
            self.ownership.progress().position
        }
    }

    fn stream<const N: usize>(messages: usize) -> (MessageStream, [Partition; N]) {
        let topic = Topic::new("t").unwrap();
        let common = Arc::new(Common::new(Arc::new(BootClock)));
        let bounds = Bounds {
            messages,
            bytes: 1_000_000,
        };
        let core = StreamCore::new(topic.clone(), 0, common, bounds);
        let lease = Arc::new(LeaseGuard::new(Terms::new(Duration::from_secs(600))));
        lease.renew(BootClock.now());
        let partitions = std::array::from_fn(|number| {
            let at = TopicPartition::new(topic.clone(), i32::try_from(number).unwrap());
            let partition = Partition {
                ownership: Arc::new(Ownership::new(at, 1, lease.clone(), core.clone())),
                shelf: Arc::default(),
            };
            partition.begin(0);
            partition
        });
        (MessageStream::new(core), partitions)
    }

    /// Partition and offset of the next message, `None` if there is none yet.
    fn next(stream: &mut MessageStream) -> Option<(i32, i64)> {
        let message = stream.recv().now_or_never()??;
        Some((message.partition(), message.offset()))
    }

    #[test]
    fn a_lent_message_is_done_when_the_next_is_asked_for() {
        let (mut stream, [partition]) = stream(100);
        partition.fill([0, 1, 5]);
        for (offset, done) in [(0, 0), (1, 1), (5, 2)] {
            assert_eq!(next(&mut stream), Some((0, offset)));
            assert_eq!(partition.position(), Some(done));
            assert_eq!(partition.ownership.progress().undone, 1);
        }
        assert_eq!(next(&mut stream), None);
        assert_eq!(partition.position(), Some(6));
        assert!(partition.ownership.is_drained());
    }

    #[test]
    fn what_was_in_hand_is_freed_once_whatever_ends_it_first() {
        for ends_first in [true, false] {
            let (mut stream, [one, other]) = stream(2);
            one.fill([0]);
            let kept = stream.recv_owned().now_or_never().unwrap();
            if ends_first {
                one.ownership.end();
                one.ownership.forget();
            } else {
                one.ownership.forget();
                one.ownership.end();
            }
            kept.unwrap().ack();
            other.fill([0, 1, 2]);
            for offset in 0..3 {
                assert_eq!(next(&mut stream), Some((1, offset)), "{ends_first}");
            }
        }
    }

    #[test]
    fn from_partition_to_partition_the_lent_message_is_done_as_well() {
        let (mut stream, [one, other]) = stream(100);
        one.fill([0]);
        other.fill([7]);
        assert_eq!(next(&mut stream), Some((0, 0)));
        assert_eq!(next(&mut stream), Some((1, 7)));
        assert_eq!((one.position(), other.position()), (Some(1), Some(0)));
    }

    #[test]
    fn after_the_fence_the_lent_message_still_counts_and_no_other_comes() {
        let (mut stream, [partition]) = stream(100);
        partition.fill([0, 1]);
        assert_eq!(next(&mut stream), Some((0, 0)));
        partition.ownership.fence();
        assert!(!partition.ownership.is_drained());
        assert_eq!(next(&mut stream), None);
        assert!(partition.ownership.is_drained());
        assert_eq!(partition.position(), Some(1));
    }

    #[test]
    fn a_message_lent_before_reading_began_anew_says_nothing_about_what_came_after() {
        let (mut stream, [partition]) = stream(100);
        partition.fill([3]);
        assert_eq!(next(&mut stream), Some((0, 3)));
        partition.begin(1);
        partition.fill([1, 2, 3]);
        for offset in [1, 2, 3] {
            assert_eq!(next(&mut stream), Some((0, offset)));
            assert_eq!(partition.position(), Some(offset));
        }
        assert_eq!(partition.ownership.stream.common.late_acks(), 1);
    }

    #[test]
    fn at_the_bound_the_lent_message_makes_room_for_one_more() {
        let (mut stream, [one, other]) = stream(2);
        other.fill([0]);
        let kept = stream.recv_owned().now_or_never().flatten();
        one.fill(0..9);
        for offset in 0..5 {
            assert_eq!(next(&mut stream), Some((0, offset)));
        }
        let second = stream.recv_owned().now_or_never().flatten();
        assert!(stream.recv_owned().now_or_never().is_none(), "two are held");
        kept.unwrap().ack();
        assert_eq!(next(&mut stream), Some((0, 6)));
        assert_eq!(next(&mut stream), None, "what is behind one undone counts");
        second.unwrap().ack();
        assert_eq!(one.position(), Some(7));
        assert_eq!(next(&mut stream), Some((0, 7)));
    }

    #[test]
    fn an_empty_queue_is_left_alone_until_its_bell_is_rung() {
        let (mut stream, [one, other]) = stream(100);
        assert_eq!(next(&mut stream), None);
        let before = other.polls();
        one.fill([0, 1]);
        assert_eq!(next(&mut stream), Some((0, 0)));
        assert_eq!(next(&mut stream), Some((0, 1)));
        assert_eq!(next(&mut stream), None);
        assert_eq!(other.polls(), before);
        other.fill([0]);
        assert_eq!(next(&mut stream), Some((1, 0)));
    }
}
