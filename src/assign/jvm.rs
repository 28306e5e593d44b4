//! Accidents of the JVM that became protocol: the hash of a string, and the order of a Scala hash table.

use crate::group::Topic;

/// Java's `String.hashCode` of what `hash` is already the hash of, followed by `text` (L-60): UTF-16 units, wrapping.
fn extend(hash: i32, text: &str) -> i32 {
    text.encode_utf16().fold(hash, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    })
}

/// Java's `String.hashCode` (L-60).
pub(super) fn string_hash(text: &str) -> i32 {
    extend(0, text)
}

/// The hash of a text for a partition, for many partitions of one topic: `before`, the number, `after`.
pub(super) fn numbered_hash(before: i32, number: i32, after: &str) -> i32 {
    extend(extend(before, &number.to_string()), after)
}

/// How many buckets Scala's `mutable.HashMap` has for this many keys (L-62): it starts with 16 and is at most 3/4 full.
pub(super) fn table_length(keys: usize) -> usize {
    let mut length = 16;
    while keys > length / 4 * 3 {
        length *= 2;
    }
    length
}

/// The bucket of a topic in a table of this length, a power of two (L-62).
///
/// Scala 2.10 to 2.12; a build of 0.8.2 for Scala 2.9 leaves out the rotation (L-64) and is not followed.
pub(super) fn bucket(topic: &Topic, length: usize) -> usize {
    const GOLDEN: u32 = 0x9e37_75cd;
    let hash = string_hash(topic.as_str()).cast_unsigned();
    let mixed = hash.wrapping_mul(GOLDEN).swap_bytes().wrapping_mul(GOLDEN);
    (mixed.rotate_right(4) >> (u32::BITS - length.ilog2())) as usize
}

/// The topics with their buckets as Scala walks through a table into which they were put in this order (L-62).
///
/// The last bucket comes first. Within a bucket the newest comes first, until the table grows and turns it round: so
/// only there the order of putting matters, which is an accident of history (L-63).
pub(super) fn table_order<'a>(topics: impl IntoIterator<Item = &'a Topic>) -> Vec<InTable<'a>> {
    let mut table: Vec<Vec<&Topic>> = vec![Vec::new(); table_length(0)];
    for (before, topic) in topics.into_iter().enumerate() {
        let place = bucket(topic, table.len());
        table[place].push(topic);
        let length = table_length(before + 1);
        if length > table.len() {
            table = moved(&table, length);
        }
    }
    let table = table.iter().enumerate().rev();
    let walk = table.flat_map(|(bucket, chain)| {
        let chain = chain.iter().rev();
        chain.map(move |&topic| InTable { topic, bucket })
    });
    walk.collect()
}

/// The same topics in a longer table, put there in the order of the walk.
fn moved<'a>(table: &[Vec<&'a Topic>], length: usize) -> Vec<Vec<&'a Topic>> {
    let mut longer = vec![Vec::new(); length];
    for topic in table.iter().rev().flat_map(|chain| chain.iter().rev()) {
        longer[bucket(topic, length)].push(*topic);
    }
    longer
}

/// A topic in Scala's table.
#[derive(Debug, Clone, Copy)]
pub(super) struct InTable<'a> {
    pub(super) topic: &'a Topic,
    pub(super) bucket: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const ASSIGNOR_VECTORS: &str = include_str!("../../tests/vectors/assignor-vectors.json");
    const ID_VECTORS: &str = include_str!("../../tests/vectors/id-vectors.json");

    fn vectors(text: &str, key: &str) -> Vec<Value> {
        let file: Value = serde_json::from_str(text).unwrap();
        let vectors = file[key].as_array().unwrap().clone();
        assert!(!vectors.is_empty());
        vectors
    }

    #[test]
    fn strings_hash_as_in_java() {
        let mut all = vectors(ASSIGNOR_VECTORS, "java_hashes");
        all.extend(vectors(ID_VECTORS, "java_hash_code"));
        for vector in all {
            let text = vector["text"].as_str().unwrap();
            assert_eq!(
                i64::from(string_hash(text)),
                vector["hash"].as_i64().unwrap(),
                "{text}"
            );
        }
    }

    #[test]
    fn a_partitions_hash_is_that_of_the_whole_text() {
        for number in [0, 9, 10, 2_147_483_647] {
            let whole = string_hash(&format!("[orders,{number}]"));
            assert_eq!(numbered_hash(string_hash("[orders,"), number, "]"), whole);
        }
    }

    #[test]
    fn topics_come_in_the_order_of_scalas_table() {
        for vector in vectors(ASSIGNOR_VECTORS, "scala_table_orders") {
            let names = |key: &str| -> Vec<Topic> {
                let names = vector[key].as_array().unwrap().iter();
                names
                    .map(|name| Topic::new(name.as_str().unwrap()).unwrap())
                    .collect()
            };
            let topics = names("topics");
            assert_eq!(
                table_length(topics.len()) as u64,
                vector["table_length"].as_u64().unwrap()
            );
            let order: Vec<Topic> = table_order(&topics)
                .iter()
                .map(|at| at.topic.clone())
                .collect();
            assert_eq!(order, names("order"));
        }
    }

    #[test]
    fn a_table_grows_when_it_is_more_than_three_quarters_full() {
        let lengths = [0, 12, 13, 24, 25, 48, 49].map(table_length);
        assert_eq!(lengths, [16, 16, 32, 32, 64, 64, 128]);
    }
}
