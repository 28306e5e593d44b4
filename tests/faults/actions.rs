//! What the proxy can do to a connection, each by itself, between a caller and a server that answer as ZooKeeper does.

use std::io::ErrorKind;
use std::io::Read;
use std::io::Write;
use std::net::TcpListener;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use crate::support::Corruption;
use crate::support::Direction;
use crate::support::Fault;
use crate::support::LONG;
use crate::support::Matcher;
use crate::support::Op;
use crate::support::Proxy;
use crate::support::until;

const SHORT: Duration = Duration::from_millis(100);

/// How a connection ended at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    InOrder,
    Reset,
}

#[derive(Default)]
struct Seen {
    /// The numbers of the requests that came.
    asked: Vec<i32>,
    ended: Vec<Ended>,
}

/// A server that opens sessions and says yes to everything.
fn serve() -> (u16, Arc<Mutex<Seen>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let told = Arc::clone(&seen);
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let told = Arc::clone(&told);
            std::thread::spawn(move || {
                let ended = match answer(socket, &told) {
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => Ended::Reset,
                    _ => Ended::InOrder,
                };
                told.lock().unwrap().ended.push(ended);
            });
        }
    });
    (port, seen)
}

fn answer(mut socket: TcpStream, seen: &Mutex<Seen>) -> std::io::Result<()> {
    frame(&mut socket)?;
    // Version, timeout, session, password.
    let welcome = [&[0; 4][..], &[0, 0, 0x10, 0], &7_i64.to_be_bytes(), &[0; 4]];
    send(&mut socket, &welcome.concat())?;
    loop {
        let xid = *frame(&mut socket)?.first_chunk().unwrap();
        seen.lock().unwrap().asked.push(i32::from_be_bytes(xid));
        send(
            &mut socket,
            &[&xid[..], &1_i64.to_be_bytes(), &[0; 4], b"data"].concat(),
        )?;
    }
}

fn frame(socket: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    socket.read_exact(&mut body)?;
    Ok(body)
}

fn send(socket: &mut TcpStream, body: &[u8]) -> std::io::Result<()> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    socket.write_all(&[&length, body].concat())
}

struct Caller(TcpStream);

impl Caller {
    /// With the session opened.
    fn connect(proxy: &Proxy) -> Self {
        let mut caller = Self::dial(proxy);
        send(&mut caller.0, &[0; 28]).unwrap();
        assert_eq!(caller.frame().unwrap()[8..16], 7_i64.to_be_bytes());
        caller
    }

    fn dial(proxy: &Proxy) -> Self {
        let socket = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        Self(socket)
    }

    fn frame(&mut self) -> std::io::Result<Vec<u8>> {
        frame(&mut self.0)
    }

    /// Asks for the data of a node.
    fn ask(&mut self, xid: i32, path: &str) {
        let length = u32::try_from(path.len()).unwrap().to_be_bytes();
        let head = [&xid.to_be_bytes()[..], &[0, 0, 0, 4]].concat();
        send(
            &mut self.0,
            &[&head[..], &length, path.as_bytes(), &[0]].concat(),
        )
        .unwrap();
    }

    /// The number that the next answer bears.
    fn answer(&mut self) -> i32 {
        i32::from_be_bytes(*self.frame().unwrap().first_chunk().unwrap())
    }

    fn is_silent(&mut self) -> bool {
        self.0.set_read_timeout(Some(SHORT)).unwrap();
        let read = self.0.read(&mut [0]);
        self.0.set_read_timeout(Some(LONG)).unwrap();
        matches!(read, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }

    fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0))
    }

    fn is_reset(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Err(error) if error.kind() == ErrorKind::ConnectionReset)
    }
}

#[track_caller]
fn until_ended(seen: &Mutex<Seen>, ended: &[Ended]) {
    until("the server sees the end", LONG, || {
        seen.lock().unwrap().ended == ended
    });
}

fn any() -> Matcher {
    Matcher::of(&[Op::GetData])
}

#[test]
fn what_is_not_touched_passes_and_ends_as_it_should() {
    let (port, seen) = serve();
    let proxy = Proxy::start(port);
    let mut caller = Caller::connect(&proxy);
    for xid in 1..50 {
        caller.ask(xid, "/a");
        assert_eq!(caller.answer(), xid);
    }
    drop(caller);
    until_ended(&seen, &[Ended::InOrder]);
    assert_eq!(proxy.sessions(), [7]);
    let exchanges = proxy.exchanges();
    assert_eq!(exchanges.len(), 50);
    assert!(exchanges.iter().all(|exchange| exchange.error == Some(0)));
    assert_eq!(proxy.counts().connections, 1);
}

#[test]
fn a_cut_closes_both_sides() {
    let (port, seen) = serve();
    let proxy = Proxy::start(port);
    assert_eq!(proxy.cut(), 0);
    let mut caller = Caller::connect(&proxy);
    assert_eq!(proxy.cut(), 1);
    assert!(caller.is_closed());
    until_ended(&seen, &[Ended::InOrder]);
    assert_eq!(proxy.counts().cut, 1);
    Caller::connect(&proxy);
}

#[test]
fn a_reset_resets_both_sides() {
    let (port, seen) = serve();
    let proxy = Proxy::start(port);
    let mut caller = Caller::connect(&proxy);
    assert_eq!(proxy.rst(), 1);
    assert!(caller.is_reset());
    until_ended(&seen, &[Ended::Reset]);
    assert_eq!(proxy.counts().reset, 1);
}

#[test]
fn a_finished_connection_stays_open_at_the_server() {
    let (port, seen) = serve();
    let proxy = Proxy::start(port);
    let mut caller = Caller::connect(&proxy);
    assert_eq!(proxy.fin(), 1);
    assert!(caller.is_closed());
    drop(caller);
    // A whole new connection takes longer than an end of the first would.
    Caller::connect(&proxy).ask(1, "/a");
    assert!(seen.lock().unwrap().ended.is_empty());
    assert_eq!(proxy.counts().finished, 1);
    drop(proxy);
    until("the server sees the ends", LONG, || {
        seen.lock().unwrap().ended.len() == 2
    });
}

#[test]
fn a_black_hole_keeps_back_what_it_lets_go_when_it_is_healed() {
    for (direction, reaches) in [
        (Direction::ToServer, false),
        (Direction::ToClient, true),
        (Direction::Both, false),
    ] {
        let (port, seen) = serve();
        let proxy = Proxy::start(port);
        let mut caller = Caller::connect(&proxy);
        proxy.blackhole(direction);
        caller.ask(1, "/a");
        if reaches {
            until("the request", LONG, || seen.lock().unwrap().asked == [1]);
        }
        assert!(caller.is_silent());
        assert_eq!(seen.lock().unwrap().asked.len(), usize::from(reaches));
        assert_eq!(proxy.counts().withheld, 1);
        // One that connects meanwhile is heard no more than it.
        let mut other = Caller::dial(&proxy);
        send(&mut other.0, &[0; 28]).unwrap();
        assert!(other.is_silent());
        proxy.heal();
        assert_eq!(caller.answer(), 1);
        assert!(other.frame().is_ok());
    }
}

#[test]
fn a_delay_makes_everything_later_and_keeps_the_order() {
    let (port, _seen) = serve();
    let proxy = Proxy::start(port);
    let mut caller = Caller::connect(&proxy);
    proxy.delay(Direction::ToServer, SHORT, Duration::ZERO);
    let start = Instant::now();
    for xid in 1..=3 {
        caller.ask(xid, "/a");
    }
    assert_eq!(
        [caller.answer(), caller.answer(), caller.answer()],
        [1, 2, 3]
    );
    assert!(start.elapsed() >= SHORT);
    assert_eq!(proxy.counts().delayed, 3);
    proxy.delay(Direction::Both, Duration::ZERO, SHORT);
    for xid in 4..20 {
        caller.ask(xid, "/a");
    }
    for xid in 4..20 {
        assert_eq!(caller.answer(), xid);
    }
    proxy.hurry();
    proxy.delay(Direction::ToClient, SHORT, Duration::ZERO);
    let start = Instant::now();
    caller.ask(20, "/a");
    assert_eq!(caller.answer(), 20);
    assert!(start.elapsed() >= SHORT);
}

#[test]
fn a_rate_is_kept() {
    let (port, _seen) = serve();
    let proxy = Proxy::start(port);
    let mut caller = Caller::connect(&proxy);
    proxy.rate(Direction::ToServer, 10_000);
    let start = Instant::now();
    caller.ask(1, &format!("/{}", "x".repeat(2_000)));
    assert_eq!(caller.answer(), 1);
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert_eq!(proxy.counts().pieced, 1);
}

#[test]
fn bytes_may_come_one_by_one() {
    let (port, _seen) = serve();
    let proxy = Proxy::start(port);
    proxy.split(Direction::Both);
    let mut caller = Caller::connect(&proxy);
    for xid in 1..20 {
        caller.ask(xid, "/some/path");
        assert_eq!(caller.answer(), xid);
    }
    assert_eq!(proxy.counts().pieced, 2 * 20);
}

#[test]
fn a_lost_reply_is_of_a_request_that_was_carried_out() {
    let (port, seen) = serve();
    let proxy = Proxy::start(port);
    proxy.lose_reply(any().at("/lost"), 2);
    for round in 1..=2 {
        let mut caller = Caller::connect(&proxy);
        caller.ask(1, "/a");
        caller.ask(2, "/lost");
        assert_eq!(caller.answer(), 1);
        assert!(caller.frame().is_err());
        until("the requests", LONG, || {
            seen.lock().unwrap().asked.len() == 2 * round
        });
    }
    let mut caller = Caller::connect(&proxy);
    caller.ask(3, "/lost");
    assert_eq!(caller.answer(), 3);
    let fired = proxy.fired();
    assert_eq!(fired.len(), 2);
    assert_eq!(
        (fired[0].fault, fired[0].session, fired[0].error),
        (Fault::LostReply, 7, Some(0))
    );
    assert_eq!(fired[0].request.xid, 2);
    assert_eq!(proxy.counts().cut, 2);
}

#[test]
fn a_lost_request_never_reaches_the_server() {
    let (port, seen) = serve();
    let proxy = Proxy::start(port);
    proxy.lose_request(any().at("/lost"), 1);
    let mut caller = Caller::connect(&proxy);
    caller.ask(1, "/a");
    caller.ask(2, "/lost");
    until_ended(&seen, &[Ended::InOrder]);
    assert_eq!(seen.lock().unwrap().asked, [1]);
    let mut caller = Caller::connect(&proxy);
    caller.ask(3, "/lost");
    assert_eq!(caller.answer(), 3);
    let fired = proxy.fired();
    assert_eq!(fired.len(), 1);
    assert_eq!((fired[0].fault, fired[0].error), (Fault::LostRequest, None));
}

#[test]
fn a_held_answer_comes_when_it_is_released() {
    let (port, _seen) = serve();
    let proxy = Proxy::start(port);
    proxy.hold(any().at("/held"));
    let mut caller = Caller::connect(&proxy);
    caller.ask(1, "/held");
    caller.ask(2, "/a");
    assert_eq!(caller.answer(), 2);
    assert!(caller.is_silent());
    assert_eq!(proxy.fired().len(), 1);
    assert_eq!(proxy.release(), 1);
    assert_eq!(caller.answer(), 1);
    // Nothing is left for one whose connection is gone.
    proxy.hold(any().at("/held"));
    caller.ask(3, "/held");
    until("it is held", LONG, || proxy.fired().len() == 2);
    proxy.cut();
    assert_eq!(proxy.release(), 0);
    assert_eq!((proxy.counts().released, proxy.counts().stale), (1, 1));
}

#[test]
fn new_connections_are_refused_for_a_time_or_until_they_are_not() {
    let (port, _seen) = serve();
    let proxy = Proxy::start(port);
    let mut caller = Caller::connect(&proxy);
    proxy.refuse();
    assert!(Caller::dial(&proxy).is_reset());
    assert_eq!(proxy.counts().refused, 1);
    caller.ask(1, "/a");
    assert_eq!(caller.answer(), 1);
    proxy.admit();
    Caller::connect(&proxy);
    proxy.refuse_for(Duration::from_secs(1));
    assert!(Caller::dial(&proxy).is_reset());
    until("connections are taken again", LONG, || {
        !Caller::dial(&proxy).is_reset_by_now()
    });
    proxy.lose_request(any(), 1);
    proxy.refuse_after_loss();
    caller.ask(2, "/a");
    assert!(caller.is_closed());
    assert!(Caller::dial(&proxy).is_reset());
    proxy.admit();
    Caller::connect(&proxy);
}

impl Caller {
    fn is_reset_by_now(&mut self) -> bool {
        !self.is_silent()
    }
}

#[test]
fn an_answer_can_be_garbled() {
    let (port, _seen) = serve();
    let proxy = Proxy::start(port);
    for how in [-1, i32::MAX] {
        proxy.corrupt(any(), Corruption::Length(how));
        let mut caller = Caller::connect(&proxy);
        caller.ask(1, "/a");
        let mut length = [0; 4];
        caller.0.read_exact(&mut length).unwrap();
        assert_eq!(i32::from_be_bytes(length), how);
        caller.0.read_exact(&mut [0; 20]).unwrap();
    }
    proxy.corrupt(any(), Corruption::Short(6));
    let mut caller = Caller::connect(&proxy);
    caller.ask(1, "/a");
    assert_eq!(caller.frame().unwrap(), [0, 0, 0, 1, 0, 0]);
    caller.ask(2, "/a");
    assert_eq!(caller.answer(), 2);
    proxy.corrupt(any(), Corruption::Torn);
    caller.ask(3, "/a");
    caller.0.read_exact(&mut [0; 12]).unwrap();
    assert!(caller.is_closed());
    assert_eq!(proxy.fired().len(), 4);
    assert_eq!(proxy.counts().cut, 1);
}

#[test]
fn another_server_may_stand_behind_it() {
    let (port, _seen) = serve();
    let (other, seen) = serve();
    let proxy = Proxy::start(port);
    let mut caller = Caller::connect(&proxy);
    proxy.retarget(other);
    caller.ask(1, "/a");
    assert_eq!(caller.answer(), 1);
    assert!(seen.lock().unwrap().asked.is_empty());
    let mut caller = Caller::connect(&proxy);
    caller.ask(2, "/a");
    assert_eq!(caller.answer(), 2);
    assert_eq!(seen.lock().unwrap().asked, [2]);
}

#[test]
#[should_panic(expected = "never met")]
fn a_fault_that_was_never_met_is_told_at_the_end() {
    let (port, _seen) = serve();
    let proxy = Proxy::start(port);
    proxy.lose_reply(any(), 1);
    Caller::connect(&proxy);
}

#[test]
#[should_panic(expected = "nobody can read")]
fn a_request_that_could_not_be_read_is_told_at_the_end() {
    let (port, _seen) = serve();
    let proxy = Proxy::start(port);
    let mut caller = Caller::connect(&proxy);
    // A transaction that breaks off.
    send(&mut caller.0, &[0, 0, 0, 1, 0, 0, 0, 14, 0]).unwrap();
    assert_eq!(caller.answer(), 1);
}
