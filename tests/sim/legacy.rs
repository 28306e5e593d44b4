//! A member as the old JVM consumer is, faults included: it reads offsets before it claims, writes and deletes whatever the
//! version, tries a rebalance four times and is silent then, and takes its claims along into the next session.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel::group::Subscription;
use evenkeel::registry::{Connection, Dialect, Fault, Registry};
use evenkeel::testing::MemoryLog;
use evenkeel::wire::read_registration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::book::done;
use crate::facts::Facts;
use crate::kit::{GROUP, Kit, at, range, topic};
use crate::process::Switch;
use crate::trace::Traced;

/// So often a rebalance is tried, with so much time between.
const TRIES: usize = 4;
const BACKOFF: Duration = Duration::from_millis(2000);
/// Between two looks for messages; each ends with a commit.
const PAUSE: Duration = Duration::from_millis(150);

/// Such a member, seen from outside.
pub struct Legacy {
    /// Its id.
    pub name: String,
    /// Whether its process runs.
    pub switch: Switch,
    /// Its life.
    pub task: JoinHandle<()>,
    session: Arc<Mutex<Option<i64>>>,
    quit: watch::Sender<bool>,
}

impl Legacy {
    /// Starts one.
    pub fn start(name: &str, registry: &Traced, log: &MemoryLog, facts: &Facts) -> Self {
        let (quit, asked) = watch::channel(false);
        let (switch, session) = (Switch::default(), Arc::new(Mutex::new(None)));
        let life = Life {
            name: name.to_owned(),
            registry: registry.clone(),
            log: log.clone(),
            facts: facts.clone(),
            session: session.clone(),
            asked,
            held: BTreeMap::new(),
        };
        let task = tokio::spawn(switch.over(life.live()));
        Self {
            name: name.to_owned(),
            switch,
            task,
            session,
            quit,
        }
    }

    /// The session it is in.
    pub fn session(&self) -> Option<i64> {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks it to leave.
    pub fn leave(&self) {
        self.quit.send_replace(true);
    }
}

struct Life {
    name: String,
    registry: Traced,
    log: MemoryLog,
    facts: Facts,
    session: Arc<Mutex<Option<i64>>>,
    asked: watch::Receiver<bool>,
    /// What it believes to hold, with the next offset. It outlives sessions.
    held: BTreeMap<i32, i64>,
}

enum End {
    SessionLost,
    Asked,
}

impl Life {
    async fn live(mut self) {
        loop {
            let Ok(connection) = self.registry.open(Dialect::V3_4).await else {
                sleep(Duration::from_millis(500)).await;
                continue;
            };
            let session = Some(connection.session_id());
            *self.session.lock().unwrap_or_else(PoisonError::into_inner) = session;
            match self.serve(&*connection).await {
                Err(_) | Ok(End::SessionLost) => {}
                Ok(End::Asked) => {
                    self.commit(&*connection).await;
                    self.release(&*connection).await;
                    connection.close().await;
                    return;
                }
            }
            connection.close().await;
            sleep(Duration::from_millis(300)).await;
        }
    }

    async fn serve(&mut self, connection: &dyn Connection) -> Result<End, Fault> {
        self.register(connection).await?;
        loop {
            let ids = format!("/consumers/{GROUP}/ids");
            let (_, _, mut changed) = connection.children_and_watch(&ids).await?;
            self.rebalance(connection).await?;
            let mut ended = connection.ended();
            loop {
                if *self.asked.borrow() {
                    return Ok(End::Asked);
                }
                tokio::select! {
                    biased;
                    () = &mut ended => return Ok(End::SessionLost),
                    _ = &mut changed => break,
                    () = sleep(PAUSE) => self.consume(connection).await,
                }
            }
        }
    }

    async fn register(&self, connection: &dyn Connection) -> Result<(), Fault> {
        let data = r#"{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1441234567890"}"#;
        let path = Kit::id_path(&self.name);
        loop {
            match make(connection, &path, data.as_bytes(), true).await {
                // Its own of an earlier session: it waits for that to go.
                Err(Fault::NodeExists) => sleep(Duration::from_millis(500)).await,
                answer => return answer,
            }
        }
    }

    async fn rebalance(&mut self, connection: &dyn Connection) -> Result<(), Fault> {
        for _ in 0..TRIES {
            if self.try_once(connection).await? {
                return Ok(());
            }
            sleep(BACKOFF).await;
        }
        // Silent from now on, and still registered.
        Ok(())
    }

    async fn try_once(&mut self, connection: &dyn Connection) -> Result<bool, Fault> {
        self.commit(connection).await;
        self.release(connection).await;
        let mut wanted = BTreeMap::new();
        for partition in self.share(connection).await? {
            wanted.insert(partition, self.stored(connection, partition).await);
        }
        let mut claimed = Vec::new();
        for partition in wanted.keys() {
            let text = format!("{}-0", self.name);
            let path = Kit::owner_path("t", *partition);
            match make(connection, &path, text.as_bytes(), true).await {
                Ok(()) => claimed.push(*partition),
                Err(Fault::NodeExists) => {
                    let there = connection.data(&path).await;
                    // What has its text it takes for its own, whatever session made it.
                    if there.is_ok_and(|(data, _)| data == text.as_bytes()) {
                        continue;
                    }
                    release_these(connection, claimed).await;
                    return Ok(false);
                }
                Err(fault) => return Err(fault),
            }
        }
        self.held = wanted;
        Ok(true)
    }

    async fn share(&self, connection: &dyn Connection) -> Result<BTreeSet<i32>, Fault> {
        let (ids, _) = connection
            .children(&format!("/consumers/{GROUP}/ids"))
            .await?;
        let mut streams = Vec::new();
        for id in ids {
            let Ok((data, _)) = connection.data(&Kit::id_path(&id)).await else {
                continue;
            };
            let Ok(registration) = read_registration(&data) else {
                continue;
            };
            let Subscription::Topics(topics) = registration.subscription else {
                continue;
            };
            let count = topics.get(&topic("t")).copied().unwrap_or(0);
            streams.extend((0..count).map(|number| format!("{id}-{number}")));
        }
        let (data, _) = connection.data("/brokers/topics/t").await?;
        let partitions = evenkeel::wire::decode_topic(&data).map_or(0, |ids| ids.len());
        let mine = format!("{}-0", self.name);
        let partitions = i32::try_from(partitions).expect("a small topic");
        if !streams.contains(&mine) {
            return Ok(BTreeSet::new());
        }
        let owners = range(&streams, partitions).into_iter();
        Ok(owners
            .filter(|(_, stream)| *stream == mine)
            .map(|(partition, _)| partition)
            .collect())
    }

    async fn stored(&self, connection: &dyn Connection, partition: i32) -> i64 {
        let answer = connection.data(&Kit::offset_path("t", partition)).await;
        let text = answer
            .ok()
            .and_then(|(data, _)| String::from_utf8(data).ok());
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    async fn consume(&mut self, connection: &dyn Connection) {
        let mut has_moved = false;
        for (partition, next) in &mut self.held {
            let at = at("t", *partition);
            let bounds = self.log.bounds(&at);
            let trace = &self.registry.trace;
            trace.note(&(&self.name, &at, *next, bounds.as_ref().ok()));
            let Ok((_, end)) = bounds else {
                continue;
            };
            while *next < end {
                self.facts.note(&self.name, done(&at, 0, *next));
                *next += 1;
                has_moved = true;
            }
        }
        if has_moved {
            self.commit(connection).await;
        }
    }

    async fn commit(&self, connection: &dyn Connection) {
        for (partition, next) in &self.held {
            let (path, text) = (Kit::offset_path("t", *partition), next.to_string());
            if connection.set(&path, text.as_bytes(), None).await == Err(Fault::NoNode) {
                let _ = make(connection, &path, text.as_bytes(), false).await;
            }
        }
    }

    async fn release(&mut self, connection: &dyn Connection) {
        let held = std::mem::take(&mut self.held);
        release_these(connection, held.into_keys()).await;
    }
}

/// Whoever has made what is there by now (D-6).
async fn release_these(connection: &dyn Connection, partitions: impl IntoIterator<Item = i32>) {
    for partition in partitions {
        let _ = connection
            .delete(&Kit::owner_path("t", partition), None)
            .await;
    }
}

/// Makes a node and what is missing above it.
async fn make(
    connection: &dyn Connection,
    path: &str,
    data: &[u8],
    ephemeral: bool,
) -> Result<(), Fault> {
    match connection.create(path, data, ephemeral).await {
        Err(Fault::NoNode) => {}
        answer => return answer,
    }
    for (at, _) in path.match_indices('/').skip(1) {
        match connection.create(&path[..at], b"", false).await {
            Ok(()) | Err(Fault::NodeExists) => {}
            Err(fault) => return Err(fault),
        }
    }
    connection.create(path, data, ephemeral).await
}
