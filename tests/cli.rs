//! The command line, driven as a program: every vector that concerns it, and how it answers to mistakes.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use evenkeel::GroupName;
use evenkeel::id::{
    HashedHost, HashedInstance, IdContext, IdStrategy, LegacyAuto, RankedHost, name,
};

const ASSIGNOR: &str = include_str!("vectors/assignor-vectors.json");
const ID: &str = include_str!("vectors/id-vectors.json");
const SPREAD: &str = include_str!("vectors/spread-expectations.json");
const RANDOM: &str = "00c0ffee";

fn evenkeel(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    evenkeel(arguments).output().unwrap()
}

fn plan(view: &str) -> Output {
    let mut plan = evenkeel(&["plan"]);
    plan.stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = plan.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(view.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn answer(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", out(output), err(output)))
}

fn file(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a Vec<Value> {
    value[key]
        .as_array()
        .unwrap_or_else(|| panic!("no list {key}"))
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
        .map(|t| t.as_str().unwrap())
        .collect()
}

// The vectors

/// The levels of a vector's releases, each once; range has no levels.
fn levels(vector: &Value) -> Vec<&'static str> {
    let level = |release: &str| match release {
        "0.8.1" => "1.0",
        "0.8.2" | "0.9.0" | "0.10.0" | "0.10.1" => "0.8.2",
        "0.10.2" | "0.11.0" => "0.10.2",
        "1.0" | "1.1" => "1.0",
        other => panic!("release {other} is new to this test"),
    };
    let mut levels: Vec<&str> = texts(&vector["kafka_versions"])
        .into_iter()
        .map(level)
        .collect();
    levels.sort_unstable();
    levels.dedup();
    levels
}

fn without_empty(assignment: &Value) -> Value {
    let topics = assignment.as_object().unwrap().iter();
    let topics = topics.filter(|(_, owners)| !owners.as_object().unwrap().is_empty());
    Value::Object(
        topics
            .map(|(topic, owners)| (topic.clone(), owners.clone()))
            .collect(),
    )
}

#[test]
fn plan_assigns_as_every_release_did() {
    let (mut assigned, mut refused) = (0, 0);
    for vector in list(&file(ASSIGNOR), "vectors") {
        let name = text(vector, "name");
        for level in levels(vector) {
            let mut view = vector.clone();
            view["compat"] = json!(level);
            let output = plan(&view.to_string());
            if code(&output) == 1 {
                assert!(
                    vector["expected"].is_null(),
                    "{name} {level}: {}",
                    out(&output)
                );
                assert!(answer(&output)["error"].is_string(), "{name}");
                refused += 1;
                continue;
            }
            assert_eq!(code(&output), 0, "{name} {level}: {}", err(&output));
            let assignment = &answer(&output)["assignment"];
            // The JVM crashes here; ours has nothing to assign.
            let expected = match name {
                "roundrobin/all_subscriptions_empty@0.8.2" => json!({}),
                _ => without_empty(&vector["expected"]),
            };
            assert_eq!(*assignment, expected, "{name} {level}");
            assigned += 1;
        }
    }
    // So that a vector that is passed over by mistake is noticed.
    assert_eq!((assigned, refused), (174, 7));
}

#[test]
fn a_view_without_a_level_is_of_the_newest() {
    let vectors = file(ASSIGNOR);
    let newest = list(&vectors, "vectors")
        .iter()
        .find(|vector| text(vector, "strategy") == "roundrobin" && levels(vector) == ["1.0"]);
    let vector = newest.unwrap();
    let output = plan(&vector.to_string());
    assert_eq!(
        answer(&output)["assignment"],
        without_empty(&vector["expected"])
    );
}

fn id(host: &str, group: &str, more: &[&str]) -> Output {
    let (host, group) = (format!("--host={host}"), format!("--group={group}"));
    let mut arguments = vec!["id", &host, &group, "--random", RANDOM];
    arguments.extend(more);
    run(&arguments)
}

#[test]
fn id_names_members_as_the_vectors_say() {
    for vector in list(&file(ID), "vectors") {
        let (host, group) = (text(vector, "host"), text(vector, "group"));
        let name = |more: &[&str]| {
            let output = id(host, group, more);
            assert_eq!(code(&output), 0, "{host:?} {group:?}: {}", err(&output));
            out(&output).trim_end_matches('\n').to_owned()
        };
        if vector["usable"] == false {
            let output = id(host, group, &[]);
            assert_eq!(code(&output), 2, "{host:?} {group:?}");
            assert_eq!(out(&output), "");
            assert!(
                err(&output).contains("refused") || err(&output).contains("empty"),
                "{}",
                err(&output)
            );
            continue;
        }
        let hashed = |key: &str| {
            let (hash, host) = (text(vector, key), text(vector, "escaped_host"));
            format!("{group}_{hash}{host}{RANDOM}")
        };
        assert_eq!(name(&[]), text(vector, "hashed_host_id"));
        assert_eq!(
            name(&["--strategy", "ranked-host", "--rank", "1"]),
            text(vector, "ranked_host_rank_1_id")
        );
        assert_eq!(
            name(&["--strategy", "ranked-host", "--salt", "1"]),
            hashed("sha256_salt_1")
        );
        for (instance, key) in [("0", "sha256_instance_0"), ("1", "sha256_instance_1")] {
            let more = ["--strategy", "hashed-instance", "--instance", instance];
            assert_eq!(name(&more), hashed(key));
        }
    }
}

#[test]
fn id_refuses_the_names_that_zookeeper_refuses() {
    for vector in list(&file(ID), "znode_names") {
        let name = text(vector, "name");
        // No argument can hold the zero byte. Behind "g_" dots are no longer alone.
        if name.contains('\0') {
            continue;
        }
        let is_legal = vector["legal"] == true || matches!(name, "." | "..");
        let output = id(
            "h",
            "g",
            &["--strategy", "fixed", &format!("--consumer-id={name}")],
        );
        assert_eq!(
            code(&output),
            if is_legal { 0 } else { 2 },
            "{name:?}: {}",
            err(&output)
        );
    }
}

#[test]
fn id_and_plan_together_spread_as_expected() {
    let mut checked = 0;
    for fleet in list(&file(SPREAD), "exact") {
        for (rule, expected) in fleet["expected"].as_object().unwrap() {
            let (strategy, assignor) = rule.split_once('+').unwrap();
            let spread = json!(spread(fleet, strategy, assignor));
            assert_eq!(
                spread,
                expected["partitions_per_host"],
                "{} {rule}",
                text(fleet, "name")
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 29);
}

/// How many partitions each host has, over all groups.
fn spread(fleet: &Value, strategy: &str, assignor: &str) -> BTreeMap<String, usize> {
    let hosts = texts(&fleet["hosts"]);
    let mut spread: BTreeMap<String, usize> = hosts.iter().map(|h| ((*h).to_owned(), 0)).collect();
    let topics = list(fleet, "topics");
    let partitions: BTreeMap<&str, Vec<u64>> = topics
        .iter()
        .map(|t| {
            (
                text(t, "name"),
                (0..t["partitions"].as_u64().unwrap()).collect(),
            )
        })
        .collect();
    for group in texts(&fleet["groups"]) {
        let names = names(fleet, group, strategy);
        let subscriptions: BTreeMap<&String, _> = names
            .iter()
            .map(|(name, seat)| (name, subscribed(fleet, seat)))
            .collect();
        // The expectations are of the middle level.
        let view = json!({
            "strategy": assignor,
            "compat": "0.10.2",
            "subscriptions": subscriptions,
            "partitions": partitions,
        });
        let plan = answer(&plan(&view.to_string()));
        let owners = plan["assignment"].as_object().unwrap().values();
        for owner in owners.flat_map(|all| all.as_object().unwrap().values()) {
            let (consumer, _) = owner.as_str().unwrap().rsplit_once('-').unwrap();
            let (host, _) = names[consumer].split_once('#').unwrap();
            *spread.get_mut(host).unwrap() += 1;
        }
    }
    spread
}

/// One stream of each topic that the member takes: in the uneven fleet not everybody takes all.
fn subscribed<'a>(fleet: &'a Value, seat: &str) -> BTreeMap<&'a str, u32> {
    let topics = match fleet["subscriptions"].get(seat) {
        Some(own) => texts(own),
        None => list(fleet, "topics")
            .iter()
            .map(|topic| text(topic, "name"))
            .collect(),
    };
    topics.into_iter().map(|topic| (topic, 1)).collect()
}

/// The members of a group, each with its host and which process of it, as `host#0`. The names of large fleets, which take a thousand runs, are not made by
/// the program.
fn names(fleet: &Value, group: &str, strategy: &str) -> BTreeMap<String, String> {
    let each = fleet["processes_per_host"].as_u64().unwrap();
    let is_large = texts(&fleet["groups"]).len() > 10;
    let mut names = BTreeMap::new();
    for host in texts(&fleet["hosts"]) {
        for process in 0..u8::try_from(each).unwrap() {
            let name = if is_large {
                library_name(host, group, strategy, process)
            } else {
                program_name(host, group, strategy, process)
            };
            names.insert(name, format!("{host}#{process}"));
        }
    }
    names
}

const TIME: u64 = 1_450_000_000_000;

fn program_name(host: &str, group: &str, strategy: &str, process: u8) -> String {
    let strategy = format!("--strategy={}", strategy.replace('_', "-"));
    let time = format!("--time-ms={}", TIME + u64::from(process));
    let number = match strategy.as_str() {
        "--strategy=ranked-host" => format!("--rank={process}"),
        _ => format!("--instance={process}"),
    };
    let random = format!("--random=00c0ffe{process}");
    let (host, group) = (format!("--host={host}"), format!("--group={group}"));
    let output = run(&["id", &host, &group, &strategy, &time, &random, &number]);
    out(&output).trim_end_matches('\n').to_owned()
}

fn library_name(host: &str, group: &str, strategy: &str, process: u8) -> String {
    let group = GroupName::new(group).unwrap();
    let context = IdContext::new(host, &group, format!("00c0ffe{process}")).unwrap();
    let context = context
        .with_instance(process.into())
        .with_time_ms(TIME + u64::from(process));
    let strategy: &dyn IdStrategy = match strategy {
        "legacy_auto" => &LegacyAuto,
        "hashed_host" => &HashedHost,
        "hashed_instance" => &HashedInstance,
        "ranked_host" => &RankedHost {
            rank: process,
            salt: 0,
        },
        other => panic!("strategy {other} is not built"),
    };
    name(&context, strategy).unwrap().as_str().to_owned()
}

// What programs read

#[test]
fn id_tells_programs_its_parts() {
    let output = id(
        "h",
        "g",
        &[
            "--strategy",
            "legacy-auto",
            "--time-ms",
            "12",
            "--streams",
            "2",
            "--json",
        ],
    );
    let expected = json!({
        "consumer_id": "g_h-12-00c0ffee",
        "id": "h-12-00c0ffee",
        "streams": ["g_h-12-00c0ffee-0", "g_h-12-00c0ffee-1"],
    });
    assert_eq!(answer(&output), expected);
    let output = id(
        "h",
        "g",
        &[
            "--strategy",
            "fixed",
            "--consumer-id",
            "x",
            "--streams",
            "2",
        ],
    );
    assert_eq!(out(&output), "g_x\ng_x-0\ng_x-1\n");
}

#[test]
fn a_name_that_is_not_given_its_random_part_is_drawn() {
    let draw = || out(&run(&["id", "--host", "h", "--group", "g"])).to_owned();
    let (one, other) = (draw(), draw());
    assert_eq!(one.len(), "g_".len() + 64 + "h".len() + 16 + 1);
    assert_ne!(one, other);
}

// Mistakes

#[test]
fn a_mistake_exits_2_and_says_what_it_is() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["fly"], "fly"),
        (&["id", "--host", "h"], "--group"),
        (
            &[
                "id",
                "--host",
                "h",
                "--group",
                "g",
                "--rank",
                "256",
                "--strategy",
                "ranked-host",
            ],
            "256",
        ),
        (
            &["id", "--host", "h", "--group", "g", "--salt", "1"],
            "ranked-host",
        ),
        (
            &["id", "--host", "h", "--group", "g", "--consumer-id", "x"],
            "fixed",
        ),
        (
            &["id", "--host", "h", "--group", "g", "--strategy", "fixed"],
            "--consumer-id",
        ),
        (
            &["id", "--host", "h", "--group", "g", "--random", "xyz"],
            "xyz",
        ),
        (
            &["id", "--host", "h", "--group", "g", "--streams", "100001"],
            "100001",
        ),
        (&["consume", "--zookeeper", "z", "--group", "g"], "--topic"),
        (&["consume", "--zookeeper", "z", "--topic", "t"], "--group"),
        (&["consume", "--group", "g", "--topic", "t"], "--zookeeper"),
        (
            &[
                "consume",
                "--zookeeper",
                "z",
                "--group",
                "a/b",
                "--topic",
                "t",
            ],
            "group.id",
        ),
        (
            &[
                "consume",
                "--zookeeper",
                "z",
                "--group",
                "g",
                "--topic",
                "t=0",
            ],
            "t=0",
        ),
        (
            &[
                "consume",
                "--zookeeper",
                "z",
                "--group",
                "g",
                "--topic",
                "t",
                "--topic",
                "t=2",
            ],
            "twice",
        ),
        (
            &[
                "consume",
                "--zookeeper",
                "z",
                "--group",
                "g",
                "--topic",
                "t",
                "--property",
                "x",
            ],
            "KEY=VALUE",
        ),
        (
            &[
                "consume",
                "--zookeeper",
                "z",
                "--group",
                "g",
                "--topic",
                "t",
                "--property",
                "auto.offset.reset=never",
            ],
            "auto.offset.reset",
        ),
        (
            &["consume", "--config", "/nowhere/at/all", "--topic", "t"],
            "/nowhere/at/all",
        ),
        (&["describe"], "--zookeeper"),
        (
            &["describe", "--zookeeper", "z", "--group", "a b"],
            "group.id",
        ),
        (&["demo", "--seed", "x"], "--seed"),
        (&["completions", "cmd"], "cmd"),
    ];
    for (arguments, part) in cases {
        let output = run(arguments);
        assert_eq!(code(&output), 2, "{arguments:?}: {}", err(&output));
        assert!(
            err(&output).contains(part),
            "{arguments:?}: {}",
            err(&output)
        );
        assert_eq!(out(&output), "", "{arguments:?}");
    }
}

#[test]
fn a_view_that_cannot_be_read_exits_2_and_names_the_key() {
    let cases = [
        ("", "JSON"),
        ("[]", "object"),
        ("{}", "strategy"),
        (r#"{"strategy": 1}"#, "strategy"),
        (r#"{"strategy": "sticky"}"#, "sticky"),
        (r#"{"strategy": "range", "compat": "2.0"}"#, "compat"),
        (r#"{"strategy": "range"}"#, "subscriptions"),
        (
            r#"{"strategy": "range", "subscriptions": {}}"#,
            "partitions",
        ),
        (
            r#"{"strategy": "range", "subscriptions": {"c": 1}, "partitions": {}}"#,
            "subscriptions.c",
        ),
        (
            r#"{"strategy": "range", "subscriptions": {"c": {"t": 0}}, "partitions": {}}"#,
            "subscriptions.c.t",
        ),
        (
            r#"{"strategy": "range", "subscriptions": {"c": {"t": 100001}}, "partitions": {}}"#,
            "100000",
        ),
        (
            r#"{"strategy": "range", "subscriptions": {"c": {"t": 60000, "u": 60000}}, "partitions": {}}"#,
            "120000",
        ),
        (
            r#"{"strategy": "range", "subscriptions": {"c": {"a/b": 1}}, "partitions": {}}"#,
            "a/b",
        ),
        (
            r#"{"strategy": "range", "subscriptions": {}, "partitions": {"t": 1}}"#,
            "partitions.t",
        ),
        (
            r#"{"strategy": "range", "subscriptions": {}, "partitions": {"t": [0, -1]}}"#,
            "partitions.t[1]",
        ),
        (
            r#"{"strategy": "range", "subscriptions": {}, "partitions": {"t": [2147483648]}}"#,
            "partitions.t[0]",
        ),
    ];
    for (view, part) in cases {
        let output = plan(view);
        assert_eq!(code(&output), 2, "{view}: {}", err(&output));
        assert!(err(&output).contains(part), "{view}: {}", err(&output));
        assert_eq!(out(&output), "", "{view}");
    }
}

#[test]
fn nobody_at_the_other_end_exits_1_and_says_so() {
    // A port that was just free; nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let zookeeper = format!("127.0.0.1:{port}");
    let quick = [
        "--zookeeper",
        &zookeeper,
        "--property",
        "zookeeper.connection.timeout.ms=500",
    ];
    for verb in [
        &["describe"][..],
        &["consume", "--group", "g", "--topic", "t"],
    ] {
        let output = run(&[verb, &quick].concat());
        assert_eq!(code(&output), 1, "{}", err(&output));
        assert!(err(&output).contains(&zookeeper), "{}", err(&output));
        assert_eq!(out(&output), "");
    }
}

// Where a setting comes from

/// A properties file with these lines. It is there as long as it is held.
fn properties(lines: &[&str]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(lines.join("\n").as_bytes()).unwrap();
    file
}

#[test]
fn a_property_wins_over_the_file_and_an_option_with_a_name_over_both() {
    // Three ports that were just free; nobody listens there. Whose turn it is is named.
    let ports = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = [ports(), ports(), ports()];
    let places = ports.map(|listener| listener.local_addr().unwrap().to_string());
    let [in_file, by_property, by_name] = &places;
    let file = properties(&[
        "# an old consumer's",
        &format!("zookeeper.connect={in_file}"),
        "group.id = from-the-file",
        "zookeeper.connection.timeout.ms: 300",
        "consumer.timeout.ms=5000",
    ]);
    let path = file.path().to_str().unwrap();
    let property = format!("zookeeper.connect={by_property}");
    let mut arguments = vec!["consume", "--topic", "t", "--config", path];
    for (more, used) in [
        (vec![], in_file),
        (vec!["--property", &property], by_property),
        (vec!["--zookeeper", by_name], by_name),
    ] {
        arguments.extend(more);
        let output = run(&arguments);
        assert_eq!(code(&output), 1, "{}", err(&output));
        for place in &places {
            let is_named = err(&output).contains(place);
            assert_eq!(is_named, place == used, "{place} {}", err(&output));
        }
    }
    // The group is that of the file, unless another is named.
    for (more, refused) in [
        (vec!["--property", "group.id=a/b"], true),
        (vec!["--property", "group.id=a/b", "--group", "g"], false),
        (vec!["--group", "a/b"], true),
        (vec!["--property", "group.id=c/d", "--group", "a/b"], true),
    ] {
        let output = run(&[&arguments[..], &more[..]].concat());
        assert_eq!(
            code(&output),
            if refused { 2 } else { 1 },
            "{}",
            err(&output)
        );
        assert_eq!(err(&output).contains("a/b"), refused, "{}", err(&output));
    }
}

#[test]
fn a_wrong_number_in_a_file_is_named_with_its_line_and_exits_2() {
    for (line, key, value) in [
        (
            "auto.commit.interval.ms=often",
            "auto.commit.interval.ms",
            "often",
        ),
        (
            "fetch.message.max.bytes = 1 MB",
            "fetch.message.max.bytes",
            "1 MB",
        ),
        (
            "rebalance.max.retries:99999999999",
            "rebalance.max.retries",
            "99999999999",
        ),
    ] {
        let file = properties(&[
            "# mine",
            "zookeeper.connect=127.0.0.1:1",
            "group.id=g",
            "",
            line,
        ]);
        let path = file.path().to_str().unwrap();
        for verb in [&["consume", "--topic", "t"][..], &["describe"]] {
            let output = run(&[verb, &["--config", path]].concat());
            assert_eq!(code(&output), 2, "{}", err(&output));
            for part in [key, value, "line 5"] {
                assert!(err(&output).contains(part), "{part}: {}", err(&output));
            }
            assert_eq!(out(&output), "");
        }
    }
    let output = run(&["consume", "--topic", "t", "--config", "/no/such/file"]);
    assert_eq!(code(&output), 2);
    assert!(err(&output).contains("/no/such/file"), "{}", err(&output));
}

// Manners

#[test]
fn help_teaches_by_examples() {
    for verb in ["demo", "consume", "describe", "id", "plan", "completions"] {
        let output = run(&[verb, "--help"]);
        assert_eq!(code(&output), 0);
        assert!(out(&output).contains("Example"), "{verb}");
        assert!(out(&output).contains(&format!("evenkeel {verb}")), "{verb}");
        assert!(out(&run(&["--help"])).contains(verb));
    }
    assert!(out(&run(&["--help"])).contains("Exit codes"));
}

#[test]
fn the_version_is_the_packages() {
    assert_eq!(
        out(&run(&["--version"])),
        format!("evenkeel {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn completions_know_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert_eq!(code(&output), 0);
        for verb in ["demo", "consume", "describe", "plan"] {
            assert!(out(&output).contains(verb), "{shell} {verb}");
        }
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let id = ["id", "--host", "h", "--group", "g", "--streams", "100000"];
    for arguments in [
        &id[..],
        &["completions", "bash"],
        &["--help"],
        &["id", "--host", "h", "--group", "g", "--json"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = evenkeel(arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(code(&output), 0, "{arguments:?}");
        assert_eq!(err(&output), "", "{arguments:?}");
    }
}
