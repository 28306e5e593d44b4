//! What goes over a connection with a ZooKeeper server, as far as a fault needs to know it: which request about which node, and the answer.
//!
//! Everything is big endian. A frame is a length of four bytes and so many bytes. The first frame each way opens the session; after it a
//! request begins with its number (xid) and kind, an answer with the number of its request, a zxid and an error.

use super::super::txn::Fields;

/// The number of a watch event, which answers no request.
pub const EVENT: i32 = -1;

/// A longer frame is none: servers take one MiB. The four letters of a word like `srvr` make a larger number.
const LONGEST: usize = 64 << 20;

/// What is asked for, by its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// The opening of a session or of another connection of it, which has no number.
    Connect,
    Create,
    Delete,
    Exists,
    GetData,
    SetData,
    GetChildren,
    Sync,
    Ping,
    GetChildren2,
    Check,
    Multi,
    Create2,
    RemoveWatches,
    SetWatches,
    CloseSession,
    /// Any other, by its number.
    Other(i32),
}

impl Op {
    fn of(number: i32) -> Self {
        match number {
            1 => Self::Create,
            2 => Self::Delete,
            3 => Self::Exists,
            4 => Self::GetData,
            5 => Self::SetData,
            8 => Self::GetChildren,
            9 => Self::Sync,
            11 => Self::Ping,
            12 => Self::GetChildren2,
            13 => Self::Check,
            14 => Self::Multi,
            15 => Self::Create2,
            18 => Self::RemoveWatches,
            101 => Self::SetWatches,
            -11 => Self::CloseSession,
            other => Self::Other(other),
        }
    }
}

/// A part of a transaction, or the whole of any other request about one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is asked for.
    pub op: Op,
    /// The node, with the chroot.
    pub path: String,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number; 0 for the opening.
    pub xid: i32,
    /// What is asked for.
    pub op: Op,
    /// About which nodes: one, those of a transaction in their order, or none.
    pub steps: Vec<Step>,
}

impl Request {
    /// The first of a connection.
    pub fn opening() -> Self {
        Self {
            xid: 0,
            op: Op::Connect,
            steps: Vec::new(),
        }
    }

    /// Any later one. `None` when it breaks off.
    pub fn read(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let (xid, op) = (fields.int()?, Op::of(fields.int()?));
        let steps = match op {
            Op::Multi => steps(&mut fields)?,
            Op::Ping | Op::SetWatches | Op::CloseSession | Op::Other(_) => Vec::new(),
            op => vec![Step {
                op,
                path: fields.text()?,
            }],
        };
        Some(Self { xid, op, steps })
    }
}

/// A header before each part says what it is, and the last that there is none.
fn steps(fields: &mut Fields<'_>) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    loop {
        let (kind, is_last, _error) = (fields.int()?, fields.byte()? != 0, fields.int()?);
        if is_last {
            return Some(steps);
        }
        let (op, path) = (Op::of(kind), fields.text()?);
        match op {
            Op::Create | Op::Create2 => {
                fields.buffer()?;
                for _ in 0..fields.int()? {
                    let (_rights, _scheme, _id) = (fields.int()?, fields.text()?, fields.text()?);
                }
                fields.int()?;
            }
            Op::SetData => {
                fields.buffer()?;
                fields.int()?;
            }
            Op::Delete | Op::Check => {
                fields.int()?;
            }
            Op::GetData | Op::GetChildren => {
                fields.byte()?;
            }
            _ => return None,
        }
        steps.push(Step { op, path });
    }
}

/// An answer, or a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The number of its request.
    pub xid: i32,
    /// The newest transaction the server knew.
    pub zxid: i64,
    /// 0 when all went well.
    pub error: i32,
}

impl Answer {
    /// Any but the first of a connection. `None` when it breaks off.
    pub fn read(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        Some(Self {
            xid: fields.int()?,
            zxid: fields.long()?,
            error: fields.int()?,
        })
    }
}

/// What a transaction was refused for, 0 when it was carried out. The answer's own header has no error then: each part has one, and that of
/// the first part which did not hold is the first.
pub fn refusal(body: &[u8]) -> Option<i32> {
    let mut fields = Fields(body.get(16..)?);
    loop {
        let (kind, is_last, _error) = (fields.int()?, fields.byte()? != 0, fields.int()?);
        if is_last || kind != -1 {
            return Some(0);
        }
        let error = fields.int()?;
        if error != 0 {
            return Some(error);
        }
    }
}

/// The first answer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// How long the session lives without a sign of life.
    pub timeout_ms: i32,
    /// The session; 0 when the one asked for is over.
    pub session: i64,
}

impl Welcome {
    /// `None` when it breaks off.
    pub fn read(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let _version = fields.int()?;
        Some(Self {
            timeout_ms: fields.int()?,
            session: fields.long()?,
        })
    }
}

/// A piece of a stream of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A frame with its length before it.
    Frame(Vec<u8>),
    /// What cannot be a frame, and all behind it.
    Foreign(Vec<u8>),
}

/// Cuts a stream of bytes into frames.
#[derive(Default)]
pub struct Frames {
    bytes: Vec<u8>,
    is_foreign: bool,
}

impl Frames {
    /// Takes what came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, if it is there.
    pub fn take(&mut self) -> Option<Piece> {
        let length = match self.bytes.first_chunk() {
            Some(head) => usize::try_from(i32::from_be_bytes(*head)).unwrap_or(usize::MAX),
            None => 0,
        };
        self.is_foreign |= length > LONGEST;
        if self.is_foreign && !self.bytes.is_empty() {
            return Some(Piece::Foreign(std::mem::take(&mut self.bytes)));
        }
        let end = 4 + length;
        (self.bytes.len() >= end).then(|| Piece::Frame(self.bytes.drain(..end).collect()))
    }

    /// What breaks off at the end of the stream.
    pub fn rest(self) -> Vec<u8> {
        self.bytes
    }
}

/// Which requests are meant.
#[derive(Clone, Debug)]
pub struct Matcher {
    ops: Vec<Op>,
    steps: Vec<(Vec<Op>, String)>,
}

impl Matcher {
    /// Those of one of these kinds; of any kind when none is named.
    pub fn of(ops: &[Op]) -> Self {
        Self {
            ops: ops.to_vec(),
            steps: Vec::new(),
        }
    }

    /// Of them those about a node whose path is like this. A `*` stands for anything, slashes too. Of a transaction one of the parts has to
    /// be about it.
    #[must_use]
    pub fn at(self, glob: &str) -> Self {
        self.with(&[], glob)
    }

    /// The same, where that part is of one of these kinds.
    #[must_use]
    pub fn with(mut self, ops: &[Op], glob: &str) -> Self {
        self.steps.push((ops.to_vec(), glob.to_string()));
        self
    }

    /// Whether this one is meant.
    pub fn matches(&self, request: &Request) -> bool {
        let is_among = |ops: &[Op], op| ops.is_empty() || ops.contains(&op);
        is_among(&self.ops, request.op)
            && self.steps.iter().all(|(ops, glob)| {
                let mut steps = request.steps.iter();
                steps.any(|step| is_among(ops, step.op) && is_like(&step.path, glob))
            })
    }
}

fn is_like(text: &str, glob: &str) -> bool {
    let Some((before, after)) = glob.split_once('*') else {
        return text == glob;
    };
    let Some(rest) = text.strip_prefix(before) else {
        return false;
    };
    let mut starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    starts.any(|at| is_like(&rest[at..], after))
}
