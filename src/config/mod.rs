//! What a member is told before it starts: plain data, read from the old consumer's properties or built in code.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::time::Duration;

use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;

use crate::config::properties::Value;
use crate::error::Error;
use crate::error::Result;
use crate::error::printable;
use crate::group::GroupName;

mod choice;
mod client;
mod keys;
mod properties;
mod secret;
mod value;
mod zookeeper;

pub use choice::Compat;
pub use choice::Dialect;
pub use choice::InternalTopics;
pub use choice::LeaseMode;
pub use choice::MalformedOffset;
pub use choice::MalformedPeer;
pub use choice::Reset;
pub use choice::Strategy;
pub use keys::Effect;
pub use keys::KEYS;
pub use keys::Key;
pub use keys::find;
pub use keys::markdown_table;
pub use properties::Properties;
pub use zookeeper::ConnectString;
pub use zookeeper::DEFAULT_PORT;
pub use zookeeper::Host;

/// Everything that can be set for one member.
///
/// Names and defaults are those of the old consumer's `consumer.properties`; [`KEYS`] lists them all with what each does here.
/// Fields may be changed freely; [`check`](Self::check) tells whether the whole can work, and connecting asks it.
///
/// Shown, logged or serialised, a configuration is a map of these keys to text. Passwords and the like are left out of it, so
/// what was read back lacks them and is refused until they are given anew.
///
/// ```
/// use evenkeel::config::Config;
///
/// let config = Config::from_properties("group.id=etl\nzookeeper.connect=zk1,zk2/kafka\nfetch.min.bytes=10")?;
/// assert_eq!(config.fetch_min_bytes, 10);
/// assert!(config.warnings().is_empty());
/// # Ok::<(), evenkeel::error::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// `group.id`
    pub group: GroupName,
    /// `zookeeper.connect`
    pub zookeeper: ConnectString,
    /// `bootstrap.servers`; empty: brokers are found in ZooKeeper.
    pub bootstrap_servers: Vec<String>,
    /// `consumer.id`; none: a strategy makes one.
    pub consumer_id: Option<String>,
    /// `zookeeper.session.timeout.ms`
    pub session_timeout: Duration,
    /// `rebalance.backoff.ms`, at least 1 ms
    pub rebalance_backoff: Duration,
    /// `rebalance.max.retries`, at least 1
    pub rebalance_max_retries: u32,
    /// `partition.assignment.strategy`
    pub strategy: Strategy,
    /// `partition.assignment.compat`
    pub compat: Compat,
    /// `auto.offset.reset`
    pub auto_offset_reset: Reset,
    /// `auto.commit.enable`
    pub auto_commit: bool,
    /// `auto.commit.interval.ms`
    pub auto_commit_interval: Duration,
    /// `exclude.internal.topics`
    pub exclude_internal_topics: bool,
    /// `fetch.message.max.bytes`
    pub fetch_message_max_bytes: u32,
    /// `fetch.max.bytes`
    pub fetch_max_bytes: u32,
    /// `fetch.min.bytes`
    pub fetch_min_bytes: u32,
    /// `fetch.wait.max.ms`
    pub fetch_wait_max: Duration,
    /// `socket.timeout.ms`
    pub socket_timeout: Duration,
    /// `socket.receive.buffer.bytes`; none: the system sizes it.
    pub socket_receive_buffer_bytes: Option<u32>,
    /// `refresh.leader.backoff.ms`
    pub refresh_leader_backoff: Duration,
    /// `lease`
    pub lease: LeaseMode,
    /// `drain.timeout.ms`
    pub drain_timeout: Duration,
    /// `legacy.handover.delay.ms`
    pub legacy_handover_delay: Duration,
    /// `takeover.delay.ms`
    pub takeover_delay: Duration,
    /// `registration.check.interval.ms`
    pub registration_check_interval: Duration,
    /// `zookeeper.dialect`
    pub zookeeper_dialect: Dialect,
    /// `malformed.peer`
    pub malformed_peer: MalformedPeer,
    /// `malformed.offset`
    pub malformed_offset: MalformedOffset,
    /// `max.unacked.messages`
    pub max_unacked_messages: u32,
    /// `max.unacked.bytes`
    pub max_unacked_bytes: u32,
    /// `unacked.warn.age.ms`
    pub unacked_warn_age: Duration,
    /// `max.buffered.bytes`
    pub max_buffered_bytes: u32,
    client_id: Option<String>,
    connection_timeout: Option<Duration>,
    internal_topics_compat: Option<InternalTopics>,
    kafka: BTreeMap<String, String>,
    notes: Vec<String>,
}

/// The defaults, for a group on one ZooKeeper.
impl Config {
    /// All defaults for this group and connection string.
    ///
    /// # Errors
    /// [`Config`](crate::error::ErrorKind::Config) if either is refused.
    pub fn new(group: &str, zookeeper: &str) -> Result<Self> {
        Ok(Self::defaults(GroupName::new(group)?, zookeeper.parse()?))
    }

    fn defaults(group: GroupName, zookeeper: ConnectString) -> Self {
        let ms = Duration::from_millis;
        Self {
            group,
            zookeeper,
            bootstrap_servers: Vec::new(),
            consumer_id: None,
            session_timeout: ms(6000),
            rebalance_backoff: ms(2000),
            rebalance_max_retries: 4,
            strategy: Strategy::Range,
            compat: Compat::V1_0,
            auto_offset_reset: Reset::Largest,
            auto_commit: true,
            auto_commit_interval: ms(60_000),
            exclude_internal_topics: true,
            fetch_message_max_bytes: 1024 * 1024,
            fetch_max_bytes: 50 * 1024 * 1024,
            fetch_min_bytes: 1,
            fetch_wait_max: ms(100),
            socket_timeout: ms(30_000),
            socket_receive_buffer_bytes: None,
            refresh_leader_backoff: ms(200),
            lease: LeaseMode::Quorum,
            drain_timeout: ms(3000),
            legacy_handover_delay: ms(250),
            takeover_delay: ms(0),
            registration_check_interval: ms(30_000),
            zookeeper_dialect: Dialect::Auto,
            malformed_peer: MalformedPeer::Quarantine,
            malformed_offset: MalformedOffset::Hold,
            max_unacked_messages: 100_000,
            max_unacked_bytes: 64 * 1024 * 1024,
            unacked_warn_age: ms(60_000),
            max_buffered_bytes: 64 * 1024 * 1024,
            client_id: None,
            connection_timeout: None,
            internal_topics_compat: None,
            kafka: BTreeMap::new(),
            notes: Vec::new(),
        }
    }
}

/// Reading.
impl Config {
    /// Reads the text of a properties file.
    ///
    /// # Errors
    /// [`Config`](crate::error::ErrorKind::Config) for a key that is missing, or whose value is refused, with its line and the rule; of several
    /// the first one. Unknown keys are no error but a [warning](Self::warnings).
    pub fn from_properties(text: &str) -> Result<Self> {
        Self::from_read(&Properties::parse(text)?)
    }

    /// Reads a properties file's bytes, which are ISO-8859-1.
    ///
    /// # Errors
    /// As [`from_properties`](Self::from_properties).
    pub fn from_reader(reader: impl Read) -> Result<Self> {
        Self::from_read(&Properties::read(reader)?)
    }

    /// Reads keys and values; of equal keys the last counts.
    ///
    /// # Errors
    /// As [`from_properties`](Self::from_properties).
    pub fn from_pairs<K: Into<String>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self> {
        Self::from_read(&pairs.into_iter().collect())
    }

    /// Reads keys and values of any origin, such as a file with some keys set over it.
    ///
    /// # Errors
    /// As [`from_properties`](Self::from_properties).
    pub fn from_read(properties: &Properties) -> Result<Self> {
        let values = properties.last();
        for required in ["group.id", "zookeeper.connect"] {
            if !values.contains_key(required) {
                return Err(Error::config(format!("{required} is missing")));
            }
        }
        let group = GroupName::new("unread").expect("a plain name");
        let zookeeper = "unread".parse().expect("a plain host");
        let mut config = Self::defaults(group, zookeeper);
        config.notes = properties.doubled();
        config.read_all(&values)?;
        Ok(config)
    }

    fn read_all(&mut self, values: &BTreeMap<&str, &Value>) -> Result<()> {
        let known = KEYS
            .iter()
            .filter_map(|key| Some((Some(key), *values.get(key.name)?)));
        let foreign = values.values().map(|value| (find(&value.key), *value));
        let foreign = foreign.filter(|(key, _)| key.is_none());
        let mut refused = Vec::new();
        for (key, value) in known.chain(foreign) {
            let read = match key {
                Some(key) => self.read_known(key, value),
                None => self.read_foreign(value),
            };
            refused.extend(read.err().map(|error| (value.line, error)));
        }
        match refused.into_iter().min_by_key(|(line, _)| *line) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    fn read_known(&mut self, key: &Key, value: &Value) -> Result<()> {
        (key.read)(self, value)?;
        if let Effect::NoEffect(reason) = key.effect {
            let place = value.place();
            self.notes
                .push(format!("{}{place} has no effect: {reason}", key.name));
        }
        Ok(())
    }

    fn read_foreign(&mut self, value: &Value) -> Result<()> {
        let Some(name) = client::name(&value.key) else {
            self.notes.push(unknown(value));
            return Ok(());
        };
        client::check(name, value)?;
        self.kafka.insert(name.to_owned(), value.text.clone());
        Ok(())
    }
}

/// What follows from several settings.
impl Config {
    /// `client.id`, by default the group's name.
    pub fn client_id(&self) -> &str {
        self.client_id.as_deref().unwrap_or(self.group.as_str())
    }

    /// `zookeeper.connection.timeout.ms`, by default the session time-out.
    pub fn connection_timeout(&self) -> Duration {
        self.connection_timeout.unwrap_or(self.session_timeout)
    }

    /// The rule for internal topics: none if they are not excluded, else by `internal.topics.compat`, else by the compat level.
    pub fn internal_topics(&self) -> InternalTopics {
        if !self.exclude_internal_topics {
            return InternalTopics::None;
        }
        self.internal_topics_compat.unwrap_or(match self.compat {
            Compat::V1_0 => InternalTopics::OffsetsAndTransactions,
            Compat::V0_8_2 | Compat::V0_10_2 => InternalTopics::Offsets,
        })
    }

    /// How long a JVM member with these settings waits for a partition before it gives up for good (L-86).
    pub fn patience(&self) -> Duration {
        self.rebalance_backoff
            .saturating_mul(self.rebalance_max_retries)
    }

    /// What the Kafka client is to be given: what follows from the keys, what was given as `kafka.<key>`, and what must be; but not where the
    /// brokers are, nor how old. It may hold secrets; do not show it.
    pub fn kafka_settings(&self) -> BTreeMap<String, String> {
        client::settings(self)
    }

    /// Whether the whole can work.
    ///
    /// # Errors
    /// [`Config`](crate::error::ErrorKind::Config), naming the key and the rule, as if it had been read.
    pub fn check(&self) -> Result<()> {
        let kafka = self.kafka.iter();
        let kafka = kafka.map(|(name, value)| (format!("kafka.{name}"), value.clone()));
        let own = self.own_pairs().map(|(key, value)| (key.to_owned(), value));
        let taken = Self::from_pairs(own.chain(kafka))?;
        let taken: BTreeMap<&str, String> = taken.own_pairs().collect();
        match self
            .own_pairs()
            .find(|(key, value)| taken.get(key) != Some(value))
        {
            None => Ok(()),
            Some((key, value)) => Err(Error::config(format!(
                "{key} \"{}\" is refused: it is outside of its limits",
                printable(&value)
            ))),
        }
    }

    /// What a user should know: keys without effect, unknown keys, values taken as others, and times that go badly together. Never a secret.
    pub fn warnings(&self) -> Vec<String> {
        let told = self.notes.iter().cloned();
        told.chain(self.frictions()).collect()
    }

    /// Settings that work, but not well.
    fn frictions(&self) -> impl Iterator<Item = String> {
        let patience = self.patience().as_millis();
        let session = self.session_timeout.as_millis();
        let interval = self.auto_commit_interval;
        let giving_up = self
            .drain_timeout
            .saturating_add(self.legacy_handover_delay);
        [
            (self.patience() <= self.session_timeout).then(|| format!(
                "rebalance.max.retries x rebalance.backoff.ms ({patience} ms) is not above zookeeper.session.timeout.ms ({session} ms): a JVM member with these gives up before a dead one's partitions come free (L-86)"
            )),
            (giving_up >= self.patience()).then(|| format!(
                "drain.timeout.ms + legacy.handover.delay.ms ({} ms) is not below rebalance.max.retries x rebalance.backoff.ms ({patience} ms): a JVM member that waits for a partition of ours may give up for good (L-145)",
                giving_up.as_millis()
            )),
            // The default is above the default; only a choice is worth a word.
            (self.auto_commit && interval > self.session_timeout && interval != Duration::from_secs(60)).then(|| format!(
                "auto.commit.interval.ms ({} ms) is above zookeeper.session.timeout.ms ({session} ms): after a crash the messages of so long are read again",
                interval.as_millis()
            )),
            (self.fetch_wait_max.saturating_add(Duration::from_secs(1)) > self.socket_timeout).then(|| format!(
                "fetch.wait.max.ms ({} ms) is not a second below socket.timeout.ms ({} ms): requests behind a waiting one may time out, and releases from 0.9 on refuse the first above the second",
                self.fetch_wait_max.as_millis(),
                self.socket_timeout.as_millis()
            )),
            (self.lease == LeaseMode::Off).then(|| {
                "lease off: after a loss of ZooKeeper this member goes on reading what another may have claimed, as a JVM member does".to_owned()
            }),
        ]
        .into_iter()
        .flatten()
    }

    /// Our own keys and their values, without those that are not set.
    fn own_pairs(&self) -> impl Iterator<Item = (&'static str, String)> {
        KEYS.iter()
            .filter_map(|key| Some((key.name, (key.show)(self)?)))
    }

    /// All keys and values, secrets left out.
    fn shown_pairs(&self) -> BTreeMap<String, String> {
        let own = self.own_pairs().map(|(key, value)| (key.to_owned(), value));
        let kafka = self
            .kafka
            .iter()
            .map(|(name, value)| (format!("kafka.{name}"), secret::shown(name, value)));
        own.chain(kafka).collect()
    }
}

/// What is said of a key that nobody knows; its value is not shown, for it might be anything.
fn unknown(value: &Value) -> String {
    let hint = match value.key.as_str() {
        "groupid" => " (0.7's name for group.id)",
        "zk.connect" => " (0.7's name for zookeeper.connect)",
        "enable.auto.commit" => " (the newer consumer's name for auto.commit.enable)",
        "session.timeout.ms" => " (the newer consumer's; here zookeeper.session.timeout.ms)",
        "metadata.broker.list" => " (a producer's; here bootstrap.servers)",
        _ => "",
    };
    let key = printable(&value.key);
    format!("{key}{} is unknown and ignored{hint}", value.place())
}

macro_rules! setters {
    ($($name:ident, $field:ident: $type:ty, $key:literal;)*) => {
        /// Settings by name.
        impl Config {
            $(
                #[doc = concat!("Sets `", $key, "`.")]
                #[must_use]
                pub fn $name(mut self, value: $type) -> Self {
                    self.$field = value.into();
                    self
                }
            )*
        }
    };
}

setters! {
    with_bootstrap_servers, bootstrap_servers: Vec<String>, "bootstrap.servers";
    with_consumer_id, consumer_id: String, "consumer.id";
    with_client_id, client_id: String, "client.id";
    with_session_timeout, session_timeout: Duration, "zookeeper.session.timeout.ms";
    with_connection_timeout, connection_timeout: Duration, "zookeeper.connection.timeout.ms";
    with_rebalance_backoff, rebalance_backoff: Duration, "rebalance.backoff.ms";
    with_rebalance_max_retries, rebalance_max_retries: u32, "rebalance.max.retries";
    with_strategy, strategy: Strategy, "partition.assignment.strategy";
    with_compat, compat: Compat, "partition.assignment.compat";
    with_auto_offset_reset, auto_offset_reset: Reset, "auto.offset.reset";
    with_auto_commit, auto_commit: bool, "auto.commit.enable";
    with_auto_commit_interval, auto_commit_interval: Duration, "auto.commit.interval.ms";
    with_exclude_internal_topics, exclude_internal_topics: bool, "exclude.internal.topics";
    with_internal_topics_compat, internal_topics_compat: InternalTopics, "internal.topics.compat";
    with_fetch_message_max_bytes, fetch_message_max_bytes: u32, "fetch.message.max.bytes";
    with_fetch_max_bytes, fetch_max_bytes: u32, "fetch.max.bytes";
    with_fetch_min_bytes, fetch_min_bytes: u32, "fetch.min.bytes";
    with_fetch_wait_max, fetch_wait_max: Duration, "fetch.wait.max.ms";
    with_socket_timeout, socket_timeout: Duration, "socket.timeout.ms";
    with_socket_receive_buffer_bytes, socket_receive_buffer_bytes: u32, "socket.receive.buffer.bytes";
    with_refresh_leader_backoff, refresh_leader_backoff: Duration, "refresh.leader.backoff.ms";
    with_lease, lease: LeaseMode, "lease";
    with_drain_timeout, drain_timeout: Duration, "drain.timeout.ms";
    with_legacy_handover_delay, legacy_handover_delay: Duration, "legacy.handover.delay.ms";
    with_takeover_delay, takeover_delay: Duration, "takeover.delay.ms";
    with_registration_check_interval, registration_check_interval: Duration, "registration.check.interval.ms";
    with_zookeeper_dialect, zookeeper_dialect: Dialect, "zookeeper.dialect";
    with_malformed_peer, malformed_peer: MalformedPeer, "malformed.peer";
    with_malformed_offset, malformed_offset: MalformedOffset, "malformed.offset";
    with_max_unacked_messages, max_unacked_messages: u32, "max.unacked.messages";
    with_max_unacked_bytes, max_unacked_bytes: u32, "max.unacked.bytes";
    with_unacked_warn_age, unacked_warn_age: Duration, "unacked.warn.age.ms";
    with_max_buffered_bytes, max_buffered_bytes: u32, "max.buffered.bytes";
}

impl Config {
    /// Gives the Kafka client a setting of its own, as `kafka.<key>` does. [`check`](Self::check) tells whether it may have it.
    #[must_use]
    pub fn with_kafka(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.kafka.insert(key.into(), value.into());
        self
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.shown_pairs()).finish()
    }
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.shown_pairs())
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let pairs = BTreeMap::<String, Scalar>::deserialize(deserializer)?;
        let pairs = pairs.into_iter().map(|(key, value)| (key, value.text()));
        Self::from_pairs(pairs).map_err(serde::de::Error::custom)
    }
}

/// A value in a format that knows more than text.
#[derive(Deserialize)]
#[serde(untagged, expecting = "text, a whole number, or true or false")]
enum Scalar {
    Bool(bool),
    Number(i64),
    Text(String),
}

impl Scalar {
    fn text(self) -> String {
        match self {
            Self::Bool(value) => value.to_string(),
            Self::Number(value) => value.to_string(),
            Self::Text(value) => value,
        }
    }
}

#[cfg(test)]
mod tests;
