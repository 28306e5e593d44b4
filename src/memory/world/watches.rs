//! Watches: armed by a read, fired once by a write, told anew after a reconnect.

use std::time::Duration;

use tokio::sync::oneshot;

use super::{Answer, Armed, Outcome, Parcel, Sort, World};
use crate::memory::faults::Kind;
use crate::memory::tree::{Act, Write, parent};
use crate::registry::Fired;

impl World {
    pub(super) fn arm(
        &mut self,
        session: i64,
        path: &str,
        sort: Sort,
    ) -> Option<(u64, oneshot::Receiver<Fired>)> {
        let id = self.number();
        let (fire, fired) = oneshot::channel();
        let armed = Armed {
            path: path.into(),
            sort,
            fire,
        };
        self.sessions.get_mut(&session)?.watches.insert(id, armed);
        self.enlist(session, id, path, sort);
        Some((id, fired))
    }

    pub(super) fn enlist(&mut self, session: i64, id: u64, path: &str, sort: Sort) {
        let table = match sort {
            Sort::Data | Sort::Exist => &mut self.on_data,
            Sort::Child => &mut self.on_children,
        };
        table.entry(path.into()).or_default().insert((session, id));
    }

    /// A server has carried out a write: those of its clients who watch are told.
    pub(super) fn fire(&mut self, write: &Write, server: usize) {
        let path = write.path.as_str();
        match write.act {
            Act::Create => {
                self.tell(server, false, path);
                self.tell(server, true, parent(path));
            }
            Act::Set => self.tell(server, false, path),
            Act::Delete => {
                self.tell(server, false, path);
                self.tell(server, true, path);
                self.tell(server, true, parent(path));
            }
            Act::Open | Act::Close | Act::Check => {}
        }
    }

    fn tell(&mut self, server: usize, of_children: bool, path: &str) {
        let table = if of_children {
            &mut self.on_children
        } else {
            &mut self.on_data
        };
        let Some(ids) = table.get_mut(path) else {
            return;
        };
        let sessions = &self.sessions;
        let is_here = |id: &(i64, u64)| {
            let session = sessions.get(&id.0);
            session.is_some_and(|s| s.server == server)
        };
        let told: Vec<(i64, u64)> = ids.extract_if(.., is_here).collect();
        if ids.is_empty() {
            table.remove(path);
        }
        for (session, id) in told {
            self.post(session, Parcel::Event(id), Duration::ZERO);
        }
    }

    pub(super) fn disarm_all(&mut self, session: i64) {
        for table in [&mut self.on_data, &mut self.on_children] {
            table.retain(|_, ids| {
                ids.retain(|(whose, _)| *whose != session);
                !ids.is_empty()
            });
        }
    }

    pub(super) fn disarm(&mut self, session: i64, id: u64) -> bool {
        let Some(s) = self.sessions.get_mut(&session) else {
            return false;
        };
        let Some(armed) = s.watches.remove(&id) else {
            return false;
        };
        let table = match armed.sort {
            Sort::Data | Sort::Exist => &mut self.on_data,
            Sort::Child => &mut self.on_children,
        };
        if let Some(ids) = table.get_mut(&armed.path) {
            ids.remove(&(session, id));
            if ids.is_empty() {
                table.remove(&armed.path);
            }
        }
        true
    }

    pub(super) fn forget_watch(&mut self, session: i64, outcome: &Outcome) {
        if let Ok(Answer {
            watch: Some((id, _)),
            ..
        }) = outcome
        {
            self.disarm(session, *id);
        }
    }

    /// The application dropped a watch that had not fired. 3.4 answers that by hanging up.
    pub(in crate::memory) fn unwatch(&mut self, session: i64, id: u64) {
        if !self.disarm(session, id) {
            return;
        }
        let Some(s) = self.sessions.get_mut(&session) else {
            return;
        };
        *s.counts.entry(Kind::Unwatch).or_default() += 1;
        if self.is_old() {
            self.sever(session);
        }
    }

    /// A new connection: the client tells what it watches and up to where it has seen; what changed since fires at once.
    pub(super) fn rearm_all(&mut self, session: i64) {
        let Some(s) = self.sessions.get(&session) else {
            return;
        };
        let seen = s.seen;
        let armed: Vec<(u64, String, Sort)> = s
            .watches
            .iter()
            .map(|(id, armed)| (*id, armed.path.clone(), armed.sort))
            .collect();
        for (id, path, sort) in armed {
            let node = self.tree_of(session).node(&path);
            let has_changed = match sort {
                Sort::Data => node.is_none_or(|node| node.stat.mzxid > seen),
                Sort::Exist => node.is_some(),
                Sort::Child => node.is_none_or(|node| node.pzxid > seen),
            };
            if has_changed {
                self.post(session, Parcel::Event(id), Duration::ZERO);
            } else {
                self.enlist(session, id, &path, sort);
            }
        }
    }
}
