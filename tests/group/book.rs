//! What the members of a kit saw, for the judge of runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};

use evenkeel::config::Reset;
use evenkeel::event::LostCause;
use evenkeel::listener::RebalanceListener;
use evenkeel::testing::check::{Case, Fact, Hearing, Limits, Phase, Record, Verdict};
use evenkeel::testing::{MemoryRegistry, history};
use evenkeel::{Events, GroupName, StreamId, TopicPartition};
use tokio::time::Instant;

use crate::kit::{GROUP, T};

/// Takes down events beside a registry. A clone is another hand with the same book.
#[derive(Clone)]
pub struct Book {
    registry: MemoryRegistry,
    zero: Instant,
    pages: Arc<Mutex<Pages>>,
}

#[derive(Default)]
struct Pages {
    record: Record,
    ours: BTreeSet<Arc<str>>,
}

impl Book {
    /// The registry's clock begins now, with its first write.
    pub fn new(registry: &MemoryRegistry) -> Self {
        let book = Self {
            registry: registry.clone(),
            zero: Instant::now(),
            pages: Arc::default(),
        };
        let first = registry.log()[0].time_ms;
        let real_us = first * 1000;
        book.note("clock", Fact::Clock { real_us });
        book
    }

    /// Now, by the events' clock.
    pub fn mono(&self) -> u64 {
        u64::try_from(self.zero.elapsed().as_nanos()).unwrap()
    }

    pub fn note(&self, who: &str, fact: Fact) {
        self.note_as(&Arc::from(who), fact);
    }

    pub fn note_as(&self, who: &Arc<str>, fact: Fact) {
        let zxid = Some(self.registry.zxid());
        let mono = self.mono();
        let mut pages = self.pages.lock().unwrap();
        pages.record.note(who, 1, mono, zxid, fact);
    }

    /// A member that is judged.
    pub fn enter(&self, name: &str) -> Arc<str> {
        let name: Arc<str> = name.into();
        self.pages.lock().unwrap().ours.insert(name.clone());
        name
    }

    /// Takes down what a member tells until its end.
    pub fn follow(&self, name: Arc<str>, mut events: Events) {
        let (book, mut hearing) = (self.clone(), Hearing::new());
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if let Some(fact) = hearing.hear(&event) {
                    book.note_as(&name, fact);
                }
            }
        });
    }

    pub fn sent(&self, partition: TopicPartition, offset: i64) {
        self.note("producer", Fact::Sent { partition, offset });
    }

    pub fn delivered(&self, who: &Arc<str>, partition: &TopicPartition, token: i64, offset: i64) {
        self.note_as(who, delivered(partition, token, offset));
    }

    pub fn done(&self, who: &Arc<str>, partition: &TopicPartition, token: i64, offset: i64) {
        self.note_as(who, done(partition, token, offset));
    }

    pub fn judge(&self) -> Verdict {
        let pages = self.pages.lock().unwrap();
        Case::new(GroupName::new(GROUP).unwrap())
            .with_ours(pages.ours.iter().map(|name| &**name))
            .with_history(history(&self.registry.log()))
            .with_events(pages.record.events().to_vec())
            .with_policy(Reset::Smallest)
            .with_limits(Limits::exact(T))
            .judge()
    }
}

/// A message was handed over.
pub fn delivered(partition: &TopicPartition, token: i64, offset: i64) -> Fact {
    Fact::Delivered {
        partition: partition.clone(),
        token,
        offset,
    }
}

/// A message is done and about to be acknowledged.
pub fn done(partition: &TopicPartition, token: i64, offset: i64) -> Fact {
    Fact::Done {
        partition: partition.clone(),
        token,
        offset,
    }
}

/// A listener that only has its calls taken down. It learns whose it is once the member has a name.
pub struct Listening {
    pub book: Book,
    pub whose: Arc<OnceLock<Arc<str>>>,
}

impl Listening {
    fn call(&self, name: &str, partitions: Vec<TopicPartition>) {
        let who = self.whose.get().expect("it has joined");
        for phase in [Phase::Enter, Phase::Leave] {
            let fact = Fact::Callback {
                name: name.to_owned(),
                phase,
                partitions: partitions.clone(),
            };
            self.book.note_as(who, fact);
        }
    }
}

impl RebalanceListener for Listening {
    fn before_release(&self, partitions: &BTreeSet<TopicPartition>) {
        self.call("before_release", partitions.iter().cloned().collect());
    }

    fn after_claim(&self, partitions: &BTreeMap<TopicPartition, StreamId>) {
        self.call("after_claim", partitions.keys().cloned().collect());
    }

    fn on_lost(&self, partitions: &BTreeSet<TopicPartition>, _: LostCause) {
        self.call("on_lost", partitions.iter().cloned().collect());
    }
}
