//! What the watcher sees: a table that is drawn over and over in a terminal, plain lines elsewhere.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};

use crate::output::Outcome;

/// A bar is at most so long.
const BAR: usize = 16;

/// One moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frame {
    pub title: String,
    /// For every host its members, its partitions, and what it was given in the last second.
    pub hosts: BTreeMap<String, Row>,
    pub sent: usize,
    pub finished: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Row {
    pub members: usize,
    pub partitions: usize,
    pub lately: usize,
}

pub struct Show {
    is_live: bool,
    has_color: bool,
    /// Lines of the table that stand on the screen.
    drawn: usize,
}

impl Show {
    pub fn new() -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let is_live = io::stdout().is_terminal() && !is_dumb;
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            is_live,
            has_color: is_live && !no_color,
            drawn: 0,
        }
    }

    /// A line that stays.
    pub fn say(&mut self, line: &str) -> Outcome {
        let mut out = self.erased();
        out += line;
        out.push('\n');
        print(&out)
    }

    /// A line that stays and begins something.
    pub fn head(&mut self, line: &str) -> Outcome {
        match self.has_color {
            true => self.say(&format!("\x1b[1m{line}\x1b[0m")),
            false => self.say(line),
        }
    }

    /// The moment, in the place of the one before. Elsewhere than in a terminal nothing.
    pub fn draw(&mut self, frame: &Frame) -> Outcome {
        if !self.is_live {
            return Ok(());
        }
        let mut out = self.erased();
        let lines = lines(frame, self.has_color);
        self.drawn = lines.len();
        for line in lines {
            out += &line;
            out.push('\n');
        }
        print(&out)
    }

    /// What takes the table off the screen.
    fn erased(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        }
    }
}

fn print(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

pub fn bar(length: usize) -> String {
    "█".repeat(length.min(BAR))
}

fn lines(frame: &Frame, has_color: bool) -> Vec<String> {
    let mut lines = vec![String::new(), format!("  {}", frame.title)];
    for (host, row) in &frame.hosts {
        let bar = bar(row.partitions);
        let gap = " ".repeat(BAR.saturating_sub(row.partitions));
        let bar = match has_color {
            true => format!("\x1b[36m{bar}\x1b[0m{gap}"),
            false => bar + &gap,
        };
        lines.push(format!(
            "  {host}  {bar}  {:>2} partitions  {:>2} members  {:>4} msg/s",
            row.partitions, row.members, row.lately
        ));
    }
    let open = frame.sent.saturating_sub(frame.finished);
    lines.push(format!(
        "  {} sent, {} delivered, {open} under way",
        frame.sent, frame.finished
    ));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_line_with_a_bar_of_its_partitions() {
        let row = Row {
            members: 8,
            partitions: 3,
            lately: 75,
        };
        let frame = Frame {
            title: "all is well".to_owned(),
            hosts: BTreeMap::from([("app01".to_owned(), row)]),
            sent: 10,
            finished: 7,
        };
        let lines = lines(&frame, false);
        assert_eq!(lines.len(), 4);
        assert_eq!(
            lines[2],
            "  app01  ███                3 partitions   8 members    75 msg/s"
        );
        assert_eq!(lines[3], "  10 sent, 7 delivered, 3 under way");
    }
}
