//! Where it is played: the members that live, what is known of them, and the wait until a change has settled.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use rdkafka::mocking::MockCluster;
use tokio::time::interval;

use evenkeel::testing::MemoryRegistry;
use evenkeel::wire::encode_topic;

use crate::output::{Failure, Outcome};

use super::balance::Who;
use super::books::Books;
use super::fleet::{Dice, Fleet, GROUPS, HOSTS, PARTITIONS, Seat, context};
use super::member::{Habit, Member, World, named};
use super::producer::Producer;
use super::script::Act;
use super::show::{Frame, Row, Show};

/// The ensemble's tick: a session is missed at whole ones.
const TICK: Duration = Duration::from_millis(200);
/// How often the show looks.
const LOOK: Duration = Duration::from_millis(50);
/// An act lasts at least so long after its change has settled, so that there is something to see.
const CURTAIN: Duration = Duration::from_millis(2500);
/// An act that has not settled by then is left to itself.
const PATIENCE: Duration = Duration::from_secs(6);
/// How long the last messages are waited for.
const LAST: Duration = Duration::from_secs(12);

pub struct Stage {
    pub world: World,
    pub fleet: Fleet,
    pub dice: Dice,
    pub members: BTreeMap<Seat, Member>,
    pub show: Show,
    title: String,
    /// The hosts of all members that ever joined, by their number.
    hosts: Vec<String>,
    producer: Option<Producer>,
    _cluster: MockCluster<'static, rdkafka::producer::DefaultProducerContext>,
}

/// An act under way.
pub struct Scene<'a> {
    pub stage: &'a mut Stage,
    name: &'static str,
    from: Duration,
}

impl Scene<'_> {
    /// Waits until the change has settled, and a little longer.
    pub async fn end(self) -> Outcome<Act> {
        let (stage, name, from) = (self.stage, self.name, self.from);
        let is_settled = stage.wait_for(Stage::is_settled, PATIENCE).await?;
        let now = stage.world.books.now();
        stage.wait_for(|_| false, CURTAIN).await?;
        let settled = is_settled.then(|| now - from);
        let text = match settled {
            Some(time) => format!("settled after {} ms", time.as_millis()),
            None => "not settled yet".to_owned(),
        };
        stage.note(&format!(
            "{text}; partitions by host: {}",
            stage.spread_text()
        ))?;
        let to = stage.world.books.now();
        Ok(Act {
            name,
            from,
            to,
            settled,
        })
    }
}

impl Stage {
    /// Brokers, an ensemble, and the first members with messages flowing to them.
    pub async fn open(seed: u64, habit: Habit) -> Outcome<Self> {
        let broken = |error| Failure::Failed(format!("the mock brokers cannot start: {error}"));
        let cluster = MockCluster::new(1).map_err(broken)?;
        let registry = MemoryRegistry::new().with_tick(TICK);
        for group in GROUPS {
            cluster.create_topic(group, PARTITIONS, 1).map_err(broken)?;
            registry.put(
                &format!("/brokers/topics/{group}"),
                encode_topic(0..PARTITIONS),
            );
        }
        let world = World {
            habit,
            registry,
            bootstrap: cluster.bootstrap_servers(),
            books: Books::new(),
        };
        let mut stage = Self {
            producer: Some(Producer::start(&world.bootstrap, world.books.clone())?),
            world,
            fleet: Fleet::default(),
            dice: Dice::new(seed),
            members: BTreeMap::new(),
            show: Show::new(),
            title: String::new(),
            hosts: Vec::new(),
            _cluster: cluster,
        };
        stage.begin(seed).await?;
        Ok(stage)
    }

    async fn begin(&mut self, seed: u64) -> Outcome {
        let groups = GROUPS.len();
        self.show.head(&format!(
            "{groups} groups on {} hosts, each reading a topic of {PARTITIONS} partitions (seed {seed})",
            HOSTS.len()
        ))?;
        self.title = "the first members join".to_owned();
        let seat = |host: &str, group: &str| Seat {
            host: host.to_owned(),
            group: group.to_owned(),
        };
        let seats = HOSTS
            .iter()
            .flat_map(|host| GROUPS.iter().map(move |group| seat(host, group)));
        self.join(seats.collect()).await?;
        self.wait_for(Self::is_settled, PATIENCE).await?;
        Ok(())
    }

    /// Joins all of these at the same time.
    pub async fn join(&mut self, seats: Vec<Seat>) -> Outcome {
        let mut joining = Vec::new();
        for seat in seats {
            let context = context(&seat, &mut self.dice)?;
            self.fleet.add(seat.clone(), named(&context)?);
            let who: Who = self.hosts.len();
            self.hosts.push(seat.host.clone());
            let world = self.world.clone();
            joining.push(async move { Member::join(&world, seat, who, context).await });
        }
        for member in self.watch(join_all(joining)).await? {
            let member = member?;
            self.members.insert(member.seat.clone(), member);
        }
        Ok(())
    }

    /// Takes members off the list of those that live.
    pub fn take(&mut self, seats: &[Seat]) -> Vec<Member> {
        seats.iter().for_each(|seat| self.fleet.remove(seat));
        seats
            .iter()
            .filter_map(|seat| self.members.remove(seat))
            .collect()
    }

    pub async fn act(&mut self, name: &'static str, what: &str) -> Outcome<Scene<'_>> {
        let from = self.world.books.now();
        self.title = format!("{name}: {what}");
        let seconds = from.as_secs_f64();
        self.show
            .head(&format!("[{seconds:5.1} s] {name}: {what}"))?;
        Ok(Scene {
            stage: self,
            name,
            from,
        })
    }

    pub fn note(&mut self, text: &str) -> Outcome {
        let seconds = self.world.books.now().as_secs_f64();
        self.show.say(&format!("[{seconds:5.1} s]   {text}"))
    }

    /// Every member knows of all the others of its group and has exactly its share.
    fn is_settled(&self) -> bool {
        let Ok(shares) = self.fleet.shares() else {
            return false;
        };
        self.members.iter().all(|(seat, member)| {
            let health = member.connector.health();
            let share = shares.get(seat).copied().unwrap_or(0);
            health.is_settled
                && health.members == self.fleet.members(&seat.group)
                && health.held.len() == share
        })
    }

    /// Draws until something holds, at most for a while. Answers whether it held.
    async fn wait_for(
        &mut self,
        holds: impl Fn(&Self) -> bool,
        patience: Duration,
    ) -> Outcome<bool> {
        let until = self.world.books.now() + patience;
        let mut ticks = interval(LOOK);
        loop {
            ticks.tick().await;
            self.draw()?;
            if holds(self) {
                return Ok(true);
            }
            if self.world.books.now() >= until {
                return Ok(false);
            }
        }
    }

    /// Draws until something is done.
    pub async fn watch<T>(&mut self, deed: impl Future<Output = T>) -> Outcome<T> {
        let mut deed = pin!(deed);
        let mut ticks = interval(LOOK);
        loop {
            tokio::select! {
                done = &mut deed => return Ok(done),
                _ = ticks.tick() => self.draw()?,
            }
        }
    }

    fn draw(&mut self) -> Outcome {
        let glance = self.world.books.glance();
        let mut hosts: BTreeMap<String, Row> = BTreeMap::new();
        for member in self.members.values() {
            let row = hosts.entry(member.seat.host.clone()).or_default();
            row.members += 1;
            row.partitions += member.connector.owned().len();
            row.lately += glance.lately.get(&member.who).copied().unwrap_or(0);
        }
        self.show.draw(&Frame {
            title: self.title.clone(),
            hosts,
            sent: glance.sent,
            finished: glance.finished,
        })
    }

    /// Partitions that the members of each host have.
    pub fn spread(&self) -> BTreeMap<String, usize> {
        let mut spread = BTreeMap::new();
        for member in self.members.values() {
            *spread.entry(member.seat.host.clone()).or_default() += member.connector.owned().len();
        }
        spread
    }

    fn spread_text(&self) -> String {
        let spread = self.spread().into_iter();
        let texts: Vec<String> = spread
            .map(|(host, share)| format!("{host} {share}"))
            .collect();
        texts.join(", ")
    }

    /// No more is sent; what was is waited for; then all leave.
    pub async fn drain(&mut self) -> Outcome {
        self.title = "the last messages".to_owned();
        if let Some(producer) = self.producer.take() {
            self.watch(producer.stop()).await?;
        }
        self.wait_for(|stage| stage.world.books.is_even(), LAST)
            .await?;
        let seats: Vec<Seat> = self.members.keys().cloned().collect();
        let leaving = join_all(self.take(&seats).into_iter().map(Member::leave));
        for farewell in self.watch(leaving).await? {
            farewell?;
        }
        self.note("everybody has left")
    }
}
