//! What others write is read by these functions: for any bytes at all each must hold what it says.
//!
//! The corpus in `tests/corpus` is replayed, then changed at random: `EVENKEEL_FUZZ` says how many cases each target gets, `EVENKEEL_SEED`
//! the first seed; one seed is one case. A case that fails is kept in `target/fuzz` and belongs into the corpus once it is mended; should the
//! process itself end, the last case of each target is there as well.
#![cfg(feature = "testing")]
// How long a case takes is for a real clock to say.
#![allow(clippy::disallowed_methods)]

mod decoders;
mod memory;
mod mutate;
mod names;
mod oracle;
mod runs;
mod settings;
mod snapshot;
// The transaction log's entries, which the tests with servers read as well.
#[allow(dead_code)]
#[path = "../support/txn.rs"]
mod txn;
mod wire;

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use memory::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What must hold for any bytes: it panics if that does not.
type Target = fn(&[u8]);

/// So many changed cases each target gets, unless told otherwise.
const CASES: u64 = 400;
/// A case that takes longer never ends, for all that anybody can tell.
const LONGEST: Duration = Duration::from_secs(10);
/// So many cases of the slow target run at a time.
const ABREAST: usize = 8;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number")),
    )
}

/// The first seed and how many.
fn seeds(share: u64) -> std::ops::Range<u64> {
    let first = number("EVENKEEL_SEED").unwrap_or(1);
    let count = number("EVENKEEL_FUZZ").unwrap_or(CASES);
    first..first + count.div_ceil(share)
}

/// The files of a target, by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let folder = folder.join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|_| panic!("{}", folder.display()));
    let mut corpus: Vec<(String, Vec<u8>)> = files
        .map(|file| {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            (name, std::fs::read(file.path()).unwrap())
        })
        .collect();
    corpus.sort();
    assert!(corpus.len() > 2, "{} is nearly empty", folder.display());
    corpus
}

fn kept() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target"));
    target.join("fuzz")
}

/// One case; whether it held.
fn holds(target: Target, bytes: &[u8]) -> bool {
    let start = Instant::now();
    let held = catch_unwind(AssertUnwindSafe(|| target(bytes))).is_ok();
    let took = start.elapsed();
    if took > LONGEST {
        eprintln!("it took {took:?}");
    }
    held && took <= LONGEST
}

/// Keeps what did not hold and says how to see it again.
fn report(name: &str, seed: u64, bytes: &[u8]) -> ! {
    let file = kept().join(format!("{name}-{seed}"));
    let written = std::fs::create_dir_all(kept()).and_then(|()| std::fs::write(&file, bytes));
    let test = std::thread::current();
    panic!(
        "{name} did not hold, SEED {seed}: {} ({written:?}); when it is mended, commit it as tests/corpus/{name}/WHAT-IT-IS. \
         Once more: EVENKEEL_SEED={seed} EVENKEEL_FUZZ=1 cargo test --features testing --test fuzz {}",
        file.display(),
        test.name().unwrap_or_default()
    );
}

fn run(name: &str, target: Target) {
    let corpus = corpus(name);
    for (file, bytes) in &corpus {
        assert!(holds(target, bytes), "tests/corpus/{name}/{file}");
    }
    std::fs::create_dir_all(kept()).unwrap();
    let present = kept().join(format!("{name}-present"));
    for seed in seeds(1) {
        let bytes = mutate::case(seed, &corpus);
        // Nobody could tell what it was that overflowed the stack or the memory, and ended the process.
        std::fs::write(&present, &bytes).unwrap();
        if !holds(target, &bytes) {
            report(name, seed, &bytes);
        }
    }
}

/// For a target that waits most of its time: a fiftieth of the cases, some at a time.
fn run_abreast(name: &str, target: Target) {
    let corpus = corpus(name);
    let all = |cases: &[Vec<u8>]| -> Vec<bool> {
        std::thread::scope(|scope| {
            let started: Vec<_> = cases
                .iter()
                .map(|bytes| scope.spawn(|| holds(target, bytes)))
                .collect();
            started.into_iter().map(|it| it.join().unwrap()).collect()
        })
    };
    for part in corpus.chunks(ABREAST) {
        let cases: Vec<Vec<u8>> = part.iter().map(|(_, bytes)| bytes.clone()).collect();
        for (held, (file, _)) in all(&cases).into_iter().zip(part) {
            assert!(held, "tests/corpus/{name}/{file}");
        }
    }
    let seeds: Vec<u64> = seeds(50).collect();
    for part in seeds.chunks(ABREAST) {
        let case = |seed: &u64| mutate::case(*seed, &corpus);
        let cases: Vec<Vec<u8>> = part.iter().map(case).collect();
        for (at, held) in all(&cases).into_iter().enumerate() {
            if !held {
                report(name, part[at], &cases[at]);
            }
        }
    }
}

#[test]
fn a_registration_of_any_bytes_is_read_within_bounds_or_refused() {
    run("registration", decoders::registration);
}

#[test]
fn an_owner_of_any_bytes_is_matched_whole() {
    run("owner_data", decoders::owner_data);
}

#[test]
fn an_offset_of_any_bytes_is_a_number_or_refused() {
    run("offset_data", decoders::offset_data);
}

#[test]
fn a_topic_node_of_any_bytes_has_each_partition_once_or_is_refused() {
    run("topic_znode", decoders::topic_znode);
}

#[test]
fn a_broker_node_of_any_bytes_has_listeners_to_reach_or_is_refused() {
    run("broker_znode", decoders::broker_znode);
}

#[test]
fn properties_of_any_bytes_show_no_secret() {
    run("properties", settings::properties);
}

#[test]
fn a_filter_of_any_text_means_what_a_plain_matcher_says() {
    run("topic_filter", oracle::topic_filter);
}

#[test]
fn no_name_changes_the_depth_of_a_path() {
    run("znode_name", names::znode_name);
}

#[test]
fn any_group_that_can_be_read_shares_all_partitions() {
    run("snapshot", snapshot::snapshot);
}

#[test]
fn an_event_log_of_any_bytes_is_judged_or_refused() {
    run("event_log", runs::event_log);
}

#[test]
fn a_transaction_log_of_any_bytes_is_judged_or_refused() {
    run("txn_log", runs::txn_log);
}

#[test]
fn any_answers_of_a_server_end_a_call_with_a_word() {
    run_abreast("wire", wire::wire);
}

#[test]
fn every_corpus_has_a_target() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let source = include_str!("main.rs");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(source.contains(&format!("(\"{name}\", ")), "{name}");
    }
}
