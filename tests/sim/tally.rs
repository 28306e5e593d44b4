//! What was seen in many runs together, and what must have been seen for them to count.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use evenkeel::testing::check::Counts;

use crate::run::Outcome;

/// The sum.
#[derive(Default)]
pub struct Tally {
    runs: u64,
    counts: Counts,
    counters: BTreeMap<&'static str, u64>,
    slowest: Duration,
    least_margin_ms: Option<i64>,
}

/// From so many runs on the floors hold.
const ENOUGH: u64 = 300;

/// What must happen now and then; what never does shows that the faults are too tame.
const SOMETIMES: &[&str] = &[
    "lapse then resume",
    "session lost",
    "claim conflict",
    "stuck",
    "owner node deleted by somebody else",
    "registration deleted by somebody else",
    "lost with the session",
    "rewind repaired",
    "forced release",
    "listener failed",
    "read failed",
    "brokers missing",
    "registration nobody can read",
    "legacy member",
    "follower cut off",
    "cut off for good",
];

impl Tally {
    /// One more run.
    pub fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.counts.add(&outcome.verdict.counts);
        for (what, count) in &outcome.counters {
            *self.counters.entry(what).or_default() += count;
        }
        self.slowest = self.slowest.max(outcome.converged.unwrap_or_default());
        let margin = outcome.verdict.worst.margin_ms;
        self.least_margin_ms = match (self.least_margin_ms, margin) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }

    /// For a file of results.
    pub fn to_json(&self) -> serde_json::Value {
        let judged: serde_json::Value = self.counts.list().into_iter().collect();
        serde_json::json!({
            "judged": judged,
            "counted": self.counters,
            "slowest_ms": u64::try_from(self.slowest.as_millis()).unwrap_or(u64::MAX),
            "least_margin_ms": self.least_margin_ms,
        })
    }

    /// Fails if something that must happen did not, or too seldom for this number of runs.
    pub fn require_floors(&self) {
        if self.runs < ENOUGH {
            return;
        }
        let each = self.runs;
        let floors = [
            ("claims", self.counts.claims, 10 * each),
            ("releases", self.counts.releases, 2 * each),
            ("clean releases", self.counts.clean, each),
            ("expiries", self.counts.expiries, each),
            ("deaths", self.counts.deaths, each / 4),
            ("stops", self.counts.stops, each / 4),
            ("commits", self.counts.commits, 20 * each),
            ("redeliveries", self.counts.redeliveries, each),
        ];
        for (what, seen, floor) in floors {
            assert!(
                seen >= floor,
                "too tame: {what} {seen}, at least {floor}\n{self}"
            );
        }
        assert!(
            self.least_margin_ms.is_some(),
            "nothing was judged by the clock\n{self}"
        );
        for what in SOMETIMES {
            let seen = self.counters.get(what).copied().unwrap_or(0);
            assert!(seen > 0, "too tame: never saw \"{what}\"\n{self}");
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "runs {}", self.runs)?;
        writeln!(f, "judged {:?}", self.counts)?;
        for (what, count) in &self.counters {
            writeln!(f, "{what} {count}")?;
        }
        writeln!(f, "slowest to come right {:?}", self.slowest)?;
        write!(
            f,
            "least margin before an owner node went, ms {:?}",
            self.least_margin_ms
        )
    }
}
