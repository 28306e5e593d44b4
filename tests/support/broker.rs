//! A Kafka broker of any release.

use std::fmt::Write as _;
use std::path::Path;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use rdkafka::admin::AdminClient;
use rdkafka::admin::AdminOptions;
use rdkafka::admin::NewPartitions;
use rdkafka::admin::NewTopic;
use rdkafka::admin::TopicReplication;
use rdkafka::admin::TopicResult;
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaResult;
use rdkafka::metadata::Metadata;
use rdkafka::producer::BaseProducer;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode;

use super::cache::Jars;
use super::cache::run_class;
use super::process;
use super::process::Output;
use super::process::Process;
use super::tree::run_async;
use super::wait::LONG;
use super::wait::until_some_or;
use super::zookeeper::ZooKeeper;

type Admin = AdminClient<DefaultClientContext>;

/// What a broker is started with.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// Appended to the connect string of its ZooKeeper, for example `/kafka`. Old brokers make it themselves.
    pub chroot: String,
    /// Its session with ZooKeeper in milliseconds. One that is killed stays registered that long.
    pub session_ms: u32,
    /// Java heap in MiB.
    pub heap_mb: u32,
    /// Further lines of `server.properties`.
    pub lines: Vec<String>,
    /// Further flags for Java.
    pub flags: Vec<String>,
}

impl Default for BrokerOptions {
    fn default() -> Self {
        Self {
            chroot: String::new(),
            session_ms: 10_000,
            heap_mb: 256,
            lines: Vec::new(),
            flags: Vec::new(),
        }
    }
}

/// A running broker with a folder of its own. Topics are not made by asking for them and can be deleted. Dropping it kills it.
pub struct Broker {
    version: String,
    options: BrokerOptions,
    zookeeper: String,
    jars: Jars,
    folder: PathBuf,
    ports: Ports,
    id: i32,
    process: Process,
    client: BaseProducer,
}

/// Where it listens; the second is for the quorum of a broker without ZooKeeper.
#[derive(Clone, Copy, Debug)]
struct Ports {
    broker: u16,
    quorum: u16,
}

impl Broker {
    /// Starts a broker with default options and waits until it serves. A release that knows no ZooKeeper (4.0 and later) leaves it alone.
    pub fn start(version: &str, zookeeper: &ZooKeeper) -> Self {
        Self::start_with(version, zookeeper, BrokerOptions::default())
    }

    /// Starts a broker and waits until it serves.
    pub fn start_with(version: &str, zookeeper: &ZooKeeper, options: BrokerOptions) -> Self {
        let jars = Jars::kafka(version);
        let zookeeper = format!("{}{}", zookeeper.connect_string(), options.chroot);
        for _ in 0..5 {
            let folder = process::scratch(&format!("broker-{version}"));
            let ports = Ports {
                broker: process::free_port(),
                quorum: process::free_port(),
            };
            write_config(version, &folder, ports, &zookeeper, &options);
            let process = spawn(version, &jars, &folder, &options);
            let client = client_config(version, &format!("127.0.0.1:{}", ports.broker))
                .create()
                .expect("a client");
            let (version, options, zookeeper) =
                (version.to_string(), options.clone(), zookeeper.clone());
            let mut broker = Self {
                version,
                options,
                zookeeper,
                jars: jars.clone(),
                folder,
                ports,
                id: ports.broker.into(),
                process,
                client,
            };
            if broker.serves() {
                return broker;
            }
        }
        panic!("broker {version} found no port");
    }

    /// The release.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// `127.0.0.1:PORT`.
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.ports.broker)
    }

    /// Its id, under `/brokers/ids` where there is a ZooKeeper.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// Its ZooKeeper with the chroot, as `zookeeper.connect` wants it.
    pub fn zookeeper_connect(&self) -> &str {
        &self.zookeeper
    }

    /// Settings with which rdkafka can talk to this release, and nothing else set but a quick way back to a broker that was away. There is no
    /// `group.id`: with one, a client makes the broker create `__consumer_offsets`.
    pub fn client_config(&self) -> ClientConfig {
        client_config(&self.version, &self.bootstrap())
    }

    /// Makes a topic and waits until every partition has its leader. Waits for an older one of the same name that is being deleted.
    ///
    /// Before 0.10 it wants two partitions, or a name that is not short: rdkafka counts on four bytes in memory for one on the wire, and an
    /// answer about a single partition breaks that (`BadMessage`).
    pub fn create_topic(&self, topic: &str, partitions: i32) {
        if self.has_admin() {
            self.ask(
                &format!("topic {topic} made"),
                RDKafkaErrorCode::TopicAlreadyExists,
                |admin, options| {
                    let topic = topic.to_string();
                    async move {
                        let new = NewTopic::new(&topic, partitions, TopicReplication::Fixed(1));
                        admin.create_topics([&new], &options).await
                    }
                },
            );
        } else {
            let count = partitions.to_string();
            let words = [
                "--create",
                "--topic",
                topic,
                "--partitions",
                &count,
                "--replication-factor",
                "1",
            ];
            self.await_some(&format!("topic {topic} made"), || {
                let said = self.topic_tool(&words);
                let older = said.contains("already exists") || said.contains("marked for deletion");
                assert!(
                    older || said.contains("Created topic"),
                    "topic {topic} was not made: {said}"
                );
                (!older).then_some(())
            });
        }
        self.await_leaders(topic, partitions);
    }

    /// Makes a topic whose partitions each lie on these brokers, the first of them preferred, and waits until every partition has its leader.
    /// This broker is to be the controller, as the first to be started is. For 1.0 and later.
    pub fn create_topic_on(&self, topic: &str, replicas: &[Vec<i32>]) {
        self.ask(
            &format!("topic {topic} made"),
            RDKafkaErrorCode::TopicAlreadyExists,
            |admin, options| {
                let (topic, replicas) = (topic.to_string(), replicas.to_vec());
                async move {
                    let lists: Vec<&[i32]> = replicas.iter().map(Vec::as_slice).collect();
                    let count = i32::try_from(lists.len()).expect("a count");
                    let new = NewTopic::new(&topic, count, TopicReplication::Variable(&lists));
                    admin.create_topics([&new], &options).await
                }
            },
        );
        self.await_leaders(topic, i32::try_from(replicas.len()).expect("a count"));
    }

    /// The leader of a partition and the brokers that are in step with it, as this broker knows it; none while it does not.
    pub fn led(&self, topic: &str, partition: i32) -> Option<(i32, Vec<i32>)> {
        let metadata = self.metadata(Some(topic)).ok()?;
        let topic = metadata.topics().first()?;
        let found = topic.partitions().iter().find(|p| p.id() == partition)?;
        (found.leader() >= 0).then(|| (found.leader(), found.isr().to_vec()))
    }

    /// Raises the number of partitions and waits until every one has its leader.
    pub fn add_partitions(&self, topic: &str, total: i32) {
        if self.has_admin() {
            let total = usize::try_from(total).expect("a count");
            self.ask(
                &format!("partitions of {topic} added"),
                RDKafkaErrorCode::InvalidPartitions,
                |admin, options| {
                    let topic = topic.to_string();
                    async move {
                        admin
                            .create_partitions([&NewPartitions::new(&topic, total)], &options)
                            .await
                    }
                },
            );
        } else {
            let said = self.topic_tool(&[
                "--alter",
                "--topic",
                topic,
                "--partitions",
                &total.to_string(),
            ]);
            assert!(
                said.contains("Adding partitions succeeded"),
                "partitions of {topic} were not added: {said}"
            );
        }
        self.await_leaders(topic, total);
    }

    /// Deletes a topic and waits until the broker no longer names it.
    pub fn delete_topic(&self, topic: &str) {
        if self.has_admin() {
            self.ask(
                &format!("topic {topic} deleted"),
                RDKafkaErrorCode::UnknownTopicOrPartition,
                |admin, options| {
                    let topic = topic.to_string();
                    async move { admin.delete_topics(&[&topic], &options).await }
                },
            );
        } else {
            let said = self.topic_tool(&["--delete", "--topic", topic]);
            assert!(
                said.contains("marked for deletion"),
                "topic {topic} was not deleted: {said}"
            );
        }
        self.await_some(&format!("topic {topic} gone"), || {
            let metadata = self.metadata(None).ok()?;
            metadata
                .topics()
                .iter()
                .all(|known| known.name() != topic)
                .then_some(())
        });
    }

    /// First and last offset of a partition, the last being the one the next message gets.
    pub fn watermarks(&self, topic: &str, partition: i32) -> (i64, i64) {
        self.await_some(&format!("watermarks of {topic}-{partition}"), || {
            self.client
                .client()
                .fetch_watermarks(topic, partition, Duration::from_secs(5))
                .ok()
        })
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
        self.process.terminate(Duration::from_secs(20));
    }

    /// SIGKILL, and waits for its end. It stays registered for the length of its session.
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

    /// Starts it again, on the same port with the same data, and waits until it serves. One that still runs is stopped in order. After
    /// [`Broker::kill`] it refuses to start while its old registration stands, so it is tried until that is gone.
    pub fn restart(&mut self) {
        self.stop();
        let start = Instant::now();
        while start.elapsed() < LONG {
            self.process = spawn(&self.version, &self.jars, &self.folder, &self.options);
            if self.serves() {
                return;
            }
        }
        panic!("broker {} did not come back; {}", self.version, self.tail());
    }

    /// Stops it in order and starts it again on another port, with the same id and the same data.
    pub fn move_elsewhere(&mut self) {
        self.stop();
        self.ports.broker = process::free_port();
        let id = self.id;
        self.options.lines.push(format!("broker.id={id}"));
        write_config(
            &self.version,
            &self.folder,
            self.ports,
            &self.zookeeper,
            &self.options,
        );
        self.client = self.client_config().create().expect("a client");
        self.restart();
    }

    /// Whether the admin requests reach: adding partitions came with 1.0.
    fn has_admin(&self) -> bool {
        major_minor(&self.version) >= (1, 0)
    }

    /// One admin request, sent until it is answered. One that ran out of time may have been carried out all the same: then `done` is no error.
    /// It goes to this broker and not to the controller, whom a broker that has just started does not name.
    fn ask<F>(&self, what: &str, done: RDKafkaErrorCode, request: impl Fn(Admin, AdminOptions) -> F)
    where
        F: Future<Output = KafkaResult<Vec<TopicResult>>> + Send + 'static,
    {
        let mut unsure = false;
        self.await_some(what, || {
            let limit = Some(Duration::from_secs(10));
            let options = AdminOptions::new()
                .operation_timeout(limit)
                .request_timeout(limit)
                .broker_id(self.id());
            let admin = self.client_config().create().expect("an admin client");
            let Ok(mut results) = run_async(request(admin, options)) else {
                unsure = true;
                return None;
            };
            match results.remove(0) {
                Err((_, code)) if unsure && code == done => Some(()),
                // An older topic of that name is on its way out, or the broker on its way in.
                Err((
                    _,
                    RDKafkaErrorCode::TopicAlreadyExists | RDKafkaErrorCode::NotController,
                )) => None,
                Err((topic, code)) => panic!("{what}: {topic}: {code}"),
                Ok(_) => Some(()),
            }
        });
    }

    fn topic_tool(&self, args: &[&str]) -> String {
        let args = [&["--zookeeper", &self.zookeeper], args].concat();
        let output = run_class(&self.jars, "kafka.admin.TopicCommand", &args);
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    /// Its own word in its own log, so it is no other that answers on the port.
    fn says_started(&self) -> bool {
        let (log, id) = (self.process.log(), self.id());
        let words = [
            format!("[Kafka Server {id}], started"),
            format!("[KafkaServer id={id}] started"),
            "Kafka Server started".into(),
        ];
        words.iter().any(|started| log.contains(started))
    }

    /// Some name no brokers for a moment after their start; those of 0.8 name none before there is a topic.
    fn names_itself(&self) -> bool {
        let metadata = self.metadata(None);
        metadata.is_ok_and(|metadata| {
            metadata
                .brokers()
                .iter()
                .any(|broker| broker.id() == self.id())
        })
    }

    fn await_some<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> T {
        until_some_or(LONG, look, || {
            format!("{what} by broker {}; {}", self.version, self.tail())
        })
    }

    fn metadata(&self, topic: Option<&str>) -> KafkaResult<Metadata> {
        self.client
            .client()
            .fetch_metadata(topic, Duration::from_secs(5))
    }

    fn await_leaders(&self, topic: &str, partitions: i32) {
        let last = std::cell::RefCell::new(String::new());
        let look = || {
            let answer = self.metadata(Some(topic));
            last.replace(told(&answer));
            answer
                .is_ok_and(|metadata| leaders(&metadata) == partitions)
                .then_some(())
        };
        until_some_or(LONG, look, || {
            format!("leaders of {topic}: {}; {}", last.borrow(), self.tail())
        });
    }

    /// Waits until it says that it has started. False when the port is taken or an older registration of it stands.
    fn serves(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < LONG {
            if !self.process.is_running() {
                let log = self.process.log();
                let again = ["Address already in use", "already registered", "NodeExists"]
                    .iter()
                    .any(|reason| log.contains(reason));
                assert!(
                    again,
                    "broker {} ended at the start; {}",
                    self.version,
                    self.tail()
                );
                return false;
            }
            if self.says_started() && (!self.has_admin() || self.names_itself()) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("broker {} does not serve; {}", self.version, self.tail());
    }
}

fn leaders(metadata: &Metadata) -> i32 {
    let partitions = metadata
        .topics()
        .iter()
        .flat_map(|topic| topic.partitions());
    i32::try_from(
        partitions
            .filter(|partition| partition.leader() >= 0)
            .count(),
    )
    .expect("a count")
}

fn told(answer: &KafkaResult<Metadata>) -> String {
    match answer {
        Err(error) => error.to_string(),
        Ok(metadata) => {
            let partitions = metadata
                .topics()
                .iter()
                .flat_map(|topic| topic.partitions());
            let led =
                partitions.map(|partition| (partition.id(), partition.leader(), partition.error()));
            format!("partitions, leaders, errors {:?}", led.collect::<Vec<_>>())
        }
    }
}

/// The first two numbers of a release.
fn major_minor(version: &str) -> (u32, u32) {
    let mut numbers = version
        .split('.')
        .map(|number| number.parse().expect("a version is made of numbers"));
    let mut next = || numbers.next().expect("a version has two numbers");
    (next(), next())
}

fn client_config(version: &str, bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("broker.address.family", "v4");
    config
        .set("reconnect.backoff.ms", "20")
        .set("reconnect.backoff.max.ms", "200");
    if major_minor(version) < (0, 10) {
        config
            .set("api.version.request", "false")
            .set("broker.version.fallback", version);
    }
    config
}

fn write_config(
    version: &str,
    folder: &Path,
    ports: Ports,
    zookeeper: &str,
    options: &BrokerOptions,
) {
    let Ports { broker, quorum } = ports;
    let (logs, session_ms) = (
        folder.join("logs").display().to_string(),
        options.session_ms,
    );
    let mut text = format!(
        "log.dirs={logs}\nnum.network.threads=2\nnum.io.threads=2\nbackground.threads=2\nlog.cleaner.enable=false\n\
         log.index.size.max.bytes=1048576\noffsets.topic.num.partitions=1\noffsets.topic.replication.factor=1\n\
         transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\nauto.create.topics.enable=false\n\
         delete.topic.enable=true\ncontrolled.shutdown.enable=false\ngroup.initial.rebalance.delay.ms=0\n"
    );
    text += &match major_minor(version) {
        (4.., _) => format!(
            "process.roles=broker,controller\nnode.id={broker}\ncontroller.listener.names=CONTROLLER\n\
             controller.quorum.voters={broker}@127.0.0.1:{quorum}\n\
             listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{quorum}\n\
             broker.session.timeout.ms=2000\nbroker.heartbeat.interval.ms=500\n"
        ),
        age => {
            let at = if age < (0, 9) {
                format!("host.name=127.0.0.1\nport={broker}\n")
            } else {
                format!("listeners=PLAINTEXT://127.0.0.1:{broker}\n")
            };
            format!(
                "broker.id={broker}\nbroker.id.generation.enable=false\nreserved.broker.max.id=65535\n{at}zookeeper.connect={zookeeper}\n\
                 zookeeper.session.timeout.ms={session_ms}\nzookeeper.connection.timeout.ms=60000\n"
            )
        }
    };
    for line in &options.lines {
        writeln!(text, "{line}").expect("a String takes everything");
    }
    let log4j = "log4j.rootLogger=INFO, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n\
                 log4j.appender.out.layout=org.apache.log4j.PatternLayout\nlog4j.appender.out.layout.ConversionPattern=%d %p %m (%c)%n\n";
    std::fs::write(folder.join("server.properties"), text)
        .expect("server.properties can be written");
    std::fs::write(folder.join("log4j.properties"), log4j)
        .expect("log4j.properties can be written");
}

fn spawn(version: &str, jars: &Jars, folder: &Path, options: &BrokerOptions) -> Process {
    let properties = folder.join("server.properties");
    if major_minor(version) >= (4, 0) && !folder.join("logs/meta.properties").exists() {
        let file = properties.display().to_string();
        let output = run_class(
            jars,
            "kafka.tools.StorageTool",
            &["format", "-t", "ZXZlbmtlZWwtdGVzdHMtMQ", "-c", &file],
        );
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(
            output.status.success(),
            "the folder of broker {version} was not formatted: {said}"
        );
    }
    let mut flags = vec![
        format!("-Xmx{}m", options.heap_mb),
        "-Djava.net.preferIPv4Stack=true".to_string(),
        format!(
            "-Dlog4j.configuration=file:{}",
            folder.join("log4j.properties").display()
        ),
    ];
    flags.extend(options.flags.iter().cloned());
    let mut command = jars.java(&flags);
    command
        .arg("kafka.Kafka")
        .arg(properties)
        .current_dir(folder)
        .stdin(Stdio::null());
    Process::start(
        &format!("broker {version}"),
        &mut command,
        &folder.join("log"),
        Output::Log,
    )
}
