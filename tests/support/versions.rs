//! Which releases this run is about, and the account of what passed beside which of them.

use std::io::Write;

const TABLE: &str = include_str!("../versions");

/// Whether every release is wanted (`./run tests --all`) and not only those of every run.
pub fn everything() -> bool {
    std::env::var_os("EVENKEEL_ALL").is_some_and(|value| !value.is_empty())
}

/// ZooKeeper servers, oldest first.
pub fn zookeeper_versions() -> Vec<&'static str> {
    wanted("zookeeper")
}

/// ZooKeeper servers of which three are tested together, oldest first.
pub fn ensemble_versions() -> Vec<&'static str> {
    wanted("ensemble")
}

/// Kafka brokers, oldest first.
pub fn broker_versions() -> Vec<&'static str> {
    wanted("broker")
}

/// Releases of the old consumer, oldest first.
pub fn jvm_versions() -> Vec<&'static str> {
    wanted("member")
}

fn wanted(kind: &str) -> Vec<&'static str> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    words
        .filter(|words| words[0] == kind && (words[2] == "every" || everything()))
        .map(|words| words[1])
        .collect()
}

/// Enters into the matrix that a test of this group passed beside these. `kind` is `zookeeper`, `ensemble`, `broker` or `member`. Does nothing when no
/// matrix is kept.
pub fn passed(group: &str, beside: &[(&str, &str)]) {
    let Some(path) = std::env::var_os("EVENKEEL_MATRIX") else {
        return;
    };
    let text: String = beside
        .iter()
        .map(|(kind, version)| format!("{group} {kind} {version}\n"))
        .collect();
    // One write in append mode: lines of parallel tests do not mix.
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .expect("the matrix can be written");
    file.write_all(text.as_bytes())
        .expect("the matrix can be written");
}
