//! Where a member's messages come from, by its configuration.

use std::sync::Arc;

use crate::config::Config;
use crate::error::Result;
use crate::kafka::{Fetching, KafkaReader};
use crate::stream::{Reader, ReaderSource};
use crate::wire::Broker;

pub(super) struct KafkaSource {
    config: Config,
}

impl KafkaSource {
    pub fn new(config: &Config) -> Self {
        let config = config.clone();
        Self { config }
    }
}

impl ReaderSource for KafkaSource {
    fn needs_brokers(&self) -> bool {
        self.config.bootstrap_servers.is_empty()
    }

    fn open(&self, brokers: &[Broker], partitions: usize) -> Result<Arc<dyn Reader>> {
        let fetching = Fetching::of(&self.config, brokers, partitions)?;
        Ok(Arc::new(KafkaReader::new(fetching)?))
    }
}
