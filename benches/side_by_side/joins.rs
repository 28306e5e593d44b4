//! How long a group takes when a member joins or leaves, and what that costs the server.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::crew::{Side, Stage};
use crate::support::Passage;
use crate::support::ZooKeeper;
use crate::table::{Better, Row};
use crate::{Wish, say, wall_ms};

const RIVAL: &str = "JVM 1.1.1";

/// What happened to one side's group, round by round.
#[derive(Default)]
struct Figures {
    quiet: Rounds,
    flowing: Rounds,
    requests: Vec<f64>,
    busiest: Vec<f64>,
}

#[derive(Default)]
struct Rounds {
    joins: Vec<Passage>,
    joins_from_call: Vec<f64>,
    leaves: Vec<Passage>,
}

/// Runs the rounds that are asked for: on a topic at rest, then with messages flowing through every partition.
pub fn run(wish: &Wish) -> Vec<Row> {
    let mut stage = Stage::start(wish, 3);
    let (mut ours, mut jvm) = (Figures::default(), Figures::default());
    let mut each =
        |stage: &mut Stage, rounds, what, deed: fn(&mut Stage, Side, usize, &mut Figures)| {
            for round in 0..rounds {
                for side in Side::both(round) {
                    let figures = match side {
                        Side::Ours => &mut ours,
                        Side::Jvm => &mut jvm,
                    };
                    deed(stage, side, round, figures);
                }
                say(&format!("{what}, round {}", round + 1));
            }
        };
    let joins = if wish.wants("join") { wish.rounds } else { 0 };
    each(
        &mut stage,
        joins,
        "joins and leaves",
        |stage, side, round, figures| {
            come_and_go(stage, side, round, &mut figures.quiet);
        },
    );
    let counted = if wish.wants("requests") {
        wish.rounds
    } else {
        0
    };
    each(&mut stage, counted, "requests", count);
    let flow = (joins > 0).then(|| stage.flow());
    each(
        &mut stage,
        joins,
        "joins and leaves, messages flowing",
        |stage, side, round, figures| {
            come_and_go(stage, side, round, &mut figures.flowing);
        },
    );
    drop(flow);
    rows(wish, &ours, &jvm)
}

fn come_and_go(stage: &mut Stage, side: Side, round: usize, rounds: &mut Rounds) {
    let called = wall_ms();
    let (number, joined) = stage.join(side, round);
    rounds
        .joins_from_call
        .push((joined.stood_ms - called) as f64);
    rounds.joins.push(joined);
    rounds.leaves.push(stage.leave(side, number));
}

/// Requests by session while the ninth joins, less what the same sessions ask in the same time when nothing happens.
fn count(stage: &mut Stage, side: Side, round: usize, figures: &mut Figures) {
    let start = Instant::now();
    let before = received(&stage.zookeeper);
    let (number, _) = stage.join(side, round);
    let after = received(&stage.zookeeper);
    let time = start.elapsed();
    std::thread::sleep(2 * time);
    let later = received(&stage.zookeeper);
    let group = stage.crew(side).group.clone();
    let of =
        |figures: &BTreeMap<i64, u64>, session| figures.get(&session).copied().unwrap_or(0) as f64;
    let net = |session: i64| {
        let idle = (of(&later, session) - of(&after, session)) / 2.0;
        of(&after, session) - of(&before, session) - idle
    };
    let by_member: Vec<f64> = stage
        .history
        .sessions(&group)
        .into_iter()
        .map(net)
        .collect();
    figures.requests.push(by_member.iter().sum());
    figures
        .busiest
        .push(by_member.iter().copied().fold(0.0, f64::max));
    stage.leave(side, number);
}

/// What the server says that it received on each session so far, pings included.
fn received(zookeeper: &ZooKeeper) -> BTreeMap<i64, u64> {
    let text = zookeeper.ask("cons").expect("the server answers");
    let field = |line: &str, name: &str| {
        let (_, rest) = line.split_once(name)?;
        rest.split([',', ')']).next().map(str::to_owned)
    };
    let one = |line: &str| {
        let session = field(line, "sid=0x")?;
        let received = field(line, "recved=")?;
        Some((
            i64::from_str_radix(&session, 16).ok()?,
            received.parse().ok()?,
        ))
    };
    text.lines().filter_map(one).collect()
}

fn rows(wish: &Wish, ours: &Figures, jvm: &Figures) -> Vec<Row> {
    let row = |what: &str, unit, figures: &dyn Fn(&Figures) -> Vec<f64>, aim| Row {
        what: what.to_owned(),
        unit,
        ours: figures(ours),
        rival: RIVAL,
        theirs: figures(jvm),
        better: Better::Less,
        aim,
    };
    let each =
        |passages: &[Passage], figure: fn(&Passage) -> f64| passages.iter().map(figure).collect();
    let mut rows = Vec::new();
    if wish.wants("join") {
        rows.extend([
            row(
                "a ninth joins 240 partitions",
                "ms",
                &|f| each(&f.quiet.joins, Passage::ms),
                ">= 10",
            ),
            row(
                "a ninth leaves",
                "ms",
                &|f| each(&f.quiet.leaves, Passage::ms),
                ">= 10",
            ),
            row(
                "a ninth joins, messages flowing",
                "ms",
                &|f| each(&f.flowing.joins, Passage::ms),
                ">= 10",
            ),
            row(
                "a ninth leaves, messages flowing",
                "ms",
                &|f| each(&f.flowing.leaves, Passage::ms),
                ">= 10",
            ),
            row(
                "a ninth joins, from the call",
                "ms",
                &|f| f.quiet.joins_from_call.clone(),
                "",
            ),
            row(
                "owner nodes made by a join",
                "nodes",
                &|f| each(&f.quiet.joins, |p| p.made as f64),
                "",
            ),
            row(
                "owner nodes deleted by it",
                "nodes",
                &|f| each(&f.quiet.joins, |p| p.deleted as f64),
                "",
            ),
        ]);
    }
    if wish.wants("requests") {
        rows.push(row(
            "requests by a join, all members",
            "requests",
            &|f| f.requests.clone(),
            "",
        ));
        rows.push(row(
            "requests by a join, busiest member",
            "requests",
            &|f| f.busiest.clone(),
            "",
        ));
    }
    rows
}
