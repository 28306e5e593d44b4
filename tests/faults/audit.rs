//! What a server's transaction log says against the members of a group.

use std::collections::BTreeMap;

use crate::support::Change;
use crate::support::Txn;

struct Node {
    session: i64,
    version: i32,
    data: String,
}

#[derive(Default)]
struct Books {
    nodes: BTreeMap<String, Node>,
    /// The name that a session registers, sooner or later. One that never does is an operator's, who may do as he likes.
    names: BTreeMap<i64, String>,
    wrongs: Vec<String>,
}

/// What is wrong with what happened below a group's node, `/consumers/g` with its chroot:
///
/// - an owner node made by a session whose registration does not stand, or with another member's name (I8);
/// - an offset written by a session that does not have the partition's owner node, stamped (I2), or set back (I3);
/// - an owner node or a registration written or deleted by another member (I10).
pub fn wrongs(txns: &[Txn], group: &str) -> Vec<String> {
    let mut books = Books::default();
    for txn in txns {
        for change in &txn.changes {
            if let Change::Created { path, .. } = change
                && let Some(name) = path.strip_prefix(&format!("{group}/ids/"))
            {
                books.names.insert(txn.session, name.to_string());
            }
        }
    }
    for txn in txns {
        for change in &txn.changes {
            books.enter(txn, change, group);
        }
    }
    books.wrongs
}

impl Books {
    fn enter(&mut self, txn: &Txn, change: &Change, group: &str) {
        let (path, data) = match change {
            Change::Created { path, data, .. } | Change::Set { path, data, .. } => (path, data),
            Change::Deleted { path } => (path, &Vec::new()),
            Change::Closed => {
                self.nodes.retain(|_, node| node.session != txn.session);
                return;
            }
            Change::Opened { .. } | Change::Other(_) => return,
        };
        let Some(below) = path.strip_prefix(group) else {
            return;
        };
        let data = String::from_utf8_lossy(data).into_owned();
        let parts: Vec<&str> = below.trim_start_matches('/').split('/').collect();
        match (parts.as_slice(), change) {
            (["ids", _], Change::Created { .. }) => {}
            (["owners", _, _], Change::Created { .. }) => self.judge_owner(txn, path, &data),
            (["ids", _] | ["owners", _, _], _) => self.judge_hand(txn, path),
            // A node that is made to say there is no offset is no commit.
            (["offsets", _, _], Change::Created { .. }) if data == "-1" => {}
            (["offsets", topic, partition], _) => {
                let owner = format!("{group}/owners/{topic}/{partition}");
                self.judge_offset(txn, path, &data, &owner);
            }
            _ => return,
        }
        match change {
            Change::Created { is_ephemeral, .. } => {
                let session = if *is_ephemeral { txn.session } else { 0 };
                let node = Node {
                    session,
                    version: 0,
                    data,
                };
                if self.nodes.insert(path.clone(), node).is_some() {
                    self.wrong(txn, format!("{path} was made twice"));
                }
            }
            Change::Set { version, .. } => {
                if let Some(node) = self.nodes.get_mut(path) {
                    (node.version, node.data) = (*version, data);
                }
            }
            _ => {
                self.nodes.remove(path);
            }
        }
    }

    fn wrong(&mut self, txn: &Txn, what: String) {
        let (zxid, session) = (txn.zxid, txn.session);
        self.wrongs
            .push(format!("0x{zxid:x} of session 0x{session:x}: {what}"));
    }

    fn judge_owner(&mut self, txn: &Txn, path: &str, data: &str) {
        let name = self.names.get(&txn.session).cloned().unwrap_or_default();
        let is_registered = self
            .nodes
            .iter()
            .any(|(at, node)| node.session == txn.session && at.ends_with(&format!("/ids/{name}")));
        if !is_registered {
            self.wrong(txn, format!("{path} claimed without a registration"));
        }
        if !data.starts_with(&format!("{name}-")) {
            self.wrong(txn, format!("{path} claimed for {data}, not for {name}"));
        }
    }

    fn judge_hand(&mut self, txn: &Txn, path: &str) {
        let Some(node) = self.nodes.get(path) else {
            return;
        };
        let Some(name) = self.names.get(&txn.session) else {
            return;
        };
        // A member may remove what an earlier session of its own left behind.
        if node.session != txn.session && self.names.get(&node.session) != Some(name) {
            let whose = node.session;
            self.wrong(txn, format!("{path} of session 0x{whose:x} was touched"));
        }
    }

    fn judge_offset(&mut self, txn: &Txn, path: &str, data: &str, owner: &str) {
        let owner = self.nodes.get(owner);
        if !owner.is_some_and(|owner| owner.session == txn.session && owner.version == 1) {
            let whose = owner.map(|owner| (format!("0x{:x}", owner.session), owner.version));
            self.wrong(txn, format!("{path} set to {data}, owned by {whose:?}"));
        }
        let number = |text: &str| text.parse::<i64>().unwrap_or(i64::MIN);
        let before = self.nodes.get(path).map(|node| node.data.clone());
        if let Some(before) = before.filter(|before| number(before) > number(data)) {
            self.wrong(txn, format!("{path} set back from {before} to {data}"));
        }
    }
}

mod tests {
    use super::*;

    fn made(path: &str, data: &str, is_ephemeral: bool) -> Change {
        Change::Created {
            path: format!("/x/consumers/g/{path}"),
            data: data.into(),
            is_ephemeral,
        }
    }

    fn set(path: &str, data: &str, version: i32) -> Change {
        Change::Set {
            path: format!("/x/consumers/g/{path}"),
            data: data.into(),
            version,
        }
    }

    fn deleted(path: &str) -> Change {
        Change::Deleted {
            path: format!("/x/consumers/g/{path}"),
        }
    }

    /// Two members, of which the first claims, commits and releases, and then these.
    fn judge(more: Vec<(i64, Vec<Change>)>) -> Vec<String> {
        let owner = "owners/t/0";
        let mut log = vec![
            (1, vec![made("ids/a", "", true)]),
            (2, vec![made("ids/b", "", true)]),
            (1, vec![made(owner, "a-0", true), set(owner, "a-0", 1)]),
            (1, vec![made("offsets/t/0", "-1", false)]),
            (1, vec![set("offsets/t/0", "5", 1)]),
        ];
        log.extend(more);
        let txns: Vec<Txn> = log
            .into_iter()
            .zip(1..)
            .map(|((session, changes), zxid)| Txn {
                session,
                zxid,
                time_ms: zxid,
                changes,
            })
            .collect();
        wrongs(&txns, "/x/consumers/g")
    }

    #[test]
    fn an_orderly_hand_over_has_nothing_against_it() {
        let log = vec![
            (1, vec![set("offsets/t/0", "7", 2), deleted("owners/t/0")]),
            (
                2,
                vec![
                    made("owners/t/0", "b-0", true),
                    set("owners/t/0", "b-0", 1),
                    set("offsets/t/0", "7", 3),
                ],
            ),
            (2, vec![Change::Closed]),
            (1, vec![made("owners/t/0", "a-0", true)]),
            // Another session of the first takes away what that one left.
            (3, vec![deleted("ids/a")]),
            (3, vec![made("ids/a", "", true)]),
            (3, vec![deleted("owners/t/0")]),
        ];
        assert_eq!(judge(log), Vec::<String>::new());
    }

    #[test]
    fn each_breach_is_named() {
        let claim = || vec![made("owners/t/1", "b-0", true)];
        for (log, word) in [
            (
                vec![(2, vec![deleted("ids/b")]), (2, claim())],
                "without a registration",
            ),
            (
                vec![(2, vec![Change::Closed]), (2, claim())],
                "without a registration",
            ),
            (vec![(1, claim())], "not for a"),
            (vec![(2, vec![set("offsets/t/0", "6", 2)])], "owned by"),
            (
                vec![
                    (1, vec![deleted("owners/t/0")]),
                    (1, vec![set("offsets/t/0", "6", 2)]),
                ],
                "owned by None",
            ),
            (
                vec![
                    (1, vec![Change::Closed]),
                    (1, vec![set("offsets/t/0", "6", 2)]),
                ],
                "owned by None",
            ),
            (
                vec![
                    (1, vec![made("owners/t/1", "a-0", true)]),
                    (1, vec![made("offsets/t/1", "0", false)]),
                ],
                ", 0)",
            ),
            (
                vec![(1, vec![set("offsets/t/0", "4", 2)])],
                "set back from 5 to 4",
            ),
            (vec![(2, vec![deleted("owners/t/0")])], "was touched"),
            (vec![(2, vec![set("owners/t/0", "b-0", 2)])], "was touched"),
            (
                vec![(1, vec![made("owners/t/0", "a-0", true)])],
                "made twice",
            ),
        ] {
            let wrongs = judge(log);
            assert_eq!(wrongs.len(), 1, "{word}: {wrongs:?}");
            assert!(wrongs[0].contains(word), "{word}: {wrongs:?}");
        }
    }
}
