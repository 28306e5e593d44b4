//! What an application reads from: streams that lend messages or hand them over.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::stream::unfold;

use crate::group::{Topic, TopicPartition};

use crate::stream::core::{Step, StreamCore};
use crate::stream::message::{AckToken, Message};
use crate::stream::reader::Content;

/// A message that is lent until the next one is asked for, which marks it done.
pub struct Lent<'a> {
    message: Box<dyn Content>,
    stream: &'a mut MessageStream,
}

impl Lent<'_> {
    /// Leaves the message undone, as after processing that failed: nothing at or after its offset is committed in this
    /// ownership, and the next owner, or this member after it claimed the partition anew, delivers it again.
    pub fn leave_undone(self) {
        self.stream.lent = None;
    }
}

/// A lent message reads like an owned one.
impl Lent<'_> {
    fn right(&self) -> &AckToken {
        self.stream
            .lent
            .as_ref()
            .expect("it is there as long as the message is lent")
    }

    /// Topic and partition.
    pub fn topic_partition(&self) -> &TopicPartition {
        self.right().partition()
    }

    /// The topic.
    pub fn topic(&self) -> &Topic {
        &self.topic_partition().topic
    }

    /// The partition's number.
    pub fn partition(&self) -> i32 {
        self.topic_partition().partition
    }

    /// The fencing token of the ownership. See [`AckToken::token`].
    pub fn token(&self) -> i64 {
        self.right().token()
    }

    /// Whether it may still be worked on. See [`AckToken::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.right().is_valid()
    }
}

impl Deref for Lent<'_> {
    type Target = dyn Content;

    fn deref(&self) -> &(dyn Content + 'static) {
        &*self.message
    }
}

impl fmt::Debug for Lent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Lent({}@{})",
            self.topic_partition(),
            self.message.offset()
        )
    }
}

/// One stream of messages: those of the partitions that its number owns at the moment.
///
/// Works from any executor; every call that waits is cancel-safe. Messages of one partition come in order.
/// A stream that is dropped delivers nothing more; its partitions stay with the member until it leaves.
pub struct MessageStream {
    core: Arc<StreamCore>,
    lent: Option<AckToken>,
}

impl MessageStream {
    pub(crate) fn new(core: Arc<StreamCore>) -> Self {
        Self { core, lent: None }
    }

    /// The topic it reads.
    pub fn topic(&self) -> &Topic {
        &self.core.topic
    }

    /// Its number among the member's streams of the topic, from 0.
    pub fn number(&self) -> u32 {
        self.core.number
    }

    /// Lends the next message; `None` once the member has left. Asking again marks the lent one done.
    ///
    /// To stop after a message and have it count, call [`done`](Self::done) before leaving. One that is still lent when
    /// the stream is dropped is not done.
    pub async fn recv(&mut self) -> Option<Lent<'_>> {
        let followed = self.lent.as_mut().and_then(|lent| self.core.follow(lent));
        let message = match followed {
            Some(content) => content,
            None => {
                let (content, token) = self.next().await?.into_parts();
                self.lent = Some(token);
                content
            }
        };
        Some(Lent {
            message,
            stream: self,
        })
    }

    /// Hands the next message over; `None` once the member has left. Only [`Message::ack`] marks it done.
    pub async fn recv_owned(&mut self) -> Option<Message> {
        self.next().await
    }

    /// Hands over up to `max` messages: what is there, at least one. Empty once the member has left, or if `max` is 0.
    pub async fn recv_many(&mut self, max: usize) -> Vec<Message> {
        let mut messages = Vec::new();
        if max == 0 {
            return messages;
        }
        messages.extend(self.next().await);
        while !messages.is_empty() && messages.len() < max {
            match self.core.step() {
                Step::Message(message) => messages.push(message),
                Step::Wait | Step::Ended => break,
            }
        }
        messages
    }

    /// Marks the lent message, if there is one, done without asking for the next.
    pub fn done(&mut self) {
        if let Some(token) = self.lent.take() {
            token.ack();
        }
    }

    /// The same as a [`Stream`] of owned messages.
    pub fn into_messages(self) -> Messages {
        Messages(Box::pin(unfold(self, |mut stream| async move {
            let message = stream.recv_owned().await?;
            Some((message, stream))
        })))
    }

    async fn next(&mut self) -> Option<Message> {
        self.done();
        loop {
            match self.core.step() {
                Step::Message(message) => return Some(message),
                Step::Ended => return None,
                Step::Wait => self.core.bell.rung().await,
            }
        }
    }
}

impl fmt::Debug for MessageStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageStream({}/{})", self.core.topic, self.core.number)
    }
}

/// A [`Stream`] of owned messages; ends when the member has left.
pub struct Messages(Pin<Box<dyn Stream<Item = Message> + Send>>);

impl Stream for Messages {
    type Item = Message;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Message>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Messages")
    }
}

/// The streams of a member: topic, then one for each stream number.
pub type Streams = BTreeMap<Topic, Vec<MessageStream>>;
