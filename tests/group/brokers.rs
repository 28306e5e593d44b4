//! The brokers a member is led to, and what is left of it when the client for them fails it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::ErrorKind;
use evenkeel::error::Error;
use evenkeel::stream::{Reader, ReaderSource};
use evenkeel::testing::MemoryLog;
use evenkeel::wire::{Broker, encode_broker};
use tokio::time::{sleep, timeout};

use crate::kit::{Kit, next_owned, until};

/// A broker by this name is more than the source bears.
const UNBEARABLE: &str = "unbearable";

/// Writes down for which brokers a client is made.
#[derive(Clone)]
struct Noting {
    log: MemoryLog,
    made_for: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Noting {
    fn of(kit: &Kit) -> Self {
        Self {
            log: kit.log.clone(),
            made_for: Arc::default(),
        }
    }

    fn made_for(&self) -> Vec<Vec<String>> {
        self.made_for.lock().unwrap().clone()
    }
}

impl ReaderSource for Noting {
    fn needs_brokers(&self) -> bool {
        true
    }

    fn open(&self, brokers: &[Broker], _: usize) -> Result<Arc<dyn Reader>, Error> {
        let endpoints = brokers.iter().flat_map(|broker| &broker.endpoints);
        assert!(endpoints.clone().all(|at| at.host != UNBEARABLE));
        let addresses = endpoints.map(ToString::to_string).collect();
        self.made_for.lock().unwrap().push(addresses);
        Ok(self.log.reader())
    }
}

fn register(kit: &Kit, number: u32, host: &str) {
    let path = format!("/brokers/ids/{number}");
    kit.registry.put(&path, encode_broker(host, 9092));
}

#[tokio::test(start_paused = true)]
async fn when_no_known_broker_is_left_the_client_is_made_anew_for_those_that_are_there() {
    // T6
    let mut kit = Kit::new();
    kit.create("t", 4);
    let source = Noting::of(&kit);
    let builder = kit.builder("h1", kit.config());
    let builder = builder.with_reader_source(Arc::new(source.clone()));
    let member = kit.join_with(builder, &[("t", 1)]);
    member.settled().await;
    kit.send("t", 4);
    kit.drain().await;
    register(&kit, 1, "h1");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(source.made_for(), [["h:9092"]]);
    kit.registry.delete("/brokers/ids/0");
    until("a client for the other one", || {
        source.made_for().len() == 2
    })
    .await;
    register(&kit, 2, "h2");
    kit.send("t", 4);
    kit.drain().await;
    assert_eq!(source.made_for(), [["h:9092"], ["h1:9092"]]);
    assert_eq!(member.owned().len(), 4);
    assert_eq!(kit.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_members_own_task_ends_its_streams_and_its_session_and_is_told() {
    // R11
    let mut kit = Kit::new();
    kit.create("t", 1);
    let builder = kit.builder("h1", kit.config());
    let builder = builder.with_reader_source(Arc::new(Noting::of(&kit)));
    let (member, mut streams) = kit.join_unread(builder, &[("t", 1)]);
    let mut stream = streams.remove("t").unwrap().remove(0);
    kit.send("t", 1);
    let message = next_owned(&mut stream).await;
    kit.send("t", 1);
    register(&kit, 1, UNBEARABLE);
    kit.registry.delete("/brokers/ids/0");
    until("its task is over", || member.has_ended()).await;
    let next = timeout(Duration::from_secs(60), stream.recv()).await;
    assert!(next.expect("the stream ends").is_none());
    drop(message);
    let told = member.connector().settled().await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Internal, "{told}");
    assert!(!member.connector().health().is_ready());
    assert!(member.connector().owned().is_empty());
    until("its session is over", || kit.members().is_empty()).await;
    assert!(kit.owners("t").is_empty());
}
