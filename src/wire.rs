//! Old Kafka's tree in ZooKeeper: its paths and the bytes of its nodes, in both directions.
//!
//! Nothing else in this crate puts such a path together or knows what the data looks like. Everything here is
//! plain: bytes in, values out, no I/O. What others wrote is read within bounds and never panics.

mod broker;
mod claim;
pub mod paths;
mod registration;
mod topic;

pub use broker::{Broker, Endpoint, decode_broker, encode_broker, lowest_version};
pub use claim::{
    NO_OFFSET, StoredOffset, decode_offset, decode_owner, encode_offset, encode_owner, is_owner,
};
pub use registration::{
    MAX_STREAMS, ReadBy, Registration, decode_registration, encode_registration, read_registration,
};
pub use topic::{MAX_PARTITIONS, MAX_TOPIC_VALUE, decode_topic, encode_topic};

/// The most bytes that are read of a node another program wrote (topic nodes have [their own](MAX_TOPIC_VALUE)
/// limit): 1 MiB, ZooKeeper's own default bound.
pub const MAX_VALUE: usize = 1 << 20;

/// Text as it stands in JSON, quotes included, with the escapes that Kafka 0.8.2 to 1.0.0 use (L-26).
fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '/' => out.push_str("\\/"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
