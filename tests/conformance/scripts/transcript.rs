//! What became of a script, in words that mean the same on any server: transactions and sessions by their order, no times.

use std::collections::BTreeSet;

use evenkeel::registry::Fault;
use evenkeel::registry::Fired;
use evenkeel::registry::Stat;

/// One answer, as it came.
#[derive(Debug)]
pub enum Answer {
    /// There is no connection to ask.
    Nobody,
    /// None came in time.
    Late,
    Done,
    Missing,
    Node(Stat),
    Data(Vec<u8>, Stat),
    Names(Vec<String>, Stat),
    Steps(Vec<Option<Stat>>),
    Fault(Option<usize>, Fault),
}

/// What one step came to.
#[derive(Debug, Default)]
pub struct Line {
    pub step: String,
    pub answers: Vec<Answer>,
    /// The watches it armed.
    pub armed: Vec<usize>,
    /// Those that fired before the client had its answer.
    pub before: Vec<(usize, Fired)>,
    /// Those that fired before any other session could read anything.
    pub after: Vec<(usize, Fired)>,
}

/// All of it, and the sessions in the order of their opening.
#[derive(Debug, Default)]
pub struct Transcript {
    pub lines: Vec<Line>,
    pub sessions: Vec<i64>,
}

impl Transcript {
    /// One line of text for each step: equal when the servers did the same.
    pub fn told(&self) -> Vec<String> {
        let ranks: BTreeSet<i64> = self.lines.iter().flat_map(zxids).collect();
        let names = Names {
            zxids: ranks.into_iter().collect(),
            sessions: &self.sessions,
        };
        self.lines.iter().map(|line| names.line(line)).collect()
    }
}

fn zxids(line: &Line) -> Vec<i64> {
    let stats = line.answers.iter().flat_map(|answer| match answer {
        Answer::Node(stat) | Answer::Data(_, stat) | Answer::Names(_, stat) => vec![*stat],
        Answer::Steps(steps) => steps.iter().flatten().copied().collect(),
        _ => Vec::new(),
    });
    stats.flat_map(|stat| [stat.czxid, stat.mzxid]).collect()
}

struct Names<'a> {
    /// All that were seen, in their order.
    zxids: Vec<i64>,
    sessions: &'a [i64],
}

impl Names<'_> {
    fn line(&self, line: &Line) -> String {
        let answers: Vec<String> = line.answers.iter().map(|a| self.answer(a)).collect();
        let mut text = format!("{} -> {}", line.step, answers.join(", "));
        for (word, watches) in [("before", &line.before), ("after", &line.after)] {
            for (watch, fired) in watches {
                text.push_str(&format!("; {word} it w{watch} {fired:?}"));
            }
        }
        for watch in &line.armed {
            text.push_str(&format!("; w{watch} armed"));
        }
        text
    }

    fn answer(&self, answer: &Answer) -> String {
        match answer {
            Answer::Nobody => "nobody there".to_owned(),
            Answer::Late => "no answer".to_owned(),
            Answer::Done => "done".to_owned(),
            Answer::Missing => "no node".to_owned(),
            Answer::Node(stat) => self.stat(stat),
            Answer::Data(data, stat) => format!("{} {}", text(data), self.stat(stat)),
            Answer::Names(names, stat) => format!("{names:?} {}", self.stat(stat)),
            Answer::Steps(steps) => {
                let step = |stat: &Option<Stat>| match stat {
                    Some(stat) => self.stat(stat),
                    None => "done".to_owned(),
                };
                let steps: Vec<String> = steps.iter().map(step).collect();
                format!("[{}]", steps.join("; "))
            }
            Answer::Fault(None, fault) => kind(fault).to_owned(),
            Answer::Fault(Some(index), fault) => format!("{} at step {index}", kind(fault)),
        }
    }

    fn stat(&self, stat: &Stat) -> String {
        let rank = |zxid| self.zxids.binary_search(&zxid).unwrap_or(usize::MAX);
        let owner = match stat.ephemeral_owner {
            0 => String::new(),
            owner => match self.sessions.iter().position(|session| *session == owner) {
                Some(session) => format!(" of s{session}"),
                None => " of a stranger".to_owned(),
            },
        };
        format!(
            "(v{} c{} z{}/z{}{owner})",
            stat.version,
            stat.cversion,
            rank(stat.czxid),
            rank(stat.mzxid)
        )
    }
}

/// Of what is large, the end and the length.
fn text(data: &[u8]) -> String {
    let text = String::from_utf8_lossy(data);
    match data.len() {
        0..100 => format!("{text:?}"),
        length => format!("..{:?} of {length}", &text[text.len() - 10..]),
    }
}

/// The rest of a fault is words, each side's own.
fn kind(fault: &Fault) -> &'static str {
    match fault {
        Fault::NoNode => "NoNode",
        Fault::NodeExists => "NodeExists",
        Fault::BadVersion => "BadVersion",
        Fault::NotEmpty => "NotEmpty",
        Fault::NoAuth => "NoAuth",
        Fault::Unsupported => "Unsupported",
        Fault::TooLarge => "TooLarge",
        Fault::Unknown(_) => "Unknown",
        Fault::SessionLost => "SessionLost",
        Fault::Refused(_) => "Refused",
    }
}
