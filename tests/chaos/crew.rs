//! A place in the group and the process that has it at present, from outside.

use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::path::PathBuf;
use std::process::ChildStdin;
use std::process::Command;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use evenkeel::clock::BootClock;
use evenkeel::clock::LeaseClock;
use serde_json::Value;

use crate::member::ORDERS;
use crate::member::Orders;
use crate::support::LONG;
use crate::support::Output;
use crate::support::Process;
use crate::support::Proxy;
use crate::support::scratch;
use crate::support::until_some_or;
use crate::walls::Wall;

/// What a process has told on its standard output.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// The number of the start with which it joined last.
    pub joined: Option<u32>,
    /// Calls of its listener that panicked.
    pub panicked: usize,
    /// Calls that took their time.
    pub blocked: usize,
    /// Tasks on the members' thread.
    pub tasks: Option<u64>,
    /// How far the wall clock of the process was ahead of ours, about.
    pub ahead_ms: Option<i64>,
}

/// A running process. Dropping it kills it.
struct Pilot {
    process: Process,
    commands: ChildStdin,
}

/// A place in the group, which has a proxy of its own.
pub struct Slot {
    number: usize,
    /// Between it and the server.
    pub proxy: Proxy,
    orders: Orders,
    folder: PathBuf,
    /// Its host's wall clock, if that may be set.
    wall: Option<Wall>,
    /// How many names it has had.
    names: u32,
    pilot: Option<Pilot>,
    heard: Arc<Mutex<Heard>>,
}

impl Slot {
    /// An empty place. The orders lack only the address, the name and the number.
    pub fn new(number: usize, server: u16, orders: Orders) -> Self {
        let proxy = Proxy::start(server);
        let folder = scratch(&format!("member-{number}"));
        Self {
            number,
            orders: Orders {
                zookeeper: proxy.connect_string(),
                ..orders
            },
            proxy,
            wall: Some(Wall::new(&folder)),
            folder,
            names: 0,
            pilot: None,
            heard: Arc::default(),
        }
    }

    /// The same place, but whoever has it reaches the server straight, and goes by the clocks of this host.
    pub fn straight(mut self, server: &str) -> Self {
        self.wall = None;
        server.clone_into(&mut self.orders.zookeeper);
        self
    }

    /// The name under `ids`, of the present process or the last.
    pub fn name(&self) -> String {
        format!("{}_{}", self.orders.group, self.orders.id)
    }

    /// Starts a process, perhaps under the last one's name. Waits for nothing.
    pub fn start(&mut self, keeps_name: bool) {
        assert!(self.pilot.is_none(), "{} has a process", self.name());
        if !keeps_name || self.names == 0 {
            self.names += 1;
            self.orders.id = format!("m{:02}x{}", self.number, self.names);
        }
        self.orders.incarnation += 1;
        let binary = std::env::current_exe().expect("a test knows its binary");
        let orders = serde_json::to_string(&self.orders).expect("plain values");
        let mut command = Command::new(binary);
        command
            .args(["obey", "--exact", "--nocapture"])
            .env(ORDERS, orders)
            .current_dir(&self.folder);
        if let Some(wall) = &self.wall {
            wall.furnish(&mut command);
        }
        let log = self.folder.join("log");
        let mut process = Process::start(&self.name(), &mut command, &log, Output::Pipes);
        let commands = process.take_stdin().expect("started with pipes");
        let lines = BufReader::new(process.take_stdout().expect("started with pipes"));
        let heard = self.heard.clone();
        {
            let mut heard = heard.lock().unwrap();
            (heard.joined, heard.ahead_ms) = (None, None);
        }
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let Ok(line) = serde_json::from_str::<Value>(&line) else {
                    continue;
                };
                let mut heard = heard.lock().unwrap();
                if let Some(number) = line["joined"].as_u64() {
                    heard.joined = u32::try_from(number).ok();
                }
                heard.tasks = line["tasks"].as_u64().or(heard.tasks);
                if let Some(wall_ms) = line["wall_ms"].as_i64() {
                    let ours = i64::try_from(BootClock.wall_ms()).expect("in this age");
                    heard.ahead_ms = Some(wall_ms - ours);
                }
                heard.panicked += usize::from(!line["panicked"].is_null());
                heard.blocked += usize::from(!line["blocked"].is_null());
            }
        });
        self.pilot = Some(Pilot { process, commands });
    }

    /// Where it is put down what it tells, whichever process it has.
    pub fn hearing(&self) -> Arc<Mutex<Heard>> {
        self.heard.clone()
    }

    /// What it has told so far.
    pub fn heard(&self) -> Heard {
        self.heard.lock().unwrap().clone()
    }

    /// Waits until it is registered.
    #[track_caller]
    pub fn await_joined(&mut self) {
        let (wanted, heard) = (self.orders.incarnation, self.heard.clone());
        let name = self.name();
        let process = &mut self.pilot.as_mut().expect("it has a process").process;
        let log = self.folder.join("log");
        until_some_or(
            LONG,
            || {
                assert!(process.is_running(), "{name} ended; {}", process.tail());
                (heard.lock().unwrap().joined == Some(wanted)).then_some(())
            },
            || {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().rev().take(30).collect();
                format!("{name} joins; its log, from the end: {lines:#?}")
            },
        );
    }

    /// Its process, which must not have ended by itself.
    #[track_caller]
    pub fn process(&mut self) -> &mut Process {
        let name = self.name();
        let pilot = self.pilot.as_mut().expect("it has a process");
        let process = &mut pilot.process;
        assert!(
            process.is_running(),
            "{name} ended by itself; {}",
            process.tail()
        );
        process
    }

    /// Makes it do something.
    #[track_caller]
    pub fn order(&mut self, command: &str) {
        self.process();
        let pilot = self.pilot.as_mut().expect("it has a process");
        writeln!(pilot.commands, "{command}").expect("it listens");
    }

    /// It leaves and joins again within its process; waits for both.
    #[track_caller]
    pub fn rejoin(&mut self) {
        self.await_joined();
        self.order("rejoin");
        self.orders.incarnation += 1;
        self.await_joined();
    }

    /// Its wall clock jumps. Whether the process was seen to go by it, which it tells every second.
    pub fn jump(&mut self, by_ms: i64) -> bool {
        const NEAR_MS: u64 = 2500;
        let wall = self.wall.as_mut().expect("a clock of its own");
        wall.jump(by_ms);
        let until = Instant::now() + Duration::from_secs(3);
        let ahead = wall.ahead_ms();
        loop {
            let seen = self.heard().ahead_ms;
            if seen.is_some_and(|seen| seen.abs_diff(ahead) < NEAR_MS) {
                return true;
            }
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// SIGKILL.
    #[track_caller]
    pub fn kill(&mut self) {
        self.process().kill();
        self.pilot = None;
    }

    /// SIGTERM, and waits until it has left.
    #[track_caller]
    pub fn leave(&mut self) {
        let name = self.name();
        let process = self.process();
        process.terminate(Duration::from_secs(30));
        let status = process.wait(LONG);
        assert!(
            status.success(),
            "{name} did not leave but ended with {status}; {}",
            process.tail()
        );
        self.pilot = None;
    }
}
