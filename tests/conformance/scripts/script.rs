//! A script: what three clients do one after another, as data. It can be printed, kept and played again.

use std::fmt;

use serde::Deserialize;
use serde::Serialize;

/// How many clients there are.
pub const CLIENTS: usize = 3;

/// What was drawn from a seed, or what is left of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    pub seed: u64,
    pub steps: Vec<Step>,
}

/// What one client does next. The step after it begins when all its answers are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Opens a session; one that it still has is let go of first. `old` is for the dialect of 3.4.
    Open { client: usize, old: bool },
    /// Asks, and goes on asking before there is an answer if there is more than one.
    Ask { client: usize, asks: Vec<Ask> },
    /// Drops one of its watches that have not fired, counted round.
    Unwatch { client: usize, which: usize },
    /// Ends its session, and keeps the connection: it may be asked afterwards.
    Close { client: usize },
    /// Lets go of its connection.
    Drop { client: usize },
}

/// One request. Paths are below the node that a play has for itself, which is the empty path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    Data { path: String, watch: bool },
    Stat { path: String, watch: bool },
    Children { path: String, watch: bool },
    Write(Write),
    Multi(Vec<Write>),
}

/// What is written: a text so many times, so that what is large is still told in few words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    pub text: String,
    pub times: usize,
}

impl Data {
    pub fn bytes(&self) -> Vec<u8> {
        self.text.repeat(self.times).into_bytes()
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.times {
            1 => write!(f, "{:?}", self.text),
            times => write!(f, "{times} * {:?}", self.text),
        }
    }
}

/// A request of its own, or a step of a transaction; a check is always the latter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Write {
    Check {
        path: String,
        version: Option<i32>,
    },
    Create {
        path: String,
        data: Data,
        ephemeral: bool,
    },
    Set {
        path: String,
        data: Data,
        version: Option<i32>,
    },
    Delete {
        path: String,
        version: Option<i32>,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { client, old } => {
                write!(f, "c{client} open{}", if *old { " as 3.4" } else { "" })
            }
            Self::Ask { client, asks } => {
                write!(f, "c{client}")?;
                let mut mark = "";
                for ask in asks {
                    write!(f, "{mark} {ask}")?;
                    mark = ",";
                }
                Ok(())
            }
            Self::Unwatch { client, which } => write!(f, "c{client} unwatch {which}"),
            Self::Close { client } => write!(f, "c{client} close"),
            Self::Drop { client } => write!(f, "c{client} drop"),
        }
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, path, watch) = match self {
            Self::Data { path, watch } => ("data", path, watch),
            Self::Stat { path, watch } => ("stat", path, watch),
            Self::Children { path, watch } => ("children", path, watch),
            Self::Write(write) => return write.fmt(f),
            Self::Multi(writes) => {
                f.write_str("[")?;
                let mut mark = "";
                for write in writes {
                    write!(f, "{mark}{write}")?;
                    mark = "; ";
                }
                return f.write_str("]");
            }
        };
        let watch = if *watch { " watching" } else { "" };
        write!(f, "{what} {path:?}{watch}")
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = match self {
            Self::Check { path, version } => {
                write!(f, "check {path:?}")?;
                version
            }
            Self::Create {
                path,
                data,
                ephemeral,
            } => {
                let kind = if *ephemeral { " ephemeral" } else { "" };
                return write!(f, "create{kind} {path:?} {data}");
            }
            Self::Set {
                path,
                data,
                version,
            } => {
                write!(f, "set {path:?} {data}")?;
                version
            }
            Self::Delete { path, version } => {
                write!(f, "delete {path:?}")?;
                version
            }
        };
        match version {
            Some(version) => write!(f, " at {version}"),
            None => Ok(()),
        }
    }
}
