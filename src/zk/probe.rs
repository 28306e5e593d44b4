//! What stands where a ZooKeeper server should: one plain `srvr` request on a socket of its own.
// A plain socket waits by the host's clock.
#![allow(clippy::disallowed_methods)]

use std::io::ErrorKind;
use std::io::Read;
use std::io::Write;
use std::net::SocketAddr;
use std::net::TcpStream;
use std::net::ToSocketAddrs;
use std::time::Duration;
use std::time::Instant;

use crate::error::printable;

/// The port when none is given.
const PORT: u16 = 2181;

/// Nothing that answers `srvr` says more than this.
const ANSWER: usize = 4096;

/// The host and port of one part of a connect string; `None` when it is not one.
pub(super) fn address(text: &str) -> Option<(&str, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest
            .split_once(']')
            .map(|(host, port)| (host, port.strip_prefix(':').unwrap_or(port)))?,
        None => text.rsplit_once(':').unwrap_or((text, "")),
    };
    let port = if port.is_empty() {
        PORT
    } else {
        port.parse().ok().filter(|port| *port != 0)?
    };
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ',');
    (!host.is_empty() && !host.contains(odd)).then_some((host, port))
}

/// Asks all of them at once, and says for each what is there.
pub(super) async fn all(hosts: &[String], limit: Duration) -> String {
    let asked: Vec<_> = hosts.iter().map(|host| (host, ask(host, limit))).collect();
    let mut findings = Vec::new();
    let end = tokio::time::Instant::now() + limit;
    for (host, answer) in asked {
        let finding = match tokio::time::timeout_at(end, answer).await {
            Ok(Ok(finding)) => finding,
            _ => format!("no answer within {limit:?}"),
        };
        findings.push(format!("{}: {finding}", printable(host)));
    }
    findings.join("; ")
}

/// On a thread of its own that nobody waits for: looking up a name cannot be bounded.
fn ask(host: &str, limit: Duration) -> tokio::sync::oneshot::Receiver<String> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let host = host.to_owned();
    let work = move || {
        let _ = sender.send(look(&host, limit));
    };
    let started = std::thread::Builder::new()
        .name("evenkeel-srvr".to_owned())
        .spawn(work);
    if let Err(error) = started {
        tracing::debug!(%error, "no thread to ask a server");
    }
    receiver
}

fn look(host: &str, limit: Duration) -> String {
    let end = Instant::now() + limit;
    let Some((name, port)) = address(host) else {
        return "not host:port".to_owned();
    };
    let addresses: Vec<SocketAddr> = match (name, port).to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(error) => return format!("the name cannot be resolved ({error})"),
    };
    let mut finding = "the name has no address".to_owned();
    for address in addresses {
        match srvr(address, end) {
            Ok(answer) => return judge(&answer),
            Err(error) => finding = broken(&error),
        }
    }
    finding
}

/// What is left until `end`; never zero, which would mean for ever.
fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
        .max(Duration::from_millis(1))
}

/// What came back.
struct Answer {
    bytes: Vec<u8>,
    /// It came only after a fifth byte: a TLS server waits for a whole record header before it turns anybody away.
    was_nudged: bool,
}

/// All that is answered before the other side closes or time is up.
fn srvr(address: SocketAddr, end: Instant) -> std::io::Result<Answer> {
    let mut socket = TcpStream::connect_timeout(&address, left(end))?;
    socket.set_write_timeout(Some(left(end)))?;
    // Not one byte more than a server reads: it would reset the connection over the rest, and its answer be lost.
    socket.write_all(b"srvr")?;
    match read(&mut socket, Instant::now() + left(end) / 2) {
        Err(error) if is_timeout(&error) => {
            socket.write_all(b"\n")?;
            let bytes = read(&mut socket, end)?;
            Ok(Answer {
                bytes,
                was_nudged: true,
            })
        }
        bytes => Ok(Answer {
            bytes: bytes?,
            was_nudged: false,
        }),
    }
}

/// A whole line is enough for a judgement, and not everybody closes after it.
fn read(socket: &mut TcpStream, end: Instant) -> std::io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut piece = [0; 1024];
    while answer.len() < ANSWER && !answer.contains(&b'\n') {
        socket.set_read_timeout(Some(left(end)))?;
        match socket.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if answer.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(answer)
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn broken(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "nobody listens there (connection refused)".to_owned(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "the connection was cut: something else listens there, or it is at its limit of connections".to_owned()
        }
        _ if is_timeout(error) => {
            "no answer in time: a silent server, a firewall, or something that is not ZooKeeper".to_owned()
        }
        _ => error.to_string(),
    }
}

/// What sort of thing answers like this.
fn judge(answer: &Answer) -> String {
    let tls = "TLS is spoken there, and this is a plain connection";
    match answer.bytes.as_slice() {
        [] if answer.was_nudged => {
            return format!("{tls}, it seems: it was closed at the fifth byte");
        }
        [] => {
            return "the connection was closed without a word: a server at its limit of connections (maxClientCnxns), or \
                    another protocol"
                .to_owned();
        }
        [0x15, 0x03, ..] => return tls.to_owned(),
        _ => {}
    }
    let text = String::from_utf8_lossy(&answer.bytes);
    let line = text.lines().next().unwrap_or_default();
    if let Some(version) = line.strip_prefix("Zookeeper version: ") {
        return of_version(version);
    }
    if line.contains("not currently serving requests") {
        return "a ZooKeeper server without a quorum: it serves nobody at present".to_owned();
    }
    if line.contains("not in the whitelist") {
        return "a ZooKeeper server that gives no session (srvr is not in its 4lw.commands.whitelist, so it says no more)"
            .to_owned();
    }
    format!(
        "something else listens there, it says {:?}",
        printable(line)
    )
}

fn of_version(text: &str) -> String {
    let version = text.split(['-', ',']).next().unwrap_or_default();
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    let number = (numbers.next().flatten(), numbers.next().flatten());
    let version = printable(version);
    match number {
        (Some(major), Some(minor)) if (major, minor) < (3, 4) => {
            format!("ZooKeeper {version}, but 3.4 is needed: older ones have no transactions")
        }
        _ => format!(
            "ZooKeeper {version}, which serves; it may be overloaded, or may refuse our address or version"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_address_is_understood() {
        assert_eq!(address("zk1"), Some(("zk1", 2181)));
        assert_eq!(address("zk1:"), Some(("zk1", 2181)));
        assert_eq!(address("10.0.0.1:99"), Some(("10.0.0.1", 99)));
        assert_eq!(address("[::1]:99"), Some(("::1", 99)));
        assert_eq!(address("[::1]"), Some(("::1", 2181)));
        for wrong in [
            "",
            ":1",
            "a:b",
            "a:0",
            "a:65536",
            "a b:1",
            "tcp://a:1",
            "[::1",
        ] {
            assert_eq!(address(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_answer_tells_what_listens() {
        for (answer, word) in [
            (&b""[..], "without a word"),
            (b"\x15\x03\x03\x00\x02\x02\x50", "TLS"),
            (
                b"HTTP/1.1 400 Bad Request\r\n",
                "something else listens there, it says \"HTTP/1.1 400",
            ),
            (
                b"Zookeeper version: 3.3.3-1073969, built on 02/23/2011\n",
                "ZooKeeper 3.3.3, but 3.4 is needed",
            ),
            (
                b"Zookeeper version: 3.10.0-x, built on\nLatency",
                "ZooKeeper 3.10.0, which serves",
            ),
            (
                b"This ZooKeeper instance is not currently serving requests\n",
                "without a quorum",
            ),
            (
                b"srvr is not executed because it is not in the whitelist.\n",
                "whitelist",
            ),
        ] {
            let finding = judge(&Answer {
                bytes: answer.to_vec(),
                was_nudged: false,
            });
            assert!(finding.contains(word), "{finding}");
        }
    }
}
