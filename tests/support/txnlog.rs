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

use super::txn::entries;
use super::txn::wanted;
use super::zookeeper::ZooKeeper;

pub use super::txn::Change;
pub use super::txn::Txn;

/// `ZKLG`, a version, a database's id.
const HEADER: u64 = 16;
/// So much is read at a time.
const PART: u64 = 64 << 10;

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
    ///
    /// # Panics
    ///
    /// As [`try_more`](Self::try_more) fails.
    #[track_caller]
    pub fn more(&mut self) -> Vec<Txn> {
        self.try_more().expect("a log that can be read")
    }

    /// The same of a log that anybody may have written.
    ///
    /// # Errors
    ///
    /// An entry whose sum is right and whose fields are not.
    pub fn try_more(&mut self) -> Result<Vec<Txn>, String> {
        let mut txns = Vec::new();
        loop {
            let next = self.next_file();
            if let Some(file) = &self.file {
                let read = read_on(file, self.offset, &mut txns);
                self.offset += read.map_err(|why| format!("{}: {why}", file.display()))?;
            }
            // A file that is followed by another one is written no more: it was looked at after the other was there.
            let Some(next) = next else {
                return Ok(txns);
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
fn read_on(path: &Path, offset: u64, into: &mut Vec<Txn>) -> Result<u64, String> {
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
        let more = entries(&bytes, into)?;
        taken += more as u64;
        // What begins here may be longer than the part.
        let is_longer = wanted(&bytes[more..]) > bytes.len() - more && bytes.len() as u64 == part;
        if more == 0 && !is_longer {
            return Ok(taken);
        }
        part = if more == 0 { part * 2 } else { PART };
    }
}
