//! How long a group takes when a member's process is killed.

use crate::crew::{Side, Stage};
use crate::table::{Better, Row};
use crate::{Wish, say, wall_ms};

/// Runs the rounds that are asked for; each takes longer than a session lives.
pub fn run(wish: &Wish) -> Vec<Row> {
    let mut stage = Stage::start(wish, 1);
    // From the end of the session, and from the kill.
    let mut figures = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for round in 0..wish.rounds {
        for side in Side::both(round) {
            // The process is a new one each time: warm it.
            stage.come_and_go(side, round);
            stage.join(side, round);
            let killed = wall_ms();
            let passage = stage.kill(side);
            let [from_end, from_kill] = &mut figures[usize::from(side == Side::Jvm)];
            from_end.push(passage.ms());
            from_kill.push((passage.stood_ms - killed) as f64);
        }
        say(&format!("round {} of killing", round + 1));
    }
    let [ours, jvm] = figures;
    let row = |what: &str, ours: &[f64], theirs: &[f64]| Row {
        what: what.to_owned(),
        unit: "ms",
        ours: ours.to_vec(),
        rival: "JVM 1.1.1",
        theirs: theirs.to_vec(),
        better: Better::Less,
        aim: "",
    };
    vec![
        row(
            "a ninth is killed, from its session's end",
            &ours[0],
            &jvm[0],
        ),
        row(
            "a ninth is killed, from the kill (T = 6 s)",
            &ours[1],
            &jvm[1],
        ),
    ]
}
