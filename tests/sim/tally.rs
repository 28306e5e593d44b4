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
    /// The most, in hundredths of what was allowed.
    nearest: u128,
    least_margin_ms: Option<i64>,
}

/// From so many runs on the floors hold.
const ENOUGH: u64 = 300;

/// What must happen now and then; what never does shows that the faults are too tame.
const SOMETIMES: &[&str] = &[
    "acknowledged with the token of a former ownership",
    "answered by a server after the end of its session",
    "answers lost for a while",
    "answers lost for good",
    "brokers missing",
    "claim conflict",
    "commit failed",
    "computed anew right after a claim",
    "follower cut off",
    "forced release",
    "gap in a log",
    "lapse then resume",
    "legacy member",
    "listener failed",
    "lost with the session",
    "offset deleted",
    "offset spoiled",
    "own id held by an earlier session",
    "owner node deleted by somebody else",
    "owner node spoiled",
    "partition muted",
    "read failed",
    "registration deleted by somebody else",
    "registration gone between two reads",
    "registration nobody can read",
    "requests lost for a while",
    "requests lost for good",
    "reset of what was stored",
    "retention",
    "rewind repaired",
    "session lost",
    "session moved to another server",
    "slow servers",
    "stuck",
    "topic made anew",
    "topic nobody can read",
];

/// The same for what is rarer: in so many runs.
const MANY: u64 = 1000;
const SELDOM: &[&str] = &[
    "foreign advance",
    "offset set forward",
    "self-check repaired",
    "silent partition begun anew",
];

impl Tally {
    /// One more run.
    pub fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.counts.add(&outcome.verdict.counts);
        for (what, count) in &outcome.counters {
            *self.counters.entry(what).or_default() += count;
        }
        if let Some((took, limit)) = outcome.converged {
            self.slowest = self.slowest.max(took);
            let share = took.as_millis() * 100 / limit.as_millis().max(1);
            self.nearest = self.nearest.max(share);
        }
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

    /// How many runs were good.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// What must happen and did not, or too seldom for this number of runs.
    pub fn lacks(&self) -> Option<String> {
        // However few there were: each must have been judged to its end.
        let mut lacking = Vec::new();
        if self.counts.settled < self.runs || self.counts.unsettled > 0 {
            lacking.push(format!(
                "of {} runs {} were compared with the rule",
                self.runs, self.counts.settled
            ));
        }
        if self.runs >= ENOUGH {
            self.too_seldom(&mut lacking);
        }
        (!lacking.is_empty()).then(|| format!("too tame: {}\n{self}", lacking.join("; ")))
    }

    fn too_seldom(&self, lacking: &mut Vec<String>) {
        let (each, seen) = (self.runs, &self.counts);
        let counted = |what| self.counters.get(what).copied().unwrap_or(0);
        let floors = [
            ("claims", seen.claims, 15 * each),
            ("releases", seen.releases, 10 * each),
            ("clean releases", seen.clean, 6 * each),
            ("expiries", seen.expiries, 2 * each),
            ("taken", seen.taken, each / 6),
            ("deaths", seen.deaths, each / 5),
            ("stops", seen.stops, each / 4),
            ("cuts", seen.cuts, each),
            ("stale nodes", seen.stale, each / 5),
            ("starts", seen.starts, 12 * each),
            ("first starts", seen.first_starts, 2 * each),
            ("commits", seen.commits, 25 * each),
            ("others' commits", seen.others_commits, each),
            ("sent", seen.sent, 50 * each),
            ("deliveries", seen.deliveries, 60 * each),
            ("dones", seen.dones, 60 * each),
            ("late dones", seen.late_dones, 2 * each),
            ("redeliveries", seen.redeliveries, 5 * each),
            ("listeners' calls", seen.calls, 10 * each),
            ("calls that waited", seen.queued, 2 * each),
            ("lapses", counted("lapse"), 2 * each),
            (
                "claims of unknown outcome",
                counted("claim unknown, then found ours"),
                each / 8,
            ),
            (
                "commits of unknown outcome",
                counted("commit unknown and carried out"),
                each / 4,
            ),
        ];
        for (what, seen, floor) in floors {
            if seen < floor {
                lacking.push(format!("{what} {seen}, at least {floor}"));
            }
        }
        if self.least_margin_ms.is_none() {
            lacking.push("nothing was judged by the clock".to_owned());
        }
        let seldom = SELDOM.iter().filter(|_| each >= MANY);
        for what in SOMETIMES.iter().chain(seldom) {
            if !self.counters.contains_key(*what) {
                lacking.push(format!("never \"{what}\""));
            }
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
        let (slowest, nearest) = (self.slowest, self.nearest);
        writeln!(
            f,
            "slowest to come right {slowest:?}, at most {nearest} % of the time it had"
        )?;
        write!(
            f,
            "least margin before an owner node went, ms {:?}",
            self.least_margin_ms
        )
    }
}
