//! Where reading begins: at what was committed, and where nothing was, where the policy says (I6).

use crate::config::Reset;
use crate::group::TopicPartition;

use crate::check::replay::{OffsetWrite, Window};
use crate::check::verdict::{Rule, Verdict};
use crate::check::view::{Report, View};
use crate::check::{Fact, How};

pub(super) fn judge(view: &View<'_>, verdict: &mut Verdict) {
    for (at, window) in view.story.windows.iter().enumerate() {
        if !window.is_ours {
            continue;
        }
        if let Some(event) = view.seen[at].starts.first().copied() {
            told(view, verdict, window, event);
        }
        if let Some(write) = first_start(view, window) {
            chosen(view, verdict, window, write);
        }
    }
    for ((_, partition), resets) in &view.resets {
        for reset in resets {
            let Err(why) = by_policy(view, partition, reset.to, None) else {
                continue;
            };
            let report = Report {
                window: Some((partition.clone(), 0)),
                ..Report::default()
            };
            let what = format!("the position is set to {}, {why}", reset.to);
            view.report(verdict, Rule::I6, report.seen(reset.event), what);
        }
    }
}

/// What a member said about its start, against what was committed.
fn told(view: &View<'_>, verdict: &mut Verdict, window: &Window, event: usize) {
    let Fact::Started { offset, how, .. } = view.case.events[event].fact else {
        return;
    };
    verdict.counts.starts += 1;
    let mut writes = window.writes.iter().map(|at| &view.story.writes[*at]);
    let what = match (how, window.stored) {
        (How::Stored, stored) if stored != Some(offset) => {
            // Somebody put it there for the one who waits for it.
            if writes.any(|write| write.value == Some(offset)) {
                return;
            }
            let stored = stored.map_or("nothing".to_owned(), |stored| stored.to_string());
            format!("it begins at {offset} as stored, and {stored} is stored")
        }
        (How::Policy, Some(stored)) => {
            // It was taken away before it was read, by an operator or by the claim since it is older than its topic.
            if writes.any(|write| write.value.is_none()) {
                return;
            }
            format!("it begins at {offset} by the policy, and {stored} is stored")
        }
        _ => return,
    };
    view.report(verdict, Rule::I6, Report::of(window).seen(event), what);
}

/// The write by which the owner says where it begins: the first of an ownership that found nothing.
fn first_start<'v>(view: &'v View<'_>, window: &Window) -> Option<&'v OffsetWrite> {
    if window.stored.is_some() {
        return None;
    }
    let mut writes = window.writes.iter().map(|at| &view.story.writes[*at]);
    let first = writes.find(|write| write.value.is_some())?;
    first.is_ours.then_some(first)
}

fn chosen(view: &View<'_>, verdict: &mut Verdict, window: &Window, write: &OffsetWrite) {
    let Some(value) = write.value else {
        return;
    };
    verdict.counts.first_starts += 1;
    if let Err(why) = by_policy(view, &window.partition, value, Some(window)) {
        let report = Report::of(window).at(write.mark.zxid);
        let what = format!("{value} is committed as the start, {why}");
        view.report(verdict, Rule::I6, report, what);
    }
}

/// Whether the policy may have said so; for the largest one only as far as an ownership tells since when.
fn by_policy(
    view: &View<'_>,
    partition: &TopicPartition,
    start: i64,
    since: Option<&Window>,
) -> Result<(), String> {
    let sent = view.sent.get(partition);
    let before = sent.and_then(|sent| {
        let mut before = sent.range(..start).filter(|(_, is_there)| **is_there);
        before.next().map(|(offset, _)| *offset)
    });
    match (view.case.policy, since) {
        (Some(Reset::Smallest), _) => match before {
            Some(before) => Err(format!("and {before} lies before it")),
            None => Ok(()),
        },
        // A partition that is new is read from its beginning whatever the policy says.
        (Some(Reset::Largest), Some(window)) if before.is_some() => {
            let sent = view
                .case
                .events
                .iter()
                .filter_map(|event| match &event.fact {
                    Fact::Sent {
                        partition: which,
                        offset,
                    } if which == partition => {
                        view.is_surely_before(event, window.from).then_some(*offset)
                    }
                    _ => None,
                });
            match sent.max().filter(|last| *last >= start) {
                Some(last) => Err(format!("and {last} had been sent already")),
                None => Ok(()),
            }
        }
        (Some(Reset::None), _) => Err("and the policy is to have none".to_owned()),
        _ => Ok(()),
    }
}
