//! Bad input: refused before anything is written, in words that say what to do.

use std::time::Duration;

use evenkeel::{ConsumerConnector, ErrorKind, Topic};

use crate::kit::{Kit, topic};

// These go through the thread that all members of a process share, so that time is not paused.

async fn connected(kit: &Kit) -> ConsumerConnector {
    kit.builder("h1", kit.config()).connect().await.unwrap()
}

async fn refused(topics: &[(&str, u32)], words: &str) {
    let kit = Kit::new();
    let connector = connected(&kit).await;
    let topics: Vec<(Topic, u32)> = topics.iter().map(|(name, n)| (topic(name), *n)).collect();
    let error = connector.streams(topics).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains(words), "{error}");
    assert!(kit.members().is_empty());
    assert!(
        kit.registry.text("/consumers").is_none(),
        "nothing was written"
    );
}

#[tokio::test]
async fn no_topic_is_refused() {
    refused(&[], "no topic").await;
}

#[tokio::test]
async fn no_streams_are_refused() {
    refused(&[("a", 1), ("t", 0)], "topic t was given 0 streams").await;
}

#[tokio::test]
async fn too_many_streams_are_refused() {
    // D3
    refused(&[("a", 1), ("t", 100_000)], "100001 streams").await;
}

#[tokio::test]
async fn a_second_subscription_is_refused_and_changes_nothing() {
    // r043
    let kit = Kit::new();
    kit.create("t", 2);
    let connector = connected(&kit).await;
    let streams = connector.streams([(topic("t"), 2)]).await.unwrap();
    assert_eq!(streams[&topic("t")].len(), 2);
    let registered = kit
        .registry
        .text(&Kit::id_path(connector.consumer_id().as_str()));
    let error = connector.streams([(topic("u"), 1)]).await.unwrap_err();
    assert!(error.to_string().contains("twice"), "{error}");
    connector.settled().await.unwrap();
    assert_eq!(
        registered,
        kit.registry
            .text(&Kit::id_path(connector.consumer_id().as_str()))
    );
    assert_eq!(connector.owned().len(), 2);
    let farewell = connector.shutdown(Duration::from_secs(5)).await.unwrap();
    assert!(farewell.forced.is_empty());
    assert!(kit.members().is_empty());
}

#[tokio::test]
async fn a_registry_that_cannot_be_reached_is_told_at_the_connect() {
    let kit = Kit::new();
    kit.registry.refuse("connection refused by zk1:2181");
    let error = kit.builder("h1", kit.config()).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert!(error.to_string().contains("zk1:2181"), "{error}");
}

#[tokio::test]
async fn a_connector_that_never_joined_leaves_at_once() {
    let kit = Kit::new();
    let connector = connected(&kit).await;
    let farewell = connector.shutdown(Duration::from_secs(5)).await.unwrap();
    assert!(farewell.forced.is_empty());
    drop(connected(&kit).await);
    assert!(
        kit.registry
            .sessions()
            .iter()
            .all(|session| !session.is_open)
    );
}

#[tokio::test]
async fn names_that_change_a_path_are_refused() {
    // D6, r119
    for name in ["", ".", "..", "a/b", "a b", "\u{1F600}"] {
        assert!(evenkeel::GroupName::new(name).is_err(), "{name:?}");
        assert!(evenkeel::Topic::new(name).is_err(), "{name:?}");
        assert!(evenkeel::Config::new(name, "zk:2181").is_err(), "{name:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_cannot_be_reached_later_is_told_and_tried_again() {
    // r020, r026, S15
    let mut kit = Kit::new();
    kit.create("t", 2);
    let mut member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
    kit.registry.refuse("out of order");
    kit.registry.expire(member.session());
    for _ in 0..3 {
        member
            .tells("what is in the way", |event| {
                matches!(event, evenkeel::Event::ConnectFailed { reason } if reason.contains("out of order"))
            })
            .await;
    }
    let before = tokio::time::Instant::now();
    let mut tries = 0;
    while before.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        tries += member.told().len();
    }
    assert!((25..=70).contains(&tries), "{tries} tries in a minute");
    kit.registry.accept();
    member.settled().await;
    kit.send("t", 2);
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_missing_is_named_with_its_path() {
    // r154, X1
    let kit = Kit::new();
    kit.create("t", 1);
    let _ = kit
        .registry
        .clone()
        .with_fate(|request: &evenkeel::testing::Request| {
            if request.is_write() && request.path.starts_with("/consumers") {
                evenkeel::testing::Fate::Refuse(evenkeel::registry::Fault::NoAuth)
            } else {
                evenkeel::testing::Fate::Deliver
            }
        });
    let member = kit.join("h1", &[("t", 1)]);
    let error = member.connector().settled().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoAuth);
    assert!(error.to_string().contains("/consumers/g"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn parents_that_exist_need_not_be_made() {
    // r155, X4, r046
    let kit = Kit::new();
    kit.create("t", 1);
    for dir in ["ids", "owners/t", "offsets/t"] {
        kit.registry.put(&format!("/consumers/g/{dir}"), "");
    }
    let _ = kit
        .registry
        .clone()
        .with_fate(|request: &evenkeel::testing::Request| {
            let is_above = ["/consumers", "/consumers/g"].contains(&request.path.as_str());
            if request.is_write() && is_above {
                evenkeel::testing::Fate::Refuse(evenkeel::registry::Fault::NoAuth)
            } else {
                evenkeel::testing::Fate::Deliver
            }
        });
    let member = kit.join("h1", &[("t", 1)]);
    member.settled().await;
}
