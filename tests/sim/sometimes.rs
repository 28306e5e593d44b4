//! What must happen now and then, as far as it can be told from outside: by requests and their answers, watches, events, and what the
//! servers know of sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel::Event;
use evenkeel::TopicPartition;
use evenkeel::event::ResetCause;
use evenkeel::registry::{Fault, Op};
use evenkeel::testing::check::Fact;
use evenkeel::testing::{Act, MemoryRegistry, Write};
use tokio::time::Instant;

use crate::facts::Facts;
use crate::kit::{GROUP, Kit};

/// Who has owned nothing for so long is a standby.
const IDLE: Duration = Duration::from_secs(3);

/// A look so soon after a claim is the one that the claim was followed by.
const SOON: Duration = Duration::from_millis(100);

/// Counts it. A clone is another hand with the same tally.
#[derive(Clone)]
pub struct Sometimes {
    facts: Facts,
    registry: MemoryRegistry,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// Owner nodes whose creation by this session was never answered.
    unknown: BTreeSet<(i64, String)>,
    /// The server that a session was with when it was looked at last.
    servers: BTreeMap<i64, usize>,
    /// Sessions that were answered though they had ended.
    haunted: BTreeSet<i64>,
    members: BTreeMap<String, Member>,
}

#[derive(Default)]
struct Member {
    session: i64,
    held: BTreeSet<TopicPartition>,
    /// Since when it has owned nothing.
    idle: Option<Instant>,
    claimed: Option<Instant>,
    /// Beginnings under way, and whether the ownership ended meanwhile.
    beginning: BTreeMap<TopicPartition, bool>,
}

/// A write that was sent and is not answered yet.
pub struct Sent {
    session: i64,
    since: i64,
    claims: Vec<String>,
    commits: Vec<(String, Vec<u8>)>,
}

fn is_below(path: &str, what: &str) -> bool {
    let rest = path.strip_prefix("/consumers/");
    let rest = rest.and_then(|rest| rest.strip_prefix(GROUP));
    rest.is_some_and(|rest| rest.starts_with(what))
}

impl Sometimes {
    /// Nothing seen yet.
    pub fn new(facts: &Facts, registry: &MemoryRegistry) -> Self {
        Self {
            facts: facts.clone(),
            registry: registry.clone(),
            seen: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- requests ----

    /// A member writes.
    pub fn sends(&self, session: i64, ops: &[Op]) -> Sent {
        let mut sent = Sent {
            session,
            since: self.registry.zxid(),
            claims: Vec::new(),
            commits: Vec::new(),
        };
        for op in ops {
            match op {
                Op::Create {
                    path,
                    ephemeral: true,
                    ..
                } if is_below(path, "/owners/") => sent.claims.push(path.clone()),
                Op::Set { path, data, .. } if is_below(path, "/offsets/") => {
                    sent.commits.push((path.clone(), data.clone()));
                }
                _ => {}
            }
        }
        if !sent.claims.is_empty() {
            sent.commits.clear();
        }
        sent
    }

    /// It is answered, with this fault if it failed.
    pub fn is_answered(&self, sent: &Sent, fault: Option<&Fault>) {
        let is_unknown = matches!(fault, Some(Fault::Unknown(_)));
        if !sent.claims.is_empty() {
            let mut seen = self.lock();
            for path in &sent.claims {
                let key = (sent.session, path.clone());
                if fault.is_none() {
                    seen.unknown.remove(&key);
                } else if is_unknown {
                    seen.unknown.insert(key);
                }
            }
        }
        let writes = if is_unknown || !sent.claims.is_empty() {
            self.registry.log_since(sent.since)
        } else {
            Vec::new()
        };
        let is_of_another = |write: &Write| write.session != sent.session;
        let mut others = writes.iter().filter(|write| is_of_another(write));
        if !sent.claims.is_empty() && others.any(|write| is_below(&write.path, "/ids/")) {
            self.facts.count("members changed during a claim");
        }
        if is_unknown && !sent.commits.is_empty() {
            let is_there = writes.iter().any(|write| {
                write.session == sent.session
                    && write.act == Act::Set
                    && sent.commits.iter().any(|(path, data)| {
                        write.path == *path && write.data.as_deref() == Some(&data[..])
                    })
            });
            if is_there {
                self.facts.count("commit unknown and carried out");
            }
        }
    }

    /// A node was read and is not there.
    pub fn is_missing(&self, path: &str) {
        if is_below(path, "/ids/") {
            self.facts.count("registration gone between two reads");
        }
    }

    /// What the servers know of sessions.
    pub fn look(&self) {
        let mut seen = self.lock();
        for session in self.registry.sessions() {
            if !session.is_alive || !session.is_connected {
                continue;
            }
            let before = seen.servers.insert(session.id, session.server);
            if before.is_some_and(|before| before != session.server) {
                self.facts.count("session moved to another server");
            }
            if !session.is_open && seen.haunted.insert(session.id) {
                self.facts
                    .count("answered by a server after the end of its session");
            }
        }
    }

    // ---- reading ----

    /// Reading is asked for.
    pub fn begins(&self, member: &str, partition: &TopicPartition) {
        let mut seen = self.lock();
        let member = seen.members.entry(member.to_owned()).or_default();
        member.beginning.insert(partition.clone(), false);
    }

    /// And begins.
    pub fn has_begun(&self, member: &str, partition: &TopicPartition) {
        let mut seen = self.lock();
        let member = seen.members.entry(member.to_owned()).or_default();
        if member.beginning.remove(partition) == Some(true) {
            self.facts.count("beginning of what was lost meanwhile");
        }
    }

    // ---- events ----

    /// A member tells something.
    pub fn hears(&self, name: &str, event: &Event) {
        let mut seen = self.lock();
        let seen = &mut *seen;
        let member = seen.members.entry(name.to_owned()).or_default();
        match event {
            Event::Joined { session, .. } => {
                member.session = *session;
                member.held.clear();
                member.idle = Some(Instant::now());
            }
            Event::Claimed { partition, .. } => {
                let path = Kit::owner_path(partition.topic.as_str(), partition.partition);
                if seen.unknown.remove(&(member.session, path)) {
                    self.facts.count("claim unknown, then found ours");
                }
                if member.idle.take().is_some_and(|at| at.elapsed() > IDLE) {
                    self.facts.count("standby promoted");
                }
                member.held.insert(partition.clone());
                member.claimed = Some(Instant::now());
            }
            Event::Rebalanced { .. } => {
                let claimed = member.claimed.take();
                if claimed.is_some_and(|at| at.elapsed() < SOON) {
                    self.facts.count("computed anew right after a claim");
                }
            }
            Event::Lost { partition, .. } | Event::Released { partition, .. } => {
                if let Some(is_over) = member.beginning.get_mut(partition) {
                    *is_over = true;
                }
                if member.held.remove(partition) && member.held.is_empty() {
                    member.idle = Some(Instant::now());
                }
            }
            Event::OffsetReset {
                to: Some(_),
                cause: ResetCause::OutOfRange | ResetCause::TopicRecreated,
                ..
            } => self.facts.count("reset of what was stored"),
            _ => {}
        }
    }

    /// What the facts of the whole run tell.
    pub fn sums_up(&self) {
        let late = self.facts.look(|events| {
            let (mut current, mut late) = (BTreeMap::new(), 0);
            for event in events {
                match &event.fact {
                    Fact::Started {
                        partition, token, ..
                    } => {
                        current.insert((event.member.clone(), partition.clone()), *token);
                    }
                    Fact::Done {
                        partition, token, ..
                    } => {
                        let key = (event.member.clone(), partition.clone());
                        late += u64::from(current.get(&key).is_some_and(|now| now > token));
                    }
                    _ => {}
                }
            }
            late
        });
        if late > 0 {
            self.facts
                .count("acknowledged with the token of a former ownership");
        }
    }
}
