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
mod run;
mod tally;
mod trace;

use std::io::Write;
use std::path::PathBuf;
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

/// Writes the plan down, and says how it is repeated.
fn report(plan: &Plan, failure: &str) -> String {
    let file = plans().join(format!("sim-{}.json", plan.seed));
    let text = serde_json::to_string_pretty(plan).expect("a plan is JSON");
    let kept = std::fs::create_dir_all(plans()).and_then(|()| std::fs::write(&file, text));
    let kept = match kept {
        Ok(()) => file.display().to_string(),
        Err(error) => format!("{}: {error}", file.display()),
    };
    format!(
        "seed {}: ./run replay sim {}\nits plan, made smaller: {kept}\n{failure}",
        plan.seed, plan.seed
    )
}

/// Runs these seeds on all cores; the sum of what was seen, and the report of those that failed, the first of them made smaller.
fn run_all(seeds: &[u64]) -> (Tally, Option<String>) {
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
    let mut failed = failed.into_iter();
    let report = failed.next().map(|(plan, first)| {
        let (plan, words) = shrink(plan, first);
        let mut report = report(&plan, &words);
        for (plan, also) in failed {
            let line = also.words.lines().nth(1).unwrap_or(&also.words);
            let line: String = line.chars().take(200).collect();
            report.push_str(&format!("\nalso seed {}: {line}", plan.seed));
        }
        report
    });
    (tally, report)
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
        let text = std::fs::read_to_string(&file).expect("a file with a plan");
        let plan: Plan = serde_json::from_str(&text).expect("a plan");
        if let Err(failed) = attempt(&plan) {
            panic!("{}", failed.words);
        }
        return;
    }
    let first = number("EVENKEEL_SEED").unwrap_or(0);
    let count = number("EVENKEEL_SEEDS").unwrap_or(30);
    let fixed = number("EVENKEEL_FIXED").unwrap_or(0);
    println!("SEED={first} SEEDS={count} FIXED={fixed} TIER=sim");
    let seeds: Vec<u64> = (0..fixed).chain(first..first + count).collect();
    let (tally, failed) = run_all(&seeds);
    println!("{tally}");
    keep_results(first, count, &tally, failed.is_some());
    if let Some(report) = failed {
        panic!("{report}");
    }
    tally.require_floors();
}

#[test]
fn what_once_failed_does_not_fail_again() {
    hush();
    for line in include_str!("../seeds.txt").lines() {
        let Some(seed) = line.strip_prefix("sim ") else {
            continue;
        };
        let seed = seed.split_whitespace().next().expect("a seed");
        let plan = Plan::of(seed.parse().expect("a number"));
        if let Err(failed) = attempt(&plan) {
            panic!("{}", report(&plan, &failed.words));
        }
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    // I13
    hush();
    let first = number("EVENKEEL_SEED").unwrap_or(0);
    let hashes: Vec<u64> = (first..first + 20)
        .map(|seed| run(&Plan::of(seed)).hash)
        .collect();
    for (seed, hash) in (first..).zip(&hashes) {
        assert_eq!(run(&Plan::of(seed)).hash, *hash, "seed {seed}");
    }
    assert_ne!(hashes[0], hashes[1]);
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
        assert!(text.contains(&format!("HASH={:016x}", hashes[0])), "{text}");
    }
}

#[test]
fn the_hash_for_another_process() {
    hush();
    if let Some(seed) = number("EVENKEEL_HASH_OF") {
        println!("HASH={:016x}", run(&Plan::of(seed)).hash);
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
