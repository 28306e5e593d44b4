//! What a member tells those who watch it.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::group::{ConsumerId, StreamId, Topic, TopicPartition};

/// Why a partition's position was set by us and not by what was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetCause {
    /// Nothing was committed yet: there is no offset node, or it says -1 (L-4).
    NoOffset,
    /// What was committed is not in the log any more, or not yet.
    OutOfRange,
    /// The topic was deleted and made again after the offset was written.
    TopicRecreated,
    /// The stored offset was a negative number other than -1, which means none as well.
    Negative,
    /// The stored text could not be read, and `malformed.offset` is `treat_as_missing`.
    Malformed,
}

impl fmt::Display for ResetCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoOffset => "no committed offset",
            Self::OutOfRange => "the committed offset is out of range",
            Self::TopicRecreated => "the topic was made anew after the offset was committed",
            Self::Negative => "the committed offset is negative",
            Self::Malformed => "the committed offset cannot be read",
        })
    }
}

/// Why a partition is not ours any more without our having given it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostCause {
    /// The ZooKeeper session ended.
    SessionLost,
    /// Somebody deleted our owner node, or replaced it.
    OwnerNodeGone,
    /// Somebody deleted our registration.
    RegistrationGone,
}

impl fmt::Display for LostCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SessionLost => "the session ended",
            Self::OwnerNodeGone => "our owner node was deleted or replaced by somebody else",
            Self::RegistrationGone => "our registration was deleted by somebody else",
        })
    }
}

/// Who holds a partition that we wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The owner node.
    pub path: String,
    /// The text of the owner node, escaped and cut for printing.
    pub text: String,
    /// The member it belongs to, if the text fits one that is registered.
    pub member: Option<ConsumerId>,
    /// The session the owner node lives in; 0 for a lasting node, which no member makes.
    pub session: i64,
    /// When the owner node was made, ms since the epoch by the server's clock.
    pub since_ms: i64,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.member.is_some() {
            ""
        } else {
            ", whose member is not registered"
        };
        write!(
            f,
            "{}{whose} (session 0x{:x}, since {} ms, {})",
            self.text, self.session, self.since_ms, self.path
        )
    }
}

/// Something that happened to a member. Printed, it is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A session was opened and the member is registered.
    Joined {
        /// The name under `ids`.
        consumer: ConsumerId,
        /// The session.
        session: i64,
        /// The session timeout that the servers granted.
        session_timeout: Duration,
    },
    /// The servers granted another session timeout than was asked for.
    TimeoutClamped {
        /// What was asked for.
        asked: Duration,
        /// What was granted.
        granted: Duration,
    },
    /// The session is over; a new one is opened. What was held is lost.
    SessionLost {
        /// The session that ended.
        session: i64,
    },
    /// ZooKeeper could not be reached or refused us; it is tried again.
    ConnectFailed {
        /// What was in the way.
        reason: String,
    },
    /// Our id is registered by a session that is not ours; we wait until it goes.
    IdHeld {
        /// The id.
        consumer: ConsumerId,
        /// The session that holds it.
        session: i64,
    },
    /// The host name could not be used; the id was made from something else.
    HostNameReplaced {
        /// What was taken instead.
        instead: String,
    },
    /// The group or its topics changed, and we computed anew what is ours.
    Rebalanced {
        /// Counts the looks that led to a change in what we hold.
        generation: u64,
        /// Members that were seen.
        members: usize,
        /// Partitions that are ours by the rule.
        wanted: usize,
        /// Partitions whose claim is still to come.
        waiting: usize,
        /// Partitions we began to give up.
        releasing: usize,
    },
    /// A partition is ours; reading begins at the offset.
    Claimed {
        /// The partition.
        partition: TopicPartition,
        /// The stream that gets it.
        stream: StreamId,
        /// The fencing token: the transaction that created the owner node.
        token: i64,
    },
    /// Reading of a partition began.
    Started {
        /// The partition.
        partition: TopicPartition,
        /// The first offset that will be delivered, or a later one if the log has gaps.
        offset: i64,
    },
    /// A partition was given up in order.
    Released {
        /// The partition.
        partition: TopicPartition,
        /// The committed offset, if one is stored.
        offset: Option<i64>,
        /// Messages that were in somebody's hands and not done: the next owner delivers them again.
        undone: usize,
        /// The drain or the listener did not end within its time.
        is_forced: bool,
    },
    /// A partition was lost. Nothing more of it is delivered or committed.
    Lost {
        /// The partition.
        partition: TopicPartition,
        /// Why.
        cause: LostCause,
        /// Messages that were in somebody's hands and not committed.
        undone: usize,
    },
    /// Somebody else holds a partition that is ours by the rule. It is claimed the moment it is free.
    Waiting {
        /// The partition.
        partition: TopicPartition,
        /// Who holds it.
        holder: Holder,
    },
    /// A partition has been held by somebody else for longer than a release may take.
    Stuck {
        /// The partition.
        partition: TopicPartition,
        /// Who holds it.
        holder: Holder,
        /// How long we have waited.
        waited: Duration,
    },
    /// The lease ran out: delivery pauses until the quorum answers again.
    Lapsed,
    /// Delivery goes on.
    Resumed {
        /// How long it had paused.
        paused: Duration,
    },
    /// The position of a partition was set by `auto.offset.reset`.
    OffsetReset {
        /// The partition.
        partition: TopicPartition,
        /// The ownership that it was chosen in, as in [`Event::Claimed`]. It may be told after that was lost.
        token: i64,
        /// What was stored, if anything.
        from: Option<i64>,
        /// Where reading begins; `None` if the policy is `none`: the partition is held and not read.
        to: Option<i64>,
        /// Why.
        cause: ResetCause,
    },
    /// A stored offset could not be read; the partition is held and not read until it is repaired.
    OffsetMalformed {
        /// The offset node.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Somebody wrote a lower offset behind our back; ours was written again.
    RewindRepaired {
        /// The partition.
        partition: TopicPartition,
        /// What somebody had written.
        theirs: i64,
        /// What stands there now.
        ours: i64,
    },
    /// Somebody wrote a higher offset; commits of the partition wait until ours passes it.
    ForeignAdvance {
        /// The partition.
        partition: TopicPartition,
        /// What somebody has written.
        theirs: i64,
        /// How far we are.
        ours: i64,
    },
    /// A commit could not be carried out. With `auto.commit.enable` it is tried again; without, whoever asked for it gets an
    /// error and may ask again.
    CommitFailed {
        /// The partition.
        partition: TopicPartition,
        /// What was in the way.
        reason: String,
    },
    /// A registration could not be read. That member counts as absent, or, if `malformed.peer` is `as_jvm`, nothing is
    /// rebalanced until it is gone.
    MemberMalformed {
        /// The registration node.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A topic node could not be read; what is held of the topic is kept.
    TopicMalformed {
        /// The topic node.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A topic of the subscription does not exist; it is waited for.
    TopicMissing {
        /// The topic.
        topic: Topic,
    },
    /// A member's filter cannot be evaluated here: its topics are held and not newly claimed.
    FilterBeyondUs {
        /// The member.
        consumer: ConsumerId,
        /// What in the filter is beyond us.
        reason: String,
    },
    /// The assignment was refused, as old releases refuse some round-robin groups; what is held is kept.
    AssignmentRefused {
        /// Why.
        reason: String,
    },
    /// No broker is registered, or none can be reached; it is waited for and the share kept.
    BrokersMissing {
        /// What was looked at.
        reason: String,
    },
    /// Brokers can be reached again.
    BrokersBack,
    /// A broker or the Kafka client reported trouble with a partition; reading is tried again.
    ReadFailed {
        /// The partition, if the trouble concerns one.
        partition: Option<TopicPartition>,
        /// What was reported.
        reason: String,
    },
    /// A partition gave nothing although its log goes on, so its reading is begun anew from where it had got. Behind the last
    /// message there may be nothing but a gap, left by a transaction or by compaction; then this is told once for each gap,
    /// and means nothing.
    Silent {
        /// The partition.
        partition: TopicPartition,
        /// How many offsets lie ahead.
        ahead: i64,
        /// How long nothing came.
        waited: Duration,
    },
    /// A message has been in somebody's hands for long without being acknowledged.
    Unacknowledged {
        /// The partition.
        partition: TopicPartition,
        /// The oldest offset that is not done.
        offset: i64,
        /// How long ago it was handed out.
        age: Duration,
        /// The stream has reached its bound and delivers nothing more until something is acknowledged.
        is_at_bound: bool,
    },
    /// The service asked that a message count as done without being acknowledged:
    /// [`ConsumerConnector::pass`](crate::ConsumerConnector::pass).
    Passed {
        /// The partition.
        partition: TopicPartition,
        /// The message's offset.
        offset: i64,
        /// It had been handed out; otherwise it is skipped when it comes.
        was_handed_out: bool,
    },
    /// The listener panicked or did not end within its time; we went on without it.
    ListenerFailed {
        /// Which call it was.
        call: &'static str,
        /// What happened.
        reason: String,
    },
    /// The self-check, or a commit that met an offset which could not be read, found something wrong and put it right.
    Repaired {
        /// What it was.
        what: String,
    },
    /// Something that an operator should know about a setting or the group.
    Warning {
        /// What.
        what: String,
    },
    /// The member has left the group.
    Left {
        /// Partitions that were given up before everything in hand was done.
        forced: BTreeSet<TopicPartition>,
    },
    /// The watcher was too slow: so many events were dropped.
    Missed {
        /// How many.
        count: u64,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined {
                consumer,
                session,
                session_timeout,
            } => {
                write!(
                    f,
                    "joined as {consumer} (session 0x{session:x}, timeout {} ms)",
                    session_timeout.as_millis()
                )
            }
            Self::TimeoutClamped { asked, granted } => write!(
                f,
                "the servers granted a session timeout of {} ms instead of {} ms",
                granted.as_millis(),
                asked.as_millis()
            ),
            Self::SessionLost { session } => {
                write!(f, "session 0x{session:x} is over, joining anew")
            }
            Self::ConnectFailed { reason } => write!(f, "cannot join: {reason}"),
            Self::IdHeld { consumer, session } => {
                write!(
                    f,
                    "{consumer} is registered by session 0x{session:x}, which is not ours; waiting for it to go"
                )
            }
            Self::HostNameReplaced { instead } => {
                write!(f, "the host name cannot be used, taking {instead} instead")
            }
            Self::Rebalanced {
                generation,
                members,
                wanted,
                waiting,
                releasing,
            } => write!(
                f,
                "rebalanced (generation {generation}): {members} members, {wanted} partitions are ours, {waiting} to come, {releasing} to give up"
            ),
            Self::Claimed {
                partition,
                stream,
                token,
            } => write!(f, "claimed {partition} for {stream} (token {token})"),
            Self::Started { partition, offset } => write!(f, "reading {partition} from {offset}"),
            Self::Released {
                partition,
                offset,
                undone,
                is_forced,
            } => {
                write!(f, "released {partition}")?;
                if let Some(offset) = offset {
                    write!(f, " at {offset}")?;
                }
                if *undone > 0 {
                    write!(f, ", {undone} messages not done")?;
                }
                if *is_forced {
                    write!(f, ", forced")
                } else {
                    Ok(())
                }
            }
            Self::Lost {
                partition,
                cause,
                undone,
            } => write!(f, "lost {partition}: {cause}, {undone} messages not done"),
            Self::Waiting { partition, holder } => {
                write!(f, "waiting for {partition}, held by {holder}")
            }
            Self::Stuck {
                partition,
                holder,
                waited,
            } => {
                write!(
                    f,
                    "{partition} is stuck: held by {holder}, waited {} ms",
                    waited.as_millis()
                )
            }
            Self::Lapsed => f.write_str("the lease lapsed, delivery pauses"),
            Self::Resumed { paused } => write!(
                f,
                "the lease is renewed after {} ms, delivery goes on",
                paused.as_millis()
            ),
            Self::OffsetReset {
                partition,
                from,
                to,
                cause,
                ..
            } => {
                write!(f, "{partition}: {cause}")?;
                if let Some(from) = from {
                    write!(f, " ({from})")?;
                }
                match to {
                    Some(to) => write!(f, ", starting at {to}"),
                    None => f.write_str(", and auto.offset.reset is none: not read"),
                }
            }
            Self::OffsetMalformed { path, reason } => {
                write!(
                    f,
                    "{path} cannot be read ({reason}); the partition is held and not read until it is repaired"
                )
            }
            Self::RewindRepaired {
                partition,
                theirs,
                ours,
            } => {
                write!(
                    f,
                    "{partition}: somebody set the offset back to {theirs}, written again as {ours}"
                )
            }
            Self::ForeignAdvance {
                partition,
                theirs,
                ours,
            } => {
                write!(
                    f,
                    "{partition}: somebody set the offset forward to {theirs}, commits wait from {ours} on"
                )
            }
            Self::CommitFailed { partition, reason } => {
                write!(f, "commit of {partition} failed: {reason}")
            }
            Self::MemberMalformed { path, reason } => write!(
                f,
                "{path} cannot be read ({reason}); that member counts as absent"
            ),
            Self::TopicMalformed { path, reason } => write!(
                f,
                "{path} cannot be read ({reason}); what is held of it is kept"
            ),
            Self::TopicMissing { topic } => {
                write!(f, "topic {topic} does not exist, waiting for it")
            }
            Self::FilterBeyondUs { consumer, reason } => {
                write!(
                    f,
                    "the filter of {consumer} is beyond us ({reason}); its topics are held and not newly claimed"
                )
            }
            Self::AssignmentRefused { reason } => write!(f, "no assignment: {reason}"),
            Self::BrokersMissing { reason } => write!(f, "no broker: {reason}"),
            Self::BrokersBack => f.write_str("brokers are back"),
            Self::ReadFailed {
                partition: Some(partition),
                reason,
            } => write!(f, "reading {partition} failed: {reason}"),
            Self::ReadFailed {
                partition: None,
                reason,
            } => write!(f, "reading failed: {reason}"),
            Self::Silent {
                partition,
                ahead,
                waited,
            } => write!(
                f,
                "{partition} gave nothing for {} ms with {ahead} offsets ahead, reading is begun anew",
                waited.as_millis()
            ),
            Self::Unacknowledged {
                partition,
                offset,
                age,
                is_at_bound,
            } => {
                write!(
                    f,
                    "{partition}: offset {offset} not acknowledged for {} ms",
                    age.as_millis()
                )?;
                if *is_at_bound {
                    f.write_str(", delivery has stopped at the bound")
                } else {
                    Ok(())
                }
            }
            Self::Passed {
                partition,
                offset,
                was_handed_out: true,
            } => write!(
                f,
                "{partition}: offset {offset} is passed, it counts as done without an acknowledgement"
            ),
            Self::Passed {
                partition, offset, ..
            } => write!(
                f,
                "{partition}: offset {offset} is passed, it will not be delivered"
            ),
            Self::ListenerFailed { call, reason } => write!(f, "listener {call} failed: {reason}"),
            Self::Repaired { what } => write!(f, "repaired: {what}"),
            Self::Warning { what } => write!(f, "warning: {what}"),
            Self::Left { forced } if forced.is_empty() => f.write_str("left the group"),
            Self::Left { forced } => {
                write!(f, "left the group, {} partitions forced", forced.len())
            }
            Self::Missed { count } => write!(f, "{count} events were missed"),
        }
    }
}
