//! Three ZooKeeper servers as one ensemble, each in a network namespace of its own, so that it can be cut off from the others.

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use super::netns::Namespace;
use super::netns::Network;
use super::process::scratch;
use super::tree::Tree;
use super::txnlog::Txn;
use super::txnlog::TxnLog;
use super::wait::LONG;
use super::wait::until_some;
use super::zookeeper::Place;
use super::zookeeper::ZooKeeper;
use super::zookeeper::ZooKeeperOptions;

/// So many servers. Servers count from 0, as nodes of the network do; ZooKeeper counts them from 1.
const SERVERS: usize = 3;

/// What an ensemble is started with.
#[derive(Clone, Copy, Debug)]
pub struct EnsembleOptions {
    /// `tickTime`.
    pub tick: Duration,
    /// For so long a follower that is cut off from the leader goes on as if it were not: `syncLimit`, as a time.
    pub blind: Duration,
}

/// Three servers that found each other. Dropping it kills them and removes their network.
pub struct Ensemble {
    version: String,
    options: EnsembleOptions,
    // The servers end before the network does.
    servers: Vec<ZooKeeper>,
    network: Network,
}

impl Ensemble {
    /// Starts it and waits until it serves.
    ///
    /// # Panics
    ///
    /// On a machine that cannot have network namespaces: a test that does nothing there would count as one that passed.
    pub fn start(version: &str, options: EnsembleOptions) -> Self {
        let network = Network::lay(SERVERS).unwrap_or_else(|reason| {
            panic!(
                "no network namespaces here: {reason}. This test needs Linux, root (in a container CAP_SYS_ADMIN and CAP_NET_ADMIN) and the \
                 command ip (Debian: iproute2)"
            )
        });
        let begin = |node| {
            let place = Place {
                host: Network::address(node),
                port: 2181,
                namespace: Some(network.node(node).clone()),
            };
            ZooKeeper::begin_one(node + 1, version, place, settings(options))
        };
        let mut ensemble = Self {
            version: version.to_owned(),
            options,
            servers: (0..SERVERS).map(begin).collect(),
            network,
        };
        ensemble.wait_until_whole();
        ensemble
    }

    /// What it was started with.
    pub fn options(&self) -> EnsembleOptions {
        self.options
    }

    /// The release.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// All servers.
    pub fn servers(&self) -> std::ops::Range<usize> {
        0..SERVERS
    }

    /// One server.
    pub fn server(&self, server: usize) -> &ZooKeeper {
        &self.servers[server]
    }

    /// One server, to be stopped or started.
    pub fn server_mut(&mut self, server: usize) -> &mut ZooKeeper {
        &mut self.servers[server]
    }

    /// Where a server runs, and where whoever is next to it runs as well.
    pub fn beside(&self, server: usize) -> &Arc<Namespace> {
        self.network.node(server)
    }

    /// The connect string that names all servers.
    pub fn connect_string(&self) -> String {
        let servers: Vec<String> = self.servers.iter().map(ZooKeeper::connect_string).collect();
        servers.join(",")
    }

    /// A look at the nodes by way of whichever server there is.
    pub fn tree(&self) -> Tree {
        Tree::connect_from(self.network.hub(), self.connect_string(), &self.version)
    }

    /// A look at the nodes by way of one server, from without.
    pub fn tree_of(&self, server: usize) -> Tree {
        let address = self.server(server).connect_string();
        Tree::connect_from(self.network.hub(), address, &self.version)
    }

    /// The server that leads, once there is one besides this one.
    pub fn leader_besides(&mut self, other: usize) -> usize {
        let others = self.servers().filter(|server| *server != other);
        until_some("another leader", LONG, || {
            let is_leader =
                |server: &usize| self.servers[*server].mode().as_deref() == Some("leader");
            others.clone().find(is_leader)
        })
    }

    fn modes(&mut self) -> Vec<Option<String>> {
        self.servers
            .iter_mut()
            .map(|server| server.mode())
            .collect()
    }

    /// Waits until all servers serve under one leader; gives it.
    pub fn wait_until_whole(&mut self) -> usize {
        let start = Instant::now();
        loop {
            let modes = self.modes();
            let is = |word: &'static str| {
                modes
                    .iter()
                    .filter(move |mode| mode.as_deref() == Some(word))
            };
            // One that stood still may take itself for the leader for a while.
            if is("leader").count() == 1 && is("follower").count() == SERVERS - 1 {
                let leader = modes
                    .iter()
                    .position(|mode| mode.as_deref() == Some("leader"));
                return leader.expect("there is one");
            }
            let tails = || self.servers.iter().map(ZooKeeper::tail).collect::<Vec<_>>();
            assert!(
                start.elapsed() < LONG,
                "the servers are {modes:?} after {LONG:?}; {}",
                tails().join("\n")
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Cuts a server, and whoever runs beside it, off from the others. Silently: connections stay as they are, nothing comes through.
    pub fn cut(&self, server: usize) {
        self.network.cut(server);
    }

    /// Lets everything through again.
    pub fn heal(&self, server: usize) {
        self.network.heal(server);
    }

    /// SIGTERM to all servers, and waits for their ends.
    pub fn stop(&mut self) {
        for server in &mut self.servers {
            server.stop();
        }
    }

    /// Starts the servers that do not run and waits until all serve.
    pub fn start_again(&mut self) {
        for server in &mut self.servers {
            if !server.is_running() {
                server.begin_again();
            }
        }
        self.wait_until_whole();
    }

    /// A copy of what all servers have on disk; they are to stand still meanwhile.
    pub fn copy(&self) -> Saved {
        let copies = self.servers.iter().map(|server| {
            let folder = scratch("copy");
            copy(&server.log_folder(), &folder);
            folder
        });
        Saved(copies.collect())
    }

    /// Puts a copy in the place of what all servers have on disk; they are to stand still meanwhile.
    pub fn put_back(&self, saved: &Saved) {
        for (server, from) in self.servers.iter().zip(&saved.0) {
            let folder = server.log_folder();
            std::fs::remove_dir_all(&folder).expect("a folder of ours");
            std::fs::create_dir(&folder).expect("a folder of ours");
            copy(from, &folder);
        }
    }

    /// Leaves out some numbers of leaders' terms, as if so many leaders had come and gone; no server is to run meanwhile.
    pub fn skip_terms(&self, terms: u64) {
        for server in &self.servers {
            let file = server.log_folder().join("acceptedEpoch");
            let text = std::fs::read_to_string(&file).expect("a server that ran has one");
            let term: u64 = text.trim().parse().expect("a number");
            std::fs::write(file, (term + terms).to_string()).expect("a file of ours");
        }
    }

    /// What the quorum agreed on, in order: what stands in the logs of more than half of the servers. A leader that stood still for long
    /// may have written down, alone, what never came to be.
    pub fn agreed(&self) -> Vec<Txn> {
        let mut found: BTreeMap<i64, (usize, Txn)> = BTreeMap::new();
        for server in &self.servers {
            // In one log a transaction may stand twice: a server that was stopped is sent some again.
            let txns = TxnLog::of(server).more().into_iter();
            let own: BTreeMap<i64, Txn> = txns.map(|txn| (txn.zxid, txn)).collect();
            for (zxid, txn) in own {
                found.entry(zxid).or_insert((0, txn)).0 += 1;
            }
        }
        let agreed = found.into_values().filter(|(logs, _)| *logs > SERVERS / 2);
        agreed.map(|(_, txn)| txn).collect()
    }
}

/// What all servers had on disk.
pub struct Saved(Vec<PathBuf>);

fn copy(from: &Path, to: &Path) {
    for file in std::fs::read_dir(from).expect("a folder of ours") {
        let file = file.expect("a folder of ours");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("a file can be copied");
    }
}

fn settings(options: EnsembleOptions) -> ZooKeeperOptions {
    let EnsembleOptions { tick, blind } = options;
    let ticks = |time: Duration| time.as_millis().div_ceil(tick.as_millis());
    let mut lines = vec![
        format!("initLimit={}", ticks(Duration::from_secs(20))),
        format!("syncLimit={}", ticks(blind)),
    ];
    lines.extend((0..SERVERS).map(|node| {
        let address = Network::address(node);
        format!("server.{}={address}:2888:3888", node + 1)
    }));
    ZooKeeperOptions {
        tick_ms: u32::try_from(tick.as_millis()).expect("a tick of milliseconds"),
        lines,
        ..ZooKeeperOptions::default()
    }
}
