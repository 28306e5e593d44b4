//! What transaction logs tell of a group: who was registered and who owned what, from when to when, and what was committed.

use std::collections::BTreeMap;

use super::txnlog::Change;
use super::txnlog::Txn;

const GROUP: &str = "/consumers/g/";

/// A node of the group that went with a session: a registration or an owner node.
#[derive(Clone, Debug)]
pub struct Window {
    /// Its path below the group.
    pub path: String,
    /// The session that made it.
    pub session: i64,
    /// The transaction that made it: the token of an owner node.
    pub token: i64,
    /// The transaction that ended it, and the server's millisecond of that.
    pub end: Option<(i64, i64)>,
}

impl Window {
    /// Whether it is an owner node.
    pub fn is_owner(&self) -> bool {
        self.path.starts_with("owners/")
    }

    /// The partition of an owner node.
    pub fn partition(&self) -> i32 {
        let number = self.path.rsplit('/').next();
        number
            .and_then(|number| number.parse().ok())
            .expect("an owner node")
    }
}

/// All of them, in order.
pub fn windows(txns: &[Txn]) -> Vec<Window> {
    let mut windows: Vec<Window> = Vec::new();
    for txn in txns {
        let end = Some((txn.zxid, txn.time_ms));
        for change in &txn.changes {
            let open = windows.iter_mut().filter(|window| window.end.is_none());
            match change {
                Change::Created {
                    path,
                    is_ephemeral: true,
                    ..
                } => {
                    let window = path.strip_prefix(GROUP).map(|path| Window {
                        path: path.to_owned(),
                        session: txn.session,
                        token: txn.zxid,
                        end: None,
                    });
                    windows.extend(window);
                }
                Change::Deleted { path } => open
                    .filter(|window| path.strip_prefix(GROUP) == Some(window.path.as_str()))
                    .for_each(|window| window.end = end),
                Change::Closed => open
                    .filter(|window| window.session == txn.session)
                    .for_each(|window| window.end = end),
                _ => {}
            }
        }
    }
    windows
}

/// The session in which a member is registered.
pub fn session_of(windows: &[Window], member: &str) -> Option<i64> {
    let is_it = |window: &&Window| window.end.is_none() && window.path == format!("ids/{member}");
    windows.iter().find(is_it).map(|window| window.session)
}

/// Registrations and owner nodes that were made or ended after a transaction: none where there was no rebalance.
pub fn changed_after(txns: &[Txn], zxid: i64) -> Vec<Window> {
    let is_after = |at: i64| at > zxid;
    let all = windows(txns).into_iter();
    all.filter(|window| is_after(window.token) || window.end.is_some_and(|(at, _)| is_after(at)))
        .collect()
}

/// The offsets that were written to the offset nodes, in order: the transaction, the partition, the offset.
pub fn commits(txns: &[Txn]) -> Vec<(i64, i32, i64)> {
    let mut commits = Vec::new();
    for txn in txns {
        for change in &txn.changes {
            if let Change::Created { path, data, .. } | Change::Set { path, data, .. } = change
                && let Some(place) = path.strip_prefix(&format!("{GROUP}offsets/t/"))
            {
                let offset = std::str::from_utf8(data)
                    .ok()
                    .and_then(|text| text.parse().ok());
                let partition = place.parse().expect("a partition");
                match offset.expect("an offset is a number") {
                    // It stands for none (L-4).
                    -1 => {}
                    offset => commits.push((txn.zxid, partition, offset)),
                }
            }
        }
    }
    commits
}

/// The offsets that stand there in the end.
pub fn offsets(txns: &[Txn]) -> BTreeMap<i32, i64> {
    let commits = commits(txns).into_iter();
    commits
        .map(|(_, partition, offset)| (partition, offset))
        .collect()
}
