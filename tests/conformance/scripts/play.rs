//! Playing a script on a registry.
//!
//! Which watches an operation fires is told by no clock: a session is told of a change before it can read it, so after
//! every operation each session that watches reads once, and what has not rung by then has not fired. A watch is polled
//! when it is armed and after that only when it rang, as a runtime would.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;
use std::task::Wake;
use std::task::Waker;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;

use evenkeel::registry::Connection;
use evenkeel::registry::Dialect;
use evenkeel::registry::Fault;
use evenkeel::registry::Fired;
use evenkeel::registry::Op;
use evenkeel::registry::Registry;
use evenkeel::registry::Stat;
use evenkeel::registry::Watch;

use super::script::Ask;
use super::script::CLIENTS;
use super::script::Script;
use super::script::Step;
use super::script::Write;
use super::transcript::Answer;
use super::transcript::Line;
use super::transcript::Transcript;

/// What must come, and comes long before this is over.
const LONG: Duration = Duration::from_secs(30);

/// Where scripts are played.
#[derive(Clone, Copy)]
pub struct Stage<'a> {
    pub registry: &'a dyn Registry,
    /// What its servers speak.
    pub dialect: Dialect,
}

/// Plays a script below a node of its own, so that any number can be played on one stage.
pub async fn play(stage: Stage<'_>, script: &Script) -> Transcript {
    static PLAYS: AtomicUsize = AtomicUsize::new(0);
    let play = PLAYS.fetch_add(1, Ordering::Relaxed);
    let observer = open(stage, stage.dialect).await;
    // As long as any other: there is a limit to the size of a request.
    let root = format!("/s{:020}-{play:010}", script.seed);
    observer.create(&root, b"", false).await.unwrap();
    let mut player = Player {
        stage,
        root,
        clients: [const { None }; CLIENTS],
        watches: Vec::new(),
        armed: 0,
        transcript: Transcript::default(),
    };
    for step in &script.steps {
        player.step(step).await;
    }
    player.look_at_all(&*observer, "in the end").await;
    for client in 0..CLIENTS {
        player.step(&Step::Close { client }).await;
    }
    player.look_at_all(&*observer, "after the end").await;
    observer.close().await;
    player.transcript
}

async fn open(stage: Stage<'_>, dialect: Dialect) -> Arc<dyn Connection> {
    stage.registry.open(dialect).await.unwrap()
}

struct Player<'a> {
    stage: Stage<'a>,
    root: String,
    clients: [Option<Client>; CLIENTS],
    /// Those that have not fired.
    watches: Vec<Armed>,
    armed: usize,
    transcript: Transcript,
}

struct Client {
    connection: Arc<dyn Connection>,
    session: usize,
}

struct Armed {
    number: usize,
    session: Option<usize>,
    /// Without tokio's limit to what a task may do at a time, which would make it look as if it had not fired.
    watch: tokio::task::Unconstrained<Watch>,
    bell: Arc<Bell>,
}

struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Armed {
    fn fired(&mut self) -> Option<Fired> {
        if !self.bell.0.swap(false, Ordering::SeqCst) {
            return None;
        }
        let waker = Waker::from(Arc::clone(&self.bell));
        match self.watch.poll_unpin(&mut Context::from_waker(&waker)) {
            Poll::Ready(fired) => Some(fired),
            Poll::Pending => None,
        }
    }
}

impl Player<'_> {
    async fn step(&mut self, step: &Step) {
        let mut line = Line {
            step: step.to_string(),
            ..Line::default()
        };
        let session = self.session_of(step);
        for watch in self.carry_out(step, &mut line).await {
            self.arm(session, watch);
            line.armed.push(self.armed);
        }
        // Others may not have heard of it yet.
        line.before = self.fired(|armed| armed.session == session);
        self.fence().await;
        line.after = self.fired(|_| true);
        self.transcript.lines.push(line);
    }

    /// The session that a step is about, if there is one.
    fn session_of(&self, step: &Step) -> Option<usize> {
        let (Step::Open { client, .. }
        | Step::Ask { client, .. }
        | Step::Unwatch { client, .. }
        | Step::Close { client }
        | Step::Drop { client }) = step;
        Some(self.clients[*client].as_ref()?.session)
    }

    /// The watches that it armed.
    async fn carry_out(&mut self, step: &Step, line: &mut Line) -> Vec<Watch> {
        match step {
            Step::Open { client, old } => {
                self.let_go(*client).await;
                let dialect = if *old {
                    Dialect::V3_4
                } else {
                    self.stage.dialect
                };
                let connection = open(self.stage, dialect).await;
                let session = self.transcript.sessions.len();
                self.transcript.sessions.push(connection.session_id());
                self.clients[*client] = Some(Client {
                    connection,
                    session,
                });
                line.answers.push(Answer::Done);
            }
            Step::Close { client } => {
                let answer = match &self.clients[*client] {
                    Some(client) => {
                        let closed = client
                            .connection
                            .close()
                            .then(|()| client.connection.ended());
                        soon(closed.map(|()| Answer::Done)).await
                    }
                    None => Answer::Nobody,
                };
                line.answers.push(answer);
            }
            Step::Drop { client } => line.answers.push(self.let_go(*client).await),
            Step::Unwatch { client, which } => {
                self.unwatch(*client, *which);
                // A server of 3.4 hangs up over it, and may still answer the first request after it.
                if let Some(client) = &self.clients[*client] {
                    settle(&*client.connection, &self.root).await;
                    settle(&*client.connection, &self.root).await;
                }
            }
            Step::Ask { client, asks } => {
                let Some(client) = &self.clients[*client] else {
                    line.answers.push(Answer::Nobody);
                    return Vec::new();
                };
                let asked = asks.iter().map(|ask| self.ask(&*client.connection, ask));
                let (answers, watches): (Vec<_>, Vec<_>) =
                    join_all(asked).await.into_iter().unzip();
                line.answers = answers;
                return watches.into_iter().flatten().collect();
            }
        }
        Vec::new()
    }

    async fn let_go(&mut self, client: usize) -> Answer {
        let Some(client) = self.clients[client].take() else {
            return Answer::Nobody;
        };
        let ended = client.connection.ended();
        drop(client);
        soon(ended.map(|()| Answer::Done)).await
    }

    // ---- watches ----

    fn arm(&mut self, session: Option<usize>, watch: Watch) {
        self.armed += 1;
        self.watches.push(Armed {
            number: self.armed,
            session,
            watch: tokio::task::unconstrained(watch),
            bell: Arc::new(Bell(AtomicBool::new(true))),
        });
    }

    fn unwatch(&mut self, client: usize, which: usize) {
        let Some(client) = &self.clients[client] else {
            return;
        };
        let all = self.watches.iter().enumerate();
        let its = all.filter(|(_, armed)| armed.session == Some(client.session));
        let places: Vec<usize> = its.map(|(place, _)| place).collect();
        if !places.is_empty() {
            self.watches.remove(places[which % places.len()]);
        }
    }

    /// Those of some watches that have fired; there is nothing more to hear of them.
    fn fired(&mut self, of: impl Fn(&Armed) -> bool) -> Vec<(usize, Fired)> {
        let mut fired = Vec::new();
        self.watches.retain_mut(|armed| {
            let what = if of(armed) { armed.fired() } else { None };
            fired.extend(what.map(|what| (armed.number, what)));
            what.is_none()
        });
        fired
    }

    /// Every session that watches reads once. Nothing is known as long as its connection is broken.
    async fn fence(&self) {
        let watching = |client: &&Client| {
            let mut sessions = self.watches.iter().map(|armed| armed.session);
            sessions.any(|session| session == Some(client.session))
        };
        let clients = self.clients.iter().flatten().filter(watching);
        join_all(clients.map(|client| settle(&*client.connection, &self.root))).await;
    }

    // ---- the tree ----

    async fn look_at_all(&mut self, observer: &dyn Connection, when: &str) {
        self.fence().await;
        let mut line = Line {
            step: format!("what fired {when}"),
            ..Line::default()
        };
        line.after = self.fired(|_| true);
        self.transcript.lines.push(line);
        let mut paths = vec![String::new()];
        while let Some(path) = paths.pop() {
            let data = Ask::Data {
                path: path.clone(),
                watch: false,
            };
            let children = Ask::Children {
                path: path.clone(),
                watch: false,
            };
            let (data, _) = self.ask(observer, &data).await;
            let (children, _) = self.ask(observer, &children).await;
            let answers = vec![data, children];
            if let Answer::Names(names, _) = &answers[1] {
                paths.extend(names.iter().map(|name| format!("{path}/{name}")));
            }
            self.transcript.lines.push(Line {
                step: format!("{path:?} {when}"),
                answers,
                ..Line::default()
            });
        }
    }

    // ---- requests ----

    fn path(&self, below: &str) -> String {
        format!("{}{below}", self.root)
    }

    async fn ask(&self, connection: &dyn Connection, ask: &Ask) -> (Answer, Option<Watch>) {
        match tokio::time::timeout(LONG, self.answer(connection, ask)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(fault)) => (fault, None),
            Err(_) => (Answer::Late, None),
        }
    }

    async fn answer(
        &self,
        connection: &dyn Connection,
        ask: &Ask,
    ) -> Result<(Answer, Option<Watch>), Answer> {
        let fault = |fault| Answer::Fault(None, fault);
        let answer = match ask {
            Ask::Data { path, watch: true } => {
                let read = connection.data_and_watch(&self.path(path)).await;
                let (data, stat, watch) = read.map_err(fault)?;
                return Ok((Answer::Data(data, stat), Some(watch)));
            }
            Ask::Stat { path, watch: true } => {
                let read = connection.stat_and_watch(&self.path(path)).await;
                let (stat, watch) = read.map_err(fault)?;
                return Ok((node(stat), Some(watch)));
            }
            Ask::Children { path, watch: true } => {
                let read = connection.children_and_watch(&self.path(path)).await;
                let (names, stat, watch) = read.map_err(fault)?;
                return Ok((sorted(names, stat), Some(watch)));
            }
            Ask::Data { path, .. } => {
                let (data, stat) = connection.data(&self.path(path)).await.map_err(fault)?;
                Answer::Data(data, stat)
            }
            Ask::Stat { path, .. } => node(connection.stat(&self.path(path)).await.map_err(fault)?),
            Ask::Children { path, .. } => {
                let read = connection.children(&self.path(path)).await;
                let (names, stat) = read.map_err(fault)?;
                sorted(names, stat)
            }
            Ask::Write(write) => self.write(connection, write).await?,
            Ask::Multi(writes) => self.multi(connection, writes).await?,
        };
        Ok((answer, None))
    }

    async fn write(&self, connection: &dyn Connection, write: &Write) -> Result<Answer, Answer> {
        let fault = |fault| Answer::Fault(None, fault);
        match write {
            Write::Create {
                path,
                data,
                ephemeral,
            } => {
                let sent = connection.create(&self.path(path), &data.bytes(), *ephemeral);
                sent.await.map_err(fault)?;
                Ok(Answer::Done)
            }
            Write::Set {
                path,
                data,
                version,
            } => {
                let sent = connection.set(&self.path(path), &data.bytes(), *version);
                Ok(Answer::Node(sent.await.map_err(fault)?))
            }
            Write::Delete { path, version } => {
                let sent = connection.delete(&self.path(path), *version);
                sent.await.map_err(fault)?;
                Ok(Answer::Done)
            }
            Write::Check { .. } => self.multi(connection, std::slice::from_ref(write)).await,
        }
    }

    async fn multi(&self, connection: &dyn Connection, writes: &[Write]) -> Result<Answer, Answer> {
        let ops = writes.iter().map(|write| self.op(write)).collect();
        match connection.multi(ops).await {
            Ok(steps) => Ok(Answer::Steps(steps)),
            Err(fault) => Err(Answer::Fault(fault.index, fault.fault)),
        }
    }

    fn op(&self, write: &Write) -> Op {
        match write {
            Write::Check { path, version } => Op::Check {
                path: self.path(path),
                version: *version,
            },
            Write::Create {
                path,
                data,
                ephemeral,
            } => Op::Create {
                path: self.path(path),
                data: data.bytes(),
                ephemeral: *ephemeral,
            },
            Write::Set {
                path,
                data,
                version,
            } => Op::Set {
                path: self.path(path),
                data: data.bytes(),
                version: *version,
            },
            Write::Delete { path, version } => Op::Delete {
                path: self.path(path),
                version: *version,
            },
        }
    }
}

async fn soon(answer: impl Future<Output = Answer>) -> Answer {
    let answer = tokio::time::timeout(LONG, answer).await;
    answer.unwrap_or(Answer::Late)
}

/// Reads until it is known what the session knows.
async fn settle(connection: &dyn Connection, path: &str) {
    let read = async {
        while let Err(Fault::Unknown(_)) = connection.stat(path).await {
            tokio::task::yield_now().await;
        }
        Answer::Done
    };
    soon(read).await;
}

fn node(stat: Option<Stat>) -> Answer {
    stat.map_or(Answer::Missing, Answer::Node)
}

fn sorted(mut names: Vec<String>, stat: Stat) -> Answer {
    names.sort();
    Answer::Names(names, stat)
}
