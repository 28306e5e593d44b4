//! Our member and the JVM's on the same servers, in turn, and how they compare.
//!
//! `./run bench --help` says how it is called. Times are read from the server's transaction log, requests from the server's own figures,
//! processor time from the kernel's.
// Waiting for other processes needs real clocks.
#![allow(clippy::disallowed_methods)]

mod crew;
mod idle;
mod joins;
mod kills;
mod ours;
mod reads;
#[path = "../../tests/support/mod.rs"]
mod support;
mod table;

use std::process::ExitCode;

use table::Row;

const PARTS: [&str; 5] = ["join", "kill", "throughput", "requests", "idle"];

const HELP: &str = "\
Compares our member with a JVM member on the same servers.

  --rounds N         rounds of each side, 20 unless given (all parts: about an hour); idle cost is measured once in four
  --only PART[,..]   some of: join, kill, throughput, requests, idle
  --json             one JSON object instead of the table
  --zookeeper V      the server's release, 3.9.5 unless given
  --format V         the broker's message format, 1.1 unless given; up to 0.10.2 the JVM member needs no conversion
  --messages PERCENT how much of the 5,000,000 x 100 B and 1,000,000 x 1 KiB to read, 100 unless given
";

/// What the command line asked for.
pub struct Wish {
    rounds: usize,
    parts: Vec<String>,
    is_json: bool,
    zookeeper: String,
    format: String,
    percent: u32,
}

impl Wish {
    fn read(args: &[String]) -> Result<Self, String> {
        let mut wish = Self {
            rounds: 20,
            parts: PARTS.map(str::to_owned).to_vec(),
            is_json: false,
            zookeeper: "3.9.5".into(),
            format: "1.1".into(),
            percent: 100,
        };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{flag} wants a value"));
            match flag.as_str() {
                "--rounds" => wish.rounds = number(value()?)?.max(1) as usize,
                "--only" => wish.parts = parts(value()?)?,
                "--json" => wish.is_json = true,
                "--zookeeper" => wish.zookeeper.clone_from(value()?),
                "--format" => wish.format.clone_from(value()?),
                "--messages" => wish.percent = number(value()?)?.clamp(1, 100),
                // Cargo says so to every bench.
                "--bench" => {}
                other => return Err(format!("not understood: {other}")),
            }
        }
        Ok(wish)
    }

    /// Rounds of what is the same again and again.
    fn few(&self) -> usize {
        self.rounds.div_ceil(4)
    }

    fn wants(&self, part: &str) -> bool {
        self.parts.iter().any(|wanted| wanted == part)
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("no number: {text}"))
}

fn parts(text: &str) -> Result<Vec<String>, String> {
    let parts: Vec<String> = text.split(',').map(str::to_owned).collect();
    match parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
        None => Ok(parts),
        Some(strange) => Err(format!("{strange} is none of {}", PARTS.join(", "))),
    }
}

fn run(wish: &Wish) -> Vec<Row> {
    let mut rows = Vec::new();
    if wish.wants("join") || wish.wants("requests") {
        rows.extend(joins::run(wish));
    }
    if wish.wants("kill") {
        rows.extend(kills::run(wish));
    }
    if wish.wants("throughput") {
        rows.extend(reads::run(wish));
    }
    if wish.wants("idle") {
        rows.extend(idle::run(wish));
    }
    rows
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|word| word == ours::MEMBER) {
        ours::serve(&args[1..]);
        return ExitCode::SUCCESS;
    }
    if args.first().is_some_and(|word| word == reads::READER) {
        reads::serve(&args[1..]);
        return ExitCode::SUCCESS;
    }
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match Wish::read(&args) {
        Ok(wish) => {
            let rows = run(&wish);
            if wish.is_json {
                println!("{}", table::json(&rows));
            } else {
                table::print(&rows);
            }
            ExitCode::SUCCESS
        }
        Err(complaint) => {
            eprintln!("{complaint}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

/// A word on standard error about what is going on: all of it takes minutes.
pub fn say(what: &str) {
    eprintln!("bench: {what}");
}

/// Milliseconds since the epoch, as the server on this host counts them too.
pub fn wall_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since = since.expect("the epoch lies in the past");
    i64::try_from(since.as_millis()).expect("a time of this age")
}
