//! Giving partitions up, in the one order there is: fence, drain, commit, listener, commit, delay, delete (hazards 2.6).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::coordinator::Outlets;
use crate::coordinator::offset::OffsetNode;
use crate::event::{Event, LostCause, ResetCause};
use crate::group::TopicPartition;
use crate::listener::{Outside, Ran, RebalanceListener};
use crate::session::{Commit, Committed, Parting, Released, Session, TopicFate, Trouble};
use crate::stream::{Common, Ownership};
use crate::wire::NO_OFFSET;

/// A partition that is being given up; its stream is fenced already.
pub(super) struct Farewell {
    pub ownership: Arc<Ownership>,
    pub node: OffsetNode,
    /// Once its topic is gone, its offset is left as it is (T2).
    pub fate: Arc<TopicFate>,
    /// The heir is a JVM member, which reads the offset before it claims.
    pub is_to_jvm: bool,
}

/// What came of it.
pub(super) struct Parted {
    pub partition: TopicPartition,
    pub is_forced: bool,
    /// The owner node is not as we made it; if it is of our session still, it was changed by somebody.
    pub is_lost: bool,
}

/// What giving up needs.
#[derive(Clone)]
pub(super) struct Departure {
    pub session: Arc<Session>,
    pub common: Arc<Common>,
    pub outlets: Outlets,
    pub listener: Option<Arc<dyn RebalanceListener>>,
    pub outside: Arc<dyn Outside>,
    /// `auto.commit.enable`: otherwise nothing is committed here but what was asked for.
    pub commits: bool,
    /// Somebody asked for a commit while partitions were being given up, a listener for instance.
    pub is_commit_asked: Arc<AtomicBool>,
    pub drain_until: Instant,
    /// How long the listener may take, after the drain.
    pub listener_time: Duration,
    /// When even the listener is cut short, since the member is leaving.
    pub end: Option<Instant>,
    pub delay: Duration,
}

impl Departure {
    /// Gives these up: those with nothing in hand at once and together, the others as they drain. Answers with trouble if
    /// the session ended under us.
    pub async fn part(self, list: Vec<Farewell>) -> Result<Vec<Parted>, Trouble> {
        let mut draining: FuturesUnordered<_> = list
            .into_iter()
            .map(|farewell| self.drain(farewell))
            .collect();
        let mut parted = Vec::new();
        while let Some(first) = draining.next().await {
            let mut batch = vec![first];
            // Whoever is ready by now goes along.
            while let Some(Some(next)) = futures_util::FutureExt::now_or_never(draining.next()) {
                batch.push(next);
            }
            parted.extend(self.let_go(batch).await?);
        }
        Ok(parted)
    }

    async fn drain(&self, farewell: Farewell) -> (Farewell, bool) {
        let is_forced = timeout_at(self.drain_until, farewell.ownership.drained())
            .await
            .is_err();
        (farewell, is_forced)
    }

    async fn let_go(&self, mut batch: Vec<(Farewell, bool)>) -> Result<Vec<Parted>, Trouble> {
        let mut moved = false;
        let is_to_jvm =
            batch.iter().any(|(farewell, _)| farewell.is_to_jvm) && !self.delay.is_zero();
        if self.listener.is_some() || is_to_jvm {
            moved |= self.commit(&mut batch).await?;
        }
        if self.listener.is_some() {
            self.ask_listener(&mut batch).await;
        }
        if is_to_jvm {
            moved |= self.commit(&mut batch).await?;
            // A JVM that read the offset just before our commit would begin there, unless it finds the node still owned.
            if moved {
                sleep(self.delay).await;
            }
        }
        self.delete(batch).await
    }

    fn pending(&self, farewell: &Farewell) -> Option<Commit> {
        let Farewell {
            ownership, node, ..
        } = farewell;
        let is_wanted = self.commits || self.is_commit_asked.load(Ordering::SeqCst);
        let is_wanted = is_wanted && !farewell.fate.is_void();
        let done = is_wanted.then(|| node.pending(ownership)).flatten();
        done.or_else(|| node.clearing(ownership))
    }

    /// Commits what is done. Answers whether that moved anything.
    async fn commit(&self, batch: &mut [(Farewell, bool)]) -> Result<bool, Trouble> {
        let pending = |batch: &[(Farewell, bool)]| -> Vec<(Commit, Arc<TopicFate>)> {
            let pending = |(farewell, _): &(Farewell, bool)| {
                self.pending(farewell)
                    .map(|commit| (commit, farewell.fate.clone()))
            };
            batch.iter().filter_map(pending).collect()
        };
        if pending(batch).is_empty() {
            return Ok(false);
        }
        self.await_lease().await;
        let commits = pending(batch);
        let offsets: BTreeMap<TopicPartition, i64> = commits
            .iter()
            .map(|(commit, _)| (commit.partition.clone(), commit.offset))
            .collect();
        // Its topic may go while this is tried again.
        let results = retry(|| {
            let is_due = |(commit, fate): &&(Commit, Arc<TopicFate>)| {
                commit.offset == NO_OFFSET || !fate.is_void()
            };
            let due = commits.iter().filter(is_due);
            self.session
                .commit(due.map(|(commit, _)| commit.clone()).collect())
        })
        .await?;
        for (farewell, _) in batch {
            let partition = &farewell.ownership.partition;
            let Some(ours) = offsets.get(partition) else {
                continue;
            };
            if let Some(result) = results.get(partition) {
                self.outlets.tell_of_others(partition, *ours, result);
                farewell.node.note(*ours, result);
            } else {
                // An attempt before its topic went may have been carried out.
                farewell.node.tried.insert(*ours);
            }
        }
        Ok(true)
    }

    /// Nothing is committed on a lease that has nearly run out; the keeper renews it, or the session ends and we with it.
    async fn await_lease(&self) {
        while !self.session.lease.allows_commit(self.common.clock.now())
            && !self.session.lease.has_ended()
        {
            sleep(self.session.terms().packet_every() / 4).await;
        }
    }

    async fn ask_listener(&self, batch: &mut [(Farewell, bool)]) {
        let Some(listener) = self.listener.clone() else {
            return;
        };
        let partitions: BTreeSet<TopicPartition> = batch
            .iter()
            .map(|(f, _)| f.ownership.partition.clone())
            .collect();
        let left = self.session.lease.left(self.common.clock.now());
        let until = Instant::now() + self.listener_time.min(left);
        let until = self.end.map_or(until, |end| until.min(end));
        let work = self
            .outside
            .run(Box::new(move || listener.before_release(&partitions)));
        let reason = match timeout_at(until, work).await {
            Ok(Ran::Done) => return,
            Ok(Ran::Panicked(message)) => format!("it panicked: {message}"),
            Ok(Ran::Closed) => "there is no place left to run it".to_owned(),
            Err(_) => "it did not end within its time".to_owned(),
        };
        for (_, is_forced) in batch {
            *is_forced = true;
        }
        self.outlets.tell(Event::ListenerFailed {
            call: "before_release",
            reason,
        });
    }

    async fn delete(&self, batch: Vec<(Farewell, bool)>) -> Result<Vec<Parted>, Trouble> {
        // What is acknowledged from here on comes too late.
        let mut ends = Vec::new();
        let mut partings = Vec::new();
        for (mut farewell, is_forced) in batch {
            let progress = farewell.ownership.end();
            if let Some(since) = farewell.fate.made_anew() {
                farewell.node.void(ResetCause::TopicRecreated);
                farewell.node.since = since;
            }
            let last = self.pending(&farewell);
            let Farewell {
                ownership,
                node,
                fate,
                ..
            } = farewell;
            let offset = last
                .as_ref()
                .map(|commit| commit.offset)
                .or(node.committed)
                .filter(|offset| *offset != NO_OFFSET);
            partings.push(Parting {
                partition: ownership.partition.clone(),
                token: ownership.token,
                last,
                committed: node.ours(&ownership),
                version: node.version,
                met: None,
                is_unconfirmed: false,
                fate: fate.clone(),
                is_heeded: false,
                tried: BTreeSet::new(),
            });
            ends.push((
                ownership.partition.clone(),
                is_forced,
                offset,
                node.committed,
                progress.undone,
                fate,
            ));
        }
        self.await_lease().await;
        let mut is_again = false;
        let mut results = retry(|| {
            let check_first = std::mem::replace(&mut is_again, true);
            self.session.release(partings.clone(), check_first)
        })
        .await?;
        let mut parted = Vec::new();
        for (partition, is_forced, mut offset, committed, undone, fate) in ends {
            let result = results.remove(&partition);
            if let Some(Released::Gone {
                met: Some((ours, met)),
            }) = &result
            {
                self.outlets.tell_of_others(&partition, *ours, met);
                if let Committed::Unsettled(reason) = met {
                    let (partition, reason) = (partition.clone(), reason.clone());
                    self.outlets.tell(Event::CommitFailed { partition, reason });
                    offset = committed;
                }
            }
            if fate.is_void() {
                offset = committed.filter(|_| fate.made_anew().is_none());
            }
            let is_lost = matches!(result, Some(Released::NotOurs));
            let event = match result {
                Some(Released::NotOurs) => Event::Lost {
                    partition: partition.clone(),
                    cause: LostCause::OwnerNodeGone,
                    undone,
                },
                _ => Event::Released {
                    partition: partition.clone(),
                    offset,
                    undone,
                    is_forced,
                },
            };
            self.outlets.tell(event);
            parted.push(Parted {
                partition,
                is_forced: is_forced && undone > 0,
                is_lost,
            });
        }
        Ok(parted)
    }
}

/// Repeats what failed in passing until it is done or the session is over; both end it.
async fn retry<T, F: Future<Output = Result<T, Trouble>>>(
    mut attempt: impl FnMut() -> F,
) -> Result<T, Trouble> {
    let mut pause = Duration::from_millis(50);
    loop {
        match attempt().await {
            Err(Trouble::Transient(why)) => tracing::debug!(why, "trying again"),
            answer => return answer,
        }
        sleep_until(Instant::now() + pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
