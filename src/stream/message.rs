//! A message, and the right to say that it is done.

use std::fmt;
use std::sync::Arc;

use crate::group::{Topic, TopicPartition};
use crate::lease::Moment;

use crate::stream::ownership::{Exchange, Ownership};
use crate::stream::reader::Content;

/// The right to say that a message is done. Dropping it says nothing: the message stays undone.
///
/// It belongs to one ownership of the partition. Used after that ended, it is counted and changes nothing.
#[must_use = "a message is done only once it is acknowledged"]
pub struct AckToken {
    owed: Option<Owed>,
}

struct Owed {
    ownership: Arc<Ownership>,
    offset: i64,
    beginning: u32,
}

impl Owed {
    fn settle(self, is_done: bool) {
        self.ownership.settle(self.offset, self.beginning, is_done);
    }
}

impl AckToken {
    pub(super) fn new(ownership: Arc<Ownership>, offset: i64, beginning: u32) -> Self {
        let owed = Some(Owed {
            ownership,
            offset,
            beginning,
        });
        Self { owed }
    }

    /// The message is done. Once all before it are done too, its offset is committed with the next commit.
    pub fn ack(mut self) {
        if let Some(owed) = self.owed.take() {
            owed.settle(true);
        }
    }

    pub(super) fn is_of(&self, ownership: &Arc<Ownership>) -> bool {
        Arc::ptr_eq(&self.owed().ownership, ownership)
    }

    /// Its message is done and this token is another's from now on, if the ownership agrees.
    pub(super) fn exchange(&mut self, offset: i64, bytes: usize, now: Moment) -> Exchange {
        let Some(owed) = &mut self.owed else {
            return Exchange::NotNow;
        };
        let done = (owed.offset, owed.beginning);
        let exchanged = owed.ownership.exchange(done, offset, bytes, now);
        if exchanged == Exchange::Done {
            owed.offset = offset;
        }
        exchanged
    }

    fn owed(&self) -> &Owed {
        let owed = self.owed.as_ref();
        owed.expect("it is taken only by the one who consumes the token")
    }

    /// The partition of the message.
    pub fn partition(&self) -> &TopicPartition {
        &self.owed().ownership.partition
    }

    /// The offset of the message.
    pub fn offset(&self) -> i64 {
        self.owed().offset
    }

    /// The fencing token of the ownership it belongs to: the transaction that created the owner node. It rises from owner
    /// to owner of a partition, JVM members included, as long as the ensemble's history is one.
    pub fn token(&self) -> i64 {
        self.owed().ownership.token
    }

    /// Whether the message may still be worked on: the partition is ours and the lease has not run out.
    pub fn is_valid(&self) -> bool {
        self.owed().ownership.is_valid()
    }
}

impl Drop for AckToken {
    fn drop(&mut self) {
        if let Some(owed) = self.owed.take() {
            owed.settle(false);
        }
    }
}

impl fmt::Debug for AckToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AckToken({}@{})", self.partition(), self.offset())
    }
}

/// A message, with the right to acknowledge it. It is owned, `Send`, and its bytes are not copied: it keeps the buffer it
/// was fetched in alive, which holds its neighbours too; [`into_copied`](Self::into_copied) lets go of that.
pub struct Message {
    content: Box<dyn Content>,
    token: AckToken,
}

impl Message {
    pub(super) fn new(content: Box<dyn Content>, token: AckToken) -> Self {
        Self { content, token }
    }

    pub(super) fn into_parts(self) -> (Box<dyn Content>, AckToken) {
        (self.content, self.token)
    }

    /// The topic.
    pub fn topic(&self) -> &Topic {
        &self.token.partition().topic
    }

    /// The partition's number.
    pub fn partition(&self) -> i32 {
        self.token.partition().partition
    }

    /// Topic and partition.
    pub fn topic_partition(&self) -> &TopicPartition {
        self.token.partition()
    }

    /// The offset in the partition.
    pub fn offset(&self) -> i64 {
        self.content.offset()
    }

    /// The key, if it has one.
    pub fn key(&self) -> Option<&[u8]> {
        self.content.key()
    }

    /// The payload; none is a tombstone.
    pub fn payload(&self) -> Option<&[u8]> {
        self.content.payload()
    }

    /// Milliseconds since the epoch, as the producer or the broker set it; none in the oldest format.
    pub fn timestamp_ms(&self) -> Option<i64> {
        self.content.timestamp_ms()
    }

    /// The headers in their order; none in formats before 2.
    pub fn headers(&self) -> Vec<(&str, Option<&[u8]>)> {
        self.content.headers()
    }

    /// The fencing token of the ownership, for a sink that refuses older ones. See [`AckToken::token`].
    pub fn token(&self) -> i64 {
        self.token.token()
    }

    /// Whether it may still be worked on. See [`AckToken::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.token.is_valid()
    }

    /// The message is done.
    pub fn ack(self) {
        self.token.ack();
    }

    /// Takes the message apart into the right to acknowledge it and a copy of its content.
    pub fn detach(self) -> (AckToken, Copied) {
        let copied = Copied::of(&*self.content);
        (self.token, copied)
    }

    /// The same message with its bytes copied, so that it does not keep the buffer it was fetched in.
    #[must_use]
    pub fn into_copied(self) -> Self {
        let (token, copied) = self.detach();
        Self {
            content: Box::new(copied),
            token,
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({}@{})", self.topic_partition(), self.offset())
    }
}

/// A message's content as a copy of its own, without the right to acknowledge it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Copied {
    /// The offset in its partition.
    pub offset: i64,
    /// The key, if it has one.
    pub key: Option<Vec<u8>>,
    /// The payload; none is a tombstone.
    pub payload: Option<Vec<u8>>,
    /// Milliseconds since the epoch.
    pub timestamp_ms: Option<i64>,
    /// The headers in their order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Copied {
    fn of(content: &dyn Content) -> Self {
        let header =
            |(name, value): (&str, Option<&[u8]>)| (name.to_owned(), value.map(<[u8]>::to_vec));
        Self {
            offset: content.offset(),
            key: content.key().map(<[u8]>::to_vec),
            payload: content.payload().map(<[u8]>::to_vec),
            timestamp_ms: content.timestamp_ms(),
            headers: content.headers().into_iter().map(header).collect(),
        }
    }
}

impl Content for Copied {
    fn offset(&self) -> i64 {
        self.offset
    }
    fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }
    fn payload(&self) -> Option<&[u8]> {
        self.payload.as_deref()
    }
    fn timestamp_ms(&self) -> Option<i64> {
        self.timestamp_ms
    }
    fn headers(&self) -> Vec<(&str, Option<&[u8]>)> {
        self.headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref()))
            .collect()
    }
}
