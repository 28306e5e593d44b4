//! A session that does nothing but ask whether the server is there: what a client that trusts its pings would go by.

use std::io::Read;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use super::time::now;
use super::wait::until_some;
use super::zookeeper::ZooKeeper;

/// The pause between two pings.
const PAUSE: Duration = Duration::from_millis(10);
/// The number of a ping, and what it asks for.
const PING: [i32; 2] = [-2, 11];

#[derive(Clone, Copy, Default)]
struct Answers {
    last: u64,
    slowest: u64,
}

/// A raw connection that pings a server from where that runs, until the server ends it or it is dropped.
pub struct Pinger {
    answers: Arc<Mutex<Answers>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pinger {
    /// Opens a session with this timeout and begins to ping.
    pub fn start(server: &ZooKeeper, timeout: Duration) -> Self {
        let address = server.connect_string();
        let open = || TcpStream::connect(&address);
        let what = format!("a session of pings with {address}");
        let mut socket = until_some(&what, Duration::from_secs(20), || {
            let socket = match server.namespace() {
                Some(namespace) => namespace.enter(open),
                None => open(),
            };
            let mut socket = socket.ok()?;
            socket.set_read_timeout(Some(timeout)).ok()?;
            greet(&mut socket, timeout)?;
            Some(socket)
        });
        let (answers, is_over) = (Arc::<Mutex<Answers>>::default(), Arc::default());
        let (heard, stop) = (Arc::clone(&answers), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || ask(&mut socket, &heard, &stop));
        Self {
            answers,
            is_over,
            thread: Some(thread),
        }
    }

    /// When the last ping was answered, by the clock of [`now`].
    pub fn last_answer(&self) -> u64 {
        self.answers.lock().unwrap().last
    }

    /// How long the slowest answer took since this was asked for the last time.
    pub fn slowest(&self) -> Duration {
        let mut answers = self.answers.lock().unwrap();
        Duration::from_nanos(std::mem::take(&mut answers.slowest))
    }
}

impl Drop for Pinger {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ask(socket: &mut TcpStream, answers: &Mutex<Answers>, is_over: &AtomicBool) {
    let ping: Vec<u8> = PING.iter().flat_map(|word| word.to_be_bytes()).collect();
    while !is_over.load(Ordering::Relaxed) {
        let sent = now();
        if send(socket, &ping).is_none() || receive(socket).is_none() {
            return;
        }
        let heard = now();
        let mut answers = answers.lock().unwrap();
        answers.last = heard;
        answers.slowest = answers.slowest.max(heard - sent);
        drop(answers);
        std::thread::sleep(PAUSE);
    }
}

/// Asks for a new session; none when the server gives none.
fn greet(socket: &mut TcpStream, timeout: Duration) -> Option<()> {
    let timeout = i32::try_from(timeout.as_millis()).expect("a timeout of seconds");
    let mut request = Vec::new();
    // The protocol, the last transaction seen, the timeout, no session yet, an empty password of 16 bytes, not read-only.
    request.extend(0_i32.to_be_bytes());
    request.extend(0_i64.to_be_bytes());
    request.extend(timeout.to_be_bytes());
    request.extend(0_i64.to_be_bytes());
    request.extend(16_i32.to_be_bytes());
    request.extend([0; 17]);
    send(socket, &request)?;
    let answer = receive(socket)?;
    let session = answer.get(8..16)?;
    session.iter().any(|byte| *byte != 0).then_some(())
}

fn send(socket: &mut TcpStream, body: &[u8]) -> Option<()> {
    let length = u32::try_from(body.len()).expect("a short request");
    let mut frame = length.to_be_bytes().to_vec();
    frame.extend(body);
    socket.write_all(&frame).ok()
}

fn receive(socket: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    socket.read_exact(&mut length).ok()?;
    let mut body = vec![
        0;
        usize::try_from(u32::from_be_bytes(length))
            .ok()?
            .min(1 << 20)
    ];
    socket.read_exact(&mut body).ok()?;
    Some(body)
}
