//! The case as the rules look at it: events beside the ownerships they belong to, and two clocks made one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::printable;
use crate::group::TopicPartition;

use crate::check::history::{Change, Txn};
use crate::check::replay::{Mark, Story, Window, replay};
use crate::check::verdict::{Rule, Verdict, Violation};
use crate::check::{Case, Event, Fact, Phase};

pub(super) const NANOS_PER_MS: i64 = 1_000_000;

/// So many violations are told with what happened around them.
const TOLD: usize = 20;
/// So many lines on each side.
const AROUND: usize = 8;

/// What the servers' clock showed when.
#[derive(Default)]
pub(super) struct Clock {
    /// Nanoseconds of both clocks, by the servers'.
    pairs: Vec<(i64, i64)>,
}

impl Clock {
    /// The events' clock when the servers' showed this; none if nobody looked at both.
    pub fn mono(&self, time_ms: i64) -> Option<i64> {
        let real = time_ms.saturating_mul(NANOS_PER_MS);
        let after = self.pairs.partition_point(|(at, _)| *at <= real);
        let (at, mono) = self.pairs.get(after.saturating_sub(1))?;
        Some(mono.saturating_add(real - at))
    }

    pub fn is_there(&self) -> bool {
        !self.pairs.is_empty()
    }
}

/// What was seen of one ownership: places in the events, in the writer's order.
#[derive(Default)]
pub(super) struct Seen {
    pub deliveries: Vec<usize>,
    pub dones: Vec<usize>,
    pub checks: Vec<usize>,
    pub starts: Vec<usize>,
}

/// An explicit position.
pub(super) struct Reset {
    pub event: usize,
    pub from: Option<i64>,
    pub to: i64,
}

pub(super) struct View<'a> {
    pub case: &'a Case,
    pub story: Story,
    pub clock: Clock,
    /// Beside each ownership of the story.
    pub seen: Vec<Seen>,
    pub by_token: BTreeMap<(TopicPartition, i64), usize>,
    /// The ownerships of each partition in their order.
    pub by_partition: BTreeMap<TopicPartition, Vec<usize>>,
    pub resets: BTreeMap<(Arc<str>, TopicPartition), Vec<Reset>>,
    /// What was sent, and whether it is still there to be read.
    pub sent: BTreeMap<TopicPartition, BTreeMap<i64, bool>>,
    /// Done, by whomever.
    pub done: BTreeMap<TopicPartition, BTreeSet<i64>>,
    /// Members that took down what was delivered to them.
    pub witnesses: BTreeSet<Arc<str>>,
    /// Sessions that somebody ended.
    pub expired: BTreeSet<i64>,
    pub killed: BTreeMap<Arc<str>, Vec<usize>>,
    /// How members say they gave partitions up.
    pub released: BTreeMap<(Arc<str>, TopicPartition), Vec<usize>>,
    /// When members' listeners were told that partitions are lost.
    pub lost: BTreeMap<(Arc<str>, TopicPartition), Vec<usize>>,
    /// Events whose token fits no ownership, and why.
    pub strays: Vec<(usize, String)>,
}

/// Where a violation was seen.
#[derive(Default)]
pub(super) struct Report {
    pub window: Option<(TopicPartition, i64)>,
    pub zxid: Option<i64>,
    pub event: Option<usize>,
}

impl Report {
    pub fn of(window: &Window) -> Self {
        Self {
            window: Some((window.partition.clone(), window.token())),
            ..Self::default()
        }
    }

    pub fn at(self, zxid: i64) -> Self {
        Self {
            zxid: Some(zxid),
            ..self
        }
    }

    pub fn seen(self, event: usize) -> Self {
        Self {
            event: Some(event),
            ..self
        }
    }
}

impl<'a> View<'a> {
    pub fn of(case: &'a Case) -> Self {
        let story = replay(case);
        let mut by_token = BTreeMap::new();
        let mut by_partition: BTreeMap<TopicPartition, Vec<usize>> = BTreeMap::new();
        for (at, window) in story.windows.iter().enumerate() {
            by_token.insert((window.partition.clone(), window.token()), at);
            let list = by_partition.entry(window.partition.clone()).or_default();
            list.push(at);
        }
        let seen = story.windows.iter().map(|_| Seen::default()).collect();
        let mut view = Self {
            case,
            story,
            clock: Clock::default(),
            seen,
            by_token,
            by_partition,
            resets: BTreeMap::new(),
            sent: BTreeMap::new(),
            done: BTreeMap::new(),
            witnesses: BTreeSet::new(),
            expired: BTreeSet::new(),
            killed: BTreeMap::new(),
            lost: BTreeMap::new(),
            released: BTreeMap::new(),
            strays: Vec::new(),
        };
        for (at, event) in case.events.iter().enumerate() {
            view.enter(at, event);
        }
        view.clock.pairs.sort_unstable();
        view
    }

    fn enter(&mut self, at: usize, event: &Event) {
        let is_ours = self.case.ours.contains(&event.member);
        if is_ours && tells_of_messages(&event.fact) && !self.witnesses.contains(&event.member) {
            self.witnesses.insert(event.member.clone());
        }
        match &event.fact {
            Fact::Checked { partition, token } => {
                if let Some(window) = self.window_of(at, event, partition, *token) {
                    self.seen[window].checks.push(at);
                }
            }
            Fact::Delivered {
                partition, token, ..
            } => {
                if let Some(window) = self.window_of(at, event, partition, *token) {
                    self.seen[window].deliveries.push(at);
                }
            }
            Fact::Done {
                partition,
                token,
                offset,
            } => {
                let done = self.done.entry(partition.clone()).or_default();
                done.insert(*offset);
                if let Some(window) = self.window_of(at, event, partition, *token) {
                    self.seen[window].dones.push(at);
                }
            }
            Fact::Started {
                partition, token, ..
            } => {
                if let Some(window) = self.window_of(at, event, partition, *token) {
                    self.seen[window].starts.push(at);
                }
            }
            Fact::Reset {
                partition,
                from,
                to,
            } => {
                let key = (event.member.clone(), partition.clone());
                let list = self.resets.entry(key).or_default();
                list.push(Reset {
                    event: at,
                    from: *from,
                    to: *to,
                });
            }
            Fact::Released { partition, .. } => {
                let key = (event.member.clone(), partition.clone());
                self.released.entry(key).or_default().push(at);
            }
            Fact::Callback {
                name,
                phase: Phase::Enter,
                partitions,
            } if name == "on_lost" => {
                for partition in partitions {
                    let key = (event.member.clone(), partition.clone());
                    self.lost.entry(key).or_default().push(at);
                }
            }
            Fact::Killed { member } => self.killed.entry(member.clone()).or_default().push(at),
            Fact::Expired { session } => {
                self.expired.insert(*session);
            }
            Fact::Sent { partition, offset } => {
                let sent = self.sent.entry(partition.clone()).or_default();
                sent.insert(*offset, true);
            }
            Fact::Trimmed { partition, before } => {
                let sent = self.sent.entry(partition.clone()).or_default();
                sent.range_mut(..before)
                    .for_each(|(_, is_there)| *is_there = false);
                // What bears the same offset later is another message.
                if let Some(done) = self.done.get_mut(partition) {
                    *done = done.split_off(before);
                }
            }
            Fact::Clock { real_us } => {
                let mono = i64::try_from(event.mono).unwrap_or(i64::MAX);
                self.clock.pairs.push((real_us.saturating_mul(1000), mono));
            }
            Fact::Joined { .. }
            | Fact::Callback { .. }
            | Fact::Overrun { .. }
            | Fact::Queued
            | Fact::Stopped { .. }
            | Fact::Cut { .. }
            | Fact::Healed
            | Fact::Settled
            | Fact::Other(_) => {}
        }
    }

    /// The ownership an event of ours belongs to.
    fn window_of(
        &mut self,
        at: usize,
        event: &Event,
        partition: &TopicPartition,
        token: i64,
    ) -> Option<usize> {
        if !self.case.ours.contains(&event.member) {
            return None;
        }
        let key = (partition.clone(), token);
        let Some(window) = self.by_token.get(&key).copied() else {
            let what = format!("no owner node of {partition} was ever made at {token}");
            self.strays.push((at, what));
            return None;
        };
        let owner = self.story.windows[window].member.as_deref();
        if owner != Some(&*event.member) {
            let owner = owner.unwrap_or("nobody");
            let what = format!("{} uses the token of {owner}", event.member);
            self.strays.push((at, what));
            return None;
        }
        Some(window)
    }

    // ---- order ----

    /// Whether the event came after the transaction: exactly, or as far as two clocks tell.
    pub fn is_after(&self, event: &Event, mark: Mark) -> bool {
        match (event.zxid, self.lateness(event, mark)) {
            (Some(zxid), _) => zxid >= mark.zxid,
            (None, Some(late)) => late >= 0,
            (None, None) => false,
        }
    }

    /// How many nanoseconds the event came after the transaction, by the clocks; negative for before. The servers count
    /// whole milliseconds, and the one that counts here is the end of the millisecond.
    pub fn lateness(&self, event: &Event, mark: Mark) -> Option<i64> {
        let mono = i64::try_from(event.mono).unwrap_or(i64::MAX);
        let at = self.clock.mono(mark.time_ms)?;
        Some(mono - at - NANOS_PER_MS)
    }

    /// Whether the event came after the transaction for certain, the tolerance taken into account.
    pub fn is_surely_after(&self, event: &Event, mark: Mark) -> bool {
        let tolerance = self.tolerance();
        match (event.zxid, self.lateness(event, mark)) {
            (Some(zxid), late) => {
                zxid >= mark.zxid && (tolerance == 0 || late.is_none_or(|late| late > tolerance))
            }
            (None, Some(late)) => late > tolerance,
            (None, None) => false,
        }
    }

    /// Whether the event came before the transaction for certain, the tolerance taken into account.
    pub fn is_surely_before(&self, event: &Event, mark: Mark) -> bool {
        match (event.zxid, self.lateness(event, mark)) {
            (Some(zxid), _) => zxid < mark.zxid,
            (None, Some(late)) => late + NANOS_PER_MS < -self.tolerance(),
            (None, None) => false,
        }
    }

    pub fn tolerance(&self) -> i64 {
        i64::try_from(self.case.limits.tolerance.as_nanos()).unwrap_or(i64::MAX)
    }

    /// Which events of the same member lie between these two; what is told of the second may come a moment after it.
    pub fn told_between(&self, first: usize, second: usize) -> impl Fn(usize) -> bool {
        let tolerance = self.case.limits.tolerance.as_nanos();
        let until = u128::from(self.case.events[second].mono) + tolerance;
        move |event| event > first && u128::from(self.case.events[event].mono) <= until
    }

    /// The last transaction before the event.
    pub fn mark_of(&self, event: &Event) -> Option<Mark> {
        let history = &self.case.history;
        let after = history.partition_point(|txn| self.is_after(event, mark(txn)));
        Some(mark(history.get(after.checked_sub(1)?)?))
    }

    // ---- offsets ----

    /// Whether reading that begins at `from` may deliver `offset` first: nothing that was sent lies between.
    pub fn fits(&self, partition: &TopicPartition, from: i64, offset: i64) -> bool {
        match self.sent.get(partition) {
            _ if offset < from => false,
            _ if offset == from => true,
            None => false,
            Some(sent) => !sent.range(from..offset).any(|(_, is_there)| *is_there),
        }
    }

    /// An offset that somebody else wrote in this ownership, after an event of its member if one is given.
    pub fn set_by_others(
        &self,
        window: &Window,
        after: Option<usize>,
        fits: impl Fn(i64) -> bool,
    ) -> Option<i64> {
        let writes = window.writes.iter().map(|at| &self.story.writes[*at]);
        let others = writes.filter(|write| {
            let is_later = |after| !self.is_surely_after(&self.case.events[after], write.mark);
            !write.is_ours && after.is_none_or(is_later)
        });
        others
            .filter_map(|write| write.value)
            .find(|value| fits(*value))
    }

    pub fn resets_of(&self, window: &Window) -> &[Reset] {
        let member = window.member.clone();
        let key = member.map(|member| (member, window.partition.clone()));
        let resets = key.and_then(|key| self.resets.get(&key));
        resets.map_or(&[], Vec::as_slice)
    }

    /// Whether the member of this ownership took down what was delivered to it.
    pub fn is_witnessed(&self, window: &Window) -> bool {
        let member = window.member.as_ref();
        window.is_ours && member.is_some_and(|member| self.witnesses.contains(member))
    }

    // ---- reports ----

    pub fn report(&self, verdict: &mut Verdict, rule: Rule, at: Report, what: impl Into<String>) {
        let around = if verdict.violations.len() < TOLD {
            self.around(&at)
        } else {
            Vec::new()
        };
        verdict.violations.push(Violation {
            rule,
            window: at.window,
            zxid: at.zxid,
            what: what.into(),
            around,
        });
    }

    fn around(&self, at: &Report) -> Vec<String> {
        let mut lines = Vec::new();
        let partition = at.window.as_ref().map(|(partition, _)| partition);
        if let Some(zxid) = at.zxid {
            let tail = partition.map(|p| format!("/{}/{}", p.topic.as_str(), p.partition));
            let concerns = |txn: &&Txn| {
                let touched = txn.changes.iter().filter_map(path);
                txn.zxid == zxid
                    || tail.as_ref().is_none_or(|tail| {
                        touched.clone().any(|path| path.ends_with(tail))
                            || txn.changes.contains(&Change::Closed)
                    })
            };
            let split = self.case.history.partition_point(|txn| txn.zxid < zxid);
            let (before, after) = self.case.history.split_at(split);
            let before = before.iter().rev().filter(concerns).take(AROUND);
            let mut told: Vec<String> = before.map(tell_txn).collect();
            told.reverse();
            told.extend(after.iter().filter(concerns).take(AROUND).map(tell_txn));
            lines.extend(told);
        }
        if let Some(place) = at.event {
            let (before, after) = self.case.events.split_at(place);
            let member = &self.case.events[place].member;
            let concerns = |event: &&Event| {
                event.member == *member
                    && partition.is_none_or(|partition| about(&event.fact, partition))
            };
            let before = before.iter().rev().filter(concerns).take(AROUND);
            let mut told: Vec<String> = before.map(tell_event).collect();
            told.reverse();
            told.extend(after.iter().filter(concerns).take(AROUND).map(tell_event));
            lines.extend(told);
        }
        lines
    }
}

pub(super) fn mark(txn: &Txn) -> Mark {
    Mark {
        zxid: txn.zxid,
        time_ms: txn.time_ms,
    }
}

fn path(change: &Change) -> Option<&str> {
    match change {
        Change::Opened | Change::Closed => None,
        Change::Created { path, .. } | Change::Deleted { path } | Change::Set { path, .. } => {
            Some(path)
        }
    }
}

/// Whether one who tells this takes down what is delivered to it.
fn tells_of_messages(fact: &Fact) -> bool {
    matches!(
        fact,
        Fact::Checked { .. } | Fact::Delivered { .. } | Fact::Done { .. } | Fact::Other(_)
    )
}

/// Whether an event may have to do with a partition.
fn about(fact: &Fact, which: &TopicPartition) -> bool {
    match fact {
        Fact::Checked { partition, .. }
        | Fact::Delivered { partition, .. }
        | Fact::Done { partition, .. }
        | Fact::Started { partition, .. }
        | Fact::Reset { partition, .. }
        | Fact::Released { partition, .. }
        | Fact::Sent { partition, .. }
        | Fact::Trimmed { partition, .. } => partition == which,
        Fact::Callback { partitions, .. } => partitions.contains(which),
        _ => true,
    }
}

fn tell_txn(txn: &Txn) -> String {
    let changes: Vec<String> = txn.changes.iter().map(tell_change).collect();
    format!(
        "zxid {} at {} ms, session 0x{:x}: {}",
        txn.zxid,
        txn.time_ms,
        txn.session,
        changes.join(", ")
    )
}

fn tell_change(change: &Change) -> String {
    let text = |data: &[u8]| printable(&String::from_utf8_lossy(&data[..data.len().min(80)]));
    match change {
        Change::Opened => "the session opens".to_owned(),
        Change::Closed => "the session ends".to_owned(),
        Change::Created { path, data, .. } => {
            format!("makes {} = {}", printable(path), text(data))
        }
        Change::Deleted { path } => format!("deletes {}", printable(path)),
        Change::Set { path, data, .. } => format!("writes {} = {}", printable(path), text(data)),
    }
}

fn tell_event(event: &Event) -> String {
    let zxid = event
        .zxid
        .map_or(String::new(), |zxid| format!(" zxid {zxid}"));
    format!(
        "{}/{} #{} at {} ns{zxid}: {:?}",
        event.member, event.incarnation, event.seq, event.mono, event.fact
    )
}
