//! Connections that break and come back, sessions that end, outages.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::{Due, Link, Pending, Session, World, unknown};
use crate::memory::faults::{Fate, Kind, Lost, Request};

impl World {
    /// What was sent on the connection is unknown now.
    pub(super) fn hang_up(&mut self, session: i64, why: &str) {
        self.disarm_all(session);
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        s.epoch += 1;
        s.writing.clear();
        s.behind.clear();
        (s.there, s.back) = (self.now, self.now);
        s.stuck_there.clear();
        s.stuck_back.clear();
        let (sent, waiting) = std::mem::take(&mut s.pending)
            .into_iter()
            .partition(|(_, pending)| pending.is_sent);
        s.pending = waiting;
        let sent: BTreeMap<u64, Pending> = sent;
        for (_, pending) in sent {
            if let Some((outcome, _)) = &pending.outcome {
                self.forget_watch(session, outcome);
            }
            let _ = pending.answer.send(unknown(why));
        }
    }

    pub(super) fn reconnect(&mut self, session: i64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        s.link = Link::Up;
        s.is_forsaken = false;
        // A close that was under way is not sent again.
        if !s.is_open || s.is_closing {
            return self.end_client(session);
        }
        // Whichever server it comes to now, the leader hears of it.
        s.silence += 1;
        s.unheard = None;
        let seen = s.seen;
        let server = self.pick_server(seen);
        if let Some(s) = self.sessions.get_mut(&session) {
            s.server = server;
        }
        self.rearm_all(session);
        let waiting: Vec<u64> = self
            .sessions
            .get(&session)
            .into_iter()
            .flat_map(|s| s.pending.keys().copied())
            .collect();
        for number in waiting {
            self.dispatch(session, number);
        }
    }

    pub(in crate::memory) fn sever(&mut self, session: i64) {
        if self.is_connected(session) {
            self.hang_up(session, "the connection was reset");
            self.reconnect(session);
        }
    }

    pub(super) fn is_connected(&self, session: i64) -> bool {
        self.sessions
            .get(&session)
            .is_some_and(Session::is_connected)
    }

    pub(super) fn notice(&mut self, session: i64) {
        self.hang_up(session, "no answer within 2/5 of the session timeout");
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        s.link = Link::Down;
        if s.is_closing {
            self.end_client(session);
        }
    }

    pub(super) fn expiry(&self, heard: Instant, timeout: Duration) -> Instant {
        let since = heard.saturating_duration_since(self.zero) + timeout;
        let since = since.saturating_sub(self.lag);
        let tick = self.tick.as_nanos().max(1);
        let ticks = since.as_nanos() / tick + 1;
        let nanos = u64::try_from(ticks * tick).unwrap_or(u64::MAX);
        self.zero + Duration::from_nanos(nanos)
    }

    pub(super) fn break_off(&mut self, session: i64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if s.link != Link::Up || s.is_over {
            return;
        }
        s.link = Link::Cut;
        s.silence += 1;
        let (silence, timeout, now) = (s.silence, s.timeout, self.now);
        let last = match s.lost {
            Some(Lost::Answers) => now + timeout * 7 / 5,
            Some(Lost::Requests) | None => now,
        };
        let heard = s.unheard.unwrap_or(last);
        let expiry = self.expiry(heard, timeout);
        self.plan(now + timeout * 2 / 5, Due::Notice { session, silence });
        self.plan(expiry, Due::Expire { session, silence });
        self.plan(now + timeout * 7 / 5, Due::GiveUp { session, silence });
    }

    pub(in crate::memory) fn cut(&mut self, session: i64, is_for_good: bool) -> bool {
        let Some(s) = self.sessions.get_mut(&session) else {
            return false;
        };
        if s.is_over {
            return false;
        }
        s.is_cut = true;
        s.is_dead |= is_for_good;
        self.break_off(session);
        true
    }

    pub(in crate::memory) fn cut_one_way(&mut self, session: i64, lost: Lost) -> bool {
        let Some(s) = self.sessions.get_mut(&session) else {
            return false;
        };
        // What is cut already stays as it is.
        if s.is_over || s.link != Link::Up {
            return false;
        }
        s.lost = Some(lost);
        self.cut(session, false)
    }

    pub(in crate::memory) fn heal(&mut self, session: i64) -> bool {
        let is_halted = self.is_halted;
        let Some(s) = self.sessions.get_mut(&session) else {
            return false;
        };
        if s.is_over || s.is_dead {
            return false;
        }
        s.is_cut = false;
        s.lost = None;
        if !is_halted {
            self.mend(session);
        }
        true
    }

    pub(super) fn mend(&mut self, session: i64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        s.silence += 1;
        match s.link {
            Link::Up => {}
            Link::Down => self.reconnect(session),
            Link::Cut if !s.is_open => {
                s.link = Link::Up;
                self.end_client(session);
            }
            Link::Cut if s.is_forsaken => {
                s.link = Link::Up;
                self.sever(session);
            }
            Link::Cut => self.flow_again(session),
        }
    }

    /// The client never noticed: the network delivers what it held, in order.
    pub(super) fn flow_again(&mut self, session: i64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        s.link = Link::Up;
        s.unheard = None;
        let (epoch, server) = (s.epoch, s.server);
        if self.is_isolated(server) {
            self.unheard(session);
        }
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        let back = std::mem::take(&mut s.stuck_back);
        let there = std::mem::take(&mut s.stuck_there);
        for parcel in back {
            self.deliver(session, parcel, epoch);
        }
        for number in there {
            self.arrive(session, number, epoch);
        }
    }

    pub(super) fn expire_on_time(&mut self, session: i64) {
        let is_spared = |s: &Session| s.spared > self.now;
        if !self.is_halted && !self.sessions.get(&session).is_some_and(is_spared) {
            self.end_session(session);
        }
    }

    pub(in crate::memory) fn expire(&mut self, session: i64) -> bool {
        let Some(s) = self.sessions.get(&session) else {
            return false;
        };
        if !s.is_open {
            return false;
        }
        let is_connected = s.is_connected();
        let is_of_leader = s.server == 0;
        self.end_session(session);
        // A follower's client is told when the follower knows.
        if is_connected && is_of_leader {
            self.end_client(session);
        }
        true
    }

    /// The application dropped its connection.
    pub(in crate::memory) fn let_go(&mut self, session: i64) {
        let Some(s) = self.sessions.get(&session) else {
            return;
        };
        if s.is_over || s.is_closing || s.is_dead {
            return;
        }
        let request = Request {
            session,
            kind: Kind::Close,
            path: String::new(),
            ops: Vec::new(),
            is_watching: false,
        };
        let (answer, _) = oneshot::channel();
        self.send(session, request, Fate::Deliver, answer);
    }

    // ---- outages ----

    pub(in crate::memory) fn halt(&mut self) {
        self.is_halted = true;
        let all: Vec<i64> = self.sessions.keys().copied().collect();
        for session in all {
            self.break_off(session);
        }
    }

    /// A new leader gives every session its whole timeout again.
    pub(in crate::memory) fn resume(&mut self) {
        if !std::mem::replace(&mut self.is_halted, false) {
            return;
        }
        let open: Vec<(i64, bool)> = self
            .sessions
            .iter()
            .filter(|(_, s)| s.is_open)
            .map(|(id, s)| (*id, s.is_cut || s.is_over))
            .collect();
        for server in 1..=self.followers.len() {
            self.send_up_stuck(server);
        }
        for (session, stays_away) in open {
            if stays_away {
                self.wait_anew(session);
            } else {
                self.mend(session);
            }
        }
    }

    pub(super) fn wait_anew(&mut self, session: i64) {
        let Some(s) = self.sessions.get(&session) else {
            return;
        };
        let silence = s.silence;
        let expiry = self.expiry(self.now, s.timeout);
        if let Some(s) = self.sessions.get_mut(&session) {
            s.spared = expiry;
        }
        self.plan(expiry, Due::Expire { session, silence });
    }

    pub(in crate::memory) fn over(&self, session: i64) -> Option<watch::Receiver<bool>> {
        Some(self.sessions.get(&session)?.over.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use crate::memory::{Lost, MemoryRegistry};
    use crate::registry::{Connection, Dialect, Fault, Fired, Registry};

    const T: Duration = Duration::from_secs(6);

    async fn two(ensemble: &MemoryRegistry) -> (Arc<dyn Connection>, Arc<dyn Connection>) {
        let one = ensemble.open(Dialect::V3_5).await.unwrap();
        let other = ensemble.open(Dialect::V3_5).await.unwrap();
        one.create("/o", b"", true).await.unwrap();
        (one, other)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_is_done_though_no_answer_comes() {
        let ensemble = MemoryRegistry::new();
        let (deaf, other) = two(&ensemble).await;
        assert!(ensemble.cut_one_way(deaf.session_id(), Lost::Answers));
        let write = tokio::spawn(deaf.create("/a", b"", false));
        sleep(T / 5).await;
        assert!(other.stat("/a").await.unwrap().is_some());
        assert!(matches!(write.await.unwrap(), Err(Fault::Unknown(_))));
        // The servers hear of it as long as it tries.
        sleep(T).await;
        assert!(other.stat("/o").await.unwrap().is_some());
        sleep(T / 5).await;
        assert_eq!(deaf.stat("/o").await, Err(Fault::SessionLost));
        assert!(other.stat("/o").await.unwrap().is_some());
        sleep(T + T / 10).await;
        assert_eq!(other.stat("/o").await, Ok(None));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_not_heard_still_hears() {
        let ensemble = MemoryRegistry::new();
        let (mute, other) = two(&ensemble).await;
        let (_, changed) = mute.stat_and_watch("/a").await.unwrap();
        assert!(ensemble.cut_one_way(mute.session_id(), Lost::Requests));
        other.create("/a", b"", false).await.unwrap();
        assert_eq!(changed.await, Fired::Changed);
        let write = timeout(T, mute.create("/b", b"", false));
        assert!(matches!(write.await.unwrap(), Err(Fault::Unknown(_))));
        assert_eq!(other.stat("/b").await, Ok(None));
        sleep(T).await;
        assert_eq!(other.stat("/o").await, Ok(None));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_lost_one_way_only_comes_when_it_is_healed() {
        for lost in [Lost::Answers, Lost::Requests] {
            let ensemble = MemoryRegistry::new();
            let (member, other) = two(&ensemble).await;
            ensemble.cut_one_way(member.session_id(), lost);
            assert!(!ensemble.cut_one_way(member.session_id(), lost));
            let write = tokio::spawn(member.create("/a", b"", false));
            sleep(T / 5).await;
            ensemble.heal(member.session_id());
            write.await.unwrap().unwrap();
            sleep(T * 2).await;
            assert!(other.stat("/o").await.unwrap().is_some(), "{lost:?}");
        }
    }
}
