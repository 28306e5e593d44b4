//! Whether what was handed in fits together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::check::verdict::{Rule, Verdict};
use crate::check::view::{Report, View};
use crate::check::{Event, Fact};

pub(super) fn judge(view: &View<'_>, verdict: &mut Verdict) {
    verdict.counts.events = view.case.events.len() as u64;
    numbering(view, verdict);
    clock(view, verdict);
    for (at, what) in &view.strays {
        let report = Report::default().seen(*at);
        view.report(verdict, Rule::Form, report, what.clone());
    }
    undelivered(view, verdict);
    if let Some(at) = unplaced(view) {
        let what = "nobody can tell when this was: it names no transaction, and there is no clock";
        view.report(verdict, Rule::Form, Report::default().seen(at), what);
    }
}

/// Events are numbered from 1 without gaps, and no two starts of a process have one number.
fn numbering(view: &View<'_>, verdict: &mut Verdict) {
    let mut last: BTreeMap<(&Arc<str>, u32), u64> = BTreeMap::new();
    for (at, event) in view.case.events.iter().enumerate() {
        let Event {
            member,
            incarnation,
            seq,
            ..
        } = event;
        let last = last.entry((member, *incarnation)).or_default();
        let expected = last.saturating_add(1);
        *last = *seq;
        if *seq == expected {
            continue;
        }
        let what = if *seq == 1 {
            format!("two starts of {member} have the number {incarnation}")
        } else {
            format!("{member} tells {seq} where {expected} was to come")
        };
        view.report(verdict, Rule::Form, Report::default().seen(at), what);
    }
}

/// Neither of the two clocks goes back.
fn clock(view: &View<'_>, verdict: &mut Verdict) {
    let mut last: BTreeMap<(&Arc<str>, u32), (u64, i64)> = BTreeMap::new();
    for (at, event) in view.case.events.iter().enumerate() {
        let Fact::Clock { real_us } = event.fact else {
            continue;
        };
        let writer = (&event.member, event.incarnation);
        let before = last.insert(writer, (event.mono, real_us));
        if let Some((mono, real)) = before
            && (event.mono < mono || real_us < real)
        {
            let what = format!(
                "the clock goes back: {mono} ns and {real} us, then {} ns and {real_us} us",
                event.mono
            );
            view.report(verdict, Rule::Form, Report::default().seen(at), what);
        }
    }
}

/// What is done was delivered before, in the same ownership.
fn undelivered(view: &View<'_>, verdict: &mut Verdict) {
    for (window, seen) in view.story.windows.iter().zip(&view.seen) {
        let delivered: BTreeSet<i64> = offsets(view, &seen.deliveries).collect();
        for at in &seen.dones {
            let Fact::Done { offset, .. } = view.case.events[*at].fact else {
                continue;
            };
            if !delivered.contains(&offset) {
                let report = Report::of(window).seen(*at);
                let what = format!("{offset} is done and was not delivered");
                view.report(verdict, Rule::Form, report, what);
            }
        }
    }
}

/// The offsets of these events.
pub(super) fn offsets<'v>(
    view: &'v View<'_>,
    events: &'v [usize],
) -> impl Iterator<Item = i64> + 'v {
    events
        .iter()
        .filter_map(|at| match view.case.events[*at].fact {
            Fact::Delivered { offset, .. } | Fact::Done { offset, .. } => Some(offset),
            _ => None,
        })
}

/// An event of ours that has to stand beside the history and cannot.
fn unplaced(view: &View<'_>) -> Option<usize> {
    if view.clock.is_there() {
        return None;
    }
    let seen = view.seen.iter().flat_map(|seen| &seen.deliveries);
    let mut seen = seen.filter(|at| view.case.events[**at].zxid.is_none());
    seen.next().copied()
}
