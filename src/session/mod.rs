//! One member's life in one ZooKeeper session: registration, proofs for the lease, and the end.
//!
//! What is asked of the registry here is asked on this session and never repeated on a later one. An outcome that nobody
//! knows is settled by reading on the same session.

mod claim;
mod commit;
mod look;
mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use futures_util::future::join_all;

use crate::clock::LeaseClock;
use crate::error::{Error, ErrorKind};
use crate::group::{ConsumerId, GroupName, Subscription, Topic};
use crate::lease::{LeaseGuard, Terms};
use crate::registry::{Connection, Dialect, Fault, MultiFault, Op, Registry, Reply, Stat, Watch};
use crate::wire::encode_registration;
use crate::wire::paths;

pub(crate) use self::claim::{Claim, Claimed, Found, Want, holder};
pub(crate) use self::commit::{Commit, Committed, Parting, Released, TopicFate};
pub(crate) use self::look::{Lookout, OwnerNode, Watched};

/// Our owner nodes are at this version; a JVM's are at 0 (hazards 2.2).
pub(crate) const STAMPED: i32 = 1;

/// A transaction is split above this size, well below the server's limit of 1 MiB.
const MAX_MULTI_BYTES: usize = 256 * 1024;

/// Why something could not be done, by what is to be done about it.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The session is over: start anew with empty hands.
    SessionLost,
    /// Our registration is gone while the session lives.
    RegistrationGone,
    /// The server speaks the other dialect: start anew in it.
    OtherDialect,
    /// Back to the wait, then again.
    Transient(String),
    /// Out to the caller.
    Fatal(Error),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SessionLost => f.write_str("the session is over"),
            Self::RegistrationGone => f.write_str("our registration is gone"),
            Self::OtherDialect => f.write_str("the server speaks another dialect"),
            Self::Transient(why) => f.write_str(why),
            Self::Fatal(error) => write!(f, "{error}"),
        }
    }
}

/// What a fault means when it stands in the way of something.
fn trouble(doing: &str, path: &str, fault: Fault) -> Trouble {
    match fault {
        Fault::SessionLost => Trouble::SessionLost,
        Fault::Unsupported => Trouble::OtherDialect,
        fault => Trouble::Transient(format!("{doing} {path}: {fault}")),
    }
}

/// Whether no repetition helps.
fn is_for_good(fault: &Fault) -> bool {
    matches!(fault, Fault::NoAuth | Fault::Refused(_) | Fault::TooLarge)
}

/// Who joins, and how.
#[derive(Clone)]
pub(crate) struct Applicant {
    pub group: GroupName,
    pub me: ConsumerId,
    pub subscription: BTreeMap<Topic, u32>,
    pub clock: Arc<dyn LeaseClock>,
    /// `lease=off`.
    pub is_blind: bool,
    /// Sessions of ours that ended: what they left behind is ours to remove.
    pub past: BTreeSet<i64>,
}

/// What came of an attempt to register.
pub(crate) enum Registering {
    Done,
    /// Another session holds our id; the watch, if one was wanted, fires when that changes.
    Held {
        session: i64,
        watch: Option<Watch>,
    },
}

pub(crate) struct Session {
    connection: Arc<dyn Connection>,
    dialect: Dialect,
    who: Applicant,
    pub lease: Arc<LeaseGuard>,
    path: String,
    version: AtomicI32,
}

impl Session {
    /// Opens a session; nothing is written yet.
    pub async fn open(
        registry: &dyn Registry,
        dialect: Dialect,
        who: Applicant,
    ) -> Result<Self, Error> {
        let connection = registry.open(dialect).await?;
        let terms = Terms::new(connection.session_timeout());
        let lease = if who.is_blind {
            LeaseGuard::blind(terms)
        } else {
            LeaseGuard::new(terms)
        };
        let path = paths::id(&who.group, &who.me)?;
        let version = AtomicI32::new(-1);
        Ok(Self {
            connection,
            dialect,
            who,
            lease: Arc::new(lease),
            path,
            version,
        })
    }

    pub fn id(&self) -> i64 {
        self.connection.session_id()
    }

    pub fn terms(&self) -> Terms {
        self.lease.terms()
    }

    pub fn group(&self) -> &GroupName {
        &self.who.group
    }

    pub fn me(&self) -> &ConsumerId {
        &self.who.me
    }

    /// Resolves when the session is over.
    pub async fn ended(&self) {
        self.connection.ended().await;
    }

    /// Whether a node was made by this session or by an earlier one of ours.
    fn is_mine(&self, stat: &Stat) -> bool {
        stat.ephemeral_owner == self.id()
    }

    /// Whether an owner node may be replaced by us: it is of this session or of an earlier one of ours.
    pub fn may_take_over(&self, stat: &Stat) -> bool {
        self.is_mine(stat) || self.is_left_behind(stat)
    }

    fn is_left_behind(&self, stat: &Stat) -> bool {
        self.who.past.contains(&stat.ephemeral_owner)
    }

    // ---- registration ----

    /// Registers, so that everybody counts us in. The registration is stamped to version 1, which a JVM's never is.
    pub async fn register(&self, watches: bool) -> Result<Registering, Trouble> {
        self.ensure_parents(&self.path).await?;
        loop {
            let fault = match self.create_registration().await {
                Ok(version) => {
                    self.version.store(version, Ordering::SeqCst);
                    return Ok(Registering::Done);
                }
                Err(fault) => fault,
            };
            match fault {
                Fault::NodeExists | Fault::BadVersion => {}
                Fault::Unknown(_) => self.catch_up().await?,
                Fault::NoNode => {
                    self.ensure_parents(&self.path).await?;
                    continue;
                }
                Fault::NoAuth => return Err(no_auth("create", &self.path)),
                fault => return Err(trouble("registering at", &self.path, fault)),
            }
            // Our own create may have succeeded just before the connection broke: the node tells.
            if let Some(answer) = self.inspect_registration(watches).await? {
                return Ok(answer);
            }
        }
    }

    fn registration(&self) -> Vec<u8> {
        encode_registration(
            &Subscription::Topics(self.who.subscription.clone()),
            self.who.clock.wall_ms(),
        )
    }

    async fn create_registration(&self) -> Result<i32, Fault> {
        let (path, data) = (self.path.clone(), self.registration());
        match self.dialect {
            Dialect::V3_5 => {
                let ops = vec![
                    Op::Create {
                        path: path.clone(),
                        data: data.clone(),
                        ephemeral: true,
                    },
                    Op::Set {
                        path,
                        data,
                        version: Some(0),
                    },
                ];
                self.connection
                    .multi(ops)
                    .await
                    .map_err(|multi| multi.fault)?;
            }
            Dialect::V3_4 => {
                self.connection.create(&path, &data, true).await?;
                self.connection.set(&path, &data, Some(0)).await?;
            }
        }
        Ok(1)
    }

    /// Whose node stands at our registration; `None` if none does (any more), so that it can be made.
    async fn inspect_registration(&self, watches: bool) -> Result<Option<Registering>, Trouble> {
        let (_, stat) = match self.connection.data(&self.path).await {
            Ok(found) => found,
            Err(Fault::NoNode) => return Ok(None),
            Err(fault) => return Err(trouble("reading", &self.path, fault)),
        };
        if self.is_mine(&stat) {
            self.adopt(stat.version).await?;
            return Ok(Some(Registering::Done));
        }
        if self.is_left_behind(&stat) {
            return match self.connection.delete(&self.path, Some(stat.version)).await {
                Ok(()) | Err(Fault::NoNode | Fault::BadVersion | Fault::Unknown(_)) => Ok(None),
                Err(fault) => Err(trouble("deleting our former", &self.path, fault)),
            };
        }
        if !watches {
            let (session, watch) = (stat.ephemeral_owner, None);
            return Ok(Some(Registering::Held { session, watch }));
        }
        match self.connection.stat_and_watch(&self.path).await {
            Ok((Some(stat), watch)) if !self.is_mine(&stat) => Ok(Some(Registering::Held {
                session: stat.ephemeral_owner,
                watch: Some(watch),
            })),
            Ok(_) => Ok(None),
            Err(fault) => Err(trouble("reading", &self.path, fault)),
        }
    }

    /// Takes the registration as it stands, stamped: one that was made and not stamped yet is stamped now.
    async fn adopt(&self, version: i32) -> Result<(), Trouble> {
        let stat = match self
            .connection
            .set(&self.path, &self.registration(), Some(version))
            .await
        {
            Ok(stat) => stat,
            Err(fault) => return Err(trouble("stamping", &self.path, fault)),
        };
        self.version.store(stat.version, Ordering::SeqCst);
        Ok(())
    }

    /// The first step of every transaction of ours: our registration still stands.
    fn check_registration(&self) -> Op {
        Op::Check {
            path: self.path.clone(),
            version: Some(self.version.load(Ordering::SeqCst)),
        }
    }

    /// Our registration was refused by that check: finds out whether it is still ours.
    async fn recheck_registration(&self) -> Result<(), Trouble> {
        match self.connection.data(&self.path).await {
            Ok((_, stat)) if self.is_mine(&stat) => self.adopt(stat.version).await,
            Ok(_) | Err(Fault::NoNode) => Err(Trouble::RegistrationGone),
            Err(fault) => Err(trouble("reading", &self.path, fault)),
        }
    }

    /// Whether what stands in our registration is what we want to stand there; puts it right if not.
    /// Answers what was wrong, if anything.
    pub async fn audit_registration(&self) -> Result<Option<String>, Trouble> {
        let (data, stat) = match self.connection.data(&self.path).await {
            Ok(found) => found,
            Err(Fault::NoNode) => return Err(Trouble::RegistrationGone),
            Err(fault) => return Err(trouble("reading", &self.path, fault)),
        };
        if !self.is_mine(&stat) {
            return Err(Trouble::RegistrationGone);
        }
        let wanted = Subscription::Topics(self.who.subscription.clone());
        if crate::wire::decode_registration(&data).is_ok_and(|found| found == wanted)
            && stat.version > 0
        {
            self.version.store(stat.version, Ordering::SeqCst);
            return Ok(None);
        }
        self.adopt(stat.version).await?;
        Ok(Some(format!(
            "{} did not hold our subscription and was written again",
            self.path
        )))
    }

    // ---- proofs ----

    /// After an outcome that nobody knows. Once the quorum has answered, what this session sent before is carried out or never
    /// will be, and what is read from now on is not older than that; a server that lags behind could still show what
    /// was, and hide that a successor stands there (A7, W6).
    pub(super) async fn catch_up(&self) -> Result<(), Trouble> {
        let path = paths::ids(self.group());
        let check = Op::Check {
            path: path.clone(),
            version: None,
        };
        match self.connection.multi(vec![check]).await {
            Ok(_) | Err(MultiFault { index: Some(_), .. }) => Ok(()),
            Err(MultiFault { index: None, fault }) => {
                Err(trouble("asking the quorum about", &path, fault))
            }
        }
    }

    /// Asks the quorum whether we still stand. The answer renews the lease from the moment of asking.
    pub async fn probe(&self) -> Result<(), Trouble> {
        let sent = self.who.clock.now();
        match self.connection.multi(vec![self.check_registration()]).await {
            Ok(_) => {
                self.lease.renew(sent);
                Ok(())
            }
            Err(MultiFault {
                fault: Fault::NoNode,
                ..
            }) => Err(Trouble::RegistrationGone),
            Err(MultiFault {
                fault: Fault::BadVersion,
                ..
            }) => self.recheck_registration().await,
            Err(MultiFault { fault, .. }) => Err(trouble("probing", &self.path, fault)),
        }
    }

    /// Sends a packet, so that the server in between reports us to the leader. Proves nothing.
    pub async fn touch(&self) {
        let _ = self.connection.stat(&self.path).await;
    }

    // ---- the end ----

    /// Removes our registration; the owner nodes must be gone before (L-126).
    pub async fn unregister(&self) {
        let version = self.version.load(Ordering::SeqCst);
        let _ = self
            .connection
            .delete(&self.path, (version >= 0).then_some(version))
            .await;
    }

    /// Ends the session; what is left of ours in ZooKeeper goes with it.
    pub async fn close(&self) {
        self.lease.end();
        self.connection.close().await;
    }

    // ---- for the rooms of this folder ----

    /// Makes the missing parents of a node, all of them lasting and empty (L-6).
    async fn ensure_parents(&self, path: &str) -> Result<(), Trouble> {
        let parents = paths::parents(path);
        // One look saves the creates that an operator may have forbidden us (r155).
        if let Some(parent) = parents.last() {
            match self.connection.stat(parent).await {
                Ok(Some(_)) => return Ok(()),
                Ok(None) | Err(Fault::NoAuth) => {}
                Err(fault) => return Err(trouble("looking for", parent, fault)),
            }
        }
        let creates: Vec<Reply<()>> = parents
            .iter()
            .map(|parent| self.connection.create(parent, b"", false))
            .collect();
        let answers = join_all(creates).await;
        for (parent, answer) in parents.iter().zip(answers) {
            match answer {
                Ok(()) | Err(Fault::NodeExists) => {}
                Err(Fault::NoAuth) if *parent != *parents.last().expect("it is being iterated") => {
                }
                Err(Fault::NoAuth) => return Err(no_auth("create", parent)),
                Err(Fault::NoNode) if *parent != parents[0] => {
                    return Err(Trouble::Transient(format!(
                        "creating {parent}: what is above it was deleted meanwhile"
                    )));
                }
                Err(Fault::NoNode) => {
                    return Err(Trouble::Fatal(Error::new(
                        ErrorKind::Connection,
                        format!(
                            "cannot create {parent}: its parent is missing; does the chroot exist, and may we create {}?",
                            parents[0]
                        ),
                    )));
                }
                Err(fault) => return Err(trouble("creating", parent, fault)),
            }
        }
        Ok(())
    }

    /// Where the members are listed.
    fn ids_path(&self) -> String {
        paths::ids(&self.who.group)
    }
}

fn no_auth(right: &str, path: &str) -> Trouble {
    Trouble::Fatal(Error::new(
        ErrorKind::NoAuth,
        format!(
            "we may not {right} {path}: the access list of its parent must give this client the right to {right}"
        ),
    ))
}

/// Cuts a list into runs whose size stays under the limit of one transaction.
fn runs<T>(items: Vec<T>, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut runs: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for item in items {
        let more = size(&item);
        match runs.last_mut() {
            Some(run) if bytes + more <= MAX_MULTI_BYTES => {
                bytes += more;
                run.push(item);
            }
            _ => {
                bytes = more;
                runs.push(vec![item]);
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_transaction_is_split_and_a_single_large_step_is_not() {
        let split = runs(vec![100_000usize, 100_000, 100_000, 300_000, 1], |n| *n);
        assert_eq!(
            split,
            [
                vec![100_000, 100_000],
                vec![100_000],
                vec![300_000],
                vec![1]
            ]
        );
    }
}
