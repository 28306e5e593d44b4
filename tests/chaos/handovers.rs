//! How long a partition stands still when it changes hands, and that nothing is repeated when that goes in order.

use std::fmt::Write as _;

use evenkeel::testing::check::Counts;

use crate::crew::Slot;
use crate::figures::End;
use crate::figures::Figures;
use crate::nemesis::Nemesis;
use crate::report::Spread;
use crate::report::machine;
use crate::report::publish;
use crate::stage::GROUP;
use crate::stage::Stage;
use crate::support::Beginning;
use crate::support::History;
use crate::support::Journal;
use crate::support::Passage;
use crate::wish;

/// How many members there are, and what happens to them.
struct Size {
    members: usize,
    partitions: i32,
    /// Orderly joins and leaves.
    changes: usize,
    deaths: usize,
    pause_ms: u64,
    /// Whether times are held against the aims: only where the processors do nothing else.
    is_timed: bool,
}

impl Size {
    /// So many partitions at least go from one member to another when one comes or goes.
    fn share(&self) -> usize {
        usize::try_from(self.partitions).expect("a count") / self.members
    }

    /// So many of these must have been measured if that happened so often: half of the shares, since a partition may go twice before its first
    /// message comes.
    fn fewest(&self, times: usize) -> usize {
        times * self.share() / 2
    }
}

const TIMEOUT_MS: u64 = 2000;
const COMMIT_MS: u64 = 5000;
/// From the last message that the old owner finished to the first that the new one is given, p99.
const GAP_MS: f64 = 500.0;
/// From the end of the dead member's session until a partition of it has an owner again, p99.
const TAKE_OVER_MS: f64 = 100.0;
/// From so many on the aims are proved.
const PROOF: (usize, usize) = (200, 100);

fn size() -> Size {
    let many = |name, other| {
        let number = wish::number(name).unwrap_or(other);
        usize::try_from(number).expect("a count")
    };
    let is_timed = wish::number("EVENKEEL_CHANGES").is_some();
    let (members, partitions) = if is_timed { (8, 240) } else { (3, 12) };
    let partitions = many("EVENKEEL_PARTITIONS", partitions);
    Size {
        members: many("EVENKEEL_MEMBERS", members).max(2),
        partitions: i32::try_from(partitions).expect("a few partitions"),
        changes: many("EVENKEEL_CHANGES", 6),
        deaths: many("EVENKEEL_DEATHS", 3),
        pause_ms: 100,
        is_timed,
    }
}

/// One member leaves, dies or joins at a time, and the group settles before the next.
struct Dance {
    size: Size,
    stage: Stage,
    history: History,
    nemesis: Nemesis,
    slots: Vec<Slot>,
    /// Joins and leaves in order.
    changes: usize,
    /// When all of them shared for the first time, by the servers' clock.
    began_ms: i64,
}

impl Dance {
    fn begin(size: Size) -> Self {
        let slack_ms = if size.is_timed { 0 } else { TIMEOUT_MS / 2 };
        let stage = Stage::set(TIMEOUT_MS, size.partitions, size.pause_ms, None, slack_ms);
        let server = stage.zookeeper.lock().unwrap().connect_string();
        let slots = (0..size.members).map(|n| stage.slot(n, COMMIT_MS, 5).straight(&server));
        let mut slots: Vec<Slot> = slots.collect();
        let nemesis = Nemesis::new(Journal::create(&stage.folder, "nemesis", 1));
        for slot in &mut slots {
            nemesis.start(slot, false);
        }
        let history = History::of(&stage.zookeeper.lock().unwrap());
        let mut dance = Self {
            size,
            stage,
            history,
            nemesis,
            slots,
            changes: 0,
            began_ms: 0,
        };
        dance.began_ms = dance.follow(None, 0).stood_ms;
        dance
    }

    /// Until all members but so many share.
    fn follow(&mut self, beginning: Option<Beginning>, absent: usize) -> Passage {
        let present = self.size.members - absent;
        let partitions = self.size.partitions;
        self.history.follow(GROUP, beginning, present, partitions)
    }

    fn join(&mut self, number: usize) {
        self.nemesis.start(&mut self.slots[number], false);
        self.follow(Some(Beginning::Join), 0);
        self.changes += 1;
    }

    fn leave(&mut self, number: usize) {
        self.slots[number].leave();
        self.follow(Some(Beginning::Leave), 1);
        self.changes += 1;
    }

    fn die(&mut self, number: usize) {
        self.nemesis.kill(&mut self.slots[number]);
        self.follow(Some(Beginning::Death), 1);
    }

    /// All that was asked for. A new member takes the place of each that went.
    fn whole(&mut self) {
        let mut deaths = 0;
        for round in 0.. {
            let number = round % self.size.members;
            let is_death = deaths < self.size.deaths
                && (round % 2 == 1 || self.changes + 2 > self.size.changes);
            if is_death {
                self.die(number);
                deaths += 1;
            } else if self.changes < self.size.changes {
                self.leave(number);
            } else {
                return;
            }
            self.join(number);
            if self.size.is_timed {
                println!("{} joins and leaves, {deaths} deaths", self.changes);
            }
        }
    }
}

/// I6, I7, I16. Who gives partitions up in order leaves nothing to be read twice.
#[test]
fn hand_overs_repeat_nothing_and_lose_nothing() {
    let _alone = wish::alone();
    println!("before: {}", machine());
    let mut dance = Dance::begin(size());
    dance.whole();
    let Dance {
        size,
        stage,
        nemesis,
        mut slots,
        changes,
        began_ms,
        ..
    } = dance;
    stage.settle(&nemesis.journal);
    slots.iter_mut().for_each(Slot::leave);
    let verdict = stage.judge();
    let mut figures = Figures::of(&stage.folder).expect("what was judged can be read");
    figures.since_ms = began_ms + 1;
    let mut missed = Vec::new();
    let text = table(&size, &figures, changes, &mut missed);
    publish("handovers.txt", &format!("{text}\nverdict: {verdict}"));
    let floors = Counts {
        deaths: size.deaths as u64,
        clean: size.fewest(size.changes) as u64,
        releases: size.fewest(size.changes) as u64,
        lingered: size.fewest(size.deaths) as u64,
        settled: 1,
        ..Counts::default()
    };
    let evidence = || stage.keep("handovers");
    if let Err(what) = verdict.require(&floors) {
        panic!("{what}\nthe evidence: {}", evidence());
    }
    assert!(changes >= size.changes, "only {changes} joins and leaves");
    assert!(missed.is_empty(), "missed: {missed:?}; {}", evidence());
}

/// The figures, and which aims they miss.
fn table(size: &Size, figures: &Figures, changes: usize, missed: &mut Vec<String>) -> String {
    let gaps = figures.gaps();
    let mut text = format!(
        "{} members, {} partitions, a message for each every {} ms, session timeout {TIMEOUT_MS} ms\n{}\n\
         {changes} joins and leaves, {} deaths, {} clean hand-overs of a partition\n",
        size.members,
        size.partitions,
        size.pause_ms,
        machine(),
        size.deaths,
        gaps.len()
    );
    let (clean, dead) = (size.fewest(size.changes), size.fewest(size.deaths));
    let rows = [
        (
            "a clean hand-over, last done to first delivered",
            Spread::of(gaps),
            Some(GAP_MS),
            clean,
        ),
        (
            "of it: while a message lay there",
            Spread::of(figures.waits()),
            None,
            clean,
        ),
        (
            "of it: last done to release",
            Spread::of(figures.endings()),
            None,
            clean,
        ),
        (
            "of it: without an owner",
            Spread::of(figures.take_overs(End::Released)),
            None,
            clean,
        ),
        (
            "of it: claim to first delivered",
            Spread::of(figures.beginnings()),
            None,
            clean,
        ),
        (
            "without an owner after a death",
            Spread::of(figures.take_overs(End::Session)),
            Some(TAKE_OVER_MS),
            dead,
        ),
        (
            "the same, last partition of each dead",
            Spread::of(figures.last_take_overs()),
            None,
            size.deaths,
        ),
    ];
    let _ = writeln!(
        text,
        "{:<48} {:>7} {:>8} {:>8} {:>8}  aim (p99)",
        "ms", "count", "p50", "p99", "most"
    );
    for (what, spread, aim, fewest) in rows {
        let (p50, p99, most) = (spread.at(50.0), spread.at(99.0), spread.at(100.0));
        let said = aim.map_or_else(String::new, |aim| format!("{aim:.0}"));
        let count = spread.count();
        let _ = writeln!(
            text,
            "{what:<48} {count:>7} {p50:>8.0} {p99:>8.0} {most:>8.0}  {said}"
        );
        if let Some(aim) = aim.filter(|aim| size.is_timed && p99 > *aim) {
            missed.push(format!("{what}: {p99:.0} ms instead of {aim:.0} ms"));
        }
        if count < fewest {
            missed.push(format!(
                "{what}: only {count} were measured, at least {fewest} are asked for"
            ));
        }
    }
    if size.is_timed && (size.changes < PROOF.0 || size.deaths < PROOF.1) {
        let (changes, deaths) = PROOF;
        let _ = writeln!(
            text,
            "fewer than {changes} joins and leaves and {deaths} deaths prove nothing"
        );
    }
    let repeated = figures.duplicates().get(&End::Released).copied();
    let repeated = repeated.unwrap_or_default();
    let _ = writeln!(
        text,
        "delivered again after a clean hand-over: {repeated} (aim: 0)"
    );
    if repeated > 0 {
        missed.push(format!("{repeated} messages were delivered again"));
    }
    let forced = figures
        .boundaries()
        .filter(|(before, _)| before.end == End::Forced);
    let forced = forced.count();
    if forced > 0 {
        missed.push(format!("{forced} hand-overs were forced"));
    }
    text
}
