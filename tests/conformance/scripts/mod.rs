//! Random scripts that two registries have to answer alike: transaction numbers, session numbers and times apart.
//!
//! `EVENKEEL_SEED` is the first seed and `EVENKEEL_SCRIPTS` says how many there are. A failure names its seed and shows
//! what is left of the script once everything is dropped that does not matter, also as JSON; `EVENKEEL_SCRIPT` with the
//! name of a file that holds such a text plays that one only.

pub mod draw;
pub mod play;
mod script;
mod transcript;

use std::fmt;
use std::fs;

use draw::Habit;
use draw::draw;
use play::Stage;
use play::play;
use script::Ask;
use script::Script;
use script::Step;

/// The scripts of a run.
pub fn scripts(habit: Habit) -> Vec<Script> {
    if let Ok(file) = std::env::var("EVENKEEL_SCRIPT") {
        let text = fs::read_to_string(file).expect("EVENKEEL_SCRIPT is a file");
        return vec![serde_json::from_str(&text).expect("EVENKEEL_SCRIPT holds a script")];
    }
    let number = |name, default| match std::env::var(name) {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => default,
    };
    let first: u64 = number("EVENKEEL_SEED", 0);
    let count = number("EVENKEEL_SCRIPTS", 200);
    (first..first + count)
        .map(|seed| draw(seed, habit))
        .collect()
}

/// Two registries that should be alike.
pub struct Pair<'a> {
    pub one: Stage<'a>,
    pub other: Stage<'a>,
}

/// Where two registries part.
pub struct Difference {
    pub script: Script,
    one: Vec<String>,
    other: Vec<String>,
}

impl Pair<'_> {
    /// The first of these scripts that they answer differently, made as small as it gets.
    pub async fn first_difference(&self, scripts: Vec<Script>) -> Option<Difference> {
        for script in scripts {
            if let Some(found) = self.difference(script).await {
                return Some(self.shrunk(found).await);
            }
        }
        None
    }

    /// # Panics
    ///
    /// When they answer one of them differently.
    pub async fn are_alike(&self, scripts: Vec<Script>) {
        if let Some(found) = self.first_difference(scripts).await {
            panic!("{found}");
        }
    }

    async fn difference(&self, script: Script) -> Option<Difference> {
        let plays = tokio::join!(play(self.one, &script), play(self.other, &script));
        let (one, other) = (plays.0.told(), plays.1.told());
        (one != other).then_some(Difference { script, one, other })
    }

    async fn shrunk(&self, mut found: Difference) -> Difference {
        while let Some(smaller) = self.smaller(&found.script).await {
            found = smaller;
        }
        found
    }

    async fn smaller(&self, script: &Script) -> Option<Difference> {
        for less in less(script) {
            if let Some(found) = self.difference(less).await {
                return Some(found);
            }
        }
        None
    }
}

/// The same script without some of it: large pieces first, then steps, then parts of steps.
fn less(script: &Script) -> Vec<Script> {
    let mut all = Vec::new();
    let mut with = |steps| {
        let seed = script.seed;
        all.push(Script { seed, steps });
    };
    let mut size = script.steps.len() / 2;
    while size > 0 {
        without(&script.steps, size).into_iter().for_each(&mut with);
        size /= 2;
    }
    for (place, step) in script.steps.iter().enumerate() {
        for step in parts(step) {
            let mut steps = script.steps.clone();
            steps[place] = step;
            with(steps);
        }
    }
    all
}

fn without<T: Clone>(all: &[T], size: usize) -> Vec<Vec<T>> {
    let places = (0..all.len()).step_by(size);
    let rest = |place: usize| {
        let end = all.len().min(place + size);
        [&all[..place], &all[end..]].concat()
    };
    places.map(rest).collect()
}

fn parts(step: &Step) -> Vec<Step> {
    let Step::Ask { client, asks } = step else {
        return Vec::new();
    };
    let mut fewer = without(asks, 1);
    for (place, ask) in asks.iter().enumerate() {
        let Ask::Multi(writes) = ask else { continue };
        for writes in without(writes, 1) {
            let mut asks = asks.clone();
            asks[place] = Ask::Multi(writes);
            fewer.push(asks);
        }
    }
    let client = *client;
    let step = |asks| Step::Ask { client, asks };
    fewer.into_iter().map(step).collect()
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} is answered differently:", self.script.seed)?;
        let (most, mut at) = (self.one.len().max(self.other.len()), 0);
        while at < most {
            let (one, other) = (self.one.get(at), self.other.get(at));
            let text = |line: Option<&String>| line.map_or("nothing", |line| line).to_owned();
            if one == other {
                writeln!(f, "  {}", text(one))?;
            } else {
                writeln!(f, "- {}\n+ {}", text(one), text(other))?;
            }
            at += 1;
        }
        let json = serde_json::to_string(&self.script).expect("a script is plain data");
        write!(f, "{json}")
    }
}
