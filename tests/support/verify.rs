//! Judges a run from what it left in a folder: `*.jsonl`, a server's transaction log, and `case.json`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel::GroupName;
use evenkeel::testing::check;
use evenkeel::testing::check::Case;
use evenkeel::testing::check::Event;
use evenkeel::testing::check::Fact;
use evenkeel::testing::check::Limits;
use evenkeel::testing::check::Verdict;
use evenkeel::testing::check::read_events;

use super::txn;
use super::txnlog::TxnLog;

/// What only the one who made the run knows; `case.json` holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseFile {
    /// The group.
    pub group: String,
    /// In front of its paths, as `/kafka`; empty for none.
    pub chroot: String,
    /// The session timeout of its members.
    pub session_timeout_ms: u64,
    /// The servers' tick.
    pub tick_ms: u64,
    /// So long after [`Fact::Healed`] the owners must be those of the rule; none, and only at the end.
    pub convergence_ms: Option<u64>,
    /// The nodes of the dead may go so much sooner or later than they should: on a busy machine a process may have had no word to say for a
    /// while before it was killed, and the server too.
    pub slack_ms: u64,
    /// Writers of event logs that are legacy members, and are not judged.
    pub legacy: Vec<String>,
}

impl CaseFile {
    /// A group at the root, without legacy members that write event logs.
    pub fn new(group: &str, session_timeout_ms: u64, tick_ms: u64) -> Self {
        Self {
            group: group.to_owned(),
            chroot: String::new(),
            session_timeout_ms,
            tick_ms,
            convergence_ms: None,
            slack_ms: 0,
            legacy: Vec::new(),
        }
    }

    /// Puts it beside the logs.
    pub fn write(&self, folder: &Path) {
        let text = serde_json::json!({
            "group": self.group,
            "chroot": self.chroot,
            "session_timeout_ms": self.session_timeout_ms,
            "tick_ms": self.tick_ms,
            "convergence_ms": self.convergence_ms,
            "slack_ms": self.slack_ms,
            "legacy": self.legacy,
        });
        let path = folder.join("case.json");
        std::fs::write(path, format!("{text}\n")).expect("a folder that can be written");
    }

    fn read(folder: &Path) -> Result<Self, String> {
        let path = folder.join("case.json");
        let text = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let value: serde_json::Value = serde_json::from_slice(&text)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let lacks = |name: &str| format!("{} lacks {name}", path.display());
        let number = |name: &str| value[name].as_u64().ok_or_else(|| lacks(name));
        let names = value["legacy"].as_array().into_iter().flatten();
        Ok(Self {
            group: value["group"]
                .as_str()
                .ok_or_else(|| lacks("group"))?
                .to_owned(),
            chroot: value["chroot"].as_str().unwrap_or_default().to_owned(),
            session_timeout_ms: number("session_timeout_ms")?,
            tick_ms: number("tick_ms")?,
            convergence_ms: value["convergence_ms"].as_u64(),
            slack_ms: value["slack_ms"].as_u64().unwrap_or_default(),
            legacy: names
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect(),
        })
    }
}

/// Judges the run that left this folder. The transaction log lies in it, or in its folder `version-2`.
///
/// # Errors
///
/// What is missing or cannot be read.
pub fn verify(folder: &Path) -> Result<Verdict, String> {
    let case = CaseFile::read(folder)?;
    let group = GroupName::new(&case.group).map_err(|error| error.to_string())?;
    let events = events(folder)?;
    let ours: BTreeSet<Arc<str>> = events
        .iter()
        .filter(|event| is_of_a_member(&event.fact))
        .map(|event| event.member.clone())
        .filter(|name| !case.legacy.iter().any(|legacy| **legacy == **name))
        .collect();
    let mut limits = Limits::timed(
        Duration::from_millis(case.session_timeout_ms),
        Duration::from_millis(case.tick_ms),
    );
    let slack = Duration::from_millis(case.slack_ms);
    limits.lingering = limits
        .lingering
        .map(|(least, most)| (least.saturating_sub(slack), most + slack));
    limits.convergence = case.convergence_ms.map(Duration::from_millis);
    let judged = Case::new(group)
        .below(&case.chroot)
        .with_ours(ours.iter().map(|name| &**name))
        .with_history(history(folder)?)
        .with_limits(limits);
    Ok(judged.with_events(events).judge())
}

/// All event logs of a folder; those of one start of a writer in their order.
///
/// # Errors
///
/// What cannot be read.
pub fn events(folder: &Path) -> Result<Vec<Event>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "jsonl"));
    paths.sort();
    let mut events = Vec::new();
    for path in paths {
        let name = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let file = File::open(&path).map_err(|error| name(&error))?;
        events.extend(read_events(BufReader::new(file)).map_err(|error| name(&error))?);
    }
    // By its name, the tenth start of a writer would come before its second.
    events.sort_by(|one, other| {
        let key = |event: &Event| (event.incarnation, event.seq);
        one.member
            .cmp(&other.member)
            .then(key(one).cmp(&key(other)))
    });
    Ok(events)
}

/// The transaction log that a run left in its folder.
///
/// # Errors
///
/// When there is none, or an entry in it is malformed.
pub fn history(folder: &Path) -> Result<Vec<check::Txn>, String> {
    let below = folder.join("version-2");
    let log = if below.is_dir() {
        below
    } else {
        folder.to_owned()
    };
    let txns = TxnLog::in_folder(&log).try_more()?;
    if txns.is_empty() {
        return Err(format!("{} has no transaction log", log.display()));
    }
    Ok(txns.into_iter().map(txn::judged).collect())
}

/// Whether only a member tells such a thing.
fn is_of_a_member(fact: &Fact) -> bool {
    matches!(
        fact,
        Fact::Joined { .. }
            | Fact::Checked { .. }
            | Fact::Delivered { .. }
            | Fact::Done { .. }
            | Fact::Started { .. }
            | Fact::Released { .. }
            | Fact::Callback { .. }
    )
}
