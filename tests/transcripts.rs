//! Transcripts: a group told in commands and what follows from them, by the pure rooms alone.
//!
//! Each block of `tests/transcripts/*.txt` is some commands, a line `----`, and what they print. `REWRITE=1` writes down
//! what they print now; the difference wants to be understood before it is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel::ack::Ledger;
use evenkeel::assign::{Assignor, Range, RoundRobin};
use evenkeel::config::{Compat, InternalTopics};
use evenkeel::filter::expand;
use evenkeel::group::{Assignment, GroupView, Member, Pattern, Subscription};
use evenkeel::lease::{LeaseGuard, Moment, Terms};
use evenkeel::rebalance::{Plan, plan};
use evenkeel::{ConsumerId, StreamId, Topic, TopicPartition};

struct World {
    view: GroupView,
    assignor: Box<dyn Assignor>,
    held: BTreeMap<ConsumerId, BTreeMap<TopicPartition, StreamId>>,
    ledger: Ledger,
    lease: LeaseGuard,
}

impl World {
    fn new() -> Self {
        Self {
            view: GroupView::default(),
            assignor: Box::new(Range),
            held: BTreeMap::new(),
            ledger: Ledger::new(0),
            lease: LeaseGuard::new(Terms::new(Duration::from_secs(6))),
        }
    }

    fn command(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["topic", name, count] => self.topic(name, count.parse().unwrap()),
            ["drop", name] => {
                self.view.topics.remove(&topic(name));
                self.view.partitions.insert(topic(name), Vec::new());
                String::new()
            }
            ["garble", name] => {
                self.view.unreadable.insert(topic(name), "garbage".into());
                self.view.partitions.remove(&topic(name));
                String::new()
            }
            ["strategy", name] => self.strategy(name, Compat::V1_0),
            ["strategy", name, "0.8.2"] => self.strategy(name, Compat::V0_8_2),
            ["strategy", name, "0.10.2"] => self.strategy(name, Compat::V0_10_2),
            [
                "join",
                name,
                list @ ("white_list" | "black_list"),
                regex,
                streams,
            ] => {
                let pattern = if *list == "white_list" {
                    Pattern::WhiteList
                } else {
                    Pattern::BlackList
                };
                let (regex, streams) = ((*regex).to_owned(), streams.parse().unwrap());
                self.join(
                    name,
                    Subscription::Filter {
                        pattern,
                        regex,
                        streams,
                    },
                )
            }
            ["join", name, topics @ ..] => {
                let topics = topics.iter().map(|text| {
                    let (name, streams) = text.split_once('*').unwrap_or((text, "1"));
                    (topic(name), streams.parse().unwrap())
                });
                self.join(name, Subscription::Topics(topics.collect()))
            }
            ["malformed", name] => {
                self.view
                    .malformed
                    .insert(ConsumerId::new(*name), "garbage".into());
                String::new()
            }
            ["leave", name] => {
                self.view.members.remove(&ConsumerId::new(*name));
                self.held.remove(&ConsumerId::new(*name));
                String::new()
            }
            ["assign"] => self.assign(),
            ["plan"] => self.plans(false),
            ["move"] => self.plans(true),
            ["start", offset] => {
                self.ledger = Ledger::new(offset.parse().unwrap());
                self.ledger_text()
            }
            ["give", offsets @ ..] => self.give(offsets),
            ["done", offsets @ ..] => {
                for offset in offsets {
                    self.ledger.done(offset.parse().unwrap());
                }
                self.ledger_text()
            }
            ["timeout", ms] => {
                let terms = Terms::new(Duration::from_millis(ms.parse().unwrap()));
                self.lease = LeaseGuard::new(terms);
                format!(
                    "a proof every {} ms, a packet every {} ms, a commit with {} ms left\n",
                    terms.probe_every().as_millis(),
                    terms.packet_every().as_millis(),
                    terms.commit_margin().as_millis()
                )
            }
            ["proof", "sent", ms] => {
                self.lease.renew(at(ms));
                String::new()
            }
            ["end"] => {
                self.lease.end();
                String::new()
            }
            ["at", ms] => self.at(ms),
            _ => panic!("no such command: {line}"),
        }
    }

    fn topic(&mut self, name: &str, count: i32) -> String {
        self.view.topics.insert(topic(name));
        self.view.unreadable.remove(&topic(name));
        self.view
            .partitions
            .insert(topic(name), (0..count).collect());
        String::new()
    }

    fn strategy(&mut self, name: &str, compat: Compat) -> String {
        self.assignor = match name {
            "range" => Box::new(Range),
            "roundrobin" => Box::new(RoundRobin { compat }),
            _ => panic!("no such strategy: {name}"),
        };
        String::new()
    }

    fn join(&mut self, name: &str, subscription: Subscription) -> String {
        let id = ConsumerId::new(name);
        self.held.entry(id.clone()).or_default();
        self.view.members.insert(
            id,
            Member {
                subscription,
                is_ours: true,
            },
        );
        String::new()
    }

    fn compute(&self) -> Result<(Assignment, BTreeSet<Topic>, String), String> {
        let expansion = expand(&self.view, InternalTopics::Offsets);
        let mut said = String::new();
        for (member, reason) in &expansion.beyond {
            writeln!(said, "{member} is beyond us: {reason}").unwrap();
        }
        let mut frozen = expansion.unsure;
        frozen.extend(self.view.unreadable.keys().cloned());
        let assignment = self
            .assignor
            .assign(&expansion.subscriptions, &self.view.partitions);
        let assignment = assignment.map_err(|error| format!("refused: {error}\n"))?;
        Ok((assignment, frozen, said))
    }

    fn assign(&self) -> String {
        let (assignment, _, mut text) = match self.compute() {
            Ok(computed) => computed,
            Err(refused) => return refused,
        };
        for (topic, owners) in assignment {
            let mut runs: Vec<(String, Vec<i32>)> = Vec::new();
            for (partition, stream) in owners {
                match runs.last_mut() {
                    Some((last, list)) if *last == stream.as_str() => list.push(partition),
                    _ => runs.push((stream.as_str().to_owned(), vec![partition])),
                }
            }
            for (stream, list) in runs {
                let list: Vec<String> = list.iter().map(|n| format!("{topic}-{n}")).collect();
                writeln!(text, "{stream} {}", list.join(" ")).unwrap();
            }
        }
        text
    }

    /// What every member plans; if asked for, it is carried out: releases first, then claims of what is free.
    fn plans(&mut self, is_done: bool) -> String {
        let (assignment, frozen, mut text) = match self.compute() {
            Ok(computed) => computed,
            Err(refused) => return refused,
        };
        let mut plans: Vec<(ConsumerId, Plan)> = Vec::new();
        for (id, held) in self
            .held
            .iter()
            .filter(|(id, _)| !self.view.malformed.contains_key(*id))
        {
            plans.push((id.clone(), plan(id, &assignment, held, &frozen)));
        }
        for (id, plan) in &plans {
            let release = plan.release.iter().map(|(p, heir)| {
                let heir = heir.as_ref().map_or("nobody", StreamId::as_str);
                format!("{p}>{heir}")
            });
            let keep = plan
                .keep
                .iter()
                .map(|p| format!("{p}>{}", self.held[id][p].number()));
            let claim = plan
                .claim
                .iter()
                .map(|(p, stream)| format!("{p}>{}", stream.number()));
            line(&mut text, id, "release", release.collect());
            line(&mut text, id, "keep", keep.collect());
            line(&mut text, id, "claim", claim.collect());
        }
        if is_done {
            text.clear();
            self.carry_out(plans);
            for (id, held) in &self.held {
                line(
                    &mut text,
                    id,
                    "holds",
                    held.keys().map(ToString::to_string).collect(),
                );
            }
        }
        text
    }

    fn carry_out(&mut self, plans: Vec<(ConsumerId, Plan)>) {
        for (id, plan) in &plans {
            self.held
                .get_mut(id)
                .unwrap()
                .retain(|partition, _| !plan.release.contains_key(partition));
        }
        for (id, plan) in plans {
            for (partition, stream) in plan.claim {
                let is_free = self
                    .held
                    .values()
                    .all(|held| !held.contains_key(&partition));
                if is_free {
                    self.held.get_mut(&id).unwrap().insert(partition, stream);
                }
            }
        }
    }

    fn give(&mut self, offsets: &[&str]) -> String {
        let mut text = String::new();
        for offset in offsets {
            if !self
                .ledger
                .hand_out(offset.parse().unwrap(), 1, Moment::default())
            {
                writeln!(text, "{offset} is refused").unwrap();
            }
        }
        text + &self.ledger_text()
    }

    fn ledger_text(&self) -> String {
        let oldest = self.ledger.oldest().map_or(String::new(), |(offset, _)| {
            format!(", {offset} is the oldest")
        });
        format!(
            "commit {}, {} in hand{oldest}\n",
            self.ledger.position(),
            self.ledger.len()
        )
    }

    fn at(&self, ms: &str) -> String {
        let now = at(ms);
        let may = |is: bool| if is { "may" } else { "may not" };
        format!(
            "{} ms left: {} deliver, {} commit\n",
            self.lease.left(now).as_millis(),
            may(self.lease.is_valid(now)),
            may(self.lease.allows_commit(now))
        )
    }
}

fn line(text: &mut String, id: &ConsumerId, what: &str, list: Vec<String>) {
    if !list.is_empty() {
        writeln!(text, "{id} {what} {}", list.join(" ")).unwrap();
    }
}

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

fn at(ms: &str) -> Moment {
    Moment::default().plus(Duration::from_millis(ms.parse().unwrap()))
}

/// The same text with what the commands print now.
fn replay(text: &str) -> String {
    let mut world = World::new();
    let mut blocks = Vec::new();
    for block in text.trim_end().split("\n\n") {
        let commands = block.split("----").next().unwrap().trim_end();
        let lines = commands
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty());
        let printed: String = lines.clone().map(|line| world.command(line)).collect();
        let is_prose = lines.count() == 0;
        blocks.push(if is_prose {
            commands.to_owned()
        } else {
            format!("{commands}\n----\n{printed}").trim_end().to_owned()
        });
    }
    blocks.join("\n\n") + "\n"
}

fn files() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

#[test]
fn the_transcripts_hold() {
    let files = files();
    assert!(files.len() >= 5);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let now = replay(&text);
        if std::env::var_os("REWRITE").is_some() {
            fs::write(&file, &now).unwrap();
        } else {
            assert_eq!(text, now, "{} tells something else", file.display());
        }
    }
}

#[test]
fn a_transcript_that_lies_is_found() {
    let lie = "topic t 2\njoin c1 t\nassign\n----\nc1-0 t-0\n";
    assert_eq!(
        replay(lie),
        "topic t 2\njoin c1 t\nassign\n----\nc1-0 t-0 t-1\n"
    );
}
