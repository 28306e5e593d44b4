//! `evenkeel demo`: groups on pretended hosts that join, leave and die while messages flow, and the balance at the end.

mod balance;
mod books;
mod fleet;
mod member;
mod producer;
mod script;
mod show;
mod stage;

use std::collections::BTreeMap;

use clap::Args;

use crate::output::{Failure, Outcome};

use self::balance::{longest_pause, repeats};
use self::member::Habit;
use self::script::Act;
use self::show::bar;
use self::stage::Stage;

/// Watch groups at work: hosts join, leave and die, and nothing is lost
///
/// Needs no server: the coordination service and the brokers run inside the program. The members are real ones, each with a
/// session of 2 s. Eight groups run on five pretended hosts and read topics of two partitions each; then a member joins, one
/// leaves, one dies, and the same happens to whole hosts, while messages flow. It ends by itself within a minute.
///
/// The last line is the balance. What was sent is what the brokers acknowledged; what was delivered is what the applications
/// worked through, written down apart. A member that dies has messages in its hands, so some are delivered again. If any is
/// lost, the exit code is 1.
#[derive(Args)]
#[command(after_help = "Examples:
  evenkeel demo
  evenkeel demo --seed 7
      The same script and the same names every time; how many messages flow depends on the machine.
  evenkeel demo | tail -1")]
pub struct Demo {
    /// What the script and the names follow from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl Demo {
    pub async fn run(&self) -> Outcome {
        let mut stage = Stage::open(self.seed, Habit::Careful).await?;
        let mut acts = Vec::new();
        acts.push(stage.nothing_happens().await?);
        let spread = (stage.spread(), stage.fleet.old_spread()?);
        acts.push(stage.a_member_joins().await?);
        acts.push(stage.a_member_leaves().await?);
        acts.push(stage.a_member_dies().await?);
        acts.push(stage.a_host_joins().await?);
        acts.push(stage.a_host_leaves().await?);
        acts.push(stage.a_host_dies().await?);
        stage.drain().await?;
        self.settle(&mut stage, &acts, &spread)
    }

    fn settle(&self, stage: &mut Stage, acts: &[Act], spread: &Spread) -> Outcome {
        stage.show.say("")?;
        for line in pauses(stage, acts).into_iter().chain(spread_lines(spread)) {
            stage.show.say(&line)?;
        }
        let balance = stage.world.books.balance();
        stage.show.say(&balance.to_string())?;
        match balance.lost {
            0 => Ok(()),
            lost => Err(Failure::Failed(format!("{lost} messages were lost"))),
        }
    }
}

/// Partitions by host: as it was, and as it would have been under the old ids.
type Spread = (BTreeMap<String, usize>, BTreeMap<String, usize>);

fn pauses(stage: &Stage, acts: &[Act]) -> Vec<String> {
    let (handed, dead) = stage.world.books.handed();
    let again = repeats(&handed, &dead);
    let mut lines = vec![format!(
        "{:<18} {:>13} {:>26} {:>16}",
        "change", "settled after", "longest pause (partition)", "delivered again"
    )];
    for (number, act) in acts.iter().enumerate() {
        let until = acts
            .get(number + 1)
            .map_or(stage.world.books.now(), |next| next.from);
        let pause = longest_pause(&handed, act.from, act.to);
        let count = again
            .iter()
            .filter(|(at, _)| (act.from..until).contains(at))
            .count();
        let settled = match act.settled {
            Some(time) => format!("{} ms", time.as_millis()),
            None => "not yet".to_owned(),
        };
        lines.push(format!(
            "{:<18} {settled:>13} {:>23} ms {count:>16}",
            act.name,
            pause.as_millis()
        ));
    }
    lines.push(String::new());
    lines
}

fn spread_lines((ours, old): &Spread) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<6} {:<28} {}",
        "host", "partitions (all groups)", "with the old ids"
    )];
    for (host, count) in ours {
        let old = old.get(host).copied().unwrap_or(0);
        let (ours, theirs) = (
            format!("{} {count}", bar(*count)),
            format!("{} {old}", bar(old)),
        );
        lines.push(format!("{host:<6} {:<28} {}", ours.trim(), theirs.trim()));
    }
    lines.push(String::new());
    lines
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use super::*;
    use crate::output::exit_code;

    #[tokio::test]
    async fn what_is_lost_by_acknowledging_too_early_is_told_and_exits_1() {
        let demo = Demo { seed: 1 };
        let mut stage = Stage::open(demo.seed, Habit::Hasty).await.unwrap();
        let acts = [stage.a_member_dies().await.unwrap()];
        stage.drain().await.unwrap();
        let lost = stage.world.books.balance().lost;
        assert!(lost > 0);
        let outcome = demo.settle(&mut stage, &acts, &Spread::default());
        let Err(Failure::Failed(why)) = &outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(*why, format!("{lost} messages were lost"));
        let code = exit_code(outcome);
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(1)));
    }

    #[test]
    fn the_spread_stands_beside_that_of_the_old_ids() {
        let ours = BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)]);
        let old = BTreeMap::from([("a".to_owned(), 3), ("b".to_owned(), 0)]);
        let lines = spread_lines(&(ours, old));
        assert_eq!(lines[1], "a      ██ 2                         ███ 3");
        assert_eq!(lines[2], "b      █ 1                          0");
    }
}
