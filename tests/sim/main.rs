//! Whole groups under every fault at once, with paused time: each seed is a plan, each plan is always the same run, and a judge who knows
//! the registry's whole history says whether anything was against the rules.
//!
//! `EVENKEEL_SEEDS` says how many seeds, `EVENKEEL_SEED` with which they begin, `EVENKEEL_FIXED` how many from 0 on are run before them, `EVENKEEL_PLAN` names a file with one plan instead. A seed
//! that fails leaves its plan, made as small as it still fails, in `target/plans`.
#![cfg(feature = "testing")]

#[allow(dead_code)]
#[path = "../group/book.rs"]
mod book;
mod every;
mod facts;
#[allow(dead_code)]
#[path = "../group/kit.rs"]
mod kit;
mod legacy;
mod plan;
mod process;
mod reading;
mod run;
mod sometimes;
mod tally;
mod trace;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once};

use sha2::{Digest, Sha256};

use plan::{Mishap, Plan};
use run::{Outcome, run};
use tally::Tally;

/// So many failing seeds end it.
const ENOUGH: usize = 12;

/// So many runs at most are spent on making a failing plan smaller.
const SHRINKING: usize = 120;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
    )
}

/// Listeners panic on purpose, and say so once too often.
fn hush() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let words = info.payload().downcast_ref::<&str>();
            if words != Some(&process::PANIC) {
                before(info);
            }
        }));
    });
}

/// What is wrong with a run, also a panic, and the faults that its requests met.
struct Failed {
    words: String,
    met: Vec<(u64, Mishap)>,
}

fn attempt(plan: &Plan) -> Result<Outcome, Failed> {
    let ran = std::panic::catch_unwind(|| run(plan));
    let outcome = ran.map_err(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Failed {
            words: format!("a panic: {}", words.unwrap_or_default()),
            met: Vec::new(),
        }
    })?;
    match outcome.failure() {
        Some(words) => Err(Failed {
            words,
            met: outcome.met,
        }),
        None => Ok(outcome),
    }
}

/// The smallest plan found that still fails, and how it does.
fn shrink(mut plan: Plan, mut failed: Failed) -> (Plan, String) {
    let mut left = SHRINKING;
    'smaller: loop {
        for candidate in plan.smaller(&failed.met) {
            if left == 0 {
                return (plan, failed.words);
            }
            left -= 1;
            if let Err(again) = attempt(&candidate) {
                (plan, failed) = (candidate, again);
                continue 'smaller;
            }
        }
        return (plan, failed.words);
    }
}

fn plans() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target"));
    target.join("plans")
}

/// Writes the plan down, in a file that is named by its content, and says how it is repeated.
fn report(plan: &Plan, failure: &str) -> String {
    let text = serde_json::to_string_pretty(plan).expect("a plan is JSON");
    let name = hex::encode(&Sha256::digest(&text)[..6]);
    let file = plans().join(format!("sim-{name}.json"));
    let kept = std::fs::create_dir_all(plans()).and_then(|()| std::fs::write(&file, text));
    let file = file.display();
    match kept {
        Ok(()) => format!("./run replay sim {file}\n{failure}"),
        Err(error) => format!("its plan could not be kept: {file}: {error}\n{failure}"),
    }
}

/// Runs these seeds on all cores; how many were run, the sum of what was seen, and the report of those that failed, the first of
/// them made smaller.
fn run_all(seeds: &[u64]) -> (u64, Tally, Option<String>) {
    let next = AtomicUsize::new(0);
    let total = Mutex::new((Tally::default(), Vec::<(Plan, Failed)>::new()));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(seed) = seeds.get(at) else {
                return;
            };
            if total.lock().expect("no panic").1.len() >= ENOUGH {
                return;
            }
            let plan = Plan::of(*seed);
            let attempted = attempt(&plan);
            let mut total = total.lock().expect("no panic");
            match attempted {
                Ok(outcome) => total.0.add(&outcome),
                Err(failed) => total.1.push((plan, failed)),
            }
        }
    };
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let (tally, failed) = total.into_inner().expect("no panic");
    let count = tally.runs() + failed.len() as u64;
    let mut failed = failed.into_iter();
    let report = failed.next().map(|(plan, first)| {
        let (plan, words) = shrink(plan, first);
        let seed = plan.seed;
        let report = report(&plan, &words);
        let mut report = format!("seed {seed}, its plan made smaller: {report}");
        for (plan, also) in failed {
            let line = also.words.lines().nth(1).unwrap_or(&also.words);
            let line: String = line.chars().take(200).collect();
            report.push_str(&format!("\nalso seed {}: {line}", plan.seed));
        }
        report
    });
    (count, tally, report)
}

/// One line of JSON more in the file that `EVENKEEL_RESULTS` names: which build ran which seeds, and what was seen.
fn keep_results(first: u64, count: u64, tally: &Tally, is_red: bool) {
    let Some(file) = std::env::var_os("EVENKEEL_RESULTS") else {
        return;
    };
    let program = std::env::current_exe().and_then(std::fs::read);
    let build = Sha256::digest(program.expect("this program can be read"));
    let line = serde_json::json!({
        "tier": "sim",
        "commit": std::env::var("EVENKEEL_COMMIT").unwrap_or_default(),
        "build": hex::encode(&build[..8]),
        "first": first,
        "count": count,
        "red": is_red,
        "seen": tally.to_json(),
    });
    let opened = std::fs::File::options()
        .append(true)
        .create(true)
        .open(file);
    writeln!(opened.expect("the file of results"), "{line}").expect("a line of results");
}

#[test]
fn no_seed_breaks_a_rule() {
    // I1, I2, I3, I4, I5, I6, I7, I8, I10, I11, I14, I16, A7, W6
    hush();
    if let Some(file) = std::env::var_os("EVENKEEL_PLAN") {
        if let Err(failed) = attempt(&read(Path::new(&file))) {
            panic!("{}", failed.words);
        }
        return;
    }
    let first = number("EVENKEEL_SEED").unwrap_or(0);
    let count = number("EVENKEEL_SEEDS").unwrap_or(30);
    let fixed = number("EVENKEEL_FIXED").unwrap_or(0);
    println!("SEED={first} SEEDS={count} FIXED={fixed} TIER=sim");
    let seeds: Vec<u64> = (0..fixed).chain(first..first + count).collect();
    let (count, tally, failed) = run_all(&seeds);
    println!("{tally}");
    let red = failed.or_else(|| tally.lacks());
    keep_results(first, count, &tally, red.is_some());
    if let Some(report) = red {
        panic!("{report}");
    }
}

#[test]
fn what_once_failed_does_not_fail_again() {
    hush();
    for line in include_str!("../seeds.txt").lines() {
        let Some(file) = line.strip_prefix("sim ") else {
            continue;
        };
        let file = file.split_whitespace().next().expect("a file");
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/plans")
            .join(file);
        if let Err(failed) = attempt(&read(&file)) {
            panic!(
                "./run replay sim {}\n{line}\n{}",
                file.display(),
                failed.words
            );
        }
    }
}

fn read(file: &Path) -> Plan {
    let text = std::fs::read_to_string(file);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

#[test]
fn the_same_seed_is_the_same_run() {
    // I13
    hush();
    let first = number("EVENKEEL_SEED").unwrap_or(0);
    let lines = hashes(first);
    for (one, other) in lines.iter().zip(&hashes(first)) {
        assert_eq!(one, other);
    }
    // And another seed is another run.
    let hash = |line: &String| line.rsplit('=').next().map(str::to_owned);
    let distinct: BTreeSet<Option<String>> = lines.iter().map(hash).collect();
    assert_eq!(distinct.len(), lines.len(), "{lines:?}");
    // Another process has its memory elsewhere, and its hash maps in another order.
    if std::env::var_os("EVENKEEL_HASH_OF").is_none() {
        let program = std::env::current_exe().expect("this program");
        let output = std::process::Command::new(program)
            .args(["--exact", "the_hash_for_another_process", "--nocapture"])
            .env("EVENKEEL_HASH_OF", first.to_string())
            .env("RUST_LOG", "trace")
            .output()
            .expect("this program once more");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for line in lines {
            assert!(text.contains(&line), "{line} is not in {text}");
        }
    }
}

/// Of twenty runs, by their seeds.
fn hashes(first: u64) -> Vec<String> {
    let hash = |seed| format!("HASH {seed}={:016x}", run(&Plan::of(seed)).hash);
    (first..first + 20).map(hash).collect()
}

#[test]
fn the_hash_for_another_process() {
    hush();
    if let Some(first) = number("EVENKEEL_HASH_OF") {
        hashes(first).iter().for_each(|line| println!("{line}"));
    }
}

#[test]
fn a_plan_survives_being_written_down() {
    for seed in 0..50 {
        let plan = Plan::of(seed);
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }
}
