//! `evenkeel plan`: who would get which partition.

use std::collections::BTreeMap;
use std::io::Read;

use clap::Args;
use serde_json::{Map, Value, json};

use evenkeel::assign::{Compat, Strategy, named};
use evenkeel::group::{Assignment, Subscriptions};
use evenkeel::wire::{MAX_PARTITIONS, MAX_STREAMS};
use evenkeel::{ConsumerId, ErrorKind, Topic};

use crate::output::{Failure, Outcome, bad, print_json};

/// More than the largest view that is within the other limits.
const MAX_INPUT: u64 = 64 << 20;

/// Compute who would get which partition, from a view on standard input
///
/// Reads {"strategy": "range"|"roundrobin", "compat": "0.8.2"|"0.10.2"|"1.0", "subscriptions": {consumer: {topic: streams}},
/// "partitions": {topic: [ids]}}. Without compat it is 1.0; other keys are ignored. Consumers are named as under `ids`, with the
/// group. Prints {"assignment": {topic: {"partition": stream id}}}; topics and partitions that nobody gets are left out.
#[derive(Args)]
#[command(after_help = r#"Example:
  echo '{"strategy": "range", "subscriptions": {"etl_a": {"t": 2}, "etl_b": {"t": 1}}, "partitions": {"t": [0, 1, 2, 3]}}' |
    evenkeel plan
  {"assignment":{"t":{"0":"etl_a-0","1":"etl_a-0","2":"etl_a-1","3":"etl_b-0"}}}

What the chosen level refuses, as round robin did in old releases when subscriptions differ, prints {"error": why} and exits 1.
A view that cannot be read exits 2 and names the key."#)]
pub struct Plan {}

struct View {
    strategy: Strategy,
    compat: Compat,
    subscriptions: Subscriptions,
    partitions: BTreeMap<Topic, Vec<i32>>,
}

impl Plan {
    pub fn run(&self, input: impl Read) -> Outcome {
        let view = view(&read(input)?)?;
        let assignor = named(view.strategy, view.compat);
        match assignor.assign(&view.subscriptions, &view.partitions) {
            Ok(assignment) => print_json(&json!({ "assignment": as_json(&assignment) })),
            Err(error) if error.kind() == ErrorKind::Assignment => {
                print_json(&json!({ "error": error.to_string() }))?;
                Err(Failure::Failed(error.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn as_json(assignment: &Assignment) -> Value {
    let mut topics = Map::new();
    for (topic, owners) in assignment.iter().filter(|(_, owners)| !owners.is_empty()) {
        let owners = owners
            .iter()
            .map(|(partition, stream)| (partition.to_string(), json!(stream.as_str())));
        topics.insert(topic.as_str().to_owned(), Value::Object(owners.collect()));
    }
    Value::Object(topics)
}

fn read(input: impl Read) -> Outcome<Value> {
    let mut text = Vec::new();
    let read = input.take(MAX_INPUT + 1).read_to_end(&mut text);
    if let Err(error) = read {
        return bad(format!("standard input cannot be read: {error}"));
    }
    if text.len() as u64 > MAX_INPUT {
        return bad(format!("the view is longer than {MAX_INPUT} bytes"));
    }
    serde_json::from_slice(&text)
        .or_else(|error| bad(format!("standard input is not a JSON document: {error}")))
}

fn view(document: &Value) -> Outcome<View> {
    if !document.is_object() {
        return bad("the view is not a JSON object");
    }
    let strategy = word(document, "strategy")?.map_or_else(
        || bad("key \"strategy\" is missing: it is range or roundrobin"),
        Ok,
    )?;
    Ok(View {
        strategy,
        compat: word(document, "compat")?.unwrap_or(Compat::V1_0),
        subscriptions: subscriptions(object(document, "subscriptions")?)?,
        partitions: partitions(object(document, "partitions")?)?,
    })
}

/// A key that holds one of a few words; none if it is absent.
fn word<T: std::str::FromStr<Err = evenkeel::Error>>(
    document: &Value,
    key: &str,
) -> Outcome<Option<T>> {
    match document.get(key) {
        None => Ok(None),
        Some(Value::String(word)) => match word.parse() {
            Ok(value) => Ok(Some(value)),
            Err(error) => bad(format!("key \"{key}\": {error}")),
        },
        Some(_) => bad(format!("key \"{key}\" is not a text")),
    }
}

fn object<'a>(document: &'a Value, key: &str) -> Outcome<&'a Map<String, Value>> {
    match document.get(key) {
        Some(Value::Object(map)) => Ok(map),
        Some(_) => bad(format!("key \"{key}\" is not an object")),
        None => bad(format!("key \"{key}\" is missing")),
    }
}

fn topic(name: &str, key: &str) -> Outcome<Topic> {
    Topic::foreign(name).or_else(|error| bad(format!("key \"{key}\": {error}")))
}

fn subscriptions(map: &Map<String, Value>) -> Outcome<Subscriptions> {
    let mut subscriptions = Subscriptions::new();
    for (consumer, topics) in map {
        let key = format!("subscriptions.{}", consumer.escape_debug());
        let Value::Object(topics) = topics else {
            return bad(format!("key \"{key}\" is not an object of stream counts"));
        };
        subscriptions.insert(ConsumerId::new(consumer.as_str()), counts(topics, &key)?);
    }
    Ok(subscriptions)
}

fn counts(topics: &Map<String, Value>, key: &str) -> Outcome<BTreeMap<Topic, u32>> {
    let mut counts = BTreeMap::new();
    let mut sum = 0;
    for (name, count) in topics {
        let key = format!("{key}.{}", name.escape_debug());
        let streams = count
            .as_u64()
            .filter(|n| (1..=u64::from(MAX_STREAMS)).contains(n));
        let Some(streams) = streams.and_then(|n| u32::try_from(n).ok()) else {
            return bad(format!(
                "key \"{key}\" is not an integer from 1 to {MAX_STREAMS}"
            ));
        };
        sum += u64::from(streams);
        counts.insert(topic(name, &key)?, streams);
    }
    if sum > u64::from(MAX_STREAMS) {
        return bad(format!(
            "key \"{key}\" has {sum} streams, more than the {MAX_STREAMS} of a member"
        ));
    }
    Ok(counts)
}

fn partitions(map: &Map<String, Value>) -> Outcome<BTreeMap<Topic, Vec<i32>>> {
    let mut partitions = BTreeMap::new();
    let mut sum = 0;
    for (name, ids) in map {
        let key = format!("partitions.{}", name.escape_debug());
        let ids = numbers(ids, &key)?;
        sum += ids.len();
        partitions.insert(topic(name, &key)?, ids);
    }
    if sum > MAX_PARTITIONS {
        return bad(format!(
            "key \"partitions\" has {sum} ids, more than {MAX_PARTITIONS}"
        ));
    }
    Ok(partitions)
}

fn numbers(ids: &Value, key: &str) -> Outcome<Vec<i32>> {
    let number = |id: &Value| {
        let number = id.as_i64().and_then(|id| i32::try_from(id).ok());
        number.filter(|id| *id >= 0)
    };
    let Value::Array(ids) = ids else {
        return bad(format!("key \"{key}\" is not a list of partition ids"));
    };
    let mut numbers = Vec::with_capacity(ids.len());
    for (place, id) in ids.iter().enumerate() {
        match number(id) {
            Some(number) => numbers.push(number),
            None => {
                return bad(format!(
                    "key \"{key}[{place}]\" is not an integer from 0 to {}",
                    i32::MAX
                ));
            }
        }
    }
    Ok(numbers)
}
