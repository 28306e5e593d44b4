//! The listener's calls, one after another and in their order (I11).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::group::TopicPartition;

use crate::check::replay::End;
use crate::check::verdict::{Rule, Verdict};
use crate::check::view::{Report, View};
use crate::check::{Event, Fact, Phase};

/// What one start of a member has told so far.
#[derive(Default)]
struct Story<'a> {
    /// The call that has not ended.
    open: Option<&'a str>,
    /// The last call about each partition.
    last: BTreeMap<&'a TopicPartition, &'a str>,
    /// Calls that were made and have not begun: their events.
    queued: VecDeque<usize>,
}

/// What the calls said about ownerships.
#[derive(Default)]
struct Told {
    /// Members one of whose calls did not end in its time.
    late: BTreeSet<Arc<str>>,
    claimed: BTreeSet<usize>,
    asked: BTreeSet<usize>,
    /// Ownerships that a call said are over, or about to be.
    over: BTreeMap<usize, &'static str>,
}

pub(super) fn judge(view: &View<'_>, verdict: &mut Verdict) {
    let mut stories: BTreeMap<(&Arc<str>, u32), Story<'_>> = BTreeMap::new();
    let mut told = Told::default();
    for (at, event) in view.case.events.iter().enumerate() {
        if !view.case.ours.contains(&event.member) {
            continue;
        }
        match &event.fact {
            Fact::Callback {
                name,
                phase,
                partitions,
            } => {
                let story = stories
                    .entry((&event.member, event.incarnation))
                    .or_default();
                nesting(view, verdict, at, story, name, *phase);
                if *phase == Phase::Enter {
                    verdict.counts.calls += 1;
                    // It is about what was owned when it was made.
                    let made = story.queued.pop_front();
                    verdict.counts.queued += u64::from(made.is_some());
                    let made = made.map_or(event, |made| &view.case.events[made]);
                    for partition in partitions {
                        alternation(view, verdict, at, story, name, partition);
                        // Nobody knows when a call of such a member was made.
                        if !told.late.contains(&event.member) {
                            told.hear(view, made, name, partition);
                        }
                    }
                }
            }
            Fact::Queued => {
                let story = stories.entry((&event.member, event.incarnation));
                story.or_default().queued.push_back(at);
            }
            Fact::Overrun { .. } => {
                told.late.insert(event.member.clone());
            }
            Fact::Delivered {
                partition, token, ..
            } => delivery(view, verdict, at, &told, (partition, *token)),
            _ => {}
        }
    }
    unasked(view, verdict, &told);
}

fn nesting<'a>(
    view: &View<'_>,
    verdict: &mut Verdict,
    at: usize,
    story: &mut Story<'a>,
    name: &'a str,
    phase: Phase,
) {
    let before = story.open;
    story.open = (phase == Phase::Enter).then_some(name);
    let what = match (before, phase) {
        (Some(open), Phase::Enter) => format!("{name} begins within {open}"),
        (None, Phase::Leave | Phase::Panic) => format!("{name} ends and had not begun"),
        (Some(open), Phase::Leave | Phase::Panic) if open != name => {
            format!("{name} ends within {open}")
        }
        _ => return,
    };
    view.report(verdict, Rule::I11, Report::default().seen(at), what);
}

/// Claimed, then released or lost. A release that the end of the session overtakes is followed by the loss.
fn alternation<'a>(
    view: &View<'_>,
    verdict: &mut Verdict,
    at: usize,
    story: &mut Story<'a>,
    name: &'a str,
    partition: &'a TopicPartition,
) {
    let before = story.last.insert(partition, name);
    let is_in_order = match name {
        "after_claim" => before != Some("after_claim"),
        "before_release" => before == Some("after_claim"),
        "on_lost" => matches!(before, Some("after_claim" | "before_release")),
        _ => return,
    };
    if !is_in_order {
        let before = before.unwrap_or("nothing");
        let what = format!("{name} of {partition} comes after {before}");
        view.report(verdict, Rule::I11, Report::default().seen(at), what);
    }
}

impl Told {
    fn hear(&mut self, view: &View<'_>, event: &Event, name: &str, partition: &TopicPartition) {
        let list = view.by_partition.get(partition).into_iter().flatten();
        for at in list.copied() {
            let window = &view.story.windows[at];
            let is_its = window.member.as_ref() == Some(&event.member);
            if !is_its || !view.is_after(event, window.from) {
                continue;
            }
            let is_over = window.to.is_some_and(|(end, _)| view.is_after(event, end));
            match name {
                "after_claim" if !is_over => {
                    self.claimed.insert(at);
                }
                "before_release" if !is_over => {
                    self.asked.insert(at);
                    self.over.entry(at).or_insert("before_release");
                }
                "on_lost" if is_over => {
                    self.over.entry(at).or_insert("on_lost");
                }
                _ => {}
            }
        }
    }
}

fn delivery(
    view: &View<'_>,
    verdict: &mut Verdict,
    at: usize,
    told: &Told,
    key: (&TopicPartition, i64),
) {
    let event = &view.case.events[at];
    let Some(place) = view.by_token.get(&(key.0.clone(), key.1)).copied() else {
        return;
    };
    let window = &view.story.windows[place];
    if window.member.as_ref() != Some(&event.member) {
        return;
    }
    if let Some(call) = told.over.get(&place) {
        let what = format!("a delivery after {call}");
        view.report(verdict, Rule::I11, Report::of(window).seen(at), what);
    }
    if view.is_surely_before(event, window.from) {
        let what = "a delivery before the claim";
        let report = Report::of(window).at(window.token()).seen(at);
        view.report(verdict, Rule::I11, report, what);
    }
}

/// What the listener was told is claimed is not given up before it was asked, unless by force.
fn unasked(view: &View<'_>, verdict: &mut Verdict, told: &Told) {
    for at in told.claimed.difference(&told.asked).copied() {
        let window = &view.story.windows[at];
        let (Some((end, End::Released)), Some(member)) = (window.to, &window.member) else {
            continue;
        };
        if told.late.contains(member) || window.is_spoiled {
            continue;
        }
        let is_excused = match told_of(view, at, member) {
            Some(is_forced) => is_forced,
            // Whose session ended before the answer came takes it for lost, and does not say how it was given up.
            None => view.story.registrations.iter().any(|one| {
                one.session == window.session && one.member == *member && one.to.is_some()
            }),
        };
        if !is_excused {
            let report = Report::of(window).at(end.zxid);
            let what = "released before the listener was asked";
            view.report(verdict, Rule::I11, report, what);
        }
    }
}

/// How the member said that it gave this ownership up, if it did: whether by force.
fn told_of(view: &View<'_>, at: usize, member: &Arc<str>) -> Option<bool> {
    let window = &view.story.windows[at];
    let partition = &window.partition;
    let mut later = view.by_partition[partition].iter().copied();
    let next = later.find(|one| *one > at && view.story.windows[*one].member == window.member);
    let next = next.map(|one| view.story.windows[one].from);
    let mut releases = view
        .released
        .get(&(member.clone(), partition.clone()))?
        .iter();
    releases.find_map(|told| {
        let event = &view.case.events[*told];
        let Fact::Released { is_forced, .. } = event.fact else {
            return None;
        };
        let is_its = view.is_after(event, window.from)
            && next.is_none_or(|next| !view.is_after(event, next));
        is_its.then_some(is_forced)
    })
}
