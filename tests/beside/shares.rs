//! Who should own what: the rules once more, in their plainest form and without a line of the product.

use std::collections::BTreeMap;

/// Members, and how many streams each has for each topic.
pub type Group = BTreeMap<String, BTreeMap<String, u32>>;

/// Topic and partition to the text of its owner node.
pub type Owners = BTreeMap<(String, i32), String>;

/// The streams of a topic in the order of their texts. The names here are ASCII, so bytes stand for Java's units (L-18).
fn streams_of(group: &Group, topic: &str) -> Vec<String> {
    let mut streams = Vec::new();
    for (member, topics) in group {
        for number in 0..topics.get(topic).copied().unwrap_or(0) {
            streams.push(format!("{member}-{number}"));
        }
    }
    streams.sort();
    streams
}

/// L-55: blocks of equal length, the first ones longer by one while the remainder lasts.
pub fn range(group: &Group, topics: &BTreeMap<String, i32>) -> Owners {
    let mut owners = Owners::new();
    for (topic, partitions) in topics {
        let streams = streams_of(group, topic);
        if streams.is_empty() {
            continue;
        }
        let count = i32::try_from(streams.len()).unwrap();
        let mut next = 0;
        for (place, stream) in (0..count).zip(&streams) {
            let length = partitions / count + i32::from(place < partitions % count);
            for partition in next..next + length {
                owners.insert((topic.clone(), partition), stream.clone());
            }
            next += length;
        }
        assert_eq!(next, *partitions);
    }
    owners
}

/// L-58: partitions by the hash of a text, dealt to the streams in turn; one that does not take the topic loses its turn.
/// `text` is what the release hashes (L-60). The topics of the tests have no equal hashes.
pub fn round_robin(
    group: &Group,
    topics: &BTreeMap<String, i32>,
    text: fn(&str, i32) -> String,
) -> Owners {
    let mut streams: BTreeMap<String, &BTreeMap<String, u32>> = BTreeMap::new();
    for (member, of) in group {
        for number in 0..of.values().copied().max().unwrap_or(0) {
            streams.insert(format!("{member}-{number}"), of);
        }
    }
    let takes = |stream: &String, topic: &String| {
        let number: u32 = stream.rsplit_once('-').unwrap().1.parse().unwrap();
        streams[stream].get(topic).is_some_and(|n| number < *n)
    };
    let mut order: Vec<(i32, String, i32)> = Vec::new();
    for (topic, partitions) in topics {
        for partition in 0..*partitions {
            order.push((java_hash(&text(topic, partition)), topic.clone(), partition));
        }
    }
    order.sort();
    assert!(order.windows(2).all(|two| two[0].0 != two[1].0), "a tie");
    if streams.is_empty() {
        return Owners::new();
    }
    let mut turns = streams.keys().cycle();
    order
        .into_iter()
        .map(|(_, topic, partition)| {
            let stream = turns.find(|stream| takes(stream, &topic)).unwrap();
            ((topic, partition), stream.clone())
        })
        .collect()
}

fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    })
}

#[test]
fn the_model_divides_as_the_old_documentation_says() {
    let group = |names: &[(&str, u32)]| -> Group {
        let of = names.iter();
        of.map(|(name, n)| ((*name).to_owned(), BTreeMap::from([("t".to_owned(), *n)])))
            .collect()
    };
    let topics = BTreeMap::from([("t".to_owned(), 5)]);
    let owners: Vec<String> = range(&group(&[("b", 1), ("a", 1)]), &topics)
        .into_values()
        .collect();
    assert_eq!(owners, ["a-0", "a-0", "a-0", "b-0", "b-0"]);
    let dealt: Vec<String> = round_robin(&group(&[("b", 1), ("a", 1)]), &topics, |t, p| {
        format!("{t}-{p}")
    })
    .into_values()
    .collect();
    assert_eq!(dealt, ["a-0", "b-0", "a-0", "b-0", "a-0"]);
}
