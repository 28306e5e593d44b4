//! What a registry did, apart from whose registry it was.

/// One transaction; those that failed are left out or have no changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Txn {
    /// Its place in the order of all changes.
    pub zxid: i64,
    /// Milliseconds since the epoch by the server's clock.
    pub time_ms: i64,
    /// The session that asked for it; 0 for a hand from outside.
    pub session: i64,
    /// What it changed, in order.
    pub changes: Vec<Change>,
}

/// One change of the tree or of the sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The session began.
    Opened,
    /// The session ended, and its ephemeral nodes with it, whether or not their deletions follow.
    Closed,
    /// A node was made.
    Created {
        /// Its path.
        path: String,
        /// Its data.
        data: Vec<u8>,
        /// Whether it lives and dies with the session.
        is_ephemeral: bool,
    },
    /// A node was deleted.
    Deleted {
        /// Its path.
        path: String,
    },
    /// A node was written.
    Set {
        /// Its path.
        path: String,
        /// Its new data.
        data: Vec<u8>,
        /// Its version since.
        version: i32,
    },
}
