//! Whether brokers can negotiate versions at all, asked on a socket of our own.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result, printable};

/// How to speak to the brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Generation {
    /// 0.10 and later: versions are negotiated.
    #[default]
    Negotiating,
    /// 0.8 and 0.9: they cut the connection when asked for versions, so the client has to be told.
    Old,
}

/// The request for versions, in its oldest form: length 18, key 18, version 0, correlation 1, client id "evenkeel".
const REQUEST: &[u8] = b"\0\0\0\x12\0\x12\0\0\0\0\0\x01\0\x08evenkeel";

/// A request for offsets that names none, in its oldest form, which 0.8 and 0.9 answer and 4.0 does not: length 26, key 2,
/// version 0, correlation 1, client id "evenkeel", replica -1, no topics.
const PLAIN: &[u8] = b"\0\0\0\x1a\0\x02\0\0\0\0\0\x01\0\x08evenkeel\xff\xff\xff\xff\0\0\0\0";

/// How long an answer is waited for before the broker is asked for something else.
const SILENCE: Duration = Duration::from_millis(1500);

enum Answer {
    Versions,
    CutOff,
    /// It answers what it knows and says nothing to a request for versions.
    OnlyPlain,
}

/// Asks the first broker that can be reached. Blocks, for about `timeout` at most; only the resolver may take longer.
///
/// A cut connection counts as [`Generation::Old`] only when it happens twice: that is how 0.8 takes it. A broker of 0.9 says
/// nothing at all, so one that is silent is asked for something that it must know. Not for brokers that want TLS or SASL:
/// those cut off a plain request too.
///
/// # Errors
/// [`Kafka`](ErrorKind::Kafka) if none can be reached, with the last reason.
pub fn probe(brokers: &[String], timeout: Duration) -> Result<Generation> {
    let until = Instant::now() + timeout;
    let mut last = io::Error::other("no broker is named");
    for (index, broker) in brokers.iter().enumerate() {
        let others = u32::try_from(brokers.len() - index).unwrap_or(u32::MAX);
        let share = until.saturating_duration_since(Instant::now()) / others;
        match ask_twice(broker, Instant::now() + share) {
            Ok(generation) => return Ok(generation),
            Err(error) => last = error,
        }
    }
    Err(Error::new(
        ErrorKind::Kafka,
        format!(
            "none of the brokers {} can be reached",
            printable(&brokers.join(", "))
        ),
    )
    .with_source(last))
}

fn ask_twice(broker: &str, until: Instant) -> io::Result<Generation> {
    for _ in 0..2 {
        match ask(broker, until)? {
            Answer::Versions => return Ok(Generation::Negotiating),
            Answer::OnlyPlain => break,
            Answer::CutOff => {}
        }
    }
    Ok(Generation::Old)
}

/// Whether any of these brokers takes a connection. Blocks, for about `timeout` at most.
pub(super) fn is_anybody_there(brokers: &[String], timeout: Duration) -> bool {
    let until = Instant::now() + timeout;
    brokers.iter().any(|broker| connect(broker, until).is_ok())
}

fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

fn connect(broker: &str, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in broker.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(until)?) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn ask(broker: &str, until: Instant) -> io::Result<Answer> {
    let mut versions = send(broker, REQUEST, until)?;
    let half = left(until)? / 2;
    match is_answered(&mut versions, Instant::now() + half.min(SILENCE)) {
        Ok(true) => return Ok(Answer::Versions),
        Ok(false) => return Ok(Answer::CutOff),
        Err(error) if !is_timeout(&error) => return Err(error),
        Err(_) => {}
    }
    let mut plain = send(broker, PLAIN, until)?;
    if !is_answered(&mut plain, until)? {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    // It may only have been slow.
    match is_answered(&mut versions, Instant::now() + Duration::from_millis(1)) {
        Ok(true) => Ok(Answer::Versions),
        _ => Ok(Answer::OnlyPlain),
    }
}

fn send(broker: &str, request: &[u8], until: Instant) -> io::Result<TcpStream> {
    let mut socket = connect(broker, until)?;
    socket.set_write_timeout(Some(left(until)?))?;
    socket.write_all(request)?;
    Ok(socket)
}

/// Whether an answer came; `false` if the connection was cut instead.
fn is_answered(socket: &mut TcpStream, until: Instant) -> io::Result<bool> {
    socket.set_read_timeout(Some(left(until)?))?;
    // The length and the correlation are enough.
    let mut head = [0; 8];
    match socket.read_exact(&mut head) {
        Ok(()) => Ok(true),
        Err(error) => match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => Ok(false),
            _ => Err(error),
        },
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use rdkafka::mocking::MockCluster;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    fn listen() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    /// An address where nobody listens.
    fn nowhere() -> String {
        listen().1
    }

    #[test]
    fn a_broker_that_answers_negotiates() {
        let cluster = MockCluster::new(1).unwrap();
        let generation = probe(&[nowhere(), cluster.bootstrap_servers()], SOON).unwrap();
        assert_eq!(generation, Generation::Negotiating);
    }

    #[test]
    fn a_broker_that_cuts_off_twice_is_old() {
        let (listener, address) = listen();
        let broker = thread::spawn(move || {
            for _ in 0..2 {
                let (mut socket, _) = listener.accept().unwrap();
                let mut request = [0; 22];
                socket.read_exact(&mut request).unwrap();
                assert_eq!(request, REQUEST);
            }
        });
        assert_eq!(probe(&[address], SOON).unwrap(), Generation::Old);
        broker.join().unwrap();
    }

    #[test]
    fn a_broker_that_answers_all_but_the_request_for_versions_is_old() {
        let (listener, address) = listen();
        let broker = thread::spawn(move || {
            let (mut silent, _) = listener.accept().unwrap();
            let (mut socket, _) = listener.accept().unwrap();
            let mut request = [0; 30];
            socket.read_exact(&mut request).unwrap();
            assert_eq!(request, PLAIN);
            socket.write_all(b"\0\0\0\x08\0\0\0\x01\0\0\0\0").unwrap();
            let _ = silent.read(&mut [0; 100]);
            let _ = silent.read(&mut [0; 100]);
        });
        assert_eq!(probe(&[address], SOON).unwrap(), Generation::Old);
        broker.join().unwrap();
    }

    #[test]
    fn a_broker_that_says_nothing_is_given_up_in_time() {
        let (_listener, address) = listen();
        let before = Instant::now();
        let error = probe(&[address], Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Kafka);
        assert!(before.elapsed() < SOON);
    }

    #[test]
    fn nobody_there_is_an_error_that_names_the_brokers() {
        let address = nowhere();
        let error = probe(std::slice::from_ref(&address), SOON).unwrap_err();
        assert!(error.to_string().contains(&address), "{error}");
        assert!(probe(&[], SOON).is_err());
    }
}
