//! The house keeps its shape: imports point down, each outside thing has one door, and the map of hazards names tests
//! that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms from the ground up, each floor from left to right. A room may use those below it and those to its left.
const FLOORS: [&[&str]; 6] = [
    &["error", "group", "event"],
    &[
        "config",
        "id",
        "wire",
        "filter",
        "assign",
        "rebalance",
        "lease",
        "ack",
        "check",
    ],
    &["clock", "registry", "stream", "listener"],
    &["zk", "kafka", "memory"],
    &["session", "coordinator", "observer"],
    &["connector", "lib"],
];

/// On this floor nobody knows a neighbour.
const STRANGERS: usize = 3;

/// What stands on top of the house and may use all of it.
const ON_TOP: [&str; 4] = ["main", "bin", "cli", "demo"];

/// Outside things, by how they are written, and the rooms that have the door to them.
const DOORS: [(&str, &[&str]); 9] = [
    ("zookeeper_client::", &["zk"]),
    ("rdkafka::", &["kafka", "bin", "cli", "demo", "main"]),
    ("hostname::", &["id"]),
    ("rand::", &["id"]),
    ("sha2::", &["id"]),
    // The observer undoes the escapes of names.
    ("hex::", &["id", "observer", "bin", "cli", "demo", "main"]),
    (
        "tokio::spawn",
        &["connector", "memory", "bin", "cli", "demo", "main"],
    ),
    (
        "select!",
        &["coordinator", "memory", "bin", "cli", "demo", "main"],
    ),
    (
        "SystemTime::now",
        &["clock", "id", "bin", "cli", "demo", "main"],
    ),
];

fn floor(room: &str) -> Option<(usize, usize)> {
    FLOORS.iter().enumerate().find_map(|(floor, rooms)| {
        let place = rooms.iter().position(|other| *other == room)?;
        Some((floor, place))
    })
}

fn may_use(room: &str, used: &str) -> Result<(), String> {
    if ON_TOP.contains(&room) || room == used {
        return Ok(());
    }
    let (Some(ours), Some(theirs)) = (floor(room), floor(used)) else {
        return Err(format!(
            "{room} or {used} has no floor yet: give it one in tests/floors.rs"
        ));
    };
    let is_below = theirs.0 < ours.0;
    let is_left = theirs.0 == ours.0 && theirs.1 < ours.1 && ours.0 != STRANGERS;
    if is_below || is_left {
        Ok(())
    } else {
        Err(format!(
            "{room} (floor {}) uses {used} (floor {})",
            ours.0, theirs.0
        ))
    }
}

/// The code of a file without its tests, comments and texts, as far as lines tell.
fn product(text: &str) -> Vec<(usize, &str)> {
    let mut lines = Vec::new();
    let mut is_test_next = false;
    for (number, line) in text.lines().enumerate() {
        let bare = line.trim();
        if is_test_next && bare.starts_with("mod ") && bare.ends_with('{') {
            break;
        }
        is_test_next = bare == "#[cfg(test)]";
        if !bare.starts_with("//") {
            let code = line.split(" // ").next().unwrap_or(line);
            lines.push((number + 1, code));
        }
    }
    lines
}

/// What is wrong with one file of a room.
fn faults(room: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in product(text) {
        let mut rest = line;
        while let Some(at) = rest.find("crate::") {
            rest = &rest[at + "crate::".len()..];
            let used: String = rest
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            let is_module = used.starts_with(|c: char| c.is_lowercase());
            if !is_module && room != "lib" {
                found.push(format!(
                    "line {number}: crate::{used} is no module: name the module itself"
                ));
            } else if is_module && let Err(why) = may_use(room, &used) {
                found.push(format!("line {number}: {why}"));
            }
        }
        if line.trim_start().starts_with("use super::*") {
            found.push(format!("line {number}: use super::* belongs to tests"));
        }
        for (thing, rooms) in DOORS {
            if line.contains(thing) && !is_part_of_a_word(line, thing) && !rooms.contains(&room) {
                found.push(format!(
                    "line {number}: {thing} has its door in {}",
                    rooms[0]
                ));
            }
        }
    }
    found
}

/// `index::` is not `hex::`.
fn is_part_of_a_word(line: &str, thing: &str) -> bool {
    let at = line.find(thing).unwrap_or(0);
    line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let entries = fs::read_dir(dir).unwrap();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn imports_point_down_and_each_outside_thing_has_one_door() {
    let src = root().join("src");
    let mut wrong = Vec::new();
    for file in sources(&src) {
        let below = file.strip_prefix(&src).unwrap();
        let first = below
            .components()
            .next()
            .unwrap()
            .as_os_str()
            .to_str()
            .unwrap();
        let room = first.trim_end_matches(".rs");
        if file.ends_with("tests.rs") || room == "lib" {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        wrong.extend(
            faults(room, &text)
                .into_iter()
                .map(|fault| format!("{}: {fault}", below.display())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_room_says_in_one_sentence_what_it_is_for() {
    for file in sources(&root().join("src")) {
        let text = fs::read_to_string(&file).unwrap();
        let first = text.lines().next().unwrap_or("");
        let is_tests = file.ends_with("tests.rs");
        assert!(
            is_tests || first.starts_with("//! "),
            "{}: {first}",
            file.display()
        );
    }
}

#[test]
fn an_import_that_points_up_is_found() {
    let planted = "//! A room.\n\nuse crate::connector::Builder;\n";
    assert_eq!(
        faults("wire", planted),
        ["line 3: wire (floor 1) uses connector (floor 5)"]
    );
    assert_eq!(
        faults("session", "let x = crate::coordinator::run();").len(),
        1
    );
    assert_eq!(
        faults("zk", "use crate::kafka::Service;").len(),
        1,
        "neighbours of floor 3"
    );
    assert_eq!(
        faults("config", "use crate::filter::expand;").len(),
        1,
        "to the right"
    );
    assert_eq!(
        faults("wire", "use crate::attic::Box;").len(),
        1,
        "a room without a floor"
    );
    assert_eq!(
        faults("wire", "use crate::Topic;").len(),
        1,
        "from the root"
    );
    assert_eq!(faults("wire", "    use super::*;").len(), 1);
    for (thing, line) in [
        ("zk", "use rdkafka::ClientConfig;"),
        ("session", "    tokio::spawn(async {});"),
        ("stream", "tokio::select! {"),
        ("wire", "let id = rand::random::<u64>();"),
        ("kafka", "use zookeeper_client::Client;"),
    ] {
        assert_eq!(faults(thing, line).len(), 1, "{line}");
    }
}

#[test]
fn what_is_allowed_is_not_found() {
    for (room, text) in [
        ("wire", "use crate::group::Topic;\nuse crate::wire::paths;"),
        ("event", "use crate::group::Topic;"),
        ("filter", "use crate::config::InternalTopics;"),
        (
            "coordinator",
            "let x = crate::session::open(); tokio::select! {",
        ),
        (
            "wire",
            "// use crate::connector::Builder;\n/// [`x`](crate::connector)",
        ),
        (
            "wire",
            "#[cfg(test)]\nmod tests {\n    use super::*;\n    use crate::connector::Builder;\n}",
        ),
        ("demo", "use crate::connector::Builder;"),
        ("kafka", "use rdkafka::ClientConfig;"),
        ("wire", "index::of(operand::x)"),
    ] {
        assert_eq!(faults(room, text), Vec::<String>::new(), "{room}: {text}");
    }
}

// ---- the map of hazards ----

/// What is known of a hazard or scenario: the tests that prove what is right, and why something is not proved.
#[derive(Default)]
struct Cover {
    tests: Vec<String>,
    accepted: Option<String>,
}

/// `id = ["test", ...]` or `id = { tests = ["test", ...], accepted = "reason" }` with one of the two left out, on one line or over
/// several.
fn hazards(text: &str) -> BTreeMap<String, Cover> {
    let mut map: BTreeMap<String, Cover> = BTreeMap::new();
    let mut id = String::new();
    let lines = text.lines().map(str::trim);
    for line in lines.filter(|line| !line.starts_with('#')) {
        let mut values = line;
        if let Some((key, rest)) = line.split_once(" = ").filter(|(key, _)| is_id(key)) {
            key.clone_into(&mut id);
            assert!(!map.contains_key(&id), "{id} is there twice");
            map.insert(id.clone(), Cover::default());
            values = rest;
        }
        let Some(cover) = map.get_mut(&id) else {
            continue;
        };
        if let Some((before, reason)) = values.split_once("accepted = \"") {
            cover.accepted = reason.split('"').next().map(str::to_owned);
            values = before;
        }
        let names = values.split('"').skip(1).step_by(2).map(str::to_owned);
        cover.tests.extend(names);
    }
    map
}

/// The hazards and invariants that `docs/hazards.md` numbers.
fn numbered(text: &str) -> Vec<String> {
    let id = |line: &str| {
        let row = line.strip_prefix("| ")?.split(' ').next()?;
        is_id(row).then(|| row.to_owned())
    };
    let invariant = |line: &str| {
        let name = line.strip_prefix("- **")?.split(' ').next()?;
        is_id(name).then(|| name.to_owned())
    };
    text.lines()
        .filter_map(|line| id(line).or_else(|| invariant(line)))
        .collect()
}

#[test]
fn every_numbered_hazard_is_in_the_map() {
    let numbered = numbered(&fs::read_to_string(root().join("docs/hazards.md")).unwrap());
    let map = hazards(&fs::read_to_string(root().join("tests/hazards.toml")).unwrap());
    for family in ["S", "W", "A", "O", "T", "D", "R", "K", "N", "X", "J", "I"] {
        assert!(numbered.contains(&format!("{family}1")), "{family}");
    }
    assert!(numbered.len() > 130, "{}", numbered.len());
    let missing: Vec<&String> = numbered
        .iter()
        .filter(|id| !map.contains_key(*id))
        .collect();
    assert!(missing.is_empty(), "not in the map: {missing:?}");
    let is_scenario = |id: &&String| id.starts_with('r');
    let unknown = map
        .keys()
        .filter(|id| !is_scenario(id) && !numbered.contains(id));
    assert_eq!(unknown.collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn there_are_no_unbounded_channels() {
    // R12
    for file in sources(&root().join("src")) {
        let text = fs::read_to_string(&file).unwrap();
        let code = product(&text);
        let endless = [
            "unbounded_channel",
            "unbounded(",
            "mpsc::channel()",
            " channel()",
            " channel::<",
        ];
        let found = code
            .iter()
            .find(|(_, line)| endless.iter().any(|word| line.contains(word)));
        assert_eq!(found, None, "{}", file.display());
    }
}

/// The names of all test functions, of `src` and `tests`.
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for dir in ["src", "tests"] {
        for file in sources(&root().join(dir)) {
            let text = fs::read_to_string(&file).unwrap();
            let functions = text.split("fn ").skip(1);
            names.extend(functions.map(|rest| {
                rest.split(['(', '<'])
                    .next()
                    .unwrap_or("")
                    .trim()
                    .to_owned()
            }));
        }
    }
    names
}

#[test]
fn every_test_that_the_map_of_hazards_names_exists() {
    let map = hazards(&fs::read_to_string(root().join("tests/hazards.toml")).unwrap());
    assert!(map.len() > 100, "{}", map.len());
    let tests = tests();
    for (id, cover) in map {
        let is_reason = |reason: &String| reason.contains(' ');
        assert!(
            !cover.tests.is_empty() || cover.accepted.as_ref().is_some_and(is_reason),
            "{id} names no test and no reason"
        );
        for name in cover.tests {
            assert!(
                tests.contains(&name),
                "{id} names {name}, which is not there"
            );
        }
    }
}

#[test]
fn every_promise_has_its_bound_and_names_tests_that_exist() {
    let text = fs::read_to_string(root().join("docs/promises.md")).unwrap();
    let tests = tests();
    let sections: Vec<&str> = text
        .split("\n## ")
        .filter(|part| part[1..].starts_with(". "))
        .collect();
    assert_eq!(sections.len(), 8);
    for section in sections {
        let title = section.lines().next().unwrap();
        for part in [
            "*Promise.*",
            "*Bound.*",
            "*Rests on.*",
            "*What breaks it.*",
            "*Tested.*",
        ] {
            assert!(
                section.contains(&format!("\n{part}")),
                "{title} has no {part}"
            );
        }
        let (_, tested) = section.split_once("\n*Tested.*").unwrap();
        // A test's name is a sentence; a path or a setting is none.
        let names = tested.split('`').skip(1).step_by(2);
        let is_name = |name: &&str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let names: Vec<&str> = names.filter(is_name).collect();
        assert!(names.len() >= 3, "{title}: {names:?}");
        for name in names {
            assert!(
                tests.contains(name),
                "{title} names {name}, which is not there"
            );
        }
    }
}

#[test]
fn every_hazard_that_a_test_of_groups_names_is_in_the_map() {
    let map = hazards(&fs::read_to_string(root().join("tests/hazards.toml")).unwrap());
    for (id, test) in named_in_groups() {
        assert!(
            map.get(&id)
                .is_some_and(|cover| cover.tests.contains(&test)),
            "{id} should name {test}"
        );
    }
}

#[test]
fn every_test_that_is_named_after_a_hazard_is_in_the_map() {
    let map = hazards(&fs::read_to_string(root().join("tests/hazards.toml")).unwrap());
    let tests = tests();
    let named: Vec<&String> = tests
        .iter()
        .filter(|test| test.starts_with("haz_"))
        .collect();
    assert!(named.len() > 24, "{named:?}");
    for test in named {
        let id = test.split('_').nth(1).unwrap_or_default().to_uppercase();
        assert!(
            map.get(&id).is_some_and(|cover| cover.tests.contains(test)),
            "{id} should name {test}"
        );
    }
}

#[test]
fn every_test_that_a_sabotage_names_exists() {
    let tests = tests();
    let mut count = 0;
    for file in fs::read_dir(root().join("tests/sabotage")).unwrap() {
        let file = file.unwrap().path();
        if file.extension().is_none_or(|ending| ending != "patch") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let head = text.split("\ndiff ").next().unwrap();
        let reds = head.lines().filter_map(|line| line.strip_prefix("red: "));
        let names = reds.map(|red| red.rsplit([' ', ':']).next().unwrap());
        let names: Vec<&str> = names.collect();
        assert!(
            head.contains("breaks: ") && !names.is_empty(),
            "{}",
            file.display()
        );
        for name in names {
            assert!(
                tests.contains(name),
                "{} names {name}, which is not there",
                file.display()
            );
        }
        count += 1;
    }
    assert!(count > 20, "{count}");
}

/// The ids in the first comment line of each test below `tests/group`.
fn named_in_groups() -> Vec<(String, String)> {
    let mut named = Vec::new();
    for file in sources(&root().join("tests/group")) {
        let text = fs::read_to_string(&file).unwrap();
        let mut test = None;
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("async fn ").or(line.strip_prefix("fn ")) {
                test = rest.split('(').next().map(str::to_owned);
            } else if let (Some(comment), Some(name)) = (line.trim().strip_prefix("// "), &test) {
                let ids = comment.split(", ").filter(|id| is_id(id));
                named.extend(ids.map(|id| (id.to_owned(), name.clone())));
                test = None;
            } else if !line.trim().is_empty() {
                test = None;
            }
        }
    }
    named
}

fn is_id(text: &str) -> bool {
    let digits = text.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    digits.len() < text.len() && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}
