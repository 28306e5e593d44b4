//! What librdkafka is told: the user's settings, our defaults, and what nobody may change.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

use crate::config::Config;
use crate::error::{Error, ErrorKind, Result, printable};
use crate::kafka::probe::Generation;
use crate::wire::{Broker, lowest_version};

/// Ours alone: its own commits and resets would break the lease and the fence (K4, K5).
const FORCED: [(&str, &str); 6] = [
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "error"),
    ("allow.auto.create.topics", "false"),
    ("enable.partition.eof", "false"),
    ("enable.metrics.push", "false"),
];

/// Unless the user set them.
const DEFAULTS: [(&str, &str); 6] = [
    // As it comes it pauses a whole second when its local queue is full.
    ("fetch.queue.backoff.ms", "10"),
    // A partition that is added waits for the long poll under way.
    ("fetch.wait.max.ms", "100"),
    // No group is joined; a low value only shortens what waits for a coordinator. A user cannot set them.
    ("session.timeout.ms", "3000"),
    ("heartbeat.interval.ms", "1000"),
    ("reconnect.backoff.max.ms", "1000"),
    // Needed even for manual assignment; no offset is ever stored under it.
    ("group.id", "evenkeel"),
];

/// How much one answer of a broker may hold, unless the user said it. Said, since left unset it would be lowered to the
/// bound of a single queue.
const FETCH_MAX_BYTES: u64 = 50 << 20;

/// How a [`KafkaReader`](crate::kafka::KafkaReader) connects, and how much it may hold.
#[derive(Clone)]
pub struct Fetching {
    /// librdkafka's own settings by their own names. What commits, resets or creates topics is overridden.
    pub settings: BTreeMap<String, String>,
    /// Where to find the first broker, each `host:port`.
    pub brokers: Vec<String>,
    /// How many partitions are expected to be read at a time; at least 1 is assumed.
    pub expected_partitions: usize,
    /// Bytes that may lie fetched and unread. Each partition's queue gets its share, though at least 1 MiB,
    /// so that more partitions than expected exceed it.
    pub budget_bytes: usize,
    /// The lowest version among the brokers' registrations, to tell the old ones apart; none if they were not found there.
    pub lowest_registration: Option<i32>,
    /// How long a read or a question to the brokers may take.
    pub deadline: Duration,
}

impl Fetching {
    /// 64 MiB, and a deadline of 5 s.
    pub fn new(
        settings: BTreeMap<String, String>,
        brokers: Vec<String>,
        expected_partitions: usize,
    ) -> Self {
        Self {
            settings,
            brokers,
            expected_partitions,
            budget_bytes: 64 << 20,
            lowest_registration: None,
            deadline: Duration::from_secs(5),
        }
    }

    /// How a member with this configuration fetches: from the brokers it names, else from those that are registered.
    ///
    /// # Errors
    /// [`Kafka`](ErrorKind::Kafka) if none of those has an address for the configured protocol.
    pub fn of(config: &Config, brokers: &[Broker], expected_partitions: usize) -> Result<Self> {
        let settings = config.kafka_settings();
        let protocol = settings.get("security.protocol").map_or_else(
            || "PLAINTEXT".to_owned(),
            |protocol| protocol.to_uppercase(),
        );
        let registered = brokers
            .iter()
            .filter_map(|broker| broker.endpoint(&protocol));
        let addresses: Vec<String> = match config.bootstrap_servers.as_slice() {
            [] => registered.map(ToString::to_string).collect(),
            named => named.to_vec(),
        };
        if addresses.is_empty() {
            let text =
                format!("no broker registered an address for {protocol}; give bootstrap.servers");
            return Err(Error::new(ErrorKind::Kafka, text));
        }
        let mut fetching = Self::new(settings, addresses, expected_partitions);
        fetching.budget_bytes = config.max_buffered_bytes as usize;
        fetching.lowest_registration =
            lowest_version(brokers).and_then(|version| i32::try_from(version).ok());
        Ok(fetching)
    }

    /// Whether to ask first how to speak: not if the user said it, nor where a plain request is not understood.
    pub(super) fn is_to_probe(&self) -> bool {
        let is_plain = self
            .settings
            .get("security.protocol")
            .is_none_or(|protocol| protocol.eq_ignore_ascii_case("plaintext"));
        is_plain
            && !self.settings.contains_key("api.version.request")
            && !self.settings.contains_key("broker.version.fallback")
    }

    /// The whole configuration for brokers of this generation.
    pub(super) fn config(&self, generation: Generation) -> Result<ClientConfig> {
        if self.brokers.is_empty() {
            return Err(Error::config(
                "no broker is known: neither the bootstrap list nor /brokers/ids names one",
            ));
        }
        let mut config = ClientConfig::new();
        for (key, value) in DEFAULTS {
            config.set(key, value);
        }
        config.set("queued.max.messages.kbytes", self.queue_kib().to_string());
        config.set("fetch.max.bytes", self.fetch_max_bytes().to_string());
        for (key, value) in &self.settings {
            // The other name of `bootstrap.servers`.
            if key != "metadata.broker.list" {
                config.set(key, value);
            }
        }
        for (key, value) in FORCED {
            config.set(key, value);
        }
        config.set("bootstrap.servers", self.brokers.join(","));
        if generation == Generation::Old {
            // Below 0.10 nothing can be negotiated. The requests of those versions have no field for `fetch.max.bytes`
            // and the like, and librdkafka leaves out what a version does not have.
            config.set("api.version.request", "false");
            config.set("broker.version.fallback", self.fallback());
        }
        match config.create_native_config() {
            Ok(_) => Ok(config),
            Err(error) => Err(refused(&error)),
        }
    }

    /// Each queue's share of the budget: at least 1 MiB, at most what librdkafka takes.
    fn queue_kib(&self) -> usize {
        let share = self.budget_bytes / self.expected_partitions.max(1);
        (share / 1024).clamp(1024, 2_097_151)
    }

    /// Not below the largest message, which librdkafka refuses.
    fn fetch_max_bytes(&self) -> u64 {
        let largest = self.settings.get("message.max.bytes");
        let largest = largest.and_then(|bytes| bytes.parse().ok());
        FETCH_MAX_BYTES.max(largest.unwrap_or(0))
    }

    /// Registrations have had version 2 since 0.9. Not knowing, we speak as to 0.8, which 0.9 understands as well.
    fn fallback(&self) -> &'static str {
        match self.lowest_registration {
            Some(version) if version >= 2 => "0.9.0.1",
            _ => "0.8.2.2",
        }
    }
}

/// The value is left out: it may be a password.
pub(super) fn refused(error: &KafkaError) -> Error {
    match error {
        KafkaError::ClientConfig(_, why, key, _) => Error::config(format!(
            "kafka client setting \"{}\" is refused: {}",
            printable(key),
            // librdkafka's reason repeats the value in quotes.
            printable(why.split('"').next().unwrap_or_default().trim())
        )),
        other => Error::config(format!(
            "kafka client settings are refused: {}",
            printable(&other.to_string())
        )),
    }
}

impl fmt::Debug for Fetching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Settings hold passwords; their names do not.
        f.debug_struct("Fetching")
            .field("settings", &self.settings.keys())
            .field("brokers", &self.brokers)
            .field("expected_partitions", &self.expected_partitions)
            .field("budget_bytes", &self.budget_bytes)
            .field("lowest_registration", &self.lowest_registration)
            .field("deadline", &self.deadline)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn fetching(settings: &[(&str, &str)]) -> Fetching {
        let settings = settings
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        Fetching::new(settings, vec!["b1:9092".into(), "b2:9092".into()], 16)
    }

    #[test]
    fn commits_and_resets_are_never_the_clients_own() {
        // K4, K5
        let config = fetching(&[
            ("enable.auto.commit", "true"),
            ("auto.offset.reset", "latest"),
            ("group.id", "g"),
        ])
        .config(Generation::Negotiating)
        .unwrap();
        assert_eq!(config.get("enable.auto.commit"), Some("false"));
        assert_eq!(config.get("enable.auto.offset.store"), Some("false"));
        assert_eq!(config.get("auto.offset.reset"), Some("error"));
        assert_eq!(config.get("group.id"), Some("g"));
        assert_eq!(config.get("bootstrap.servers"), Some("b1:9092,b2:9092"));
    }

    #[test]
    fn the_budget_is_shared_among_the_partitions_expected() {
        // K8
        let kib = |partitions| {
            let mut fetching = fetching(&[]);
            fetching.expected_partitions = partitions;
            let config = fetching.config(Generation::Negotiating).unwrap();
            config.get("queued.max.messages.kbytes").unwrap().to_owned()
        };
        assert_eq!(kib(0), "65536");
        assert_eq!(kib(16), "4096");
        assert_eq!(kib(1000), "1024");
        let mut config = Config::new("g", "zk1").unwrap();
        config.bootstrap_servers = vec!["b1:9092".into()];
        config.max_buffered_bytes = 32 << 20;
        let configured = Fetching::of(&config, &[], 8).unwrap();
        let configured = configured.config(Generation::Negotiating).unwrap();
        assert_eq!(configured.get("queued.max.messages.kbytes"), Some("4096"));
        let own = fetching(&[("queued.max.messages.kbytes", "2000")]);
        let config = own.config(Generation::Negotiating).unwrap();
        assert_eq!(config.get("queued.max.messages.kbytes"), Some("2000"));
    }

    #[test]
    fn what_the_user_set_stands() {
        let config = fetching(&[("fetch.queue.backoff.ms", "77")])
            .config(Generation::Negotiating)
            .unwrap();
        assert_eq!(config.get("fetch.queue.backoff.ms"), Some("77"));
        assert_eq!(config.get("fetch.wait.max.ms"), Some("100"));
    }

    #[test]
    fn the_documentation_names_whatever_the_client_is_given() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (_, text) = text.split_once("## Settings of the Kafka client").unwrap();
        let (_, given) = text.split_once("What it is given unless told").unwrap();
        for generation in [Generation::Negotiating, Generation::Old] {
            let config = fetching(&[]).config(generation).unwrap();
            for key in config.config_map().keys() {
                let is_named =
                    given.contains(&format!("`{key}`")) || given.contains(&format!("`{key}="));
                assert!(is_named, "{key} is not explained");
            }
        }
        // Those that have one value and no other name.
        let fixed = DEFAULTS.into_iter().chain(FORCED);
        for (key, value) in
            fixed.filter(|(key, _)| !matches!(*key, "group.id" | "fetch.wait.max.ms"))
        {
            let is_told = given.contains(&format!("`{key}={value}`"))
                || given.contains(&format!("`{key}` | {value} |"));
            assert!(is_told, "{key}={value}");
        }
    }

    #[test]
    fn brokers_are_not_probed_where_the_answer_would_mislead() {
        assert!(fetching(&[("security.protocol", "PLAINTEXT")]).is_to_probe());
        for setting in [
            ("security.protocol", "ssl"),
            ("security.protocol", "sasl_plaintext"),
            ("api.version.request", "false"),
        ] {
            assert!(!fetching(&[setting]).is_to_probe(), "{setting:?}");
        }
    }

    #[test]
    fn one_answer_of_a_broker_holds_the_largest_message() {
        let bytes = |settings: &[(&str, &str)]| {
            let config = fetching(settings).config(Generation::Negotiating).unwrap();
            config.get("fetch.max.bytes").unwrap().to_owned()
        };
        assert_eq!(bytes(&[]), "52428800");
        assert_eq!(bytes(&[("message.max.bytes", "100000000")]), "100000000");
        assert_eq!(bytes(&[("fetch.max.bytes", "2000000")]), "2000000");
    }

    #[test]
    fn an_old_broker_gets_the_fallback_of_its_registration() {
        for (registration, version) in [
            (Some(1), "0.8.2.2"),
            (Some(2), "0.9.0.1"),
            (None, "0.8.2.2"),
        ] {
            let mut fetching = fetching(&[]);
            fetching.lowest_registration = registration;
            let config = fetching.config(Generation::Old).unwrap();
            assert_eq!(config.get("api.version.request"), Some("false"));
            assert_eq!(config.get("broker.version.fallback"), Some(version));
        }
    }

    #[test]
    fn a_wrong_setting_is_named_without_its_value() {
        for (key, value) in [("no.such.key", "hunter2"), ("fetch.wait.max.ms", "hunter2")] {
            let error = fetching(&[(key, value)])
                .config(Generation::Negotiating)
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            let text = error.to_string();
            assert!(text.contains(key) && !text.contains("hunter2"), "{text}");
        }
        let fetching = fetching(&[("sasl.password", "hunter2")]);
        assert!(!format!("{fetching:?}").contains("hunter2"));
    }
}
