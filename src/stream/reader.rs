//! The promises of whoever fetches messages.

use std::sync::Arc;

use crate::error::Error;
use crate::group::TopicPartition;
use crate::registry::Later;
use crate::wire::Broker;

use crate::stream::ownership::Bell;

/// One message's content, wherever its bytes lie.
pub trait Content: Send + Sync {
    /// The offset in its partition.
    fn offset(&self) -> i64;
    /// The key, if it has one.
    fn key(&self) -> Option<&[u8]>;
    /// The payload; none is a tombstone.
    fn payload(&self) -> Option<&[u8]>;
    /// Milliseconds since the epoch, as the producer or the broker set it; none in the oldest format.
    fn timestamp_ms(&self) -> Option<i64>;
    /// The headers in their order; none in formats before 2.
    fn headers(&self) -> Vec<(&str, Option<&[u8]>)>;
}

/// What a look into a partition's queue found.
pub enum Polled {
    /// The next message.
    Message(Box<dyn Content>),
    /// Nothing at the moment. The bell is rung when there is.
    Empty,
    /// The partition cannot be read on from here; the queue gives nothing more.
    Trouble(Trouble),
}

/// Why a partition cannot be read on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The log does not have the offset that was asked for.
    OutOfRange,
    /// A broker or the client reported this; it is worth another try from the same position.
    Failed(String),
}

/// What was fetched of one partition since it was last started.
pub trait Queue: Send {
    /// Takes the next message without waiting.
    fn poll(&mut self) -> Polled;
}

/// Where to begin reading a partition, and the bell to ring whenever its queue becomes non-empty.
#[derive(Debug, Clone)]
pub struct Start {
    /// The partition.
    pub partition: TopicPartition,
    /// The first offset wanted.
    pub offset: i64,
    /// Rung when the queue, found empty before, has something; ringing too often does no harm.
    pub bell: Bell,
}

/// One end of a partition's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// The oldest offset there is.
    Earliest,
    /// The offset that the next message to be written will get.
    Latest,
}

/// Something about the brokers as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// No broker can be reached, for this reason. Told once until [`Notice::BrokersBack`].
    BrokersDown(String),
    /// One can be reached again.
    BrokersBack,
    /// Something else worth an event.
    Warning(String),
}

/// What became of each partition that was to be read.
pub type Opened = Vec<(TopicPartition, Result<Box<dyn Queue>, Error>)>;

/// Fetches messages. It decides nothing: positions, resets and commits are the member's.
pub trait Reader: Send + Sync {
    /// Begins to fetch these partitions, each from its offset; answers for each with its queue.
    /// A partition that is being fetched already begins anew; its old queue gives nothing more.
    fn read(&self, starts: Vec<Start>) -> Later<Opened>;

    /// Stops fetching these partitions. Does not wait, and does not mind one that is not being fetched.
    fn stop(&self, partitions: &[TopicPartition]);

    /// Asks the leader for one end of a partition's log.
    fn edge(&self, partition: &TopicPartition, edge: Edge) -> Later<Result<i64, Error>>;

    /// The next notice about the brokers; waits until there is one. Dropping the future loses none.
    fn notice(&self) -> Later<Notice>;

    /// Lets go of everything. Resolves when that is done, or cannot be done within the reader's own deadline.
    /// Messages that are still in somebody's hands stay readable.
    fn close(&self) -> Later<()>;
}

/// Makes a member's reader once it is known where the brokers are.
pub trait ReaderSource: Send + Sync {
    /// Whether the brokers must be found in ZooKeeper, since nobody named any.
    fn needs_brokers(&self) -> bool;

    /// Makes one for the brokers that are registered; they are ignored if others were named. `partitions` is how many are
    /// likely to be read at a time, which bounds what each may hold.
    ///
    /// # Errors
    /// A setting that the client refuses, or a registration from which no address can be had.
    fn open(&self, brokers: &[Broker], partitions: usize) -> Result<Arc<dyn Reader>, Error>;
}
