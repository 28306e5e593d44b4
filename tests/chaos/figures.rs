//! What a run was like, in figures: by the server's transaction log and the event logs.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::path::Path;

use evenkeel::testing::check::Change;
use evenkeel::testing::check::Fact;
use evenkeel::testing::check::Txn;

use crate::stage::GROUP;
use crate::stage::TOPIC;
use crate::support::LAPSED;
use crate::support::events;
use crate::support::history;

/// How an ownership ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Its owner gave it up with all that was in hand done.
    Released,
    /// Its owner gave it up before that, or while its listener failed.
    Forced,
    /// By another's hand, or by a later session of its owner.
    Taken,
    /// With its session.
    Session,
    /// It stands.
    None,
}

/// One ownership of a partition.
pub struct Window {
    pub partition: i32,
    pub token: i64,
    /// The text of the owner node.
    pub stream: String,
    pub session: i64,
    pub from_ms: i64,
    pub to_ms: i64,
    pub end: End,
    pub seen: Seen,
}

/// What its owner took down.
#[derive(Default)]
pub struct Seen {
    /// Nanoseconds and offsets.
    pub delivered: Vec<(u64, i64)>,
    pub last_done: Option<u64>,
}

/// All ownerships of a run, by partition and in their order.
pub struct Figures {
    pub windows: BTreeMap<i32, Vec<Window>>,
    /// Members' sessions that ended and had a registration in the group until then.
    pub lost_sessions: usize,
    /// Registrations made, and gone in whichever way.
    pub changes: usize,
    /// Leases that ran out.
    pub lapses: usize,
    /// What ended before that moment of the servers' clock is left out of all times.
    pub since_ms: i64,
    /// When the broker had a message for certain, by partition and offset.
    sent: BTreeMap<(i32, i64), u64>,
    /// So many nanoseconds the servers' clock is ahead of that of the events.
    ahead: i128,
}

impl Figures {
    /// Those of the run that left this folder.
    ///
    /// # Errors
    ///
    /// What cannot be read.
    pub fn of(folder: &Path) -> Result<Self, String> {
        let mut figures = Self {
            windows: BTreeMap::new(),
            lost_sessions: 0,
            changes: 0,
            lapses: 0,
            since_ms: 0,
            sent: BTreeMap::new(),
            ahead: 0,
        };
        let mut members: BTreeMap<String, i64> = BTreeMap::new();
        for txn in history(folder)? {
            figures.take(&txn, &mut members);
        }
        // Whether it was forced, each time a member gave a partition up.
        let mut released: BTreeMap<(String, i32), VecDeque<bool>> = BTreeMap::new();
        let mut by_token: BTreeMap<(i32, i64), Seen> = BTreeMap::new();
        for event in events(folder)? {
            match event.fact {
                Fact::Delivered {
                    partition,
                    token,
                    offset,
                } => {
                    let seen = by_token.entry((partition.partition, token)).or_default();
                    seen.delivered.push((event.mono, offset));
                }
                Fact::Done {
                    partition, token, ..
                } => {
                    let seen = by_token.entry((partition.partition, token)).or_default();
                    seen.last_done = seen.last_done.max(Some(event.mono));
                }
                Fact::Released {
                    partition,
                    undone,
                    is_forced,
                } => {
                    let key = (event.member.to_string(), partition.partition);
                    let list = released.entry(key).or_default();
                    list.push_back(is_forced || undone > 0);
                }
                Fact::Sent { partition, offset } => {
                    let key = (partition.partition, offset);
                    figures.sent.insert(key, event.mono);
                }
                Fact::Other(what) if what == LAPSED => figures.lapses += 1,
                Fact::Clock { real_us } => {
                    figures.ahead = i128::from(real_us) * 1000 - i128::from(event.mono);
                }
                _ => {}
            }
        }
        for window in figures.windows.values_mut().flatten() {
            let member = window.stream.trim_end_matches("-0").to_owned();
            let list = released.get_mut(&(member, window.partition));
            if window.end == End::Released
                && list.is_some_and(|list| list.pop_front() == Some(true))
            {
                window.end = End::Forced;
            }
            let seen = by_token.remove(&(window.partition, window.token));
            window.seen = seen.unwrap_or_default();
        }
        Ok(figures)
    }

    fn take(&mut self, txn: &Txn, members: &mut BTreeMap<String, i64>) {
        for change in &txn.changes {
            match change {
                Change::Created { path, data, .. } => {
                    if let Some(partition) = owned(path) {
                        let window = Window {
                            partition,
                            token: txn.zxid,
                            stream: String::from_utf8_lossy(data).into_owned(),
                            session: txn.session,
                            from_ms: txn.time_ms,
                            to_ms: i64::MAX,
                            end: End::None,
                            seen: Seen::default(),
                        };
                        self.windows.entry(partition).or_default().push(window);
                    } else if is_member(path) {
                        members.insert(path.clone(), txn.session);
                        self.changes += 1;
                    }
                }
                Change::Deleted { path } => {
                    let windows = owned(path).and_then(|p| self.windows.get_mut(&p));
                    if let Some(window) = windows.and_then(|list| list.last_mut())
                        && window.end == End::None
                    {
                        let is_own = window.session == txn.session;
                        window.to_ms = txn.time_ms;
                        window.end = if is_own { End::Released } else { End::Taken };
                    }
                    self.changes += usize::from(members.remove(path).is_some());
                }
                Change::Closed => {
                    let before = members.len();
                    members.retain(|_, session| *session != txn.session);
                    self.changes += before - members.len();
                    self.lost_sessions += before - members.len();
                    let last = self.windows.values_mut().filter_map(|list| list.last_mut());
                    for window in last {
                        if window.session == txn.session && window.end == End::None {
                            (window.to_ms, window.end) = (txn.time_ms, End::Session);
                        }
                    }
                }
                Change::Opened | Change::Set { .. } => {}
            }
        }
    }

    /// Every two ownerships of a partition that follow one another.
    pub fn boundaries(&self) -> impl Iterator<Item = (&Window, &Window)> {
        let pairs = self.windows.values().flat_map(|list| list.windows(2));
        let pairs = pairs.map(|pair| (&pair[0], &pair[1]));
        pairs.filter(|(before, _)| before.to_ms >= self.since_ms)
    }

    /// Milliseconds without an owner, after an ownership that ended so.
    pub fn take_overs(&self, end: End) -> Vec<f64> {
        let pairs = self.boundaries().filter(|(before, _)| before.end == end);
        pairs
            .map(|(before, after)| (after.from_ms - before.to_ms) as f64)
            .collect()
    }

    /// Of each session that ended with partitions in it, the milliseconds until the last of them had an owner again.
    pub fn last_take_overs(&self) -> Vec<f64> {
        let mut last: BTreeMap<i64, f64> = BTreeMap::new();
        for (before, after) in self.boundaries() {
            if before.end == End::Session {
                let ms = (after.from_ms - before.to_ms) as f64;
                let most = last.entry(before.session).or_default();
                *most = most.max(ms);
            }
        }
        last.into_values().collect()
    }

    /// Of the clean hand-overs, milliseconds during which a message lay there and nobody was given it: since the last one was finished, and
    /// since it was sent.
    pub fn waits(&self) -> Vec<f64> {
        let pairs = self.clean().filter_map(|(before, after)| {
            let (first, offset) = *after.seen.delivered.first()?;
            let sent = self.sent.get(&(after.partition, offset)).copied();
            let since = before.seen.last_done.max(sent)?;
            Some((first as f64 - since as f64).max(0.0) / 1e6)
        });
        pairs.collect()
    }

    /// Of the clean hand-overs, milliseconds from the last message that the old owner finished to its release.
    pub fn endings(&self) -> Vec<f64> {
        let pairs = self.clean().filter_map(|(before, _)| {
            let last = before.seen.last_done?;
            Some(before.to_ms as f64 - self.server_ms(last))
        });
        pairs.collect()
    }

    /// Of the clean hand-overs, milliseconds from the claim to the first message.
    pub fn beginnings(&self) -> Vec<f64> {
        let pairs = self.clean().filter_map(|(_, after)| {
            let (first, _) = *after.seen.delivered.first()?;
            Some(self.server_ms(first) - after.from_ms as f64)
        });
        pairs.collect()
    }

    /// A moment of the events' clock by the servers'.
    fn server_ms(&self, mono: u64) -> f64 {
        (i128::from(mono) + self.ahead) as f64 / 1e6
    }

    /// Where a partition went from one member to another in order while it was read.
    fn clean(&self) -> impl Iterator<Item = (&Window, &Window)> {
        let pairs = self.boundaries();
        pairs.filter(|(before, after)| {
            before.end == End::Released
                && before.stream != after.stream
                && before.seen.last_done.is_some()
                && !after.seen.delivered.is_empty()
        })
    }

    /// Milliseconds from the last message that the old owner finished to the first that the new one was given, over the clean hand-overs.
    pub fn gaps(&self) -> Vec<f64> {
        let pairs = self.clean();
        pairs
            .filter_map(|(before, after)| {
                let (first, _) = *after.seen.delivered.first()?;
                let last = before.seen.last_done?;
                Some((first as f64 - last as f64) / 1e6)
            })
            .collect()
    }

    /// Milliseconds from one delivery of a partition to the next, whoever got it, if they are more than so many.
    pub fn pauses(&self, more_than: f64) -> Vec<f64> {
        let mut pauses = Vec::new();
        for list in self.windows.values() {
            let mut times: Vec<u64> = list
                .iter()
                .flat_map(|window| window.seen.delivered.iter().map(|(at, _)| *at))
                .collect();
            times.sort_unstable();
            let gaps = times.windows(2).map(|two| (two[1] - two[0]) as f64 / 1e6);
            pauses.extend(gaps.filter(|gap| *gap > more_than));
        }
        pauses
    }

    /// Messages delivered again, by how the ownership ended in which they had been delivered last.
    pub fn duplicates(&self) -> BTreeMap<End, usize> {
        let mut duplicates = BTreeMap::new();
        for list in self.windows.values() {
            let mut last: BTreeMap<i64, End> = BTreeMap::new();
            for window in list {
                for (_, offset) in &window.seen.delivered {
                    if let Some(end) = last.insert(*offset, window.end)
                        && end != End::None
                    {
                        *duplicates.entry(end).or_default() += 1;
                    }
                }
            }
        }
        duplicates
    }
}

fn owned(path: &str) -> Option<i32> {
    let rest = path.strip_prefix(&format!("/consumers/{GROUP}/owners/{TOPIC}/"))?;
    rest.parse().ok()
}

fn is_member(path: &str) -> bool {
    path.starts_with(&format!("/consumers/{GROUP}/ids/"))
}
