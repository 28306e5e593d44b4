//! When the faults are over: everybody owns what the rule says (I14), and everything that was sent is done (I16).

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Reset;
use crate::group::{ConsumerId, Subscription, Topic, TopicPartition};
use crate::wire::{decode_registration, decode_topic};

use crate::check::replay::{Mark, OffsetWrite};
use crate::check::verdict::{Rule, Verdict};
use crate::check::view::{NANOS_PER_MS, Report, View, mark};
use crate::check::{Fact, Owners, Roll};

pub(super) fn judge(view: &View<'_>, verdict: &mut Verdict) {
    let sent = view.sent.values().map(|sent| sent.len() as u64);
    verdict.counts.sent = sent.sum();
    let mut settled = None;
    for (at, event) in view.case.events.iter().enumerate() {
        match event.fact {
            Fact::Settled => {
                settled = Some(at);
                shared(view, verdict, at, view.mark_of(event));
            }
            Fact::Healed if view.case.limits.convergence.is_some() => {
                shared(view, verdict, at, due(view, event.mono));
            }
            _ => {}
        }
    }
    if let Some(at) = settled {
        drained(view, verdict, at);
    }
}

/// The last transaction before the group has to have converged.
fn due(view: &View<'_>, healed: u64) -> Option<Mark> {
    let time = view.case.limits.convergence?;
    let time = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    let due = i64::try_from(healed)
        .unwrap_or(i64::MAX)
        .saturating_add(time);
    let history = &view.case.history;
    let mono = |time_ms| view.clock.mono(time_ms).unwrap_or(i64::MAX);
    let after = history.partition_point(|txn| mono(txn.time_ms) + NANOS_PER_MS <= due);
    Some(mark(history.get(after.checked_sub(1)?)?))
}

/// I14.
fn shared(view: &View<'_>, verdict: &mut Verdict, at: usize, mark: Option<Mark>) {
    let known = mark.and_then(|mark| {
        let roll = roll(view, mark);
        let expected = match &view.case.expected {
            Some(expected) => Some(expected(&roll)),
            None => range(&roll),
        };
        expected.map(|expected| (mark, expected))
    });
    let Some((mark, expected)) = known else {
        verdict.counts.unsettled += 1;
        return;
    };
    verdict.counts.settled += 1;
    let owners = owners(view, mark);
    if owners == expected {
        return;
    }
    let mut what = String::from("the owners are not those of the rule:");
    let all = owners.keys().chain(expected.keys());
    let all: BTreeSet<&TopicPartition> = all.collect();
    for partition in all {
        let (is, ought) = (owners.get(partition), expected.get(partition));
        if is != ought {
            let text = |owner: Option<&String>| owner.map_or("nobody", String::as_str).to_owned();
            what.push_str(&format!(" {partition} {} not {},", text(is), text(ought)));
        }
    }
    let report = Report::default().at(mark.zxid).seen(at);
    view.report(verdict, Rule::I14, report, what.trim_end_matches(','));
}

fn owners(view: &View<'_>, mark: Mark) -> Owners {
    let windows = view.story.windows.iter();
    let open = windows.filter(|one| {
        one.from.zxid <= mark.zxid && one.to.is_none_or(|(end, _)| end.zxid > mark.zxid)
    });
    open.map(|window| (window.partition.clone(), window.stream.clone()))
        .collect()
}

fn roll(view: &View<'_>, mark: Mark) -> Roll {
    let mut roll = Roll::default();
    for one in &view.story.registrations {
        let is_there =
            one.from.zxid <= mark.zxid && one.to.is_none_or(|(end, _)| end.zxid > mark.zxid);
        let mut texts = one.texts.iter().rev();
        let text = texts.find(|(at, _)| at.zxid <= mark.zxid);
        if let (true, Some((_, text))) = (is_there, text)
            && let Ok(subscription) = decode_registration(text)
        {
            let consumer = ConsumerId::new(one.member.clone());
            roll.members.insert(consumer, subscription);
        }
    }
    for (topic, texts) in &view.story.topics {
        let text = texts.iter().rev().find(|(at, _)| at.zxid <= mark.zxid);
        if let Some((_, Some(text))) = text
            && let Ok(partitions) = decode_topic(text)
        {
            roll.partitions.insert(topic.clone(), partitions);
        }
    }
    roll
}

/// The range rule, counted here on its own: streams in the order of their texts, partitions in that of their numbers, the first
/// streams one more each. None if a member subscribes by a filter, which is not read here.
fn range(roll: &Roll) -> Option<Owners> {
    let mut streams: BTreeMap<&Topic, Vec<String>> = BTreeMap::new();
    for (consumer, subscription) in &roll.members {
        let Subscription::Topics(topics) = subscription else {
            return None;
        };
        for (topic, count) in topics {
            let texts = (0..*count).map(|number| format!("{}-{number}", consumer.as_str()));
            streams.entry(topic).or_default().extend(texts);
        }
    }
    let mut owners = Owners::new();
    for (topic, mut streams) in streams {
        streams.sort_by(|one, other| one.encode_utf16().cmp(other.encode_utf16()));
        let partitions = roll.partitions.get(topic);
        let Some(partitions) = partitions.filter(|_| !streams.is_empty()) else {
            continue;
        };
        let (each, more) = (
            partitions.len() / streams.len(),
            partitions.len() % streams.len(),
        );
        let mut rest = partitions.iter();
        for (place, stream) in streams.into_iter().enumerate() {
            for number in rest.by_ref().take(each + usize::from(place < more)) {
                let partition = TopicPartition::new(topic.clone(), *number);
                owners.insert(partition, stream.clone());
            }
        }
    }
    Some(owners)
}

/// I16: everything that was sent before and is still to be had was done by somebody.
fn drained(view: &View<'_>, verdict: &mut Verdict, settled: usize) {
    let until = view.case.events[settled].mono;
    let later = view.case.events.iter().filter(|event| event.mono > until);
    let later: Vec<(&TopicPartition, i64)> = later
        .filter_map(|event| match &event.fact {
            Fact::Sent { partition, offset } => Some((partition, *offset)),
            _ => None,
        })
        .collect();
    for (partition, sent) in &view.sent {
        let done = view.done.get(partition);
        let skipped = skipped(view, partition);
        let missing: Vec<i64> = sent
            .iter()
            .filter(|(_, is_there)| **is_there)
            .map(|(offset, _)| *offset)
            .filter(|offset| !done.is_some_and(|done| done.contains(offset)))
            .filter(|offset| {
                !skipped
                    .iter()
                    .any(|(from, to)| (from..to).contains(&offset))
            })
            .filter(|offset| !later.contains(&(partition, *offset)))
            .collect();
        if missing.is_empty() {
            continue;
        }
        let first: Vec<String> = missing.iter().take(10).map(ToString::to_string).collect();
        let what = format!(
            "{} of {} messages of {partition} were never done: {}",
            missing.len(),
            sent.len(),
            first.join(" ")
        );
        view.report(verdict, Rule::I16, Report::default().seen(settled), what);
    }
}

/// What nobody had to read: before the first position ever, unless the policy is known and is the smallest, over which a position was set, and what others said is done.
fn skipped(view: &View<'_>, partition: &TopicPartition) -> Vec<(i64, i64)> {
    let mut skipped = Vec::new();
    let writes = view.story.writes.iter();
    let writes = writes.filter(|write| write.partition == *partition);
    let first = writes.clone().find(|write| write.value.is_some());
    // Of ours it must have been the policy's, and the smallest leaves nothing out.
    let is_of_policy =
        |write: &OffsetWrite| write.is_ours && view.case.policy == Some(Reset::Smallest);
    if let Some(first) = first.filter(|first| !is_of_policy(first)) {
        skipped.extend(first.value.map(|first| (i64::MIN, first)));
    }
    for write in writes.filter(|write| !write.is_ours) {
        let before = write.previous.and_then(|previous| previous.value);
        if let (Some(before), Some(value)) = (before, write.value) {
            skipped.push((before, value));
        }
    }
    for ((_, which), resets) in &view.resets {
        let resets = resets.iter().filter(|_| which == partition);
        skipped.extend(resets.filter_map(|reset| Some((reset.from?, reset.to))));
    }
    skipped
}
