//! The threads of a connection: one reads and one writes for either way. They end with it, at the latest with the proxy.

use std::collections::VecDeque;
use std::io::Read;
use std::io::Write;
use std::net::Shutdown;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::SyncSender;
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use std::time::Instant;

use rustix::net::sockopt::set_socket_linger;

use super::frames::Frames;
use super::frames::Piece;
use super::state::End;
use super::state::FOREVER;
use super::state::Item;
use super::state::Link;
use super::state::Shared;
use super::state::TO_CLIENT;
use super::state::TO_SERVER;
use super::state::Way;

/// So many frames of one way wait at a time; then nothing more is read.
const QUEUE: usize = 4096;

fn reject(client: &TcpStream) {
    let _ = set_socket_linger(client, Some(Duration::ZERO));
}

pub(super) fn accept(shared: &Arc<Shared>, client: TcpStream) {
    let mut state = shared.state();
    let target = state.target;
    if state
        .refuse_until
        .is_some_and(|until| Instant::now() < until)
    {
        state.counts.refused += 1;
        return reject(&client);
    }
    drop(state);
    let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else {
        return reject(&client);
    };
    for socket in [&client, &server] {
        socket.set_nodelay(true).expect("a socket of ours");
    }
    let (client, server) = (Arc::new(client), Arc::new(server));
    let (to_server, for_server) = sync_channel(QUEUE);
    let (to_client, for_client) = sync_channel(QUEUE);
    let is_broken = Arc::new(AtomicBool::new(false));
    let mut state = shared.state();
    let id = state.next;
    state.next += 1;
    state.counts.connections += 1;
    let link = Link {
        client: Arc::clone(&client),
        server: Arc::clone(&server),
        to_client: Some(to_client.clone()),
        session: 0,
        asked: VecDeque::new(),
        is_broken: Arc::clone(&is_broken),
        readers: 2,
    };
    state.links.insert(id, link);
    drop(state);
    let ways = [
        (TO_SERVER, &client, to_server, &server, for_server),
        (TO_CLIENT, &server, to_client, &client, for_client),
    ];
    for (way, from, sender, to, receiver) in ways {
        let (shared, socket) = (Arc::clone(shared), Arc::clone(from));
        let (sharing, target) = (Arc::clone(&shared), Arc::clone(to));
        let broken = Arc::clone(&is_broken);
        std::thread::spawn(move || read_on(&shared, id, way, &socket, &sender));
        std::thread::spawn(move || write_on(&sharing, (id, way), &target, &receiver, &broken));
    }
}

fn read_on(shared: &Shared, id: u64, way: usize, socket: &TcpStream, out: &SyncSender<Item>) {
    let (mut frames, mut part, mut is_first) = (Frames::default(), [0; 16 << 10], true);
    let mut socket: &TcpStream = socket;
    'reading: while let Ok(count @ 1..) = socket.read(&mut part) {
        frames.push(&part[..count]);
        while let Some(piece) = frames.take() {
            let mut state = shared.state();
            let item = match piece {
                Piece::Foreign(bytes) => Some(state.item(way, bytes, None)),
                Piece::Frame(frame) if way == TO_SERVER => state.on_request(id, frame, is_first),
                Piece::Frame(frame) => state.on_answer(id, frame, is_first),
            };
            drop(state);
            is_first = false;
            // The writer ends first only when the connection is broken.
            if item.is_some_and(|item| out.send(item).is_err()) {
                break 'reading;
            }
        }
    }
    let mut state = shared.state();
    let rest = state.item(way, frames.rest(), None);
    let _ = out.try_send(rest);
    if let Some(link) = state.links.get_mut(&id) {
        link.readers -= 1;
        if way == TO_CLIENT {
            link.to_client = None;
        }
        if link.readers == 0 {
            state.links.remove(&id);
        }
    }
    drop(state);
    shared.moved.notify_all();
}

fn write_on(
    shared: &Shared,
    (id, way): (u64, usize),
    socket: &TcpStream,
    items: &Receiver<Item>,
    is_broken: &AtomicBool,
) {
    while let Ok(item) = items.recv() {
        let Some(way) = shared.await_way(way, &item, is_broken) else {
            return;
        };
        if write(socket, &item.bytes, way).is_err() {
            return;
        }
        let mut state = shared.state();
        if let Some(exchange) = item.exchange {
            state.exchanges[exchange].answered = Some(Instant::now());
        }
        if item.is_last {
            state.end(id, End::Cut);
        }
    }
    // The other side ended in order, and so does this.
    if !is_broken.load(Ordering::SeqCst) {
        let _ = socket.shutdown(Shutdown::Write);
    }
}

impl Shared {
    /// Waits until the time has come and the way is open. `None` when the connection is broken.
    fn await_way(&self, way: usize, item: &Item, is_broken: &AtomicBool) -> Option<Way> {
        let mut state = self.state();
        let mut is_withheld = false;
        loop {
            let now = Instant::now();
            if is_broken.load(Ordering::SeqCst) || state.is_over {
                return None;
            }
            let wait = if state.ways[way].is_black {
                state.counts.withheld += usize::from(!is_withheld);
                is_withheld = true;
                FOREVER
            } else if now < item.due {
                item.due - now
            } else {
                break;
            };
            let waited = self.moved.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let way = state.ways[way];
        state.counts.pieced += usize::from(way.piece(item.bytes.len()) < item.bytes.len());
        Some(way)
    }
}

impl Way {
    /// How many of so many bytes go at a time.
    fn piece(self, all: usize) -> usize {
        match self.bytes_a_second {
            _ if self.is_split => 1,
            Some(rate) => (rate / 50).max(1),
            None => all.max(1),
        }
    }
}

fn write(mut socket: &TcpStream, bytes: &[u8], way: Way) -> std::io::Result<()> {
    for piece in bytes.chunks(way.piece(bytes.len())) {
        socket.write_all(piece)?;
        if let Some(rate) = way.bytes_a_second {
            std::thread::sleep(Duration::from_secs_f64(piece.len() as f64 / rate as f64));
        }
    }
    Ok(())
}
