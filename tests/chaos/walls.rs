//! Wall clocks that jump: each place in the group has one of its own, that of the host it would be on.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::support::scratch;

/// The library that is put in front of the C library, compiled once.
fn library() -> &'static Path {
    static ONE: OnceLock<PathBuf> = OnceLock::new();
    ONE.get_or_init(|| {
        let library = scratch("wall-clock").join("wall_clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chaos/wall_clock.c");
        let made = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-O2", "-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .arg("-ldl")
            .output()
            .expect("cc, which the build needs as well");
        let complaint = String::from_utf8_lossy(&made.stderr);
        assert!(
            made.status.success(),
            "clocks that jump want Linux and its C library: {complaint}"
        );
        library
    })
}

/// One wall clock, whichever process goes by it.
pub struct Wall {
    place: PathBuf,
    file: File,
    ahead_ms: i64,
}

impl Wall {
    /// One that agrees with the host's, kept in this folder.
    pub fn new(folder: &Path) -> Self {
        let place = folder.join("wall-clock");
        let file = File::create(&place).expect("a folder of our own");
        let mut wall = Self {
            place,
            file,
            ahead_ms: 0,
        };
        wall.jump(0);
        wall
    }

    /// Has a process that is about to be started go by it.
    pub fn furnish(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", library())
            .env("EVENKEEL_WALL_CLOCK", &self.place);
    }

    /// Forward, or back if that is less than nothing. Whoever goes by it sees that at once.
    pub fn jump(&mut self, by_ms: i64) {
        self.ahead_ms += by_ms;
        let ahead = self.ahead_ms * 1_000_000;
        let written = self.file.write_all_at(&ahead.to_ne_bytes(), 0);
        written.expect("a file of our own");
    }

    /// How far it is ahead of the host's.
    pub fn ahead_ms(&self) -> i64 {
        self.ahead_ms
    }
}
