//! What a member costs that owns nothing and waits.

use std::time::{Duration, Instant};

use crate::crew::{Members, Side, servers};
use crate::support::History;
use crate::table::{Better, Row};
use crate::{Wish, say};

const TOPIC: &str = "one";
const WATCHED: Duration = Duration::from_secs(20);

/// Of one topic with two partitions the first two members get both; all others stand by.
pub fn run(wish: &Wish) -> Vec<Row> {
    let (zookeeper, broker) = servers(wish);
    broker.create_topic(TOPIC, 2);
    let mut history = History::of(&zookeeper);
    let mut rows = Vec::new();
    for standbys in [1, 50] {
        let mut share = |side| -> Vec<f64> {
            say(&format!("{standbys} standing by, {side:?}"));
            let group = format!("{side:?}{standbys}").to_lowercase();
            let mut owners = Members::start(side, &zookeeper, &group, TOPIC);
            let mut standing = Members::start(side, &zookeeper, &group, TOPIC);
            for number in 0..2 {
                owners.join(&format!("a{number}"));
            }
            for number in 0..standbys {
                standing.join(&format!("b{number:02}"));
            }
            history.follow(&group, None, standbys + 2, 2);
            let one = |_| 100.0 * busy(standing.process_id(), WATCHED) / standbys as f64;
            (0..wish.few()).map(one).collect()
        };
        let (ours, theirs) = (share(Side::Ours), share(Side::Jvm));
        rows.push(Row {
            what: format!("a standby's share of a core, {standbys} in a process"),
            unit: "%",
            ours,
            rival: "JVM 1.1.1",
            theirs,
            better: Better::Less,
            aim: "ours < 0.1",
        });
    }
    rows
}

/// Which share of a core a process uses over a while.
fn busy(process: u32, over: Duration) -> f64 {
    // What came before, such as the last look, is not meant.
    std::thread::sleep(Duration::from_secs(2));
    let (start, before) = (Instant::now(), used(process));
    std::thread::sleep(over);
    let used = used(process).saturating_sub(before);
    used.as_secs_f64() / start.elapsed().as_secs_f64()
}

/// The processor time of all threads that live.
fn used(process: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let one = |thread: std::io::Result<std::fs::DirEntry>| {
        let file = thread.ok()?.path().join("schedstat");
        let text = std::fs::read_to_string(file).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(threads.filter_map(one).sum())
}
