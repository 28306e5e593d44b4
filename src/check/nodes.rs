//! Whose nodes are whose: registered owners (I8), how long the nodes of the dead stay (I9), others' nodes (I10).

use crate::wire::decode_owner;

use crate::check::replay::{End, Mark, Place, Replay, is_stream_of};
use crate::check::verdict::{Rule, Verdict};
use crate::check::view::{NANOS_PER_MS, Report, View};
use crate::check::{Event, Fact};

/// Somebody does something to a node.
pub(super) struct Deed<'a> {
    pub session: i64,
    pub path: &'a str,
    pub place: &'a Place,
}

type Found = Option<(Rule, String)>;

fn foreign(what: String) -> Found {
    Some((Rule::I10, what))
}

/// A node is made; nothing is known of it yet.
pub(super) fn creation(
    now: &Replay<'_>,
    deed: &Deed<'_>,
    data: &[u8],
    is_ephemeral: bool,
) -> Found {
    let Deed {
        session,
        path,
        place,
    } = deed;
    if !now.is_ours(*session) {
        return None;
    }
    let member = now.member(*session)?;
    match place {
        Place::Registration(name) if name != member => {
            foreign(format!("{member} registers another: {path}"))
        }
        Place::Registration(_) if !is_ephemeral => foreign(format!("{path} is a lasting node")),
        Place::Owner(_) if !is_ephemeral => foreign(format!("{path} is a lasting node")),
        Place::Owner(_) => misnamed(member, data),
        Place::Offset(_) if is_ephemeral => foreign(format!("{path} goes with its session")),
        Place::Topic(_) | Place::Elsewhere => foreign(format!("{member} makes {path}")),
        Place::Registration(_) | Place::Offset(_) | Place::Parent => None,
    }
}

fn misnamed(member: &str, data: &[u8]) -> Found {
    let text = decode_owner(data);
    let what = || format!("{member} makes an owner node for {text}");
    (!is_stream_of(&text, member)).then(|| (Rule::I8, what()))
}

/// The stamp is what makes an owner: on servers that cannot make and stamp in one transaction, a node that was made and
/// never stamped was no ownership (2.2).
fn unregistered(now: &Replay<'_>, deed: &Deed<'_>, member: &str) -> Found {
    let what = match now.owner(&now.registration(member)) {
        Some(session) if session == deed.session => return None,
        Some(other) => format!("{member} is registered by session 0x{other:x} and owns by another"),
        None => format!("{member} owns and is not registered"),
    };
    Some((Rule::I8, what))
}

/// A node is deleted, by itself and not with its session.
pub(super) fn deletion(now: &Replay<'_>, deed: &Deed<'_>) -> Found {
    let found = touching(now, deed);
    if found.is_some() || !now.is_ours(deed.session) {
        return found;
    }
    match deed.place {
        Place::Offset(_) | Place::Parent => foreign(format!("a member deletes {}", deed.path)),
        _ => None,
    }
}

/// A node is written.
pub(super) fn writing(now: &Replay<'_>, deed: &Deed<'_>) -> Found {
    // A stamp names a version and no maker. What it meets, made in place of ours, a server that cannot make and stamp in one
    // transaction does not tell apart.
    if now.stamps_blindly(deed.session, deed.path) {
        return None;
    }
    touching(now, deed).or_else(|| {
        let member = now.member(deed.session)?;
        let is_stamp = now.is_ours(deed.session) && matches!(deed.place, Place::Owner(_));
        is_stamp.then(|| unregistered(now, deed, member)).flatten()
    })
}

/// A node is written or deleted.
fn touching(now: &Replay<'_>, deed: &Deed<'_>) -> Found {
    if !now.is_ours(deed.session) {
        return None;
    }
    let (member, path) = (now.member(deed.session)?, deed.path);
    match deed.place {
        Place::Registration(_) | Place::Owner(_) => {
            let owner = now.owner(path)?;
            let is_own = owner == deed.session || now.member(owner) == Some(member);
            let what = || format!("{member} touches {path} of session 0x{owner:x}");
            if is_own { None } else { foreign(what()) }
        }
        // Whether it owns the partition is another question (I2).
        Place::Offset(_) => None,
        Place::Topic(_) | Place::Parent | Place::Elsewhere => {
            foreign(format!("{member} touches {path}"))
        }
    }
}

pub(super) fn judge(view: &View<'_>, verdict: &mut Verdict) {
    let story = &view.story;
    for fault in &story.faults {
        let report = Report {
            window: fault.window.clone(),
            zxid: Some(fault.zxid),
            ..Report::default()
        };
        view.report(verdict, fault.rule, report, fault.what.clone());
    }
    verdict.counts.transactions = view.case.history.len() as u64;
    verdict.counts.stale = story.stale;
    let registrations = story.registrations.iter();
    let ours = registrations.filter(|one| view.case.ours.contains(&one.member));
    verdict.counts.registrations = ours.count() as u64;
    for window in &story.windows {
        let counts = &mut verdict.counts;
        if !window.is_ours {
            counts.others_claims += 1;
            continue;
        }
        counts.claims += 1;
        match window.to {
            Some((_, End::Released)) => counts.releases += 1,
            Some((_, End::Session)) => counts.expiries += 1,
            Some((_, End::Taken)) => counts.taken += 1,
            Some((_, End::Stale)) | None => {}
        }
    }
    let aways = aways(view);
    for (at, event) in view.case.events.iter().enumerate() {
        match &event.fact {
            Fact::Stopped { .. } => verdict.counts.stops += 1,
            Fact::Cut { .. } => verdict.counts.cuts += 1,
            Fact::Killed { member } => {
                verdict.counts.deaths += 1;
                lingering(view, verdict, at, event, member, &aways);
            }
            _ => {}
        }
    }
}

/// I9: what a killed member leaves behind goes with its session, neither sooner nor later than that ends.
fn lingering(
    view: &View<'_>,
    verdict: &mut Verdict,
    at: usize,
    kill: &Event,
    member: &str,
    aways: &[Away<'_>],
) {
    let Some((least, most)) = view.case.limits.lingering else {
        return;
    };
    let registrations = view.story.registrations.iter();
    let registrations = registrations
        .filter(|one| &*one.member == member)
        .map(|one| ("registration".to_owned(), one.session, one.from, one.to));
    let windows = view.story.windows.iter();
    let windows = windows
        .filter(|one| one.member.as_deref() == Some(member))
        .map(|one| (one.partition.to_string(), one.session, one.from, one.to));
    for (what, session, from, to) in registrations.chain(windows) {
        if view.expired.contains(&session)
            || !view.is_after(kill, from)
            || to.is_some_and(|(to, _)| view.is_after(kill, to))
        {
            continue;
        }
        let end = match to {
            Some((end, End::Session)) => end,
            Some(_) => continue,
            None => match view.case.history.last() {
                Some(last) => Mark {
                    zxid: last.zxid,
                    time_ms: last.time_ms,
                },
                None => continue,
            },
        };
        let Some(end_ns) = view.clock.mono(end.time_ms) else {
            continue;
        };
        let (least, most) = (nanos(least), nanos(most));
        if is_disturbed(aways, member, kill.mono, end_ns, most) {
            continue;
        }
        let stayed = end_ns - i64::try_from(kill.mono).unwrap_or(i64::MAX);
        let ms = stayed / NANOS_PER_MS;
        let is_wrong = match to {
            // The server counts whole milliseconds.
            Some(_) => stayed + NANOS_PER_MS < least || stayed > most,
            None => stayed > most,
        };
        if to.is_some() {
            verdict.counts.lingered += 1;
            let (low, high) = verdict.worst.lingering_ms.unwrap_or((ms, ms));
            verdict.worst.lingering_ms = Some((low.min(ms), high.max(ms)));
        }
        if is_wrong {
            let still = if to.is_some() {
                "went"
            } else {
                "is still there"
            };
            let report = Report {
                event: Some(at),
                zxid: Some(end.zxid),
                ..Report::default()
            };
            let what = format!("{what} of {member} {still} {ms} ms after it was killed");
            view.report(verdict, Rule::I9, report, what);
        }
    }
}

/// A member, and from when until when it stood still or was cut off.
type Away<'a> = (&'a str, u64, u64);

fn aways<'a>(view: &View<'a>) -> Vec<Away<'a>> {
    let events = view.case.events.iter();
    let away = |event: &'a Event| match &event.fact {
        Fact::Stopped { member, from, to } | Fact::Cut { member, from, to } => {
            Some((&**member, *from, *to))
        }
        _ => None,
    };
    events.filter_map(away).collect()
}

/// Whether the member may have given no sign of life for a while before it was killed, or the registry was away until the end.
fn is_disturbed(aways: &[Away<'_>], member: &str, kill: u64, end: i64, most: i64) -> bool {
    let since = kill.saturating_sub(most.unsigned_abs());
    aways.iter().any(|(who, from, to)| {
        *who == member && *to >= since && i64::try_from(*from).is_ok_and(|from| from <= end)
    })
}

fn nanos(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}
