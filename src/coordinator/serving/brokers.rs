//! Where the brokers are, and the reader that fetches from them.

use std::collections::BTreeSet;

use tokio::time::Instant;

use crate::coordinator::serving::feeding::resume;
use crate::coordinator::serving::{Done, HeldState, Serving, UNKNOWN_SHARE};
use crate::error::ErrorKind;
use crate::event::Event;
use crate::session::{Trouble, Watched};
use crate::stream::Notice;
use crate::wire::paths;

impl Serving<'_> {
    pub(super) async fn find_brokers(&mut self) -> Result<(), Trouble> {
        if !self.core.parts.source.needs_brokers() {
            return self.open_reader(&[]);
        }
        if self.reader.is_some() && self.lookout.is_armed(&Watched::Brokers) {
            return Ok(());
        }
        self.fired.remove(&Watched::Brokers);
        let brokers = self.lookout.brokers().await?;
        if brokers.is_empty() {
            if self.reader.is_none() {
                let reason = format!(
                    "{} lists none; waiting for one to register",
                    paths::broker_ids()
                );
                self.stand("brokers", Some(Event::BrokersMissing { reason }));
            }
            return Ok(());
        }
        if self.standing.remove("brokers").is_some() {
            self.tell(Event::BrokersBack);
        }
        let addresses: BTreeSet<String> = brokers
            .iter()
            .flat_map(|b| b.endpoints.iter().map(ToString::to_string))
            .collect();
        if self.reader.is_some() && !self.brokers.is_disjoint(&addresses) {
            return Ok(());
        }
        // None of the brokers that the client knows is left (T6).
        self.brokers = addresses;
        self.drop_reader();
        self.open_reader(&brokers)
    }

    pub(super) fn open_reader(&mut self, brokers: &[crate::wire::Broker]) -> Result<(), Trouble> {
        if self.reader.is_some() {
            return Ok(());
        }
        match self.core.parts.source.open(brokers, self.expected_share()) {
            Ok(reader) => {
                self.reader = Some(reader);
                self.reader_number += 1;
                // What the one before could not reach says nothing about those it was made for.
                if self.standing.remove("kafka").is_some() {
                    self.tell(Event::BrokersBack);
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Config => Err(Trouble::Fatal(error)),
            Err(error) => Err(Trouble::Transient(error.to_string())),
        }
    }

    /// How many partitions we are likely to read: twice an equal share of what the present members have in common.
    pub(super) fn expected_share(&self) -> usize {
        let own = self.core.parts.subscription.keys();
        let partitions: usize = own
            .filter_map(|topic| self.view.partitions.get(topic))
            .map(Vec::len)
            .sum();
        if partitions == 0 {
            // Its topics are still to come.
            return UNKNOWN_SHARE;
        }
        (partitions * 2)
            .div_ceil(self.view.members.len().max(1))
            .min(partitions)
    }

    pub(super) fn drop_reader(&mut self) {
        let Some(reader) = self.reader.take() else {
            return;
        };
        let now = Instant::now();
        for held in self
            .held
            .values_mut()
            .filter(|held| matches!(held.state, HeldState::Reading))
        {
            // What it still gave out would come again, and be passed over by the commit.
            held.ownership.pause();
            if let Some(from) = resume(held) {
                held.state = HeldState::Later { at: now, from };
            }
        }
        self.works.push(Box::pin(async move {
            reader.close().await;
            Done::ReaderClosed
        }));
    }

    pub(super) fn on_notice(&mut self, notice: Notice) {
        match notice {
            Notice::BrokersDown(reason) => {
                self.stand("kafka", Some(Event::BrokersMissing { reason }))
            }
            Notice::BrokersBack => {
                if self.standing.remove("kafka").is_some() {
                    self.tell(Event::BrokersBack);
                }
            }
            Notice::Warning(what) => self.stand("reader", Some(Event::Warning { what })),
        }
    }

    /// The next session opens its own.
    pub(super) fn close_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            drop(reader.close());
        }
    }
}
