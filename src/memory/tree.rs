//! The znodes, and what a transaction does to them.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::printable;
use crate::registry::{Fault, MultiFault, Op, Stat};

/// What one step of a transaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Act {
    /// A session was opened.
    Open,
    /// A session ended, by itself or because the ensemble had not heard of it. The deletes of its nodes follow, in the same transaction.
    Close,
    /// A check held.
    Check,
    /// A node was created.
    Create,
    /// A node's data was written.
    Set,
    /// A node was deleted.
    Delete,
}

/// One step of one transaction, as the ensemble's log has it. Steps of one transaction share its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The transaction's number.
    pub zxid: i64,
    /// When it was carried out, ms since the epoch by the ensemble's clock.
    pub time_ms: i64,
    /// The session that did it; 0 for a hand from outside, such as [`MemoryRegistry::put`](super::MemoryRegistry::put).
    pub session: i64,
    /// What it did.
    pub act: Act,
    /// The node; empty for a session's open and close.
    pub path: String,
    /// The new data of a create or a set.
    pub data: Option<Vec<u8>>,
    /// The node's version afterwards; of a deleted node the last one, of a session 0.
    pub version: i32,
    /// The session the node lives and dies with, 0 for a lasting node.
    pub owner: i64,
}

/// Who does something, when, as which transaction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    pub zxid: i64,
    pub time_ms: i64,
    pub session: i64,
}

impl Stamp {
    /// An entry about the session itself.
    pub fn note(self, act: Act) -> Write {
        self.write(act, "", None, &Stat::default())
    }

    fn write(self, act: Act, path: &str, data: Option<&[u8]>, stat: &Stat) -> Write {
        Write {
            zxid: self.zxid,
            time_ms: self.time_ms,
            session: self.session,
            act,
            path: path.into(),
            data: data.map(<[u8]>::to_vec),
            version: stat.version,
            owner: stat.ephemeral_owner,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Node {
    pub data: Vec<u8>,
    pub stat: Stat,
    /// The transaction that last created or deleted a child.
    pub pzxid: i64,
    pub children: BTreeSet<String>,
}

/// What a transaction's earlier steps have made of a node, as far as later steps can see.
#[derive(Clone, Copy)]
struct Shadow {
    version: i32,
    children: usize,
    is_ephemeral: bool,
}

impl Shadow {
    fn of(node: &Node) -> Self {
        Self {
            version: node.stat.version,
            children: node.children.len(),
            is_ephemeral: node.stat.ephemeral_owner != 0,
        }
    }
}

/// All znodes.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: BTreeMap<String, Node>,
    ephemerals: BTreeMap<i64, BTreeSet<String>>,
}

impl Tree {
    pub fn new() -> Self {
        Self {
            nodes: BTreeMap::from([("/".to_owned(), Node::default())]),
            ephemerals: BTreeMap::new(),
        }
    }

    pub fn node(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path)
    }

    /// What lives and dies with a session, in order.
    pub fn ephemerals(&self, session: i64) -> Vec<String> {
        let paths = self.ephemerals.get(&session);
        paths.into_iter().flatten().cloned().collect()
    }

    /// Carries out all steps or none. A step sees what the steps before it did.
    pub fn apply(&mut self, stamp: Stamp, ops: &[Op]) -> Result<Vec<(Write, Stat)>, MultiFault> {
        self.judge(ops)?;
        Ok(ops.iter().map(|op| self.step(stamp, op)).collect())
    }

    fn judge(&self, ops: &[Op]) -> Result<(), MultiFault> {
        let mut seen = BTreeMap::new();
        for (index, op) in ops.iter().enumerate() {
            self.judge_step(&mut seen, op).map_err(|fault| MultiFault {
                index: Some(index),
                fault,
            })?;
        }
        Ok(())
    }

    fn judge_step<'a>(
        &self,
        seen: &mut BTreeMap<&'a str, Option<Shadow>>,
        op: &'a Op,
    ) -> Result<(), Fault> {
        let path = op.path();
        let there = self.shadow(seen, path);
        match op {
            Op::Check { version, .. } => {
                check_name(path)?;
                expected(there, *version)?;
            }
            Op::Set { version, .. } => {
                check_name(path)?;
                let mut node = expected(there, *version)?;
                node.version += 1;
                seen.insert(path, Some(node));
            }
            // The order of these tests is the server's: the version is looked at before the children,
            // the node before the kind of its parent.
            Op::Delete { version, .. } => {
                if path == "/" {
                    return Err(Fault::Refused("the root stays".into()));
                }
                if expected(there, *version)?.children > 0 {
                    return Err(Fault::NotEmpty);
                }
                seen.insert(path, None);
                self.count_child(seen, parent(path), false);
            }
            Op::Create { ephemeral, .. } => {
                let above = self.shadow(seen, parent(path));
                if above.is_none() && path != "/" {
                    return Err(Fault::NoNode);
                }
                check_name(path)?;
                if there.is_some() {
                    return Err(Fault::NodeExists);
                }
                if above.is_some_and(|above| above.is_ephemeral) {
                    return Err(Fault::Refused("an ephemeral node has no children".into()));
                }
                let node = Shadow {
                    version: 0,
                    children: 0,
                    is_ephemeral: *ephemeral,
                };
                seen.insert(path, Some(node));
                self.count_child(seen, parent(path), true);
            }
        }
        Ok(())
    }

    fn shadow(&self, seen: &BTreeMap<&str, Option<Shadow>>, path: &str) -> Option<Shadow> {
        match seen.get(path) {
            Some(shadow) => *shadow,
            None => self.nodes.get(path).map(Shadow::of),
        }
    }

    fn count_child<'a>(
        &self,
        seen: &mut BTreeMap<&'a str, Option<Shadow>>,
        path: &'a str,
        is_more: bool,
    ) {
        if let Some(mut node) = self.shadow(seen, path) {
            node.children = if is_more {
                node.children + 1
            } else {
                node.children.saturating_sub(1)
            };
            seen.insert(path, Some(node));
        }
    }

    fn step(&mut self, stamp: Stamp, op: &Op) -> (Write, Stat) {
        match op {
            Op::Check { path, .. } => {
                let stat = self.node(path).map(|node| node.stat).unwrap_or_default();
                (stamp.write(Act::Check, path, None, &stat), stat)
            }
            Op::Create {
                path,
                data,
                ephemeral,
            } => self.create(stamp, path, data, *ephemeral),
            Op::Set { path, data, .. } => self.set(stamp, path, data),
            Op::Delete { path, .. } => self.delete(stamp, path),
        }
    }

    fn create(
        &mut self,
        stamp: Stamp,
        path: &str,
        data: &[u8],
        is_ephemeral: bool,
    ) -> (Write, Stat) {
        let owner = if is_ephemeral { stamp.session } else { 0 };
        let stat = Stat {
            czxid: stamp.zxid,
            mzxid: stamp.zxid,
            ctime: stamp.time_ms,
            mtime: stamp.time_ms,
            ephemeral_owner: owner,
            ..Stat::default()
        };
        let node = Node {
            data: data.to_vec(),
            stat,
            pzxid: stamp.zxid,
            children: BTreeSet::new(),
        };
        self.nodes.insert(path.into(), node);
        if owner != 0 {
            let paths = self.ephemerals.entry(owner).or_default();
            paths.insert(path.into());
        }
        self.touch_parent(stamp, path, |children, name| {
            children.insert(name.into());
        });
        (stamp.write(Act::Create, path, Some(data), &stat), stat)
    }

    fn set(&mut self, stamp: Stamp, path: &str, data: &[u8]) -> (Write, Stat) {
        let Some(node) = self.nodes.get_mut(path) else {
            unreachable!("the step was judged before");
        };
        node.data = data.to_vec();
        node.stat.version += 1;
        node.stat.mzxid = stamp.zxid;
        node.stat.mtime = stamp.time_ms;
        let stat = node.stat;
        (stamp.write(Act::Set, path, Some(data), &stat), stat)
    }

    /// Carries out what another tree has carried out already.
    pub fn replay(&mut self, write: &Write) {
        let stamp = Stamp {
            zxid: write.zxid,
            time_ms: write.time_ms,
            session: write.session,
        };
        let data = write.data.as_deref().unwrap_or_default();
        match write.act {
            Act::Create => drop(self.create(stamp, &write.path, data, write.owner != 0)),
            Act::Set => drop(self.set(stamp, &write.path, data)),
            Act::Delete => drop(self.delete(stamp, &write.path)),
            Act::Open | Act::Close | Act::Check => {}
        }
    }

    /// Deletes a node that is there and has no children.
    pub fn delete(&mut self, stamp: Stamp, path: &str) -> (Write, Stat) {
        let stat = self.nodes.remove(path).map(|node| node.stat);
        let stat = stat.unwrap_or_default();
        if let Some(paths) = self.ephemerals.get_mut(&stat.ephemeral_owner) {
            paths.remove(path);
            if paths.is_empty() {
                self.ephemerals.remove(&stat.ephemeral_owner);
            }
        }
        self.touch_parent(stamp, path, |children, name| {
            children.remove(name);
        });
        (stamp.write(Act::Delete, path, None, &stat), stat)
    }

    fn touch_parent(
        &mut self,
        stamp: Stamp,
        path: &str,
        change: impl FnOnce(&mut BTreeSet<String>, &str),
    ) {
        if let Some(above) = self.nodes.get_mut(parent(path)) {
            change(&mut above.children, name(path));
            above.stat.cversion += 1;
            above.pzxid = stamp.zxid;
        }
    }
}

fn expected(node: Option<Shadow>, version: Option<i32>) -> Result<Shadow, Fault> {
    let node = node.ok_or(Fault::NoNode)?;
    match version {
        // On the wire, minus one stands for any.
        None | Some(-1) => Ok(node),
        Some(version) if version == node.version => Ok(node),
        Some(_) => Err(Fault::BadVersion),
    }
}

/// The node above; the root is above itself.
pub(super) fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(at) if at > 0 => &path[..at],
        _ => "/",
    }
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A path that the client refuses before anything is sent.
pub(super) fn check_path(path: &str) -> Result<(), Fault> {
    let is_odd = ["//", "/./", "/../"].iter().any(|odd| path.contains(odd));
    let is_whole = path.starts_with('/') && (path == "/" || !path.ends_with('/'));
    if is_whole && !is_odd && !path.contains(is_unsupported) {
        return Ok(());
    }
    Err(bad_path(path))
}

/// A last name that the client lets pass and servers mind in some requests.
fn check_name(path: &str) -> Result<(), Fault> {
    match name(path) {
        "." | ".." => Err(bad_path(path)),
        _ => Ok(()),
    }
}

fn is_unsupported(c: char) -> bool {
    matches!(c, '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
}

fn bad_path(path: &str) -> Fault {
    Fault::Refused(format!("bad path {}", printable(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(path: &str) -> Op {
        Op::Create {
            path: path.into(),
            data: b"new".to_vec(),
            ephemeral: false,
        }
    }
    fn ephemeral(path: &str) -> Op {
        Op::Create {
            path: path.into(),
            data: Vec::new(),
            ephemeral: true,
        }
    }
    fn set(path: &str, version: Option<i32>) -> Op {
        Op::Set {
            path: path.into(),
            data: b"set".to_vec(),
            version,
        }
    }
    fn delete(path: &str, version: Option<i32>) -> Op {
        Op::Delete {
            path: path.into(),
            version,
        }
    }
    fn check(path: &str, version: Option<i32>) -> Op {
        Op::Check {
            path: path.into(),
            version,
        }
    }

    struct Bench {
        tree: Tree,
        zxid: i64,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                tree: Tree::new(),
                zxid: 0,
            }
        }
        fn run(&mut self, ops: &[Op]) -> Result<Vec<Stat>, (usize, Fault)> {
            self.zxid += 1;
            let stamp = Stamp {
                zxid: self.zxid,
                time_ms: 1000 + self.zxid,
                session: 77,
            };
            match self.tree.apply(stamp, ops) {
                Ok(done) => Ok(done.into_iter().map(|(_, stat)| stat).collect()),
                Err(fault) => Err((fault.index.unwrap(), fault.fault)),
            }
        }
        fn stat(&self, path: &str) -> Stat {
            self.tree.node(path).unwrap().stat
        }
    }

    #[test]
    fn a_stat_tells_who_wrote_when_and_how_often() {
        let mut b = Bench::new();
        b.run(&[create("/a")]).unwrap();
        b.run(&[set("/a", Some(0))]).unwrap();
        b.run(&[ephemeral("/a/e")]).unwrap();
        b.run(&[delete("/a/e", None)]).unwrap();
        let stat = b.stat("/a");
        assert_eq!((stat.czxid, stat.mzxid, stat.version), (1, 2, 1));
        assert_eq!((stat.ctime, stat.mtime, stat.cversion), (1001, 1002, 2));
        assert_eq!(stat.ephemeral_owner, 0);
        assert_eq!(b.tree.node("/a").unwrap().pzxid, 4);
    }

    #[test]
    fn each_fault_has_its_cause() {
        let mut b = Bench::new();
        b.run(&[create("/a"), create("/a/b"), ephemeral("/e")])
            .unwrap();
        let mut fault = |op: Op| b.run(&[op]).unwrap_err().1;
        assert_eq!(fault(create("/a")), Fault::NodeExists);
        assert_eq!(fault(create("/no/b")), Fault::NoNode);
        assert_eq!(fault(set("/no", None)), Fault::NoNode);
        assert_eq!(fault(delete("/no", None)), Fault::NoNode);
        assert_eq!(fault(check("/no", None)), Fault::NoNode);
        assert_eq!(fault(set("/a", Some(1))), Fault::BadVersion);
        assert_eq!(fault(check("/a", Some(1))), Fault::BadVersion);
        assert_eq!(fault(delete("/a", None)), Fault::NotEmpty);
        assert_eq!(fault(delete("/a", Some(4))), Fault::BadVersion);
        assert_eq!(fault(delete("/a", Some(-1))), Fault::NotEmpty);
        assert_eq!(fault(set("/a", Some(-2))), Fault::BadVersion);
        assert!(matches!(fault(create("/e/x")), Fault::Refused(_)));
        assert!(matches!(fault(delete("/", None)), Fault::Refused(_)));
        assert_eq!(fault(create("/")), Fault::NodeExists);
    }

    #[test]
    fn a_transaction_that_fails_names_its_step_and_leaves_nothing() {
        let mut b = Bench::new();
        b.run(&[create("/a")]).unwrap();
        let ops = [
            create("/a/b"),
            set("/a", None),
            create("/a/b/c"),
            check("/a", Some(0)),
        ];
        assert_eq!(b.run(&ops), Err((3, Fault::BadVersion)));
        assert!(b.tree.node("/a/b").is_none());
        assert_eq!((b.stat("/a").version, b.stat("/a").cversion), (0, 0));
    }

    #[test]
    fn a_step_sees_the_steps_before_it() {
        let mut b = Bench::new();
        let stats = b
            .run(&[create("/a"), set("/a", Some(0)), check("/a", Some(1))])
            .unwrap();
        assert_eq!(stats[1].version, 1);
        assert_eq!((stats[1].czxid, stats[1].mzxid), (1, 1));
        b.run(&[
            create("/a/b"),
            delete("/a/b", Some(0)),
            delete("/a", Some(1)),
        ])
        .unwrap();
        assert!(b.tree.node("/a").is_none());
        b.run(&[create("/a"), delete("/a", None), create("/a")])
            .unwrap();
        assert_eq!(b.run(&[ephemeral("/e"), create("/e/x")]).unwrap_err().0, 1);
        assert_eq!(
            b.run(&[create("/a/x"), delete("/a", None)]),
            Err((1, Fault::NotEmpty))
        );
    }

    #[test]
    fn ephemerals_are_known_by_their_session() {
        let mut b = Bench::new();
        b.run(&[ephemeral("/e"), ephemeral("/f")]).unwrap();
        assert_eq!(b.tree.ephemerals(77), ["/e", "/f"]);
        assert_eq!(b.stat("/e").ephemeral_owner, 77);
        b.run(&[delete("/e", None)]).unwrap();
        assert_eq!(b.tree.ephemerals(77), ["/f"]);
        assert!(b.tree.ephemerals(1).is_empty());
    }

    #[test]
    fn bad_paths_are_refused() {
        for bad in [
            "",
            "a",
            "/a/",
            "//",
            "//a",
            "/a//b",
            "/./a",
            "/a/../b",
            "/a\0",
            "/a\u{90}",
            "/\u{e000}",
        ] {
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
        for good in ["/", "/a", "/a/b.c", "/.a/..b", "/a/...", "/."] {
            assert!(check_path(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn a_last_name_that_points_elsewhere_is_refused_by_some_requests_only() {
        let mut b = Bench::new();
        let mut fault = |op: Op| b.run(&[op]).unwrap_err().1;
        for bad in ["/.", "/.."] {
            for op in [create(bad), set(bad, None), check(bad, None)] {
                assert!(matches!(fault(op), Fault::Refused(_)), "{bad}");
            }
            assert_eq!(fault(delete(bad, None)), Fault::NoNode);
        }
        assert_eq!(fault(create("/no/.")), Fault::NoNode);
    }
}
