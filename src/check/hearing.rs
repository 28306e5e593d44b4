//! From what a member tells those who watch it to what the judge wants to know of that.

use std::collections::BTreeMap;

use crate::event::{Event, ResetCause};
use crate::group::TopicPartition;

use crate::check::event::{Fact, How};

/// Listens to the events of one start of one member, all of them in their order.
#[derive(Debug, Clone, Default)]
pub struct Hearing {
    /// What was claimed and is not read yet.
    claimed: BTreeMap<TopicPartition, Claimed>,
}

#[derive(Debug, Clone)]
struct Claimed {
    token: i64,
    /// The position that was set, and why.
    reset: Option<(i64, ResetCause)>,
}

impl Hearing {
    /// Nothing heard yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the judge is to know of an event, if anything.
    pub fn hear(&mut self, event: &Event) -> Option<Fact> {
        match event {
            Event::Joined { session, .. } => Some(Fact::Joined { session: *session }),
            Event::Claimed {
                partition, token, ..
            } => {
                let claimed = Claimed {
                    token: *token,
                    reset: None,
                };
                self.claimed.insert(partition.clone(), claimed);
                None
            }
            Event::OffsetReset {
                partition,
                token,
                from,
                to: Some(to),
                cause,
            } => {
                let claimed = self.claimed.get_mut(partition);
                // That of a former ownership may be heard late.
                if let Some(claimed) = claimed.filter(|claimed| claimed.token == *token) {
                    claimed.reset = Some((*to, *cause));
                }
                Some(Fact::Reset {
                    partition: partition.clone(),
                    from: *from,
                    to: *to,
                })
            }
            Event::Started { partition, offset } => self.begins(partition, *offset),
            Event::Released {
                partition,
                undone,
                is_forced,
                ..
            } => Some(Fact::Released {
                partition: partition.clone(),
                undone: *undone as u64,
                is_forced: *is_forced,
            }),
            // What was not heard may have been a beginning.
            Event::Missed { .. } => {
                self.claimed.clear();
                None
            }
            _ => None,
        }
    }

    /// An ownership begins to be read once; where it goes on after trouble is no beginning.
    fn begins(&mut self, partition: &TopicPartition, offset: i64) -> Option<Fact> {
        let Claimed { token, reset } = self.claimed.remove(partition)?;
        let how = match reset.filter(|(to, _)| *to == offset) {
            None => How::Stored,
            Some((_, ResetCause::OutOfRange | ResetCause::TopicRecreated)) => How::Reset,
            Some(_) => How::Policy,
        };
        Some(Fact::Started {
            partition: partition.clone(),
            token,
            offset,
            how,
        })
    }
}
