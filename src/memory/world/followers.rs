//! Followers: servers that carry out a little later what the leader has committed, and that go on answering their clients
//! for a while when they are cut off from it.
//!
//! Server 0 leads. A write of a follower's client goes to the leader and is answered once the follower has carried it
//! out itself; what the same client asks meanwhile waits behind it, so that it sees its own writes. Reads are answered
//! from what the follower has carried out so far.

use std::time::Duration;

use tokio::time::Instant;

use super::{Due, Link, Outcome, World, unknown};
use crate::memory::faults::{Fate, Kind, Latency, Request};
use crate::memory::tree::{Act, Tree};

/// One transaction: its number, and which entries of the log are its steps.
pub(super) struct Txn {
    zxid: i64,
    steps: std::ops::Range<usize>,
}

/// A write of a follower's client, on its way to the leader.
pub(super) struct Forwarded {
    session: i64,
    number: u64,
    epoch: u64,
    server: usize,
    request: Request,
    fate: Fate,
}

/// What the leader made of a write, to be told once the follower has come so far.
struct Answerable {
    after: usize,
    session: i64,
    number: u64,
    epoch: u64,
    fate: Fate,
    outcome: Outcome,
}

/// A server that follows.
pub(super) struct Follower {
    pub tree: Tree,
    pub zxid: i64,
    /// How many of the leader's transactions it has carried out.
    applied: usize,
    /// When the last of what is on its way here arrives, and when what is on its way from here does; nothing overtakes.
    down: Instant,
    up: Instant,
    isolated: Option<Instant>,
    stuck: Vec<Forwarded>,
    answers: Vec<Answerable>,
}

impl Follower {
    fn new(now: Instant) -> Self {
        Self {
            tree: Tree::new(),
            zxid: 0,
            applied: 0,
            down: now,
            up: now,
            isolated: None,
            stuck: Vec::new(),
            answers: Vec::new(),
        }
    }
}

impl World {
    /// From now on there are so many servers, with this time from one to another.
    pub(in crate::memory) fn spread(&mut self, servers: usize, relay: Latency) {
        let now = self.now;
        self.relay = relay;
        self.followers = (1..servers).map(|_| Follower::new(now)).collect();
        for server in 1..servers {
            self.catch_up(server);
        }
    }

    pub(super) fn follower(&mut self, server: usize) -> Option<&mut Follower> {
        self.followers.get_mut(server.checked_sub(1)?)
    }

    /// What the session's server knows.
    pub(super) fn tree_of(&self, session: i64) -> &Tree {
        let server = self.sessions.get(&session).map_or(0, |s| s.server);
        match server.checked_sub(1).and_then(|at| self.followers.get(at)) {
            Some(follower) => &follower.tree,
            None => &self.tree,
        }
    }

    /// The newest transaction that the session's server has carried out.
    pub(super) fn zxid_of(&self, session: i64) -> i64 {
        let server = self.sessions.get(&session).map_or(0, |s| s.server);
        let follower = server.checked_sub(1).and_then(|at| self.followers.get(at));
        follower.map_or(self.zxid, |follower| follower.zxid)
    }

    /// A server that has seen what the client has seen: others refuse it.
    pub(super) fn pick_server(&mut self, seen: i64) -> usize {
        let good: Vec<usize> = self
            .followers
            .iter()
            .enumerate()
            .filter(|(_, follower)| follower.isolated.is_none() && follower.zxid >= seen)
            .map(|(at, _)| at + 1)
            .chain([0])
            .collect();
        if good.len() == 1 {
            return 0;
        }
        good[self.relay.roll(good.len())]
    }

    // ---- down from the leader ----

    /// The leader has carried out one transaction, whose steps begin here in the log.
    pub(super) fn publish(&mut self, from: usize) {
        let (zxid, steps) = (self.zxid, from..self.log.len());
        self.history.push(Txn { zxid, steps });
        let upto = self.history.len();
        for server in 1..=self.followers.len() {
            self.send_down(server, upto);
        }
    }

    fn send_down(&mut self, server: usize, upto: usize) {
        let time = self.relay.draw();
        let now = self.now;
        let Some(follower) = self.follower(server) else {
            return;
        };
        if follower.isolated.is_some() {
            return;
        }
        follower.down = follower.down.max(now + time);
        let at = follower.down;
        self.plan(at, Due::Apply { server, upto });
    }

    /// What has arrived is carried out, in order.
    pub(super) fn apply(&mut self, server: usize, upto: usize) {
        loop {
            let Some(follower) = self.follower(server) else {
                return;
            };
            // What was under way when it was cut off comes again when it is back.
            if follower.applied >= upto || follower.isolated.is_some() {
                return;
            }
            let at = follower.applied;
            follower.applied += 1;
            let Some(txn) = self.history.get(at) else {
                return;
            };
            let (zxid, steps) = (txn.zxid, txn.steps.clone());
            let mut closed = None;
            for step in steps {
                let write = self.log[step].clone();
                if let Some(follower) = self.follower(server) {
                    follower.tree.replay(&write);
                }
                self.fire(&write, server);
                if write.act == Act::Close {
                    closed = Some(write.session);
                }
            }
            if let Some(follower) = self.follower(server) {
                follower.zxid = zxid;
            }
            // Who closed it himself is answered; whose session expired is hung up on, though his own close be under way.
            self.answer_up_to(server, at + 1);
            if let Some(session) = closed {
                self.hang_up_on_expired(session, server);
            }
        }
    }

    /// At once, as before a new session is answered.
    pub(super) fn catch_up(&mut self, server: usize) {
        let upto = self.history.len();
        self.apply(server, upto);
    }

    fn hang_up_on_expired(&mut self, session: i64, server: usize) {
        let is_here = self
            .sessions
            .get(&session)
            .is_some_and(|s| s.server == server && s.is_connected());
        if is_here {
            self.end_client(session);
        }
    }

    fn answer_up_to(&mut self, server: usize, applied: usize) {
        let Some(follower) = self.follower(server) else {
            return;
        };
        let ready: Vec<Answerable> = follower
            .answers
            .extract_if(.., |answer| answer.after <= applied)
            .collect();
        for answer in ready {
            let session = answer.session;
            let is_same = self
                .sessions
                .get(&session)
                .is_some_and(|s| s.epoch == answer.epoch);
            if is_same {
                self.answer(session, answer.number, answer.fate, answer.outcome);
            }
            self.is_written(session, answer.number);
        }
    }

    // ---- up to the leader ----

    /// What the follower's client asked: writes go on to the leader, reads wait for the writes before them.
    pub(super) fn serve_at_follower(
        &mut self,
        session: i64,
        number: u64,
        request: &Request,
        fate: Fate,
    ) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if !(request.is_write() || request.kind == Kind::Close) {
            if s.writing.is_empty() {
                return self.answer_read(session, number, request, fate);
            }
            s.behind.push_back(number);
            return;
        }
        s.writing.insert(number);
        let forwarded = Forwarded {
            session,
            number,
            epoch: s.epoch,
            server: s.server,
            request: request.clone(),
            fate,
        };
        self.send_up(forwarded);
    }

    fn answer_read(&mut self, session: i64, number: u64, request: &Request, fate: Fate) {
        let outcome = self.perform(session, request);
        self.answer(session, number, fate, outcome);
    }

    fn send_up(&mut self, forwarded: Forwarded) {
        let time = self.relay.draw();
        let (now, is_halted) = (self.now, self.is_halted);
        let Some(follower) = self.follower(forwarded.server) else {
            return;
        };
        if follower.isolated.is_some() || is_halted {
            follower.stuck.push(forwarded);
            return;
        }
        follower.up = follower.up.max(now + time);
        let at = follower.up;
        self.plan(at, Due::Commit(Box::new(forwarded)));
    }

    /// A follower's write reaches the leader, whatever has become of the connection it came on.
    pub(super) fn commit(&mut self, forwarded: Forwarded) {
        let server = forwarded.server;
        let (is_halted, is_there) = (self.is_halted, self.sessions.get(&forwarded.session));
        // A session that has gone to another server takes no more writes from here.
        let is_valid = is_there.is_some_and(|s| s.is_open && s.server == server);
        let Some(follower) = self.follower(server) else {
            return;
        };
        if is_halted || follower.isolated.is_some() {
            follower.stuck.push(forwarded);
            return;
        }
        if !is_valid {
            return;
        }
        let outcome = self.perform(forwarded.session, &forwarded.request);
        let answer = Answerable {
            after: self.history.len(),
            session: forwarded.session,
            number: forwarded.number,
            epoch: forwarded.epoch,
            fate: forwarded.fate,
            outcome,
        };
        if let Some(follower) = self.follower(server) {
            follower.answers.push(answer);
        }
    }

    /// A write of the session is answered; what waited behind it goes on.
    fn is_written(&mut self, session: i64, number: u64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        s.writing.remove(&number);
        while let Some(s) = self.sessions.get_mut(&session)
            && s.writing.is_empty()
            && let Some(number) = s.behind.pop_front()
        {
            let Some(pending) = s.pending.get(&number) else {
                continue;
            };
            let (request, fate) = (pending.request.clone(), pending.fate.clone());
            self.answer_read(session, number, &request, fate);
        }
    }

    // ---- cut off from the leader ----

    /// The follower hears nothing of the leader any more, nor the leader of it. Its clients notice nothing for a while.
    pub(in crate::memory) fn isolate(&mut self, server: usize) -> bool {
        let (now, limit) = (self.now, self.sync_limit);
        // With more of them away there would be no quorum: that is another outage.
        let away = self
            .followers
            .iter()
            .filter(|f| f.isolated.is_some())
            .count()
            + 1;
        if away * 2 > self.followers.len() {
            return false;
        }
        let Some(follower) = self.follower(server) else {
            return false;
        };
        if follower.isolated.is_some() {
            return false;
        }
        follower.isolated = Some(now);
        for session in self.sessions_at(server) {
            self.unheard(session);
        }
        self.plan(now + limit, Due::Forsake { server, since: now });
        true
    }

    pub(super) fn is_isolated(&mut self, server: usize) -> bool {
        let follower = self.follower(server);
        follower.is_some_and(|follower| follower.isolated.is_some())
    }

    /// The leader hears of the session no more, though its client may.
    pub(super) fn unheard(&mut self, session: i64) {
        let now = self.now;
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if !s.is_open || s.link != Link::Up {
            return;
        }
        s.silence += 1;
        s.unheard = Some(now);
        let (silence, timeout) = (s.silence, s.timeout);
        let expiry = self.expiry(now, timeout);
        self.plan(expiry, Due::Expire { session, silence });
    }

    /// After so long without the leader a follower sends its clients away.
    pub(super) fn forsake(&mut self, server: usize, since: Instant) {
        let is_still = self
            .follower(server)
            .is_some_and(|follower| follower.isolated == Some(since));
        if !is_still {
            return;
        }
        // It begins anew when it is back: what it could not pass on is forgotten.
        if let Some(follower) = self.follower(server) {
            follower.stuck.clear();
            follower.answers.clear();
        }
        for session in self.sessions_at(server) {
            if let Some(s) = self.sessions.get_mut(&session)
                && s.link == Link::Cut
            {
                s.is_forsaken = true;
            }
            self.sever(session);
        }
    }

    /// The follower is back; what it missed is on its way.
    pub(in crate::memory) fn rejoin(&mut self, server: usize) -> bool {
        let Some(follower) = self.follower(server) else {
            return false;
        };
        if follower.isolated.take().is_none() {
            return false;
        }
        let upto = self.history.len();
        self.send_down(server, upto);
        self.send_up_stuck(server);
        for session in self.sessions_at(server) {
            if let Some(s) = self.sessions.get_mut(&session)
                && s.link == Link::Up
                && !s.is_over
            {
                s.silence += 1;
                s.unheard = None;
            }
        }
        true
    }

    /// What could not be passed on is, in its order.
    pub(super) fn send_up_stuck(&mut self, server: usize) {
        let stuck = self.follower(server).map(|f| std::mem::take(&mut f.stuck));
        for forwarded in stuck.into_iter().flatten() {
            self.send_up(forwarded);
        }
    }

    fn sessions_at(&self, server: usize) -> Vec<i64> {
        let here = self.sessions.iter().filter(|(_, s)| s.server == server);
        here.map(|(id, _)| *id).collect()
    }

    /// Answers as the request's fate wants it, once it was carried out.
    pub(super) fn answer(&mut self, session: i64, number: u64, fate: Fate, outcome: Outcome) {
        match fate {
            Fate::LoseAfter => {
                self.forget_watch(session, &outcome);
                self.reply(session, number, unknown("no answer came"), Duration::ZERO);
            }
            // A connection that carries nothing at the moment cannot be reset; what is on it comes once it does.
            Fate::BreakAfter if self.is_connected(session) => {
                self.forget_watch(session, &outcome);
                self.sever(session);
            }
            Fate::DelayAnswer(extra) => self.reply(session, number, outcome, extra),
            _ => self.reply(session, number, outcome, Duration::ZERO),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::time::sleep;

    use crate::memory::{Latency, MemoryRegistry};
    use crate::registry::{Connection, Dialect, Fault, Fired, Registry};

    const RELAY: Duration = Duration::from_millis(100);
    const T: Duration = Duration::from_secs(6);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn three() -> MemoryRegistry {
        MemoryRegistry::new().with_servers(3, Latency::fixed(RELAY))
    }

    /// A client of a server of this sort.
    async fn client(
        ensemble: &MemoryRegistry,
        leads: bool,
    ) -> (std::sync::Arc<dyn Connection>, usize) {
        for _ in 0..100 {
            let connection = ensemble.open(Dialect::V3_5).await.unwrap();
            let session = ensemble.session(connection.session_id()).unwrap();
            if (session.server == 0) == leads {
                return (connection, session.server);
            }
        }
        panic!("clients are spread over all servers");
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_shows_what_is_written_a_little_later() {
        let ensemble = three();
        let (writer, _) = client(&ensemble, true).await;
        let (reader, _) = client(&ensemble, false).await;
        writer.create("/a", b"", false).await.unwrap();
        assert_eq!(reader.stat("/a").await, Ok(None));
        sleep(RELAY * 2).await;
        assert!(reader.stat("/a").await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_sees_its_own_writes_wherever_it_is() {
        let ensemble = three();
        let (one, _) = client(&ensemble, false).await;
        let (write, read) = tokio::join!(one.create("/a", b"x", true), one.data("/a"));
        write.unwrap();
        let (data, stat) = read.unwrap();
        assert_eq!(
            (data, stat.ephemeral_owner),
            (b"x".to_vec(), one.session_id())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn watches_fire_when_the_clients_own_server_knows() {
        let ensemble = three();
        let (writer, _) = client(&ensemble, true).await;
        let (reader, _) = client(&ensemble, false).await;
        let (_, mut watch) = reader.stat_and_watch("/a").await.unwrap();
        writer.create("/a", b"", false).await.unwrap();
        assert!((&mut watch).now_or_never().is_none());
        sleep(RELAY).await;
        assert_eq!(watch.await, Fired::Changed);
        assert!(reader.stat("/a").await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_has_seen_something_does_not_lose_sight_of_it_by_moving() {
        let ensemble = three();
        let (reader, _) = client(&ensemble, false).await;
        for number in 0..40 {
            let path = format!("/{number}");
            reader.create(&path, b"", false).await.unwrap();
            ensemble.sever(reader.session_id());
            assert!(reader.stat(&path).await.unwrap().is_some(), "{path}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_without_its_leader_goes_on_answering_while_the_session_ends() {
        let ensemble = three().with_sync_limit(T * 2);
        let (member, server) = client(&ensemble, false).await;
        let (rival, _) = client(&ensemble, true).await;
        member.create("/o", b"", true).await.unwrap();
        assert!(ensemble.isolate(server));
        let (_, gone) = rival.stat_and_watch("/o").await.unwrap();
        assert_eq!(gone.await, Fired::Changed);
        rival.create("/o", b"", true).await.unwrap();
        // It is answered, from long ago, and nothing tells it so.
        let stat = member.stat("/o").await.unwrap().unwrap();
        assert_eq!(stat.ephemeral_owner, member.session_id());
        let asked = tokio::time::timeout(ms(1000), member.set("/o", b"", None));
        assert!(asked.await.is_err(), "a write hangs");
        // Then it is sent away, and learns.
        sleep(T * 2).await;
        assert_eq!(member.stat("/o").await, Err(Fault::SessionLost));
        assert!(ensemble.rejoin(server));
        assert!(!ensemble.rejoin(server));
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_that_is_back_in_time_has_lost_nobody() {
        let ensemble = three().with_sync_limit(T * 2);
        let (member, server) = client(&ensemble, false).await;
        member.create("/o", b"", true).await.unwrap();
        ensemble.isolate(server);
        ensemble.put("/else", "where");
        sleep(T / 2).await;
        assert_eq!(member.stat("/else").await, Ok(None));
        let write = tokio::spawn(member.set("/o", b"late", None));
        sleep(ms(500)).await;
        ensemble.rejoin(server);
        assert_eq!(write.await.unwrap().unwrap().version, 1);
        sleep(T * 2).await;
        assert!(member.stat("/else").await.unwrap().is_some());
        assert!(ensemble.read("/o").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_outlives_the_connection_it_came_on() {
        let ensemble = three();
        let (member, server) = client(&ensemble, false).await;
        let write = tokio::spawn(member.create("/a", b"", false));
        sleep(RELAY / 2).await;
        ensemble.sever(member.session_id());
        assert!(matches!(write.await.unwrap(), Err(Fault::Unknown(_))));
        sleep(RELAY).await;
        let is_same = ensemble.session(member.session_id()).unwrap().server == server;
        // Another server means another way: what comes on the old one is refused.
        assert_eq!(ensemble.read("/a").is_some(), is_same);
    }
}
