//! Answers of a server to the real client: whatever they are, a call ends with a word, and soon, and memory stays what it was.

use std::io::Read;
use std::io::Write;
use std::net::TcpListener;
use std::net::TcpStream;
use std::time::Duration;

use evenkeel::ErrorKind;
use evenkeel::registry::Connection;
use evenkeel::registry::Dialect;
use evenkeel::registry::Fault;
use evenkeel::registry::Registry;
use evenkeel::zk::ZkRegistry;
use evenkeel::zk::ZkSettings;

use crate::memory::peak_of;

const MOST: usize = 64 << 20;
/// Nothing takes half as long unless it never ends; the machine may be busy.
const LONG: Duration = Duration::from_secs(8);
/// After so long without a request the server hangs up too.
const PATIENCE: Duration = Duration::from_secs(2);
const PING: i32 = 11;
const CHILDREN: i32 = 12;
const LAST: i32 = -11;
/// The number that events have.
const EVENT: [u8; 4] = (-1_i32).to_be_bytes();

/// N1, N2, X8: the bytes are what a server says, one frame for one request; behind the last it hangs up.
pub fn wire(bytes: &[u8]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| serve(listener, bytes));
        let ((), peak) = peak_of(|| runtime.block_on(talk(place.to_string())));
        drop(runtime);
        // One that was never asked waits for nobody.
        drop(TcpStream::connect(place));
        assert!(peak < MOST, "{} KiB", peak >> 10);
    });
}

/// The frames at the beginning, and what is behind them.
fn frames(mut bytes: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let mut frames = Vec::new();
    while let Some(head) = bytes.first_chunk() {
        let length = usize::try_from(i32::from_be_bytes(*head)).unwrap_or(usize::MAX);
        let Some(frame) = bytes.get(..length.saturating_add(4)) else {
            break;
        };
        frames.push(frame);
        bytes = &bytes[frame.len()..];
    }
    (frames, bytes)
}

/// Serves one connection and no other; whoever comes again is refused.
fn serve(listener: TcpListener, bytes: &[u8]) {
    let (mut client, _) = listener.accept().unwrap();
    drop(listener);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (frames, rest) = frames(bytes);
    let mut frames = frames.into_iter();
    let mut is_first = true;
    while let Some(op) = request(&mut client, is_first) {
        is_first = false;
        let written = match op {
            PING => client.write_all(&pong()),
            LAST => return,
            CHILDREN if frames.as_slice().first().is_some_and(|it| boasts(it)) => return,
            _ => match frames.next() {
                Some(frame) => {
                    let mut said = client.write_all(frame);
                    // An event answers nobody.
                    if frame.get(4..8) == Some(&EVENT) {
                        said = said.and(client.write_all(frames.next().unwrap_or_default()));
                    }
                    said
                }
                None => {
                    let _ = client.write_all(rest);
                    return;
                }
            },
        };
        if written.is_err() {
            return;
        }
    }
}

/// X8, accepted: the client sets memory aside for as many children as an answer says there are, before it looks for them. A number of
/// two thousand million ends the process, so no such answer is given here.
fn boasts(frame: &[u8]) -> bool {
    let number = frame.get(20..24).and_then(|it| it.try_into().ok());
    let number = number.map_or(0, i32::from_be_bytes);
    usize::try_from(number).is_ok_and(|number| number > frame.len())
}

/// What is asked for next; 0 for the opening, which says nothing of the kind. Nothing when the client is gone.
fn request(client: &mut TcpStream, is_first: bool) -> Option<i32> {
    let mut head = [0; 4];
    client.read_exact(&mut head).ok()?;
    let mut body = vec![0; usize::try_from(i32::from_be_bytes(head)).ok()?];
    client.read_exact(&mut body).ok()?;
    if is_first {
        return Some(0);
    }
    let op = body.get(4..8)?.try_into().ok()?;
    Some(i32::from_be_bytes(op))
}

/// A ping's answer has the number that a ping has.
fn pong() -> Vec<u8> {
    let fields = [&16_i32.to_be_bytes()[..], &(-2_i32).to_be_bytes(), &[0; 12]];
    fields.concat()
}

async fn soon<T>(what: &str, call: impl Future<Output = T>) -> T {
    let answer = tokio::time::timeout(LONG, call).await;
    answer.unwrap_or_else(|_| panic!("{what} never ends"))
}

async fn talk(place: String) {
    let registry = ZkRegistry::new(ZkSettings {
        hosts: vec![place],
        chroot: None,
        session_timeout: Duration::from_secs(4),
        connection_timeout: Duration::from_millis(400),
    });
    match soon("an opening", registry.open(Dialect::V3_5)).await {
        Ok(connection) => {
            if ask(&*connection).await.is_ok() {
                soon("a close", connection.close()).await;
            }
        }
        Err(error) => {
            let shown = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Connection, "{shown}");
            assert!(!shown.chars().any(char::is_control), "{shown:?}");
            assert!(shown.len() < 4096, "{} bytes are told", shown.len());
        }
    }
}

/// Until the first that is not answered.
async fn ask(connection: &dyn Connection) -> Result<(), Fault> {
    let (_, _, watch) = soon("data", connection.data_and_watch("/a")).await?;
    soon("children", connection.children("/")).await?;
    soon("stat", connection.stat("/a")).await?;
    soon("set", connection.set("/a", b"2", None)).await?;
    drop(watch);
    Ok(())
}
