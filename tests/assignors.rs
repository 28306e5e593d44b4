//! Our assignors beside those of every release: random groups are written into ZooKeeper and the release's own classes asked.

mod support;

use std::collections::BTreeMap;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::process::Stdio;

use serde_json::Value;
use serde_json::json;

use evenkeel::assign::Compat;
use evenkeel::assign::Strategy;
use evenkeel::assign::named;
use evenkeel::group::ConsumerId;
use evenkeel::group::Subscriptions;
use evenkeel::group::Topic;
use support::Jars;
use support::Tree;
use support::ZooKeeper;

/// Small, seeded, the same on every machine.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn pick<'a>(&mut self, among: &[&'a str]) -> &'a str {
        among[usize::try_from(self.below(among.len() as u64)).unwrap()]
    }
}

struct View {
    strategy: Strategy,
    subscriptions: BTreeMap<String, BTreeMap<String, u32>>,
    partitions: BTreeMap<String, Vec<i32>>,
}

/// Names whose order as texts is not the order of their numbers, ten streams and more, topics that are missing, unequal subscriptions.
fn view(chance: &mut Chance) -> View {
    let strategy = if chance.below(2) == 0 {
        Strategy::Range
    } else {
        Strategy::RoundRobin
    };
    let topics = ["t", "T9", "orders", "topic.10", "topic.9", "a_b-c"];
    let mut partitions = BTreeMap::new();
    for _ in 0..=chance.below(4) {
        let count = [1, 2, 5, 12, 31][usize::try_from(chance.below(5)).unwrap()];
        partitions.insert(chance.pick(&topics).to_string(), (0..count).collect());
    }
    let alike = (strategy == Strategy::RoundRobin && chance.below(3) > 0)
        .then(|| subscription(chance, &topics));
    let mut subscriptions = BTreeMap::new();
    for _ in 0..=chance.below(7) {
        let id = format!(
            "g_{}-{}",
            chance.pick(&["h", "H", "h2", "h10", "z.example", "_"]),
            chance.below(12)
        );
        let topics = alike
            .clone()
            .unwrap_or_else(|| subscription(chance, &topics));
        subscriptions.insert(id, topics);
    }
    View {
        strategy,
        subscriptions,
        partitions,
    }
}

fn subscription(chance: &mut Chance, topics: &[&str]) -> BTreeMap<String, u32> {
    let counts = [1, 1, 2, 3, 12];
    let count = |chance: &mut Chance| counts[usize::try_from(chance.below(5)).unwrap()];
    (0..=chance.below(3))
        .map(|_| (chance.pick(topics).to_string(), count(chance)))
        .collect()
}

fn write(tree: &Tree, view: &View, chroot: &str) {
    for (id, topics) in &view.subscriptions {
        let text = json!({"version": 1, "subscription": topics, "pattern": "static", "timestamp": "1400000000000"});
        tree.make(&format!("{chroot}/consumers/g/ids/{id}"), &text.to_string());
    }
    for (topic, numbers) in &view.partitions {
        let replicas: BTreeMap<String, [i32; 1]> = numbers
            .iter()
            .map(|number| (number.to_string(), [0]))
            .collect();
        tree.make(
            &format!("{chroot}/brokers/topics/{topic}"),
            &json!({"version": 1, "partitions": replicas}).to_string(),
        );
    }
    tree.make(&format!("{chroot}/brokers/topics"), "");
}

fn ours(view: &View, compat: Compat) -> Value {
    let topic = |name: &String| Topic::new(name).unwrap();
    let of = |topics: &BTreeMap<String, u32>| {
        topics
            .iter()
            .map(|(name, streams)| (topic(name), *streams))
            .collect()
    };
    let subscriptions: Subscriptions = view
        .subscriptions
        .iter()
        .map(|(id, topics)| (ConsumerId::new(id.as_str()), of(topics)))
        .collect();
    let partitions = view
        .partitions
        .iter()
        .map(|(name, numbers)| (topic(name), numbers.clone()))
        .collect();
    match named(view.strategy, compat).assign(&subscriptions, &partitions) {
        Err(_) => json!("refused"),
        Ok(assignment) => {
            let shares = |shares: &BTreeMap<i32, _>| -> BTreeMap<String, String> {
                shares
                    .iter()
                    .map(|(number, stream): (&i32, &evenkeel::StreamId)| {
                        (number.to_string(), stream.as_str().to_string())
                    })
                    .collect()
            };
            let all = assignment.iter().filter(|(_, shares)| !shares.is_empty());
            json!(
                all.map(|(topic, owners)| (topic.as_str().to_string(), shares(owners)))
                    .collect::<BTreeMap<_, _>>()
            )
        }
    }
}

fn compat(release: &str) -> Compat {
    match release {
        "0.8.2.2" | "0.9.0.1" => Compat::V0_8_2,
        "0.10.2.2" | "0.11.0.3" => Compat::V0_10_2,
        _ => Compat::V1_0,
    }
}

/// Asks the release about every view, in order.
fn theirs(release: &str, zookeeper: &ZooKeeper, views: &[View]) -> Vec<Value> {
    let mut command = Jars::member(release).java(&[
        "-Xmx128m".into(),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error".into(),
    ]);
    let mut java = command
        .arg("Assign")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut questions = java.stdin.take().unwrap();
    let mut answers = BufReader::new(java.stdout.take().unwrap()).lines();
    let mut all = Vec::new();
    for (number, view) in views.iter().enumerate() {
        let strategy = if view.strategy == Strategy::Range {
            "range"
        } else {
            "roundrobin"
        };
        let consumers: Vec<&str> = view.subscriptions.keys().map(String::as_str).collect();
        writeln!(
            questions,
            "{}/view{number} {strategy} g {}",
            zookeeper.connect_string(),
            consumers.join(" ")
        )
        .unwrap();
        let answer = answers
            .next()
            .unwrap_or_else(|| panic!("{release} did not answer about view {number}"))
            .unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        all.push(if answer["error"].is_null() {
            answer["assignment"].clone()
        } else {
            json!("refused")
        });
    }
    drop(questions);
    assert!(java.wait().unwrap().success());
    all
}

#[test]
fn every_release_shares_random_groups_as_we_do() {
    let seed = std::env::var("EVENKEEL_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut chance = Chance(seed);
    let count = if support::everything() { 300 } else { 30 };
    let views: Vec<View> = (0..count).map(|_| view(&mut chance)).collect();
    let zookeeper = ZooKeeper::start("3.9.5");
    let tree = Tree::connect(&zookeeper);
    for (number, view) in views.iter().enumerate() {
        write(&tree, view, &format!("/view{number}"));
    }
    for release in support::jvm_versions() {
        let answers = theirs(release, &zookeeper, &views);
        let mut refused = 0;
        for (number, (view, theirs)) in views.iter().zip(&answers).enumerate() {
            let ours = ours(view, compat(release));
            assert_eq!(
                &ours, theirs,
                "seed {seed}, view {number} beside {release}, {:?}: {:?} of {:?}",
                view.strategy, view.subscriptions, view.partitions
            );
            refused += u32::from(*theirs == "refused");
        }
        println!(
            "{release}: {} views alike, {refused} of them refused by both",
            views.len()
        );
        support::passed("assignors", &[("member", release)]);
    }
}
