//! The end of a session, in order or not.

use std::collections::BTreeSet;

use futures_util::StreamExt;
use tokio::time::{Instant, timeout_at};

use crate::coordinator::Over;
use crate::coordinator::serving::Serving;
use crate::error::{Error, ErrorKind};
use crate::event::{Event, LostCause};

impl Serving<'_> {
    /// Leaves in order until the deadline: streams end, everything is given up, then the registration goes.
    pub(super) async fn leave(&mut self, until: Instant) {
        self.leave_until = Some(until);
        self.publish();
        for core in self.core.parts.streams.values().flatten() {
            core.close();
        }
        // Everybody else may be an heir; if any of them is a JVM member, it may be the one.
        let is_to_jvm = self.view.members.values().any(|member| !member.is_ours);
        let list = self
            .held
            .keys()
            .map(|partition| (partition.clone(), is_to_jvm))
            .collect();
        self.part_with(list);
        let all = async {
            while !self.parting.is_empty() || !self.committing.is_empty() {
                let Some(done) = self.works.next().await else {
                    break;
                };
                if self.finish(done).await.is_err() {
                    break;
                }
            }
        };
        let _ = timeout_at(until, all).await;
        let _ = timeout_at(until, self.session.unregister()).await;
        if let Some(reader) = self.reader.take() {
            let _ = timeout_at(until, reader.close()).await;
        }
    }

    /// After the last turn: whatever is still in our hands is lost, and streams give nothing more of it.
    pub fn clean_up(&mut self, over: &Over) {
        self.session.lease.end();
        let cause = match over {
            Over::RegistrationGone => LostCause::RegistrationGone,
            _ => LostCause::SessionLost,
        };
        if matches!(over, Over::SessionLost) {
            self.tell(Event::SessionLost {
                session: self.session.id(),
            });
        }
        self.core.left_behind = std::mem::take(&mut self.forced);
        let mut lost = BTreeSet::new();
        let held = std::mem::take(&mut self.held)
            .into_iter()
            .map(|(partition, held)| (partition, held.ownership));
        let parting = std::mem::take(&mut self.parting)
            .into_iter()
            .map(|(partition, leaving)| (partition, leaving.ownership));
        for (partition, ownership) in held.chain(parting) {
            let progress = ownership.end();
            self.tell(Event::Lost {
                partition: partition.clone(),
                cause,
                undone: progress.undone,
            });
            lost.insert(partition);
        }
        self.core.left_behind.extend(lost.iter().cloned());
        if !lost.is_empty() {
            // The next session hears how it ended.
            let listened = self.call("on_lost", move |listener| listener.on_lost(&lost, cause));
            self.core.left_over.extend(listened);
        }
        for waiter in self.commit_waiters.drain(..) {
            let _ = waiter.send(Err(Error::new(
                ErrorKind::SessionLost,
                "the session ended before everything was committed",
            )));
        }
        self.close_reader();
    }
}
