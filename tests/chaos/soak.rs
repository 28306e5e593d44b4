//! Whether members that last take more and more of anything while the group is never at rest (I18).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use evenkeel::testing::check::Counts;

use crate::crew::Heard;
use crate::crew::Slot;
use crate::faults::millis;
use crate::figures::Figures;
use crate::nemesis::Nemesis;
use crate::plan::Manner;
use crate::plan::Plan;
use crate::plan::Size;
use crate::report;
use crate::series::Series;
use crate::stage::CONVERGENCE;
use crate::stage::Stage;
use crate::stage::results;
use crate::support::Journal;
use crate::support::LONG;
use crate::support::until;
use crate::wish;

/// So often everything is looked at.
const INTERVAL: Duration = Duration::from_secs(5);

/// What is looked at, and which growth is none: the kernel and the allocator have their moods, and members come and go.
const KINDS: [(&str, f64); 6] = [
    ("memory KiB", 1024.0),
    ("descriptors", 4.0),
    ("threads", 3.0),
    ("tasks", 3.0),
    ("watches", 20.0),
    ("znodes", 20.0),
];

fn size() -> (Size, bool) {
    let size = |seconds, gap_ms, blow_ms| Size {
        members: 5,
        partitions: 12,
        seconds,
        timeout_ms: 2000,
        pause_ms: 200,
        gap_ms,
        blow_ms,
        manner: Manner::Lasting,
    };
    match wish::number("EVENKEEL_MINUTES") {
        Some(minutes) => (size(minutes * 60, 25_000, 300_000), true),
        None => (size(20, 3000, 60_000), false),
    }
}

/// A process that lasts.
struct Lasting {
    name: String,
    process: u32,
    heard: Arc<Mutex<Heard>>,
}

/// All series by their names.
type Samples = BTreeMap<String, Series>;

/// Looks at everything again and again until it is told that it is over.
fn watch(stage: &Stage, members: &[Lasting], pause: Duration, is_over: &AtomicBool) -> Samples {
    let (start, mut samples) = (Instant::now(), Samples::new());
    while !is_over.load(Ordering::SeqCst) {
        let at = start.elapsed().as_secs_f64();
        let mut add = |name: String, kind: usize, value: Option<f64>| {
            let (what, floor) = KINDS[kind];
            let series = samples
                .entry(format!("{name} {what}"))
                .or_insert_with(|| Series::new(floor));
            value.into_iter().for_each(|value| series.add(at, value));
        };
        for member in members {
            let folder = format!("/proc/{}", member.process);
            add(member.name.clone(), 0, resident(&folder));
            add(member.name.clone(), 1, entries(&format!("{folder}/fd")));
            add(member.name.clone(), 2, entries(&format!("{folder}/task")));
            let tasks = member.heard.lock().unwrap().tasks;
            add(member.name.clone(), 3, tasks.map(|tasks| tasks as f64));
        }
        let zookeeper = stage.zookeeper.lock().unwrap();
        let watches = zookeeper
            .ask("wchs")
            .and_then(|text| word(&text, "Total watches:"));
        let znodes = zookeeper
            .ask("mntr")
            .and_then(|text| word(&text, "zk_znode_count"));
        drop(zookeeper);
        add("server".into(), 4, watches);
        add("server".into(), 5, znodes);
        std::thread::sleep(pause);
    }
    samples
}

fn resident(folder: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("{folder}/status")).ok()?;
    word(&status, "VmRSS:")
}

fn entries(folder: &str) -> Option<f64> {
    Some(std::fs::read_dir(folder).ok()?.count() as f64)
}

/// The number behind this.
fn word(text: &str, before: &str) -> Option<f64> {
    let (_, rest) = text.split_once(before)?;
    rest.split_whitespace().next()?.parse().ok()
}

#[test]
fn members_that_last_take_no_more_and_more_of_anything() {
    let _alone = wish::alone();
    let seed = wish::seed();
    let (size, is_long) = size();
    println!("SEED={seed}: ./run soak --minutes N --seed {seed}");
    let plan = Plan::draw(seed, size);
    let size = &plan.size;
    let stage = Stage::set(
        size.timeout_ms,
        size.partitions,
        size.pause_ms,
        is_long.then_some(CONVERGENCE),
        size.timeout_ms / if is_long { 8 } else { 2 },
    );
    let mut slots: Vec<Slot> = (0..size.members)
        .map(|number| stage.slot(number, plan.commits_ms[number], plan.holds_ms[number]))
        .collect();
    let nemesis = Nemesis::new(Journal::create(&stage.folder, "nemesis", 1));
    for slot in &mut slots {
        nemesis.start(slot, false);
    }
    slots.iter_mut().for_each(Slot::await_joined);
    // The last one's process does not last.
    let (_, staying) = slots.split_last_mut().expect("a few members");
    let members: Vec<Lasting> = staying
        .iter_mut()
        .map(|slot| Lasting {
            name: slot.name(),
            process: slot.process().id(),
            heard: slot.hearing(),
        })
        .collect();
    until("they tell of their tasks", LONG, || {
        members
            .iter()
            .all(|member| member.heard.lock().unwrap().tasks.is_some())
    });
    let is_over = AtomicBool::new(false);
    let pause = if is_long { INTERVAL } else { millis(500) };
    let samples = std::thread::scope(|scope| {
        let watching = scope.spawn(|| watch(&stage, &members, pause, &is_over));
        let over = Over(&is_over);
        nemesis.carry_out(&plan, &stage, &mut slots);
        drop(over);
        watching.join().expect("who watches does not panic")
    });
    slots.iter_mut().for_each(Slot::await_joined);
    let drained = stage.settle(&nemesis.journal);
    slots.iter_mut().for_each(Slot::leave);

    let verdict = stage.judge();
    let figures = Figures::of(&stage.folder).expect("what was judged can be read");
    let (table, growing) = table(&samples);
    let others = [
        format!(
            "all was committed {} ms after the last fault",
            drained.as_millis()
        ),
        table,
    ];
    let text = report::tell(&plan, &verdict, &nemesis.tally(), &figures, &others);
    report::publish(&format!("soak-{seed}.txt"), &text);
    write(&format!("soak-{seed}.csv"), &samples);
    let floors = Counts {
        expiries: 1,
        settled: 1,
        ..Counts::default()
    };
    if let Err(what) = verdict.require(&floors) {
        panic!(
            "SEED={seed}\n{what}\nthe evidence: {}",
            stage.keep(&format!("soak-{seed}"))
        );
    }
    let hours = size.seconds as f64 / 3600.0;
    let (changes, lost) = (figures.changes as f64, figures.lost_sessions as f64);
    assert!(
        changes >= 500.0 * hours,
        "only {changes} changes of membership"
    );
    assert!(lost >= 100.0 * hours, "only {lost} sessions were lost");
    let fewest = samples.values().map(Series::len).min().unwrap_or_default();
    let wanted = (size.seconds as f64 / pause.as_secs_f64() / 2.0) as usize;
    assert!(fewest >= wanted, "a series has only {fewest} samples");
    assert!(!is_long || growing.is_empty(), "growing: {growing:#?}");
}

/// Ends the watching also if something goes wrong.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn table(samples: &Samples) -> (String, Vec<String>) {
    let mut growing = Vec::new();
    let mut text = format!(
        "{:<28} {:>8} {:>10} {:>10} {:>12} {:>10}\n",
        "the last two thirds", "samples", "mean", "most", "growth/h", "%/h"
    );
    for (name, series) in samples {
        let trend = series.trend();
        let _ = writeln!(
            text,
            "{name:<28} {:>8} {:>10.1} {:>10.1} {:>12.2} {:>10.2}",
            series.len(),
            trend.mean,
            trend.most,
            trend.per_hour,
            trend.per_hour * 100.0 / trend.mean.max(1.0)
        );
        if let Some(why) = series.grows() {
            growing.push(format!("{name}: {why}"));
        }
    }
    (text, growing)
}

fn write(name: &str, samples: &Samples) {
    let mut text = String::from("seconds,series,value\n");
    for (name, series) in samples {
        for (at, value) in series.points() {
            let _ = writeln!(text, "{at:.1},{name},{value}");
        }
    }
    let place = results().join(name);
    std::fs::write(&place, text).expect("the report lies there too");
    println!("the samples: {}", place.display());
}
