//! Drawing a script from a seed.

use std::collections::BTreeMap;

use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::script::Ask;
use super::script::CLIENTS;
use super::script::Data;
use super::script::Script;
use super::script::Step;
use super::script::Write;

/// Whether clients wait for each answer, or go on asking for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    OneByOne,
    Pipelined,
}

/// The same seed gives the same script.
pub fn draw(seed: u64, habit: Habit) -> Script {
    let mut pen = Pen {
        dice: StdRng::seed_from_u64(seed),
        habit,
        is_there: [true; CLIENTS],
        guess: BTreeMap::from([(String::new(), Guess::default())]),
        writer: 0,
        is_vain: false,
    };
    let opens = (0..CLIENTS).map(|client| pen.open(client));
    let mut steps: Vec<Step> = opens.collect();
    let mut left = pen.dice.random_range(20..=60);
    while left > 0 {
        let step = pen.step(left);
        left -= match &step {
            Step::Ask { asks, .. } => asks.len(),
            _ => 1,
        };
        steps.push(step);
    }
    Script { seed, steps }
}

struct Pen {
    dice: StdRng,
    habit: Habit,
    /// Which clients have a session.
    is_there: [bool; CLIENTS],
    /// Roughly what is there by now. Requests that fail are easily drawn, those that succeed need a hint.
    guess: BTreeMap<String, Guess>,
    /// Whose step it is.
    writer: usize,
    /// Whether a write would fail.
    is_vain: bool,
}

/// What is known of a node.
#[derive(Debug, Clone, Copy, Default)]
struct Guess {
    version: i32,
    owner: Option<usize>,
}

impl Pen {
    fn one_in(&mut self, sides: u32) -> bool {
        self.dice.random_ratio(1, sides)
    }

    fn any<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.dice.random_range(0..of.len())].clone()
    }

    // ---- steps ----

    fn open(&mut self, client: usize) -> Step {
        self.is_there[client] = true;
        let old = self.one_in(2);
        Step::Open { client, old }
    }

    fn step(&mut self, most: usize) -> Step {
        let client = self.dice.random_range(0..CLIENTS);
        self.writer = client;
        if !self.is_there[client] && self.one_in(2) {
            return self.open(client);
        }
        match self.dice.random_range(0..100) {
            0..3 => {
                self.leave(client);
                Step::Close { client }
            }
            3..6 => {
                self.leave(client);
                Step::Drop { client }
            }
            6 => {
                self.leave(client);
                self.open(client)
            }
            7..11 => {
                let which = self.dice.random_range(0..8);
                Step::Unwatch { client, which }
            }
            _ => {
                let count = match self.habit {
                    Habit::OneByOne => 1,
                    Habit::Pipelined => self.dice.random_range(1..=8).min(most),
                };
                let asks = (0..count).map(|_| self.ask()).collect();
                Step::Ask { client, asks }
            }
        }
    }

    fn leave(&mut self, client: usize) {
        self.is_there[client] = false;
        self.guess.retain(|_, node| node.owner != Some(client));
    }

    fn ask(&mut self) -> Ask {
        match self.dice.random_range(0..100) {
            0..12 => Ask::Data {
                path: self.path(),
                watch: self.one_in(2),
            },
            12..24 => Ask::Stat {
                path: self.path(),
                watch: self.one_in(2),
            },
            24..36 => Ask::Children {
                path: self.path(),
                watch: self.one_in(2),
            },
            36..56 => Ask::Write(self.create()),
            56..68 => Ask::Write(self.set()),
            68..80 => Ask::Write(self.delete()),
            _ => self.multi(),
        }
    }

    /// Servers of 3.4 know no create in a transaction, so some have none.
    fn multi(&mut self) -> Ask {
        let count = match self.dice.random_range(0..30) {
            0 => 0,
            _ => self.dice.random_range(1..=5),
        };
        let from = if self.one_in(3) { 3 } else { 0 };
        let before = self.guess.clone();
        self.is_vain = false;
        let writes = (0..count).map(|_| match self.dice.random_range(from..10) {
            0..3 => self.create(),
            3..6 => self.set(),
            6..8 => self.delete(),
            _ => self.check(),
        });
        let writes = writes.collect();
        if self.is_vain {
            self.guess = before;
        }
        Ask::Multi(writes)
    }

    // ---- writes ----

    fn check(&mut self) -> Write {
        let path = self.path();
        let version = self.version(&path);
        self.is_vain |= !self.is_right(&path, version);
        Write::Check { path, version }
    }

    fn create(&mut self) -> Write {
        let path = self.free_path();
        let (data, ephemeral) = (self.data(), self.one_in(3));
        let is_possible = match path.rfind('/') {
            Some(at) => matches!(self.guess.get(&path[..at]), Some(above) if above.owner.is_none()),
            None => true,
        };
        if is_possible && self.is_there[self.writer] && !self.guess.contains_key(&path) {
            let owner = ephemeral.then_some(self.writer);
            self.guess.insert(path.clone(), Guess { version: 0, owner });
        } else {
            self.is_vain = true;
        }
        Write::Create {
            path,
            data,
            ephemeral,
        }
    }

    fn set(&mut self) -> Write {
        let (path, data) = (self.path(), self.data());
        let version = self.version(&path);
        if self.is_right(&path, version) {
            self.guess.entry(path.clone()).or_default().version += 1;
        } else {
            self.is_vain = true;
        }
        Write::Set {
            path,
            data,
            version,
        }
    }

    fn delete(&mut self) -> Write {
        let path = self.path();
        let version = self.version(&path);
        let children = format!("{path}/");
        let has_children = self.guess.keys().any(|other| other.starts_with(&children));
        if self.is_right(&path, version) && !has_children {
            self.guess.remove(&path);
        } else {
            self.is_vain = true;
        }
        Write::Delete { path, version }
    }

    fn is_right(&self, path: &str, version: Option<i32>) -> bool {
        let node = self.guess.get(path).filter(|_| self.is_there[self.writer]);
        node.is_some_and(|node| version.is_none_or(|version| [-1, node.version].contains(&version)))
    }

    fn data(&mut self) -> Data {
        let (text, times) = match self.dice.random_range(0..100) {
            // About as much as a server takes.
            0 => ("x".to_owned(), self.dice.random_range(1_043_000..1_046_000)),
            1..10 => (String::new(), 1),
            10..20 => ("long ".to_owned(), self.dice.random_range(1..10)),
            _ => (self.dice.random_range(0..100).to_string(), 1),
        };
        Data { text, times }
    }

    /// On the wire, minus one stands for any.
    fn version(&mut self, path: &str) -> Option<i32> {
        let right = self.guess.get(path).map_or(0, |node| node.version);
        match self.dice.random_range(0..20) {
            0..8 => None,
            8..16 => Some(right),
            16 => Some(right + 1),
            17 => Some(right - 1),
            _ => Some(self.any(&[-1, -2, i32::MAX, i32::MIN])),
        }
    }

    // ---- paths ----

    /// Of a node that is there, as a rule.
    fn path(&mut self) -> String {
        let below = self.guess.keys().filter(|path| !path.is_empty());
        match below.cloned().collect::<Vec<_>>().as_slice() {
            [] => self.any_path(),
            _ if self.one_in(5) => self.any_path(),
            all => self.any(all),
        }
    }

    /// Of a node that is not there, as a rule; its parent is, or not.
    fn free_path(&mut self) -> String {
        if self.one_in(4) {
            return self.any_path();
        }
        if !self.guess.contains_key("") {
            return String::new();
        }
        let is_free = |path: &&str| !self.guess.contains_key(*path);
        let has_place = |path: &&str| {
            let above = path.rfind('/').map(|at| &path[..at]);
            above.is_some_and(|above| self.guess.contains_key(above))
        };
        let free = PATHS.into_iter().filter(is_free).filter(has_place);
        match free.collect::<Vec<_>>().as_slice() {
            [] => self.any_path(),
            free => self.any(free).to_owned(),
        }
    }

    fn any_path(&mut self) -> String {
        let from: &[&str] = if self.one_in(10) { &ODD } else { &PATHS };
        self.any(from).to_owned()
    }
}

/// The first is what the others are below.
const PATHS: [&str; 12] = [
    "", "/a", "/b", "/c", "/a/x", "/a/y", "/b/x", "/b/y", "/a/x/p", "/a/x/q", "/b/x/p", "/b/x/q",
];

/// What is no path, for the client or for the servers, and what looks like none.
const ODD: [&str; 13] = [
    "/a/",
    "//a",
    "/a//x",
    "/./a",
    "/a/../b",
    "/a/.",
    "/..",
    "/a/...",
    "/a/\0",
    "/a/\u{7}",
    "/a/\u{90}",
    "/a/\u{e000}",
    "/a/\u{fff0}",
];
