//! Event logs of real processes, for the judge of runs: one file for each writer, one line an event.

use std::fs::File;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use evenkeel::Event as Told;
use evenkeel::clock::BootClock;
use evenkeel::clock::LeaseClock;
use evenkeel::testing::check::Event;
use evenkeel::testing::check::Fact;
use evenkeel::testing::check::Hearing;

/// The name under which a member takes down that its lease ran out.
pub const LAPSED: &str = "lapsed";

/// A writer's file. Its times are those of the host's clock since the boot, which all processes share.
pub struct Journal {
    member: Arc<str>,
    incarnation: u32,
    file: Mutex<(File, u64)>,
    hearing: Mutex<Hearing>,
}

impl Journal {
    /// The file of one start of a writer, in a folder that all of a run share.
    ///
    /// # Panics
    ///
    /// When there is one already: a number belongs to one start.
    pub fn create(folder: &Path, member: &str, incarnation: u32) -> Self {
        let path = folder.join(format!("{member}.{incarnation}.jsonl"));
        let file = OpenOptions::new().append(true).create_new(true).open(path);
        Self {
            member: member.into(),
            incarnation,
            file: Mutex::new((file.expect("a new event log"), 0)),
            hearing: Mutex::default(),
        }
    }

    /// Takes an event down, with one call, so that a kill tears the last line at most.
    pub fn note(&self, fact: Fact) {
        self.write(None, fact);
    }

    /// The same for something that happened a moment ago, by the clock of [`now`](super::now).
    pub fn note_at(&self, mono: u64, fact: Fact) {
        self.write(Some(mono), fact);
    }

    fn write(&self, at: Option<u64>, fact: Fact) {
        let mut file = self.file.lock().unwrap();
        file.1 += 1;
        let event = Event {
            member: self.member.clone(),
            incarnation: self.incarnation,
            seq: file.1,
            mono: at.unwrap_or_else(|| BootClock.now().nanos()),
            zxid: None,
            fact,
        };
        let line = event.to_line();
        file.0.write_all(line.as_bytes()).expect("the log takes it");
    }

    /// What a member tells, as far as the judge wants to know it.
    pub fn hear(&self, told: &Told) {
        let heard = self.hearing.lock().unwrap().hear(told);
        match told {
            Told::Lapsed => self.note(Fact::Other(LAPSED.to_owned())),
            // A call that panicked has ended.
            Told::ListenerFailed { call, reason } if !reason.contains("panic") => {
                self.note(Fact::Overrun {
                    name: (*call).to_owned(),
                });
            }
            _ => heard.into_iter().for_each(|fact| self.note(fact)),
        }
    }

    /// What the wall clock shows now.
    pub fn clock(&self) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let real_us = since.expect("after 1970").as_micros();
        let real_us = i64::try_from(real_us).expect("in this age");
        self.note(Fact::Clock { real_us });
    }
}
