//! Event logs: lines of JSON.

use std::sync::Arc;

use evenkeel::testing::check::{Event, Fact, How, Phase, read_events};
use evenkeel::{Topic, TopicPartition};
use proptest::prelude::*;

fn partition() -> impl Strategy<Value = TopicPartition> + Clone {
    ("[a-z._-]{3,9}", 0..i32::MAX)
        .prop_map(|(topic, number)| TopicPartition::new(Topic::new(&topic).unwrap(), number))
}

fn who() -> impl Strategy<Value = Arc<str>> {
    "[a-z_é\"\\\\-]{1,9}".prop_map(Arc::from)
}

fn fact() -> impl Strategy<Value = Fact> {
    let place = (partition(), any::<i64>(), any::<i64>());
    let how = prop_oneof![Just(How::Stored), Just(How::Policy), Just(How::Reset)];
    let phase = prop_oneof![Just(Phase::Enter), Just(Phase::Leave), Just(Phase::Panic)];
    prop_oneof![
        any::<i64>().prop_map(|session| Fact::Joined { session }),
        (partition(), any::<i64>())
            .prop_map(|(partition, token)| Fact::Checked { partition, token }),
        place
            .clone()
            .prop_map(|(partition, token, offset)| Fact::Delivered {
                partition,
                token,
                offset
            }),
        place
            .clone()
            .prop_map(|(partition, token, offset)| Fact::Done {
                partition,
                token,
                offset
            }),
        Just(Fact::Queued),
        (place, how).prop_map(|((partition, token, offset), how)| Fact::Started {
            partition,
            token,
            offset,
            how
        }),
        (partition(), any::<Option<i64>>(), any::<i64>()).prop_map(|(partition, from, to)| {
            Fact::Reset {
                partition,
                from,
                to,
            }
        }),
        (partition(), any::<u64>(), any::<bool>()).prop_map(|(partition, undone, is_forced)| {
            Fact::Released {
                partition,
                undone,
                is_forced,
            }
        }),
        (
            "[a-z_]{1,9}",
            phase,
            prop::collection::vec(partition(), 0..4)
        )
            .prop_map(|(name, phase, partitions)| Fact::Callback {
                name,
                phase,
                partitions
            }),
        (who(), any::<u64>(), any::<u64>()).prop_map(|(member, from, to)| Fact::Stopped {
            member,
            from,
            to
        }),
        (who(), any::<u64>(), any::<u64>()).prop_map(|(member, from, to)| Fact::Cut {
            member,
            from,
            to
        }),
        who().prop_map(|member| Fact::Killed { member }),
        any::<i64>().prop_map(|session| Fact::Expired { session }),
        Just(Fact::Healed),
        Just(Fact::Settled),
        (partition(), any::<i64>())
            .prop_map(|(partition, offset)| Fact::Sent { partition, offset }),
        (partition(), any::<i64>())
            .prop_map(|(partition, before)| Fact::Trimmed { partition, before }),
        any::<i64>().prop_map(|real_us| Fact::Clock { real_us }),
        Just(Fact::Other("view".into())),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let head = (
        who(),
        any::<u32>(),
        any::<u64>(),
        any::<u64>(),
        any::<Option<i64>>(),
    );
    (head, fact()).prop_map(|((member, incarnation, seq, mono, zxid), fact)| Event {
        member,
        incarnation,
        seq,
        mono,
        zxid,
        fact,
    })
}

fn text(events: &[Event]) -> String {
    events.iter().map(Event::to_line).collect()
}

proptest! {
    #[test]
    fn what_was_written_is_read(events in prop::collection::vec(event(), 0..9)) {
        prop_assert_eq!(read_events(text(&events).as_bytes()).unwrap(), events);
    }

    #[test]
    fn a_torn_last_line_is_left_out(events in prop::collection::vec(event(), 1..5), cut in 1..60usize) {
        let mut log = text(&events).into_bytes();
        let last = events.last().unwrap().to_line().len();
        let cut = cut.min(last);
        log.truncate(log.len() - cut);
        let read = read_events(&log[..]).unwrap();
        // Only the line's end may be missing without loss.
        let whole = if cut == 1 { events.len() } else { events.len() - 1 };
        prop_assert_eq!(&read[..], &events[..whole]);
    }

    #[test]
    fn garbage_is_refused_without_a_panic(
        events in prop::collection::vec(event(), 1..4),
        garbage in prop_oneof![
            any::<Vec<u8>>(),
            "[{}\\[\\]\",:a-z0-9\n-]{0,80}".prop_map(String::into_bytes),
        ],
        place in any::<prop::sample::Index>(),
    ) {
        let _ = read_events(&garbage[..]);
        // Anywhere in a good log.
        let mut log = text(&events).into_bytes();
        let place = place.index(log.len());
        log.splice(place..place, garbage);
        let _ = read_events(&log[..]);
    }
}

#[test]
fn a_bad_line_is_named() {
    let good = r#"{"v":1,"mem":"g_a","inc":1,"seq":1,"mono":5,"ev":"healed"}"#;
    for (bad, why) in [
        ("", "EOF"),
        ("[]", "no object"),
        ("{}", "v is missing"),
        (r#"{"v":2}"#, "v is not 1"),
        (&good.replace("\"g_a\"", "7"), "mem is no text"),
        (
            &good.replace("\"mono\":5", "\"mono\":-5"),
            "mono is no number",
        ),
        (
            &good.replace("\"inc\":1", "\"inc\":4294967296"),
            "inc is no number",
        ),
        (&good.replace("healed", "deliver"), "t is missing"),
        (
            &good.replace("\"healed\"", "\"sent\",\"t\":\"a/b\",\"p\":0,\"off\":1"),
            "topic",
        ),
        (
            &good.replace("\"healed\"", "\"sent\",\"t\":\"a\",\"p\":-1,\"off\":1"),
            "p is no partition",
        ),
        (
            &good.replace(
                "\"healed\"",
                "\"cb\",\"name\":\"x\",\"phase\":\"later\",\"of\":[]",
            ),
            "phase",
        ),
    ] {
        let log = format!("{good}\n{bad}\n{good}\n");
        let error = read_events(log.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        assert!(error.contains(why), "{error}");
    }
    assert!(read_events(&b""[..]).unwrap().is_empty());
}

#[test]
fn a_line_without_an_end_is_not_read_without_end() {
    let log = vec![b' '; 3 << 20];
    assert!(read_events(&log[..]).is_err());
}
