//! The handle and its streams where no runtime is: driven by nothing but park and unpark, also from within a listener.
// Without a runtime there are only the host's clocks.
#![allow(clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use evenkeel::event::LostCause;
use evenkeel::id::{IdContext, IdStrategy};
use evenkeel::listener::RebalanceListener;
use evenkeel::testing::Record;
use evenkeel::{
    Builder, Config, ConsumerConnector, ConsumerId, Error, ErrorKind, Event, GroupName, StreamId,
    TopicPartition,
};

use crate::kit::{GROUP, Kit, at, topic};

// These go through the thread that all members of a process share, so that time is not paused.

const LONG: Duration = Duration::from_secs(60);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The plainest executor there is.
#[track_caller]
fn block_on<F: Future>(future: F) -> F::Output {
    assert!(
        tokio::runtime::Handle::try_current().is_err(),
        "there is a runtime"
    );
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let began = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        thread::park_timeout(LONG);
        assert!(began.elapsed() < LONG, "nothing woke it");
    }
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A member as a service makes it, but for its servers: with the clock and the threads of its own.
fn plain(kit: &Kit, host: &str, config: Config) -> Builder {
    let group = GroupName::new(GROUP).unwrap();
    let registry = kit.registry.clone();
    let registry = registry.with_session_timeout(config.session_timeout);
    ConsumerConnector::builder(config)
        .with_registry(Arc::new(registry))
        .with_reader_source(Arc::new(kit.log.clone()))
        .with_id_context(IdContext::new(host, &group, "00c0ffee00c0ffee").unwrap())
}

#[test]
fn connecting_reading_committing_and_leaving_need_no_runtime() {
    // R5
    let mut kit = Kit::new();
    kit.create("t", 2);
    kit.send("t", 2);
    let connector = block_on(plain(&kit, "h1", kit.config()).connect()).unwrap();
    let mut streams = block_on(connector.streams([(topic("t"), 1)])).unwrap();
    let mut stream = streams.remove(&topic("t")).unwrap().remove(0);
    block_on(connector.settled()).unwrap();
    let mut events = connector.events();
    assert!(matches!(
        block_on(events.next()),
        Some(Event::Joined { .. })
    ));
    let mut read = BTreeSet::new();
    for _ in 0..2 {
        let message = block_on(stream.recv()).unwrap();
        assert_eq!(message.offset(), 0);
        read.insert(message.partition());
    }
    assert_eq!(read, BTreeSet::from([0, 1]));
    // What is waited for wakes whoever waits, and what is handed over is acknowledged wherever it is.
    let log = kit.log.clone();
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        log.append(&at("t", 0), Record::new("late")).unwrap();
    });
    let message = block_on(stream.recv_owned()).unwrap();
    late.join().unwrap();
    assert_eq!((message.partition(), message.offset()), (0, 1));
    thread::spawn(move || message.ack()).join().unwrap();
    block_on(connector.commit()).unwrap();
    assert_eq!(kit.offset("t", 0).as_deref(), Some("2"));
    assert_eq!(kit.offset("t", 1).as_deref(), Some("1"));
    // It is not this thread's either.
    let leaving = thread::spawn(move || {
        let farewell = block_on(connector.shutdown(Duration::from_secs(10))).unwrap();
        assert!(block_on(stream.recv()).is_none());
        farewell
    });
    assert!(leaving.join().unwrap().forced.is_empty());
    assert!(kit.members().is_empty() && kit.owners("t").is_empty());
    while let Some(event) = block_on(events.next()) {
        assert!(!matches!(event, Event::Lapsed | Event::SessionLost { .. }));
    }
}

/// Takes down who is registered when it is asked for a name.
#[derive(Debug, Default, Clone)]
struct Nosy(Arc<Mutex<BTreeSet<ConsumerId>>>);

impl IdStrategy for Nosy {
    fn id(&self, context: &IdContext) -> Result<String, Error> {
        self.0.lock().unwrap().clone_from(&context.registered);
        Ok(format!("{}th", context.registered.len() + 1))
    }
}

#[test]
fn a_strategy_sees_who_is_registered_when_the_name_is_made() {
    let kit = Kit::new();
    kit.create("t", 2);
    let seen = Nosy::default();
    let join = |host: &str| {
        let builder = plain(&kit, host, kit.config()).with_id_strategy(Arc::new(seen.clone()));
        let connector = block_on(builder.connect()).unwrap();
        let streams = block_on(connector.streams([(topic("t"), 1)])).unwrap();
        (connector, streams)
    };
    let first = join("h1");
    assert!(seen.0.lock().unwrap().is_empty(), "nobody was there");
    let second = join("h2");
    let registered = BTreeSet::from([first.0.consumer_id().clone()]);
    assert_eq!(*seen.0.lock().unwrap(), registered);
    assert_eq!(second.0.consumer_id().as_str(), "g_2th");
    assert_eq!(kit.members(), ["g_1th", "g_2th"]);
    for (connector, _) in [first, second] {
        block_on(connector.shutdown(Duration::from_secs(10))).unwrap();
    }
}

/// What a listener calls while it is told that partitions go.
enum Inside {
    Commit(Weak<ConsumerConnector>),
    Shutdown(Box<ConsumerConnector>),
}

/// What came of a call from inside.
type Answer = Result<Option<bool>, ErrorKind>;

#[derive(Default)]
struct Calling {
    inside: Mutex<Option<Inside>>,
    answer: OnceLock<Answer>,
}

impl RebalanceListener for Calling {
    fn before_release(&self, _: &BTreeSet<TopicPartition>) {
        let answer = match self.inside.lock().unwrap().take() {
            None => return,
            Some(Inside::Commit(connector)) => {
                let connector = connector.upgrade().expect("it has not left");
                block_on(connector.commit()).map(|()| None)
            }
            Some(Inside::Shutdown(connector)) => {
                block_on(connector.shutdown(Duration::from_secs(10)))
                    .map(|farewell| Some(farewell.forced.is_empty()))
            }
        };
        let _ = self.answer.set(answer.map_err(|error| error.kind()));
    }

    fn after_claim(&self, _: &BTreeMap<TopicPartition, StreamId>) {}

    fn on_lost(&self, _: &BTreeSet<TopicPartition>, _: LostCause) {}
}

#[test]
fn a_listener_may_commit_from_inside() {
    // R3
    let mut kit = Kit::new();
    kit.create("t", 2);
    kit.send("t", 2);
    let mut config = kit.config();
    config.auto_commit = false;
    let listener = Arc::new(Calling::default());
    let builder = plain(&kit, "h1", config.clone()).with_listener(listener.clone());
    let connector = Arc::new(block_on(builder.connect()).unwrap());
    let mut streams = block_on(connector.streams([(topic("t"), 1)])).unwrap();
    let stream = &mut streams.get_mut(&topic("t")).unwrap()[0];
    for _ in 0..2 {
        block_on(stream.recv_owned()).unwrap().ack();
    }
    assert_eq!(kit.offset("t", 1).as_deref(), Some("0"));
    let inside = Inside::Commit(Arc::downgrade(&connector));
    *listener.inside.lock().unwrap() = Some(inside);
    // It gives one up to another, and all is committed before the owner node goes.
    let went = kit.registry.zxid();
    let other = block_on(plain(&kit, "h2", config).connect()).unwrap();
    let _streams = block_on(other.streams([(topic("t"), 1)])).unwrap();
    wait_until("they share", || {
        connector.owned().len() == 1 && other.owned().len() == 1
    });
    assert_eq!(listener.answer.get(), Some(&Ok(None)));
    let given = other.owned().into_keys().next().unwrap();
    let offset = Kit::offset_path("t", given.partition);
    let owner = Kit::owner_path("t", given.partition);
    assert_eq!(kit.registry.text(&offset).as_deref(), Some("1"));
    let first = |path: &str| kit.writes_below(path, went)[0].zxid;
    assert!(first(&offset) <= first(&owner), "it was still its own");
    for connector in [Arc::into_inner(connector).unwrap(), other] {
        block_on(connector.shutdown(Duration::from_secs(10))).unwrap();
    }
}

#[test]
fn a_listener_may_leave_from_inside() {
    // R3
    let kit = Kit::new();
    kit.create("t", 2);
    let mut config = kit.config();
    config.drain_timeout = Duration::from_millis(300);
    let listener = Arc::new(Calling::default());
    let builder = plain(&kit, "h1", config.clone()).with_listener(listener.clone());
    let connector = block_on(builder.connect()).unwrap();
    let _streams = block_on(connector.streams([(topic("t"), 1)])).unwrap();
    block_on(connector.settled()).unwrap();
    let mut events = connector.events();
    *listener.inside.lock().unwrap() = Some(Inside::Shutdown(Box::new(connector)));
    let other = block_on(plain(&kit, "h2", config).connect()).unwrap();
    let _others = block_on(other.streams([(topic("t"), 1)])).unwrap();
    // The call waits for the end of the member, which waits for the call no longer than its time.
    wait_until("the other has all", || other.owned().len() == 2);
    wait_until("it has left", || listener.answer.get().is_some());
    assert_eq!(kit.members().len(), 1);
    let mut is_overrun = false;
    while let Some(event) = block_on(events.next()) {
        is_overrun |= matches!(event, Event::ListenerFailed { .. });
    }
    assert!(is_overrun, "that it took too long is told");
    assert!(listener.answer.get().unwrap().is_ok());
    block_on(other.shutdown(Duration::from_secs(10))).unwrap();
}
