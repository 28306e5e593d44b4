//! Names of nodes: none that is accepted makes a path deeper, or another one.

use evenkeel::ConsumerId;
use evenkeel::GroupName;
use evenkeel::Topic;
use evenkeel::TopicPartition;
use evenkeel::id::is_node_name;
use evenkeel::wire::paths;

fn depth(path: &str) -> usize {
    assert!(path.starts_with('/') && !path.contains("//"), "{path:?}");
    assert!(!path.split('/').any(|part| part == "." || part == ".."));
    assert!(!path.chars().any(char::is_control), "{path:?}");
    path.matches('/').count()
}

/// D6: the type of a name decides, before a path is put together.
pub fn znode_name(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let group = GroupName::new("g").unwrap();
    let logs = TopicPartition::new(Topic::new("logs").unwrap(), 12);
    if let Ok(group) = GroupName::new(&text) {
        assert!(is_node_name(&text));
        assert_eq!(depth(&paths::group(&group)), 2);
        assert_eq!(depth(&paths::offset(&group, &logs)), 5);
        assert_eq!(paths::parents(&paths::owner(&group, &logs)).len(), 4);
    }
    if let Ok(topic) = Topic::new(&text) {
        assert!(is_node_name(&text) && Topic::foreign(&text).is_ok());
        assert_eq!(depth(&paths::topic(&topic)), 3);
        let at = TopicPartition::new(topic, 7);
        assert_eq!(depth(&paths::owner(&group, &at)), 5);
        let path = paths::offset(&group, &at);
        assert_eq!(paths::offset_of(&path), Some((group.clone(), at)));
    }
    if let Ok(topic) = Topic::foreign(&text) {
        assert_eq!(depth(&paths::topic(&topic)), 3);
    }
    let consumer = ConsumerId::new(&*text);
    match paths::id(&group, &consumer) {
        Ok(path) => {
            assert_eq!(depth(&path), 4);
            assert_eq!(path.strip_prefix("/consumers/g/ids/"), Some(&*text));
        }
        // What a server has listed is never refused.
        Err(error) => assert!(!is_node_name(&text), "{error}"),
    }
    if let Some(number) = paths::partition(&text) {
        assert!(number >= 0);
        assert_eq!(number.to_string(), text);
    }
    if let Some((group, at)) = paths::offset_of(&text) {
        assert_eq!(paths::offset(&group, &at), text);
    }
}
