//! What a proxy knows of its connections, and what becomes of a frame.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::net::Shutdown;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use std::time::Instant;

use rustix::net::sockopt::set_socket_linger;

use super::super::process::random;
use super::Corruption;
use super::Counts;
use super::Exchange;
use super::Fault;
use super::Fired;
use super::frames::Answer;
use super::frames::EVENT;
use super::frames::Matcher;
use super::frames::Op;
use super::frames::Request;
use super::frames::Welcome;
use super::frames::refusal;

pub(super) const TO_SERVER: usize = 0;
pub(super) const TO_CLIENT: usize = 1;

/// Until somebody says otherwise.
pub(super) const FOREVER: Duration = Duration::from_secs(86_400);

pub(super) struct Rule {
    pub(super) fault: Fault,
    pub(super) matcher: Matcher,
    pub(super) left: usize,
}

/// How one way is slowed down.
#[derive(Clone, Copy, Default)]
pub(super) struct Way {
    pub(super) is_black: bool,
    pub(super) delay: Duration,
    pub(super) jitter: Duration,
    pub(super) bytes_a_second: Option<usize>,
    pub(super) is_split: bool,
}

pub(super) struct Link {
    pub(super) client: Arc<TcpStream>,
    pub(super) server: Arc<TcpStream>,
    /// For answers that were kept back.
    pub(super) to_client: Option<SyncSender<Item>>,
    pub(super) session: i64,
    pub(super) asked: VecDeque<Asked>,
    pub(super) is_broken: Arc<AtomicBool>,
    pub(super) readers: u8,
}

/// A request that waits for its answer.
pub(super) struct Asked {
    pub(super) xid: i32,
    pub(super) exchange: usize,
    pub(super) fate: Option<Fault>,
}

pub(super) struct Item {
    pub(super) due: Instant,
    pub(super) bytes: Vec<u8>,
    /// Which exchange ends with it.
    pub(super) exchange: Option<usize>,
    /// The connection is cut behind it.
    pub(super) is_last: bool,
}

#[derive(Clone, Copy)]
pub(super) enum End {
    Cut,
    Reset,
    Finish,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) target: u16,
    pub(super) ways: [Way; 2],
    pub(super) rules: Vec<Rule>,
    pub(super) refuse_until: Option<Instant>,
    pub(super) refuses_after_loss: bool,
    pub(super) links: BTreeMap<u64, Link>,
    pub(super) next: u64,
    /// Servers' ends that nobody talks to any more.
    pub(super) orphans: Vec<Arc<TcpStream>>,
    pub(super) held: Vec<(u64, Item)>,
    pub(super) fired: Vec<Fired>,
    pub(super) exchanges: Vec<Exchange>,
    pub(super) sessions: Vec<i64>,
    /// Requests that could not be read.
    pub(super) strange: Vec<Vec<u8>>,
    pub(super) counts: Counts,
    pub(super) is_over: bool,
}

#[derive(Default)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    pub(super) moved: Condvar,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Ends a connection. False when it was broken before.
    pub(super) fn end(&mut self, id: u64, end: End) -> bool {
        let Some(link) = self.links.get_mut(&id) else {
            return false;
        };
        if link.is_broken.swap(true, Ordering::SeqCst) {
            return false;
        }
        link.to_client = None;
        let ends = [&link.client, &link.server];
        match end {
            End::Cut => {
                self.counts.cut += 1;
                for socket in ends {
                    let _ = socket.shutdown(Shutdown::Both);
                }
            }
            // With the last of its holders each is closed, and that resets it. To stop reading tells the other side nothing.
            End::Reset => {
                self.counts.reset += 1;
                for socket in ends {
                    set_socket_linger(socket, Some(Duration::ZERO)).expect("a socket of ours");
                    let _ = socket.shutdown(Shutdown::Read);
                }
            }
            End::Finish => {
                self.counts.finished += 1;
                let _ = link.client.shutdown(Shutdown::Write);
                self.orphans.push(Arc::clone(&link.server));
            }
        }
        true
    }

    /// The cut comes behind what came before.
    fn lose(&mut self, way: usize, fired: Fired) -> Option<Item> {
        self.fired.push(fired);
        if self.refuses_after_loss {
            self.refuse_until = Some(Instant::now() + FOREVER);
        }
        let mut item = self.item(way, Vec::new(), None);
        item.is_last = true;
        Some(item)
    }

    pub(super) fn item(&mut self, way: usize, bytes: Vec<u8>, exchange: Option<usize>) -> Item {
        let Way { delay, jitter, .. } = self.ways[way];
        let most = u64::try_from(jitter.as_micros()).unwrap_or(u64::MAX);
        let more = random(self.exchanges.len() as u64) % (most + 1);
        self.counts.delayed += usize::from(!delay.is_zero());
        Item {
            due: Instant::now() + delay + Duration::from_micros(more),
            bytes,
            exchange,
            is_last: false,
        }
    }

    /// What becomes of a frame from the client.
    pub(super) fn on_request(&mut self, id: u64, frame: Vec<u8>, is_first: bool) -> Option<Item> {
        let read = if is_first {
            Some(Request::opening())
        } else {
            Request::read(&frame[4..])
        };
        let Some(request) = read else {
            self.strange.push(frame.clone());
            return Some(self.item(TO_SERVER, frame, None));
        };
        let link = self.links.get(&id)?;
        if link.is_broken.load(Ordering::SeqCst) {
            return None;
        }
        let session = link.session;
        let mut rules = self.rules.iter_mut();
        let rule = rules.find(|rule| rule.left > 0 && rule.matcher.matches(&request));
        let fate = rule.map(|rule| {
            rule.left -= 1;
            rule.fault
        });
        if fate == Some(Fault::LostRequest) {
            let fired = Fired {
                fault: Fault::LostRequest,
                request,
                session,
                error: None,
            };
            return self.lose(TO_SERVER, fired);
        }
        let exchange = self.exchanges.len();
        let xid = request.xid;
        self.exchanges.push(Exchange {
            request,
            session,
            asked: Instant::now(),
            error: None,
            answered: None,
        });
        let asked = Asked {
            xid,
            exchange,
            fate,
        };
        self.links.get_mut(&id)?.asked.push_back(asked);
        Some(self.item(TO_SERVER, frame, None))
    }

    /// What becomes of a frame from the server.
    pub(super) fn on_answer(
        &mut self,
        id: u64,
        mut frame: Vec<u8>,
        is_first: bool,
    ) -> Option<Item> {
        let link = self.links.get_mut(&id)?;
        if link.is_broken.load(Ordering::SeqCst) {
            return None;
        }
        let (asked, error) = if is_first {
            let session = Welcome::read(&frame[4..]).map_or(0, |welcome| welcome.session);
            link.session = session;
            self.sessions.push(session);
            (link.asked.pop_front(), i32::from(session == 0))
        } else {
            let answer = Answer::read(&frame[4..]).filter(|answer| answer.xid != EVENT);
            let place = answer.and_then(|answer| {
                let mut asked = link.asked.iter();
                asked.position(|asked| asked.xid == answer.xid)
            });
            let asked = place.and_then(|place| link.asked.remove(place));
            (asked, answer.map_or(0, |answer| answer.error))
        };
        let session = link.session;
        let Some(asked) = asked else {
            return Some(self.item(TO_CLIENT, frame, None));
        };
        let exchange = &mut self.exchanges[asked.exchange];
        let request = exchange.request.clone();
        let error = match request.op {
            Op::Multi if error == 0 => refusal(&frame[4..]).unwrap_or(0),
            _ => error,
        };
        exchange.error = Some(error);
        let Some(fault) = asked.fate else {
            return Some(self.item(TO_CLIENT, frame, Some(asked.exchange)));
        };
        let fired = Fired {
            fault,
            request,
            session,
            error: Some(error),
        };
        if fault == Fault::LostReply {
            return self.lose(TO_CLIENT, fired);
        }
        self.fired.push(fired);
        let Fault::Corrupted(how) = fault else {
            let item = self.item(TO_CLIENT, frame, Some(asked.exchange));
            self.held.push((id, item));
            return None;
        };
        match how {
            Corruption::Length(length) => frame[..4].copy_from_slice(&length.to_be_bytes()),
            Corruption::Short(length) => {
                frame.truncate(4 + length);
                let length = i32::try_from(frame.len() - 4).expect("a short frame");
                frame[..4].copy_from_slice(&length.to_be_bytes());
            }
            Corruption::Torn => frame.truncate(frame.len() / 2),
        }
        let mut item = self.item(TO_CLIENT, frame, None);
        item.is_last = how == Corruption::Torn;
        Some(item)
    }
}
