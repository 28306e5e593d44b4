//! What happens in one run, drawn from a seed or read from a file. A plan says everything: the same plan is the same run.

use evenkeel::testing::Lost;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// Everything about one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// It was drawn from this one.
    pub seed: u64,
    /// Servers of the ensemble; the first leads.
    pub servers: usize,
    /// They are of 3.4.
    pub is_old: bool,
    /// A tick of theirs.
    pub tick_ms: u64,
    /// What members ask for.
    pub session_ms: u64,
    /// So much earlier than the last heartbeat the leader last heard of a session.
    pub lag_ms: u64,
    /// So long a follower goes on without its leader.
    pub sync_limit_ms: u64,
    /// One way between a client and its server, at least and at most.
    pub latency_ms: [u64; 2],
    /// The same between two servers.
    pub relay_ms: [u64; 2],
    /// One request in so many meets a fault; 0 for none but those that are named.
    pub one_in: u64,
    /// Requests, counted over all members, that meet a fault.
    #[serde(default)]
    pub mishaps: Vec<(u64, Mishap)>,
    /// Of the topic, at the beginning.
    pub partitions: i32,
    /// How members behave: the first one for the first that joins, and so on around.
    pub manners: Vec<Manner>,
    /// What happens, one after another.
    pub steps: Vec<Step>,
    /// The member in this place, if it is there by then, stays cut off when all else is healed: one way only.
    pub cut_for_good: Option<usize>,
    /// And this is what gets lost of it.
    #[serde(default)]
    pub cut_loses: Way,
    /// What the brokers take to begin to send, and to tell the ends of a log.
    #[serde(default)]
    pub brokers_ms: u64,
}

/// What gets lost of a connection that is cut one way only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub enum Way {
    /// What its server tells it.
    #[default]
    Answers,
    /// What it asks.
    Requests,
}

impl From<Way> for Lost {
    fn from(way: Way) -> Self {
        match way {
            Way::Answers => Self::Answers,
            Way::Requests => Self::Requests,
        }
    }
}

/// What may happen to a request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Mishap {
    /// It never arrives.
    LoseBefore,
    /// Its answer never arrives.
    LoseAfter,
    /// The connection breaks before it arrives.
    BreakBefore,
    /// The connection breaks after it was carried out.
    BreakAfter,
    /// It arrives so much later.
    Delay { ms: u64 },
    /// Its answer arrives so much later.
    DelayAnswer { ms: u64 },
}

impl Mishap {
    /// One of them.
    pub fn draw(dice: &mut StdRng) -> Self {
        let ms = dice.random_range(0..900);
        match dice.random_range(0..6) {
            0 => Self::LoseBefore,
            1 => Self::LoseAfter,
            2 => Self::BreakBefore,
            3 => Self::BreakAfter,
            4 => Self::Delay { ms },
            _ => Self::DelayAnswer { ms },
        }
    }
}

/// How a member and its application behave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manner {
    /// Streams it asks for.
    pub streams: u32,
    /// Between two commits.
    pub commit_every_ms: u64,
    /// How long each call of the listener takes; none for no listener.
    pub listener_ms: Option<u64>,
    /// The listener panics now and then.
    pub panics: bool,
    /// What it does with messages.
    pub work: Work,
}

/// What an application does with messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// One after another, each for so long.
    Lend {
        /// At most.
        ms: u64,
    },
    /// So many at a time, done in any order; some are kept until everything is healed.
    Hold {
        /// Messages in hand.
        messages: usize,
        /// One in so many is kept.
        kept_one_in: u64,
    },
}

/// One thing that happens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// After the one before.
    pub after_ms: u64,
    /// What.
    pub deed: Deed,
}

/// What may happen. A place means one of the members that are there, counted around.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Deed {
    /// A new member comes.
    Join,
    /// One leaves in order, with so much time for it.
    Leave { place: usize, within_ms: u64 },
    /// One's handle is dropped.
    Drop { place: usize },
    /// One's process dies; perhaps one of the same name comes at once.
    Kill { place: usize, returns: bool },
    /// One's process is stopped for a while.
    Stop { place: usize, ms: u64 },
    /// One's connection is silent for a while.
    Cut { place: usize, ms: u64 },
    /// One's connection breaks.
    Sever { place: usize },
    /// One's session ends.
    Expire { place: usize },
    /// One commits.
    Commit { place: usize },
    /// A follower is cut off from the leader.
    Isolate { server: usize, ms: u64 },
    /// There is no quorum.
    Halt { ms: u64 },
    /// An operator deletes an owner node.
    DeleteOwner { partition: i32 },
    /// An operator deletes a registration.
    DeleteId { place: usize },
    /// An operator sets an offset back by so much.
    Rewind { partition: i32, by: i64 },
    /// Somebody's registration that nobody can read, for a while.
    Garbage { ms: u64 },
    /// The topic gets another partition.
    Grow,
    /// Messages come, so many for each partition.
    Send { each: usize },
    /// A partition has no leader for a while.
    Leaderless { partition: i32, ms: u64 },
    /// Reading a partition fails once.
    ReadFails { partition: i32 },
    /// No broker answers for a while.
    BrokersDown { ms: u64 },
    /// A member as the JVM has it comes.
    JoinLegacy,
    /// Such a member leaves.
    LeaveLegacy { place: usize },
    /// Such a member is paused, and does not know it afterwards.
    PauseLegacy { place: usize, ms: u64 },
    /// One's connection is silent for a while, one way only.
    CutOneWay { place: usize, ms: u64, loses: Way },
    /// Every request, and every answer, takes its time for a while.
    Slow { ms: u64 },
    /// Retention: a partition forgets all but so many messages.
    Trim { partition: i32, leaves: i64 },
    /// The topic is deleted, and made again after a while.
    Recreate { ms: u64 },
    /// A partition's log leaves out so many offsets.
    Gap { partition: i32, offsets: u32 },
    /// Who reads a partition gets nothing more of it and is not told.
    Mute { partition: i32 },
    /// An operator deletes an offset.
    DeleteOffset { partition: i32 },
    /// An operator sets an offset forward by so much, but not beyond the end.
    Advance { partition: i32, by: i64 },
    /// An operator writes an offset that nobody can read, and puts it right after a while if it still stands there.
    SpoilOffset { partition: i32, ms: u64 },
    /// An operator writes something else into an owner node.
    SpoilOwner { partition: i32 },
    /// An operator writes a topic node that nobody can read, for a while.
    SpoilTopic { ms: u64 },
}

/// At most so many members of ours at a time.
pub const MEMBERS: usize = 5;
/// And such as the JVM has them.
pub const LEGACY: usize = 2;
/// Partitions at most.
pub const PARTITIONS: i32 = 12;

/// Draws a deed of one sort.
type Draw = fn(&mut StdRng, &Plan) -> Deed;

fn place(dice: &mut StdRng) -> usize {
    dice.random_range(0..MEMBERS)
}

/// Around the moments that matter: shares of the session timeout.
fn stretch(dice: &mut StdRng, plan: &Plan) -> u64 {
    let tenths = [1, 3, 4, 6, 9, 12, 15, 30][dice.random_range(0..8)];
    plan.session_ms * tenths / 10 + dice.random_range(0..200)
}

fn partition(dice: &mut StdRng, plan: &Plan) -> i32 {
    dice.random_range(0..plan.partitions)
}

/// All sorts but the everyday ones, of which each run has some.
const SORTS: &[Draw] = &[
    |dice, _| Deed::Drop { place: place(dice) },
    |dice, _| Deed::Kill {
        place: place(dice),
        returns: dice.random_bool(0.3),
    },
    |dice, plan| Deed::Stop {
        place: place(dice),
        ms: stretch(dice, plan),
    },
    |dice, plan| Deed::Cut {
        place: place(dice),
        ms: stretch(dice, plan),
    },
    |dice, _| Deed::Sever { place: place(dice) },
    |dice, _| Deed::Expire { place: place(dice) },
    |dice, plan| Deed::Isolate {
        server: dice.random_range(1..3),
        ms: stretch(dice, plan),
    },
    |dice, plan| Deed::Halt {
        ms: stretch(dice, plan),
    },
    |dice, plan| Deed::DeleteOwner {
        partition: partition(dice, plan),
    },
    |dice, _| Deed::DeleteId { place: place(dice) },
    |dice, plan| Deed::Rewind {
        partition: partition(dice, plan),
        by: dice.random_range(1..6),
    },
    |dice, plan| Deed::Garbage {
        ms: stretch(dice, plan),
    },
    |_, _| Deed::Grow,
    |dice, plan| Deed::Leaderless {
        partition: partition(dice, plan),
        ms: stretch(dice, plan),
    },
    |dice, plan| Deed::ReadFails {
        partition: partition(dice, plan),
    },
    |dice, plan| Deed::BrokersDown {
        ms: stretch(dice, plan),
    },
    |_, _| Deed::JoinLegacy,
    |dice, _| Deed::LeaveLegacy {
        place: dice.random_range(0..LEGACY),
    },
    |dice, plan| Deed::PauseLegacy {
        place: dice.random_range(0..LEGACY),
        ms: stretch(dice, plan),
    },
];

/// What happens in a few seeds of a hundred, of each sort by itself.
const RARE: &[Draw] = &[
    |dice, plan| Deed::CutOneWay {
        place: place(dice),
        ms: stretch(dice, plan),
        loses: way(dice),
    },
    |dice, plan| Deed::Slow {
        ms: stretch(dice, plan),
    },
    |dice, plan| Deed::Trim {
        partition: partition(dice, plan),
        leaves: dice.random_range(0..3),
    },
    |dice, plan| Deed::Recreate {
        ms: stretch(dice, plan),
    },
    |dice, plan| Deed::Gap {
        partition: partition(dice, plan),
        offsets: dice.random_range(1..4),
    },
    |dice, plan| Deed::Mute {
        partition: partition(dice, plan),
    },
    |dice, plan| Deed::DeleteOffset {
        partition: partition(dice, plan),
    },
    |dice, plan| Deed::Advance {
        partition: partition(dice, plan),
        by: dice.random_range(1..6),
    },
    |dice, plan| Deed::SpoilOffset {
        partition: partition(dice, plan),
        ms: stretch(dice, plan),
    },
    |dice, plan| Deed::SpoilOwner {
        partition: partition(dice, plan),
    },
    |dice, plan| Deed::SpoilTopic {
        ms: stretch(dice, plan),
    },
];

fn way(dice: &mut StdRng) -> Way {
    [Way::Answers, Way::Requests][dice.random_range(0..2)]
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Self {
        let (mut plan, first) = Self::drawn(seed);
        plan.add_rarities(first);
        plan
    }

    /// Without what is rare, and how many steps are its first.
    fn drawn(seed: u64) -> (Self, usize) {
        let mut dice = StdRng::seed_from_u64(seed);
        let dice = &mut dice;
        let tick_ms = [100, 500, 2000][dice.random_range(0..3)];
        let session_ms = (tick_ms * 2).max([2000, 4000, 6000][dice.random_range(0..3)]);
        let high = dice.random_range(1..40);
        let count = 2 + dice.random_range(0..3);
        let mut plan = Self {
            seed,
            servers: [1, 3, 3][dice.random_range(0..3)],
            is_old: dice.random_bool(0.25),
            tick_ms,
            session_ms,
            // What the lease allows for: half a tick, and the time between two packets.
            lag_ms: dice.random_range(0..=tick_ms / 2 + session_ms / 8),
            sync_limit_ms: session_ms * dice.random_range(5..20) / 10,
            latency_ms: [dice.random_range(0..=high.min(5)), high],
            relay_ms: [0, dice.random_range(1..120)],
            one_in: [4, 10, 30, 0][dice.random_range(0..4)],
            mishaps: Vec::new(),
            partitions: dice.random_range(1..=8),
            manners: (0..3).map(|_| Manner::draw(dice)).collect(),
            steps: (0..count).map(|_| Step::soon(dice, Deed::Join)).collect(),
            cut_for_good: dice.random_bool(0.25).then(|| place(dice)),
            cut_loses: Way::default(),
            brokers_ms: 0,
        };
        let sorts: Vec<Draw> = SORTS
            .iter()
            .filter(|_| dice.random_bool(0.4))
            .copied()
            .collect();
        let length = dice.random_range(15..35);
        for _ in 0..length {
            let deed = plan.any_deed(dice, &sorts);
            let after_ms = dice.random_range(0..4500);
            plan.steps.push(Step { after_ms, deed });
        }
        (plan, count)
    }

    /// With dice of their own: what else a seed means does not hang on them. The first steps stay the first.
    fn add_rarities(&mut self, first: usize) {
        let mut dice = StdRng::seed_from_u64(!self.seed);
        let dice = &mut dice;
        self.cut_loses = way(dice);
        self.brokers_ms = [0, 0, 20, 400][dice.random_range(0..4)];
        for draw in RARE {
            // All are drawn, so that what one comes to does not hang on another.
            let (is_there, twice) = (dice.random_bool(0.06), dice.random_bool(0.3));
            for _ in 0..1 + usize::from(twice) {
                let (deed, after_ms) = (draw(dice, self), dice.random_range(0..1500));
                let at = dice.random_range(first..=self.steps.len());
                if is_there && self.may_have(&deed) {
                    self.steps.insert(at, Step { after_ms, deed });
                }
            }
        }
    }

    /// Offsets say which message it is, to the judge and to members as the JVM has them, who never hear of another topic of the name.
    fn may_have(&self, deed: &Deed) -> bool {
        let has = |what: fn(&Deed) -> bool| self.steps.iter().any(|step| what(&step.deed));
        match deed {
            Deed::Recreate { .. } => {
                !has(|deed| matches!(deed, Deed::JoinLegacy | Deed::Trim { .. }))
            }
            Deed::Gap { .. } => !has(|deed| matches!(deed, Deed::Recreate { .. })),
            _ => true,
        }
    }

    fn any_deed(&self, dice: &mut StdRng, sorts: &[Draw]) -> Deed {
        match dice.random_range(0..10) {
            0 => Deed::Join,
            1 => Deed::Leave {
                place: place(dice),
                within_ms: dice.random_range(0..8000),
            },
            2 => Deed::Commit { place: place(dice) },
            3 | 4 => Deed::Send {
                each: dice.random_range(1..4),
            },
            _ if sorts.is_empty() => Deed::Send { each: 1 },
            _ => sorts[dice.random_range(0..sorts.len())](dice, self),
        }
    }

    /// Smaller plans that may fail in the same way, the smallest first. `met` are the faults that requests met.
    pub fn smaller(&self, met: &[(u64, Mishap)]) -> Vec<Self> {
        let mut all = Vec::new();
        if self.one_in > 0 {
            let mishaps = met.to_vec();
            all.push(Self {
                one_in: 0,
                mishaps: Vec::new(),
                ..self.clone()
            });
            all.push(Self {
                one_in: 0,
                mishaps,
                ..self.clone()
            });
        }
        let mut run = self.mishaps.len() / 2;
        while run > 0 {
            for from in (0..self.mishaps.len()).step_by(run) {
                let mut plan = self.clone();
                let until = (from + run).min(plan.mishaps.len());
                plan.mishaps.drain(from..until);
                all.push(plan);
            }
            run /= 2;
        }
        let count = self.steps.len();
        let mut run = count / 2;
        while run > 0 {
            for from in (0..count).step_by(run) {
                let mut plan = self.clone();
                let until = (from + run).min(count);
                // What comes after keeps its moment.
                let gone: u64 = plan.steps.drain(from..until).map(|s| s.after_ms).sum();
                if let Some(next) = plan.steps.get_mut(from) {
                    next.after_ms += gone;
                }
                all.push(plan);
            }
            run /= 2;
        }
        let mut simpler = |change: fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            if plan != *self {
                all.push(plan);
            }
        };
        simpler(|plan| plan.servers = 1);
        simpler(|plan| plan.is_old = false);
        simpler(|plan| plan.cut_for_good = None);
        simpler(|plan| plan.lag_ms = 0);
        simpler(|plan| plan.brokers_ms = 0);
        simpler(|plan| plan.partitions = (plan.partitions / 2).max(1));
        simpler(|plan| plan.manners.truncate(1));
        all
    }
}

impl Step {
    fn soon(dice: &mut StdRng, deed: Deed) -> Self {
        let after_ms = dice.random_range(0..1000);
        Self { after_ms, deed }
    }
}

impl Manner {
    fn draw(dice: &mut StdRng) -> Self {
        let work = if dice.random_bool(0.5) {
            Work::Lend {
                ms: [0, 20, 300, 5000][dice.random_range(0..4)],
            }
        } else {
            Work::Hold {
                messages: dice.random_range(1..6),
                kept_one_in: [3, 10, 1000][dice.random_range(0..3)],
            }
        };
        Self {
            streams: dice.random_range(1..=2),
            commit_every_ms: [100, 700, 3000][dice.random_range(0..3)],
            listener_ms: [None, Some(0), Some(400), Some(8000)][dice.random_range(0..4)],
            panics: dice.random_bool(0.2),
            work,
        }
    }
}
