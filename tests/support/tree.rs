//! A plain look at the nodes of a ZooKeeper server, as an operator has it, and the reading of a group's part of them.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::Duration;
use std::time::Instant;

use tokio::runtime::Runtime;
use zookeeper_client::Acls;
use zookeeper_client::Client;
use zookeeper_client::CreateMode;
use zookeeper_client::Error;
use zookeeper_client::Stat;

use super::netns::Namespace;
use super::wait::LONG;
use super::wait::until_some;
use super::zookeeper::ZooKeeper;

/// Runs a future on a runtime that all of the support shares, and blocks for its answer. May be called from anywhere.
pub fn run_async<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    static ONE: OnceLock<Runtime> = OnceLock::new();
    run_on(ONE.get_or_init(|| runtime(|| ())), work)
}

fn runtime(on_thread_start: impl Fn() + Send + Sync + 'static) -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .on_thread_start(on_thread_start)
        .build()
        .expect("a runtime can be started")
}

fn run_on<T: Send + 'static>(
    runtime: &Runtime,
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    let (answer, answered) = mpsc::sync_channel(1);
    runtime.spawn(async move {
        let _ = answer.send(work.await);
    });
    answered.recv().expect("the work does not panic")
}

/// A session of its own with a server. A lost one is replaced at the next call; calls go on for a while when the server is away.
pub struct Tree {
    address: String,
    version: (u32, u32, u32),
    client: Mutex<Client>,
    within: Within,
}

/// Where a session's sockets are opened: within the network of the test's process, or within a namespace, by a thread that lives there.
#[derive(Clone, Default)]
struct Within(Option<Arc<Runtime>>);

impl Within {
    fn namespace(namespace: &Arc<Namespace>) -> Self {
        let namespace = namespace.clone();
        Self(Some(Arc::new(runtime(move || namespace.move_in()))))
    }

    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        match &self.0 {
            Some(runtime) => run_on(runtime, work),
            None => run_async(work),
        }
    }
}

impl Tree {
    /// Connects to the root.
    pub fn connect(server: &ZooKeeper) -> Self {
        Self::connect_below(server, "")
    }

    /// Connects below a chroot, for example `/kafka`. The chroot need not exist, [`Tree::make`] of `/` is not needed for a look.
    pub fn connect_below(server: &ZooKeeper, chroot: &str) -> Self {
        let address = format!("{}{chroot}", server.connect_string());
        Self::connect_within(Within::default(), address, server.version())
    }

    /// Connects to the servers of this connect string from within a namespace.
    pub fn connect_from(namespace: &Arc<Namespace>, address: String, version: &str) -> Self {
        Self::connect_within(Within::namespace(namespace), address, version)
    }

    fn connect_within(within: Within, address: String, version: &str) -> Self {
        let mut numbers = version
            .split('.')
            .map(|part| part.parse().expect("a version is made of numbers"));
        let mut next = || numbers.next().unwrap_or(0);
        let version = (next(), next(), next());
        let client = Mutex::new(connect(&within, &address, version));
        Self {
            address,
            version,
            client,
            within,
        }
    }

    /// The text and the state of a node, `None` when there is none.
    pub fn node(&self, path: &str) -> Option<(Vec<u8>, Stat)> {
        let path = path.to_string();
        absent_is_none(self.call("read a node", move |client| {
            let path = path.clone();
            async move { client.get_data(&path).await }
        }))
    }

    /// The text of a node, `None` when there is none.
    ///
    /// # Panics
    ///
    /// When it is not UTF-8.
    pub fn text(&self, path: &str) -> Option<String> {
        self.node(path)
            .map(|(data, _)| String::from_utf8(data).expect("a text in UTF-8"))
    }

    /// The names below a node, sorted; none when the node is missing.
    pub fn children(&self, path: &str) -> Vec<String> {
        let path = path.to_string();
        let names = self.call("list a node", move |client| {
            let path = path.clone();
            async move { client.list_children(&path).await }
        });
        let mut names = absent_is_none(names).unwrap_or_default();
        names.sort();
        names
    }

    /// Makes a persistent node with its parents, or writes over the one that is there.
    pub fn make(&self, path: &str, text: &str) {
        if let Some((parent, _)) = path.rsplit_once('/')
            && !parent.is_empty()
            && self.node(parent).is_none()
        {
            self.make(parent, "");
        }
        let (path, data) = (path.to_string(), text.as_bytes().to_vec());
        let made = self.call("make a node", move |client| {
            let (path, data) = (path.clone(), data.clone());
            async move {
                match client
                    .create(
                        &path,
                        &data,
                        &CreateMode::Persistent.with_acls(Acls::anyone_all()),
                    )
                    .await
                {
                    Err(Error::NodeExists) => client.set_data(&path, &data, None).await.map(|_| ()),
                    other => other.map(|_| ()),
                }
            }
        });
        made.expect("a node can be made");
    }

    /// Deletes a node whoever made it, at any version. False when there was none.
    pub fn delete(&self, path: &str) -> bool {
        let path = path.to_string();
        let deleted = self.call("delete a node", move |client| {
            let path = path.clone();
            async move { client.delete(&path, None).await }
        });
        absent_is_none(deleted).is_some()
    }

    /// The names registered in a group, sorted.
    pub fn members(&self, group: &str) -> Vec<String> {
        self.children(&format!("/consumers/{group}/ids"))
    }

    /// Who owns what: partition to the text of its owner node. A node that went away during the look is left out.
    pub fn owners(&self, group: &str, topic: &str) -> BTreeMap<i32, String> {
        self.numbered(&format!("/consumers/{group}/owners/{topic}"))
    }

    /// The stored offsets as texts, by partition.
    pub fn offset_texts(&self, group: &str, topic: &str) -> BTreeMap<i32, String> {
        self.numbered(&format!("/consumers/{group}/offsets/{topic}"))
    }

    /// The stored offsets by partition; a node that says -1 holds none (L-4).
    ///
    /// # Panics
    ///
    /// When one is not a number.
    pub fn offsets(&self, group: &str, topic: &str) -> BTreeMap<i32, i64> {
        let texts = self.offset_texts(group, topic).into_iter();
        texts
            .map(|(partition, text)| (partition, text.parse().expect("an offset is a number")))
            .filter(|(_, offset)| *offset != -1)
            .collect()
    }

    fn numbered(&self, parent: &str) -> BTreeMap<i32, String> {
        let numbers = self.children(parent).into_iter();
        let read = |number: String| {
            Some((
                number.parse().ok()?,
                self.text(&format!("{parent}/{number}"))?,
            ))
        };
        numbers.filter_map(read).collect()
    }

    /// Waits until the group's owner nodes satisfy the question, and gives the owners that did.
    #[track_caller]
    pub fn wait_for_owners(
        &self,
        what: &str,
        group: &str,
        topic: &str,
        is_so: impl Fn(&BTreeMap<i32, String>) -> bool,
    ) -> BTreeMap<i32, String> {
        let mut last = BTreeMap::new();
        let start = Instant::now();
        loop {
            let owners = self.owners(group, topic);
            if is_so(&owners) {
                return owners;
            }
            last.clone_from(&owners);
            assert!(
                start.elapsed() < LONG,
                "waited {LONG:?} in vain: {what}; the owners are {last:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn call<T, F>(&self, what: &str, work: impl Fn(Client) -> F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let what = format!("{what} on {}", self.address);
        until_some(&what, LONG, || {
            let mut client = self.client.lock().unwrap();
            match self.within.run(work(client.clone())) {
                Err(Error::SessionExpired | Error::ClientClosed) => {
                    *client = connect(&self.within, &self.address, self.version);
                    None
                }
                Err(Error::ConnectionLoss) => None,
                other => Some(other),
            }
        })
    }
}

fn absent_is_none<T>(answer: Result<T, Error>) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(Error::NoNode) => None,
        Err(error) => panic!("ZooKeeper answers: {error}"),
    }
}

fn connect(within: &Within, address: &str, (major, minor, patch): (u32, u32, u32)) -> Client {
    let what = format!("a session with {address}");
    until_some(&what, LONG, || {
        let address = address.to_string();
        within.run(async move {
            let mut connector = Client::connector();
            if (major, minor) < (3, 5) {
                connector = connector.with_server_version(major, minor, patch);
            }
            connector
                .with_session_timeout(Duration::from_secs(20))
                .connect(&address)
                .await
                .ok()
        })
    })
}
