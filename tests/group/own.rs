//! What a user puts in place of ours: an assignor and an id strategy.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::assign::Assignor;
use evenkeel::error::{Error, ErrorKind, Result};
use evenkeel::group::{Assignment, Subscriptions};
use evenkeel::id::{IdContext, IdStrategy};
use evenkeel::listener::{Outside, Ran};
use evenkeel::registry::Later;
use evenkeel::testing::Inline;
use evenkeel::{Builder, ConsumerId, Event, Topic};
use tokio::time::{Instant, sleep};

use crate::kit::{Kit, Member, T, until};

/// How the assignor feels.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Well,
    Refusing,
    Panicking,
}

/// Deals the partitions round the members, one by one in the order of their numbers.
#[derive(Debug, Clone)]
struct Dealing(Arc<Mutex<Mood>>);

impl Dealing {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Mood::Well)))
    }

    fn becomes(&self, mood: Mood) {
        *self.0.lock().unwrap() = mood;
    }
}

impl Assignor for Dealing {
    fn assign(
        &self,
        subscriptions: &Subscriptions,
        partitions: &BTreeMap<Topic, Vec<i32>>,
    ) -> Result<Assignment> {
        let mood = *self.0.lock().unwrap();
        match mood {
            Mood::Well => {}
            Mood::Refusing => return Err(Error::new(ErrorKind::Assignment, "not on a Monday")),
            Mood::Panicking => panic!("no idea"),
        }
        let mut assignment = Assignment::new();
        for (topic, ids) in partitions {
            let takers = subscriptions.iter();
            let takers: Vec<&ConsumerId> = takers
                .filter(|(_, topics)| topics.contains_key(topic))
                .map(|(consumer, _)| consumer)
                .collect();
            let owners = assignment.entry(topic.clone()).or_default();
            for (id, taker) in ids.iter().zip(takers.iter().cycle()) {
                owners.insert(*id, taker.stream(0));
            }
        }
        Ok(assignment)
    }

    fn name(&self) -> &str {
        "dealing"
    }
}

/// Who owns what when it is dealt.
fn dealt(members: &[&Member], partitions: i32) -> BTreeMap<i32, String> {
    let mut names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    names.sort_unstable();
    let names = names.iter().cycle();
    (0..partitions)
        .zip(names)
        .map(|(partition, name)| (partition, format!("{name}-0")))
        .collect()
}

/// A place for the user's code that takes as long as it is told to.
#[derive(Clone, Default)]
struct Place(Arc<AtomicU64>);

impl Place {
    fn takes(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap();
        self.0.store(ms, Ordering::SeqCst);
    }
}

impl Outside for Place {
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> Later<Ran> {
        match self.0.load(Ordering::SeqCst) {
            0 => Inline::new().run(work),
            ms => Inline::after(Duration::from_millis(ms)).run(work),
        }
    }
}

fn dealing(kit: &Kit, host: &str, assignor: &Dealing) -> Builder {
    kit.builder(host, kit.config())
        .with_assignor(Arc::new(assignor.clone()))
}

async fn refused(member: &mut Member) -> String {
    let told = member
        .tells("that there is no assignment", |event| {
            matches!(event, Event::AssignmentRefused { .. })
        })
        .await;
    told.to_string()
}

#[tokio::test(start_paused = true)]
async fn a_users_own_assignor_says_who_owns_what() {
    let mut kit = Kit::new();
    kit.create("t", 6);
    let assignor = Dealing::new();
    let a = kit.join_with(dealing(&kit, "h1", &assignor), &[("t", 1)]);
    let b = kit.join_with(dealing(&kit, "h2", &assignor), &[("t", 1)]);
    until("it is dealt", || kit.owners("t") == dealt(&[&a, &b], 6)).await;
    kit.send("t", 6);
    kit.drain().await;
    b.leave().await;
    until("one has all", || kit.owners("t") == dealt(&[&a], 6)).await;
    kit.send("t", 6);
    kit.drain().await;
    assert_eq!(kit.duplicates(), 0);
}

/// The assignor fails in this way when a second member comes: what is held is kept and read, that is told, and when it is
/// well again the group shares by it.
async fn a_failing_assignor(mood: Mood, words: &str) {
    let mut kit = Kit::new();
    kit.create("t", 4);
    let assignor = Dealing::new();
    let mut a = kit.join_with(dealing(&kit, "h1", &assignor), &[("t", 1)]);
    a.settled().await;
    assignor.becomes(mood);
    let b = kit.join_with(dealing(&kit, "h2", &assignor), &[("t", 1)]);
    let told = refused(&mut a).await;
    assert!(told.contains(words), "{told}");
    kit.send("t", 4);
    kit.drain().await;
    assert_eq!(kit.owners("t"), dealt(&[&a], 4), "what is held is kept");
    assert!(b.owned().is_empty());
    assert_eq!(kit.members().len(), 2, "nobody leaves for that");
    assignor.becomes(Mood::Well);
    kit.grow("t", 6);
    until("it is dealt", || kit.owners("t") == dealt(&[&a, &b], 6)).await;
    kit.send("t", 6);
    kit.drain().await;
    assert_eq!(kit.duplicates(), 0);
    a.leave().await;
    b.leave().await;
}

#[tokio::test(start_paused = true)]
async fn an_assignor_that_refuses_leaves_everything_as_it_is_and_is_asked_again() {
    a_failing_assignor(Mood::Refusing, "not on a Monday").await;
}

#[tokio::test(start_paused = true)]
async fn an_assignor_that_panics_leaves_everything_as_it_is_and_is_asked_again() {
    // R1
    a_failing_assignor(Mood::Panicking, "the assignor panicked: no idea").await;
}

#[tokio::test(start_paused = true)]
async fn an_assignor_past_its_deadline_is_not_waited_for() {
    // R2
    let mut kit = Kit::new();
    kit.create("t", 4);
    let (assignor, place) = (Dealing::new(), Place::default());
    let builder = dealing(&kit, "h1", &assignor).with_outside(Arc::new(place.clone()));
    let mut a = kit.join_with(builder, &[("t", 1)]);
    a.settled().await;
    let session = a.session();
    place.takes(T * 10);
    let b = kit.join_with(dealing(&kit, "h2", &assignor), &[("t", 1)]);
    let began = Instant::now();
    sleep(T / 2).await;
    kit.send("t", 4);
    until("it is read while the assignor thinks", || {
        kit.is_all_finished()
    })
    .await;
    assert!(began.elapsed() < T, "{:?}", began.elapsed());
    let told = refused(&mut a).await;
    assert!(told.contains("did not answer within 6000 ms"), "{told}");
    assert_eq!(began.elapsed().as_secs(), T.as_secs());
    assert_eq!(a.session(), session, "the lease was kept meanwhile");
    assert_eq!(kit.owners("t"), dealt(&[&a], 4), "what is held is kept");
    place.takes(Duration::ZERO);
    kit.grow("t", 6);
    until("it is dealt", || kit.owners("t") == dealt(&[&a, &b], 6)).await;
    kit.send("t", 6);
    kit.drain().await;
    assert_eq!(kit.duplicates(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_away_while_the_assignor_thinks_is_not_delivered() {
    // A5, I1
    let mut kit = Kit::new();
    kit.create("t", 2);
    let (assignor, place) = (Dealing::new(), Place::default());
    let builder = dealing(&kit, "h1", &assignor).with_outside(Arc::new(place.clone()));
    let mut a = kit.join_with(builder, &[("t", 1)]);
    a.settled().await;
    kit.send("t", 2);
    kit.drain().await;
    place.takes(T / 2);
    let thought = Instant::now();
    // It has something to think about.
    kit.grow("t", 3);
    sleep(T / 10).await;
    let before = kit.finished.lock().unwrap().len();
    kit.registry.delete(&Kit::owner_path("t", 0));
    sleep(T / 10).await;
    kit.send("t", 2);
    sleep(T / 10).await;
    let after = kit.finished.lock().unwrap()[before..].to_vec();
    assert!(thought.elapsed() < T / 2, "it thinks still");
    let partitions: Vec<i32> = after.iter().map(|(at, _, _)| at.partition).collect();
    assert_eq!(partitions, [1], "the other goes on");
    place.takes(Duration::ZERO);
    let is_loss = |event: &Event| matches!(event, Event::Lost { .. });
    a.tells("that it is lost", is_loss).await;
    kit.drain().await;
}

/// A name that says where it is and which it is.
#[derive(Debug)]
struct Plate(&'static str);

impl IdStrategy for Plate {
    fn id(&self, context: &IdContext) -> Result<String> {
        if context.host == "nowhere" {
            return Err(Error::new(ErrorKind::Config, "nowhere is no place"));
        }
        Ok(format!("{}@{}", self.0, context.host))
    }
}

#[tokio::test(start_paused = true)]
async fn a_users_own_id_strategy_names_the_member() {
    let mut kit = Kit::new();
    kit.create("t", 4);
    let plated = |plate| {
        let builder = kit.builder("h1", kit.config());
        kit.join_with(
            builder.with_id_strategy(Arc::new(Plate(plate))),
            &[("t", 1)],
        )
    };
    let (last, first) = (plated("z"), plated("a"));
    last.settled().await;
    first.settled().await;
    until("both are there", || kit.members() == ["g_a@h1", "g_z@h1"]).await;
    until("they share in the order of their names", || {
        let owners = kit.owners("t");
        owners.len() == 4 && owners[&1] == "g_a@h1-0" && owners[&2] == "g_z@h1-0"
    })
    .await;
    kit.send("t", 4);
    kit.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_name_that_a_users_strategy_refuses_or_that_no_node_can_have_is_an_error() {
    // D6
    let kit = Kit::new();
    let error = |host: &str, plate| {
        let builder = kit.builder(host, kit.config());
        let builder = builder.with_id_strategy(Arc::new(Plate(plate)));
        let topics = [(crate::kit::topic("t"), 1)];
        builder.into_future(topics).map(|_| ()).unwrap_err()
    };
    let refused = error("nowhere", "a");
    assert_eq!(refused.kind(), ErrorKind::Config);
    assert!(refused.to_string().contains("nowhere"), "{refused}");
    assert_eq!(error("h1", "a/b").kind(), ErrorKind::Config);
    assert!(kit.members().is_empty());
}

/// Gives all to a stream that nobody has.
#[derive(Debug)]
struct Careless;

impl Assignor for Careless {
    fn assign(
        &self,
        subscriptions: &Subscriptions,
        partitions: &BTreeMap<Topic, Vec<i32>>,
    ) -> Result<Assignment> {
        let all = subscriptions.keys().next().map(|taker| taker.stream(7));
        let owners = |ids: &Vec<i32>| {
            ids.iter()
                .copied()
                .zip(all.iter().cloned().cycle())
                .collect()
        };
        let topics = partitions.iter();
        Ok(topics
            .map(|(topic, ids)| (topic.clone(), owners(ids)))
            .collect())
    }

    fn name(&self) -> &str {
        "careless"
    }
}

#[tokio::test(start_paused = true)]
async fn an_assignor_that_names_a_stream_that_is_not_there_does_no_harm() {
    let kit = Kit::new();
    kit.create("t", 2);
    let builder = kit.builder("h1", kit.config());
    let mut member = kit.join_with(builder.with_assignor(Arc::new(Careless)), &[("t", 1)]);
    refused(&mut member).await;
    assert!(!member.has_ended());
    assert!(kit.owners("t").is_empty());
    member.leave().await;
}
