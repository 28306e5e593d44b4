//! A whole group as it lies in the tree: every partition is somebody's, and every rule gives an answer.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use evenkeel::ConsumerId;
use evenkeel::Topic;
use evenkeel::assign;
use evenkeel::assign::Compat;
use evenkeel::assign::Strategy;
use evenkeel::filter::InternalTopics;
use evenkeel::filter::expand;
use evenkeel::group::Assignment;
use evenkeel::group::GroupView;
use evenkeel::group::Member;
use evenkeel::group::Subscriptions;
use evenkeel::wire;

/// More streams or partitions than this are left to other tests.
const MOST: usize = 20_000;

/// Lines of `ids/NAME DATA` and `topics/NAME DATA`; what cannot be read counts as the members count it.
fn view(bytes: &[u8]) -> GroupView {
    let mut view = GroupView::default();
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some(blank) = line.iter().position(|byte| *byte == b' ') else {
            continue;
        };
        let (path, data) = (String::from_utf8_lossy(&line[..blank]), &line[blank + 1..]);
        if let Some(name) = path.strip_prefix("ids/") {
            let id = ConsumerId::new(name);
            match wire::decode_registration(data) {
                Ok(subscription) => {
                    let is_ours = name.len() % 2 == 0;
                    view.members.insert(
                        id,
                        Member {
                            subscription,
                            is_ours,
                        },
                    );
                }
                Err(why) => drop(view.malformed.insert(id, why.to_string())),
            }
        } else if let Some(topic) = path.strip_prefix("topics/").map(Topic::new) {
            let Ok(topic) = topic else { continue };
            view.topics.insert(topic.clone());
            match wire::decode_topic(data) {
                Ok(partitions) => drop(view.partitions.insert(topic, partitions)),
                Err(why) => drop(view.unreadable.insert(topic, why.to_string())),
            }
        }
    }
    view
}

fn assert_whole(rule: &str, answer: &Assignment, who: &Subscriptions, view: &GroupView) {
    let subscribed: BTreeSet<&Topic> = who.values().flat_map(BTreeMap::keys).collect();
    for (topic, partitions) in &view.partitions {
        let wanted: BTreeSet<i32> = partitions
            .iter()
            .filter(|_| subscribed.contains(topic))
            .copied()
            .collect();
        let owners = answer.get(topic).cloned().unwrap_or_default();
        let owned: BTreeSet<i32> = owners.keys().copied().collect();
        assert_eq!(owned, wanted, "{rule}: {topic}");
        for stream in owners.values() {
            let streams = who[&stream.consumer()].get(topic).copied().unwrap_or(0);
            assert!(stream.number() < streams, "{rule}: {topic} {stream:?}");
        }
    }
    let foreign = answer
        .keys()
        .find(|topic| !view.partitions.contains_key(*topic));
    assert_eq!(foreign, None, "{rule}");
}

/// D1 to D8: all members' shares together are the partitions.
pub fn snapshot(bytes: &[u8]) {
    let view = view(bytes);
    let streams = view.members.values();
    let streams: usize = streams.map(|it| it.subscription.streams() as usize).sum();
    let partitions: usize = view.partitions.values().map(Vec::len).sum();
    if streams > MOST || partitions > MOST {
        return;
    }
    let expansion = expand(&view, InternalTopics::Offsets);
    assert_eq!(expansion.subscriptions.len(), view.members.len());
    let who = &expansion.subscriptions;
    let backwards: BTreeMap<Topic, Vec<i32>> = view
        .partitions
        .iter()
        .map(|(topic, numbers)| (topic.clone(), numbers.iter().rev().copied().collect()))
        .collect();
    for strategy in [Strategy::Range, Strategy::RoundRobin] {
        for compat in [Compat::V0_8_2, Compat::V0_10_2, Compat::V1_0] {
            let assignor = assign::named(strategy, compat);
            let rule = format!("{} {compat:?}", assignor.name());
            let answer = assignor.assign(who, &view.partitions);
            match &answer {
                Ok(answer) => assert_whole(&rule, answer, who, &view),
                Err(error) => assert_eq!(compat, Compat::V0_8_2, "{error}"),
            }
            let again = assignor.assign(who, &backwards);
            assert_eq!(again.ok(), answer.ok(), "{rule}");
            let _ = assignor.doubt(who, &view.partitions);
        }
    }
}
