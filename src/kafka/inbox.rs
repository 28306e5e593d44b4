//! What the service of a reader is told, by callers, by askers and by librdkafka.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use crate::error::Error;
use crate::group::{Topic, TopicPartition};
use crate::kafka::content::Gate;
use crate::kafka::probe::Generation;
use crate::stream::{Edge, Queue, Start};

/// The answer of a read.
pub(super) type Opened = Vec<(TopicPartition, Result<Box<dyn Queue>, Error>)>;

/// A wish to read.
pub(super) struct Read {
    pub starts: Vec<(Start, Arc<Gate>)>,
    pub until: Instant,
    pub answer: oneshot::Sender<Opened>,
}

/// A question for one end of a log.
pub(super) struct Ask {
    pub partition: TopicPartition,
    pub edge: Edge,
    pub until: Instant,
    pub answer: oneshot::Sender<Result<i64, Error>>,
}

/// What brokers know of a topic: its partitions, and those that nobody leads.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub partitions: BTreeSet<i32>,
    pub leaderless: BTreeSet<i32>,
}

/// What a look for brokers found while none could be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// One answers the client.
    Back,
    /// One takes connections, and the client has no answer.
    Unseen,
    /// Nobody is there.
    Nothing,
}

/// One thing to tell. Each client has its number, so that answers for an earlier one are told apart.
pub(super) enum Letter {
    Read(Read),
    Ask(Ask),
    Brokers(Vec<String>),
    Probed(Result<Generation, Error>),
    Described(u64, Topic, Result<Known, Error>),
    Edges(u64, Result<(i64, i64), Error>),
    Seen(u64, Sight),
    Close(oneshot::Sender<()>),
    #[cfg(test)]
    Fail(String),
    #[cfg(test)]
    Panic,
}

#[derive(Default)]
pub(super) struct Mail {
    pub letters: Vec<Letter>,
    /// Partitions that may have to be stopped; their gates say whether.
    pub stops: BTreeSet<TopicPartition>,
    is_rung: bool,
    /// Nobody will write any more.
    pub is_shut: bool,
}

/// Bounded by its writers: each of them waits for its answer, and stops of one partition are one.
#[derive(Default)]
pub(super) struct Inbox {
    mail: Mutex<Mail>,
    filled: Condvar,
}

impl Inbox {
    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a letter; once shut it is dropped, and with it whatever was to be answered.
    pub fn push(&self, letter: Letter) {
        let mut mail = self.mail();
        if mail.is_shut {
            drop(mail);
            drop(letter);
            return;
        }
        mail.letters.push(letter);
        self.filled.notify_one();
    }

    pub fn stop(&self, partitions: &[TopicPartition]) {
        self.mail().stops.extend(partitions.iter().cloned());
        self.filled.notify_one();
    }

    /// Wakes the service: the client has something to say.
    pub fn ring(&self) {
        self.mail().is_rung = true;
        self.filled.notify_one();
    }

    /// No more letters.
    pub fn shut(&self) {
        let mut mail = self.mail();
        mail.is_shut = true;
        let dropped = std::mem::take(&mut mail.letters);
        drop(mail);
        drop(dropped);
        self.filled.notify_one();
    }

    pub fn is_shut(&self) -> bool {
        self.mail().is_shut
    }

    /// Waits until there is something, or until this moment.
    pub fn next(&self, until: Instant) -> Mail {
        let time = until.saturating_duration_since(Instant::now());
        let is_quiet = |mail: &mut Mail| {
            mail.letters.is_empty() && mail.stops.is_empty() && !mail.is_rung && !mail.is_shut
        };
        let (mut mail, _) = self
            .filled
            .wait_timeout_while(self.mail(), time, is_quiet)
            .unwrap_or_else(PoisonError::into_inner);
        let is_shut = mail.is_shut;
        let taken = std::mem::take(&mut *mail);
        mail.is_shut = is_shut;
        taken
    }
}
