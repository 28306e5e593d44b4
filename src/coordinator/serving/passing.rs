//! Passing a message: it counts as done though nobody acknowledges it.

use std::sync::Arc;

use crate::coordinator::not_ours;
use crate::coordinator::serving::Serving;
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::group::TopicPartition;
use crate::stream::{Ownership, Passing};

impl Serving<'_> {
    pub(super) fn pass(&self, partition: &TopicPartition, offset: i64) -> Result<(), Error> {
        let ownership = self
            .ownership_of(partition)
            .ok_or_else(|| not_ours(partition))?;
        let most = i64::from(self.core.parts.config.max_unacked_messages);
        let was_handed_out = match ownership.pass(offset, most) {
            Passing::Done => true,
            Passing::ToCome => false,
            Passing::Over => return Err(not_ours(partition)),
            Passing::NotBegun => {
                return Err(Error::new(
                    ErrorKind::NotOwned,
                    format!(
                        "{partition} is ours and not read yet, so offset {offset} was not passed: ask again once it is started"
                    ),
                ));
            }
            Passing::Behind { next } => {
                return Err(Error::config(format!(
                    "offset {offset} of {partition} was not passed: it is done or there is no such message, reading is at {next}"
                )));
            }
            Passing::TooFar { next } => {
                return Err(Error::config(format!(
                    "offset {offset} of {partition} was not passed: reading is at {next}, and no more than {most} offsets (max.unacked.messages) may lie between"
                )));
            }
        };
        self.tell(Event::Passed {
            partition: partition.clone(),
            offset,
            was_handed_out,
        });
        Ok(())
    }

    /// That of a partition that is held or being given up.
    fn ownership_of(&self, partition: &TopicPartition) -> Option<&Arc<Ownership>> {
        let held = self.held.get(partition).map(|held| &held.ownership);
        let deferred = self.deferred.get(partition);
        held.or_else(|| deferred.map(|farewell| &farewell.ownership))
            .or_else(|| {
                self.parting
                    .get(partition)
                    .map(|leaving| &leaving.ownership)
            })
    }
}
