//! What can befall a member, the server and the topic.

use std::time::Duration;

use serde::Serialize;

use crate::support::Direction;
use crate::support::Matcher;
use crate::support::Op;

/// What befalls a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Fault {
    /// SIGKILL; so much later it is started again, perhaps under its old name.
    Kill { down_ms: u64, keeps_name: bool },
    /// SIGTERM, upon which it leaves in order; so much later it is started again.
    Leave { down_ms: u64 },
    /// It leaves and joins again within the same process.
    Rejoin,
    /// SIGSTOP, and SIGCONT so much later.
    Stop { ms: u64 },
    /// Its connection ends at once.
    Break { how: Ending },
    /// Its connection stands, and nothing comes through.
    Silence { way: Way, ms: u64 },
    /// Its connection ends, and no other comes about for so long.
    Refuse { ms: u64 },
    /// All it says and hears comes later.
    Slow { way: Way, delay_ms: u64, ms: u64 },
    /// One request of it is lost, or the answer to it.
    Lose { what: Part, of: Deed, ms: u64 },
    /// What it says comes later, and meanwhile a hand from outside deletes one of its owner nodes.
    Rob { ms: u64 },
    /// The next call of its listener panics.
    Panic,
    /// The next call of its listener takes so long.
    Block { ms: u64 },
    /// Its process takes all processors.
    Hog { ms: u64 },
    /// The wall clock of its host is set, forward or back.
    Jump { by_ms: i64 },
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Ending {
    Cut,
    Reset,
    Finish,
}

/// Which way is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Way {
    There,
    Back,
    Both,
}

/// What is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Part {
    Request,
    Answer,
}

/// Of which request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Deed {
    Claim,
    Commit,
    Release,
    Registration,
    Any,
}

/// What befalls the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Blow {
    /// SIGKILL or SIGTERM, and a new start.
    Restart { is_killed: bool },
    /// SIGSTOP, and SIGCONT so much later.
    Freeze { ms: u64 },
}

impl Fault {
    /// What it is counted as.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill { .. } => "kill",
            Self::Leave { .. } => "leave",
            Self::Rejoin => "rejoin",
            Self::Stop { .. } => "stop",
            Self::Break { .. } => "break",
            Self::Silence { .. } => "silence",
            Self::Refuse { .. } => "refuse",
            Self::Slow { .. } => "slow",
            Self::Lose {
                what: Part::Request,
                ..
            } => "lost request",
            Self::Lose {
                what: Part::Answer, ..
            } => "lost answer",
            Self::Rob { .. } => "rob",
            Self::Panic => "listener panics",
            Self::Block { .. } => "listener blocks",
            Self::Hog { .. } => "hog",
            Self::Jump { .. } => "wall clock set",
        }
    }

    /// How long the member is busy with it.
    pub fn length_ms(self) -> u64 {
        match self {
            Self::Kill { down_ms, .. } | Self::Leave { down_ms } => down_ms,
            Self::Stop { ms }
            | Self::Silence { ms, .. }
            | Self::Refuse { ms }
            | Self::Rob { ms }
            | Self::Slow { ms, .. }
            | Self::Lose { ms, .. }
            | Self::Hog { ms } => ms,
            Self::Rejoin
            | Self::Break { .. }
            | Self::Panic
            | Self::Block { .. }
            | Self::Jump { .. } => 0,
        }
    }
}

impl Way {
    /// As the proxy calls it.
    pub fn direction(self) -> Direction {
        match self {
            Self::There => Direction::ToServer,
            Self::Back => Direction::ToClient,
            Self::Both => Direction::Both,
        }
    }
}

impl Deed {
    /// As the proxy finds it.
    pub fn matcher(self) -> Matcher {
        match self {
            Self::Claim => {
                Matcher::of(&[Op::Multi]).with(&[Op::Create, Op::Create2], "*/owners/*/*")
            }
            Self::Commit => Matcher::of(&[Op::Multi]).with(&[Op::SetData], "*/offsets/*/*"),
            Self::Release => {
                Matcher::of(&[Op::Multi, Op::Delete]).with(&[Op::Delete], "*/owners/*/*")
            }
            Self::Registration => Matcher::of(&[Op::Create, Op::Create2, Op::Multi])
                .with(&[Op::Create, Op::Create2], "*/ids/*"),
            Self::Any => Matcher::of(&[
                Op::Multi,
                Op::GetData,
                Op::GetChildren2,
                Op::Create,
                Op::SetWatches,
            ]),
        }
    }
}

/// So many milliseconds.
pub fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
