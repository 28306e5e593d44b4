//! What time brings: words about long waits, the slow poll, the self-check.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::coordinator::serving::{Blocked, Serving};
use crate::event::Event;
use crate::group::Topic;
use crate::session::{Trouble, Watched};

impl Serving<'_> {
    /// When there is next something to say about a partition we wait for.
    pub(super) fn next_word(&self, blocked: &Blocked) -> Option<Instant> {
        match (blocked.is_told, blocked.is_stuck) {
            (false, _) => Some(blocked.since + self.core.parts.config.rebalance_backoff),
            (true, false) => Some(blocked.since + self.patience()),
            (true, true) => None,
        }
    }

    /// After so long a wait it is not the ordinary course of a hand-over any more (A12).
    pub(super) fn patience(&self) -> Duration {
        let config = &self.core.parts.config;
        let ordinary = self.session.terms().session_timeout() * 2 + config.drain_timeout;
        config.patience().max(ordinary)
    }

    pub(super) fn tell_of_waiting(&mut self, now: Instant) {
        let patience = self.patience();
        let backoff = self.core.parts.config.rebalance_backoff;
        let mut events = Vec::new();
        for (partition, blocked) in &mut self.blocked {
            let waited = now - blocked.since;
            let (partition, holder) = (partition.clone(), blocked.holder.clone());
            if !blocked.is_told && waited >= backoff {
                blocked.is_told = true;
                events.push(Event::Waiting { partition, holder });
            } else if !blocked.is_stuck && waited >= patience {
                blocked.is_stuck = true;
                events.push(Event::Stuck {
                    partition,
                    holder,
                    waited,
                });
            }
        }
        for event in events {
            self.tell(event);
        }
    }

    /// A watch that never fires must not leave us waiting for ever.
    pub(super) async fn poll_blocked(&mut self) -> Result<(), Trouble> {
        let topics: BTreeSet<Topic> = self
            .blocked
            .keys()
            .map(|partition| partition.topic.clone())
            .collect();
        if topics.is_empty() {
            return Ok(());
        }
        let owned = self.lookout.owned(&topics).await?;
        for (partition, blocked) in &mut self.blocked {
            if !owned.contains(partition) {
                blocked.is_freed = true;
            }
        }
        Ok(())
    }

    /// The self-check: is our registration as we want it, is all that we hold ours, is the group as we saw it?
    pub(super) async fn check(&mut self) -> Result<(), Trouble> {
        if let Some(what) = self.session.audit_registration().await? {
            self.tell(Event::Repaired { what });
            self.lookout.doubt(&self.core.parts.me.clone());
        }
        let topics: BTreeSet<Topic> = self
            .held
            .keys()
            .map(|partition| partition.topic.clone())
            .collect();
        let owned = self.lookout.owned(&topics).await?;
        let unsure = self.held.keys().filter(|held| !owned.contains(*held));
        let unsure: Vec<Watched> = unsure.cloned().map(Watched::Owner).collect();
        self.note_fired(unsure);
        self.check_owners().await?;
        if let Some(what) = self.lookout.audit().await? {
            self.tell(Event::Repaired { what });
        }
        self.tell_of_unacknowledged();
        Ok(())
    }

    pub(super) fn tell_of_unacknowledged(&mut self) {
        let limit = self.core.parts.config.unacked_warn_age;
        let now = self.core.parts.common.clock.now();
        let mut old = BTreeSet::new();
        let mut events = Vec::new();
        for (partition, held) in &self.held {
            let Some((offset, at)) = held.ownership.progress().oldest else {
                continue;
            };
            let age = now.since(at);
            if age < limit {
                continue;
            }
            old.insert(partition.clone());
            if !self.told_unacked.contains(partition) {
                let is_at_bound = held.ownership.stream.is_at_bound();
                events.push(Event::Unacknowledged {
                    partition: partition.clone(),
                    offset,
                    age,
                    is_at_bound,
                });
            }
        }
        self.told_unacked = old;
        for event in events {
            self.tell(event);
        }
    }
}
