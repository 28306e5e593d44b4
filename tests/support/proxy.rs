//! A proxy in front of one ZooKeeper server that breaks connections, keeps bytes back, and loses single requests and answers.
//!
//! It knows which request a frame holds and which answer belongs to it (`frames.rs`), and counts all that it does.

mod frames;
mod state;
mod threads;

use std::net::Shutdown;
use std::net::TcpListener;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

pub use frames::Answer;
pub use frames::Frames;
pub use frames::Matcher;
pub use frames::Op;
pub use frames::Piece;
pub use frames::Request;
pub use frames::Step;
pub use frames::Welcome;

use state::End;
use state::FOREVER;
use state::Rule;
use state::Shared;
use state::Way;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
    Both,
}

impl Direction {
    fn ways(self) -> &'static [usize] {
        match self {
            Self::ToServer => &[state::TO_SERVER],
            Self::ToClient => &[state::TO_CLIENT],
            Self::Both => &[state::TO_SERVER, state::TO_CLIENT],
        }
    }
}

/// What is done to an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// It says that it is so long.
    Length(i32),
    /// It is so short, and says so.
    Short(usize),
    /// The connection breaks in the middle of it.
    Torn,
}

/// What happened to a single request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It was carried out, its answer was swallowed and the connection cut.
    LostReply,
    /// It was swallowed and the connection cut.
    LostRequest,
    /// Its answer was kept back.
    Held,
    /// Its answer was changed.
    Corrupted(Corruption),
}

/// A fault that was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    /// What was done.
    pub fault: Fault,
    /// To which request.
    pub request: Request,
    /// Of which session; 0 while it is being opened.
    pub session: i64,
    /// What the server said to it, 0 when all went well; nothing when it was never asked.
    pub error: Option<i32>,
}

/// A request that passed, and its answer.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The request.
    pub request: Request,
    /// Its session; 0 while it is being opened.
    pub session: i64,
    /// When it was read from the client, which is a little after it was sent.
    pub asked: Instant,
    /// What the server said to it: 0 when all went well.
    pub error: Option<i32>,
    /// When the answer was passed on.
    pub answered: Option<Instant>,
}

/// How often what was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were made to the server.
    pub connections: usize,
    /// Connections that were closed on both sides.
    pub cut: usize,
    /// Connections that were reset on both sides.
    pub reset: usize,
    /// Connections that were closed on the client's side alone.
    pub finished: usize,
    /// Connections that were refused.
    pub refused: usize,
    /// Frames that were kept back by a black hole.
    pub withheld: usize,
    /// Frames that came later for a delay.
    pub delayed: usize,
    /// Frames that went in small pieces.
    pub pieced: usize,
    /// Answers that were kept back and then passed on.
    pub released: usize,
    /// Answers that were kept back until their connection was gone.
    pub stale: usize,
}

/// The proxy, on a port of its own. Dropping it ends all its connections.
///
/// # Panics
///
/// When it is dropped and a fault that was asked for was never met, or there was a request that it could not read.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
}

impl Proxy {
    /// In front of the server at this port of 127.0.0.1.
    pub fn start(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared::default());
        shared.state().target = target;
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.state().is_over {
                    return;
                }
                threads::accept(&accepting, client);
            }
        });
        Self { shared, port }
    }

    /// The port of 127.0.0.1 it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:PORT`, to which a chroot can be added.
    pub fn connect_string(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Later connections go to the server at this port.
    pub fn retarget(&self, port: u16) {
        self.shared.state().target = port;
    }

    // ---- whole connections ----

    /// Closes every connection on both sides. Answers how many there were.
    pub fn cut(&self) -> usize {
        self.end_all(End::Cut)
    }

    /// Resets every connection on both sides. Answers how many there were.
    pub fn rst(&self) -> usize {
        self.end_all(End::Reset)
    }

    /// Closes the client's side of every connection; the server is told nothing. Answers how many there were.
    pub fn fin(&self) -> usize {
        self.end_all(End::Finish)
    }

    fn end_all(&self, end: End) -> usize {
        let mut state = self.shared.state();
        let links: Vec<u64> = state.links.keys().copied().collect();
        let count = links.into_iter().filter(|id| state.end(*id, end)).count();
        drop(state);
        self.shared.moved.notify_all();
        count
    }

    /// Refuses every new connection until [`Proxy::admit`].
    pub fn refuse(&self) {
        self.refuse_for(FOREVER);
    }

    /// Refuses every new connection for so long.
    pub fn refuse_for(&self, time: Duration) {
        self.shared.state().refuse_until = Some(Instant::now() + time);
    }

    /// Refuses every new connection from the moment on in which a request or an answer is lost, until [`Proxy::admit`].
    pub fn refuse_after_loss(&self) {
        self.shared.state().refuses_after_loss = true;
    }

    /// Refuses no more.
    pub fn admit(&self) {
        let mut state = self.shared.state();
        state.refuse_until = None;
        state.refuses_after_loss = false;
    }

    // ---- the bytes of one way ----

    /// Keeps all bytes of this way back, those of later connections too, and accepts them as if nothing were wrong.
    pub fn blackhole(&self, direction: Direction) {
        self.change(direction, |way| way.is_black = true);
    }

    /// Lets go what was kept back, as a network does that works again, and keeps nothing back any more.
    pub fn heal(&self) {
        self.change(Direction::Both, |way| way.is_black = false);
    }

    /// Every frame comes so much later, and up to the jitter more. Their order stays.
    pub fn delay(&self, direction: Direction, delay: Duration, jitter: Duration) {
        self.change(direction, |way| (way.delay, way.jitter) = (delay, jitter));
    }

    /// No more than so many bytes a second.
    pub fn rate(&self, direction: Direction, bytes_a_second: usize) {
        self.change(direction, |way| way.bytes_a_second = Some(bytes_a_second));
    }

    /// Every byte by itself.
    pub fn split(&self, direction: Direction) {
        self.change(direction, |way| way.is_split = true);
    }

    /// At full speed again.
    pub fn hurry(&self) {
        self.change(Direction::Both, |way| {
            let is_black = way.is_black;
            *way = Way {
                is_black,
                ..Way::default()
            };
        });
    }

    fn change(&self, direction: Direction, change: impl Fn(&mut Way)) {
        let mut state = self.shared.state();
        for way in direction.ways() {
            change(&mut state.ways[*way]);
        }
        drop(state);
        self.shared.moved.notify_all();
    }

    // ---- single requests and answers ----

    /// Passes the next `n` of these requests on, swallows the answer, and cuts the connection when it comes.
    pub fn lose_reply(&self, matcher: Matcher, n: usize) {
        self.arm(Fault::LostReply, matcher, n);
    }

    /// Swallows the next `n` of these requests, each time cutting the connection.
    pub fn lose_request(&self, matcher: Matcher, n: usize) {
        self.arm(Fault::LostRequest, matcher, n);
    }

    /// Keeps the answer to the next of these requests back until [`Proxy::release`]; later ones overtake it.
    pub fn hold(&self, matcher: Matcher) {
        self.arm(Fault::Held, matcher, 1);
    }

    /// Passes on what was kept back. Answers how many answers still had their connection.
    pub fn release(&self) -> usize {
        let mut state = self.shared.state();
        let mut released = 0;
        for (id, item) in std::mem::take(&mut state.held) {
            let way = state
                .links
                .get(&id)
                .and_then(|link| link.to_client.as_ref());
            if way.is_some_and(|way| way.try_send(item).is_ok()) {
                released += 1;
            } else {
                state.counts.stale += 1;
            }
        }
        state.counts.released += released;
        released
    }

    /// Changes the answer to the next of these requests.
    pub fn corrupt(&self, matcher: Matcher, how: Corruption) {
        self.arm(Fault::Corrupted(how), matcher, 1);
    }

    /// Takes back what was asked for and not met so far. Answers how many faults that were.
    pub fn disarm(&self) -> usize {
        let rules = std::mem::take(&mut self.shared.state().rules);
        rules.iter().map(|rule| rule.left).sum()
    }

    fn arm(&self, fault: Fault, matcher: Matcher, left: usize) {
        self.shared.state().rules.push(Rule {
            fault,
            matcher,
            left,
        });
    }

    // ---- the account ----

    /// How often what was done.
    pub fn counts(&self) -> Counts {
        self.shared.state().counts
    }

    /// The faults that were met, in their order.
    pub fn fired(&self) -> Vec<Fired> {
        self.shared.state().fired.clone()
    }

    /// What was asked and answered, in the order of asking.
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.shared.state().exchanges.clone()
    }

    /// The sessions that were opened, or taken up again, once for each connection.
    pub fn sessions(&self) -> Vec<i64> {
        self.shared.state().sessions.clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end_all(End::Cut);
        let mut state = self.shared.state();
        state.is_over = true;
        state.held.clear();
        // Also those that were finished, whose threads still read.
        let ends = state
            .links
            .values()
            .flat_map(|link| [&link.client, &link.server]);
        for socket in ends.chain(&state.orphans) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        let unmet = state.rules.iter().filter(|rule| rule.left > 0);
        let unmet: Vec<String> = unmet
            .map(|rule| format!("{:?} of {:?}", rule.fault, rule.matcher))
            .collect();
        let strange = std::mem::take(&mut state.strange);
        drop(state);
        self.shared.moved.notify_all();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if !std::thread::panicking() {
            assert!(unmet.is_empty(), "faults that were never met: {unmet:?}");
            assert!(strange.is_empty(), "requests nobody can read: {strange:?}");
        }
    }
}
