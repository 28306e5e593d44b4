//! Topic nodes: which partitions a topic has (L-50).

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::error::{Error, Result, printable};

/// The most partitions that a topic is believed to have; ZooKeeper's default bound on a node ends far below it.
pub const MAX_PARTITIONS: usize = 1_000_000;

/// The most bytes that are read of a topic node: 16 MiB. It is more than for other nodes, since a cluster with very large
/// topics has raised ZooKeeper's bound and its JVM members read them all the same.
pub const MAX_TOPIC_VALUE: usize = 16 << 20;

/// The data of a topic node as Kafka 0.8 to 2.3 wrote it, each partition with broker 1 as its only replica.
///
/// For trees of our own making, as in tests; members never write topic nodes (L-2).
pub fn encode_topic(partitions: impl IntoIterator<Item = i32>) -> Vec<u8> {
    let listed: Vec<String> = partitions
        .into_iter()
        .map(|partition| format!("\"{partition}\":[1]"))
        .collect();
    format!("{{\"version\":1,\"partitions\":{{{}}}}}", listed.join(",")).into_bytes()
}

/// The partitions that a topic node names, in ascending order; none for `"partitions":{}`.
///
/// The names are read as Java reads an integer, so `"+1"` and `"01"` are both 1. Neither the version, which is 1 to 3
/// depending on the broker, nor the replicas matter.
///
/// # Errors
/// [`Malformed`](crate::error::ErrorKind::Malformed) if it is not JSON, has no object `partitions`, names something that
/// is no partition, or is past [`MAX_TOPIC_VALUE`] or [`MAX_PARTITIONS`]. A JVM takes such a topic for one without
/// partitions and lets go of it (L-50). Here it is unreadable, and what is held of it stays (T4): as a JVM claims
/// nothing of it meanwhile, nobody is in anybody's way.
pub fn decode_topic(data: &[u8]) -> Result<Vec<i32>> {
    if data.len() > MAX_TOPIC_VALUE {
        return Err(malformed("it is longer than 16 MiB"));
    }
    let document: Document =
        serde_json::from_slice(data).map_err(|error| malformed(&error.to_string()))?;
    Ok(document.partitions.0.into_iter().collect())
}

fn malformed(reason: &str) -> Error {
    Error::malformed(format!("malformed topic node: {}", printable(reason)))
}

#[derive(serde::Deserialize)]
struct Document {
    partitions: Partitions,
}

struct Partitions(BTreeSet<i32>);

impl<'de> Deserialize<'de> for Partitions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Partitions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of partitions")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Partitions, A::Error> {
                let mut partitions = BTreeSet::new();
                while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                    partitions.insert(partition(&name).map_err(serde::de::Error::custom)?);
                    if partitions.len() > MAX_PARTITIONS {
                        return Err(serde::de::Error::custom("too many partitions"));
                    }
                }
                Ok(Partitions(partitions))
            }
        }
        deserializer.deserialize_map(Names)
    }
}

fn partition(name: &str) -> std::result::Result<i32, String> {
    name.parse::<i32>()
        .ok()
        .filter(|number| *number >= 0)
        .ok_or_else(|| format!("\"{}\" is not a partition's number", printable(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use proptest::prelude::*;

    fn read(text: &str) -> Vec<i32> {
        decode_topic(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_topic_node_is_read_as_old_kafka_wrote_it() {
        assert_eq!(
            read(r#"{"version":1,"partitions":{"0":[1,2],"1":[2,3]}}"#),
            [0, 1]
        );
        // The order of a Scala map with more than four entries.
        assert_eq!(
            read(
                r#"{"version":1,"partitions":{"12":[1],"8":[1],"4":[1],"11":[1],"9":[1],"10":[1]}}"#
            ),
            [4, 8, 9, 10, 11, 12]
        );
        assert_eq!(
            encode_topic([0, 1]),
            br#"{"version":1,"partitions":{"0":[1],"1":[1]}}"#
        );
        assert_eq!(encode_topic([]), br#"{"version":1,"partitions":{}}"#);
    }

    #[test]
    fn later_brokers_write_more_and_it_does_not_matter() {
        assert_eq!(
            read(
                r#"{"removing_replicas":{},"partitions":{"0":[0],"1":[1]},"topic_id":"eUHsLnJaRG-NAzBMXXFGUA","adding_replicas":{},"version":3}"#
            ),
            [0, 1]
        );
        assert_eq!(read(r#"{"partitions":{}}"#), [0; 0]);
        assert_eq!(read("\n{\"partitions\":{\"0\":null}}\n"), [0]);
    }

    #[test]
    fn partition_names_are_java_integers() {
        assert_eq!(
            read(r#"{"partitions":{"+1":[],"01":[],"2147483647":[],"7":[],"7":[]}}"#),
            [1, 7, i32::MAX]
        );
        for bad in ["", "-1", "x", " 1", "2147483648", "1.0"] {
            let text = format!(r#"{{"partitions":{{"0":[1],"{bad}":[1]}}}}"#);
            assert!(decode_topic(text.as_bytes()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_topic_node_that_says_nothing_is_unreadable() {
        for bad in [
            "",
            "null",
            "[]",
            "{}",
            "{\"version\":1}",
            "{\"partitions\":null}",
            "{\"partitions\":[]}",
            "{\"partitions\":{\"0\":[1]}} x",
            "{\"partitions\":{\"0\":[1]}",
            "\u{feff}{\"partitions\":{}}",
        ] {
            let error = decode_topic(bad.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed, "{bad}");
        }
        assert!(decode_topic(&[b' '; MAX_TOPIC_VALUE + 1]).is_err());
    }

    #[test]
    fn a_topic_with_too_many_partitions_is_refused() {
        let full = i32::try_from(MAX_PARTITIONS).unwrap();
        let data = |n: i32| {
            let names: Vec<String> = (0..n).map(|p| format!("\"{p}\":0")).collect();
            format!("{{\"partitions\":{{{}}}}}", names.join(","))
        };
        assert_eq!(read(&data(full)).len(), MAX_PARTITIONS);
        assert!(decode_topic(data(full + 1).as_bytes()).is_err());
    }

    #[test]
    fn a_deep_topic_node_is_refused() {
        let deep = format!("{{\"partitions\":{{\"0\":{}", "[".repeat(500_000));
        assert!(decode_topic(deep.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn a_topic_node_never_panics(data in prop_oneof![
            any::<Vec<u8>>(),
            "\\{\"partitions\":[\\[{]?\"[0-9+-]{0,12}\"[:,]\\[1?\\]?[}]{0,3}".prop_map(String::into_bytes),
        ]) {
            if let Ok(partitions) = decode_topic(&data) {
                prop_assert!(partitions.windows(2).all(|w| w[0] < w[1]));
                prop_assert!(partitions.iter().all(|p| *p >= 0));
            }
        }

        #[test]
        fn a_topic_node_round_trips(partitions in proptest::collection::btree_set(0..=i32::MAX, 0..40)) {
            let read = decode_topic(&encode_topic(partitions.iter().rev().copied())).unwrap();
            prop_assert_eq!(read, partitions.into_iter().collect::<Vec<_>>());
        }
    }
}
