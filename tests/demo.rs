//! `evenkeel demo`, as a program: what it shows, that a seed repeats it, and how it looks in a terminal.
// Waiting for other processes needs real clocks.
#![allow(clippy::disallowed_methods)]

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.arg("demo").args(arguments).stdin(Stdio::null());
    command
}

fn start(arguments: &[&str]) -> Child {
    let mut demo = demo(arguments);
    demo.stdout(Stdio::piped()).stderr(Stdio::piped());
    demo.spawn().unwrap()
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

const ACTS: [&str; 7] = [
    "nothing changes",
    "a member joins",
    "a member leaves",
    "a member dies",
    "a host joins",
    "a host leaves",
    "a host dies",
];

/// What happens, without the times.
fn acts(output: &Output) -> Vec<&str> {
    let lines = out(output).lines().filter(|line| line.starts_with('['));
    let untimed = lines.filter_map(|line| line.split_once("s] ").map(|(_, rest)| rest));
    // What came of an act is set in, and takes its time.
    untimed.filter(|rest| !rest.starts_with(' ')).collect()
}

#[test]
fn the_demo_loses_nothing_and_a_seed_repeats_what_happens() {
    let began = Instant::now();
    let [first, second] = [start(&["--seed", "3"]), start(&["--seed", "3"])];
    let first = first.wait_with_output().unwrap();
    assert!(
        began.elapsed() <= Duration::from_secs(60),
        "it ends by itself within 60 s: {:?}",
        began.elapsed()
    );
    let second = second.wait_with_output().unwrap();
    for output in [&first, &second] {
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}{}",
            out(output),
            err(output)
        );
        assert_balance(out(output).lines().last().unwrap());
        // Plain when piped.
        assert!(!out(output).contains('\x1b'));
        assert!(out(output).contains("with the old ids"));
        let acts = acts(output);
        assert_eq!(acts.len(), ACTS.len(), "{acts:?}");
        for (act, name) in acts.iter().zip(ACTS) {
            assert!(act.starts_with(&format!("{name}: ")), "{act}");
        }
        assert_pauses(out(output));
    }
    assert_eq!(acts(&first), acts(&second));
}

fn assert_balance(last: &str) {
    let numbers: Vec<u64> = last
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect();
    let [sent, delivered, lost, again, after_death, _, ..] = numbers[..] else {
        panic!("{last}");
    };
    assert!(sent > 1000, "{last}");
    assert_eq!((delivered, lost), (sent, 0), "{last}");
    assert!(0 < after_death && after_death <= again, "{last}");
    let words = last.replace(|c: char| c.is_ascii_digit(), "");
    let line = " sent,  delivered,  lost,  redelivered ( after a death,  after a clean hand-over";
    assert!(words.starts_with(line), "{last}");
}

/// A row for each act: how long until it had settled, the longest pause, and what was delivered again.
fn assert_pauses(text: &str) {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("change "));
    let header = lines.next().expect("there is a table of pauses");
    for column in [
        "settled after",
        "longest pause (partition)",
        "delivered again",
    ] {
        assert!(header.contains(column), "{header}");
    }
    for name in ACTS {
        let row = lines.next().unwrap_or_default();
        let cells = row
            .strip_prefix(name)
            .unwrap_or_else(|| panic!("{name}: {row}"));
        let cells: Vec<&str> = cells.split_whitespace().collect();
        let [settled, "ms", pause, "ms", again] = cells[..] else {
            panic!("{row}");
        };
        for number in [settled, pause, again] {
            assert!(number.parse::<u64>().is_ok(), "{row}");
        }
        // A clean change doubles none.
        if !name.ends_with("dies") {
            assert_eq!(again, "0", "{row}");
        }
    }
}

#[test]
fn another_seed_is_another_script() {
    // Only until the first member was chosen.
    let chosen = |seed: &str| {
        let mut demo = start(&["--seed", seed]);
        let mut lines =
            std::io::BufRead::lines(std::io::BufReader::new(demo.stdout.take().unwrap()));
        let line = lines.find_map(|line| line.ok().filter(|line| line.contains("a member joins")));
        demo.kill().unwrap();
        demo.wait().unwrap();
        let line = line.expect("somebody joins");
        line.split_once("s] ").unwrap().1.to_owned()
    };
    let chosen: std::collections::BTreeSet<String> = ["1", "2", "3", "4"].map(chosen).into();
    assert!(chosen.len() > 1, "{chosen:?}");
}

#[test]
fn the_demo_ends_without_a_word_when_nobody_watches() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = demo(&[])
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!((output.status.code(), err(&output)), (Some(0), ""));
}

/// What it writes into a terminal, until the first act has begun and was drawn.
#[cfg(target_os = "linux")]
fn in_a_terminal(no_color: Option<&str>) -> String {
    use rustix::pty;
    use std::io::Read;

    let flags = pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY;
    let terminal = pty::openpt(flags).unwrap();
    pty::grantpt(&terminal).unwrap();
    pty::unlockpt(&terminal).unwrap();
    let name = pty::ptsname(&terminal, Vec::new()).unwrap();
    let name = name.to_str().unwrap();
    let screen = std::fs::File::options().write(true).open(name).unwrap();
    let mut demo = demo(&[]);
    demo.env("TERM", "xterm").env_remove("NO_COLOR");
    if let Some(value) = no_color {
        demo.env("NO_COLOR", value);
    }
    let mut running = demo
        .stdout(screen.try_clone().unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut terminal = std::fs::File::from(terminal);
    let (mut shown, mut chunk) = (String::new(), [0; 4096]);
    let is_drawn = |shown: &str| {
        let after = shown.split_once("nothing changes");
        after.is_some_and(|(_, after)| after.contains("msg/s"))
    };
    while !is_drawn(&shown) {
        let read = terminal.read(&mut chunk).unwrap();
        shown += &String::from_utf8_lossy(&chunk[..read]);
    }
    running.kill().unwrap();
    running.wait().unwrap();
    shown
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_shows_colours_unless_they_are_not_wanted() {
    const COLOURS: [&str; 2] = ["\x1b[1m", "\x1b[36m"];
    for (no_color, has_colours) in [(None, true), (Some(""), true), (Some("1"), false)] {
        let shown = in_a_terminal(no_color);
        for colour in COLOURS {
            assert_eq!(
                shown.contains(colour),
                has_colours,
                "{no_color:?} {shown:?}"
            );
        }
        // The table is drawn over in any case.
        assert!(shown.contains("A\x1b[J"), "{shown:?}");
    }
}
