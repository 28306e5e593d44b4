//! The paths of old Kafka's nodes (L-1, L-2), all below the chroot, which the client adds.
//!
//! Names of groups and topics cannot change a path's depth, since their types hold plain names only (D6).

use crate::error::{Error, Result, printable};
use crate::group::ConsumerId;
use crate::group::GroupName;
use crate::group::Topic;
use crate::group::TopicPartition;

/// `/consumers`, where all groups are.
pub fn consumers() -> &'static str {
    "/consumers"
}

/// `/consumers/<group>`.
pub fn group(group: &GroupName) -> String {
    format!("{}/{}", consumers(), group.as_str())
}

/// `/consumers/<group>/ids`, whose children are the members.
pub fn ids(group: &GroupName) -> String {
    format!("{}/ids", self::group(group))
}

/// `/consumers/<group>/ids/<consumer id>`, the registration.
///
/// # Errors
/// [`Config`](crate::error::ErrorKind::Config) if the name cannot be one component of a path: it is empty, `.` or `..`,
/// or has a slash or a control character. A name that ZooKeeper listed is never refused.
pub fn id(group: &GroupName, consumer: &ConsumerId) -> Result<String> {
    let name = consumer.as_str();
    let plain = !matches!(name, "" | "." | "..")
        && !name.contains('/')
        && !name.chars().any(char::is_control);
    if !plain {
        return Err(Error::config(format!(
            "consumer id \"{}\" is refused: it cannot be the name of a node; leave out slashes and control characters",
            printable(name)
        )));
    }
    Ok(format!("{}/{name}", ids(group)))
}

/// `/consumers/<group>/owners`: plural, whatever old comments say.
pub fn owners(group: &GroupName) -> String {
    format!("{}/owners", self::group(group))
}

/// `/consumers/<group>/owners/<topic>`.
pub fn owners_topic(group: &GroupName, topic: &Topic) -> String {
    format!("{}/{}", owners(group), topic.as_str())
}

/// `/consumers/<group>/owners/<topic>/<partition>`, the owner node.
pub fn owner(group: &GroupName, at: &TopicPartition) -> String {
    format!("{}/{}", owners_topic(group, &at.topic), at.partition)
}

/// `/consumers/<group>/offsets`.
pub fn offsets(group: &GroupName) -> String {
    format!("{}/offsets", self::group(group))
}

/// `/consumers/<group>/offsets/<topic>`.
pub fn offsets_topic(group: &GroupName, topic: &Topic) -> String {
    format!("{}/{}", offsets(group), topic.as_str())
}

/// `/consumers/<group>/offsets/<topic>/<partition>`, the offset node.
pub fn offset(group: &GroupName, at: &TopicPartition) -> String {
    format!("{}/{}", offsets_topic(group, &at.topic), at.partition)
}

/// `/brokers/ids`, whose children are the live brokers.
pub fn broker_ids() -> &'static str {
    "/brokers/ids"
}

/// `/brokers/ids/<id>`, a broker's registration.
pub fn broker(id: i32) -> String {
    format!("{}/{id}", broker_ids())
}

/// `/brokers/topics`, whose children are the topics.
pub fn topics() -> &'static str {
    "/brokers/topics"
}

/// `/brokers/topics/<topic>`, the topic node.
pub fn topic(topic: &Topic) -> String {
    format!("{}/{}", topics(), topic.as_str())
}

/// The parents of a path, in the order in which they must be created (L-6); empty for a path of one component.
///
/// `/consumers/g/ids/c` has `/consumers`, `/consumers/g`, `/consumers/g/ids`. The root is not among them.
pub fn parents(path: &str) -> Vec<&str> {
    path.match_indices('/')
        .filter(|(at, _)| *at > 0)
        .map(|(at, _)| &path[..at])
        .collect()
}

/// The partition that a child of `owners/<topic>` or `offsets/<topic>` stands for; `None` if no member writes such a
/// name: partitions are decimal, without sign or leading zeros (L-1).
pub fn partition(child: &str) -> Option<i32> {
    let number: i32 = child.parse().ok()?;
    (number >= 0 && number.to_string() == child).then_some(number)
}

/// What an offset node's path says, the reverse of [`offset`]; `None` for any other path. Tools that keep offsets in
/// files write these paths (L-138).
pub fn offset_of(path: &str) -> Option<(GroupName, TopicPartition)> {
    let rest = path.strip_prefix(consumers())?.strip_prefix('/')?;
    let mut parts = rest.split('/');
    let group = GroupName::new(parts.next()?).ok()?;
    if parts.next()? != "offsets" {
        return None;
    }
    let topic = Topic::new(parts.next()?).ok()?;
    let at = TopicPartition::new(topic, partition(parts.next()?)?);
    parts.next().is_none().then_some((group, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn g() -> GroupName {
        GroupName::new("etl").unwrap()
    }
    fn tp() -> TopicPartition {
        TopicPartition::new(Topic::new("logs").unwrap(), 12)
    }

    #[test]
    fn paths_are_those_of_old_kafka() {
        let c = ConsumerId::new("etl_web01-1441234567890-1a2b3c4d");
        assert_eq!(consumers(), "/consumers");
        assert_eq!(group(&g()), "/consumers/etl");
        assert_eq!(ids(&g()), "/consumers/etl/ids");
        assert_eq!(
            id(&g(), &c).unwrap(),
            "/consumers/etl/ids/etl_web01-1441234567890-1a2b3c4d"
        );
        assert_eq!(owners(&g()), "/consumers/etl/owners");
        assert_eq!(
            owners_topic(&g(), &tp().topic),
            "/consumers/etl/owners/logs"
        );
        assert_eq!(owner(&g(), &tp()), "/consumers/etl/owners/logs/12");
        assert_eq!(offsets(&g()), "/consumers/etl/offsets");
        assert_eq!(
            offsets_topic(&g(), &tp().topic),
            "/consumers/etl/offsets/logs"
        );
        assert_eq!(offset(&g(), &tp()), "/consumers/etl/offsets/logs/12");
        assert_eq!(broker_ids(), "/brokers/ids");
        assert_eq!(broker(3), "/brokers/ids/3");
        assert_eq!(topics(), "/brokers/topics");
        assert_eq!(topic(&tp().topic), "/brokers/topics/logs");
    }

    #[test]
    fn parents_come_from_the_root_down() {
        let path = owner(&g(), &tp());
        assert_eq!(
            parents(&path),
            [
                "/consumers",
                "/consumers/etl",
                "/consumers/etl/owners",
                "/consumers/etl/owners/logs"
            ]
        );
        assert!(parents(consumers()).is_empty());
        assert_eq!(parents(topics()), ["/brokers"]);
    }

    #[test]
    fn a_partition_has_one_name_only() {
        assert_eq!(partition("0"), Some(0));
        assert_eq!(partition("2147483647"), Some(i32::MAX));
        for bad in [
            "",
            "-1",
            "+1",
            "01",
            "1 ",
            "x",
            "2147483648",
            "\u{0661}",
            "1/2",
        ] {
            assert_eq!(partition(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn an_offset_path_is_read_back() {
        assert_eq!(offset_of(&offset(&g(), &tp())), Some((g(), tp())));
        for bad in [
            "",
            "/consumers",
            "/consumers/etl/offsets/logs",
            "/consumers/etl/owners/logs/12",
            "/consumers/etl/offsets/logs/12/x",
            "/consumers/../offsets/logs/12",
            "/consumersetl/x/offsets/logs/12",
            "consumers/etl/offsets/logs/12",
        ] {
            assert_eq!(offset_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_member_named_oddly_but_listed_by_zookeeper_has_a_path() {
        for odd in ["a b", "é", "\u{1f600}", "x:y", "...", "-"] {
            assert_eq!(
                id(&g(), &ConsumerId::new(odd)).unwrap(),
                format!("/consumers/etl/ids/{odd}")
            );
        }
    }

    #[test]
    fn a_member_whose_name_would_change_a_path_is_refused() {
        for bad in ["", ".", "..", "/", "a/b", "../x", "a\0", "a\n", "\u{85}"] {
            assert!(id(&g(), &ConsumerId::new(bad)).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_accepted_name_changes_the_depth_of_a_path(
            name in prop_oneof![any::<String>(), "[./a]{0,6}", "[A-Za-z0-9._-]{0,300}", "\\PC{0,20}/?\\PC{0,20}"],
            p in 0..=i32::MAX,
        ) {
            let depth = |path: &str| path.matches('/').count();
            let sound = |path: &str| path.split('/').skip(1).all(|c| !matches!(c, "" | "." | ".."));
            if let Ok(group) = GroupName::new(&name) {
                prop_assert_eq!(depth(&ids(&group)), 3);
                prop_assert!(sound(&ids(&group)));
                let path = offset(&group, &tp());
                prop_assert_eq!((depth(&path), parents(&path).len()), (5, 4));
                prop_assert_eq!(offset_of(&path), Some((group, tp())));
            }
            if let Ok(t) = Topic::new(&name) {
                let at = TopicPartition::new(t.clone(), p);
                prop_assert_eq!(depth(&topic(&t)), 3);
                prop_assert_eq!(depth(&owner(&g(), &at)), 5);
                prop_assert!(sound(&owner(&g(), &at)));
            }
            if let Ok(path) = id(&g(), &ConsumerId::new(name.as_str())) {
                prop_assert_eq!(depth(&path), 4);
                prop_assert!(sound(&path));
                prop_assert!(!path.contains('\0'));
            }
        }
    }
}
