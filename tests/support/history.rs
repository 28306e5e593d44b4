//! What happened to a group, from the server's transaction log.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;
use std::time::Instant;

use super::txnlog::Change;
use super::txnlog::Txn;
use super::txnlog::TxnLog;
use super::wait::LONG;
use super::zookeeper::ZooKeeper;

/// So long nothing may happen to a group for it to count as settled: a JVM member may give all up and begin anew.
const QUIET: Duration = Duration::from_secs(1);

/// All groups of a server, as the log has told them so far.
pub struct History {
    log: TxnLog,
    groups: BTreeMap<String, Group>,
}

/// The ephemeral nodes of one group, each with the session that made it.
#[derive(Default)]
struct Group {
    ids: BTreeMap<String, i64>,
    owners: BTreeMap<i32, (String, i64)>,
}

/// What a group went through from one event to the next rest.
#[derive(Clone, Debug, Default)]
pub struct Passage {
    /// When it began, by the server's clock.
    pub began_ms: i64,
    /// When the last owner node came to stand where it belongs.
    pub stood_ms: i64,
    /// Owner nodes made.
    pub made: usize,
    /// Owner nodes deleted, on request or with their session.
    pub deleted: usize,
}

impl Passage {
    /// How long it took.
    pub fn ms(&self) -> f64 {
        (self.stood_ms - self.began_ms) as f64
    }
}

/// With what a passage begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// A registration.
    Join,
    /// The first thing a leaving member lets go: an owner node, its registration, or all with its session.
    Leave,
    /// The end of a member's session.
    Death,
}

/// What one transaction meant to a group.
#[derive(Default)]
struct Meaning {
    joins: bool,
    leaves: bool,
    dies: bool,
    made: usize,
    deleted: usize,
}

impl History {
    /// From the beginning of the server.
    pub fn of(server: &ZooKeeper) -> Self {
        Self {
            log: TxnLog::of(server),
            groups: BTreeMap::new(),
        }
    }

    /// Follows the log until the group has this many members, every partition stands where the range rule puts it, and nothing has happened
    /// for a while; tells of what lay between the beginning and that.
    ///
    /// # Panics
    /// Past a long wait.
    pub fn follow(
        &mut self,
        group: &str,
        beginning: Option<Beginning>,
        members: usize,
        partitions: i32,
    ) -> Passage {
        let (mut passage, mut has_begun) = (Passage::default(), beginning.is_none());
        let (start, mut last) = (Instant::now(), Instant::now());
        loop {
            for txn in self.log.more() {
                let meaning = self.take(&txn, group);
                if !has_begun && meaning.is(beginning) {
                    (has_begun, passage.began_ms) = (true, txn.time_ms);
                }
                if has_begun && meaning.made + meaning.deleted > 0 {
                    passage.stood_ms = txn.time_ms;
                    passage.made += meaning.made;
                    passage.deleted += meaning.deleted;
                    last = Instant::now();
                }
            }
            let is_right = self
                .groups
                .get(group)
                .is_some_and(|group| group.ids.len() == members && group.is_right(partitions));
            if has_begun && is_right && last.elapsed() >= QUIET {
                return passage;
            }
            assert!(
                start.elapsed() < LONG,
                "{group} does not settle with {members} members: {:?}",
                self.groups
                    .get(group)
                    .map(|group| (&group.ids, &group.owners))
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The sessions of a group's members.
    pub fn sessions(&self, group: &str) -> BTreeSet<i64> {
        let group = self.groups.get(group).into_iter();
        group
            .flat_map(|group| group.ids.values().copied())
            .collect()
    }

    /// Takes up one transaction, and says what it meant to this group.
    fn take(&mut self, txn: &Txn, name: &str) -> Meaning {
        let mut meaning = Meaning::default();
        for change in &txn.changes {
            match change {
                Change::Created { path, data, .. } => {
                    if let Some((group, place)) = self.place(path) {
                        let is_it = group == name;
                        let group = self.groups.entry(group).or_default();
                        group.make(&place, data, txn.session);
                        meaning.joins |= is_it && matches!(place, Place::Id(_));
                        meaning.made += usize::from(is_it && matches!(place, Place::Owner(_)));
                    }
                }
                Change::Deleted { path } => {
                    if let Some((group, place)) = self.place(path) {
                        let is_it = group == name;
                        self.groups.entry(group).or_default().delete(&place);
                        meaning.leaves |= is_it;
                        meaning.deleted += usize::from(is_it && matches!(place, Place::Owner(_)));
                    }
                }
                Change::Closed => {
                    for (of, group) in &mut self.groups {
                        let (ids, owners) = group.close(txn.session);
                        if of == name {
                            meaning.dies |= ids > 0;
                            meaning.leaves |= ids + owners > 0;
                            meaning.deleted += owners;
                        }
                    }
                }
                Change::Set { .. } | Change::Opened { .. } | Change::Other(_) => {}
            }
        }
        meaning
    }

    fn place(&self, path: &str) -> Option<(String, Place)> {
        let parts: Vec<&str> = path.split('/').collect();
        match parts[..] {
            ["", "consumers", group, "ids", id] => Some((group.into(), Place::Id(id.into()))),
            ["", "consumers", group, "owners", _, partition] => {
                Some((group.into(), Place::Owner(partition.parse().ok()?)))
            }
            _ => None,
        }
    }
}

enum Place {
    Id(String),
    Owner(i32),
}

impl Meaning {
    fn is(&self, beginning: Option<Beginning>) -> bool {
        match beginning {
            None => false,
            Some(Beginning::Join) => self.joins,
            Some(Beginning::Leave) => self.leaves,
            Some(Beginning::Death) => self.dies,
        }
    }
}

impl Group {
    fn make(&mut self, place: &Place, data: &[u8], session: i64) {
        match place {
            Place::Id(id) => drop(self.ids.insert(id.clone(), session)),
            Place::Owner(partition) => {
                let text = String::from_utf8_lossy(data).into_owned();
                self.owners.insert(*partition, (text, session));
            }
        }
    }

    fn delete(&mut self, place: &Place) {
        match place {
            Place::Id(id) => drop(self.ids.remove(id)),
            Place::Owner(partition) => drop(self.owners.remove(partition)),
        }
    }

    /// How many registrations and owner nodes went with a session.
    fn close(&mut self, session: i64) -> (usize, usize) {
        let before = (self.ids.len(), self.owners.len());
        self.ids.retain(|_, of| *of != session);
        self.owners.retain(|_, (_, of)| *of != session);
        (before.0 - self.ids.len(), before.1 - self.owners.len())
    }

    /// Whether each partition stands where the range rule puts it, every member having one stream: in the order of their ids they get
    /// equal runs, the first ones one more.
    fn is_right(&self, partitions: i32) -> bool {
        let members = i32::try_from(self.ids.len()).expect("a count");
        if members == 0 || self.owners.len() != usize::try_from(partitions).expect("a count") {
            return false;
        }
        let (run, more) = (partitions / members, partitions % members);
        let mut streams: Vec<String> = self.ids.keys().map(|id| format!("{id}-0")).collect();
        streams.sort();
        let shares = (0_i32..).zip(&streams).flat_map(|(place, stream)| {
            let length = run + i32::from(place < more);
            std::iter::repeat_n(stream, usize::try_from(length).expect("a count"))
        });
        (0..).zip(shares).all(|(partition, stream)| {
            let owner = self.owners.get(&partition);
            owner.is_some_and(|(text, _)| text == stream)
        })
    }
}
