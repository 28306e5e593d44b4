//! What an application reads from, and the promises of whoever fetches it.

mod core;
mod delivery;
mod message;
mod ownership;
mod reader;

pub use self::delivery::{Lent, MessageStream, Messages, Streams};
pub use self::message::{AckToken, Copied, Message};
pub use self::ownership::{Bell, Bounds};
pub use self::reader::{
    Content, Edge, Notice, Opened, Polled, Queue, Reader, ReaderSource, Start, Trouble,
};

pub(crate) use self::core::StreamCore;
pub(crate) use self::ownership::{Common, Ownership, Passing};
