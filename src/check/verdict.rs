//! What the judge says, to people and to programs.

use std::fmt;

use serde_json::{Value, json};

use crate::group::TopicPartition;

/// What can be violated: an invariant by its id, or the form of what was handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// What was handed in does not fit together: a gap in the numbering, a token that no owner node had.
    Form,
    /// Nothing is delivered after the end of its ownership.
    I1,
    /// Only the owner commits.
    I2,
    /// A committed offset does not go back.
    I3,
    /// Only what is done is committed.
    I4,
    /// Nothing is skipped within an ownership.
    I5,
    /// An ownership begins where the last one committed.
    I6,
    /// A clean hand-over repeats nothing.
    I7,
    /// Who owns is registered.
    I8,
    /// The nodes of a killed member stay for the session timeout.
    I9,
    /// Others' nodes are left alone.
    I10,
    /// The listener's calls come in their order.
    I11,
    /// In the end everybody owns what the rule says.
    I14,
    /// In the end everything that was sent is done.
    I16,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form => f.write_str("form"),
            other => write!(f, "{other:?}"),
        }
    }
}

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What it is against.
    pub rule: Rule,
    /// The ownership concerned: its partition and token.
    pub window: Option<(TopicPartition, i64)>,
    /// The transaction concerned.
    pub zxid: Option<i64>,
    /// What happened.
    pub what: String,
    /// What happened around it, a line each.
    pub around: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.rule)?;
        if let Some((partition, token)) = &self.window {
            write!(f, " {partition} token {token}")?;
        }
        if let Some(zxid) = self.zxid {
            write!(f, " zxid {zxid}")?;
        }
        write!(f, ": {}", self.what)?;
        for line in &self.around {
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// How much of everything there was to be judged. Also what a run is [required](Verdict::require) to have had at least.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])+ pub $name: u64,)+
        }

        impl Counts {
            /// Each by its name.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)+]
            }

            /// Those of another run on top of these.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

counts! {
    /// Transactions of the history.
    transactions,
    /// Events.
    events,
    /// Registrations of ours.
    registrations,
    /// Owner nodes that ours made.
    claims,
    /// Owner nodes that others made.
    others_claims,
    /// Ownerships of ours that ended by their own delete.
    releases,
    /// Releases that had to leave nothing done uncommitted.
    clean,
    /// Ownerships of ours that ended with their session.
    expiries,
    /// Ownerships of ours that ended by another's hand.
    taken,
    /// Members that were killed.
    deaths,
    /// Times a member stood still.
    stops,
    /// Times a member was cut off.
    cuts,
    /// Offsets that ours wrote.
    commits,
    /// Offsets that others wrote.
    others_commits,
    /// Offsets that ours set back, as they may after a reset or over another's.
    set_back,
    /// Positions that were set explicitly.
    resets,
    /// Beginnings that members told of.
    starts,
    /// Starts that were committed where nothing was.
    first_starts,
    /// Messages that were sent.
    sent,
    /// Messages that were delivered.
    deliveries,
    /// Messages that were done.
    dones,
    /// Messages that were done after their ownership ended.
    late_dones,
    /// Deliveries of what had been delivered in an earlier ownership.
    redeliveries,
    /// Late deliveries that a stop of the process excuses.
    excused,
    /// Late deliveries of members that could not know yet what another's hand had done.
    unaware,
    /// Nodes of an earlier session of one's own that were taken away.
    stale,
    /// Calls of listeners.
    calls,
    /// Calls of listeners that began after they were made.
    queued,
    /// Nodes of killed members whose end was timed.
    lingered,
    /// Times the owners were compared with the rule.
    settled,
    /// Times they could not be: nothing of the history is as old, or a member subscribes by a filter and no rule was given.
    unsettled,
}

/// How near it came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Worst {
    /// The least time, in ms, from a last delivery to the end of an ownership that ended with its session.
    pub margin_ms: Option<i64>,
    /// The most time, in ms, that something was delivered after its ownership's end, whatever the excuse.
    pub late_ms: Option<i64>,
    /// The most messages that one ownership delivered again.
    pub redelivered: u64,
    /// The most time, in ms, that a partition was without an owner between two.
    pub unowned_ms: i64,
    /// The least and the most time, in ms, that the nodes of a killed member stayed.
    pub lingering_ms: Option<(i64, i64)>,
}

/// What was judged, how near it came, and what is against the rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// How much of everything there was.
    pub counts: Counts,
    /// How near it came.
    pub worst: Worst,
    /// What must not be, in the order of the judge's rooms.
    pub violations: Vec<Violation>,
}

impl Verdict {
    /// Whether nothing is violated.
    pub fn is_good(&self) -> bool {
        self.violations.is_empty()
    }

    /// The rules that are violated, each once.
    pub fn rules(&self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = self.violations.iter().map(|one| one.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }

    /// Nothing may be violated, and there must have been at least so much of everything: a run that is too tame proves nothing.
    ///
    /// # Errors
    /// The whole verdict as text, with what there was too little of.
    pub fn require(&self, floors: &Counts) -> Result<(), String> {
        let pairs = self.counts.list().into_iter().zip(floors.list());
        let lacking: Vec<String> = pairs
            .filter(|((_, count), (_, floor))| count < floor)
            .map(|((name, count), (_, floor))| {
                format!("only {count} {name}, at least {floor} are asked for")
            })
            .collect();
        if self.is_good() && lacking.is_empty() {
            return Ok(());
        }
        Err(format!("{}\n{self}", lacking.join("\n")))
    }

    /// The same as one JSON document.
    pub fn to_json(&self) -> String {
        let counts = self.counts.list().into_iter();
        let counts: serde_json::Map<String, Value> = counts
            .map(|(name, count)| (name.to_owned(), count.into()))
            .collect();
        let violations: Vec<Value> = self.violations.iter().map(violation).collect();
        json!({
            "good": self.is_good(),
            "counts": counts,
            "worst": {
                "margin_ms": self.worst.margin_ms,
                "late_ms": self.worst.late_ms,
                "redelivered": self.worst.redelivered,
                "unowned_ms": self.worst.unowned_ms,
                "lingering_ms": self.worst.lingering_ms.map(|(least, most)| [least, most]),
            },
            "violations": violations,
        })
        .to_string()
    }
}

fn violation(one: &Violation) -> Value {
    let window = one.window.as_ref().map(|(partition, token)| {
        json!({ "t": partition.topic.as_str(), "p": partition.partition, "tok": token })
    });
    json!({
        "rule": one.rule.to_string(),
        "window": window,
        "zxid": one.zxid,
        "what": one.what,
        "around": one.around,
    })
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.violations.len() {
            0 => f.write_str("nothing is violated")?,
            count => write!(f, "violations: {count}")?,
        }
        for one in &self.violations {
            write!(f, "\n{one}")?;
        }
        f.write_str("\njudged:")?;
        let list = self
            .counts
            .list()
            .into_iter()
            .filter(|(_, count)| *count > 0);
        for (name, count) in list {
            write!(f, " {name} {count}")?;
        }
        write!(f, "\nworst: {:?}", self.worst)
    }
}
