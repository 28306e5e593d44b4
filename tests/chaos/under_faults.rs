//! A group under every fault.

use std::collections::BTreeSet;

use evenkeel::testing::check::Counts;

use crate::crew::Slot;
use crate::faults::Blow;
use crate::figures::Figures;
use crate::nemesis::Nemesis;
use crate::plan::Manner;
use crate::plan::Plan;
use crate::plan::Size;
use crate::report;
use crate::stage::CONVERGENCE;
use crate::stage::Stage;
use crate::support::Journal;
use crate::wish;

/// The short form's.
fn short() -> Size {
    Size {
        members: 5,
        partitions: 12,
        seconds: 60,
        timeout_ms: 1200,
        pause_ms: 50,
        gap_ms: 4500,
        blow_ms: 20_000,
        manner: Manner::Rough,
    }
}

/// The size that is asked for.
fn size() -> Size {
    let Some(minutes) = wish::number("EVENKEEL_MINUTES") else {
        return short();
    };
    let members = wish::number("EVENKEEL_MEMBERS").unwrap_or(12);
    let partitions = wish::number("EVENKEEL_PARTITIONS").unwrap_or(64);
    let timeout_ms = wish::number("EVENKEEL_TIMEOUT").unwrap_or(2000);
    Size {
        members: usize::try_from(members).expect("a few members"),
        partitions: i32::try_from(partitions).expect("a few partitions"),
        seconds: minutes * 60,
        timeout_ms,
        pause_ms: 250,
        gap_ms: 4 * timeout_ms,
        blow_ms: 30 * timeout_ms,
        manner: Manner::Rough,
    }
}

/// How the plan is carried out once more.
fn again(plan: &Plan) -> String {
    let Plan { seed, size, .. } = plan;
    let mut command = format!("./run replay chaos {seed}");
    if wish::number("EVENKEEL_MINUTES").is_some() {
        let (minutes, members) = (size.seconds / 60, size.members);
        command += &format!(
            " --minutes {minutes} --members {members} --partitions {} --timeout {}",
            size.partitions, size.timeout_ms
        );
    }
    command
}

/// What must have been there to be judged: it grows with the members and the time, and what concerns partitions with everybody's share. A run
/// that was not disturbed has three to ten times as much of each.
fn floors(size: &Size) -> (Counts, usize) {
    let turns = size.members as u64 * size.seconds * 1000 / size.gap_ms;
    let shares = turns * size.partitions.unsigned_abs() as u64 / size.members as u64;
    let counts = Counts {
        deaths: turns / 20,
        stops: turns / 20,
        cuts: turns / 8,
        expiries: shares / 16,
        releases: shares / 5,
        clean: shares / 5,
        redeliveries: shares / 10,
        commits: shares,
        calls: turns,
        lingered: shares / 50,
        settled: 2,
        ..Counts::default()
    };
    (counts, usize::try_from(turns / 20).expect("a count"))
}

/// How far from its time a dead member's nodes may go. The short run has the machine with others, and a member may have had no word to say for
/// a while before it was killed; in the long one that is left to those who take all processors.
fn slack_ms(size: &Size) -> u64 {
    match wish::number("EVENKEEL_MINUTES") {
        Some(_) => size.timeout_ms / 8,
        None => size.timeout_ms / 2,
    }
}

/// The kinds of faults that every run must have had.
const KINDS: [&str; 14] = [
    "kill",
    "leave",
    "stop",
    "break",
    "silence",
    "refuse",
    "slow",
    "lost request",
    "lost answer",
    "rob",
    "listener panics",
    "listener blocks",
    "hog",
    "wall clock set",
];

/// What follows from no plan alone.
const MET: [&str; 4] = [
    "lost and met",
    "server restarted",
    "partitions added",
    "wall clock seen",
];

#[test]
fn every_plan_has_every_kind_of_fault_and_follows_from_its_seed() {
    for seed in 0..1000 {
        let plan = Plan::draw(seed, short());
        let names: BTreeSet<&str> = plan.steps.iter().map(|step| step.fault.name()).collect();
        assert!(
            KINDS.iter().all(|kind| names.contains(kind)),
            "{seed}: {names:?}"
        );
        let is_restarted = |(_, blow): &(u64, Blow)| matches!(blow, Blow::Restart { .. });
        assert!(
            plan.blows.iter().any(is_restarted),
            "{seed}: {:?}",
            plan.blows
        );
        assert_eq!(plan.growth.len(), 2, "{seed}");
        assert_eq!(plan, Plan::draw(seed, short()));
    }
}

/// S12; I1 to I11, I14 and I16, all at once.
#[test]
fn members_that_everything_befalls_keep_every_rule() {
    let _alone = wish::alone();
    let seed = wish::seed();
    let plan = Plan::draw(seed, size());
    let again = again(&plan);
    println!("SEED={seed}: {again}");
    let json = serde_json::to_string_pretty(&plan).expect("a plan is JSON");
    let stage = Stage::set(
        plan.size.timeout_ms,
        Plan::first(&plan.size),
        plan.size.pause_ms,
        Some(CONVERGENCE),
        slack_ms(&plan.size),
    );
    std::fs::write(stage.folder.join("plan.json"), json).expect("a folder of our own");
    let mut slots: Vec<Slot> = (0..plan.size.members)
        .map(|number| stage.slot(number, plan.commits_ms[number], plan.holds_ms[number]))
        .collect();
    let nemesis = Nemesis::new(Journal::create(&stage.folder, "nemesis", 1));
    for slot in &mut slots {
        nemesis.start(slot, false);
    }
    slots.iter_mut().for_each(Slot::await_joined);
    nemesis.carry_out(&plan, &stage, &mut slots);
    slots.iter_mut().for_each(Slot::await_joined);
    let drained = stage.settle(&nemesis.journal);
    let panicked: usize = slots.iter().map(|slot| slot.heard().panicked).sum();
    let blocked: usize = slots.iter().map(|slot| slot.heard().blocked).sum();
    slots.iter_mut().for_each(Slot::leave);
    let verdict = stage.judge();
    let tally = nemesis.tally();
    let figures = Figures::of(&stage.folder).expect("what was judged can be read");
    let others = [
        format!("calls of listeners that panicked: {panicked}, that blocked: {blocked}"),
        format!("leases that lapsed: {}", figures.lapses),
        format!(
            "all was committed {} ms after the last fault",
            drained.as_millis()
        ),
    ];
    let text = report::tell(&plan, &verdict, &tally, &figures, &others);
    report::publish(&format!("report-{seed}.txt"), &text);
    let lacking: Vec<&str> = KINDS
        .into_iter()
        .chain(MET)
        .filter(|kind| !tally.contains_key(kind))
        .collect();
    let (floors, lapses) = floors(&plan.size);
    let is_good = verdict.require(&floors);
    if is_good.is_err() || !lacking.is_empty() || figures.lapses < lapses {
        let evidence = stage.keep(&format!("seed-{seed}"));
        let what = is_good.err().unwrap_or_default();
        panic!(
            "SEED={seed}: {again}\n{what}\nnever happened: {lacking:?}; leases that lapsed: {}, at least {lapses} are asked for\nthe evidence: {evidence} cargo test --features testing --test verify -- --nocapture a_folder",
            figures.lapses
        );
    }
}
