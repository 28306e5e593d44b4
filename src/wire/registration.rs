//! Registrations: what a member says it wants, written for JVM readers and read as they read it (L-20 to L-28).
//!
//! There are two JVM readers. Up to Kafka 0.11 Scala's own JSON parser is used, which is lax about strings and wants every
//! number to be a Java `int`; from 1.0 on it is Jackson, which is strict about strings and stops after the closing brace.
//! Both are played here, and a registration counts if either can read it.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::error::{Error, Result, printable};
use crate::group::Pattern;
use crate::group::Subscription;
use crate::group::Topic;
use crate::wire::{MAX_VALUE, quote};

/// The most streams of one member, all its topics together; more count as malformed (D3).
pub const MAX_STREAMS: u32 = 100_000;

/// Which JVM members read a registration as we do. If one of them is false, those members refuse it, and with it every
/// rebalance of theirs (D-9 of the old consumer), or read another regular expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadBy {
    /// Kafka 0.8.1 to 0.11.
    pub up_to_0_11: bool,
    /// Kafka 1.0.1 to 1.1. (1.0.0 also refuses unknown escapes such as `\.`, which 1.0.1 mends.)
    pub from_1_0: bool,
}

/// A member's registration, as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// What the member subscribes to, without the topics that cannot exist.
    pub subscription: Subscription,
    /// Names of a static subscription that are no topic names, with their stream counts. No topic can have them, so the
    /// member gets nothing for them, and it stays a member (D6).
    pub impossible: BTreeMap<String, u32>,
    /// When the member registered, in milliseconds since the epoch by its own clock, from a timestamp that is text, as a
    /// JVM writes it. `None` if it is missing or anything else: the unit of a number is anybody's guess.
    pub since_ms: Option<u64>,
    /// Which JVM members read the same.
    pub read_by: ReadBy,
}

/// The registration that a JVM member with this subscription would write at this time (milliseconds since the epoch).
///
/// With one static topic it is the same byte for byte; of several, ours are in the order of their names, which no reader minds (L-24). A
/// regular expression is escaped exactly once, which every release reads right (L-26); not even 1.0.1 and later, which
/// escape it twice themselves. An empty subscription is `"subscription":{}`, which JVM members read as static (L-28).
///
/// A filter's pattern is [`Pattern::WhiteList`] or [`Pattern::BlackList`], and stream counts are written as they are:
/// that they lie within 1 and [`MAX_STREAMS`] is for the settings to see to.
pub fn encode_registration(subscription: &Subscription, timestamp_ms: u64) -> Vec<u8> {
    let (pattern, entries) = match subscription {
        Subscription::Topics(topics) => {
            let listed: Vec<String> = topics
                .iter()
                .map(|(topic, streams)| entry(topic.as_str(), *streams))
                .collect();
            (Pattern::Static, listed.join(","))
        }
        Subscription::Filter {
            pattern,
            regex,
            streams,
        } => (*pattern, entry(regex, *streams)),
    };
    format!(
        "{{\"version\":1,\"subscription\":{{{entries}}},\"pattern\":\"{}\",\"timestamp\":\"{timestamp_ms}\"}}",
        word(pattern)
    )
    .into_bytes()
}

fn entry(name: &str, streams: u32) -> String {
    format!("{}:{streams}", quote(name))
}

fn word(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Static => "static",
        Pattern::WhiteList => "white_list",
        Pattern::BlackList => "black_list",
    }
}

/// What a registration subscribes to: [`read_registration`] without the rest.
///
/// # Errors
/// As [`read_registration`].
pub fn decode_registration(data: &[u8]) -> Result<Subscription> {
    read_registration(data).map(|registration| registration.subscription)
}

/// Reads a registration as JVM members do.
///
/// Of several entries of a filter the first counts, of equal keys the last; an unknown `pattern` is `static`; `version`,
/// `timestamp` and further keys may hold anything that one of the two JVM readers takes (a timestamp of 13 digits
/// that is a number is unreadable up to 0.11 only). Where both can read it and differ, which takes an unknown escape beside
/// a known one, the older reader is followed: only members up to 0.8.1 write such text, and they obey what they read.
/// An expression is never mended (L-27).
///
/// # Errors
/// [`Malformed`](crate::error::ErrorKind::Malformed) if neither JVM reader takes it (L-24), or if it is longer than
/// [`MAX_VALUE`], deeper than 127 levels or has more than [`MAX_STREAMS`] streams.
pub fn read_registration(data: &[u8]) -> Result<Registration> {
    if data.len() > MAX_VALUE {
        return Err(malformed("it is longer than 1 MiB"));
    }
    // A JVM replaces what is not UTF-8 as well.
    let text = String::from_utf8_lossy(data);
    let old = up_to_0_11(&text).and_then(|document| document.meaning(true));
    let new = from_1_0(&text).and_then(|document| document.meaning(false));
    let read_by = ReadBy {
        up_to_0_11: old.is_ok(),
        from_1_0: new.is_ok() && (old.is_err() || old == new),
    };
    let meaning = old.or(new).map_err(|reason| malformed(&reason))?;
    Ok(Registration {
        subscription: meaning.subscription,
        impossible: meaning.impossible,
        since_ms: meaning.since_ms,
        read_by,
    })
}

fn malformed(reason: &str) -> Error {
    Error::malformed(format!("malformed registration: {}", printable(reason)))
}

/// Why a reader refuses a document.
type Reason = String;

fn up_to_0_11(text: &str) -> std::result::Result<Document, Reason> {
    let document: Document = serde_json::from_str(&strict(text, true)).map_err(reason)?;
    if !document.ints {
        return Err("a number in it is not a 32-bit integer".into());
    }
    Ok(document)
}

fn from_1_0(text: &str) -> std::result::Result<Document, Reason> {
    first_value(&strict(text, false)).or_else(|error| {
        // Since 1.0.1 a document that does not parse gets a second chance with every backslash doubled.
        first_value(&text.replace('\\', "\\\\")).map_err(|_| error)
    })
}

/// The document at the beginning of the text; what follows it is not looked at.
fn first_value(text: &str) -> std::result::Result<Document, Reason> {
    Document::deserialize(&mut serde_json::Deserializer::from_str(text)).map_err(reason)
}

fn reason(error: serde_json::Error) -> Reason {
    error.to_string()
}

/// The same document in JSON that our parser takes. `lax`: with what Scala's parser allows beyond that, which is any
/// control character in strings (but not a line feed) and between tokens, and a backslash that begins no escape and
/// stands for itself. In either case half a surrogate pair, which Java can hold and we cannot, is replaced.
fn strict(text: &str, lax: bool) -> String {
    // Scala's parser takes this one for the end of the text.
    const END: char = '\u{1a}';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut is_inside = false;
    while let Some(c) = rest.chars().next() {
        let mut taken = c.len_utf8();
        match c {
            '\\' if is_inside => match escape(rest) {
                Some((len, written)) => {
                    taken = len;
                    out.push_str(written);
                }
                None => out.push_str(if lax { "\\\\" } else { "\\" }),
            },
            '"' => {
                is_inside = !is_inside;
                out.push(c);
            }
            '\0'..'\u{20}' if lax && is_inside && c != '\n' && c != END => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            '\0'..'\u{20}' if lax && !is_inside && c != END => out.push(' '),
            c => out.push(c),
        }
        rest = &rest[taken..];
    }
    out
}

/// The escape that the text begins with, if it is one that JSON knows: its length, and how to write it.
fn escape(text: &str) -> Option<(usize, &str)> {
    match text.as_bytes().get(1)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some((2, &text[..2])),
        b'u' => match unit(text)? {
            0xd800..0xdc00 if matches!(unit(&text[6..]), Some(0xdc00..0xe000)) => {
                Some((12, &text[..12]))
            }
            0xd800..0xe000 => Some((6, "\\ufffd")),
            _ => Some((6, &text[..6])),
        },
        _ => None,
    }
}

/// The UTF-16 unit that `\uXXXX` at the beginning of the text stands for.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.as_bytes().get(..4)?;
    digits.iter().try_fold(0, |sum, digit| {
        let value = char::from(*digit).to_digit(16)?;
        Some(sum << 4 | u16::try_from(value).ok()?)
    })
}

/// What a document says to one reader.
#[derive(PartialEq)]
struct Meaning {
    subscription: Subscription,
    impossible: BTreeMap<String, u32>,
    since_ms: Option<u64>,
}

/// The three keys that are looked at, and whether every number anywhere in the document is a Java `int`.
struct Document {
    pattern: Option<Value>,
    subscription: Option<Value>,
    timestamp: Option<Value>,
    ints: bool,
}

impl Document {
    fn meaning(self, lax: bool) -> std::result::Result<Meaning, Reason> {
        let pattern = pattern(self.pattern, lax)?;
        let Some(Value::Object { first, entries }) = self.subscription else {
            return Err("it has no object \"subscription\"".into());
        };
        let (subscription, impossible) = match (pattern, first) {
            (Pattern::Static, _) | (_, None) => topics(entries)?,
            (pattern, Some(regex)) => (filter(pattern, regex, &entries, lax)?, BTreeMap::new()),
        };
        let since_ms = match self.timestamp {
            Some(Value::Text(text)) => text.parse().ok(),
            _ => None,
        };
        Ok(Meaning {
            subscription,
            impossible,
            since_ms,
        })
    }
}

fn pattern(value: Option<Value>, lax: bool) -> std::result::Result<Pattern, Reason> {
    match value {
        Some(Value::Text(text)) => Ok(match text.as_str() {
            "white_list" => Pattern::WhiteList,
            "black_list" => Pattern::BlackList,
            _ => Pattern::Static,
        }),
        Some(Value::Null) if lax => Ok(Pattern::Static),
        _ => Err("it has no text \"pattern\"".into()),
    }
}

type Topics = (Subscription, BTreeMap<String, u32>);

fn topics(entries: BTreeMap<String, Option<i32>>) -> std::result::Result<Topics, Reason> {
    let mut topics = BTreeMap::new();
    let mut impossible = BTreeMap::new();
    let mut total: u32 = 0;
    for (name, count) in entries {
        let streams = streams(&name, count)?;
        total = total.saturating_add(streams);
        match Topic::new(&name) {
            Ok(topic) => drop(topics.insert(topic, streams)),
            Err(_) => drop(impossible.insert(name, streams)),
        }
    }
    if total > MAX_STREAMS {
        return Err(format!(
            "it has {total} streams, more than the {MAX_STREAMS} allowed"
        ));
    }
    Ok((Subscription::Topics(topics), impossible))
}

fn filter(
    pattern: Pattern,
    regex: String,
    entries: &BTreeMap<String, Option<i32>>,
    lax: bool,
) -> std::result::Result<Subscription, Reason> {
    // From 1.0 on all counts are converted, though only the first is used.
    if !lax && entries.values().any(Option::is_none) {
        return Err("a stream count in it is not an integer".into());
    }
    let streams = streams(&regex, entries.get(&regex).copied().flatten())?;
    Ok(Subscription::Filter {
        pattern,
        regex,
        streams,
    })
}

fn streams(name: &str, count: Option<i32>) -> std::result::Result<u32, Reason> {
    count
        .and_then(|count| u32::try_from(count).ok())
        .filter(|count| (1..=MAX_STREAMS).contains(count))
        .ok_or_else(|| {
            let name = printable(name);
            format!("the stream count of \"{name}\" is not an integer from 1 to {MAX_STREAMS}")
        })
}

/// As much of a JSON value as somebody looks at: whatever else a document holds takes no memory.
enum Value {
    Null,
    Text(String),
    /// The name that came first, and the last count of each; `None` is a count that is no Java `int`.
    Object {
        first: Option<String>,
        entries: BTreeMap<String, Option<i32>>,
    },
    Int(i32),
    Other,
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(TopLevel)
    }
}

struct TopLevel;

impl<'de> Visitor<'de> for TopLevel {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Document, A::Error> {
        let mut ints = true;
        let (mut pattern, mut subscription, mut timestamp) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            let mut value = |keep| {
                let ints = &mut ints;
                map.next_value_seed(Look { keep, ints }).map(Some)
            };
            match key.as_str() {
                "pattern" => pattern = value(Keep::Text)?,
                "subscription" => subscription = value(Keep::Entries)?,
                "timestamp" => timestamp = value(Keep::Text)?,
                _ => drop(value(Keep::Nothing)?),
            }
        }
        Ok(Document {
            pattern,
            subscription,
            timestamp,
            ints,
        })
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Keep {
    Nothing,
    Text,
    Entries,
}

/// Reads any value, keeps what is asked for, and notes in `ints` if a number is not a Java `int`.
struct Look<'a> {
    keep: Keep,
    ints: &'a mut bool,
}

impl Look<'_> {
    fn int(self, number: Option<i32>) -> Value {
        *self.ints &= number.is_some();
        number.map_or(Value::Other, Value::Int)
    }
}

impl<'de> DeserializeSeed<'de> for Look<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> std::result::Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Look<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> std::result::Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> std::result::Result<Value, E> {
        Ok(self.int(i32::try_from(number).ok()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> std::result::Result<Value, E> {
        Ok(self.int(i32::try_from(number).ok()))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> std::result::Result<Value, E> {
        Ok(self.int(None))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<Value, E> {
        Ok(match self.keep {
            Keep::Text => Value::Text(text.to_owned()),
            _ => Value::Other,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Value, A::Error> {
        let keep = Keep::Nothing;
        let ints = self.ints;
        while seq.next_element_seed(Look { keep, ints })?.is_some() {}
        Ok(Value::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Value, A::Error> {
        let keep = Keep::Nothing;
        let ints = self.ints;
        let mut first = None;
        let mut entries = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(Look { keep, ints })?;
            if self.keep == Keep::Entries {
                first.get_or_insert_with(|| name.clone());
                let count = match value {
                    Value::Int(count) => Some(count),
                    _ => None,
                };
                entries.insert(name, count);
            }
        }
        Ok(match self.keep {
            Keep::Entries => Value::Object { first, entries },
            _ => Value::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use proptest::prelude::*;

    const OLD: ReadBy = ReadBy {
        up_to_0_11: true,
        from_1_0: false,
    };
    const NEW: ReadBy = ReadBy {
        up_to_0_11: false,
        from_1_0: true,
    };
    const BOTH: ReadBy = ReadBy {
        up_to_0_11: true,
        from_1_0: true,
    };

    fn named(topics: &[(&str, u32)]) -> Subscription {
        let topic = |(name, n): &(&str, u32)| (Topic::new(name).unwrap(), *n);
        Subscription::Topics(topics.iter().map(topic).collect())
    }
    fn filter(pattern: Pattern, regex: &str, streams: u32) -> Subscription {
        Subscription::Filter {
            pattern,
            regex: regex.into(),
            streams,
        }
    }
    fn white(regex: &str) -> Subscription {
        filter(Pattern::WhiteList, regex, 1)
    }
    fn read(text: &str) -> Registration {
        match read_registration(text.as_bytes()) {
            Ok(registration) => registration,
            Err(error) => panic!("{text}: {error}"),
        }
    }
    /// The text is read as this, by those.
    fn reads(text: &str, subscription: Subscription, by: ReadBy) {
        let registration = read(text);
        assert_eq!(registration.subscription, subscription, "{text}");
        assert_eq!(registration.read_by, by, "{text}");
    }
    fn refused(text: &str) -> String {
        let error = match read_registration(text.as_bytes()) {
            Err(error) => error,
            Ok(registration) => panic!("{text} gave {registration:?}"),
        };
        assert_eq!(error.kind(), ErrorKind::Malformed);
        error.to_string()
    }

    #[test]
    fn a_static_registration_is_written_byte_for_byte() {
        let data = encode_registration(&named(&[("T1", 2)]), 1441234567890);
        assert_eq!(
            String::from_utf8(data).unwrap(),
            r#"{"version":1,"subscription":{"T1":2},"pattern":"static","timestamp":"1441234567890"}"#
        );
        let data = encode_registration(&named(&[("T2", 1), ("T1", 2)]), 1441234567890);
        assert_eq!(
            String::from_utf8(data).unwrap(),
            r#"{"version":1,"subscription":{"T1":2,"T2":1},"pattern":"static","timestamp":"1441234567890"}"#
        );
        let data = encode_registration(&named(&[]), 0);
        assert_eq!(
            String::from_utf8(data).unwrap(),
            r#"{"version":1,"subscription":{},"pattern":"static","timestamp":"0"}"#
        );
    }

    #[test]
    fn an_expression_is_escaped_exactly_once() {
        let data = encode_registration(&white(r"t\.x"), 1441234567890);
        assert_eq!(
            String::from_utf8(data).unwrap(),
            r#"{"version":1,"subscription":{"t\\.x":1},"pattern":"white_list","timestamp":"1441234567890"}"#
        );
        let all = "\"\\/\u{8}\u{c}\n\r\t\0\u{1f}\u{7f}\u{9f}\u{a0}é";
        let data = encode_registration(&filter(Pattern::BlackList, all, 3), 7);
        assert_eq!(
            String::from_utf8(data).unwrap(),
            "{\"version\":1,\"subscription\":{\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\\u007f\\u009f\u{a0}é\":3},\"pattern\":\"black_list\",\"timestamp\":\"7\"}"
        );
    }

    #[test]
    fn what_old_kafka_wrote_is_read() {
        let text = r#"{"version":1,"subscription":{"T1":2,"T2":1},"pattern":"static","timestamp":"1441234567890"}"#;
        reads(text, named(&[("T1", 2), ("T2", 1)]), BOTH);
        assert_eq!(read(text).since_ms, Some(1441234567890));
        let black =
            r#"{"version":1,"subscription":{"a|b":4},"pattern":"black_list","timestamp":"1"}"#;
        reads(black, filter(Pattern::BlackList, "a|b", 4), BOTH);
        // 0.8.1 does not escape, 0.8.2 to 1.0.0 do once, 1.0.1 and later twice; what stands there counts.
        let wild = |key: &str| {
            format!(
                r#"{{"version":1,"subscription":{{"{key}":1}},"pattern":"white_list","timestamp":"1"}}"#
            )
        };
        reads(&wild(r"t\.x"), white(r"t\.x"), BOTH);
        reads(&wild(r"t\\.x"), white(r"t\.x"), BOTH);
        reads(&wild(r"t\\\\.x"), white(r"t\\.x"), BOTH);
        reads(&wild(r"a\/b"), white("a/b"), BOTH);
        reads(&wild(r"a/b"), white("a/b"), BOTH);
    }

    #[test]
    fn reading_follows_every_row_of_the_table() {
        let t1 = || named(&[("t", 1)]);
        let none = || named(&[]);
        // Blanks and line breaks between tokens.
        reads(
            "\n{ \"subscription\" :\r\n\t{ \"t\" : 1 } , \"pattern\" : \"static\" }\n",
            t1(),
            BOTH,
        );
        reads(
            "{\"subscription\":\u{c}{\"t\":1},\"pattern\":\"static\"}",
            t1(),
            OLD,
        );
        // `version` missing, 99, or a string.
        for version in [
            "",
            r#""version":99,"#,
            r#""version":"x","#,
            r#""version":null,"#,
        ] {
            let text = format!(r#"{{{version}"subscription":{{"t":1}},"pattern":"static"}}"#);
            reads(&text, t1(), BOTH);
        }
        // `pattern` missing, unknown, null, a number.
        refused(r#"{"subscription":{"t":1}}"#);
        refused(r#"{"subscription":{}}"#);
        for word in ["WHITE_LIST", "dynamic", "", "Static", "white_list "] {
            let text = format!(r#"{{"subscription":{{"t":1}},"pattern":"{word}"}}"#);
            reads(&text, t1(), BOTH);
        }
        reads(r#"{"subscription":{"t":1},"pattern":null}"#, t1(), OLD);
        for pattern in ["1", "true", "[]", "{}"] {
            refused(&format!(
                r#"{{"subscription":{{"t":1}},"pattern":{pattern}}}"#
            ));
        }
        // `subscription` missing, null or an array; empty.
        refused(r#"{"pattern":"static"}"#);
        for subscription in ["null", "[]", "[\"t\"]", "1", "\"t\""] {
            refused(&format!(
                r#"{{"subscription":{subscription},"pattern":"static"}}"#
            ));
        }
        for word in ["static", "white_list", "black_list", "x"] {
            reads(
                &format!(r#"{{"subscription":{{}},"pattern":"{word}"}}"#),
                none(),
                BOTH,
            );
        }
        // Stream counts.
        for count in [
            "0",
            "-1",
            "\"2\"",
            "2.0",
            "1e1",
            "null",
            "true",
            "[1]",
            "{}",
            "2147483648",
        ] {
            for word in ["static", "white_list"] {
                refused(&format!(
                    r#"{{"subscription":{{"t":{count}}},"pattern":"{word}"}}"#
                ));
            }
        }
        // A filter with two entries.
        reads(
            r#"{"subscription":{"z":1,"a":2},"pattern":"white_list"}"#,
            white("z"),
            BOTH,
        );
        reads(
            r#"{"subscription":{"z":1,"a":"2"},"pattern":"white_list"}"#,
            white("z"),
            OLD,
        );
        refused(r#"{"subscription":{"z":"1","a":2},"pattern":"white_list"}"#);
        // Duplicate keys.
        reads(
            r#"{"subscription":{"t":5,"t":1},"pattern":"static"}"#,
            t1(),
            BOTH,
        );
        reads(
            r#"{"subscription":{"t":"x","t":1},"pattern":"static"}"#,
            t1(),
            BOTH,
        );
        reads(
            r#"{"subscription":{"z":9,"a":2,"z":1},"pattern":"white_list"}"#,
            white("z"),
            BOTH,
        );
        reads(
            r#"{"subscription":null,"pattern":7,"subscription":{"t":1},"pattern":"static"}"#,
            t1(),
            BOTH,
        );
        refused(r#"{"subscription":{"t":1,"t":0},"pattern":"static"}"#);
        // Text after the closing brace.
        reads(
            r#"{"subscription":{"t":1},"pattern":"static"} x"#,
            t1(),
            NEW,
        );
        reads(r#"{"subscription":{"t":1},"pattern":"static"}}"#, t1(), NEW);
        // A raw TAB inside a string.
        reads(
            "{\"subscription\":{\"a\tb\":1},\"pattern\":\"white_list\"}",
            white("a\tb"),
            OLD,
        );
        refused("{\"subscription\":{\"a\nb\":1},\"pattern\":\"white_list\"}");
        refused("{\"subscription\":{\"a\u{1a}b\":1},\"pattern\":\"white_list\"}");
        // `\uXXXX` escapes.
        reads(
            r#"{"subscription":{"\u0074":1},"p\u0061ttern":"static"}"#,
            t1(),
            BOTH,
        );
        // Unknown escapes.
        reads(
            r#"{"subscription":{"t\.x\d":1},"pattern":"white_list"}"#,
            white(r"t\.x\d"),
            BOTH,
        );
        reads(
            r#"{"subscription":{"\u12":1},"pattern":"white_list"}"#,
            white(r"\u12"),
            BOTH,
        );
        // Not JSON, and the style of 0.7.
        for bad in [
            "",
            " ",
            "x",
            "[]",
            "null",
            "1",
            "{",
            "\"\"",
            "{'subscription':{'t':1},'pattern':'static'}",
            "{\"t\":2}",
            "*2*regex",
            "{\"subscription\":{\"t\":1},\"pattern\":\"static\",}",
            "{\"subscription\":{\"t\":1},\"pattern\":\"static\"",
            "\u{feff}{\"subscription\":{\"t\":1},\"pattern\":\"static\"}",
        ] {
            refused(bad);
        }
    }

    #[test]
    fn numbers_that_stop_an_old_member_are_told() {
        let with =
            |extra: &str| format!(r#"{{"subscription":{{"t":1}},"pattern":"static",{extra}}}"#);
        for (extra, by) in [
            (r#""timestamp":1796046318"#, BOTH),
            (r#""timestamp":1441234567890"#, NEW),
            (r#""timestamp":2147483647"#, BOTH),
            (r#""timestamp":2147483648"#, NEW),
            (r#""version":1.5"#, NEW),
            (r#""version":2.0"#, NEW),
            (r#""x":{"y":[{"z":4294967296}]}"#, NEW),
            (r#""x":{"y":[{"z":-2147483648},true,null,"1.5"]}"#, BOTH),
            // A number that a later equal key hides was read all the same.
            (r#""x":1.5,"x":1"#, NEW),
        ] {
            let registration = read(&with(extra));
            assert_eq!(registration.subscription, named(&[("t", 1)]), "{extra}");
            assert_eq!(registration.read_by, by, "{extra}");
            assert_eq!(registration.since_ms, None, "{extra}");
        }
        // Each reader refuses it for a reason of its own.
        refused("{\"subscription\":{\"t\":1},\"pattern\":null,\"timestamp\":1441234567890}");
        refused(
            "{\"subscription\":{\"t\":1},\"pattern\":\"static\",\"timestamp\":1441234567890,\"x\":\"\t\"}",
        );
    }

    #[test]
    fn the_registration_of_a_member_that_is_no_jvm_is_read() {
        reads(
            r#"{"subscription":{"t12":1},"pattern":"static","timestamp":1796046318,"version":1}"#,
            named(&[("t12", 1)]),
            BOTH,
        );
    }

    #[test]
    fn where_the_two_readers_differ_the_older_one_is_followed() {
        reads(
            r#"{"subscription":{"t\.x\\d":1},"pattern":"white_list"}"#,
            white(r"t\.x\d"),
            OLD,
        );
        // A quote that is escaped ends the string for the newer one after doubling.
        reads(
            r#"{"subscription":{"t\.x\"":1},"pattern":"white_list"}"#,
            white("t\\.x\""),
            OLD,
        );
    }

    #[test]
    fn names_that_no_topic_has_do_not_cost_the_member_its_place() {
        let registration =
            read(r#"{"subscription":{"t":1,"a b":2,"..":3,"":4},"pattern":"static"}"#);
        assert_eq!(registration.subscription, named(&[("t", 1)]));
        let names: Vec<&str> = registration.impossible.keys().map(String::as_str).collect();
        assert_eq!(names, ["", "..", "a b"]);
        reads(
            r#"{"subscription":{"a/b":1},"pattern":"static"}"#,
            named(&[]),
            BOTH,
        );
        refused(r#"{"subscription":{"t":1,"a b":0},"pattern":"static"}"#);
    }

    #[test]
    fn half_a_surrogate_pair_is_replaced() {
        let wild =
            |key: &str| format!(r#"{{"subscription":{{"{key}":1}},"pattern":"white_list"}}"#);
        reads(&wild(r"\ud83d\ude00"), white("\u{1f600}"), BOTH);
        reads(&wild(r"\ud83dx"), white("\u{fffd}x"), BOTH);
        reads(&wild(r"\ude00\ud83d"), white("\u{fffd}\u{fffd}"), BOTH);
        reads(&wild(r"\ud83d\u0041"), white("\u{fffd}A"), BOTH);
    }

    #[test]
    fn bytes_that_are_no_utf_8_are_replaced_as_a_jvm_does() {
        let data = b"{\"subscription\":{\"a\xff\":1},\"pattern\":\"white_list\"}";
        assert_eq!(decode_registration(data).unwrap(), white("a\u{fffd}"));
    }

    #[test]
    fn a_member_has_100_000_streams_at_most() {
        let with = |entries: &str, word: &str| {
            format!(r#"{{"subscription":{{{entries}}},"pattern":"{word}"}}"#)
        };
        reads(
            &with(r#""t":100000"#, "static"),
            named(&[("t", 100_000)]),
            BOTH,
        );
        reads(
            &with(r#""t":100000"#, "white_list"),
            filter(Pattern::WhiteList, "t", 100_000),
            BOTH,
        );
        refused(&with(r#""t":100001"#, "static"));
        refused(&with(r#""t":100001"#, "white_list"));
        refused(&with(r#""t":2147483647"#, "static"));
        refused(&with(r#""t":60000,"u":40001"#, "static"));
        refused(&with(r#""t":60000,"a b":40001"#, "static"));
    }

    #[test]
    fn a_registration_too_long_or_too_deep_is_refused() {
        let fit = |len: usize| {
            let text = r#"{"subscription":{"t":1},"pattern":"static"}"#;
            format!("{text}{}", " ".repeat(len - text.len()))
        };
        assert!(read_registration(fit(MAX_VALUE).as_bytes()).is_ok());
        assert!(refused(&fit(MAX_VALUE + 1)).contains("1 MiB"));
        for bomb in ["[", "{\"a\":"] {
            let text = format!("{{\"pattern\":{}", bomb.repeat(200_000));
            refused(&text);
        }
    }

    #[test]
    fn a_refusal_shows_foreign_text_escaped_and_cut() {
        let text = format!(
            "{{\"subscription\":{{\"a\\u001b[31m\\r\\n{}\":0}},\"pattern\":\"static\"}}",
            "x".repeat(5000)
        );
        let shown = refused(&text);
        assert!(
            shown.len() < 400 && !shown.contains(['\u{1b}', '\n', '\r']),
            "{shown}"
        );
    }

    fn any_subscription() -> impl Strategy<Value = Subscription> {
        let names = proptest::collection::btree_map(
            "[A-Za-z0-9_-][A-Za-z0-9._-]{0,40}",
            1..=1000u32,
            0..50,
        );
        let topics = names.prop_map(|names| {
            let topic = |(name, n): (String, u32)| (Topic::new(&name).unwrap(), n);
            Subscription::Topics(names.into_iter().map(topic).collect())
        });
        let regexes = prop_oneof![
            any::<String>(),
            "[\\\\\"/a.\u{0}-\u{20}\u{7f}-\u{9f}]{0,20}"
        ];
        let word = prop_oneof![Just(Pattern::WhiteList), Just(Pattern::BlackList)];
        let filters = (word, regexes, 1..=MAX_STREAMS)
            .prop_map(|(pattern, regex, streams)| filter(pattern, &regex, streams));
        prop_oneof![topics, filters]
    }

    /// Bytes that look like a registration from afar.
    fn nearly() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just("\"subscription\":"),
            Just("\"pattern\":"),
            Just("\"timestamp\":"),
            Just("{"),
            Just("}"),
            Just("\"t\":1"),
            Just("\"a\\.\":2"),
            Just("\"static\""),
            Just("\"white_list\""),
            Just(","),
            Just("null"),
            Just("1.5"),
            Just("["),
            Just("]"),
            Just("\\u"),
            Just("\\ud800"),
            Just("\t"),
            Just("\""),
            Just("\\"),
            Just("\u{1a}"),
            Just("é"),
            Just(" "),
        ];
        let pieces = proptest::collection::vec(piece, 0..24);
        let mangled = (
            any_subscription(),
            any::<prop::sample::Index>(),
            any::<u8>(),
        )
            .prop_map(|(subscription, at, byte)| {
                let mut data = encode_registration(&subscription, 1);
                let at = at.index(data.len());
                data[at] = byte;
                data
            });
        prop_oneof![
            any::<Vec<u8>>(),
            pieces.prop_map(|pieces| pieces.concat().into_bytes()),
            mangled
        ]
    }

    proptest! {
        #[test]
        fn what_we_write_every_member_reads(subscription in any_subscription(), now: u64) {
            let data = encode_registration(&subscription, now);
            let read = read_registration(&data).unwrap();
            prop_assert_eq!(read.subscription, subscription);
            prop_assert_eq!(read.since_ms, Some(now));
            prop_assert_eq!(read.read_by, BOTH);
            // And nothing but strict JSON in ASCII controls: any reader of JSON will do.
            let strict: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&data).unwrap();
            // J5: what no JVM member knows is not in it.
            let keys: Vec<&String> = strict.keys().collect();
            prop_assert_eq!(keys, ["version", "subscription", "pattern", "timestamp"]);
            prop_assert!(!data.iter().any(|b| *b < 0x20 || *b == 0x7f));
        }

        #[test]
        fn a_registration_never_panics_and_what_is_accepted_can_be_written_again(data in nearly()) {
            if let Ok(read) = read_registration(&data) {
                prop_assert!(read.read_by.up_to_0_11 || read.read_by.from_1_0);
                prop_assert!(read.subscription.streams() <= MAX_STREAMS);
                let again = encode_registration(&read.subscription, 0);
                prop_assert_eq!(decode_registration(&again).unwrap(), read.subscription);
            }
        }
    }
}
