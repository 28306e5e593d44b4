//! The settings of the Kafka client that lies below: which it is given, which a user may add, which are ours alone.

use std::collections::BTreeMap;

use crate::config::Config;
use crate::config::properties::Value;
use crate::config::secret::REDACTED;
use crate::error::Error;
use crate::error::Result;
use crate::error::printable;

const OURS: &str =
    "commits, start positions and membership are this library's, with its own fences";
const OLD_NAME: &str = "the key has the same name without kafka.";

/// Keys of the Kafka client that a user may not set, with the reason.
const RESERVED: &[(&str, &str)] = &[
    ("allow.auto.create.topics", "a reader makes no topics"),
    (
        "enable.metrics.push",
        "brokers are not told about the service",
    ),
    ("auto.commit.enable", OURS),
    ("auto.commit.interval.ms", OURS),
    ("auto.offset.reset", OURS),
    ("enable.auto.commit", OURS),
    ("enable.auto.offset.store", OURS),
    (
        "enable.partition.eof",
        "the end of a partition is no message",
    ),
    ("group.id", OURS),
    ("group.instance.id", OURS),
    ("group.protocol", OURS),
    ("group.protocol.type", OURS),
    ("group.remote.assignor", OURS),
    ("heartbeat.interval.ms", OURS),
    ("max.poll.interval.ms", OURS),
    ("offset.store.method", OURS),
    ("partition.assignment.strategy", OURS),
    ("session.timeout.ms", OURS),
    ("bootstrap.servers", OLD_NAME),
    ("metadata.broker.list", "the key is bootstrap.servers"),
    ("client.id", OLD_NAME),
    ("fetch.max.bytes", OLD_NAME),
    ("fetch.message.max.bytes", OLD_NAME),
    (
        "max.partition.fetch.bytes",
        "the key is fetch.message.max.bytes",
    ),
    ("fetch.min.bytes", OLD_NAME),
    ("fetch.wait.max.ms", OLD_NAME),
    ("socket.receive.buffer.bytes", OLD_NAME),
    ("socket.timeout.ms", OLD_NAME),
    (
        "topic.metadata.refresh.fast.interval.ms",
        "the key is refresh.leader.backoff.ms",
    ),
];

const HAS_TLS: bool = cfg!(feature = "tls");
/// No build has it yet.
const HAS_SASL: bool = false;

/// The Kafka client's name of a key: `kafka.<name>`, or a bare one of `security.*`, `ssl.*`, `sasl.*`.
pub(super) fn name(key: &str) -> Option<&str> {
    let bare = ["security.", "ssl.", "sasl."];
    match key.strip_prefix("kafka.") {
        Some(name) => Some(name),
        None if bare.iter().any(|prefix| key.starts_with(prefix)) => Some(key),
        None => None,
    }
}

/// Whether the Kafka client may be given this; the error names the key and never the value.
pub(super) fn check(name: &str, value: &Value) -> Result<()> {
    match reason_against(name, &value.text) {
        None => Ok(()),
        Some(reason) => Err(Error::config(format!(
            "{}{} is refused: {reason}",
            printable(&value.key),
            value.place()
        ))),
    }
}

fn reason_against(name: &str, value: &str) -> Option<&'static str> {
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_graphic()) {
        return Some("no key of the Kafka client is called so");
    }
    if value == REDACTED {
        return Some("its value was left out when the configuration was shown; give it anew");
    }
    if value.contains('\0') {
        return Some("its value holds a zero character");
    }
    let reserved = RESERVED.iter().find(|(key, _)| *key == name);
    reserved
        .map(|(_, reason)| *reason)
        .or_else(|| reason_of_security(name, value))
}

fn reason_of_security(name: &str, value: &str) -> Option<&'static str> {
    let protocol = match name {
        "security.protocol" => value.to_ascii_lowercase(),
        _ => String::new(),
    };
    let wants_tls = name.starts_with("ssl.") || matches!(&*protocol, "ssl" | "sasl_ssl");
    let wants_sasl = name.starts_with("sasl.") || protocol.starts_with("sasl_");
    if wants_sasl && !HAS_SASL {
        Some("SASL towards Kafka is not built yet")
    } else if wants_tls && !HAS_TLS {
        Some("TLS towards Kafka needs the feature tls, which this build lacks")
    } else {
        None
    }
}

/// What the Kafka client is to be given.
pub(super) fn settings(config: &Config) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut put = |key: &str, value: &dyn ToString| all.insert(key.to_owned(), value.to_string());
    // A full queue would else be tried again only after a second.
    put("fetch.queue.backoff.ms", &10);
    // The old consumer reads what brokers send it, open and aborted transactions too.
    put("isolation.level", &"read_uncommitted");
    // The old consumer pushes no metrics into brokers.
    put("enable.metrics.push", &false);
    put("client.id", &config.client_id());
    put("fetch.message.max.bytes", &config.fetch_message_max_bytes);
    put("fetch.max.bytes", &config.fetch_max_bytes);
    // The client refuses an answer bound below its message bound, which is 1,000,000 by default.
    put(
        "message.max.bytes",
        &config.fetch_max_bytes.clamp(1000, 1_000_000),
    );
    put("fetch.min.bytes", &config.fetch_min_bytes);
    put("fetch.wait.max.ms", &config.fetch_wait_max.as_millis());
    put("socket.timeout.ms", &config.socket_timeout.as_millis());
    put(
        "topic.metadata.refresh.fast.interval.ms",
        &config.refresh_leader_backoff.as_millis(),
    );
    if let Some(bytes) = config.socket_receive_buffer_bytes {
        put("socket.receive.buffer.bytes", &bytes);
    }
    all.extend(config.kafka.clone());
    let forced = [
        ("group.id", config.group.as_str()),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("auto.offset.reset", "error"),
        ("enable.partition.eof", "false"),
    ];
    all.extend(forced.map(|(key, value)| (key.to_owned(), value.to_owned())));
    all
}
