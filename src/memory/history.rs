//! The ensemble's log as a judge of runs reads it.

use super::tree::{Act, Write};
use crate::check::{Change, Txn};

/// The writes as transactions; those that changed nothing are left out.
pub fn history(writes: &[Write]) -> Vec<Txn> {
    let mut txns: Vec<Txn> = Vec::new();
    for write in writes {
        let Some(change) = change(write) else {
            continue;
        };
        match txns.last_mut() {
            Some(last) if last.zxid == write.zxid => last.changes.push(change),
            _ => txns.push(Txn {
                zxid: write.zxid,
                time_ms: write.time_ms,
                session: write.session,
                changes: vec![change],
            }),
        }
    }
    txns
}

fn change(write: &Write) -> Option<Change> {
    let path = write.path.clone();
    let data = write.data.clone().unwrap_or_default();
    Some(match write.act {
        Act::Open => Change::Opened,
        Act::Close => Change::Closed,
        Act::Check => return None,
        Act::Create => Change::Created {
            path,
            data,
            is_ephemeral: write.owner != 0,
        },
        Act::Set => Change::Set {
            path,
            data,
            version: write.version,
        },
        Act::Delete => Change::Deleted { path },
    })
}
