//! Which messages are done: the contiguous prefix of what was handed out.

use std::collections::{BTreeSet, VecDeque};

use crate::lease::Moment;

#[derive(Debug)]
struct Entry {
    offset: i64,
    bytes: usize,
    at: Moment,
    is_done: bool,
}

/// What was handed out of one partition in one ownership, and how far all of it is done.
///
/// Offsets come in ascending order but with gaps: compacted topics and transactions leave some out. So the prefix
/// follows the order of handing out, never "offset + 1" of what was expected.
///
/// ```
/// # use evenkeel::ack::Ledger;
/// # use evenkeel::lease::Moment;
/// let mut ledger = Ledger::new(5);
/// for offset in [5, 9, 10] {
///     ledger.hand_out(offset, 100, Moment::default());
/// }
/// ledger.done(9);
/// assert_eq!(ledger.position(), 5); // 5 is still in somebody's hands
/// ledger.done(5);
/// assert_eq!(ledger.position(), 10); // 5 and 9 are done, 10 is not
/// ```
#[derive(Debug)]
pub struct Ledger {
    position: i64,
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Offsets still to come that are to be skipped.
    passed: BTreeSet<i64>,
}

/// What came of the wish to pass a message: to have it count as done without an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// It was handed out and is done now.
    Done(Freed),
    /// It was not handed out yet and will not be.
    ToCome,
    /// Reading is behind it already: it is done, or there was no message at that offset.
    Behind,
    /// It lies further ahead than allowed.
    TooFar,
}

/// What an acknowledgement freed: how many messages, and how many bytes of them, left the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Freed {
    /// Messages.
    pub messages: usize,
    /// Bytes.
    pub bytes: usize,
}

impl Ledger {
    /// A ledger of an ownership that starts at this offset.
    pub fn new(start: i64) -> Self {
        Self {
            position: start,
            entries: VecDeque::new(),
            bytes: 0,
            passed: BTreeSet::new(),
        }
    }

    /// The offset to commit: that of the next message to read if all before it is done (L-4).
    pub fn position(&self) -> i64 {
        self.position
    }

    /// Notes that a message was handed out. Offsets that do not rise are refused: such a message was handed out before.
    pub fn hand_out(&mut self, offset: i64, bytes: usize, at: Moment) -> bool {
        if offset < self.next() {
            return false;
        }
        if !self.passed.is_empty() {
            self.passed = self.passed.split_off(&(offset + 1));
        }
        self.entries.push_back(Entry {
            offset,
            bytes,
            at,
            is_done: false,
        });
        self.bytes += bytes;
        true
    }

    /// The lowest offset that may be handed out next.
    pub fn next(&self) -> i64 {
        self.entries
            .back()
            .map_or(self.position, |entry| entry.offset + 1)
    }

    /// Notes that a message is done. One that is not in the ledger (done before, or never handed out) changes nothing.
    pub fn done(&mut self, offset: i64) -> Freed {
        // In order is the common case and needs no search.
        let index = match self.entries.front() {
            Some(front) if front.offset == offset => Ok(0),
            _ => self
                .entries
                .binary_search_by_key(&offset, |entry| entry.offset),
        };
        if let Ok(index) = index {
            self.entries[index].is_done = true;
        }
        let mut freed = Freed::default();
        while self.entries.front().is_some_and(|entry| entry.is_done) {
            let front = self.entries.pop_front().expect("it was just looked at");
            self.position = front.offset + 1;
            self.bytes -= front.bytes;
            freed.messages += 1;
            freed.bytes += front.bytes;
        }
        freed
    }

    /// Has the message at an offset count as done: one that was handed out at once, one still to come when it comes, if it is
    /// less than `ahead` offsets from the next that may be handed out.
    pub fn pass(&mut self, offset: i64, ahead: i64) -> Pass {
        let next = self.next();
        if offset >= next {
            if offset - next >= ahead {
                return Pass::TooFar;
            }
            self.passed.insert(offset);
            return Pass::ToCome;
        }
        match self
            .entries
            .binary_search_by_key(&offset, |entry| entry.offset)
        {
            Ok(_) => Pass::Done(self.done(offset)),
            Err(_) => Pass::Behind,
        }
    }

    /// Whether the message at this offset, when it comes, is to be skipped.
    pub fn is_passed(&self, offset: i64) -> bool {
        !self.passed.is_empty() && self.passed.contains(&offset)
    }

    /// How many messages are not committable yet: handed out, and either not done or behind one that is not.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether all that was handed out is done.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The bytes of those messages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The oldest message that is not done, and when it was handed out.
    pub fn oldest(&self) -> Option<(i64, Moment)> {
        self.entries.front().map(|entry| (entry.offset, entry.at))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_position_never_passes_what_is_not_done(
            gaps in prop::collection::vec(1i64..4, 1..60),
            order in prop::collection::vec(0usize..80, 0..120),
        ) {
            let mut ledger = Ledger::new(100);
            let mut offset = 99;
            let offsets: Vec<i64> = gaps.iter().map(|gap| { offset += gap; offset }).collect();
            for &offset in &offsets {
                prop_assert!(ledger.hand_out(offset, 1, Moment::default()));
            }
            let mut done = BTreeSet::new();
            for index in order {
                let offset = offsets.get(index).copied().unwrap_or(5);
                ledger.done(offset);
                done.insert(offset);
                let prefix = offsets.iter().take_while(|o| done.contains(o)).last();
                prop_assert_eq!(ledger.position(), prefix.map_or(100, |o| o + 1));
                prop_assert_eq!(ledger.oldest().map(|(o, _)| o), offsets.iter().copied().find(|o| !done.contains(o)));
                prop_assert_eq!(ledger.bytes(), ledger.len());
            }
        }
    }

    #[test]
    fn a_message_is_passed_wherever_it_is() {
        let mut ledger = Ledger::new(0);
        for offset in [0, 1, 4] {
            assert!(ledger.hand_out(offset, 1, Moment::default()));
        }
        let freed = |messages| {
            Pass::Done(Freed {
                messages,
                bytes: messages,
            })
        };
        assert_eq!(ledger.pass(1, 10), freed(0), "behind one that is not done");
        assert_eq!(ledger.pass(1, 10), freed(0), "twice is once");
        assert_eq!(ledger.pass(0, 10), freed(2));
        assert_eq!(ledger.position(), 2);
        assert_eq!(ledger.pass(1, 10), Pass::Behind);
        assert_eq!(ledger.pass(3, 10), Pass::Behind, "there was none");
        assert_eq!(ledger.pass(15, 10), Pass::TooFar);
        assert_eq!(ledger.pass(6, 10), Pass::ToCome);
        assert_eq!(ledger.pass(14, 10), Pass::ToCome);
        assert!(ledger.is_passed(6) && !ledger.is_passed(5));
        // There turns out to be no message at 6.
        assert!(ledger.hand_out(7, 1, Moment::default()));
        assert!(!ledger.is_passed(6) && ledger.is_passed(14));
    }

    #[test]
    fn a_message_is_handed_out_once() {
        let mut ledger = Ledger::new(7);
        assert!(
            !ledger.hand_out(6, 0, Moment::default()),
            "before the start"
        );
        assert!(ledger.hand_out(7, 0, Moment::default()));
        assert!(!ledger.hand_out(7, 0, Moment::default()));
        ledger.done(7);
        assert!(
            !ledger.hand_out(7, 0, Moment::default()),
            "also after it is done"
        );
        assert_eq!(ledger.position(), 8);
    }
}
