//! Requests on their way: out, carried out, and back.

use std::time::Duration;

use tokio::sync::oneshot;

use super::{Answer, Due, Link, Outcome, Parcel, Pending, Sort, World, fault, unknown};
use crate::memory::faults::{Fate, Kind, Lost, Request};
use crate::registry::{Dialect, Fault, Fired, MultiFault, Op};

impl World {
    pub(in crate::memory) fn send(
        &mut self,
        session: i64,
        request: Request,
        fate: Fate,
        answer: oneshot::Sender<Outcome>,
    ) {
        let number = self.number();
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if s.is_over || s.is_closing {
            let _ = answer.send(Err(fault(Fault::SessionLost)));
            return;
        }
        *s.counts.entry(request.kind).or_default() += 1;
        let is_close = request.kind == Kind::Close;
        s.is_closing |= is_close;
        let pending = Pending {
            request,
            fate,
            is_sent: false,
            outcome: None,
            answer,
        };
        s.pending.insert(number, pending);
        match s.link {
            // Nobody can be told; the ensemble will find out by itself.
            Link::Down if is_close => self.end_client(session),
            Link::Down => {}
            Link::Up | Link::Cut => self.dispatch(session, number),
        }
    }

    pub(super) fn dispatch(&mut self, session: i64, number: u64) {
        let time = self.latency.draw();
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        let Some(pending) = s.pending.get_mut(&number) else {
            return;
        };
        pending.is_sent = true;
        let extra = match pending.fate {
            Fate::Delay(extra) => extra,
            _ => Duration::ZERO,
        };
        s.there = s.there.max(self.now + time + extra);
        let (at, epoch) = (s.there, s.epoch);
        if at <= self.now {
            self.arrive(session, number, epoch);
        } else {
            let due = Due::Arrive {
                session,
                number,
                epoch,
            };
            self.plan(at, due);
        }
    }

    pub(super) fn arrive(&mut self, session: i64, number: u64, epoch: u64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if s.epoch != epoch {
            return;
        }
        if s.link == Link::Cut && s.lost != Some(Lost::Answers) {
            s.stuck_there.push(number);
            return;
        }
        let Some(pending) = s.pending.get(&number) else {
            return;
        };
        let (request, fate) = (pending.request.clone(), pending.fate.clone());
        self.serve(session, number, &request, fate);
    }

    pub(super) fn serve(&mut self, session: i64, number: u64, request: &Request, fate: Fate) {
        match fate {
            Fate::LoseBefore => {
                return self.reply(session, number, unknown("no answer came"), Duration::ZERO);
            }
            // As in `answer`: what carries nothing at the moment cannot be reset.
            Fate::BreakBefore if self.is_connected(session) => return self.sever(session),
            Fate::Refuse(why) => {
                return self.reply(session, number, Err(fault(why)), Duration::ZERO);
            }
            Fate::RefuseStep(index, fault) => {
                let index = Some(index);
                let refused = MultiFault { index, fault };
                return self.reply(session, number, Err(refused), Duration::ZERO);
            }
            _ => {}
        }
        if self.is_unsupported(session, request) {
            return self.refuse_kind(session, number, request);
        }
        if self.sessions.get(&session).is_some_and(|s| s.server > 0) {
            return self.serve_at_follower(session, number, request, fate);
        }
        let outcome = self.perform(session, request);
        self.answer(session, number, fate, outcome);
    }

    /// What 3.4 does not know: the create of newer clients, and any create within a transaction, since the client
    /// sends the newer form there whatever it was told.
    pub(super) fn is_unsupported(&self, session: i64, request: &Request) -> bool {
        let is_new = self
            .sessions
            .get(&session)
            .is_some_and(|s| s.dialect == Dialect::V3_5);
        self.is_old()
            && match request.kind {
                Kind::Create => is_new,
                Kind::Multi => request.ops.iter().any(|op| matches!(op, Op::Create { .. })),
                Kind::Unwatch => true,
                _ => false,
            }
    }

    pub(super) fn is_old(&self) -> bool {
        self.version < (3, 5)
    }

    pub(super) fn refuse_kind(&mut self, session: i64, number: u64, request: &Request) {
        let is_breaking = request.kind != Kind::Multi;
        if !is_breaking {
            let outcome = Err(fault(Fault::Unsupported));
            return self.reply(session, number, outcome, Duration::ZERO);
        }
        if let Some(s) = self.sessions.get_mut(&session)
            && let Some(pending) = s.pending.remove(&number)
        {
            let _ = pending.answer.send(Err(fault(Fault::Unsupported)));
        }
        self.sever(session);
    }

    pub(super) fn perform(&mut self, session: i64, request: &Request) -> Outcome {
        match request.kind {
            Kind::Data | Kind::Stat | Kind::Children => self.look(session, request),
            Kind::Create | Kind::Set | Kind::Delete | Kind::Multi => {
                let stats = self.write(session, &request.ops)?;
                let steps = request.ops.iter().zip(stats).map(|(op, stat)| match op {
                    Op::Set { .. } => Some(stat),
                    _ => None,
                });
                Ok(Answer {
                    steps: steps.collect(),
                    ..Answer::default()
                })
            }
            Kind::Close => {
                self.end_session(session);
                Ok(Answer::default())
            }
            Kind::Unwatch => Ok(Answer::default()),
        }
    }

    pub(super) fn look(&mut self, session: i64, request: &Request) -> Outcome {
        let node = self.tree_of(session).node(&request.path);
        let mut answer = Answer {
            stat: node.map(|node| node.stat),
            ..Answer::default()
        };
        let sort = match (request.kind, node) {
            (Kind::Stat, Some(_)) => Sort::Data,
            (Kind::Stat, None) => Sort::Exist,
            (_, None) => return Err(fault(Fault::NoNode)),
            (Kind::Children, Some(node)) => {
                answer.names = node.children.iter().cloned().collect();
                Sort::Child
            }
            (_, Some(node)) => {
                answer.data.clone_from(&node.data);
                Sort::Data
            }
        };
        if request.is_watching {
            answer.watch = self.arm(session, &request.path, sort);
        }
        Ok(answer)
    }

    pub(super) fn reply(&mut self, session: i64, number: u64, outcome: Outcome, extra: Duration) {
        let zxid = self.zxid_of(session);
        if let Some(s) = self.sessions.get_mut(&session)
            && let Some(pending) = s.pending.get_mut(&number)
        {
            pending.outcome = Some((outcome, zxid));
            self.post(session, Parcel::Reply(number), extra);
        }
    }

    // ---- the way back ----

    pub(super) fn post(&mut self, session: i64, parcel: Parcel, extra: Duration) {
        let time = self.latency.draw();
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        s.back = s.back.max(self.now + time + extra);
        let (at, epoch) = (s.back, s.epoch);
        if at <= self.now {
            self.deliver(session, parcel, epoch);
        } else {
            let due = Due::Deliver {
                session,
                parcel,
                epoch,
            };
            self.plan(at, due);
        }
    }

    pub(super) fn deliver(&mut self, session: i64, parcel: Parcel, epoch: u64) {
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        if s.epoch != epoch || s.link == Link::Down {
            return;
        }
        if s.link == Link::Cut && s.lost != Some(Lost::Requests) {
            s.stuck_back.push(parcel);
            return;
        }
        match parcel {
            Parcel::Event(id) => {
                if let Some(armed) = s.watches.remove(&id) {
                    let _ = armed.fire.send(Fired::Changed);
                }
            }
            Parcel::Reply(number) => {
                let Some(pending) = s.pending.remove(&number) else {
                    return;
                };
                let Some((outcome, zxid)) = pending.outcome else {
                    return;
                };
                s.seen = s.seen.max(zxid);
                let _ = pending.answer.send(outcome);
                if pending.request.kind == Kind::Close {
                    self.end_client(session);
                }
            }
        }
    }
}
