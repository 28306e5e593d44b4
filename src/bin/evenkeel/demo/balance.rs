//! The balance: what was lost, what came twice and why, and how long a partition paused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// A partition of the demo, counted over all groups.
pub type Place = usize;
/// A member of the demo, counted in the order in which they joined.
pub type Who = usize;

/// One message in one member's hands, `at` since the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandOut {
    pub place: Place,
    pub offset: i64,
    pub who: Who,
    pub at: Duration,
}

/// Why a message was handed out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The member that had it before died.
    Death,
    /// The member that had it before left, or gave the partition up.
    HandOver,
    /// The same member claimed the partition anew, after its session or its lease was lost.
    Anew,
}

/// What was sent, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balance {
    pub sent: usize,
    pub delivered: usize,
    pub lost: usize,
    pub again: BTreeMap<Cause, usize>,
}

impl Balance {
    /// `sent` and `finished` are kept by different hands: the producer's acknowledgements, the applications' work.
    pub fn of(
        sent: &BTreeSet<u64>,
        finished: &BTreeSet<u64>,
        handed: &[HandOut],
        dead: &BTreeSet<Who>,
    ) -> Self {
        let mut again = BTreeMap::new();
        for (_, cause) in repeats(handed, dead) {
            *again.entry(cause).or_default() += 1;
        }
        Self {
            sent: sent.len(),
            delivered: sent.intersection(finished).count(),
            lost: sent.difference(finished).count(),
            again,
        }
    }

    fn count(&self, cause: Cause) -> usize {
        self.again.get(&cause).copied().unwrap_or(0)
    }

    pub fn redelivered(&self) -> usize {
        self.again.values().sum()
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} sent, {} delivered, {} lost, {} redelivered ({} after a death, {} after a clean hand-over",
            self.sent,
            self.delivered,
            self.lost,
            self.redelivered(),
            self.count(Cause::Death),
            self.count(Cause::HandOver),
        )?;
        match self.count(Cause::Anew) {
            0 => f.write_str(")"),
            anew => write!(f, ", {anew} after a lost session)"),
        }
    }
}

/// Every hand-out of a message that had been handed out before: when, and why.
pub fn repeats(handed: &[HandOut], dead: &BTreeSet<Who>) -> Vec<(Duration, Cause)> {
    let mut before: BTreeMap<(Place, i64), Who> = BTreeMap::new();
    let mut repeats = Vec::new();
    for out in handed {
        let Some(earlier) = before.insert((out.place, out.offset), out.who) else {
            continue;
        };
        let cause = match earlier {
            same if same == out.who => Cause::Anew,
            other if dead.contains(&other) => Cause::Death,
            _ => Cause::HandOver,
        };
        repeats.push((out.at, cause));
    }
    repeats
}

/// The longest time within `from..to` in which a partition was given to nobody.
pub fn longest_pause(handed: &[HandOut], from: Duration, to: Duration) -> Duration {
    let within = |at: Duration| at.clamp(from, to);
    let mut last: BTreeMap<Place, Duration> = BTreeMap::new();
    let mut longest = Duration::ZERO;
    for out in handed {
        if let Some(before) = last.insert(out.place, out.at) {
            longest = longest.max(within(out.at).saturating_sub(within(before)));
        }
    }
    // Those that were silent until the end.
    let silent = last.values().map(|at| to - within(*at)).max();
    longest.max(silent.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(place: Place, offset: i64, who: Who, at: u64) -> HandOut {
        let at = Duration::from_millis(at);
        HandOut {
            place,
            offset,
            who,
            at,
        }
    }

    fn balance(sent: &[u64], finished: &[u64], handed: &[HandOut], dead: &[Who]) -> Balance {
        let set = |values: &[u64]| values.iter().copied().collect();
        let dead = dead.iter().copied().collect();
        Balance::of(&set(sent), &set(finished), handed, &dead)
    }

    #[test]
    fn loss_is_what_was_sent_and_not_finished_whatever_else_was_finished() {
        let balance = balance(&[1, 2, 3], &[2, 3, 4, 5], &[], &[]);
        assert_eq!((balance.sent, balance.delivered, balance.lost), (3, 2, 1));
    }

    #[test]
    fn a_repeat_is_put_down_to_whoever_had_the_message_before() {
        let handed = [
            out(0, 5, 0, 1),
            out(0, 5, 1, 2),
            out(0, 5, 2, 3),
            out(0, 5, 2, 4),
            out(1, 5, 2, 5),
        ];
        let balance = balance(&[], &[], &handed, &[0]);
        assert_eq!(balance.redelivered(), 3);
        for cause in [Cause::Death, Cause::HandOver, Cause::Anew] {
            assert_eq!(balance.count(cause), 1, "{cause:?}");
        }
    }

    #[test]
    fn the_balance_reads_as_one_line() {
        let handed = [out(0, 0, 0, 0), out(0, 0, 1, 0)];
        let line = balance(&[1, 2], &[1, 2], &handed, &[0]).to_string();
        assert_eq!(
            line,
            "2 sent, 2 delivered, 0 lost, 1 redelivered (1 after a death, 0 after a clean hand-over)"
        );
        let handed = [out(0, 0, 0, 0), out(0, 0, 0, 0)];
        let line = balance(&[1], &[], &handed, &[]).to_string();
        assert!(
            line.ends_with("0 after a clean hand-over, 1 after a lost session)"),
            "{line}"
        );
    }

    #[test]
    fn a_pause_is_within_one_partition_and_within_the_span() {
        let ms = Duration::from_millis;
        let handed = [
            out(0, 0, 0, 0),
            out(0, 1, 0, 500),
            out(1, 0, 0, 510),
            out(0, 2, 0, 600),
            out(1, 1, 0, 800),
            out(0, 3, 0, 990),
            out(1, 2, 0, 995),
        ];
        assert_eq!(longest_pause(&handed, ms(0), ms(550)), ms(500));
        assert_eq!(longest_pause(&handed, ms(600), ms(1000)), ms(390));
        assert_eq!(longest_pause(&handed, ms(600), ms(900)), ms(300));
        assert_eq!(longest_pause(&handed, ms(900), ms(2000)), ms(1010));
        assert_eq!(longest_pause(&[], ms(0), ms(9)), ms(0));
    }
}
