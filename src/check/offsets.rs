//! Who wrote which offset: the owner only (I2), forward only (I3), and what was done only (I4).

use crate::check::Fact;
use crate::check::ledger::{Ledger, Used};
use crate::check::replay::OffsetWrite;
use crate::check::verdict::{Rule, Verdict};
use crate::check::view::{Report, View};

pub(super) fn judge(view: &View<'_>, verdict: &mut Verdict) {
    let mut used = Used::default();
    for list in view.resets.values() {
        verdict.counts.resets += list.len() as u64;
    }
    for write in &view.story.writes {
        if !write.is_ours {
            verdict.counts.others_commits += 1;
            continue;
        }
        if write.is_deletion || write.is_confirmation {
            continue;
        }
        verdict.counts.commits += 1;
        owner_only(view, verdict, write);
        forward_only(view, verdict, write, &mut used);
    }
}

fn report(view: &View<'_>, write: &OffsetWrite) -> Report {
    let window = write.owned.map(|at| &view.story.windows[at]);
    let token = window.map_or(0, |window| window.token());
    Report {
        window: Some((write.partition.clone(), token)),
        zxid: Some(write.mark.zxid),
        event: None,
    }
}

fn owner_only(view: &View<'_>, verdict: &mut Verdict, write: &OffsetWrite) {
    // A claim makes a missing node, in advance where a transaction cannot create any, and takes away what is older than its
    // topic: it says then that there is no offset.
    let is_claim = write.owned.is_some_and(|at| {
        let first = view.story.windows[at].writes.first();
        first.is_some_and(|first| std::ptr::eq(&view.story.writes[*first], write))
    });
    let is_placeholder =
        write.value.is_none() && (write.is_creation || is_claim || is_of_former(view, write));
    if write.owned.is_none() && !is_placeholder {
        let member = write.member.as_deref().unwrap_or("somebody");
        let what = format!("{member} writes {} and does not own it", told(write.value));
        view.report(verdict, Rule::I2, report(view, write), what);
    }
    if write.value.is_none() && !is_placeholder {
        let what = "it writes what is no offset";
        view.report(verdict, Rule::I4, report(view, write), what);
    }
}

/// The topic was deleted or made anew since the writer registered: what stands there is of the former one, as far as the writer
/// knows, and is taken away. Once is enough.
fn is_of_former(view: &View<'_>, write: &OffsetWrite) -> bool {
    let story = &view.story;
    let (Some(at), Some(texts)) = (write.owned, story.topics.get(&write.partition.topic)) else {
        return false;
    };
    let window = &story.windows[at];
    let registered = story.registrations.iter();
    let registered = registered.filter(|one| one.session == window.session);
    let since = registered.map(|one| one.from.zxid).min();
    let since = since.unwrap_or(window.from.zxid);
    let earlier = window.writes.iter().map(|at| &story.writes[*at]);
    // The claim's own write is the first.
    let cleared = earlier
        .skip(1)
        .filter(|one| one.mark.zxid < write.mark.zxid && is_clearing(one));
    let since = since.max(cleared.map(|one| one.mark.zxid).max().unwrap_or(since));
    let changes = texts
        .windows(2)
        .filter(|pair| pair[0].1.is_some() != pair[1].1.is_some());
    let mut marks = changes.map(|pair| pair[1].0.zxid);
    marks.any(|zxid| (since..write.mark.zxid).contains(&zxid))
}

/// Whether it takes away what stands there.
pub(super) fn is_clearing(write: &OffsetWrite) -> bool {
    write.is_ours
        && write.value.is_none()
        && !write.is_creation
        && !write.is_confirmation
        && !write.is_deletion
}

fn told(value: Option<i64>) -> String {
    value.map_or("what is no offset".to_owned(), |value| value.to_string())
}

fn forward_only(view: &View<'_>, verdict: &mut Verdict, write: &OffsetWrite, used: &mut Used) {
    let Some(value) = write.value else {
        return;
    };
    let before = write.previous.and_then(|previous| previous.value);
    let is_back = before.is_some_and(|before| value < before);
    let resets = write.member.as_ref().and_then(|member| {
        let key = (member.clone(), write.partition.clone());
        view.resets.get(&key)
    });
    let resets = resets.map_or(&[][..], Vec::as_slice);
    if !is_back {
        if before.is_none() {
            // The policy's position, which was told as well.
            used.take(resets, |to| to == value);
        }
        return;
    }
    let is_over_others = write.previous.is_some_and(|previous| !previous.is_ours);
    if is_over_others || used.take(resets, |to| to == value).is_some() {
        verdict.counts.set_back += 1;
        return;
    }
    let what = format!("{} is set back to {value}", told(before));
    view.report(verdict, Rule::I3, report(view, write), what);
}

/// I4: at the moment of each commit of an ownership all before it is done, or was before it began.
pub(super) fn committed(
    view: &View<'_>,
    verdict: &mut Verdict,
    at: usize,
    mut ledger: Ledger,
    used: &mut Used,
) {
    let (window, seen) = (&view.story.windows[at], &view.seen[at]);
    let resets = view.resets_of(window);
    let mut dones = seen.dones.iter().copied().peekable();
    let is_later = |done: usize, mark| view.is_surely_after(&view.case.events[done], mark);
    let mut given = window.stored;
    for write in window.writes.iter().map(|at| &view.story.writes[*at]) {
        while let Some(done) = dones.next_if(|done| !is_later(*done, write.mark)) {
            if let Fact::Done { offset, .. } = view.case.events[done].fact {
                ledger.done(offset, done);
            }
        }
        let is_judged = write.is_ours && !write.is_confirmation;
        let Some(value) = write.value.filter(|_| is_judged) else {
            continue;
        };
        let most = given.max(ledger.most());
        let is_start = window.stored.is_none() && given.is_none();
        if most.is_some_and(|most| value <= most)
            || is_start
            || used.take(resets, |to| to == value).is_some()
        {
            given = given.max(Some(value));
            continue;
        }
        let most = most.map_or("nothing".to_owned(), |most| format!("all before {most}"));
        let what = format!("{value} is committed and {most} is done");
        view.report(verdict, Rule::I4, report(view, write), what);
    }
}
