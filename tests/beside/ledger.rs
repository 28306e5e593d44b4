//! What was owned and committed, by the server's transaction log, held against what the members delivered.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::support::Change;
use crate::support::Finished;
use crate::support::Sent;
use crate::support::Txn;

/// Topic and partition.
pub type Place = (String, i32);

/// How the owner node of a partition went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was deleted.
    Deleted,
    /// It went with its session: a death, or how a JVM member leaves.
    Closed,
}

/// One ownership of a partition.
#[derive(Clone, Debug)]
pub struct Window {
    /// The member, without the number of its stream.
    pub member: String,
    /// The offset node when it began; 0 when there was none.
    pub from: i64,
    /// The offset node when it ended.
    pub to: i64,
    /// How it ended.
    pub end: End,
}

/// The ownerships of a group by partition, in order, out of the transaction log.
///
/// # Panics
///
/// When one has not ended: everybody must have left.
pub fn windows(txns: &[Txn], group: &str) -> BTreeMap<Place, Vec<Window>> {
    let mut history = History::default();
    for txn in txns {
        for change in &txn.changes {
            history.take(txn.session, change, group);
        }
    }
    assert!(
        history.open.is_empty(),
        "still owned: {:?}",
        history.open.keys()
    );
    history.windows
}

#[derive(Default)]
struct History {
    offsets: BTreeMap<Place, i64>,
    open: BTreeMap<Place, (i64, Window)>,
    windows: BTreeMap<Place, Vec<Window>>,
}

impl History {
    fn take(&mut self, session: i64, change: &Change, group: &str) {
        match change {
            Change::Created { path, data, .. } | Change::Set { path, data, .. } => {
                let text = String::from_utf8(data.clone()).expect("a text");
                if let Some(place) = place(path, group, "offsets") {
                    // -1 stands for none (L-4).
                    match text.parse().expect("an offset is a number") {
                        -1 => self.offsets.remove(&place),
                        offset => self.offsets.insert(place, offset),
                    };
                } else if let Some(place) = place(path, group, "owners")
                    && matches!(change, Change::Created { .. })
                {
                    self.open(place, session, &text);
                }
            }
            Change::Deleted { path } => {
                if let Some(place) = place(path, group, "owners") {
                    self.close(&place, End::Deleted);
                }
            }
            Change::Closed => {
                let gone = self.open.iter().filter(|(_, (of, _))| *of == session);
                let gone: Vec<Place> = gone.map(|(place, _)| place.clone()).collect();
                for place in gone {
                    self.close(&place, End::Closed);
                }
            }
            Change::Opened { .. } | Change::Other(_) => {}
        }
    }

    fn offset(&self, place: &Place) -> i64 {
        self.offsets.get(place).copied().unwrap_or(0)
    }

    fn open(&mut self, place: Place, session: i64, text: &str) {
        let member = text
            .rsplit_once('-')
            .expect("an owner text ends with the stream's number");
        let from = self.offset(&place);
        let window = Window {
            member: member.0.to_owned(),
            from,
            to: from,
            end: End::Closed,
        };
        let what = format!("{place:?} of {window:?}");
        let before = self.open.insert(place, (session, window));
        assert!(before.is_none(), "{what} was owned by {before:?}");
    }

    fn close(&mut self, place: &Place, end: End) {
        let (_, mut window) = self.open.remove(place).expect("it was owned");
        (window.to, window.end) = (self.offset(place), end);
        self.windows.entry(place.clone()).or_default().push(window);
    }
}

/// The partition of a path `/consumers/GROUP/KIND/TOPIC/PARTITION`.
fn place(path: &str, group: &str, kind: &str) -> Option<Place> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["", "consumers", of, what, topic, partition] if of == group && what == kind => {
            Some((topic.to_owned(), partition.parse().ok()?))
        }
        _ => None,
    }
}

/// What is known of a member at the end.
#[derive(Clone, Debug)]
pub struct Account {
    /// It is a JVM's.
    pub is_jvm: bool,
    /// It was killed.
    pub was_killed: bool,
    /// What it delivered, in the order of each partition.
    pub delivered: Vec<Finished>,
}

/// How it all came out.
#[derive(Debug, Default)]
pub struct Balance {
    /// Messages the broker took.
    pub sent: usize,
    /// Deliveries by members of ours and by JVM members, by partition.
    pub ours: BTreeMap<Place, usize>,
    /// The same by JVM members.
    pub jvms: BTreeMap<Place, usize>,
    /// Delivered again since a member was killed.
    pub after_death: usize,
    /// Delivered by a JVM member after it had committed and deleted its owner node in a rebalance: what its iterator had in hand.
    pub late_by_jvm: usize,
}

impl Balance {
    /// # Panics
    ///
    /// When somebody did not deliver this many of every partition.
    pub fn assert_both_finished(&self, least: usize) {
        for (who, by) in [("ours", &self.ours), ("the JVM", &self.jvms)] {
            for (place, count) in by {
                assert!(*count >= least, "{who} delivered only {count} of {place:?}");
            }
        }
        assert_eq!(self.ours.len(), self.jvms.len());
    }
}

/// Checks everything, and gives the balance.
///
/// # Panics
///
/// When a message was lost or altered, when an ownership did not begin where the one before had committed, or when a member delivered
/// anything but what lay between the offset it found and the offset it left, in order. Past that a killed member may have gone, and a JVM
/// that gave up a partition in a rebalance.
pub fn check(
    windows: &BTreeMap<Place, Vec<Window>>,
    accounts: &BTreeMap<String, Account>,
    sent: &BTreeMap<Place, Vec<Sent>>,
) -> Balance {
    let mut balance = Balance {
        sent: sent.values().map(Vec::len).sum(),
        ..Balance::default()
    };
    for (place, sent) in sent {
        let windows = windows.get(place).map_or(&[][..], Vec::as_slice);
        check_chain(place, windows, sent);
        check_texts(place, accounts, sent);
        for (name, account) in accounts {
            let of: Vec<&Window> = windows
                .iter()
                .filter(|window| window.member == *name)
                .collect();
            let offsets: Vec<i64> = account
                .delivered
                .iter()
                .filter(|message| is_at(message, place))
                .map(|message| message.offset)
                .collect();
            let by = if account.is_jvm {
                &mut balance.jvms
            } else {
                &mut balance.ours
            };
            *by.entry(place.clone()).or_default() += offsets.len();
            let mut walk = Walk {
                offsets: &offsets,
                at: 0,
            };
            for (number, window) in of.iter().enumerate() {
                if let Err(why) = walk.through(window) {
                    panic!(
                        "{name} on {place:?}, {window:?}: {why}; all of the partition: {windows:#?}"
                    );
                }
                let later = &of[number + 1..];
                if account.was_killed && later.is_empty() {
                    balance.after_death += walk.run(window.to, i64::MAX);
                } else if account.is_jvm && window.end == End::Deleted {
                    balance.late_by_jvm += walk.late(window, later, account.was_killed);
                }
            }
            assert!(
                walk.at == offsets.len(),
                "{name} delivered of {place:?} out of turn from {:?} on (after {:?}): {of:#?}",
                &offsets[walk.at..offsets.len().min(walk.at + 5)],
                &offsets[walk.at.saturating_sub(5)..walk.at],
            );
        }
    }
    balance
}

fn is_at(message: &Finished, place: &Place) -> bool {
    (message.topic.as_str(), message.partition) == (place.0.as_str(), place.1)
}

/// Each owner found what the one before it had left, and the last left nothing.
fn check_chain(place: &Place, windows: &[Window], sent: &[Sent]) {
    let mut expected = 0;
    for window in windows {
        assert_eq!(
            window.from, expected,
            "{place:?}: {window:?} in {windows:#?}"
        );
        assert!(window.to >= window.from, "{place:?}: {window:?} goes back");
        expected = window.to;
    }
    let all = i64::try_from(sent.len()).expect("a count");
    assert_eq!(expected, all, "{place:?} is not committed to its end");
}

/// Everything sent was delivered by somebody, and as it was sent.
fn check_texts(place: &Place, accounts: &BTreeMap<String, Account>, sent: &[Sent]) {
    let mut delivered = BTreeSet::new();
    for (name, account) in accounts {
        for message in account
            .delivered
            .iter()
            .filter(|message| is_at(message, place))
        {
            let number = usize::try_from(message.offset).expect("an offset");
            let text = sent.get(number).map(|sent| sent.value.as_str());
            assert_eq!(Some(message.value.as_str()), text, "{name} on {place:?}");
            delivered.insert(message.offset);
        }
    }
    let lost: Vec<&Sent> = sent
        .iter()
        .filter(|sent| !delivered.contains(&sent.offset))
        .collect();
    assert!(
        lost.is_empty(),
        "{} messages of {place:?} were lost, the first being {:?}",
        lost.len(),
        lost[0]
    );
}

/// A walk along the offsets that one member delivered of one partition.
struct Walk<'a> {
    offsets: &'a [i64],
    at: usize,
}

impl Walk<'_> {
    /// Everything from where the ownership began to where it ended.
    fn through(&mut self, window: &Window) -> Result<(), String> {
        let length = self.run(window.from, window.to);
        if i64::try_from(length).expect("a count") == window.to - window.from {
            return Ok(());
        }
        let found = &self.offsets[self.at..self.offsets.len().min(self.at + 5)];
        Err(format!("delivered {length} of it, then {found:?}"))
    }

    /// Takes what follows on each other, up to a limit that does not count.
    fn run(&mut self, from: i64, to: i64) -> usize {
        let length = self.ahead(from, to);
        self.at += length;
        length
    }

    fn ahead(&self, from: i64, to: i64) -> usize {
        let run = self.offsets[self.at..].iter().zip(from..to);
        run.take_while(|(offset, expected)| **offset == *expected)
            .count()
    }

    /// What a JVM delivered past the offset it left; its next ownership of the partition tells it from that.
    /// In the last ownership of one that was killed it delivered something even if nothing was committed.
    fn late(&mut self, window: &Window, later: &[&Window], was_killed: bool) -> usize {
        let last = later.last().filter(|_| was_killed);
        let next = later.iter().find(|later| later.to > later.from).or(last);
        let length = match next {
            Some(next) if next.from == window.to => {
                let run = self.ahead(window.to, i64::MAX);
                let is_again = self.offsets.get(self.at + run) == Some(&window.to);
                if is_again { run } else { 0 }
            }
            Some(next) => self.ahead(window.to, next.from),
            None => self.ahead(window.to, i64::MAX),
        };
        self.at += length;
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place_t() -> Place {
        ("t".to_owned(), 0)
    }

    fn window(member: &str, from: i64, to: i64, end: End) -> Window {
        Window {
            member: member.to_owned(),
            from,
            to,
            end,
        }
    }

    fn account(is_jvm: bool, was_killed: bool, offsets: &[i64]) -> Account {
        let delivered = offsets.iter().map(|offset| Finished {
            topic: "t".to_owned(),
            partition: 0,
            offset: *offset,
            value: offset.to_string(),
        });
        Account {
            is_jvm,
            was_killed,
            delivered: delivered.collect(),
        }
    }

    fn judge(windows: &[Window], accounts: &[(&str, Account)]) -> Result<Balance, String> {
        let sent = (0..6).map(|offset| Sent {
            partition: 0,
            offset,
            value: offset.to_string(),
            at: 0,
        });
        let sent = BTreeMap::from([(place_t(), sent.collect())]);
        let windows = BTreeMap::from([(place_t(), windows.to_vec())]);
        let accounts = accounts.iter().cloned();
        let accounts = accounts.map(|(name, of)| (name.to_owned(), of)).collect();
        let quiet = std::panic::AssertUnwindSafe(|| check(&windows, &accounts, &sent));
        std::panic::catch_unwind(quiet).map_err(|why| {
            let why = why.downcast_ref::<String>();
            why.cloned().unwrap_or_default()
        })
    }

    #[test]
    fn the_ledger_accepts_what_is_right_and_counts_what_is_excused() {
        let windows = [
            window("j", 0, 2, End::Deleted),
            window("o", 2, 4, End::Closed),
            window("j", 4, 6, End::Closed),
        ];
        let fine = [
            ("j", account(true, false, &[0, 1, 2, 4, 5])),
            ("o", account(false, true, &[2, 3, 4])),
        ];
        let balance = judge(&windows, &fine).unwrap();
        assert_eq!((balance.late_by_jvm, balance.after_death), (1, 1));
        let windows = [
            window("j", 0, 2, End::Deleted),
            window("j", 2, 2, End::Closed),
            window("o", 2, 6, End::Deleted),
        ];
        let fine = [
            ("j", account(true, true, &[0, 1, 2, 3])),
            ("o", account(false, false, &[2, 3, 4, 5])),
        ];
        let balance = judge(&windows, &fine).unwrap();
        assert_eq!((balance.late_by_jvm, balance.after_death), (0, 2));
    }

    #[test]
    fn the_ledger_refuses_loss_doubles_wrong_starts_and_commits_that_go_back() {
        let windows = [
            window("j", 0, 2, End::Closed),
            window("o", 2, 6, End::Deleted),
        ];
        let jvm = |offsets: &[i64]| ("j", account(true, false, offsets));
        let ours = |offsets: &[i64]| ("o", account(false, false, offsets));
        assert!(judge(&windows, &[jvm(&[0, 1]), ours(&[2, 3, 4, 5])]).is_ok());
        for (why, accounts) in [
            ("lost", [jvm(&[0, 1]), ours(&[2, 3, 5])]),
            ("out of turn", [jvm(&[0, 1, 2]), ours(&[2, 3, 4, 5])]),
            ("delivered 0 of it", [jvm(&[0, 1]), ours(&[1, 2, 3, 4, 5])]),
            ("delivered 2 of it", [jvm(&[0, 1]), ours(&[2, 3, 5, 4])]),
            ("out of turn", [jvm(&[0, 1, 4, 5]), ours(&[2, 3])]),
        ] {
            let judged = judge(&windows, &accounts).unwrap_err();
            assert!(judged.contains(why), "{judged}");
        }
        let back = [
            window("j", 0, 3, End::Closed),
            window("o", 2, 6, End::Deleted),
        ];
        let judged = judge(&back, &[jvm(&[0, 1, 2]), ours(&[2, 3, 4, 5])]).unwrap_err();
        assert!(judged.contains("in ["), "{judged}");
    }
}
