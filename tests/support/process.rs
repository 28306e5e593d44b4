//! Child processes that never outlive the test.
//!
//! Each test process has one scratch folder and one watchdog, a shell that reads from a pipe. When the pipe closes, because the test process
//! is gone for whatever reason, it kills every process that is still on its list, removes the network namespaces that are, and then the
//! folder. `EVENKEEL_KEEP=1` keeps the folder.

use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::ChildStdin;
use std::process::ChildStdout;
use std::process::Command;
use std::process::ExitStatus;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::time::Duration;

use super::wait::until_some;

// Signals meant for the whole foreground group must not end it before its work is done.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP QUIT
list=' '
nets=' '
while read -r word what; do
    case $word in
        + ) list="$list$what " ;;
        - ) list="${list%% $what *} ${list#* $what }" ;;
        net+ ) nets="$nets$what " ;;
        net- ) nets="${nets%% $what *} ${nets#* $what }" ;;
    esac
done
for pid in $list; do kill -9 "$pid" 2>/dev/null; done
for net in $nets; do ip netns del "$net"; done
[ -n "$EVENKEEL_KEEP" ] || rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
"#;

struct Watchdog {
    pipe: ChildStdin,
    folder: PathBuf,
}

fn watchdog() -> &'static Mutex<Watchdog> {
    static ONE: OnceLock<Mutex<Watchdog>> = OnceLock::new();
    ONE.get_or_init(|| {
        let folder = tempfile::Builder::new()
            .prefix("evenkeel-")
            .tempdir()
            .expect("a scratch folder")
            .keep();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let pipe = shell
            .spawn()
            .expect("sh can be started")
            .stdin
            .expect("its standard input is a pipe");
        Mutex::new(Watchdog { pipe, folder })
    })
}

/// `+` and `-` with a process id, `net+` and `net-` with the name of a network namespace.
pub(super) fn tell_watchdog(word: &str, what: impl Display) {
    let mut watchdog = watchdog().lock().unwrap();
    writeln!(watchdog.pipe, "{word} {what}").expect("the watchdog lives as long as we do");
}

/// A new folder of its own below this test process's scratch folder.
pub fn scratch(name: &str) -> PathBuf {
    let root = watchdog().lock().unwrap().folder.clone();
    tempfile::Builder::new()
        .prefix(&format!("{name}-"))
        .tempdir_in(root)
        .expect("a scratch folder")
        .keep()
}

/// A running server or member. Dropping it kills it.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    before: u64,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts the command with its standard error, and its standard output unless that is taken, appended to `log`.
    pub fn start(name: &str, command: &mut Command, log: &Path, output: Output) -> Self {
        let file = File::options()
            .append(true)
            .create(true)
            .open(log)
            .expect("a log file");
        match output {
            Output::Log => command.stdout(file.try_clone().expect("a log file")),
            Output::Pipes => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
        };
        let before = file.metadata().expect("a log file").len();
        let child = command
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        tell_watchdog("+", child.id());
        Self {
            name: name.to_string(),
            child,
            log: log.to_path_buf(),
            before,
            ended: None,
        }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What we write to it, the first time it is asked for, if it was started with pipes.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// What it writes, the first time it is asked for, if it was started with pipes.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Whether it has not ended yet. One that is stopped by [`Process::pause`] counts as running.
    pub fn is_running(&mut self) -> bool {
        if self.ended.is_none()
            && let Some(status) = self.child.try_wait().expect("a child can be asked for")
        {
            self.ended = Some(status);
            tell_watchdog("-", self.child.id());
        }
        self.ended.is_none()
    }

    /// SIGTERM, and waits for the end; SIGKILL past the limit.
    pub fn terminate(&mut self, limit: Duration) {
        self.signal("TERM");
        let deadline = std::time::Instant::now() + limit;
        while self.is_running() && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
    }

    /// SIGKILL, and waits until it is gone. Nothing happens to one that has ended.
    pub fn kill(&mut self) {
        if self.is_running() {
            self.child.kill().expect("our own child can be killed");
            self.child.wait().expect("our own child can be waited for");
        }
        assert!(!self.is_running());
    }

    /// SIGSTOP: it stands still, its connections stay open.
    pub fn pause(&mut self) {
        self.signal("STOP");
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        self.signal("CONT");
    }

    fn signal(&mut self, signal: &str) {
        if self.is_running() {
            let script = format!("kill -{signal} {}", self.id());
            let status = Command::new("sh")
                .args(["-c", &script])
                .stderr(Stdio::null())
                .status()
                .expect("sh can be started");
            assert!(status.success() || !self.is_running(), "{script} failed");
        }
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("the end of {}", self.name);
        until_some(&what, limit, || {
            if self.is_running() { None } else { self.ended }
        })
    }

    /// The end of its log, for messages.
    pub fn tail(&self) -> String {
        tail(&self.log)
    }

    /// What it logged since this start of it.
    pub fn log(&self) -> String {
        let all = std::fs::read(&self.log).unwrap_or_default();
        let before = usize::try_from(self.before).expect("a log that fits into memory");
        String::from_utf8_lossy(&all[before.min(all.len())..]).into_owned()
    }
}

/// Where the standard output of a process goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// To the log; standard input is as the command says.
    Log,
    /// To a pipe, and standard input comes from one.
    Pipes,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last lines of a file, or a word about there being none.
pub fn tail(path: &Path) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(30)..];
    format!(
        "--- the end of {}:\n{}\n---",
        path.display(),
        last.join("\n")
    )
}

/// A port of 127.0.0.1 nobody listens on.
///
/// It lies below the range the kernel takes ports for outgoing connections from. A port of that range, freed while its server restarts, may go
/// to a client, even to one that tries to reach this very port and so connects to itself.
pub fn free_port() -> u16 {
    let mut salt = 0_u64;
    until_some("a free port", Duration::from_secs(10), || {
        salt += 1;
        let port = 12_000 + u16::try_from(random(salt) % 20_000).expect("less than 20,000");
        std::net::TcpListener::bind(("127.0.0.1", port))
            .ok()
            .map(|_| port)
    })
}

/// A number that differs between calls and between processes.
pub fn random(salt: u64) -> u64 {
    use std::hash::BuildHasher;
    std::collections::hash_map::RandomState::new().hash_one(salt)
}
