//! Everything at once: slow requests, lost answers, cuts, expiries, hands from outside, members that come and go.
//!
//! `EVENKEEL_STORMS` says how many there are, `EVENKEEL_SEED` with which the first begins: a failure names its seed.

use std::sync::Arc;
use std::time::Duration;

use evenkeel::testing::check::{Counts, Fact};
use evenkeel::testing::{Fate, Kind, Request};
use tokio::time::sleep;

use crate::book::Listening;
use crate::kit::{Kit, Member, range_of, until};

const PARTITIONS: i32 = 8;

/// A small generator, so that a run can be repeated.
#[derive(Clone)]
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }
}

fn faulty(mut dice: Dice, one_in: usize) -> impl FnMut(&Request) -> Fate + Send + 'static {
    move |request| {
        if request.kind == Kind::Close || dice.roll(one_in) > 0 {
            return Fate::Deliver;
        }
        match dice.roll(6) {
            0 => Fate::LoseBefore,
            1 => Fate::LoseAfter,
            2 => Fate::BreakBefore,
            3 => Fate::BreakAfter,
            4 => Fate::Delay(Duration::from_millis(dice.roll(900) as u64)),
            _ => Fate::DelayAnswer(Duration::from_millis(dice.roll(900) as u64)),
        }
    }
}

/// A session that is cut off, whose it is, and since when.
type Cut = (i64, Arc<str>, u64);

struct Storm {
    kit: Kit,
    dice: Dice,
    members: Vec<Member>,
    cut: Vec<Cut>,
    joined: u32,
}

impl Storm {
    fn join(&mut self) {
        let mut config = self.kit.config();
        config.auto_commit_interval = Duration::from_millis(300);
        let host = format!("h{}", self.joined);
        self.joined += 1;
        let (book, whose) = (self.kit.book.clone(), Arc::default());
        let listening = Listening { book, whose };
        let whose = listening.whose.clone();
        let builder = self.kit.builder(&host, config);
        let builder = builder.with_listener(Arc::new(listening));
        let member = self.kit.join_with(builder, &[("t", 1)]);
        whose
            .set(member.name.as_str().into())
            .expect("it has one name");
        self.members.push(member);
    }

    fn any_session(&mut self) -> Option<i64> {
        self.any_place().map(|(session, _)| session)
    }

    /// A session and whose it is.
    fn any_place(&mut self) -> Option<(i64, Arc<str>)> {
        let place = self.dice.roll(self.members.len());
        let member = &self.members[place];
        let session = member.connector().health().session?;
        Some((session, member.name.as_str().into()))
    }

    async fn step(&mut self) {
        let partition = self.dice.roll(PARTITIONS as usize) as i32;
        match self.dice.roll(12) {
            0 | 1 if self.members.len() < 5 => self.join(),
            2 if self.members.len() > 1 => {
                let place = self.dice.roll(self.members.len());
                self.members.swap_remove(place).leave().await;
            }
            3 if self.members.len() > 1 => {
                let place = self.dice.roll(self.members.len());
                if self.members[place].connector().health().session.is_some() {
                    self.members.swap_remove(place).die(&self.kit.registry);
                }
            }
            4 => {
                if let Some(session) = self.any_session() {
                    self.kit.expire(session);
                }
            }
            5 => {
                if let Some((session, member)) = self.any_place() {
                    self.kit.registry.cut(session);
                    self.cut.push((session, member, self.kit.book.mono()));
                }
            }
            6 => self.heal(),
            7 => self.kit.registry.delete(&Kit::owner_path("t", partition)),
            8 => {
                let place = self.dice.roll(self.members.len());
                let id = Kit::id_path(&self.members[place].name);
                self.kit.registry.delete(&id);
            }
            9 => {
                if let Some(session) = self.any_session() {
                    self.kit.registry.sever(session);
                }
            }
            _ => {}
        }
        self.kit.send("t", PARTITIONS);
        let pause = self.dice.roll(2500) as u64;
        sleep(Duration::from_millis(pause)).await;
    }

    fn heal(&mut self) {
        for (session, member, from) in self.cut.drain(..) {
            let to = self.kit.book.mono();
            let fact = Fact::Cut { member, from, to };
            self.kit.book.note("nemesis", fact);
            self.kit.registry.heal(session);
        }
    }
}

/// Nothing that is judged is violated.
#[track_caller]
pub fn assert_good(kit: &Kit, seed: u64) -> Counts {
    let verdict = kit.book.judge();
    assert!(verdict.is_good(), "seed {seed}: {verdict}");
    verdict.counts
}

async fn storm(seed: u64) -> Counts {
    let mut dice = Dice(seed);
    let mut kit = Kit::slow(0, 1 + dice.roll(40) as u64, seed);
    kit.create("t", PARTITIONS);
    kit.send("t", PARTITIONS);
    let one_in = [4, 10, 30, 1000][dice.roll(4)];
    let _ = kit.registry.clone().with_fate(faulty(Dice(!seed), one_in));
    let mut storm = Storm {
        kit,
        dice,
        members: Vec::new(),
        cut: Vec::new(),
        joined: 0,
    };
    storm.join();
    for _ in 0..25 {
        storm.step().await;
    }
    // Calm.
    storm.heal();
    storm.kit.registry.without_faults();
    storm.kit.send("t", PARTITIONS);
    let all: Vec<&Member> = storm.members.iter().collect();
    let words = format!("seed {seed}: they share");
    until(&words, || {
        storm.kit.owners("t") == range_of(&all, PARTITIONS)
    })
    .await;
    let words = format!("seed {seed}: everything is finished");
    until(&words, || storm.kit.is_all_finished()).await;
    for member in &all {
        member.settled().await;
        assert!(
            member.connector().health().is_ready(),
            "seed {seed}: {:?}",
            member.connector().health()
        );
    }
    storm.kit.book.note("storm", Fact::Settled);
    // What was claimed anew last is read again from where it was committed.
    sleep(Duration::from_secs(2)).await;
    for member in storm.members {
        assert!(member.leave().await.forced.is_empty(), "seed {seed}");
    }
    for partition in 0..PARTITIONS {
        let (_, end) = storm
            .kit
            .log
            .bounds(&crate::kit::at("t", partition))
            .unwrap();
        assert_eq!(
            storm.kit.offset("t", partition),
            Some(end.to_string()),
            "seed {seed}"
        );
    }
    assert_good(&storm.kit, seed)
}

#[tokio::test(start_paused = true)]
async fn after_any_storm_each_partition_has_its_owner_and_nothing_was_lost() {
    // I1, I2, I3, I4, I8, I14, I16, A1, O3, N2
    let seeds = std::env::var("EVENKEEL_STORMS")
        .ok()
        .and_then(|text| text.parse().ok());
    let first = std::env::var("EVENKEEL_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let first: u64 = first.unwrap_or(0);
    let mut counts = Counts::default();
    for seed in first..first + seeds.unwrap_or(20) {
        counts.add(&storm(seed).await);
    }
    println!("{counts:?}");
}
