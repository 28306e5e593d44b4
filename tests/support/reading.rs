//! Members of ours whose streams the test reads itself, message by message, with all that a message has.

use std::time::Duration;

use evenkeel::Config;
use evenkeel::ConsumerConnector;
use evenkeel::Event;
use evenkeel::Events;
use evenkeel::Message;
use evenkeel::MessageStream;
use evenkeel::Topic;
use evenkeel::stream::Copied;

use super::ours::block_on;
use super::wait::LONG;
use super::wait::until;

/// A message as the test keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    /// The partition.
    pub partition: i32,
    /// Everything else.
    pub what: Copied,
}

impl Got {
    /// The offset.
    pub fn offset(&self) -> i64 {
        self.what.offset
    }

    /// The payload as text; empty for a tombstone.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.what.payload.as_deref().unwrap_or_default()).into_owned()
    }
}

/// A member with one stream of one topic.
pub struct Reading {
    /// Its handle.
    pub connector: ConsumerConnector,
    /// Its stream.
    pub stream: MessageStream,
    events: Events,
    heard: Vec<Event>,
}

impl Reading {
    /// Joins; returns once registered.
    pub fn join(config: Config, topic: &str) -> Self {
        let topic = Topic::new(topic).expect("a good name");
        block_on(async move {
            let connector = ConsumerConnector::connect(config)
                .await
                .expect("the servers are there");
            let events = connector.events();
            let streams = connector
                .streams([(topic, 1)])
                .await
                .expect("nothing is in the way of joining");
            let stream = streams
                .into_values()
                .flatten()
                .next()
                .expect("one was asked for");
            Self {
                connector,
                stream,
                events,
                heard: Vec::new(),
            }
        })
    }

    /// The next message, not acknowledged.
    ///
    /// # Panics
    ///
    /// When none comes for long, with how the member stands.
    #[track_caller]
    pub fn next(&mut self) -> Message {
        let next = block_on(async { tokio::time::timeout(LONG, self.stream.recv_owned()).await });
        match next {
            Ok(message) => message.expect("it has not left"),
            Err(_) => panic!(
                "no message for {LONG:?}: {:#?}\n{:#?}",
                self.connector.health(),
                self.heard()
            ),
        }
    }

    /// The next so many messages, each acknowledged.
    #[track_caller]
    pub fn take(&mut self, count: usize) -> Vec<Got> {
        (0..count)
            .map(|_| {
                let message = self.next();
                let partition = message.partition();
                let (token, what) = message.detach();
                token.ack();
                Got { partition, what }
            })
            .collect()
    }

    /// Waits until everything that is its own is claimed and read.
    #[track_caller]
    pub fn settle(&self) {
        until("our member settles", LONG, || {
            self.connector.health().is_ready()
        });
    }

    /// What has happened to it so far.
    pub fn heard(&mut self) -> &[Event] {
        while let Some(event) = self.events.try_next() {
            self.heard.push(event);
        }
        &self.heard
    }

    /// Waits until it has been told of something, be it long ago.
    #[track_caller]
    pub fn hear(&mut self, what: &str, is_it: impl Fn(&Event) -> bool) -> Event {
        let start = std::time::Instant::now();
        loop {
            if let Some(event) = self.heard().iter().find(|event| is_it(event)) {
                return event.clone();
            }
            assert!(
                start.elapsed() < LONG,
                "not told: {what}; {:#?}\n{:#?}",
                self.connector.health(),
                self.heard
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The same while it asks for a message, and none may come before.
    #[track_caller]
    pub fn hear_asking(&mut self, what: &str, is_it: impl Fn(&Event) -> bool) -> Event {
        let start = std::time::Instant::now();
        while start.elapsed() < LONG && !self.heard().iter().any(&is_it) {
            let short = Duration::from_millis(20);
            let asked = async { tokio::time::timeout(short, self.stream.recv_owned()).await };
            assert!(block_on(asked).is_err(), "no message was expected yet");
        }
        self.hear(what, is_it)
    }

    /// Commits what is done.
    pub fn commit(&self) {
        block_on(self.connector.commit()).expect("a commit");
    }

    /// Leaves in order.
    pub fn leave(self) {
        let farewell = block_on(self.connector.shutdown(Duration::from_secs(10)));
        assert!(farewell.expect("a clean end").forced.is_empty());
    }
}

/// Whether a stream has nothing to give at present.
pub fn nothing_more(stream: &mut MessageStream) -> bool {
    let short = Duration::from_millis(200);
    block_on(async {
        tokio::time::timeout(short, stream.recv_owned())
            .await
            .is_err()
    })
}
