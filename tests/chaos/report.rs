//! Figures for people.

use std::fmt::Write as _;

use evenkeel::testing::check::Verdict;

use crate::figures::End;
use crate::figures::Figures;
use crate::nemesis::Tally;
use crate::plan::Plan;
use crate::stage::results;

/// A partition pauses when it gives nothing for as long as two of its messages take to come, and at least for so long.
const PAUSE_MS: u64 = 250;

/// Many measured times in milliseconds.
pub struct Spread(Vec<f64>);

impl Spread {
    /// Of these.
    pub fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        Self(all)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The smallest that is not below so many hundredths of them; 0 of none.
    pub fn at(&self, percent: f64) -> f64 {
        let place = (self.0.len() as f64 * percent / 100.0).ceil() as usize;
        let place = place.saturating_sub(1).min(self.0.len().saturating_sub(1));
        self.0.get(place).copied().unwrap_or_default()
    }

    /// A line of figures, and a histogram below it.
    pub fn tell(&self, what: &str) -> String {
        let mut text = format!(
            "{what}: {} of them, p50 {:.0} ms, p90 {:.0} ms, p99 {:.0} ms, most {:.0} ms\n",
            self.count(),
            self.at(50.0),
            self.at(90.0),
            self.at(99.0),
            self.at(100.0)
        );
        let mut least = 0.0;
        let mut most = 10.0;
        while least <= self.at(100.0) && self.count() > 0 {
            let within = self.0.iter().filter(|ms| (least..most).contains(*ms));
            let within = within.count();
            let bar = "#".repeat((within * 50).div_ceil(self.count()));
            if within > 0 {
                let _ = writeln!(text, "  {least:>6.0} to {most:>6.0} ms {within:>7} {bar}");
            }
            (least, most) = (most, most * 2.0);
        }
        text
    }
}

/// What the run had to share, and with how much else.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let memory = read("/proc/meminfo");
    let memory = memory
        .split_whitespace()
        .nth(1)
        .and_then(|text| text.parse::<u64>().ok());
    let load = read("/proc/loadavg");
    let mut loads = load.split_whitespace();
    let minute = loads.next().unwrap_or("unknown");
    let quarter = loads.nth(1).unwrap_or("unknown");
    let gib = memory.unwrap_or_default() >> 20;
    format!(
        "{cores} processors, {gib} GiB, a load of {minute} over the last minute and {quarter} over the last quarter of an hour"
    )
}

/// The whole of a run under faults.
pub fn tell(
    plan: &Plan,
    verdict: &Verdict,
    tally: &Tally,
    figures: &Figures,
    others: &[String],
) -> String {
    let size = &plan.size;
    let mut text = format!(
        "seed {}, {} members, {} partitions, {} s of faults, session timeout {} ms\n{}\n",
        plan.seed,
        size.members,
        size.partitions,
        size.seconds,
        size.timeout_ms,
        machine()
    );
    let _ = writeln!(text, "verdict: {verdict}\n");
    let _ = writeln!(text, "done to it:");
    for (what, count) in tally {
        let _ = writeln!(text, "  {what:<18} {count:>6}");
    }
    for line in others {
        let _ = writeln!(text, "{line}");
    }
    let _ = writeln!(
        text,
        "membership changes: {}, sessions of members that ended: {}\n",
        figures.changes, figures.lost_sessions
    );
    let least = PAUSE_MS.max(size.pause_ms * 2);
    let spreads = [
        (
            "without an owner after a clean release".to_owned(),
            figures.take_overs(End::Released),
        ),
        (
            "without an owner after the end of a session".to_owned(),
            figures.take_overs(End::Session),
        ),
        (
            format!("pauses of a partition of more than {least} ms between two deliveries"),
            figures.pauses(least as f64),
        ),
    ];
    for (what, all) in spreads {
        let _ = writeln!(text, "{}", Spread::of(all).tell(&what));
    }
    let duplicates = figures.duplicates();
    let count = |end| duplicates.get(&end).copied().unwrap_or_default();
    let _ = writeln!(
        text,
        "delivered again: {} after a clean release, {} after a forced one, {} after another's hand, {} after the end of a session",
        count(End::Released),
        count(End::Forced),
        count(End::Taken),
        count(End::Session)
    );
    text
}

/// Prints it and writes it to a file.
pub fn publish(name: &str, text: &str) {
    let place = results().join(name);
    let written = std::fs::create_dir_all(results()).and_then(|()| std::fs::write(&place, text));
    match written {
        Ok(()) => println!("{text}\nthis report: {}", place.display()),
        Err(error) => println!("{text}\n{} cannot be written: {error}", place.display()),
    }
}
