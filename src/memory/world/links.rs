//! Connections that break and come back, sessions that end, outages.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::{Due, Link, Pending, Session, World, unknown};
use crate::memory::faults::{Fate, Kind, Request};

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
        let heard = s.unheard.unwrap_or(now);
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

    pub(in crate::memory) fn heal(&mut self, session: i64) -> bool {
        let is_halted = self.is_halted;
        let Some(s) = self.sessions.get_mut(&session) else {
            return false;
        };
        if s.is_over || s.is_dead {
            return false;
        }
        s.is_cut = false;
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
