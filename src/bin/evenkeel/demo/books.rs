//! What is written down while messages flow: by the producer on one side, by the applications on the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel::{Message, TopicPartition};

use super::balance::{Balance, HandOut, Place, Who};

/// Shared by everybody in the demo.
#[derive(Clone)]
pub struct Books {
    start: Instant,
    pages: Arc<Mutex<Pages>>,
}

#[derive(Default)]
struct Pages {
    /// What the brokers acknowledged to the producer.
    sent: BTreeSet<u64>,
    /// What an application worked through.
    finished: BTreeSet<u64>,
    handed: Vec<HandOut>,
    places: BTreeMap<TopicPartition, Place>,
    dead: BTreeSet<Who>,
}

/// A few sums for a glance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Glance {
    pub sent: usize,
    pub finished: usize,
    /// Hand-outs by member within the last second.
    pub lately: BTreeMap<Who, usize>,
}

impl Books {
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            pages: Arc::default(),
        }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub fn sent(&self, number: u64) {
        self.pages().sent.insert(number);
    }

    pub fn handed_out(&self, who: Who, batch: &[Message]) {
        let at = self.now();
        let mut pages = self.pages();
        for message in batch {
            let next = pages.places.len();
            let place = *pages
                .places
                .entry(message.topic_partition().clone())
                .or_insert(next);
            let offset = message.offset();
            pages.handed.push(HandOut {
                place,
                offset,
                who,
                at,
            });
        }
    }

    pub fn finished(&self, number: u64) {
        self.pages().finished.insert(number);
    }

    pub fn died(&self, who: Who) {
        self.pages().dead.insert(who);
    }

    /// Everything that was sent has been finished.
    pub fn is_even(&self) -> bool {
        let pages = self.pages();
        pages.sent.is_subset(&pages.finished)
    }

    pub fn glance(&self) -> Glance {
        let since = self.now().saturating_sub(Duration::from_secs(1));
        let pages = self.pages();
        let mut lately = BTreeMap::new();
        for out in pages.handed.iter().rev().take_while(|out| out.at >= since) {
            *lately.entry(out.who).or_default() += 1;
        }
        Glance {
            sent: pages.sent.len(),
            finished: pages.finished.len(),
            lately,
        }
    }

    pub fn balance(&self) -> Balance {
        let pages = self.pages();
        Balance::of(&pages.sent, &pages.finished, &pages.handed, &pages.dead)
    }

    /// All hand-outs in their order, and who died.
    pub fn handed(&self) -> (Vec<HandOut>, BTreeSet<Who>) {
        let pages = self.pages();
        (pages.handed.clone(), pages.dead.clone())
    }
}

/// Every payload begins with the number of its message.
pub fn number(message: &Message) -> Option<u64> {
    let text = std::str::from_utf8(message.payload()?).ok()?;
    text.split(' ').next()?.parse().ok()
}
