//! When the faults are over: everything must come right within its time.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel::testing::check::Fact;
use evenkeel::{ConsumerConnector, TopicPartition};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::{DRAIN, NEMESIS, Run, granted, ms};
use crate::kit::{Kit, at, range};
use crate::plan::Way;

/// The longest that a member waits before it tries again.
const PAUSE: Duration = Duration::from_secs(2);

impl Run<'_> {
    pub(super) async fn calm_down(&mut self) -> Result<(), String> {
        while let Some((_, undo)) = self.undo.pop_first() {
            self.put_right(undo);
        }
        self.kit.registry.without_faults();
        for legacy in self.legacy.drain(..) {
            legacy.leave();
            self.rest.push(legacy.task);
        }
        // What those do on their way out is still theirs.
        let (gone, staying) = std::mem::take(&mut self.rest)
            .into_iter()
            .partition::<Vec<_>, _>(|task| self.jvms.contains(&task.id()));
        self.rest = staying;
        for task in gone {
            ended(task, "an old member's leave").await?;
        }
        if let Some(place) = self.plan.cut_for_good
            && self.members.len() > 1
        {
            // Nobody heals it: the others must get along without it.
            let process = self.take(place);
            let loses = self.plan.cut_loses;
            process.line.cut(&self.kit.registry, loses.into());
            self.facts.count(match loses {
                Way::Answers => "answers lost for good",
                Way::Requests => "requests lost for good",
            });
            self.stranded = Some((process, self.facts.now()));
        }
        if self.members.is_empty() {
            self.join(None);
        }
        self.calm.begin();
        self.facts.note(NEMESIS, Fact::Healed);
        self.send(1);
        let began = Instant::now();
        let limit = self.bound();
        self.await_until(
            limit,
            "each partition has its owner by the rule",
            Self::is_right,
        )
        .await?;
        self.converged = Some((began.elapsed(), limit));
        self.await_until(ms(120_000), "everything is finished", Self::is_finished)
            .await?;
        self.await_until(ms(120_000), "everybody is settled", |run| {
            let is_ready = run.members.iter().all(|process| {
                let connector = process.connector.as_ref();
                connector.is_some_and(|connector| connector.health().is_ready())
            });
            is_ready && run.is_right()
        })
        .await?;
        self.facts.note(NEMESIS, Fact::Settled);
        // What was claimed anew last is read again from where it was committed.
        self.await_until(
            ms(120_000),
            "everything in hand is done",
            Self::is_at_the_end,
        )
        .await?;
        for leaving in std::mem::take(&mut self.leaving) {
            ended(leaving, "a leave").await?;
        }
        if let Some((process, from)) = self.stranded.take() {
            self.was_cut(std::slice::from_ref(&process.name), from);
            self.members.push(process);
        }
        for process in std::mem::take(&mut self.members) {
            self.leave(process, 10_000);
        }
        for leaving in std::mem::take(&mut self.leaving) {
            ended(leaving, "the last leave").await?;
        }
        for task in std::mem::take(&mut self.rest) {
            ended(task, "a task").await?;
        }
        self.offsets_reach_the_end()
    }

    /// I14: until the nodes of the dead are gone, and of the one that is cut off; then two rounds of letting go, since whoever lost his
    /// session comes back when the first is under way; the longest pause between two attempts, and the way to and fro.
    fn bound(&self) -> Duration {
        let session = granted(self.plan);
        let heard = match (&self.stranded, self.plan.cut_loses) {
            // So long its client goes on trying.
            (Some(_), Way::Answers) => session * 7 / 5,
            _ => Duration::ZERO,
        };
        let listener = self.plan.manners.iter().filter_map(|m| m.listener_ms);
        let listener = ms(listener.max().unwrap_or(0)).min(DRAIN);
        heard + session + ms(self.plan.tick_ms) + (DRAIN + listener) * 2 + PAUSE + ms(1000)
    }

    async fn await_until(
        &self,
        limit: Duration,
        what: &str,
        holds: impl Fn(&Self) -> bool,
    ) -> Result<(), String> {
        let until = Instant::now() + limit;
        while !holds(self) {
            if Instant::now() >= until {
                return Err(format!("not within {limit:?}: {what}\n{}", self.state()));
            }
            sleep(ms(10)).await;
        }
        Ok(())
    }

    fn is_right(&self) -> bool {
        // While one that is dead or on its way out is registered, partitions may be on their way to it.
        let alive = self.members.iter().map(|process| process.name.clone());
        if BTreeSet::from_iter(self.kit.members()) != BTreeSet::from_iter(alive) {
            return false;
        }
        let mut streams = Vec::new();
        for process in &self.members {
            let count = self.streams_of(&process.name);
            streams.extend((0..count).map(|number| format!("{}-{number}", process.name)));
        }
        self.kit.owners("t") == range(&streams, self.partitions)
    }

    fn streams_of(&self, name: &str) -> u32 {
        let text = self.kit.registry.read(&Kit::id_path(name));
        let registration =
            text.and_then(|(data, _)| evenkeel::wire::decode_registration(&data).ok());
        match registration {
            Some(evenkeel::group::Subscription::Topics(topics)) => topics.values().copied().sum(),
            // Not registered is not right either.
            _ => 1000,
        }
    }

    fn is_finished(&self) -> bool {
        let done: BTreeSet<(TopicPartition, i64)> = self.facts.look(|events| {
            let mut done = BTreeSet::new();
            for event in events {
                match &event.fact {
                    Fact::Done {
                        partition, offset, ..
                    } => {
                        done.insert((partition.clone(), *offset));
                    }
                    // What bears the same offset later is another message.
                    Fact::Trimmed { partition, before } => {
                        done.retain(|(of, offset)| of != partition || offset >= before);
                    }
                    _ => {}
                }
            }
            done
        });
        self.kit.sent.is_subset(&done)
    }

    fn is_at_the_end(&self) -> bool {
        let connectors = self.members.iter().filter_map(|m| m.connector.as_ref());
        let held: Vec<_> = connectors
            .flat_map(|connector| connector.health().held)
            .collect();
        // Whose owner node was made just now does not know it yet, and whose is gone may not know that.
        let known: BTreeSet<TopicPartition> = held.iter().map(|(at, _)| at.clone()).collect();
        let is_known = known.len() == usize::try_from(self.partitions).unwrap_or(0);
        let is_there = |(at, holding): (TopicPartition, evenkeel::Holding)| {
            let end = self.kit.log.bounds(&at).map(|(_, end)| end).ok();
            holding.position == end && holding.undone == 0
        };
        is_known && held.into_iter().all(is_there)
    }

    fn offsets_reach_the_end(&self) -> Result<(), String> {
        for partition in 0..self.partitions {
            let (_, end) = self
                .kit
                .log
                .bounds(&at("t", partition))
                .expect("a partition");
            let stored = self.kit.offset("t", partition);
            if stored != Some(end.to_string()) {
                return Err(format!(
                    "t-{partition} ends at {end} and its offset is {stored:?}"
                ));
            }
        }
        Ok(())
    }

    fn state(&self) -> String {
        let mut lines = vec![format!("owners: {:?}", self.kit.owners("t"))];
        lines.push(format!("ids: {:?}", self.kit.members()));
        for process in &self.members {
            let health = process.connector.as_ref().map(ConsumerConnector::health);
            lines.push(format!("{}: {health:?}", process.name));
        }
        lines.join("\n")
    }
}

async fn ended(task: JoinHandle<()>, what: &str) -> Result<(), String> {
    match timeout(ms(60_000), task).await {
        Err(_) => Err(format!("{what} does not end")),
        Ok(Err(error)) if error.is_panic() => Err(format!("{what} panicked")),
        Ok(_) => Ok(()),
    }
}
