//! Where a member's messages come from, by its configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::kafka::{Fetching, KafkaReader};
use crate::stream::{Reader, ReaderSource};
use crate::wire::{Broker, lowest_version};

pub(super) struct KafkaSource {
    settings: BTreeMap<String, String>,
    bootstrap: Vec<String>,
    protocol: String,
    budget: usize,
}

impl KafkaSource {
    pub fn new(config: &Config) -> Self {
        let settings = config.kafka_settings();
        let protocol = settings
            .get("security.protocol")
            .map_or_else(|| "PLAINTEXT".to_owned(), |p| p.to_uppercase());
        Self {
            settings,
            bootstrap: config.bootstrap_servers.clone(),
            protocol,
            budget: config.max_buffered_bytes as usize,
        }
    }

    fn addresses(&self, brokers: &[Broker]) -> Result<Vec<String>> {
        if !self.bootstrap.is_empty() {
            return Ok(self.bootstrap.clone());
        }
        let addresses: Vec<String> = brokers
            .iter()
            .filter_map(|broker| broker.endpoint(&self.protocol))
            .map(ToString::to_string)
            .collect();
        if addresses.is_empty() {
            let text = format!(
                "no broker registered an address for {}; give bootstrap.servers",
                self.protocol
            );
            return Err(Error::new(ErrorKind::Kafka, text));
        }
        Ok(addresses)
    }
}

impl ReaderSource for KafkaSource {
    fn needs_brokers(&self) -> bool {
        self.bootstrap.is_empty()
    }

    fn open(&self, brokers: &[Broker], partitions: usize) -> Result<Arc<dyn Reader>> {
        let mut fetching =
            Fetching::new(self.settings.clone(), self.addresses(brokers)?, partitions);
        fetching.budget_bytes = self.budget;
        fetching.lowest_registration =
            lowest_version(brokers).and_then(|version| i32::try_from(version).ok());
        Ok(Arc::new(KafkaReader::new(fetching)?))
    }
}
