//! What may happen to a request on its way: how long it takes, whether it arrives, whether its answer does.

use std::time::Duration;

use crate::registry::{Fault, Op};

/// What sort of request it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Reading a node's data.
    Data,
    /// Asking whether a node is there.
    Stat,
    /// Listing children.
    Children,
    /// Creating one node.
    Create,
    /// Writing one node.
    Set,
    /// Deleting one node.
    Delete,
    /// A transaction of several steps.
    Multi,
    /// Taking back a watch that has not fired.
    Unwatch,
    /// Ending the session.
    Close,
}

/// A request as a fault script sees it, before it leaves the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The session it belongs to.
    pub session: i64,
    /// What it asks for.
    pub kind: Kind,
    /// The node; that of the first step for a [`Kind::Multi`], empty for a [`Kind::Close`].
    pub path: String,
    /// The steps of a write: one, or as many as a [`Kind::Multi`] has. Empty for a read.
    pub ops: Vec<Op>,
    /// Whether it is a read that arms a watch.
    pub is_watching: bool,
}

impl Request {
    /// Whether the node, or one of the nodes, it concerns is this one.
    pub fn concerns(&self, path: &str) -> bool {
        self.path == path || self.ops.iter().any(|op| op.path() == path)
    }

    /// Whether it would change something.
    pub fn is_write(&self) -> bool {
        matches!(
            self.kind,
            Kind::Create | Kind::Set | Kind::Delete | Kind::Multi
        )
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// It arrives and is answered.
    Deliver,
    /// It never arrives; answered with [`Fault::Unknown`], the connection stays.
    LoseBefore,
    /// It is carried out, its answer never arrives; answered with [`Fault::Unknown`], the connection stays.
    LoseAfter,
    /// The connection breaks before it arrives. All requests in flight are unknown; the client is back at once.
    BreakBefore,
    /// The connection breaks after it was carried out. All requests in flight are unknown; the client is back at once.
    BreakAfter,
    /// It arrives so much later, and whatever the session sends after it too.
    Delay(Duration),
    /// It is carried out in time and answered so much later, and whatever the session is told after it too.
    DelayAnswer(Duration),
    /// The server refuses it with this and changes nothing: [`Fault::NoAuth`], say.
    Refuse(Fault),
    /// The server refuses this step of the transaction, counted from 0, with this, and changes nothing.
    RefuseStep(usize, Fault),
}

/// What of a connection gets lost while it is cut one way only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// What the client sends. What its server tells it arrives.
    Requests,
    /// What the client is told. What it sends is carried out, and its server goes on hearing of it, also of its vain attempts to
    /// connect anew.
    Answers,
}

/// A list of fates, each for the first request it fits; what fits none is delivered.
///
/// ```
/// use evenkeel::memory::{Fate, Kind, Script};
///
/// // The answer to the second claim is lost.
/// let script = Script::new().then(|r| r.kind == Kind::Multi, Fate::Deliver)
///     .then(|r| r.kind == Kind::Multi, Fate::LoseAfter);
/// let ensemble = evenkeel::memory::MemoryRegistry::new().with_fate(script.into_fate());
/// ```
#[derive(Default)]
pub struct Script {
    lines: Vec<Line>,
}

struct Line {
    fits: Box<dyn FnMut(&Request) -> bool + Send>,
    fate: Fate,
}

impl Script {
    /// A script without a line: everything is delivered.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more line. It is used up by the first request that fits it and none of the lines before.
    #[must_use]
    pub fn then(mut self, fits: impl FnMut(&Request) -> bool + Send + 'static, fate: Fate) -> Self {
        let fits = Box::new(fits);
        self.lines.push(Line { fits, fate });
        self
    }

    /// The script as [`MemoryRegistry::with_fate`](super::MemoryRegistry::with_fate) wants it.
    pub fn into_fate(mut self) -> impl FnMut(&Request) -> Fate + Send + 'static {
        move |request| {
            let found = self.lines.iter_mut().position(|line| (line.fits)(request));
            match found {
                Some(at) => self.lines.remove(at).fate,
                None => Fate::Deliver,
            }
        }
    }
}

/// How long one way takes, drawn anew for every request, answer and event. One connection's never overtake each other.
#[derive(Debug, Clone, Default)]
pub struct Latency {
    low: Duration,
    high: Duration,
    state: u64,
}

impl Latency {
    /// No time at all; an answer still comes only after the task has yielded once. The default.
    pub fn none() -> Self {
        Self::default()
    }

    /// Always the same time.
    pub fn fixed(time: Duration) -> Self {
        Self::between(time, time, 0)
    }

    /// Evenly spread from `low` to `high`, the same every time the seed is the same. Tokio's timers count whole milliseconds.
    pub fn between(low: Duration, high: Duration, seed: u64) -> Self {
        Self {
            low,
            high: high.max(low),
            state: seed,
        }
    }

    pub(super) fn draw(&mut self) -> Duration {
        let span = u64::try_from((self.high - self.low).as_micros()).unwrap_or(u64::MAX);
        if span == 0 {
            return self.low;
        }
        self.low + Duration::from_micros(splitmix(&mut self.state) % span.saturating_add(1))
    }
}

impl Latency {
    /// A number below `sides`, from the same dice as the delays.
    pub(super) fn roll(&mut self, sides: usize) -> usize {
        let sides = u64::try_from(sides.max(1)).unwrap_or(1);
        usize::try_from(splitmix(&mut self.state) % sides).unwrap_or(0)
    }
}

/// Steele, Lea and Flood's generator: good enough for delays, and the same on every machine and in every release.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: Kind, path: &str) -> Request {
        Request {
            session: 1,
            kind,
            path: path.into(),
            ops: Vec::new(),
            is_watching: false,
        }
    }

    #[test]
    fn a_line_of_a_script_is_used_once() {
        let mut fate = Script::new()
            .then(|r| r.kind == Kind::Create, Fate::LoseAfter)
            .then(|r| r.concerns("/a"), Fate::LoseBefore)
            .into_fate();
        assert_eq!(fate(&request(Kind::Data, "/b")), Fate::Deliver);
        assert_eq!(fate(&request(Kind::Create, "/a")), Fate::LoseAfter);
        assert_eq!(fate(&request(Kind::Create, "/a")), Fate::LoseBefore);
        assert_eq!(fate(&request(Kind::Create, "/a")), Fate::Deliver);
    }

    #[test]
    fn equal_seeds_give_equal_delays_within_their_bounds() {
        let (low, high) = (Duration::from_millis(2), Duration::from_millis(9));
        let draw = |seed| {
            let mut latency = Latency::between(low, high, seed);
            (0..100).map(|_| latency.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|d| (low..=high).contains(d)));
        assert_eq!(Latency::none().draw(), Duration::ZERO);
        assert_eq!(Latency::fixed(high).draw(), high);
    }
}
