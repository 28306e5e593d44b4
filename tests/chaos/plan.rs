//! What will happen in a run, all of it drawn from one seed before anything does.

use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde::Serialize;

use crate::faults::Blow;
use crate::faults::Deed;
use crate::faults::Ending;
use crate::faults::Fault;
use crate::faults::Part;
use crate::faults::Way;

/// How large a run is, and how rough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    pub members: usize,
    /// In the end; it begins with three quarters of them.
    pub partitions: i32,
    pub seconds: u64,
    /// The session timeout.
    pub timeout_ms: u64,
    /// A message for each partition so often.
    pub pause_ms: u64,
    /// The mean time from the end of one fault of a member to its next.
    pub gap_ms: u64,
    /// The server is struck so often.
    pub blow_ms: u64,
    pub manner: Manner,
}

/// Which faults there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Manner {
    /// All of them.
    Rough,
    /// Members come and go within processes that stay, and lose their sessions; the last member's process is killed and started.
    Lasting,
}

/// Something happens to a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    pub at_ms: u64,
    pub slot: usize,
    pub fault: Fault,
}

/// All that happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    pub seed: u64,
    pub size: Size,
    pub steps: Vec<Step>,
    pub blows: Vec<(u64, Blow)>,
    /// When the topic has how many partitions.
    pub growth: Vec<(u64, i32)>,
    /// How often which member commits.
    pub commits_ms: Vec<u64>,
    /// How long which member holds a message at most.
    pub holds_ms: Vec<u64>,
}

/// A kind of fault without its particulars.
#[derive(Clone, Copy)]
enum Kind {
    Kill,
    Leave,
    Rejoin,
    Stop,
    Break,
    Silence,
    Expire,
    Refuse,
    Slow,
    LoseRequest,
    LoseAnswer,
    Rob,
    Panic,
    Block,
    Hog,
    Jump,
}

/// How often each comes up for every time one comes up that is here once.
const ROUGH: [(Kind, usize); 14] = [
    (Kind::Kill, 4),
    (Kind::Leave, 3),
    (Kind::Stop, 4),
    (Kind::Break, 1),
    (Kind::Silence, 3),
    (Kind::Refuse, 1),
    (Kind::Slow, 1),
    (Kind::LoseRequest, 1),
    (Kind::LoseAnswer, 3),
    (Kind::Rob, 2),
    (Kind::Panic, 1),
    (Kind::Block, 1),
    (Kind::Hog, 1),
    (Kind::Jump, 2),
];

const LASTING: [(Kind, usize); 6] = [
    (Kind::Rejoin, 10),
    (Kind::Expire, 6),
    (Kind::Stop, 1),
    (Kind::Break, 1),
    (Kind::LoseRequest, 1),
    (Kind::LoseAnswer, 1),
];

/// What befalls the one whose process does not last.
const FLEETING: [(Kind, usize); 2] = [(Kind::Kill, 1), (Kind::Leave, 2)];

struct Dice {
    dice: StdRng,
    timeout_ms: u64,
    deck: Vec<Kind>,
}

impl Plan {
    /// The plan of this seed.
    pub fn draw(seed: u64, size: Size) -> Self {
        let mut dice = Dice {
            dice: StdRng::seed_from_u64(seed),
            timeout_ms: size.timeout_ms,
            deck: Vec::new(),
        };
        let end = size.seconds * 1000;
        let (commits_ms, holds_ms) = (0..size.members)
            .map(|_| (dice.between(100, 1500), dice.between(0, 200)))
            .unzip();
        let mut next: Vec<u64> = (0..size.members)
            .map(|_| dice.between(500, size.gap_ms + 500))
            .collect();
        let mut steps = Vec::new();
        // In the order of time, so that every kind comes up soon.
        while let Some((slot, at_ms)) = (0..).zip(next.iter().copied()).min_by_key(|(_, at)| *at) {
            if at_ms >= end {
                break;
            }
            let is_fleeting = size.manner == Manner::Lasting && slot + 1 == size.members;
            let kind = match size.manner {
                Manner::Rough => dice.kind(&ROUGH),
                Manner::Lasting if is_fleeting => dice.any(&FLEETING),
                Manner::Lasting => dice.kind(&LASTING),
            };
            let fault = dice.fault(kind);
            next[slot] = at_ms + fault.length_ms() + dice.about(size.gap_ms);
            steps.push(Step { at_ms, slot, fault });
        }
        let mut blows = Vec::new();
        let mut at = dice.about(size.blow_ms);
        while at < end {
            // The first is a restart, so that there is one.
            let blow = if blows.is_empty() {
                dice.restart()
            } else {
                dice.blow()
            };
            blows.push((at, blow));
            at += dice.about(size.blow_ms);
        }
        let first = Self::first(&size);
        let middle = (first + size.partitions) / 2;
        let growth = [middle, size.partitions]
            .map(|to| (dice.between(end / 10, end * 8 / 10), to))
            .to_vec();
        let mut plan = Self {
            seed,
            size,
            steps,
            blows,
            growth,
            commits_ms,
            holds_ms,
        };
        plan.order();
        plan
    }

    /// How many partitions there are at the beginning.
    pub fn first(size: &Size) -> i32 {
        (size.partitions * 3 / 4).max(1)
    }

    fn order(&mut self) {
        let first = Self::first(&self.size);
        let mut times: Vec<u64> = self.growth.iter().map(|(at, _)| *at).collect();
        times.sort_unstable();
        let mut sizes: Vec<i32> = self.growth.iter().map(|(_, to)| *to).collect();
        sizes.dedup();
        sizes.retain(|to| *to > first && self.size.manner == Manner::Rough);
        self.growth = times.into_iter().zip(sizes).collect();
    }
}

impl Dice {
    fn between(&mut self, least: u64, most: u64) -> u64 {
        self.dice.random_range(least..=most.max(least))
    }

    /// From half to one and a half of it.
    fn about(&mut self, mean: u64) -> u64 {
        self.between(mean / 2, mean * 3 / 2)
    }

    /// From so many to so many hundredths of the session timeout.
    fn of_timeout(&mut self, least: u64, most: u64) -> u64 {
        let timeout = self.timeout_ms;
        self.between(timeout * least / 100, timeout * most / 100)
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.dice.random_range(0..of.len())]
    }

    fn any(&mut self, of: &[(Kind, usize)]) -> Kind {
        let deck = spread(of);
        self.one(&deck)
    }

    /// From a pack that is shuffled when it is used up.
    fn kind(&mut self, of: &[(Kind, usize)]) -> Kind {
        if self.deck.is_empty() {
            self.deck = spread(of);
            self.deck.shuffle(&mut self.dice);
        }
        self.deck.pop().expect("a pack is not empty")
    }

    fn fault(&mut self, kind: Kind) -> Fault {
        let way = self.one(&[Way::There, Way::Back, Way::Both, Way::Both]);
        match kind {
            Kind::Kill => Fault::Kill {
                down_ms: self.of_timeout(0, 250),
                keeps_name: self.one(&[true, false, false]),
            },
            Kind::Leave => Fault::Leave {
                down_ms: self.of_timeout(0, 150),
            },
            Kind::Rejoin => Fault::Rejoin,
            Kind::Stop => Fault::Stop {
                ms: self.of_timeout(30, 300),
            },
            Kind::Break => Fault::Break {
                how: self.one(&[Ending::Cut, Ending::Reset, Ending::Finish]),
            },
            Kind::Silence => Fault::Silence {
                way,
                ms: self.of_timeout(30, 250),
            },
            Kind::Expire => Fault::Silence {
                way: Way::Both,
                ms: self.of_timeout(170, 220),
            },
            Kind::Refuse => Fault::Refuse {
                ms: self.of_timeout(30, 250),
            },
            Kind::Slow => Fault::Slow {
                way,
                delay_ms: self.of_timeout(5, 40),
                ms: self.of_timeout(100, 300),
            },
            Kind::LoseRequest => self.loss(Part::Request),
            Kind::LoseAnswer => self.loss(Part::Answer),
            Kind::Rob => Fault::Rob {
                ms: self.of_timeout(30, 80),
            },
            Kind::Panic => Fault::Panic,
            Kind::Block => Fault::Block {
                ms: self.timeout_ms * 2,
            },
            Kind::Hog => Fault::Hog {
                ms: self.of_timeout(50, 150),
            },
            // Ten seconds, an hour, a day.
            Kind::Jump => Fault::Jump {
                by_ms: self.one(&[10_000, 3_600_000, 86_400_000]) * self.one(&[-1, 1]),
            },
        }
    }

    fn loss(&mut self, what: Part) -> Fault {
        let deeds = [
            Deed::Claim,
            Deed::Commit,
            Deed::Release,
            Deed::Registration,
            Deed::Any,
        ];
        Fault::Lose {
            what,
            of: self.one(&deeds),
            ms: self.of_timeout(150, 300),
        }
    }

    fn restart(&mut self) -> Blow {
        let is_killed = self.one(&[true, false]);
        Blow::Restart { is_killed }
    }

    fn blow(&mut self) -> Blow {
        let freeze = Blow::Freeze {
            ms: self.of_timeout(20, 120),
        };
        let restart = self.restart();
        self.one(&[restart, restart, freeze])
    }
}

fn spread(of: &[(Kind, usize)]) -> Vec<Kind> {
    of.iter()
        .flat_map(|(kind, count)| std::iter::repeat_n(*kind, *count))
        .collect()
}
