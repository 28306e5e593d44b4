//! One pretended process: a real member of its group, with an application that works and may die.

use std::mem::forget;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use evenkeel::id::{IdContext, name};
use evenkeel::registry::{Connection, Dialect, Registry};
use evenkeel::testing::MemoryRegistry;
use evenkeel::{Config, ConsumerConnector, Error, Farewell, Message, MessageStream, Topic};

use crate::output::Outcome;

use super::balance::Who;
use super::books::{Books, number};
use super::fleet::Seat;

/// Sessions last so long; a dead member's share is free again after about that time.
pub const SESSION: Duration = Duration::from_secs(2);
/// How often members commit.
const COMMIT: Duration = Duration::from_millis(400);
/// A dying member clings to its last messages past a commit: were they committed too early, they would be lost.
const AGONY: Duration = Duration::from_millis(600);
/// What a batch of messages takes to work through.
const WORK: Duration = Duration::from_millis(20);
const BATCH: usize = 32;

/// When an application acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// Once a message is worked through.
    Careful,
    /// As soon as it has it. The demo never does that; its test does, to see that what is lost then is told.
    Hasty,
}

/// What all members have in common.
#[derive(Clone)]
pub struct World {
    pub habit: Habit,
    pub registry: MemoryRegistry,
    pub bootstrap: String,
    pub books: Books,
}

pub struct Member {
    pub seat: Seat,
    pub who: Who,
    pub connector: ConsumerConnector,
    application: JoinHandle<()>,
    life: Life,
}

/// How a process comes to its end, seen from its application and from the outside.
#[derive(Clone)]
struct Life {
    is_doomed: Arc<AtomicBool>,
    is_dead: Arc<AtomicBool>,
    /// Messages in its hands when it stopped.
    fallen: watch::Sender<Option<usize>>,
}

/// A registry that a dead process does not come back to.
struct Mortal {
    registry: MemoryRegistry,
    is_dead: Arc<AtomicBool>,
}

impl Registry for Mortal {
    fn open(
        &self,
        dialect: Dialect,
    ) -> evenkeel::registry::Later<Result<Arc<dyn Connection>, Error>> {
        if self.is_dead.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        self.registry.open(dialect)
    }

    fn describe(&self) -> String {
        self.registry.describe()
    }
}

impl Member {
    pub async fn join(world: &World, seat: Seat, who: Who, context: IdContext) -> Outcome<Self> {
        let life = Life {
            is_doomed: Arc::default(),
            is_dead: Arc::default(),
            fallen: watch::Sender::new(None),
        };
        let mortal = Mortal {
            registry: world.registry.clone().with_session_timeout(SESSION),
            is_dead: life.is_dead.clone(),
        };
        let connector = ConsumerConnector::builder(config(&seat, &world.bootstrap)?)
            .with_registry(Arc::new(mortal))
            .with_id_context(context)
            .connect()
            .await?;
        let mut streams = connector.streams([(Topic::new(&seat.group)?, 1)]).await?;
        let stream = streams
            .pop_first()
            .and_then(|(_, mut streams)| streams.pop());
        let stream = stream.expect("one stream was asked for");
        let (books, habit) = (world.books.clone(), world.habit);
        let application = tokio::spawn(work(stream, who, books, habit, life.clone()));
        Ok(Self {
            seat,
            who,
            connector,
            application,
            life,
        })
    }

    /// Leaves in order.
    pub async fn leave(self) -> Outcome<Farewell> {
        let farewell = self.connector.shutdown(Duration::from_secs(5)).await?;
        let _ = timeout(Duration::from_secs(1), self.application).await;
        Ok(farewell)
    }

    /// The application stops for ever, if it has work with messages in its hands. Answers how many.
    pub async fn fall(&self) -> usize {
        self.life.is_doomed.store(true, Ordering::SeqCst);
        if self.connector.owned().is_empty() {
            return 0;
        }
        let mut fallen = self.life.fallen.subscribe();
        let wait = timeout(Duration::from_secs(2), fallen.wait_for(Option::is_some)).await;
        let in_hand = match wait {
            Ok(Ok(in_hand)) => in_hand.unwrap_or(0),
            _ => 0,
        };
        sleep(AGONY).await;
        in_hand
    }

    /// The process is no more: the servers hear nothing of it, and it neither leaves nor comes back.
    pub fn die(self, world: &World) {
        self.life.is_dead.store(true, Ordering::SeqCst);
        if let Some(session) = self.connector.health().session {
            world.registry.kill(session);
        }
        world.books.died(self.who);
        // A dead process drops nothing.
        forget(self.connector);
    }
}

fn config(seat: &Seat, bootstrap: &str) -> Outcome<Config> {
    let mut config = Config::new(&seat.group, "memory:1")?;
    config.bootstrap_servers = vec![bootstrap.to_owned()];
    config.session_timeout = SESSION;
    config.auto_commit_interval = COMMIT;
    config.auto_offset_reset = evenkeel::config::Reset::Smallest;
    Ok(config)
}

async fn work(mut stream: MessageStream, who: Who, books: Books, habit: Habit, life: Life) {
    loop {
        let mut batch = stream.recv_many(BATCH).await;
        if batch.is_empty() {
            return;
        }
        books.handed_out(who, &batch);
        let numbers: Vec<u64> = batch.iter().filter_map(number).collect();
        if habit == Habit::Hasty {
            batch.drain(..).for_each(Message::ack);
        }
        sleep(WORK).await;
        if life.is_doomed.load(Ordering::SeqCst) {
            life.fallen.send_replace(Some(numbers.len()));
            // Neither done nor let go.
            let _in_hand = batch;
            return std::future::pending().await;
        }
        numbers
            .into_iter()
            .for_each(|number| books.finished(number));
        batch.into_iter().for_each(Message::ack);
    }
}

/// The name that a member gets from its context.
pub fn named(context: &IdContext) -> Outcome<evenkeel::ConsumerId> {
    Ok(name(context, &evenkeel::id::HashedHost)?)
}
