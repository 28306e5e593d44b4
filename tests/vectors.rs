//! What old Kafka does, and what our ids look like, from vectors that were made without this code.

use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest, Sha256};

use evenkeel::assign::{Assignor, Compat, Range, RoundRobin, named};
use evenkeel::error::{ErrorKind, Result};
use evenkeel::group::{Assignment, ConsumerId, GroupName, StreamId, Subscriptions, Topic};
use evenkeel::id::{
    self, Fixed, HashedHost, HashedInstance, IdContext, IdStrategy, LegacyAuto, RankedHost,
};

const ASSIGNOR: &str = include_str!("vectors/assignor-vectors.json");
const ID: &str = include_str!("vectors/id-vectors.json");
const SPREAD: &str = include_str!("vectors/spread-expectations.json");

type Partitions = BTreeMap<Topic, Vec<i32>>;

fn file(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a Vec<Value> {
    let list = value[key]
        .as_array()
        .unwrap_or_else(|| panic!("no list {key}"));
    assert!(!list.is_empty(), "{key} is empty");
    list
}

fn map(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value
        .as_object()
        .unwrap()
        .iter()
        .map(|(key, value)| (key.as_str(), value))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("no text {key}"))
}

fn texts(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|text| text.as_str().unwrap())
        .collect()
}

fn number(value: &Value) -> u32 {
    value.as_u64().unwrap().try_into().unwrap()
}

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

// The copies

/// The digests of the files as they came to us, so that nobody changes a vector to please the code. The spread is our
/// selection: it leaves out the strategies that are not built.
const DIGESTS: [(&str, &str, &str); 3] = [
    (
        "assignor-vectors.json",
        ASSIGNOR,
        "ea34f8652f481968fe6122fbe363b60e81a3c4cb7480520725bb3df818ab881e",
    ),
    (
        "id-vectors.json",
        ID,
        "bf109aae0ff76f2804f0568c46153f16ad93457f3d807d9ef8681aaeac31f01c",
    ),
    (
        "spread-expectations.json",
        SPREAD,
        "6a561e9a754d31a36bab3188c276617a8a87dbea7a905ee319d623fe3eb2aad3",
    ),
];

#[test]
fn the_vectors_are_those_that_came_to_us() {
    for (name, text, digest) in DIGESTS {
        assert_eq!(sha256(text), digest, "{name} was changed");
    }
}

// Assignment

/// The level of each release line; `None` where round robin did not exist.
fn level(release: &str) -> Option<Compat> {
    match release {
        "0.8.1" => None,
        "0.8.2" | "0.9.0" | "0.10.0" | "0.10.1" => Some(Compat::V0_8_2),
        "0.10.2" | "0.11.0" => Some(Compat::V0_10_2),
        "1.0" | "1.1" => Some(Compat::V1_0),
        other => panic!("release {other} is new to this test"),
    }
}

fn input(vector: &Value) -> Result<(Subscriptions, Partitions)> {
    let mut subscriptions = Subscriptions::new();
    for (consumer, topics) in map(&vector["subscriptions"]) {
        let mine = subscriptions.entry(ConsumerId::new(consumer)).or_default();
        for (name, streams) in map(topics) {
            mine.insert(Topic::foreign(name)?, number(streams));
        }
    }
    let mut partitions = Partitions::new();
    for (name, numbers) in map(&vector["partitions"]) {
        let numbers = numbers.as_array().unwrap().iter();
        partitions.insert(
            Topic::foreign(name)?,
            numbers.map(|n| number(n) as i32).collect(),
        );
    }
    Ok((subscriptions, partitions))
}

fn plain(assignment: &Assignment) -> BTreeMap<String, BTreeMap<i32, String>> {
    let owners = |owners: &BTreeMap<i32, StreamId>| {
        owners
            .iter()
            .map(|(n, stream)| (*n, stream.as_str().to_owned()))
            .collect()
    };
    assignment
        .iter()
        .map(|(topic, all)| (topic.as_str().to_owned(), owners(all)))
        .collect()
}

fn expected(vector: &Value) -> BTreeMap<String, BTreeMap<i32, String>> {
    let owners = |owners: &Value| -> BTreeMap<i32, String> {
        map(owners)
            .map(|(n, id)| (n.parse().unwrap(), id.as_str().unwrap().to_owned()))
            .collect()
    };
    let all = map(&vector["expected"]).map(|(topic, all)| (topic.to_owned(), owners(all)));
    all.filter(|(_, owners)| !owners.is_empty()).collect()
}

#[test]
fn every_release_assigns_as_it_did() {
    let mut checked = 0;
    for vector in list(&file(ASSIGNOR), "vectors") {
        let name = text(vector, "name");
        let (subscriptions, partitions) = input(vector).unwrap();
        for release in texts(&vector["kafka_versions"]) {
            let strategy = text(vector, "strategy");
            let Some(compat) = level(release).or((strategy == "range").then(Compat::default))
            else {
                panic!("{name}: {release} has no round robin");
            };
            let assignor = named(strategy.parse().unwrap(), compat);
            assert_eq!(assignor.name(), strategy);
            let answer = assignor.assign(&subscriptions, &partitions);
            checked += 1;
            match answer {
                // The JVM crashes here; ours has nothing to assign.
                Ok(answer) if name == "roundrobin/all_subscriptions_empty@0.8.2" => {
                    assert!(answer.is_empty());
                }
                Ok(answer) => assert_eq!(plain(&answer), expected(vector), "{name} {release}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Assignment);
                    assert!(vector["expected"].is_null(), "{name} {release}: {error}");
                }
            }
            assert_eq!(assignor.doubt(&subscriptions, &partitions), None, "{name}");
        }
    }
    assert_eq!(checked, CASES);
}

/// Vectors times releases, so that a vector that is passed over by mistake is noticed.
const CASES: usize = 507;

// Ids

const HOST: &str = "app01.example.com";
const RANDOM: &str = "00c0ffee";

fn context(vector: &Value) -> Result<IdContext> {
    let group = GroupName::new(text(vector, "group"))?;
    IdContext::new(text(vector, "host"), &group, RANDOM)
}

#[test]
fn ids_are_the_vectors() {
    for vector in list(&file(ID), "vectors")
        .iter()
        .filter(|v| v["usable"] == true)
    {
        let context = context(vector).unwrap();
        let is = |strategy: &dyn IdStrategy, key: &str| {
            let name = id::name(&context, strategy).unwrap();
            assert_eq!(name.as_str(), text(vector, key), "{}", text(vector, "note"));
        };
        is(&HashedHost, "hashed_host_id");
        is(&RankedHost { rank: 0, salt: 0 }, "hashed_host_id");
        is(&RankedHost { rank: 1, salt: 0 }, "ranked_host_rank_1_id");
        is(&Drained, "drained_id");
    }
}

/// A strategy as a user may write it, around one of ours: this one's members are served last.
#[derive(Debug)]
struct Drained;

impl IdStrategy for Drained {
    fn id(&self, context: &IdContext) -> Result<String> {
        Ok(format!("~{}", HashedHost.id(context)?))
    }
}

/// A member for one topic alone.
#[derive(Debug)]
struct PerTopic(&'static str);

impl IdStrategy for PerTopic {
    fn id(&self, context: &IdContext) -> Result<String> {
        let topic = format!("topic={}", self.0);
        let hash = sha256(&[&context.host, context.group.as_str(), &topic].join("\0"));
        Ok(format!("{hash}-{}", context.random))
    }
}

fn sha256(text: &str) -> String {
    Sha256::digest(text)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[test]
fn hashes_and_escaped_hosts_are_the_vectors() {
    for vector in list(&file(ID), "vectors")
        .iter()
        .filter(|v| v["usable"] == true)
    {
        let context = context(vector).unwrap();
        assert_eq!(context.host.len(), number(&vector["host_bytes"]) as usize);
        assert_eq!(
            context.group.as_str().len(),
            number(&vector["group_bytes"]) as usize
        );
        let hash = |strategy: &dyn IdStrategy| strategy.id(&context).unwrap()[..64].to_owned();
        assert_eq!(hash(&HashedHost), text(vector, "sha256_host_group"));
        assert_eq!(hash(&HashedHost)[..16], *text(vector, "prefix16"));
        assert_eq!(
            hash(&RankedHost { rank: 0, salt: 1 }),
            text(vector, "sha256_salt_1")
        );
        assert_eq!(
            hash(&PerTopic("events")),
            text(vector, "sha256_topic_events")
        );
        for (instance, key) in [(0, "sha256_instance_0"), (1, "sha256_instance_1")] {
            let context = context.clone().with_instance(instance);
            let id = HashedInstance.id(&context).unwrap();
            let rest = text(vector, "escaped_host").to_owned() + RANDOM;
            assert_eq!(id, text(vector, key).to_owned() + &rest);
        }
    }
}

#[test]
fn a_host_is_escaped_also_where_the_group_is_refused() {
    let group = GroupName::new("g").unwrap();
    for vector in list(&file(ID), "vectors") {
        let host = text(vector, "host");
        let Ok(context) = IdContext::new(host, &group, RANDOM) else {
            assert_eq!(host, "");
            continue;
        };
        let id = id::name(&context, &HashedHost).unwrap();
        let rest = id.as_str().strip_suffix(RANDOM).unwrap();
        assert_eq!(rest["g_".len() + 64..], *text(vector, "escaped_host"));
    }
}

#[test]
fn what_is_unusable_is_refused_by_name() {
    let file = file(ID);
    let unusable = list(&file, "vectors")
        .iter()
        .filter(|v| v["usable"] == false);
    let mut refused = 0;
    for vector in unusable {
        let error = context(vector).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let text = error.to_string();
        assert!(
            text.contains("group.id") || text.contains("host name"),
            "{text}"
        );
        refused += 1;
    }
    assert_eq!(refused, 10);
}

#[test]
fn zookeeper_accepts_what_the_vectors_say() {
    let group = GroupName::new("g").unwrap();
    let context = IdContext::new(HOST, &group, RANDOM).unwrap();
    for vector in list(&file(ID), "znode_names") {
        let (name, legal) = (text(vector, "name"), vector["legal"] == true);
        assert_eq!(id::is_node_name(name), legal, "{name:?}");
        // After "g_" dots are no longer alone.
        let dots = matches!(name, "." | "..");
        assert_eq!(
            id::name(&context, &Fixed::new(name)).is_ok(),
            legal || dots,
            "{name:?}"
        );
    }
}

#[test]
fn streams_sort_as_the_vectors_say() {
    for vector in list(&file(ID), "order") {
        // All names are of the form `<consumer>-<number>`, or consumers when there is no dash.
        let sorted = vector
            .get("sorted")
            .or(vector.get("sorted_by_utf16"))
            .unwrap();
        let sorted = texts(sorted);
        let mut streams: Vec<StreamId> = sorted.iter().rev().filter_map(|t| stream(t)).collect();
        if streams.is_empty() {
            let mut consumers: Vec<ConsumerId> = sorted
                .iter()
                .rev()
                .map(|text| ConsumerId::new(*text))
                .collect();
            consumers.sort();
            let consumers: Vec<&str> = consumers.iter().map(ConsumerId::as_str).collect();
            assert_eq!(consumers, sorted);
        } else {
            streams.sort();
            let streams: Vec<&str> = streams.iter().map(StreamId::as_str).collect();
            assert_eq!(streams, sorted);
        }
        if let Some(consumers) = vector.get("consumer_ids_sorted") {
            let consumers = texts(consumers).into_iter().map(ConsumerId::new);
            assert!(consumers.is_sorted());
        }
    }
}

fn stream(text: &str) -> Option<StreamId> {
    let (consumer, number) = text.rsplit_once('-')?;
    Some(ConsumerId::new(consumer).stream(number.parse().ok()?))
}

// Spread

/// A process of a fleet, as the expectations name it: `host#instance`.
struct Process<'a> {
    host: &'a str,
    instance: u32,
}

impl Process<'_> {
    fn name(&self) -> String {
        format!("{}#{}", self.host, self.instance)
    }

    fn id(&self, strategy: &str, salt: u64, group: &str) -> ConsumerId {
        let instance = self.instance.to_string();
        let random = sha256(&["rnd", self.host, group, &instance].join("\0"));
        let group = GroupName::new(group).unwrap();
        let context = IdContext::new(self.host, &group, &random[..8]).unwrap();
        let time = 1_450_000_000_000 + u64::from(self.instance);
        let context = context.with_instance(self.instance).with_time_ms(time);
        let rank = self.instance.try_into().unwrap();
        let strategy: &dyn IdStrategy = match strategy {
            "legacy_auto" => &LegacyAuto,
            "hashed_host" => &HashedHost,
            "hashed_instance" => &HashedInstance,
            "ranked_host" => &RankedHost { rank, salt },
            other => panic!("strategy {other} is not built"),
        };
        id::name(&context, strategy).unwrap()
    }
}

fn processes(fleet: &Value) -> Vec<Process<'_>> {
    let each = number(&fleet["processes_per_host"]);
    let hosts = texts(&fleet["hosts"]).into_iter();
    hosts
        .flat_map(|host| (0..each).map(move |instance| Process { host, instance }))
        .collect()
}

/// The names of a group's members, and which process each is.
fn members<'a>(
    fleet: &'a Value,
    strategy: &str,
    salt: u64,
    group: &str,
) -> BTreeMap<ConsumerId, Process<'a>> {
    let all = processes(fleet).into_iter();
    all.map(|process| (process.id(strategy, salt, group), process))
        .collect()
}

fn subscriptions(fleet: &Value, members: &BTreeMap<ConsumerId, Process>) -> Subscriptions {
    let all: Vec<&str> = list(fleet, "topics")
        .iter()
        .map(|t| text(t, "name"))
        .collect();
    let of = |process: &Process| {
        let some = fleet
            .get("subscriptions")
            .map(|s| texts(&s[process.name()]));
        some.unwrap_or(all.clone())
            .into_iter()
            .map(|name| (topic(name), 1))
            .collect()
    };
    members
        .iter()
        .map(|(id, process)| (id.clone(), of(process)))
        .collect()
}

fn partitions(fleet: &Value) -> Partitions {
    let topics = list(fleet, "topics").iter();
    topics
        .map(|t| {
            (
                topic(text(t, "name")),
                (0..number(&t["partitions"]) as i32).collect(),
            )
        })
        .collect()
}

/// Per host: in how many groups a process is active, and how many partitions it has.
#[derive(Default)]
struct Load {
    active: BTreeMap<String, u32>,
    partitions: BTreeMap<String, u32>,
}

impl Load {
    fn add(&mut self, members: &BTreeMap<ConsumerId, Process>, assignment: &Assignment) {
        for (id, process) in members {
            let streams = assignment.values().flat_map(BTreeMap::values);
            let mine = streams.filter(|stream| stream.consumer() == *id).count() as u32;
            *self.active.entry(process.host.to_owned()).or_default() += u32::from(mine > 0);
            *self.partitions.entry(process.host.to_owned()).or_default() += mine;
        }
    }
}

fn numbers(value: &Value) -> BTreeMap<String, u32> {
    map(value)
        .map(|(key, n)| (key.to_owned(), number(n)))
        .collect()
}

fn assign_fleet(fleet: &Value, case: &str, expected: &Value) {
    let (strategy, assignor) = case.split_once('+').unwrap();
    let assignor: &dyn Assignor = match assignor {
        "range" => &Range,
        "roundrobin" => &RoundRobin {
            compat: Compat::V0_10_2,
        },
        other => panic!("assignor {other} is not built"),
    };
    let lists = partitions(fleet);
    let mut load = Load::default();
    for group in texts(&fleet["groups"]) {
        let members = members(fleet, strategy, 0, group);
        let subscriptions = subscriptions(fleet, &members);
        let assignment = assignor.assign(&subscriptions, &lists).unwrap();
        let owner = |stream: &StreamId| members[&stream.consumer()].name();
        for (name, owners) in map(&expected["assignment"][group]) {
            let ours: Vec<String> = assignment[&topic(name)].values().map(owner).collect();
            assert_eq!(ours, texts(owners), "{case}, group {group}, topic {name}");
        }
        assert_eq!(assignment.len(), lists.len());
        load.add(&members, &assignment);
    }
    assert_eq!(load.active, numbers(&expected["active_per_host"]), "{case}");
    assert_eq!(
        load.partitions,
        numbers(&expected["partitions_per_host"]),
        "{case}"
    );
}

#[test]
fn fleets_spread_to_the_last_partition_as_expected() {
    let mut cases = 0;
    for fleet in list(&file(SPREAD), "exact") {
        for (case, expected) in map(&fleet["expected"]) {
            assign_fleet(fleet, case, expected);
            cases += 1;
        }
    }
    assert_eq!(cases, 29);
}

#[test]
fn fleets_sort_as_expected() {
    for fleet in list(&file(SPREAD), "exact") {
        for (group, orders) in map(&fleet["id_order"]) {
            for (strategy, order) in map(orders) {
                let members = members(fleet, strategy, 0, group);
                let mut streams: Vec<_> = members.iter().map(|(id, p)| (id.stream(0), p)).collect();
                streams.sort_by(|(a, _), (b, _)| a.cmp(b));
                let ours: Vec<String> = streams.iter().map(|(_, p)| p.name()).collect();
                assert_eq!(ours, texts(order), "{strategy}, group {group}");
            }
        }
    }
}

#[test]
fn a_salt_for_each_group_evens_out_the_hosts() {
    let file = file(SPREAD);
    let expected = &file["salt_exact"];
    let fleets = list(&file, "exact").iter();
    let fleet = fleets
        .clone()
        .find(|f| f["name"] == expected["fleet"])
        .unwrap();
    let candidates = u64::from(number(&expected["candidates"]));
    let lists = partitions(fleet);
    let mut load = BTreeMap::new();
    for group in texts(&fleet["groups"]) {
        let with = |salt| {
            let members = members(fleet, "ranked_host", salt, group);
            let assignment = Range
                .assign(&subscriptions(fleet, &members), &lists)
                .unwrap();
            let mut after = Load {
                partitions: load.clone(),
                ..Load::default()
            };
            after.add(&members, &assignment);
            after.partitions
        };
        let cost = |salt: &u64| {
            let after = with(*salt);
            let squares: u32 = after.values().map(|n| n * n).sum();
            (after.values().max().copied(), squares, *salt)
        };
        let salt = (0..candidates).min_by_key(cost).unwrap();
        assert_eq!(salt, expected["salts"][group].as_u64().unwrap(), "{group}");
        load = with(salt);
    }
    assert_eq!(load, numbers(&expected["partitions_per_host"]));
}
