//! Where everything that is seen in a run is written down, for the judge and for the hash.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel::testing::MemoryRegistry;
use evenkeel::testing::check::{Event, Fact, Record};
use tokio::time::Instant;

use crate::trace::Trace;

/// The book of one run.
#[derive(Clone)]
pub struct Facts {
    zero: Instant,
    registry: MemoryRegistry,
    trace: Trace,
    book: Arc<Mutex<Book>>,
}

#[derive(Default)]
struct Book {
    record: Record,
    incarnations: BTreeMap<String, u32>,
    /// How often something happened that every thousand runs must have seen.
    counters: BTreeMap<&'static str, u64>,
}

impl Facts {
    /// An empty one; the run begins now.
    pub fn of(registry: &MemoryRegistry, trace: &Trace) -> Self {
        Self {
            zero: Instant::now(),
            registry: registry.clone(),
            trace: trace.clone(),
            book: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process with this member starts.
    pub fn came(&self, member: &str) {
        let mut book = self.lock();
        *book.incarnations.entry(member.to_owned()).or_default() += 1;
    }

    /// One more fact.
    pub fn note(&self, member: &str, fact: Fact) {
        self.trace.note(&(member, &fact));
        let zxid = self.registry.zxid();
        let mono = self.now();
        let mut book = self.lock();
        let incarnation = book.incarnations.get(member).copied().unwrap_or(1);
        let member = Arc::from(member);
        book.record
            .note(&member, incarnation, mono, Some(zxid), fact);
    }

    /// Nanoseconds since the beginning.
    pub fn now(&self) -> u64 {
        u64::try_from(self.zero.elapsed().as_nanos()).expect("a run is short")
    }

    /// Something happened that is worth counting.
    pub fn count(&self, what: &'static str) {
        *self.lock().counters.entry(what).or_default() += 1;
    }

    /// What was counted.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counters.clone()
    }

    /// Every fact so far.
    pub fn events(&self) -> Vec<Event> {
        self.lock().record.events().to_vec()
    }

    /// Looks at them without a copy.
    pub fn look<T>(&self, look: impl FnOnce(&[Event]) -> T) -> T {
        look(self.lock().record.events())
    }
}
