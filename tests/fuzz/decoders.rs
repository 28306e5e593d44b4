//! Single znodes: what is accepted means one thing, and what is refused is refused in words fit for a log.

use evenkeel::ConsumerId;
use evenkeel::Error;
use evenkeel::ErrorKind;
use evenkeel::StreamId;
use evenkeel::error::printable;
use evenkeel::group::Subscription;
use evenkeel::wire;
use evenkeel::wire::StoredOffset;

use crate::memory::peak_of;

/// A refusal is of one kind, short, and cannot forge a line.
pub fn assert_fit_for_a_log(error: &Error) {
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Malformed, "{text}");
    assert!(text.len() < 1024, "{} bytes are told", text.len());
    assert!(!text.chars().any(char::is_control), "{text:?}");
    assert!(!text.contains('\u{202e}'), "{text:?}");
}

/// D1 to D5: bounded in streams and in memory, and what is accepted can be written again.
pub fn registration(bytes: &[u8]) {
    let (read, peak) = peak_of(|| wire::read_registration(bytes));
    let limit = 64 * bytes.len() + (64 << 10);
    assert!(peak <= limit, "{peak} of {limit} bytes");
    let read = match read {
        Ok(read) => read,
        Err(error) => return assert_fit_for_a_log(&error),
    };
    assert!(read.read_by.up_to_0_11 || read.read_by.from_1_0);
    let streams = match &read.subscription {
        Subscription::Topics(topics) => topics.values().sum::<u32>(),
        Subscription::Filter { streams, .. } => *streams,
    };
    let streams = streams + read.impossible.values().sum::<u32>();
    assert!(streams <= wire::MAX_STREAMS, "{streams} streams");
    let again = wire::encode_registration(&read.subscription, 0);
    assert_eq!(
        wire::decode_registration(&again).unwrap(),
        read.subscription
    );
}

/// L-5: an owner is matched whole against the streams that are known.
pub fn owner_data(bytes: &[u8]) {
    let text = wire::decode_owner(bytes);
    let members = ["g_a", "g_a-1", "g_b", "g_h-1441234567890-1a2b3c4d"];
    let streams: Vec<StreamId> = members
        .iter()
        .flat_map(|id| [0, 1, 9, 10].map(|number| ConsumerId::new(*id).stream(number)))
        .collect();
    let matched: Vec<&str> = streams
        .iter()
        .filter(|stream| wire::is_owner(bytes, stream))
        .map(StreamId::as_str)
        .collect();
    let same = streams.iter().map(StreamId::as_str);
    let same: Vec<&str> = same.filter(|name| name.as_bytes() == bytes).collect();
    assert_eq!(matched, same);
    // Two members can make one text: `g_a-1` with number 0 is not `g_a` with number 10.
    assert!(matched.len() <= 1, "{matched:?}");
    assert!(matched.iter().all(|name| *name == text));
    assert!(!printable(&text).chars().any(char::is_control));
}

/// O10, L-4: a sign at most and digits, within 64 bits; and nothing else ever means "no offset".
pub fn offset_data(bytes: &[u8]) {
    match (wire::decode_offset(bytes), meant(bytes)) {
        (Err(error), None) => assert_fit_for_a_log(&error),
        (Ok(StoredOffset::At(read)), Some(meant)) => {
            assert!(meant >= 0);
            assert_eq!(read, meant);
            let again = wire::encode_offset(read);
            assert_eq!(wire::decode_offset(&again).unwrap(), StoredOffset::At(read));
        }
        (Ok(StoredOffset::Negative(read)), Some(meant)) => {
            assert!(meant < 0);
            assert_eq!(read, meant);
        }
        (read, meant) => panic!("read as {read:?}, means {meant:?}"),
    }
}

/// The same rule, digit by digit.
fn meant(bytes: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let mut number: i128 = 0;
    for digit in digits {
        let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
        number = (number * 10 + i128::from(digit)).min(i128::from(u64::MAX));
    }
    i64::try_from(if is_negative { -number } else { number }).ok()
}

/// L-50, T4: partitions each once, in order, and bounded in number.
pub fn topic_znode(bytes: &[u8]) {
    let (read, peak) = peak_of(|| wire::decode_topic(bytes));
    let limit = 64 * bytes.len() + (64 << 10);
    assert!(peak <= limit, "{peak} of {limit} bytes");
    match read {
        Err(error) => assert_fit_for_a_log(&error),
        Ok(partitions) => {
            assert!(partitions.len() <= wire::MAX_PARTITIONS);
            assert!(partitions.iter().all(|partition| *partition >= 0));
            assert!(partitions.is_sorted_by(|one, other| one < other));
            let again = wire::encode_topic(partitions.iter().copied());
            assert_eq!(wire::decode_topic(&again).unwrap(), partitions);
        }
    }
}

/// L-46: listeners that a client can be given, one server each.
pub fn broker_znode(bytes: &[u8]) {
    let (read, peak) = peak_of(|| wire::decode_broker(bytes));
    let limit = 64 * bytes.len() + (64 << 10);
    assert!(peak <= limit, "{peak} of {limit} bytes");
    let broker = match read {
        Ok(broker) => broker,
        Err(error) => return assert_fit_for_a_log(&error),
    };
    assert!(broker.version > 0);
    assert_eq!(wire::lowest_version([&broker]), Some(broker.version));
    for endpoint in &broker.endpoints {
        assert!(!endpoint.host.is_empty() && endpoint.port > 0);
        let shown = endpoint.to_string();
        // In a list of servers this is one, and the port is what stands behind the last colon.
        assert!(!shown.contains([',', '/', ' ', '@']), "{shown:?}");
        let port = shown.rsplit_once(':').map(|(_, port)| port.parse());
        assert_eq!(port, Some(Ok(endpoint.port)), "{shown:?}");
        let protocol = endpoint.protocol.to_ascii_lowercase();
        assert!(broker.endpoint(&protocol).is_some());
    }
}
