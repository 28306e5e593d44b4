//! Networks of our own: namespaces on one bridge, made and removed by the test (Linux, as root, with the command `ip`).

use std::net::Ipv4Addr;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use super::process::tell_watchdog;

/// A network namespace. It is removed with its network, or by the watchdog; the links that end in it go with it.
pub struct Namespace {
    name: String,
    is_removed: AtomicBool,
}

impl Namespace {
    /// Makes one under a name that no other has; says why if that cannot be done here.
    fn make() -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("evenkeel-{}-{number}", std::process::id());
        // The watchdog knows of it before it is there.
        tell_watchdog("net+", &name);
        let is_removed = AtomicBool::new(false);
        let namespace = Self { name, is_removed };
        ip(&["netns", "add", &namespace.name])?;
        namespace.configure(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    fn configure(&self, words: &[&str]) -> Result<(), String> {
        ip(&[&["-n", &self.name], words].concat())
    }

    /// Does something in it: sockets that are opened meanwhile, and processes and threads that are started, belong to it for good.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            self.move_in();
            work()
        };
        let done = std::thread::scope(|scope| scope.spawn(inside).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Moves the calling thread into it, for good.
    #[cfg(target_os = "linux")]
    pub fn move_in(&self) {
        use std::os::fd::AsFd;
        let file = std::fs::File::open(format!("/run/netns/{}", self.name));
        let file = file.expect("a namespace is a file");
        let kind = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind))
            .expect("whoever made a namespace may enter it");
    }

    /// Never called: none can be made.
    #[cfg(not(target_os = "linux"))]
    pub fn move_in(&self) {
        unreachable!("there are no namespaces here");
    }
}

impl Namespace {
    /// Takes its name away, after which nobody enters it; whoever still lives there does not see it.
    fn remove(&self) {
        if !self.is_removed.swap(true, Ordering::Relaxed) {
            // One that could not be made is not there.
            let _ = ip(&["netns", "del", &self.name]);
            tell_watchdog("net-", &self.name);
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Runs `ip`; says what it complained of.
fn ip(words: &[&str]) -> Result<(), String> {
    let words_too = words.join(" ");
    let output = Command::new("ip")
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("ip {words_too}: {error}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {words_too}: {}", complaint.trim())),
    }
}

/// Namespaces that see each other, each with one address, and one more, the hub, from which all are seen. Dropping it removes them.
pub struct Network {
    hub: Arc<Namespace>,
    nodes: Vec<Arc<Namespace>>,
}

impl Network {
    /// Lays it; says why if that cannot be done here.
    pub fn lay(nodes: usize) -> Result<Self, String> {
        let hub = Arc::new(Namespace::make()?);
        hub.configure(&["link", "add", "bridge", "type", "bridge"])?;
        hub.configure(&["addr", "add", "10.77.0.254/24", "dev", "bridge"])?;
        hub.configure(&["link", "set", "bridge", "up"])?;
        let mut network = Self {
            hub,
            nodes: Vec::new(),
        };
        for node in 0..nodes {
            network.add(node)?;
        }
        Ok(network)
    }

    fn add(&mut self, node: usize) -> Result<(), String> {
        let namespace = Namespace::make()?;
        let (port, address) = (port(node), format!("{}/24", Self::address(node)));
        let (hub, there) = (&self.hub, &namespace.name);
        // Both ends are made where they belong, so that the host sees neither.
        hub.configure(&[
            "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", there,
        ])?;
        hub.configure(&["link", "set", &port, "master", "bridge", "up"])?;
        namespace.configure(&["addr", "add", &address, "dev", "eth0"])?;
        namespace.configure(&["link", "set", "eth0", "up"])?;
        self.nodes.push(Arc::new(namespace));
        Ok(())
    }

    /// The address of a node; nodes count from 0.
    pub fn address(node: usize) -> Ipv4Addr {
        let last = u8::try_from(node + 1).expect("few nodes");
        Ipv4Addr::new(10, 77, 0, last)
    }

    /// Where a node lives.
    pub fn node(&self, node: usize) -> &Arc<Namespace> {
        &self.nodes[node]
    }

    /// Whence all nodes are seen that are not cut off.
    pub fn hub(&self) -> &Arc<Namespace> {
        &self.hub
    }

    /// Cuts a node off from all others, silently: what is sent to it or by it is lost, and nobody is told. Within the node all goes on.
    pub fn cut(&self, node: usize) {
        self.set(node, "down");
    }

    /// Joins it again.
    pub fn heal(&self, node: usize) {
        self.set(node, "up");
    }

    fn set(&self, node: usize, state: &str) {
        let done = self.hub.configure(&["link", "set", &port(node), state]);
        done.expect("a link of ours can be set");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in self.nodes.iter().chain([&self.hub]) {
            namespace.remove();
        }
    }
}

fn port(node: usize) -> String {
    format!("port{node}")
}
