//! What can go wrong, in one opaque type that says what we were doing and with what.

use std::error::Error as StdError;
use std::fmt;

/// The result of most calls of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What sort of trouble an [`Error`] is, for callers that decide by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting, name or argument was refused before anything was written.
    Config,
    /// A server could not be reached, or does not speak what we need.
    Connection,
    /// The ZooKeeper session ended; the member starts anew by itself.
    SessionLost,
    /// Another live session holds our consumer id.
    IdHeld,
    /// The server refused us the right to read or write something.
    NoAuth,
    /// Data written by somebody else could not be understood.
    Malformed,
    /// The assignment was refused, as old releases refuse some round-robin groups.
    Assignment,
    /// A broker, or the Kafka client, failed.
    Kafka,
    /// The partition is not ours (any more), so the request was not carried out.
    NotOwned,
    /// The call did not end within its time; its outcome may be unknown.
    Timeout,
    /// The connector has been shut down or dropped.
    Closed,
    /// A defect of this library or of one below it.
    Internal,
}

/// What went wrong: a sentence without a full stop, a [kind](ErrorKind), and the cause if there is one.
///
/// The text names the key, path or node concerned. It never holds a secret.
pub struct Error {
    kind: ErrorKind,
    text: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of this kind; `text` says what we were doing and with what, in lower case.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
            source: None,
        }
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What sort of trouble it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn config(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, text)
    }

    pub(crate) fn malformed(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Malformed, text)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match &self.source {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)
    }
}

impl StdError for Error {}

/// Text of somebody else's making, fit for a log or a terminal: control characters and marks that turn a line around are
/// escaped, and it is cut after 256 bytes.
pub fn printable(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        // Bidirectional marks turn a terminal's line around just as control characters do.
        let hidden = c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
        let piece = if hidden {
            c.escape_unicode().to_string()
        } else {
            c.to_string()
        };
        if out.len() + piece.len() > 256 {
            out.push('…');
            break;
        }
        out.push_str(&piece);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_and_why() {
        let error = Error::malformed("malformed znode while reading the registration of g_c1")
            .with_source(std::io::Error::other("not JSON"));
        assert_eq!(
            error.to_string(),
            "malformed znode while reading the registration of g_c1: not JSON"
        );
        assert_eq!(error.kind(), ErrorKind::Malformed);
    }

    #[test]
    fn foreign_text_cannot_forge_a_line() {
        assert_eq!(
            printable("a\r\nb\u{1b}[31m\u{202e}c"),
            "a\\u{d}\\u{a}b\\u{1b}[31m\\u{202e}c"
        );
        assert!(printable(&"x".repeat(10_000)).len() < 300);
    }
}
