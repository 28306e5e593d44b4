//! What was delivered in each ownership: in time (I1), without a gap (I5), from the right place (I6), and what a clean end
//! leaves to the next (I7).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::check::form::offsets;
use crate::check::ledger::{Ledger, Used};
use crate::check::offsets::{committed, is_clearing};
use crate::check::replay::{End, Mark, Window};
use crate::check::verdict::{Rule, Verdict};
use crate::check::view::{NANOS_PER_MS, Report, View};
use crate::check::{Event, Fact};

/// A time during which a process stood still, or was cut off.
#[derive(Clone, Copy)]
struct Span<'a> {
    member: &'a Arc<str>,
    from: u64,
    to: u64,
}

/// What disturbed the members.
struct Spans<'a> {
    stops: Vec<Span<'a>>,
    /// Stops and cuts in the order of their beginnings: meanwhile nobody heard anything.
    deaf: Vec<Span<'a>>,
}

/// Streams that a stop has excused once.
type Excused = BTreeSet<(usize, String)>;

pub(super) fn judge(view: &View<'_>, verdict: &mut Verdict) {
    let spans = spans(view);
    let (mut excused, mut used, mut rewritten) = (Excused::new(), Used::default(), Used::default());
    for list in view.by_partition.values() {
        let mut before: BTreeSet<i64> = BTreeSet::new();
        let mut last: Option<&Window> = None;
        for (place, at) in list.iter().copied().enumerate() {
            let window = &view.story.windows[at];
            if let Some((gone, _)) = last.and_then(|last| last.to) {
                let gap = window.from.time_ms - gone.time_ms;
                verdict.worst.unowned_ms = verdict.worst.unowned_ms.max(gap);
            }
            last = Some(window);
            if !view.is_witnessed(window) {
                continue;
            }
            count(view, verdict, at, &mut before);
            in_time(view, verdict, at, &spans, &mut excused);
            let (ledger, issues) = Ledger::read(view, at, &mut used);
            for issue in issues {
                let report = Report::of(window).seen(issue.event);
                view.report(verdict, issue.rule, report, issue.what);
            }
            committed(view, verdict, at, ledger.clone(), &mut rewritten);
            let next = list[place + 1..]
                .iter()
                .map(|next| &view.story.windows[*next])
                .find(|next| next.member == window.member);
            clean(view, verdict, at, ledger, next.map(|next| next.from));
        }
    }
}

fn spans<'a>(view: &View<'a>) -> Spans<'a> {
    let (mut stops, mut deaf) = (Vec::new(), Vec::new());
    for event in &view.case.events {
        let (member, from, to) = match &event.fact {
            Fact::Stopped { member, from, to } | Fact::Cut { member, from, to } => {
                (member, *from, *to)
            }
            _ => continue,
        };
        let span = Span { member, from, to };
        if matches!(event.fact, Fact::Stopped { .. }) {
            stops.push(span);
        }
        deaf.push(span);
    }
    deaf.sort_by_key(|span| span.from);
    Spans { stops, deaf }
}

fn count(view: &View<'_>, verdict: &mut Verdict, at: usize, before: &mut BTreeSet<i64>) {
    let (window, seen) = (&view.story.windows[at], &view.seen[at]);
    let delivered: Vec<i64> = offsets(view, &seen.deliveries).collect();
    let again = delivered.iter().filter(|offset| before.contains(*offset));
    let again = again.count() as u64;
    before.extend(&delivered);
    let counts = &mut verdict.counts;
    counts.deliveries += delivered.len() as u64;
    counts.dones += seen.dones.len() as u64;
    counts.redeliveries += again;
    if let Some((end, _)) = window.to {
        let dones = seen.dones.iter();
        let late = dones.filter(|done| view.is_surely_after(&view.case.events[**done], end));
        counts.late_dones += late.count() as u64;
    }
    verdict.worst.redelivered = verdict.worst.redelivered.max(again);
}

/// I1: nothing is delivered once the owner node is gone.
fn in_time(
    view: &View<'_>,
    verdict: &mut Verdict,
    at: usize,
    spans: &Spans<'_>,
    excused: &mut Excused,
) {
    let (window, seen) = (&view.story.windows[at], &view.seen[at]);
    let Some((end, how)) = window.to else {
        return;
    };
    let is_expired = how == End::Session && view.expired.contains(&window.session);
    let is_by_hand = how == End::Taken || is_expired;
    if how == End::Session && !is_by_hand {
        margin(view, verdict, seen.deliveries.last().copied(), end);
    }
    for event in seen.deliveries.iter().copied() {
        let delivery = &view.case.events[event];
        if !view.is_surely_after(delivery, end) {
            continue;
        }
        let late = view.lateness(delivery, end);
        let late_ms = late.map(|late| late.max(0) / NANOS_PER_MS);
        verdict.worst.late_ms = verdict.worst.late_ms.max(late_ms);
        if is_by_hand && late.is_none_or(|late| is_unaware(view, delivery, late, &spans.deaf)) {
            verdict.counts.unaware += 1;
            continue;
        }
        if is_excused(view, at, delivery, end, &spans.stops, excused) {
            verdict.counts.excused += 1;
            continue;
        }
        let late = late_ms.map_or(String::new(), |ms| format!(" {ms} ms"));
        let why = match how {
            End::Released => "it was released",
            End::Session => "its session had ended",
            End::Stale => "a later session of the same member took it",
            End::Taken => "another's hand had taken it",
        };
        let what = format!("a delivery{late} after {why}");
        let report = Report::of(window).at(end.zxid).seen(event);
        view.report(verdict, Rule::I1, report, what);
    }
}

/// Whether the member could not have heard of it: so soon after it, or after a cut or stop during which it happened.
fn is_unaware(view: &View<'_>, delivery: &Event, late: i64, deaf: &[Span<'_>]) -> bool {
    let limit = view.case.limits.unaware + view.case.limits.tolerance;
    let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    let end = delivery.mono.saturating_sub(late.unsigned_abs());
    let mut known = end;
    // One may begin before the member could react to the end of another.
    for span in deaf.iter().filter(|span| *span.member == delivery.member) {
        if span.from <= known.saturating_add(limit) && span.to > known {
            known = span.to;
        }
    }
    late <= 0 || delivery.mono <= known.saturating_add(limit)
}

/// Whether the process stood still between its look at the lease and the hand-off; once for a stream and stop.
fn is_excused(
    view: &View<'_>,
    at: usize,
    delivery: &Event,
    end: Mark,
    stops: &[Span<'_>],
    excused: &mut Excused,
) -> bool {
    let (window, seen) = (&view.story.windows[at], &view.seen[at]);
    let checks = seen.checks.iter().map(|check| &view.case.events[*check]);
    let before =
        |check: &&Event| (check.incarnation, check.seq) < (delivery.incarnation, delivery.seq);
    let Some(check) = checks.rev().find(before) else {
        return false;
    };
    if view.is_surely_after(check, end) {
        return false;
    }
    let mut overlapping = stops.iter().enumerate().filter(|(_, stop)| {
        *stop.member == delivery.member && stop.from <= delivery.mono && check.mono <= stop.to
    });
    let stream = format!("{} {}", window.partition.topic, window.stream);
    overlapping.any(|(place, _)| excused.insert((place, stream.clone())))
}

fn margin(view: &View<'_>, verdict: &mut Verdict, last: Option<usize>, end: Mark) {
    let late = last.and_then(|last| view.lateness(&view.case.events[last], end));
    if let Some(late) = late {
        let margin = -late / NANOS_PER_MS;
        let least = verdict
            .worst
            .margin_ms
            .map_or(margin, |least| least.min(margin));
        verdict.worst.margin_ms = Some(least);
    }
}

/// I7: who gives a partition up in order leaves nothing done uncommitted, so that the next repeats nothing.
fn clean(
    view: &View<'_>,
    verdict: &mut Verdict,
    at: usize,
    mut ledger: Ledger,
    next: Option<Mark>,
) {
    let (window, seen) = (&view.story.windows[at], &view.seen[at]);
    let Some((end, End::Released)) = window.to else {
        return;
    };
    let writes = window.writes.iter().map(|at| &view.story.writes[*at]);
    let is_meddled = writes
        .clone()
        .any(|write| !write.is_ours || write.is_deletion);
    // Of a topic that was made anew under it. The claim's own write is the first.
    let is_cleared = writes.skip(1).any(is_clearing);
    let is_reset = view
        .resets_of(window)
        .iter()
        .any(|reset| reset.from.is_some());
    if !view.case.limits.is_committing
        || window.is_topic_gone
        || window.is_spoiled
        || is_meddled
        || is_cleared
        || is_reset
        || !ledger.is_plain()
        || is_disturbed(view, window, next)
    {
        return;
    }
    verdict.counts.clean += 1;
    for done in &seen.dones {
        let event = &view.case.events[*done];
        if let Fact::Done { offset, .. } = event.fact
            && view.is_surely_before(event, end)
        {
            ledger.done(offset, *done);
        }
    }
    let Some(position) = ledger.position() else {
        return;
    };
    // What is gone from the log is repeated by nobody.
    let is_behind = |left| left < position && !view.fits(&window.partition, left, position);
    if window.left.is_none_or(is_behind) {
        let left = window
            .left
            .map_or("nothing".to_owned(), |left| left.to_string());
        let what = format!("all before {position} is done and {left} is committed");
        let report = Report::of(window).at(end.zxid);
        view.report(verdict, Rule::I7, report, what);
    }
}

/// Whether the member gave it up by force, or was killed over it, or lost it over it; until it owned the partition again.
fn is_disturbed(view: &View<'_>, window: &Window, next: Option<Mark>) -> bool {
    let Some(member) = &window.member else {
        return true;
    };
    let is_within = |at: &&usize| {
        let event = &view.case.events[**at];
        view.is_after(event, window.from) && !next.is_some_and(|next| view.is_after(event, next))
    };
    let key = (member.clone(), window.partition.clone());
    let mut told = view
        .released
        .get(&key)
        .into_iter()
        .flatten()
        .filter(is_within);
    let is_forced = |fact: &Fact| matches!(fact, Fact::Released { is_forced, undone, .. } if *is_forced || *undone > 0);
    match told.next() {
        Some(first) => {
            is_forced(&view.case.events[*first].fact)
                || told.any(|at| is_forced(&view.case.events[*at].fact))
        }
        // It was killed, or its session or its registration ended, while the release was under way: what was acknowledged
        // meanwhile came too late.
        None => {
            let killed = view.killed.get(member).into_iter().flatten();
            let lost = view.lost.get(&key).into_iter().flatten();
            killed.chain(lost).any(|at| is_within(&at))
        }
    }
}
