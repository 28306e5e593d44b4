//! `evenkeel describe`: who is in a group, who has what, and how far behind it is.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use serde_json::{Map, Value, json};

use evenkeel::error::printable;
use evenkeel::group::{Pattern, Subscription};
use evenkeel::kafka::{Fetching, watermarks};
use evenkeel::observer::{Observer, Seen, SeenMember, State};
use evenkeel::registry::Dialect;
use evenkeel::wire::Broker;
use evenkeel::zk::{ZkRegistry, ZkSettings};
use evenkeel::{Config, GroupName, TopicPartition};

use crate::output::{Outcome, print_json, say};
use crate::settings::Settings;

/// The name under which we ask, where a group must be named and none is joined.
const NOBODY: &str = "evenkeel-describe";

/// Show groups: members, partitions, owners, offsets and lag
///
/// Only reads. Members of every kind are shown, JVM members too. The host is taken from a member's name where its form allows.
/// End offsets are asked of the brokers; where none can be reached, they and the lag are unknown.
#[derive(Args)]
#[command(after_help = r#"Examples:
  evenkeel describe --zookeeper zk1:2181/kafka
  evenkeel describe --zookeeper zk1:2181/kafka --group etl
  evenkeel describe --zookeeper zk1 --group etl --json | jq '[.groups[].partitions[].lag] | add'

--json prints {"groups": [{"group", "state": "live"|"empty"|"absent", "members": [{"consumer_id", "host", "since_ms", "pattern",
"streams": {topic: n}}], "partitions": [{"topic", "partition", "owner", "offset", "end_offset", "lag"}]}]}, null where unknown.
For a white or black list, streams has its expression in the place of a topic."#)]
pub struct Describe {
    #[command(flatten)]
    settings: Settings,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

type Groups = BTreeMap<GroupName, Seen>;
type Ends = BTreeMap<TopicPartition, i64>;

impl Describe {
    pub async fn run(&self) -> Outcome {
        let config = self.settings.config(Some(NOBODY))?;
        let dialect = Dialect::from(config.zookeeper_dialect);
        let registry = Arc::new(ZkRegistry::new(ZkSettings::of(&config)));
        let observer = Observer::open(registry, dialect).await?;
        let groups = self.look(&observer).await?;
        let brokers = observer.brokers().await?;
        observer.close().await;
        for (group, seen) in &groups {
            let troubles = seen.troubles.iter();
            troubles.for_each(|trouble| say(format_args!("{group}: {trouble}")));
        }
        let ends = ends(&config, &brokers, &groups).await;
        if self.json {
            return print_json(&as_json(&groups, &ends));
        }
        let mut out = io::stdout().lock();
        out.write_all(as_text(&groups, &ends, now_ms()).as_bytes())?;
        Ok(out.flush()?)
    }

    async fn look(&self, observer: &Observer) -> Outcome<Groups> {
        let names = match &self.settings.group {
            Some(name) => BTreeSet::from([GroupName::new(name)?]),
            None => observer.groups().await?,
        };
        let mut groups = Groups::new();
        for name in names {
            let seen = observer.group(&name).await?;
            groups.insert(name, seen);
        }
        Ok(groups)
    }
}

/// The next offset to be written of every partition, as far as the brokers say.
async fn ends(config: &Config, brokers: &[Broker], groups: &Groups) -> Ends {
    let partitions = groups.values().flat_map(|seen| seen.partitions.keys());
    let partitions: BTreeSet<TopicPartition> = partitions.cloned().collect();
    if partitions.is_empty() {
        return Ends::new();
    }
    let partitions: Vec<TopicPartition> = partitions.into_iter().collect();
    let fetching = match Fetching::of(config, brokers, partitions.len()) {
        Ok(fetching) => fetching,
        Err(error) => {
            say(format_args!("end offsets are unknown: {error}"));
            return Ends::new();
        }
    };
    let count = partitions.len();
    if io::stderr().is_terminal() {
        say(format_args!(
            "asking the brokers how far {count} partitions reach"
        ));
    }
    let asked = tokio::task::spawn_blocking(move || watermarks(&fetching, &partitions)).await;
    match asked {
        Ok(Ok(found)) => {
            if found.len() < count {
                let missing = count - found.len();
                say(format_args!(
                    "the end offsets of {missing} of {count} partitions are unknown: no broker answered for them"
                ));
            }
            found.into_iter().map(|(at, (_, end))| (at, end)).collect()
        }
        Ok(Err(error)) => {
            say(format_args!("end offsets are unknown: {error}"));
            Ends::new()
        }
        Err(error) => {
            say(format_args!("end offsets are unknown: {error}"));
            Ends::new()
        }
    }
}

fn lag(offset: Option<i64>, end: Option<i64>) -> Option<i64> {
    // An offset past the end is a log that was cut or made anew: nothing is left to read.
    Some((end? - offset?).max(0))
}

fn state(seen: &Seen) -> &'static str {
    match seen.state {
        State::Live => "live",
        State::Empty => "empty",
        State::Absent => "absent",
    }
}

fn pattern(subscription: &Subscription) -> &'static str {
    match subscription {
        Subscription::Topics(_) => "static",
        Subscription::Filter {
            pattern: Pattern::WhiteList,
            ..
        } => "white_list",
        Subscription::Filter { .. } => "black_list",
    }
}

/// Stream counts by topic, or by the expression of a filter.
fn streams(subscription: &Subscription) -> Vec<(String, u32)> {
    match subscription {
        Subscription::Topics(topics) => {
            let topics = topics.iter();
            topics
                .map(|(topic, n)| (topic.as_str().to_owned(), *n))
                .collect()
        }
        Subscription::Filter { regex, streams, .. } => vec![(regex.clone(), *streams)],
    }
}

// ---- for programs ----

fn as_json(groups: &Groups, ends: &Ends) -> Value {
    let groups: Vec<Value> = groups
        .iter()
        .map(|(name, seen)| group_json(name, seen, ends))
        .collect();
    json!({ "groups": groups })
}

fn group_json(name: &GroupName, seen: &Seen, ends: &Ends) -> Value {
    let members = seen.members.iter();
    let members: Vec<Value> = members
        .map(|(id, member)| member_json(id.as_str(), member))
        .collect();
    let partitions = seen.partitions.iter().map(|(at, partition)| {
        let end = ends.get(at).copied();
        json!({
            "topic": at.topic.as_str(),
            "partition": at.partition,
            "owner": partition.owner,
            "offset": partition.offset,
            "end_offset": end,
            "lag": lag(partition.offset, end),
        })
    });
    let partitions: Vec<Value> = partitions.collect();
    json!({ "group": name.as_str(), "state": state(seen), "members": members, "partitions": partitions })
}

fn member_json(id: &str, member: &SeenMember) -> Value {
    let subscription = member.subscription.as_ref();
    let streams = subscription.map(|subscription| {
        let counts = streams(subscription).into_iter();
        counts
            .map(|(name, n)| (name, json!(n)))
            .collect::<Map<_, _>>()
    });
    json!({
        "consumer_id": id,
        "host": member.host,
        "since_ms": member.since_ms,
        "pattern": subscription.map(pattern),
        "streams": streams,
    })
}

// ---- for people ----

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

fn as_text(groups: &Groups, ends: &Ends, now: u64) -> String {
    let groups: Vec<String> = groups
        .iter()
        .map(|(name, seen)| group_text(name, seen, ends, now))
        .collect();
    match groups.is_empty() {
        true => "no groups\n".to_owned(),
        false => groups.join("\n"),
    }
}

fn group_text(name: &GroupName, seen: &Seen, ends: &Ends, now: u64) -> String {
    let mut text = format!("group {name}: {}\n", state(seen));
    if !seen.members.is_empty() {
        text += &format!("{}\n", members_table(seen, now));
    }
    if !seen.partitions.is_empty() {
        text += &format!("{}\n", partitions_table(seen, ends));
    }
    text
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    table
}

fn number(number: Option<i64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

fn members_table(seen: &Seen, now: u64) -> Table {
    let mut table = table(&["MEMBER", "HOST", "AGE", "SUBSCRIPTION"]);
    for (consumer, member) in &seen.members {
        let subscription = match &member.subscription {
            Some(subscription) => subscription_text(subscription),
            None => "malformed".to_owned(),
        };
        table.add_row([
            consumer.to_string(),
            printable(member.host.as_deref().unwrap_or("-")),
            age(now.saturating_sub(member.since_ms)),
            subscription,
        ]);
    }
    table
}

fn subscription_text(subscription: &Subscription) -> String {
    let prefix = match pattern(subscription) {
        "static" => String::new(),
        pattern => format!("{pattern} "),
    };
    let streams = streams(subscription).into_iter();
    let streams: Vec<String> = streams
        .map(|(name, n)| format!("{}={n}", printable(&name)))
        .collect();
    prefix + &streams.join(" ")
}

fn age(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn partitions_table(seen: &Seen, ends: &Ends) -> Table {
    let mut table = table(&["TOPIC", "PARTITION", "OFFSET", "END", "LAG", "OWNER"]);
    for (at, partition) in &seen.partitions {
        let end = ends.get(at).copied();
        table.add_row([
            at.topic.to_string(),
            at.partition.to_string(),
            number(partition.offset),
            number(end),
            number(lag(partition.offset, end)),
            printable(partition.owner.as_deref().unwrap_or("-")),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use evenkeel::testing::MemoryRegistry;

    use super::*;

    async fn look() -> Groups {
        let registry = MemoryRegistry::new();
        registry.put(
            "/brokers/topics/t",
            r#"{"version":1,"partitions":{"0":[1],"1":[1]}}"#,
        );
        registry.put(
            "/consumers/g/ids/g_web-1441234567890-1a2b3c4d",
            r#"{"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"1441234567890"}"#,
        );
        registry.put("/consumers/g/ids/g_odd", "?");
        registry.put("/consumers/g/owners/t/0", "g_web-1441234567890-1a2b3c4d-0");
        registry.put("/consumers/g/offsets/t/0", "12");
        let observer = Observer::open(Arc::new(registry), Dialect::V3_5)
            .await
            .unwrap();
        let group = GroupName::new("g").unwrap();
        let seen = observer.group(&group).await.unwrap();
        Groups::from([(group, seen)])
    }

    fn ends() -> Ends {
        let topic = evenkeel::Topic::new("t").unwrap();
        Ends::from([(TopicPartition::new(topic, 0), 20)])
    }

    #[tokio::test]
    async fn programs_are_told_null_where_something_is_unknown() {
        let mut document = as_json(&look().await, &ends());
        let odd = document["groups"][0]["members"][0]["since_ms"].take();
        assert!(odd.is_u64(), "{odd}");
        let expected = json!({"groups": [{
            "group": "g",
            "state": "live",
            "members": [
                {"consumer_id": "g_odd", "host": null, "since_ms": null, "pattern": null, "streams": null},
                {"consumer_id": "g_web-1441234567890-1a2b3c4d", "host": "web", "since_ms": 1_441_234_567_890_u64,
                 "pattern": "static", "streams": {"t": 2}},
            ],
            "partitions": [
                {"topic": "t", "partition": 0, "owner": "g_web-1441234567890-1a2b3c4d-0", "offset": 12,
                 "end_offset": 20, "lag": 8},
                {"topic": "t", "partition": 1, "owner": null, "offset": null, "end_offset": null, "lag": null},
            ],
        }]});
        assert_eq!(document, expected);
    }

    #[tokio::test]
    async fn people_are_shown_a_table() {
        let text = as_text(&look().await, &ends(), 1_441_234_567_890 + 61_000);
        for part in ["group g: live", "1m01s", "t=2", "malformed", "web"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let name = "g_web-1441234567890-1a2b3c4d";
        for row in [
            &["MEMBER", "HOST", "AGE", "SUBSCRIPTION"][..],
            &[name, "web", "1m01s", "t=2"],
            &["TOPIC", "PARTITION", "OFFSET", "END", "LAG", "OWNER"],
            &["t", "0", "12", "20", "8", &format!("{name}-0")],
            &["t", "1", "-", "-", "-", "-"],
        ] {
            assert!(rows.iter().any(|is| is == row), "{row:?} is not in\n{text}");
        }
        assert_eq!(as_text(&Groups::new(), &ends(), 0), "no groups\n");
    }

    #[test]
    fn an_offset_past_the_end_leaves_no_lag() {
        assert_eq!(lag(Some(5), Some(3)), Some(0));
        assert_eq!(lag(Some(3), None), None);
    }

    #[test]
    fn ages_are_short() {
        assert_eq!(age(59_999), "59s");
        assert_eq!(age(3_600_000), "1h00m");
        assert_eq!(age(90_000_000), "1d01h");
    }
}
