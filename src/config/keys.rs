//! Every key there is: name, default, since when, what it does here, how it is read and shown.

use std::time::Duration;

use crate::config::Config;
use crate::config::properties::Value;
use crate::error::Result;

use Effect::Honoured;
use Effect::NoEffect;
use Effect::Refused;

/// What a key does here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// It does what it says.
    Honoured,
    /// It is read and checked, but changes nothing, for this reason; setting it gives a warning.
    NoEffect(&'static str),
    /// Only its default is taken, for this reason; anything else is an error.
    Refused(&'static str),
}

/// One key of the configuration.
#[derive(Debug)]
#[non_exhaustive]
pub struct Key {
    /// Its name in a properties file.
    pub name: &'static str,
    /// Its default as text; in parentheses where it follows from something else.
    pub default: &'static str,
    /// The first Kafka release that read it, `all` for every one from 0.8.1 on, `ours` if none did.
    pub since: &'static str,
    /// What it does here.
    pub effect: Effect,
    /// What it is, its unit and limits, and what raising it costs.
    pub about: &'static str,
    /// Takes the value.
    pub(super) read: fn(&mut Config, &Value) -> Result<()>,
    /// The value as text, if it is one that is kept.
    pub(super) show: fn(&Config) -> Option<String>,
}

fn ms(duration: Duration) -> Option<String> {
    Some(duration.as_millis().to_string())
}

fn text(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

fn nothing(_: &Config) -> Option<String> {
    None
}

fn an_int(_: &mut Config, value: &Value) -> Result<()> {
    value.int().map(drop)
}

fn any(_: &mut Config, _: &Value) -> Result<()> {
    Ok(())
}

/// A time that will work one day; until then only none of it is taken.
fn zero(reason: &'static str, value: &Value) -> Result<()> {
    if value.ms()?.is_zero() {
        Ok(())
    } else {
        Err(value.refused(reason))
    }
}

const NO_BROKER_OFFSETS: &str = "offsets kept in Kafka are not built yet";
const ONLY_BROKER_OFFSETS: &str = "concerns offsets kept in Kafka, which are not built yet";
const NOT_READ: &str = "no release of Kafka read it";
const LATER_SETTLING: &str = "a settling window is not built yet; 0 is the only value";
const LATER_GRACE: &str = "a grace time for known ids is not built yet; 0 is the only value";
const LATER_ACL: &str = "nodes that only their creator may change are not built yet";

macro_rules! keys {
    ($($name:literal, $default:literal, $since:literal, $effect:expr, $read:expr, $show:expr, $about:literal;)*) => {
        &[$(Key {
            name: $name,
            default: $default,
            since: $since,
            effect: $effect,
            about: $about,
            read: $read,
            show: $show,
        }),*]
    };
}

/// All keys but those of the Kafka client (`kafka.*`, `security.*`, `ssl.*`, `sasl.*`), in the order in which they are read:
/// one whose default follows from another comes behind it.
pub const KEYS: &[Key] = keys! {
    "group.id", "(required)", "all", Honoured,
        |c, v| { c.group = crate::group::GroupName::new(&v.text).map_err(|e| v.refused_by(&e))?; Ok(()) },
        |c| Some(c.group.as_str().to_owned()),
        "The group. `A-Z a-z 0-9 . _ -`, not empty.";
    "zookeeper.connect", "(required)", "all", Honoured,
        |c, v| { c.zookeeper = v.text.parse().map_err(|e| v.refused_by(&e))?; Ok(()) },
        |c| text(&c.zookeeper),
        "`host:port,host:port/chroot`; the chroot stands once, at the end, and must exist. The port is 2181 if absent; IPv6 addresses stand in brackets.";
    "bootstrap.servers", "(from ZooKeeper)", "ours", Honoured,
        |c, v| { c.bootstrap_servers = v.brokers()?; Ok(()) },
        |c| (!c.bootstrap_servers.is_empty()).then(|| c.bootstrap_servers.join(",")),
        "Brokers to ask first, `host:port,host:port`. If absent they are found under `/brokers/ids`, as the old consumer does.";
    "consumer.id", "(generated)", "all", Honoured,
        |c, v| { c.consumer_id = Some(v.text.clone()); Ok(()) },
        |c| c.consumer_id.clone(),
        "A fixed id, the part behind `<group>_`. Two live members with one id are refused.";
    "client.id", "(group.id)", "all", Honoured,
        |c, v| { c.client_id = Some(v.plain()?); Ok(()) },
        |c| c.client_id.clone(),
        "What brokers see in their logs and quotas. Characters as in `group.id`.";
    "zookeeper.session.timeout.ms", "6000", "all", Honoured,
        |c, v| { c.session_timeout = v.positive_ms()?; Ok(()) },
        |c| ms(c.session_timeout),
        "After how long without a word from us ZooKeeper gives our partitions to others; it may negotiate another. Longer: fewer false alarms and probes, later take-over of the dead.";
    "zookeeper.connection.timeout.ms", "(zookeeper.session.timeout.ms)", "all", Honoured,
        |c, v| { c.connection_timeout = Some(v.positive_ms()?); Ok(()) },
        |c| c.connection_timeout.and_then(ms),
        "How long connecting may take before it is an error.";
    "zookeeper.sync.time.ms", "2000", "all", Honoured,
        |c, v| { v.at_least(0)?; c.rebalance_backoff = v.backoff(&mut c.notes)?; Ok(()) },
        nothing,
        "Only the default of `rebalance.backoff.ms`.";
    "rebalance.backoff.ms", "(zookeeper.sync.time.ms)", "all", Honoured,
        |c, v| { c.rebalance_backoff = v.backoff(&mut c.notes)?; Ok(()) },
        |c| ms(c.rebalance_backoff),
        "The pause a JVM member makes between attempts. Here it bounds waiting for what nobody tells us, and with `rebalance.max.retries` when a member is told to be stuck.";
    "rebalance.max.retries", "4", "all", Honoured,
        |c, v| { c.rebalance_max_retries = v.positive()?; Ok(()) },
        |c| text(c.rebalance_max_retries),
        "A JVM member gives up after so many attempts; ours does not, but raises an event after `retries x backoff`.";
    "partition.assignment.strategy", "range", "0.8.2", Honoured,
        |c, v| { c.strategy = v.word()?; Ok(()) },
        |c| text(c.strategy),
        "`range` or `roundrobin`; the same in all members, since nothing tells a difference.";
    "partition.assignment.compat", "1.0", "ours", Honoured,
        |c, v| { c.compat = v.word()?; Ok(()) },
        |c| text(c.compat),
        "Whose round robin to agree with: `0.8.2` (0.8.2 to 0.10.1), `0.10.2` (and 0.11) or `1.0` (and 1.1).";
    "auto.offset.reset", "largest", "all", Honoured,
        |c, v| { c.auto_offset_reset = v.reset()?; Ok(()) },
        |c| text(c.auto_offset_reset),
        "Where to start without an offset, or with one out of range: `smallest`, `largest`, or `none` (ours: hold the partition, with an event).";
    "auto.commit.enable", "true", "all", Honoured,
        |c, v| { c.auto_commit = v.boolean()?; Ok(()) },
        |c| text(c.auto_commit),
        "Whether the offsets of finished messages are committed by timer and on hand-over. If not, only commits asked for, and the first start position, are written.";
    "auto.commit.interval.ms", "60000", "all", Honoured,
        |c, v| v.commit_interval(c),
        |c| ms(c.auto_commit_interval),
        "The timer's period. Longer: fewer writes, more messages again after a crash.";
    "offsets.storage", "zookeeper", "0.8.2", Refused(NO_BROKER_OFFSETS),
        |_, v| match v.text.to_lowercase().as_str() {
            "zookeeper" => Ok(()),
            "kafka" => Err(v.refused(NO_BROKER_OFFSETS)),
            _ => Err(v.refused("zookeeper is wanted")),
        },
        nothing,
        "Where offsets are kept. `kafka` is refused, and dual commit with it.";
    "dual.commit.enabled", "false", "0.8.2", NoEffect("concerns offsets kept in Kafka only; with offsets in ZooKeeper the old consumer ignores it too (L-113)"),
        |_, v| v.boolean().map(drop),
        nothing,
        "Whether offsets kept in Kafka go to ZooKeeper too. `true` if they are kept in Kafka.";
    "offsets.channel.backoff.ms", "1000", "0.8.2", NoEffect(ONLY_BROKER_OFFSETS),
        an_int, nothing, "Pause between attempts to reach the offset coordinator.";
    "offsets.channel.socket.timeout.ms", "10000", "0.8.2", NoEffect(ONLY_BROKER_OFFSETS),
        an_int, nothing, "Socket time-out towards the offset coordinator.";
    "offsets.commit.max.retries", "5", "0.8.2", NoEffect(ONLY_BROKER_OFFSETS),
        an_int, nothing, "Attempts to commit to Kafka.";
    "exclude.internal.topics", "true", "0.8.2", Honoured,
        |c, v| { c.exclude_internal_topics = v.boolean()?; Ok(()) },
        |c| text(c.exclude_internal_topics),
        "Whether white and black lists, ours and those of other members, pass over internal topics. The same in all members.";
    "internal.topics.compat", "(partition.assignment.compat)", "ours", Honoured,
        |c, v| { c.internal_topics_compat = Some(v.word()?); Ok(()) },
        |c| c.internal_topics_compat.and_then(text),
        "Which topics are internal: `0.8.1` (none), `0.8.2` (to 0.10.2: `__consumer_offsets`) or `0.11` (and later: `__transaction_state` too). Follows from the compat level: `1.0` gives `0.11`, the others `0.8.2`; say `0.11` for peers of 0.11.";
    "consumer.timeout.ms", "-1", "all", NoEffect("put a time-out around the call that waits for a message"),
        an_int, nothing, "How long the old iterator waits for a message before it throws; negative: for ever.";
    "queued.max.message.chunks", "2", "all", NoEffect("what is fetched ahead is bounded by max.buffered.bytes"),
        an_int, nothing, "Chunks fetched ahead per stream.";
    "num.consumer.fetchers", "1", "all", NoEffect("the Kafka client has one connection per broker"),
        an_int, nothing, "Fetchers per broker.";
    "fetch.message.max.bytes", "1048576", "all", Honoured,
        |c, v| { c.fetch_message_max_bytes = v.clamped(1, 1_000_000_000, &mut c.notes)?; Ok(()) },
        |c| text(c.fetch_message_max_bytes),
        "Bytes asked of one partition at a time. A larger message is read all the same.";
    "fetch.max.bytes", "52428800", "0.10.1", Honoured,
        |c, v| { c.fetch_max_bytes = v.clamped(1000, 2_147_483_135, &mut c.notes)?; Ok(()) },
        |c| text(c.fetch_max_bytes),
        "Bytes of one answer of a broker. The old consumer read the key and did nothing with it.";
    "fetch.min.bytes", "1", "all", Honoured,
        |c, v| { c.fetch_min_bytes = v.clamped(1, 100_000_000, &mut c.notes)?; Ok(()) },
        |c| text(c.fetch_min_bytes),
        "Bytes for which a broker lets us wait. More: fewer requests, later messages.";
    "fetch.wait.max.ms", "100", "all", Honoured,
        |c, v| { c.fetch_wait_max = v.clamped_ms(0, 300_000, &mut c.notes)?; Ok(()) },
        |c| ms(c.fetch_wait_max),
        "How long a broker may let us wait. Longer: fewer idle requests, slower take-over.";
    "socket.timeout.ms", "30000", "all", Honoured,
        |c, v| { c.socket_timeout = v.socket_timeout(&mut c.notes)?; Ok(()) },
        |c| ms(c.socket_timeout),
        "How long a broker may be silent; 10 to 300000, and 0 (for ever, with the JVM) is taken as the longest.";
    "socket.receive.buffer.bytes", "(the system's)", "all", Honoured,
        |c, v| { let bytes = v.int()?; c.socket_receive_buffer_bytes = u32::try_from(bytes).ok().filter(|b| *b > 0).map(|b| b.min(100_000_000)); Ok(()) },
        |c| c.socket_receive_buffer_bytes.and_then(text),
        "The sockets' receive buffer. The JVM's default is 65536; left alone, the system sizes it by need. 0 or less: the system's.";
    "refresh.leader.backoff.ms", "200", "all", Honoured,
        |c, v| { c.refresh_leader_backoff = v.clamped_ms(1, 60_000, &mut c.notes)?; Ok(()) },
        |c| ms(c.refresh_leader_backoff),
        "The first pause before asking again who leads a partition; becomes `topic.metadata.refresh.fast.interval.ms`.";
    "lease", "quorum", "ours", Honoured,
        |c, v| { c.lease = v.word()?; Ok(()) },
        |c| text(c.lease),
        "`quorum`: messages are delivered only while a majority of ZooKeeper is known to hold us alive. `off`: as blind as a JVM member.";
    "drain.timeout.ms", "3000", "ours", Honoured,
        |c, v| { c.drain_timeout = v.ms()?; Ok(()) },
        |c| ms(c.drain_timeout),
        "How long a partition that goes away may wait for its messages in hand. Keep it below `rebalance.max.retries x rebalance.backoff.ms` of JVM members: one that waits longer dies (L-145).";
    "legacy.handover.delay.ms", "250", "ours", Honoured,
        |c, v| { c.legacy_handover_delay = v.ms()?; Ok(()) },
        |c| ms(c.legacy_handover_delay),
        "The pause between the last commit and the release of a partition that goes to a JVM member, which reads offsets before it claims. 0: quicker, but it may read some messages again.";
    "takeover.delay.ms", "0", "ours", Honoured,
        |c, v| { c.takeover_delay = v.ms()?; Ok(()) },
        |c| ms(c.takeover_delay),
        "How long nothing new is claimed, and so no offset read, after another member has gone, since a late commit of it may still arrive. An orderly end is not told from a death: a JVM's is the end of its session too (L-126).";
    "registration.check.interval.ms", "30000", "ours", Honoured,
        |c, v| { c.registration_check_interval = v.positive_ms()?; Ok(()) },
        |c| ms(c.registration_check_interval),
        "How often, give or take, a member checks that its nodes are there and right.";
    "zookeeper.dialect", "auto", "ours", Honoured,
        |c, v| { c.zookeeper_dialect = v.word()?; Ok(()) },
        |c| text(c.zookeeper_dialect),
        "`auto`, `3.4` or `3.5` (and later).";
    "zookeeper.set.acl", "false", "ours", Refused(LATER_ACL),
        |_, v| if v.boolean()? { Err(v.refused(LATER_ACL)) } else { Ok(()) },
        nothing,
        "Whether owner and offset nodes may be changed by their creator only, as the old consumer does with a ZooKeeper login (L-8).";
    "malformed.peer", "quarantine", "ours", Honoured,
        |c, v| { c.malformed_peer = v.word()?; Ok(()) },
        |c| text(c.malformed_peer),
        "A member whose registration cannot be read: `quarantine` (counts as absent) or `as_jvm` (nobody rebalances until it is gone).";
    "malformed.offset", "hold", "ours", Honoured,
        |c, v| { c.malformed_offset = v.word()?; Ok(()) },
        |c| text(c.malformed_offset),
        "An offset that cannot be read: `hold` (its partition waits) or `treat_as_missing` (as if there were none).";
    "max.unacked.messages", "100000", "ours", Honoured,
        |c, v| { c.max_unacked_messages = v.positive()?; Ok(()) },
        |c| text(c.max_unacked_messages),
        "Messages of one stream handed over and not acknowledged, past which its delivery waits. More: more again after a crash.";
    "max.unacked.bytes", "67108864", "ours", Honoured,
        |c, v| { c.max_unacked_bytes = v.positive()?; Ok(()) },
        |c| text(c.max_unacked_bytes),
        "Bytes of the keys and payloads of those messages, past which delivery of their stream waits.";
    "unacked.warn.age.ms", "60000", "ours", Honoured,
        |c, v| { c.unacked_warn_age = v.positive_ms()?; Ok(()) },
        |c| ms(c.unacked_warn_age),
        "The age of the oldest unacknowledged message of a partition past which an event names it. It comes with the self-check, so up to `registration.check.interval.ms` later.";
    "max.buffered.bytes", "67108864", "ours", Honoured,
        |c, v| { c.max_buffered_bytes = v.positive()?; Ok(()) },
        |c| text(c.max_buffered_bytes),
        "Bytes fetched ahead by a member, shared out among the partitions it may expect, at least 1 MiB each. More: more memory, fewer stalls.";
    "settling.window.ms", "0", "ours", Refused(LATER_SETTLING),
        |_, v| zero(LATER_SETTLING, v), nothing,
        "How long to wait for further changes of the group before acting on one.";
    "static.grace.ms", "0", "ours", Refused(LATER_GRACE),
        |_, v| zero(LATER_GRACE, v), nothing,
        "How long the share of a member that went away is kept for its return.";
    "mirror.topics.whitelist", "(none)", "all", NoEffect(NOT_READ), any, nothing, "A name without a use (L-131).";
    "mirror.topics.blacklist", "(none)", "all", NoEffect(NOT_READ), any, nothing, "A name without a use (L-131).";
    "mirror.consumer.numthreads", "(none)", "all", NoEffect(NOT_READ), any, nothing, "A name without a use (L-131).";
};

/// The key of that name.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The table of all keys in Markdown, as it stands in the documentation.
pub fn markdown_table() -> String {
    let mut out = String::from("| key | default | since | here | |\n|---|---|---|---|---|\n");
    for key in KEYS {
        let effect = match key.effect {
            Honoured => "honoured".to_owned(),
            NoEffect(reason) => format!("no effect: {reason}"),
            Refused(reason) => format!("default only: {reason}"),
        };
        let default = match key.default.starts_with('(') {
            true => key.default.to_owned(),
            false => format!("`{}`", key.default),
        };
        out.push_str(&format!(
            "| `{}` | {default} | {} | {effect} | {} |\n",
            key.name, key.since, key.about
        ));
    }
    out
}
