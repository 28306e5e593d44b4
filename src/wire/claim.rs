//! What stands in owner nodes and offset nodes: plain text, no JSON.

use crate::error::{Error, Result, printable};
use crate::group::StreamId;
use crate::wire::MAX_VALUE;

/// The data of an owner node: the stream's text and nothing else (L-5).
pub fn encode_owner(stream: &StreamId) -> Vec<u8> {
    stream.as_str().as_bytes().to_vec()
}

/// The text of an owner node, whoever wrote it: opaque, matched whole and never split (L-5).
///
/// Never fails. Bytes that are not UTF-8 are replaced, as a JVM does, and what is past [`MAX_VALUE`] is left out; to ask
/// whose node it is, use [`is_owner`]. Members that are no JVMs leave out the stream's number. Empty for no data.
pub fn decode_owner(data: &[u8]) -> String {
    let end = data.len().min(MAX_VALUE);
    String::from_utf8_lossy(&data[..end]).into_owned()
}

/// Whether the data of an owner node is exactly this stream's text.
pub fn is_owner(data: &[u8], stream: &StreamId) -> bool {
    data == stream.as_str().as_bytes()
}

/// What an offset node says that holds no offset: a JVM reads a missing node as this number (L-4).
pub const NO_OFFSET: i64 = -1;

/// What a readable offset node says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredOffset {
    /// The offset of the next message to read, 0 or more.
    At(i64),
    /// A negative number, which stands for "no offset" as for a JVM (O10); worth an event, but for [`NO_OFFSET`].
    Negative(i64),
}

/// The data of an offset node: the offset of the next message to read, in decimal (L-4).
pub fn encode_offset(next: i64) -> Vec<u8> {
    next.to_string().into_bytes()
}

/// Reads an offset node as Java's `Long.parseLong` does: at most one sign, then ASCII digits, within 64 bits.
///
/// A missing node means "no offset"; that is the caller's to know, for here there is data, if only empty data.
///
/// # Errors
/// [`Malformed`](crate::error::ErrorKind::Malformed) for everything else: empty data, blanks, a line break, a number too
/// large (O10). That never means "no offset". Digits of other scripts, which Java would take, are refused as well.
pub fn decode_offset(data: &[u8]) -> Result<StoredOffset> {
    // Rust's rule for `i64` is Java's, but for those foreign digits.
    let number = std::str::from_utf8(data)
        .ok()
        .and_then(|text| text.parse::<i64>().ok());
    match number {
        Some(next) if next >= 0 => Ok(StoredOffset::At(next)),
        Some(next) => Ok(StoredOffset::Negative(next)),
        None => Err(malformed_offset(data)),
    }
}

fn malformed_offset(data: &[u8]) -> Error {
    let shown = String::from_utf8_lossy(&data[..data.len().min(256)]);
    Error::malformed(format!(
        "malformed offset \"{}\": it must be a sign at most and digits, within 64 bits; write a number there or delete the node",
        printable(&shown)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::group::ConsumerId;
    use proptest::prelude::*;

    #[test]
    fn an_owner_node_holds_the_stream_and_nothing_else() {
        let stream = ConsumerId::new("g_host-1441234567890-1a2b3c4d").stream(0);
        let data = encode_owner(&stream);
        assert_eq!(data, b"g_host-1441234567890-1a2b3c4d-0");
        assert_eq!(decode_owner(&data), stream.as_str());
        assert!(is_owner(&data, &stream));
    }

    #[test]
    fn an_owner_is_matched_whole() {
        let stream = ConsumerId::new("g_a").stream(1);
        for other in [
            "g_a", "g_a-", "g_a-10", "g_a-1 ", "g_a-1\n", "", "G_a-1", "\u{fffd}",
        ] {
            assert!(!is_owner(other.as_bytes(), &stream), "{other:?}");
        }
        assert_eq!(decode_owner(b""), "");
        assert_eq!(decode_owner(b"g_a\xff-1"), "g_a\u{fffd}-1");
        assert_eq!(decode_owner(&vec![b'x'; MAX_VALUE + 9]).len(), MAX_VALUE);
    }

    #[test]
    fn offsets_are_read_as_java_reads_them() {
        for (text, next) in [
            ("0", 0),
            ("42", 42),
            ("+42", 42),
            ("-0", 0),
            ("0007", 7),
            ("9223372036854775807", i64::MAX),
        ] {
            assert_eq!(
                decode_offset(text.as_bytes()).unwrap(),
                StoredOffset::At(next),
                "{text}"
            );
        }
        for (text, next) in [("-1", -1), ("-9223372036854775808", i64::MIN)] {
            assert_eq!(
                decode_offset(text.as_bytes()).unwrap(),
                StoredOffset::Negative(next),
                "{text}"
            );
        }
        assert_eq!(encode_offset(42), b"42");
        assert_eq!(encode_offset(i64::MAX), b"9223372036854775807");
    }

    #[test]
    fn garbage_in_an_offset_node_is_never_no_offset() {
        let huge = "1".repeat(MAX_VALUE);
        for bad in [
            "",
            " ",
            "42\n",
            " 42",
            "+",
            "-",
            "+-1",
            "NaN",
            "null",
            "4.0",
            "1e3",
            "0x1",
            "1_0",
            "9223372036854775808",
            "-9223372036854775809",
            "\u{0661}\u{0662}",
            "\0",
            &huge,
        ] {
            let error = decode_offset(bad.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed, "{bad:.20?}");
            assert!(error.to_string().len() < 600);
        }
        assert!(decode_offset(b"4\xff").is_err());
    }

    /// The rule again, digit by digit.
    fn oracle(data: &[u8]) -> Option<i128> {
        let (sign, digits) = match data {
            [b'-', rest @ ..] => (-1, rest),
            [b'+', rest @ ..] => (1, rest),
            rest => (1, rest),
        };
        if digits.is_empty() {
            return None;
        }
        let mut sum: i128 = 0;
        for d in digits {
            if !d.is_ascii_digit() {
                return None;
            }
            sum = (sum * 10 + i128::from(d - b'0')).min(1 << 100);
        }
        let value = sign * sum;
        (i128::from(i64::MIN)..=i128::from(i64::MAX))
            .contains(&value)
            .then_some(value)
    }

    proptest! {
        #[test]
        fn an_offset_is_accepted_only_by_the_rule(
            data in prop_oneof![
                any::<Vec<u8>>(),
                "[+-]?[0-9]{0,22}".prop_map(String::into_bytes),
                "[+ -]{0,2}[0-9a ]{0,4}\n?".prop_map(String::into_bytes),
                any::<i64>().prop_map(encode_offset),
            ],
        ) {
            let read = match decode_offset(&data) {
                Ok(StoredOffset::At(n)) => { prop_assert!(n >= 0); Some(i128::from(n)) }
                Ok(StoredOffset::Negative(n)) => { prop_assert!(n < 0); Some(i128::from(n)) }
                Err(_) => None,
            };
            prop_assert_eq!(read, oracle(&data));
            let _ = decode_owner(&data);
        }
    }
}
