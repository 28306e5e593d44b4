//! What others put into the tree, in numbers and sizes that nobody expects, costs a member nothing but the reading. A
//! process of its own, since its memory is measured.
#![cfg(feature = "testing")]

#[allow(dead_code)]
#[path = "group/book.rs"]
mod book;
#[allow(dead_code)]
#[path = "group/kit.rs"]
mod kit;

use std::collections::BTreeSet;

use evenkeel::Event;

use kit::{Kit, range_of, until};

const MIB: u64 = 1024 * 1024;

/// What this process holds in memory, in bytes; nothing where the system does not tell.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let number: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(number * 1024)
}

/// Registrations that nobody can read, of 64 KiB each, and one of 1 MiB.
fn junk() -> Vec<(String, String)> {
    let open = r#"{"version":1,"subscription":{"t":1},"pattern":"#;
    let large = (0..200).map(|n| (format!("g_large{n}"), 64 * 1024));
    let largest = [("g_largest".to_owned(), 1024 * 1024 - 64)];
    large
        .chain(largest)
        .map(|(id, size)| (id, open.to_owned() + &"x".repeat(size)))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn thousands_of_registrations_and_large_ones_that_cannot_be_read_do_no_harm() {
    // D1, D4
    let mut kit = Kit::new();
    kit.create("t", 4);
    let junk = junk();
    for (id, text) in &junk {
        kit.registry.put(&Kit::id_path(id), text);
    }
    let elsewhere =
        r#"{"version":1,"subscription":{"u":1},"pattern":"static","timestamp":"1441234567890"}"#;
    for n in 0..4800 {
        let id = format!("g_elsewhere{n}");
        kit.registry.put(&Kit::id_path(&id), elsewhere);
    }
    assert!(kit.members().len() > 5000);
    let before = resident();
    let mut a = kit.join("h1", &[("t", 1)]);
    a.settled().await;
    let b = kit.join("h2", &[("t", 1)]);
    until("they share", || kit.owners("t") == range_of(&[&a, &b], 4)).await;
    kit.send("t", 4);
    kit.drain().await;
    assert_eq!(kit.duplicates(), 0);
    let is_told = |event: Event| match event {
        Event::MemberMalformed { path, reason } => {
            assert!(reason.len() <= 1024, "{} bytes are told", reason.len());
            Some(path)
        }
        _ => None,
    };
    let told: Vec<String> = a.told().into_iter().filter_map(is_told).collect();
    let paths: BTreeSet<String> = junk.iter().map(|(id, _)| Kit::id_path(id)).collect();
    assert_eq!(told.len(), junk.len(), "each once");
    assert_eq!(told.into_iter().collect::<BTreeSet<_>>(), paths);
    assert_eq!(a.connector().health().members, 4802);
    // Two members read 14 MiB each, all of it at once, and keep what it says.
    if let (Some(before), Some(now)) = (before, resident()) {
        let grown = now.saturating_sub(before);
        assert!(grown <= 128 * MIB, "{} MiB", grown / MIB);
        println!("{} MiB more", grown / MIB);
    }
    a.leave().await;
    b.leave().await;
}
