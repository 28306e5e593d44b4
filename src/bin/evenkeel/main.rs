//! The command line: shows a group at work, takes part in one, looks at one, and computes what members would.
#![forbid(unsafe_code)]
// A program shows times to people and paces its messages by the host's clock.
#![allow(clippy::disallowed_methods)]

mod consume;
mod demo;
mod describe;
mod id;
mod output;
mod plan;
mod settings;

use std::future::Future;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use tracing_subscriber::EnvFilter;

use crate::output::{Failure, Outcome, exit_code};

const ABOUT: &str = "Kafka's old ZooKeeper-run consumer groups, from Rust.

A group's members register in ZooKeeper, each computes for itself who reads which partition, and each claims its share. \
This program shows that (demo), takes part in it (consume), looks at it (describe), and computes what the members \
compute: their names (id) and who gets what (plan).";

const EXAMPLES: &str = "Examples:
  evenkeel demo
      Watch a group join, leave and die; no server is needed.
  evenkeel consume --zookeeper zk1:2181/kafka --group etl --topic orders=2
      Read a topic with two streams, as one more member of the group.
  evenkeel describe --zookeeper zk1:2181/kafka --group etl
      See who is in the group, who has which partition, and how far behind it is.
  evenkeel id --host app01.example.com --group etl
      The name that a member on this host would have.
  evenkeel plan < view.json
      Who would get which partition.

Exit codes: 0 done, 1 failed, 2 bad input. RUST_LOG=info shows the library's own log on standard error.
A verb's --help has more: evenkeel consume --help";

#[derive(Parser)]
#[command(
    name = "evenkeel",
    version,
    about = "Kafka's old ZooKeeper-run consumer groups, from Rust",
    long_about = ABOUT,
    after_help = EXAMPLES,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Demo(demo::Demo),
    Consume(consume::Consume),
    Describe(describe::Describe),
    Id(id::Id),
    Plan(plan::Plan),
    /// Print the completions for a shell
    #[command(
        after_help = "Example:\n  evenkeel completions bash > ~/.local/share/bash-completion/completions/evenkeel"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    listen_to_rust_log();
    exit_code(run(cli.verb))
}

fn run(verb: Verb) -> Outcome {
    match verb {
        Verb::Demo(demo) => block_on(demo.run()),
        Verb::Consume(consume) => block_on(consume.run()),
        Verb::Describe(describe) => block_on(describe.run()),
        Verb::Id(id) => id.run(),
        Verb::Plan(plan) => plan.run(io::stdin().lock()),
        Verb::Completions { shell } => completions(shell),
    }
}

/// Runs a verb's future; what it left running in the background is not waited for.
fn block_on(verb: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("cannot start: {error}")))?;
    let outcome = runtime.block_on(verb);
    runtime.shutdown_background();
    outcome
}

/// The library's log is for those who ask for it: its events are told anyway.
fn listen_to_rust_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("off"));
    let has_color = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(has_color && std::io::IsTerminal::is_terminal(&io::stderr()))
        .with_writer(io::stderr)
        .init();
}

fn completions(shell: Shell) -> Outcome {
    // Written by us, since the generator panics at a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "evenkeel", &mut script);
    let mut out = io::stdout().lock();
    out.write_all(&script)?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
