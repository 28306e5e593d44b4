//! Entries of ZooKeeper's transaction log, from their bytes.

#[cfg(feature = "testing")]
use evenkeel::testing::check;

/// A checksum and a length stand before an entry.
pub const BEFORE: usize = 12;
/// Stands behind an entry.
pub const MARK: u8 = 0x42;

/// One entry of the log. A transaction of many parts is one entry with many changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Txn {
    /// The session that asked for it.
    pub session: i64,
    /// Its place in the order of all changes.
    pub zxid: i64,
    /// Milliseconds since the epoch by the server's clock.
    pub time_ms: i64,
    /// What it changed; nothing for one that failed.
    pub changes: Vec<Change>,
}

/// One change of the tree or of the sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node was made.
    Created {
        /// Its path.
        path: String,
        /// Its text.
        data: Vec<u8>,
        /// Whether it goes with the session that made it.
        is_ephemeral: bool,
    },
    /// A node was deleted on request.
    Deleted {
        /// Its path.
        path: String,
    },
    /// A node was written.
    Set {
        /// Its path.
        path: String,
        /// Its text.
        data: Vec<u8>,
        /// Its version since.
        version: i32,
    },
    /// A session began.
    Opened {
        /// How long it lives without a sign of life.
        timeout_ms: i32,
    },
    /// A session ended, and its ephemeral nodes with it. The log names them only since 3.6, and not everywhere.
    Closed,
    /// Something else, by its number.
    Other(i32),
}

/// As the judge of runs wants it.
#[cfg(feature = "testing")]
pub fn judged(txn: Txn) -> check::Txn {
    check::Txn {
        zxid: txn.zxid,
        time_ms: txn.time_ms,
        session: txn.session,
        changes: txn.changes.into_iter().filter_map(as_judged).collect(),
    }
}

#[cfg(feature = "testing")]
fn as_judged(change: Change) -> Option<check::Change> {
    Some(match change {
        Change::Created {
            path,
            data,
            is_ephemeral,
        } => check::Change::Created {
            path,
            data,
            is_ephemeral,
        },
        Change::Deleted { path } => check::Change::Deleted { path },
        Change::Set {
            path,
            data,
            version,
        } => check::Change::Set {
            path,
            data,
            version,
        },
        Change::Opened { .. } => check::Change::Opened,
        Change::Closed => check::Change::Closed,
        Change::Other(_) => return None,
    })
}

/// How long the entry is that begins here, as far as can be seen.
pub fn wanted(bytes: &[u8]) -> usize {
    let mut head = Fields(bytes.get(8..).unwrap_or_default());
    let length = head.int().and_then(|length| usize::try_from(length).ok());
    length.map_or(0, |length| BEFORE + length + 1)
}

/// Takes whole entries from the front and says how many bytes they were. Behind the last there are zeros: files are made larger in advance.
///
/// # Errors
///
/// An entry whose sum is right and whose fields are not.
pub fn entries(bytes: &[u8], into: &mut Vec<Txn>) -> Result<usize, String> {
    let mut taken = 0;
    while let Some(body) = body(&bytes[taken..]) {
        let txn = decode(body);
        into.push(txn.ok_or("an entry of the transaction log lacks some of its fields")?);
        taken += BEFORE + body.len() + 1;
    }
    Ok(taken)
}

/// What is in the entry that begins here, if all of it is there.
fn body(bytes: &[u8]) -> Option<&[u8]> {
    let mut head = Fields(bytes);
    let (sum, length) = (head.long()?, usize::try_from(head.int()?).ok()?);
    let end = BEFORE + length;
    let body = bytes.get(BEFORE..end)?;
    let is_whole = length > 0 && *bytes.get(end)? == MARK && i64::from(adler(body)) == sum;
    is_whole.then_some(body)
}

fn decode(body: &[u8]) -> Option<Txn> {
    let mut fields = Fields(body);
    let session = fields.long()?;
    let _request = fields.int()?;
    let (zxid, time_ms, kind) = (fields.long()?, fields.long()?, fields.int()?);
    let mut changes = Vec::new();
    if kind == 14 {
        let mut has_failed = false;
        for _ in 0..fields.int()? {
            let (kind, data) = (fields.int()?, fields.buffer()?);
            has_failed |= kind == -1;
            changes.extend(change(kind, &mut Fields(&data))?);
        }
        // The parts before the one that failed stand there as if they had been done.
        if has_failed {
            changes.clear();
        }
    } else {
        changes.extend(change(kind, &mut fields)?);
    }
    Some(Txn {
        session,
        zxid,
        time_ms,
        changes,
    })
}

/// The numbers are those of `ZooDefs.OpCode`. A failure and a check change nothing.
fn change(kind: i32, fields: &mut Fields<'_>) -> Option<Option<Change>> {
    Some(Some(match kind {
        -1 | 13 => return Some(None),
        1 | 15 | 19 | 21 => {
            let (path, data) = (fields.text()?, fields.buffer()?);
            for _ in 0..fields.int()? {
                fields.int()?;
                fields.text()?;
                fields.text()?;
            }
            let is_ephemeral = matches!(kind, 1 | 15) && fields.byte()? != 0;
            Change::Created {
                path,
                data,
                is_ephemeral,
            }
        }
        2 | 20 => Change::Deleted {
            path: fields.text()?,
        },
        5 => Change::Set {
            path: fields.text()?,
            data: fields.buffer()?,
            version: fields.int()?,
        },
        -10 => Change::Opened {
            timeout_ms: fields.int()?,
        },
        -11 => Change::Closed,
        other => Change::Other(other),
    }))
}

/// What is left to read of a record, in the form that ZooKeeper gives to everything: big endian, a length before a text.
pub struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    pub fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn int(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub fn long(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    /// A length of -1 says that there is nothing, which is not told from an empty one here.
    pub fn buffer(&mut self) -> Option<Vec<u8>> {
        let length = usize::try_from(self.int()?).unwrap_or(0);
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken.to_vec())
    }

    pub fn text(&mut self) -> Option<String> {
        String::from_utf8(self.buffer()?).ok()
    }
}

/// Adler-32, the sum of an entry.
pub fn adler(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1_u32, 0_u32);
    // So many steps keep both below 2^32.
    for part in bytes.chunks(5552) {
        for byte in part {
            a += u32::from(*byte);
            b += a;
        }
        (a, b) = (a % 65_521, b % 65_521);
    }
    b << 16 | a
}
