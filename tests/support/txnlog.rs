//! What a ZooKeeper server wrote into its transaction log: who changed what, in which order, at which millisecond.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::io::Seek;
use std::io::SeekFrom;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use super::zookeeper::ZooKeeper;

/// `ZKLG`, a version, a database's id.
const HEADER: u64 = 16;
/// A checksum and a length stand before an entry, a mark behind it.
const BEFORE: usize = 12;
const MARK: u8 = 0x42;
/// So much is read at a time.
const PART: u64 = 64 << 10;

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

/// A reader that remembers how far it has read.
pub struct TxnLog {
    folder: PathBuf,
    file: Option<PathBuf>,
    offset: u64,
}

impl TxnLog {
    /// The log of a server, from its beginning.
    pub fn of(server: &ZooKeeper) -> Self {
        Self::in_folder(&server.log_folder())
    }

    /// The log that lies in this folder, whoever wrote it.
    pub fn in_folder(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            file: None,
            offset: HEADER,
        }
    }

    /// What was written since the last call. An entry that is only half written is left for the next.
    pub fn more(&mut self) -> Vec<Txn> {
        let mut txns = Vec::new();
        loop {
            let next = self.next_file();
            if let Some(file) = &self.file {
                self.offset += read_on(file, self.offset, &mut txns);
            }
            // A file that is followed by another one is written no more: it was looked at after the other was there.
            let Some(next) = next else {
                return txns;
            };
            (self.file, self.offset) = (Some(next), HEADER);
        }
    }

    /// Reads on until something turns up that is looked for, and gives all that was read.
    ///
    /// # Panics
    ///
    /// Past the limit, with what was awaited.
    #[track_caller]
    pub fn await_txn(
        &mut self,
        what: &str,
        limit: Duration,
        is_it: impl Fn(&Txn) -> bool,
    ) -> Vec<Txn> {
        let start = Instant::now();
        let mut all = Vec::new();
        loop {
            let more = self.more();
            let is_there = more.iter().any(&is_it);
            all.extend(more);
            if is_there {
                return all;
            }
            assert!(
                start.elapsed() < limit,
                "waited {limit:?} in vain for the transaction log to tell: {what}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The file after the present one. Files are called `log.` and the first transaction in hexadecimal digits.
    fn next_file(&self) -> Option<PathBuf> {
        let files = std::fs::read_dir(&self.folder).into_iter().flatten();
        let files: BTreeMap<u64, PathBuf> = files
            .filter_map(|file| {
                let path = file.ok()?.path();
                Some((first_of(&path)?, path))
            })
            .collect();
        let present = self.file.as_deref().and_then(first_of);
        let mut later = files
            .into_iter()
            .filter(|(first, _)| present.is_none_or(|present| *first > present));
        later.next().map(|(_, path)| path)
    }
}

fn first_of(path: &Path) -> Option<u64> {
    let digits = path.file_name()?.to_str()?.strip_prefix("log.")?;
    u64::from_str_radix(digits, 16).ok()
}

/// Takes all whole entries from this place on and says how many bytes they were. A file may be made much larger than what is in it, so it
/// is read in parts.
fn read_on(path: &Path, offset: u64, into: &mut Vec<Txn>) -> u64 {
    let mut file = File::open(path).expect("the log can be read");
    let (mut taken, mut part) = (0, PART);
    loop {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(offset + taken))
            .expect("a log file");
        file.by_ref()
            .take(part)
            .read_to_end(&mut bytes)
            .expect("the log can be read");
        let more = entries(&bytes, into);
        taken += more as u64;
        // What begins here may be longer than the part.
        let is_longer = wanted(&bytes[more..]) > bytes.len() - more && bytes.len() as u64 == part;
        if more == 0 && !is_longer {
            return taken;
        }
        part = if more == 0 { part * 2 } else { PART };
    }
}

/// How long the entry is that begins here, as far as can be seen.
fn wanted(bytes: &[u8]) -> usize {
    let mut head = Fields(bytes.get(8..).unwrap_or_default());
    let length = head.int().and_then(|length| usize::try_from(length).ok());
    length.map_or(0, |length| BEFORE + length + 1)
}

/// Takes whole entries from the front and says how many bytes they were. Behind the last there are zeros: files are made larger in advance.
fn entries(bytes: &[u8], into: &mut Vec<Txn>) -> usize {
    let mut taken = 0;
    while let Some((txn, length)) = entry(&bytes[taken..]) {
        into.push(txn);
        taken += length;
    }
    taken
}

fn entry(bytes: &[u8]) -> Option<(Txn, usize)> {
    let mut head = Fields(bytes);
    let (sum, length) = (head.long()?, usize::try_from(head.int()?).ok()?);
    let end = BEFORE + length;
    let body = bytes.get(BEFORE..end)?;
    if length == 0 || *bytes.get(end)? != MARK || i64::from(adler(body)) != sum {
        return None;
    }
    let txn = decode(body).expect("an entry with a right sum has all its fields");
    Some((txn, end + 1))
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
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn int(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    /// A length of -1 says that there is nothing, which is not told from an empty one here.
    pub(super) fn buffer(&mut self) -> Option<Vec<u8>> {
        let length = usize::try_from(self.int()?).unwrap_or(0);
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken.to_vec())
    }

    pub(super) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.buffer()?).ok()
    }
}

/// Adler-32, the sum of an entry.
fn adler(bytes: &[u8]) -> u32 {
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
