//! Jars and compiled classes, by way of `run`, which alone knows where they come from.

use std::path::PathBuf;
use std::process::Command;
use std::process::Output;
use std::process::Stdio;

/// What the Java flags of every short-lived or small JVM have in common: start fast, stay small.
const LEAN: [&str; 4] = [
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
];

/// A class path.
#[derive(Clone, Debug)]
pub struct Jars(String);

impl Jars {
    /// The jars of a ZooKeeper release.
    pub fn zookeeper(version: &str) -> Self {
        Self(format!("{}/*", run(&["fetch", "zookeeper", version])))
    }

    /// The jars of a Kafka release.
    pub fn kafka(version: &str) -> Self {
        Self(format!("{}/*", run(&["fetch", "kafka", version])))
    }

    /// The jars of a Kafka release and before them the project's own Java program.
    pub fn member(version: &str) -> Self {
        Self(run(&["classpath", version]))
    }

    /// As `java -cp` wants it.
    pub fn class_path(&self) -> &str {
        &self.0
    }

    /// `java` with these jars, lean flags and then `flags`; the main class and its arguments are for the caller to add.
    pub fn java(&self, flags: &[String]) -> Command {
        let mut command = Command::new("java");
        command
            .args(LEAN)
            .args(flags)
            .args(["-cp", &self.0])
            .stdin(Stdio::null());
        command
    }
}

/// Runs a class of the old tools to its end.
pub fn run_class(jars: &Jars, class: &str, args: &[&str]) -> Output {
    let flags = [
        "-Xmx128m".to_string(),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn".to_string(),
    ];
    jars.java(&flags)
        .arg(class)
        .args(args)
        .output()
        .expect("java can be started")
}

fn run(args: &[&str]) -> String {
    let door = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/run"));
    let output = Command::new(&door).args(args).stdin(Stdio::null()).output();
    let output =
        output.unwrap_or_else(|error| panic!("{} cannot be started: {error}", door.display()));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "run {args:?} failed:\n{complaint}");
    String::from_utf8(output.stdout)
        .expect("a path in UTF-8")
        .trim()
        .to_string()
}
