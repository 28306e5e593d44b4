//! The user's say in a rebalance, and the place outside the coordinator's task where it runs.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::LostCause;
use crate::group::{StreamId, TopicPartition};
use crate::registry::Later;

/// Is told when partitions come and go.
///
/// Every call runs outside the member's own task with a deadline of `drain.timeout.ms`; for `before_release` it is less if
/// less is left of the lease, or of the time in which the member is to leave. Past it the member goes on without the
/// listener and says so in an event. A panic is caught and reported.
/// For one partition the calls alternate: claimed, then released or lost. A release that the end of the session overtakes
/// is followed by the loss. A listener may call the connector.
pub trait RebalanceListener: Send + Sync {
    /// These partitions are about to be given up: nothing more of them is delivered, what is done is committed, and they
    /// are still ours. Acknowledgements made here are committed before the owner node goes.
    fn before_release(&self, partitions: &BTreeSet<TopicPartition>) {
        let _ = partitions;
    }

    /// These partitions are ours; delivery may have begun.
    fn after_claim(&self, partitions: &BTreeMap<TopicPartition, StreamId>) {
        let _ = partitions;
    }

    /// These partitions are not ours any more, and others may read them already. Nothing of them can be committed.
    fn on_lost(&self, partitions: &BTreeSet<TopicPartition>, cause: LostCause) {
        let _ = (partitions, cause);
    }
}

/// How a piece of the user's code ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ran {
    /// It returned.
    Done,
    /// It panicked, with this message.
    Panicked(String),
    /// The place is closed; it did not run.
    Closed,
}

/// Runs pieces of the user's code somewhere else than on the member's own task, one after another.
///
/// A caller that stops waiting does not stop the work. The simulation runs the work in its own time.
pub trait Outside: Send + Sync {
    /// Queues the work; the answer resolves when it has ended.
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> Later<Ran>;
}
