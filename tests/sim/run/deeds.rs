//! What befalls members, servers and brokers, and what operators do.

use evenkeel::testing::Latency;
use evenkeel::testing::check::Fact;
use evenkeel::wire::encode_topic;
use futures_util::FutureExt;

use super::{NEMESIS, PRODUCER, Run, Undo, ms};
use crate::kit::{Kit, at};
use crate::plan::{Deed, Way};

/// What nobody can read.
const GARBAGE: &str = "{{{";
const TOPIC: &str = "/brokers/topics/t";

impl Run<'_> {
    pub(super) fn disturb(&mut self, deed: &Deed) {
        let registry = self.kit.registry.clone();
        match *deed {
            Deed::Stop { place, ms } => {
                let Some(process) = self.process(place) else {
                    return;
                };
                let (switch, session) = (process.switch.clone(), process.session());
                self.stop(switch, session, process.name.clone(), ms);
            }
            Deed::Cut { place, ms } => self.cut(place, ms, None),
            Deed::CutOneWay { place, ms, loses } => self.cut(place, ms, Some(loses)),
            Deed::Sever { place } => {
                if let Some(session) = self.session(place) {
                    registry.sever(session);
                }
            }
            Deed::Expire { place } => {
                if let Some(session) = self.session(place)
                    && registry.expire(session)
                {
                    self.facts.note(NEMESIS, Fact::Expired { session });
                }
            }
            Deed::Commit { place } => {
                if let Some(process) = self.process(place)
                    && let Some(connector) = &process.connector
                {
                    // Nobody waits for the answer.
                    let _ = connector.commit().now_or_never();
                }
            }
            Deed::Isolate { server, ms } => {
                // Who is with another server notices nothing.
                let members = self.members_at(server);
                if registry.isolate(server) {
                    self.facts.count("follower cut off");
                    let from = self.facts.now();
                    self.later(ms, Undo::Rejoin(server, members, from));
                    self.tempt();
                }
            }
            Deed::Halt { ms } => {
                registry.halt();
                let (members, from) = (self.everybody(), self.facts.now());
                self.later(ms, Undo::Resume(members, from));
            }
            Deed::Slow { ms: time } => {
                self.facts.count("slow servers");
                let slow = Latency::between(ms(150), ms(500), self.plan.seed);
                let _ = registry.with_latency(slow);
                self.later(time, Undo::Fast);
            }
            Deed::Leaderless { partition, ms } => {
                let _ = self.kit.log.set_leader(&at("t", partition), false);
                self.later(ms, Undo::Lead(partition));
            }
            Deed::ReadFails { partition } => {
                let trouble = evenkeel::stream::Trouble::Failed("a fault".into());
                self.kit.log.trouble(&at("t", partition), &trouble);
            }
            Deed::BrokersDown { ms } => {
                self.kit.log.go_down("a fault");
                self.later(ms, Undo::Up);
            }
            Deed::Trim { partition, leaves } => self.trim(partition, leaves),
            Deed::Recreate { ms } => self.delete_topic(ms),
            Deed::Gap { partition, offsets } => {
                if self.kit.log.skip(&at("t", partition), offsets).is_ok() {
                    self.facts.count("gap in a log");
                }
            }
            Deed::Mute { partition } => {
                self.kit.log.mute(&at("t", partition));
                self.facts.count("partition muted");
            }
            ref other => self.operate(other),
        }
    }

    fn cut(&mut self, place: usize, ms: u64, loses: Option<Way>) {
        let Some(process) = self.process(place) else {
            return;
        };
        let Some(session) = process.session() else {
            return;
        };
        let (name, from) = (process.name.clone(), self.facts.now());
        if let Some(loses) = loses {
            if !self.kit.registry.cut_one_way(session, loses.into()) {
                return;
            }
            self.facts.count(match loses {
                Way::Answers => "answers lost for a while",
                Way::Requests => "requests lost for a while",
            });
        }
        self.silence(session);
        self.later(ms, Undo::Heal(session, name, from));
        self.tempt();
    }

    fn members_at(&self, server: usize) -> Vec<String> {
        let registry = &self.kit.registry;
        let is_there = |session| {
            let session = registry.session(session);
            session.is_some_and(|session| session.server == server)
        };
        let members = self.members.iter();
        members
            .filter(|process| process.session().is_some_and(is_there))
            .map(|process| process.name.clone())
            .collect()
    }

    // ---- the log ----

    /// Nobody needs to have read what is gone.
    fn forget(&mut self, partition: i32, before: i64) {
        let partition = at("t", partition);
        self.kit
            .sent
            .retain(|(of, offset)| *of != partition || *offset >= before);
        self.facts
            .note(PRODUCER, Fact::Trimmed { partition, before });
    }

    fn trim(&mut self, partition: i32, leaves: i64) {
        let Ok((start, end)) = self.kit.log.bounds(&at("t", partition)) else {
            return;
        };
        let before = (end - leaves).max(start);
        if self.kit.log.trim(&at("t", partition), before).is_ok() {
            self.facts.count("retention");
            self.forget(partition, before);
        }
    }

    fn delete_topic(&mut self, ms: u64) {
        if !self.is_topic_there {
            return;
        }
        self.is_topic_there = false;
        self.kit.delete("t");
        self.facts.count("topic made anew");
        for partition in 0..self.partitions {
            self.forget(partition, i64::MAX);
        }
        // Nobody writes an offset of the former topic into the new one.
        for undo in self.undo.values_mut() {
            if let Undo::Mend(_, offset) = undo {
                *offset = 0;
            }
        }
        self.later(ms, Undo::Recreate);
    }

    pub(super) fn make_topic(&mut self) {
        self.is_topic_there = true;
        self.kit.create("t", self.partitions);
        self.send(1);
    }

    // ---- operators ----

    fn operate(&mut self, deed: &Deed) {
        let registry = self.kit.registry.clone();
        match *deed {
            Deed::DeleteOwner { partition } => {
                registry.delete(&Kit::owner_path("t", partition));
            }
            Deed::DeleteId { place } => {
                if let Some(process) = self.process(place) {
                    registry.delete(&Kit::id_path(&process.name));
                }
            }
            Deed::Rewind { partition, by } => {
                if let Some(offset) = self.stored(partition) {
                    let back = (offset - by).max(0).to_string();
                    registry.put(&Kit::offset_path("t", partition), back);
                }
            }
            Deed::Advance { partition, by } => self.advance(partition, by),
            Deed::DeleteOffset { partition } => {
                let stored = self.stored(partition);
                if stored.is_some() {
                    self.facts.count("offset deleted");
                    registry.delete(&Kit::offset_path("t", partition));
                }
            }
            Deed::SpoilOffset { partition, ms } => {
                if let Some(offset) = self.stored(partition) {
                    self.facts.count("offset spoiled");
                    registry.put(&Kit::offset_path("t", partition), GARBAGE);
                    self.later(ms, Undo::Mend(partition, offset));
                }
            }
            Deed::SpoilOwner { partition } => {
                let path = Kit::owner_path("t", partition);
                if registry.read(&path).is_some() {
                    self.facts.count("owner node spoiled");
                    registry.put(&path, "somebody-else-0");
                }
            }
            Deed::SpoilTopic { ms } if self.is_topic_there => {
                self.facts.count("topic node spoiled");
                registry.put(TOPIC, GARBAGE);
                self.later(ms, Undo::Respell);
            }
            Deed::Garbage { ms } => {
                let path = Kit::id_path("nobody-can-read-it");
                registry.put(&path, GARBAGE);
                self.later(ms, Undo::Clean(path));
            }
            _ => {}
        }
    }

    /// The offset of the present topic that an operator finds.
    fn stored(&self, partition: i32) -> Option<i64> {
        let registry = &self.kit.registry;
        let (text, offset) = registry.read(&Kit::offset_path("t", partition))?;
        let (_, topic) = registry.read(TOPIC)?;
        let is_of_it = offset.mzxid > topic.czxid;
        let offset: i64 = String::from_utf8(text).ok()?.parse().ok()?;
        (is_of_it && offset >= 0).then_some(offset)
    }

    /// What lies between needs not be read.
    fn advance(&mut self, partition: i32, by: i64) {
        // So that there is something between.
        self.send(2);
        let (Some(offset), Ok((_, end))) = (
            self.stored(partition),
            self.kit.log.bounds(&at("t", partition)),
        ) else {
            return;
        };
        let ahead = (offset + by).min(end);
        if ahead <= offset {
            return;
        }
        self.facts.count("offset set forward");
        let path = Kit::offset_path("t", partition);
        self.kit.registry.put(&path, ahead.to_string());
        let partition = at("t", partition);
        let skipped = offset..ahead;
        self.kit
            .sent
            .retain(|(of, offset)| *of != partition || !skipped.contains(offset));
    }

    pub(super) fn mend(&self, partition: i32, offset: i64) {
        if self.kit.offset("t", partition).as_deref() == Some(GARBAGE) {
            let path = Kit::offset_path("t", partition);
            self.kit.registry.put(&path, offset.to_string());
        }
    }

    pub(super) fn respell(&self) {
        if self.is_topic_there {
            self.kit
                .registry
                .put(TOPIC, encode_topic(0..self.partitions));
        }
    }
}
