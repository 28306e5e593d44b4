//! A ZooKeeper server of any release.

use std::fmt::Write as _;
use std::io::Read;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::net::TcpStream;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use super::cache::Jars;
use super::netns::Namespace;
use super::process;
use super::process::Output;
use super::process::Process;
use super::wait::LONG;

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    /// `tickTime` in milliseconds. Sessions are judged at ticks and are at least two of them long.
    pub tick_ms: u32,
    /// `maxSessionTimeout` in milliseconds. A broker's session wants to be long on a busy machine.
    pub max_session_ms: u32,
    /// Java heap in MiB.
    pub heap_mb: u32,
    /// Further lines of `zoo.cfg`.
    pub lines: Vec<String>,
    /// Further flags for Java.
    pub flags: Vec<String>,
}

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        Self {
            tick_ms: 100,
            max_session_ms: 60_000,
            heap_mb: 128,
            lines: Vec::new(),
            flags: Vec::new(),
        }
    }
}

/// Where a server listens, and nowhere else.
#[derive(Clone)]
pub struct Place {
    /// The address.
    pub host: Ipv4Addr,
    /// The port for clients.
    pub port: u16,
    /// The namespace that has the address; none for 127.0.0.1.
    pub namespace: Option<Arc<Namespace>>,
}

impl Place {
    /// A port of 127.0.0.1 nobody listens on.
    fn free() -> Self {
        Self {
            host: Ipv4Addr::LOCALHOST,
            port: process::free_port(),
            namespace: None,
        }
    }

    /// Does something where the server can be reached.
    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.namespace {
            Some(namespace) => namespace.enter(work),
            None => work(),
        }
    }
}

/// A running server with a folder of its own: one alone, or one of an ensemble. Dropping it kills it.
pub struct ZooKeeper {
    version: String,
    options: ZooKeeperOptions,
    jars: Jars,
    folder: PathBuf,
    place: Place,
    process: Process,
}

impl ZooKeeper {
    /// Starts a server with default options and waits until it serves.
    pub fn start(version: &str) -> Self {
        Self::start_with(version, ZooKeeperOptions::default())
    }

    /// Starts a server and waits until it serves.
    pub fn start_with(version: &str, options: ZooKeeperOptions) -> Self {
        let jars = Jars::zookeeper(version);
        let folder = process::scratch(&format!("zookeeper-{version}"));
        for _ in 0..5 {
            let mut server = Self::begin(version, &jars, &folder, Place::free(), &options);
            if server.serves() {
                return server;
            }
        }
        panic!(
            "ZooKeeper {version} found no port; {}",
            process::tail(&log_of(&folder))
        );
    }

    /// Starts the server of this number (from 1) in an ensemble, which the lines of its options describe. Waits for nothing: none serves
    /// before the others are there.
    pub fn begin_one(
        number: usize,
        version: &str,
        place: Place,
        options: ZooKeeperOptions,
    ) -> Self {
        let jars = Jars::zookeeper(version);
        let folder = process::scratch(&format!("zookeeper-{version}-{number}"));
        let data = data_of(&folder);
        std::fs::create_dir(&data).expect("a folder of our own");
        std::fs::write(data.join("myid"), number.to_string()).expect("myid can be written");
        Self::begin(version, &jars, &folder, place, &options)
    }

    fn begin(
        version: &str,
        jars: &Jars,
        folder: &Path,
        place: Place,
        options: &ZooKeeperOptions,
    ) -> Self {
        write_config(folder, &place, options);
        let process = spawn(version, jars, folder, &place, options);
        Self {
            version: version.to_string(),
            options: options.clone(),
            jars: jars.clone(),
            folder: folder.to_path_buf(),
            place,
            process,
        }
    }

    /// The release.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// `127.0.0.1:PORT`, to which a chroot can be added; of one in a namespace, its address there.
    pub fn connect_string(&self) -> String {
        format!("{}:{}", self.place.host, self.place.port)
    }

    /// Its port for clients.
    pub fn port(&self) -> u16 {
        self.place.port
    }

    /// The namespace in which it runs, if it has one.
    pub fn namespace(&self) -> Option<&Arc<Namespace>> {
        self.place.namespace.as_ref()
    }

    /// Where its transaction log and its snapshots lie.
    pub fn log_folder(&self) -> PathBuf {
        data_of(&self.folder).join("version-2")
    }

    /// The process id.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// The end of what it wrote, for messages.
    pub fn tail(&self) -> String {
        self.process.tail()
    }

    /// SIGTERM, and waits for its end. Its data and its port stay.
    pub fn stop(&mut self) {
        self.process.terminate(Duration::from_secs(10));
    }

    /// SIGKILL, and waits for its end. Its data and its port stay.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub fn pause(&mut self) {
        self.process.pause();
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        self.process.resume();
    }

    /// Starts it again, on the same port with the same data, and waits until it serves. One that still runs is killed first.
    pub fn restart(&mut self) {
        self.begin_again();
        assert!(
            self.serves(),
            "ZooKeeper {} lost its port; {}",
            self.version,
            self.tail()
        );
    }

    /// The same without waiting for anything.
    pub fn begin_again(&mut self) {
        self.process.kill();
        self.process = spawn(
            &self.version,
            &self.jars,
            &self.folder,
            &self.place,
            &self.options,
        );
    }

    /// Ends it in order and starts another release in its place, on the same port with the same data. Waits for nothing.
    pub fn become_release(&mut self, version: &str) {
        self.stop();
        // One of 3.4 that is young has logged and has no snapshot yet, which later ones take for damage.
        let trust = "-Dzookeeper.snapshot.trust.empty=true";
        self.options.flags.push(trust.to_owned());
        version.clone_into(&mut self.version);
        self.jars = Jars::zookeeper(version);
        self.begin_again();
    }

    /// Whether its process runs.
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// What it is at present, `leader`, `follower` or `standalone`; none while it serves nobody.
    pub fn mode(&mut self) -> Option<String> {
        if !self.is_running() {
            return None;
        }
        let answer = self.ask("srvr")?;
        let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
        mode.map(str::to_owned)
    }

    /// Starts it again with the same data on another port, and waits until it serves. One that still runs is killed first.
    pub fn move_away(&mut self) {
        self.process.kill();
        let before = self.place.port;
        for _ in 0..5 {
            self.place.port = process::free_port();
            write_config(&self.folder, &self.place, &self.options);
            self.begin_again();
            if self.place.port != before && self.serves() {
                return;
            }
        }
        panic!("ZooKeeper {} found no other port", self.version);
    }

    /// Sends a four letter word (`srvr`, `mntr`, `cons`, …). `None` when nothing answers within two seconds.
    pub fn ask(&self, word: &str) -> Option<String> {
        self.place.enter(|| self.ask_here(word))
    }

    fn ask_here(&self, word: &str) -> Option<String> {
        let address = (self.place.host, self.place.port).into();
        let limit = Duration::from_secs(2);
        let mut socket = TcpStream::connect_timeout(&address, limit).ok()?;
        socket.set_read_timeout(Some(limit)).ok()?;
        socket.write_all(word.as_bytes()).ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// Waits until it answers as itself: a server of another test on the same port has another folder. False when the port is taken.
    fn serves(&mut self) -> bool {
        let start = Instant::now();
        let data = data_of(&self.folder).display().to_string();
        while start.elapsed() < LONG {
            if !self.process.is_running() {
                let log = self.process.log();
                assert!(
                    log.contains("Address already in use"),
                    "ZooKeeper {} ended at the start; {}",
                    self.version,
                    self.tail()
                );
                return false;
            }
            if self
                .ask("conf")
                .is_some_and(|answer| answer.contains(&data))
            {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("ZooKeeper {} does not serve; {}", self.version, self.tail());
    }
}

fn data_of(folder: &Path) -> PathBuf {
    folder.join("data")
}

fn log_of(folder: &Path) -> PathBuf {
    folder.join("log")
}

fn write_config(folder: &Path, place: &Place, options: &ZooKeeperOptions) {
    let data = data_of(folder).display().to_string();
    let ZooKeeperOptions {
        tick_ms,
        max_session_ms,
        ..
    } = options;
    let Place { host, port, .. } = place;
    let mut text = format!(
        "tickTime={tick_ms}\nmaxSessionTimeout={max_session_ms}\ndataDir={data}\nclientPort={port}\nclientPortAddress={host}\n\
         maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n"
    );
    for line in &options.lines {
        writeln!(text, "{line}").expect("a String takes everything");
    }
    std::fs::write(folder.join("zoo.cfg"), text).expect("zoo.cfg can be written");
}

fn spawn(
    version: &str,
    jars: &Jars,
    folder: &Path,
    place: &Place,
    options: &ZooKeeperOptions,
) -> Process {
    let mut flags = vec![
        format!("-Xmx{}m", options.heap_mb),
        "-Djava.net.preferIPv4Stack=true".to_string(),
        "-Dzookeeper.forceSync=no".to_string(),
        "-Dzookeeper.preAllocSize=64".to_string(),
    ];
    flags.extend(options.flags.iter().cloned());
    let mut command = jars.java(&flags);
    command
        .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
        .arg(folder.join("zoo.cfg"))
        .current_dir(folder);
    let name = format!("ZooKeeper {version}");
    place.enter(|| Process::start(&name, &mut command, &log_of(folder), Output::Log))
}
