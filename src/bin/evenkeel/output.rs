//! How a verb ends, and with what exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use evenkeel::{Error, ErrorKind};
use serde_json::Value;

/// Why a verb did not do what it was asked for.
#[derive(Debug)]
pub enum Failure {
    /// What was given cannot be used; exit code 2.
    BadInput(String),
    /// It was tried and failed; exit code 1.
    Failed(String),
    /// Whoever read our output has gone, as it may; exit code 0.
    ClosedPipe,
}

/// How a verb ends.
pub type Outcome<T = ()> = Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Config => Self::BadInput(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::Failed(format!("cannot write the output: {error}")),
        }
    }
}

/// A refusal of what was given.
pub fn bad<T>(text: impl Into<String>) -> Outcome<T> {
    Err(Failure::BadInput(text.into()))
}

/// A line for people, on standard error. If nobody reads it, so be it.
pub fn say(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// One JSON document and a line break, on standard output.
pub fn print_json(value: &Value) -> Outcome {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}

/// Says why, if there is something to say, and answers with the exit code.
pub fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) | Err(Failure::ClosedPipe) => ExitCode::SUCCESS,
        Err(Failure::Failed(why)) => {
            say(format_args!("evenkeel: {why}"));
            ExitCode::from(1)
        }
        Err(Failure::BadInput(why)) => {
            say(format_args!("evenkeel: {why}"));
            ExitCode::from(2)
        }
    }
}
