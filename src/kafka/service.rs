//! The one that owns a reader's client: a plain thread that starts and stops partitions and hears the client's events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rdkafka::Message;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind, Result, printable};
use crate::group::{Topic, TopicPartition};
use crate::kafka::Shared;
use crate::kafka::askers::Askers;
use crate::kafka::closer::{Handle, PATIENCE, relieve_if_stuck};
use crate::kafka::content::{Gate, Silent, Slot, Source};
use crate::kafka::context::{Consumer, Latch, Watch, code, describe};
use crate::kafka::inbox::{Ask, Known, Letter, Mail, Opened, Read, Sight};
use crate::kafka::probe::{Generation, is_anybody_there, probe};
use crate::kafka::settings::{Fetching, refused};
use crate::stream::{Edge, Notice, Queue, Start};

/// What brokers said of a topic is asked anew after so long.
const FRESH: Duration = Duration::from_secs(60);
/// How often to ask whether a broker is back, and how long to wait for its answer.
const SIGHT: Duration = Duration::from_millis(250);
/// A client that finds no broker although one has taken connections for so long is made anew.
const BLIND: Duration = Duration::from_secs(5);
/// The pause before a client is made anew, doubled up to the second.
const RENEWAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The same warning is given once in so long.
const REPEAT: Duration = Duration::from_secs(60);
/// Events served before the next look at the letters.
const EVENTS: usize = 1000;

struct Client {
    number: u64,
    born: Instant,
    handle: Arc<Handle>,
    gone: Arc<Latch>,
    slots: BTreeMap<TopicPartition, Arc<Slot>>,
    /// Slots that the client does not feed any more. Their callbacks may be shared, so they are kept.
    retired: Vec<Arc<Slot>>,
    assigned: BTreeMap<TopicPartition, Arc<Gate>>,
    known: BTreeMap<Topic, (Instant, Known)>,
    /// Topics that an asker is asking about.
    asked: BTreeSet<Topic>,
    is_asked_whether_back: bool,
    /// Since when brokers are there that the client does not find.
    blind_since: Option<Instant>,
}

/// A read that waits for what brokers know of its topics.
struct Waiting {
    read: Read,
    refused: BTreeMap<Topic, (ErrorKind, String)>,
}

pub(super) struct Service {
    fetching: Fetching,
    shared: Arc<Shared>,
    askers: Askers,
    client: Option<Client>,
    clients: u64,
    is_probing: bool,
    generation: Option<Generation>,
    not_before: Instant,
    renewal: Duration,
    reads: Vec<Waiting>,
    /// Questions not asked yet, since there is no client.
    asks: Vec<Ask>,
    /// Questions on their way.
    asking: BTreeMap<u64, Ask>,
    questions: u64,
    is_down: bool,
    look_again: Instant,
    warned: VecDeque<(Instant, String)>,
    /// The brokers have denied us the group, which was told.
    is_denied: bool,
    closers: Vec<oneshot::Sender<()>>,
}

fn kafka(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Kafka, text)
}

impl Service {
    pub fn new(fetching: Fetching, shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        Self {
            fetching,
            shared,
            askers: Askers::default(),
            client: None,
            clients: 0,
            is_probing: false,
            generation: None,
            not_before: now,
            renewal: RENEWAL.0,
            reads: Vec::new(),
            asks: Vec::new(),
            asking: BTreeMap::new(),
            questions: 0,
            is_down: false,
            look_again: now,
            warned: VecDeque::new(),
            is_denied: false,
            closers: Vec::new(),
        }
    }

    /// Serves until the reader is closed or dropped.
    pub fn run(mut self) {
        loop {
            let mail = self.shared.inbox.next(self.wake_at());
            let is_over = self.open(mail) || !self.closers.is_empty();
            if is_over {
                return self.end();
            }
            self.serve_events();
            self.expire();
            self.go_on();
        }
    }

    /// Takes in what came. True if nobody will write any more.
    fn open(&mut self, mail: Mail) -> bool {
        for letter in mail.letters {
            self.take(letter);
        }
        self.stop(&mail.stops);
        mail.is_shut
    }

    fn take(&mut self, letter: Letter) {
        match letter {
            Letter::Read(read) => self.reads.push(Waiting {
                read,
                refused: BTreeMap::new(),
            }),
            Letter::Ask(ask) => self.asks.push(ask),
            Letter::Brokers(brokers) => self.move_to(brokers),
            Letter::Probed(answer) => self.probed(answer),
            Letter::Described(number, topic, answer) => self.described(number, topic, answer),
            Letter::Edges(question, answer) => self.answered(question, answer),
            Letter::Seen(number, sight) => self.looked(number, sight),
            Letter::Close(closer) => self.closers.push(closer),
            #[cfg(test)]
            Letter::Fail(reason) => self.renew(&reason),
            #[cfg(test)]
            Letter::Panic => panic!("as a test wishes"),
        }
    }

    /// When something is to be done even if nothing comes.
    fn wake_at(&self) -> Instant {
        let mut at = Instant::now() + Duration::from_secs(1);
        let reads = self.reads.iter().map(|waiting| waiting.read.until);
        let asks = self.asks.iter().chain(self.asking.values());
        for until in reads.chain(asks.map(|ask| ask.until)) {
            at = at.min(until);
        }
        if self.client.is_none() && !self.is_probing && self.has_work() {
            at = at.min(self.not_before);
        }
        if self.is_down {
            let now = Instant::now();
            // In the past it means that somebody is being asked, or nobody can be.
            let is_past = self.look_again <= now;
            at = at.min(if is_past {
                now + SIGHT
            } else {
                self.look_again
            });
        }
        at
    }

    fn has_work(&self) -> bool {
        !self.reads.is_empty() || !self.asks.is_empty()
    }

    fn go_on(&mut self) {
        if self.client.is_none() && self.has_work() {
            self.find_client();
        }
        if self.client.is_some() {
            self.go_on_reading();
            self.go_on_asking();
            self.look_whether_back();
        }
    }

    // ---- the client ----

    fn find_client(&mut self) {
        if self.is_probing || Instant::now() < self.not_before {
            return;
        }
        if !self.fetching.is_to_probe() {
            self.generation = Some(Generation::Negotiating);
        }
        if let Some(generation) = self.generation {
            return self.make_client(generation);
        }
        self.is_probing = true;
        let (brokers, time) = (self.fetching.brokers.clone(), self.fetching.deadline);
        let shared = self.shared.clone();
        self.askers.ask(move || {
            let answer = probe(&brokers, time);
            shared.inbox.push(Letter::Probed(answer));
        });
    }

    fn probed(&mut self, answer: Result<Generation>) {
        self.is_probing = false;
        match answer {
            Ok(generation) => {
                tracing::debug!(?generation, "asked the brokers how to speak");
                self.generation = Some(generation);
            }
            Err(error) => {
                self.down(&error.to_string());
                self.refuse_all(&error);
            }
        }
    }

    fn make_client(&mut self, generation: Generation) {
        match connect(&self.fetching, generation, self.clients + 1, &self.shared) {
            Ok(client) => {
                self.clients = client.number;
                self.client = Some(client);
            }
            Err(error) => {
                self.back_off();
                self.refuse_all(&error);
            }
        }
    }

    fn back_off(&mut self) {
        self.not_before = Instant::now() + self.renewal;
        self.renewal = (self.renewal * 2).min(RENEWAL.1);
    }

    /// The client is of no use any more (K6): whatever it read is to be read again, by a new one.
    fn renew(&mut self, reason: &str) {
        let Some(client) = self.client.take() else {
            return;
        };
        tracing::warn!(reason, "the kafka client is made anew");
        self.back_off();
        // The brokers may be others by now.
        self.generation = None;
        for gate in client.assigned.values() {
            gate.trouble(reason);
        }
        client.unassign_all();
    }

    /// The brokers are elsewhere now (T6). A client that still reaches one of the old ones learns of them by itself.
    fn move_to(&mut self, brokers: Vec<String>) {
        if brokers.is_empty() || brokers == self.fetching.brokers {
            return;
        }
        self.fetching.brokers = brokers;
        self.generation = None;
        if self.is_down {
            self.renew("all brokers have moved");
            self.not_before = Instant::now();
        }
    }

    /// Nothing that waits can be done now.
    fn refuse_all(&mut self, error: &Error) {
        let (kind, text) = (error.kind(), error.to_string());
        for waiting in std::mem::take(&mut self.reads) {
            waiting.refuse(kind, &text);
        }
        for ask in std::mem::take(&mut self.asks) {
            let _ = ask.answer.send(Err(Error::new(kind, text.clone())));
        }
    }

    // ---- reading ----

    fn go_on_reading(&mut self) {
        let Some(client) = &mut self.client else {
            return;
        };
        let mut ready = Vec::new();
        let mut still = Vec::new();
        for waiting in std::mem::take(&mut self.reads) {
            let missing = client.missing(&waiting);
            if missing.is_empty() {
                ready.push(waiting);
                continue;
            }
            for topic in missing {
                client.ask_about(topic, waiting.read.until, &self.askers, &self.shared);
            }
            still.push(waiting);
        }
        self.reads = still;
        let leaderless: Vec<_> = ready
            .into_iter()
            .flat_map(|waiting| client.begin(waiting))
            .collect();
        for partition in leaderless {
            self.warn(format!("{partition} has no leader, waiting for one"));
        }
    }

    fn described(&mut self, number: u64, topic: Topic, answer: Result<Known>) {
        let Some(client) = self.client.as_mut().filter(|c| c.number == number) else {
            return;
        };
        client.asked.remove(&topic);
        match answer {
            Ok(known) => {
                client.known.insert(topic, (Instant::now(), known));
                self.back();
            }
            Err(error) => {
                for waiting in &mut self.reads {
                    if waiting.wants(&topic) {
                        let refusal = (error.kind(), error.to_string());
                        waiting.refused.insert(topic.clone(), refusal);
                    }
                }
            }
        }
    }

    fn stop(&mut self, partitions: &BTreeSet<TopicPartition>) {
        if let Some(client) = &mut self.client {
            client.stop(partitions);
        }
    }

    // ---- asking ----

    /// Each topic is looked at once, so that partitions without a leader, which only time would answer, do not hold up the
    /// others.
    fn go_on_asking(&mut self) {
        let Some(client) = &self.client else {
            return;
        };
        let mut topics: BTreeMap<Topic, Vec<(u64, TopicPartition, Instant)>> = BTreeMap::new();
        for ask in std::mem::take(&mut self.asks) {
            self.questions += 1;
            let entry = (self.questions, ask.partition.clone(), ask.until);
            topics
                .entry(ask.partition.topic.clone())
                .or_default()
                .push(entry);
            self.asking.insert(self.questions, ask);
        }
        for (topic, list) in topics {
            let (handle, shared) = (client.handle.clone(), self.shared.clone());
            let askers = self.askers.clone();
            self.askers
                .ask(move || ask_for_ends(&handle, &shared, &askers, &topic, list));
        }
    }

    fn answered(&mut self, question: u64, answer: Result<(i64, i64)>) {
        if answer.is_ok() {
            self.back();
        }
        let Some(ask) = self.asking.remove(&question) else {
            return;
        };
        let _ = ask.answer.send(answer.map(|(low, high)| match ask.edge {
            Edge::Earliest => low,
            Edge::Latest => high,
        }));
    }

    /// Answers whatever has waited too long, whoever it waits for.
    fn expire(&mut self) {
        let now = Instant::now();
        let time = self.fetching.deadline.as_millis();
        let text = format!("no broker answered within {time} ms");
        let late = |waiting: &mut Waiting| waiting.read.until <= now;
        for waiting in self.reads.extract_if(.., late) {
            waiting.refuse(ErrorKind::Kafka, &text);
        }
        let asking = self.asking.iter().filter(|(_, ask)| ask.until <= now);
        let asking: Vec<u64> = asking.map(|(question, _)| *question).collect();
        let asked = asking.iter().filter_map(|it| self.asking.remove(it));
        for ask in self
            .asks
            .extract_if(.., |ask| ask.until <= now)
            .chain(asked)
        {
            let _ = ask.answer.send(Err(kafka(format!(
                "asking for the ends of {}: {text}",
                ask.partition
            ))));
        }
    }

    // ---- events ----

    fn serve_events(&mut self) {
        for _ in 0..EVENTS {
            let Some(client) = &self.client else {
                return;
            };
            let event = match client.handle.consumer().poll(Duration::ZERO) {
                Some(Ok(message)) => Ok(place(message.topic(), message.partition())),
                Some(Err(error)) => Err(error),
                None if client.watch().take_served() => continue,
                None => return,
            };
            match event {
                Ok(partition) => self.stray(partition),
                Err(error) => self.failed(&error),
            }
        }
        // There may be more.
        self.shared.inbox.ring();
    }

    /// A message past its queue: librdkafka made the partition anew, as after its topic was. It is read again.
    fn stray(&mut self, partition: Option<TopicPartition>) {
        let (Some(client), Some(partition)) = (&mut self.client, partition) else {
            return;
        };
        let Some(gate) = client.assigned.get(&partition) else {
            return;
        };
        gate.trouble("the partition was made anew");
        client.retired.extend(client.slots.remove(&partition));
        client.unassign(&BTreeSet::from([partition]));
    }

    fn failed(&mut self, error: &KafkaError) {
        use RDKafkaErrorCode as Code;
        let text = describe(error);
        if matches!(error, KafkaError::MessageConsumptionFatal(_)) {
            return self.renew(&text);
        }
        match code(error) {
            Some(Code::AllBrokersDown) => self.down(&text),
            Some(Code::Authentication | Code::SSL | Code::SaslAuthenticationFailed) => {
                let is_due = self.is_down
                    && self
                        .client
                        .as_ref()
                        .is_some_and(|client| client.born.elapsed() > RENEWAL.1);
                self.warn(text.clone());
                if is_due {
                    // Credentials are read once by each client (N5).
                    self.renew(&text);
                }
            }
            Some(Code::GroupAuthorizationFailed) => self.denied(&text),
            // Said by `AllBrokersDown` if it matters; and a group of brokers' own does not concern us (docs/brokers.md).
            Some(
                Code::BrokerTransportFailure
                | Code::Resolve
                | Code::OperationTimedOut
                | Code::CoordinatorNotAvailable
                | Code::CoordinatorLoadInProgress
                | Code::NotCoordinator
                | Code::WaitingForCoordinator
                | Code::PartitionEOF,
            ) => tracing::debug!("{text}"),
            _ => self.warn(text),
        }
    }

    /// The group that librdkafka wants and we do not use: no error, but its denials fill the brokers' logs.
    fn denied(&mut self, text: &str) {
        tracing::debug!("{text}");
        if !self.is_denied {
            self.is_denied = true;
            self.shared.tell(Notice::Warning(format!(
                "the brokers deny us the group: {text}; it is no error while offsets are in ZooKeeper, reading goes on and the share is kept"
            )));
        }
    }

    fn warn(&mut self, text: String) {
        let now = Instant::now();
        self.warned.retain(|(at, _)| now - *at < REPEAT);
        if self.warned.iter().any(|(_, said)| *said == text) {
            return;
        }
        if self.warned.len() >= 32 {
            self.warned.pop_front();
        }
        self.warned.push_back((now, text.clone()));
        self.shared.tell(Notice::Warning(text));
    }

    fn down(&mut self, reason: &str) {
        if !self.is_down {
            self.is_down = true;
            self.look_again = Instant::now();
            self.shared.tell(Notice::BrokersDown(reason.to_owned()));
        }
    }

    /// A broker answered.
    fn back(&mut self) {
        self.renewal = RENEWAL.0;
        if let Some(client) = &mut self.client {
            client.blind_since = None;
        }
        if self.is_down {
            self.is_down = false;
            self.shared.tell(Notice::BrokersBack);
        }
    }

    fn look_whether_back(&mut self) {
        let Some(client) = &mut self.client else {
            return;
        };
        let is_time = self.is_down && self.look_again <= Instant::now();
        if !is_time || client.is_asked_whether_back {
            return;
        }
        let read = client.slots.keys().map(|partition| &partition.topic);
        let Some(topic) = client.known.keys().chain(read).next().cloned() else {
            return;
        };
        client.is_asked_whether_back = true;
        let (number, handle, shared) = (client.number, client.handle.clone(), self.shared.clone());
        let brokers = self.fetching.brokers.clone();
        self.askers.ask(move || {
            let answer = handle
                .consumer()
                .fetch_metadata(Some(topic.as_str()), SIGHT);
            drop(handle);
            let sight = match answer {
                Ok(_) => Sight::Back,
                Err(_) if is_anybody_there(&brokers, SIGHT) => Sight::Unseen,
                Err(_) => Sight::Nothing,
            };
            shared.inbox.push(Letter::Seen(number, sight));
        });
    }

    fn looked(&mut self, number: u64, sight: Sight) {
        let Some(client) = self.client.as_mut().filter(|c| c.number == number) else {
            return;
        };
        client.is_asked_whether_back = false;
        self.look_again = Instant::now() + SIGHT;
        match sight {
            Sight::Back => self.back(),
            Sight::Nothing => client.blind_since = None,
            Sight::Unseen => {
                let since = *client.blind_since.get_or_insert_with(Instant::now);
                if since.elapsed() > BLIND {
                    // A broker that has just started may name no broker at all, and librdkafka then forgets all it knew.
                    self.renew("brokers are there, and the kafka client does not find them");
                }
            }
        }
    }

    // ---- the end ----

    fn end(mut self) {
        self.shared.inbox.shut();
        self.shared.shut_all();
        self.askers.clear();
        self.reads.clear();
        self.asks.clear();
        self.asking.clear();
        if let Some(client) = self.client.take() {
            let is_waited_for = !self.closers.is_empty();
            client.close(is_waited_for);
        }
        for closer in self.closers {
            let _ = closer.send(());
        }
    }
}

impl Waiting {
    fn wants(&self, topic: &Topic) -> bool {
        self.read
            .starts
            .iter()
            .any(|(start, _)| start.partition.topic == *topic)
    }

    /// Answers no for all its partitions.
    fn refuse(self, kind: ErrorKind, text: &str) {
        let no = |(start, _): (Start, _)| {
            let text = format!("starting to read {}: {text}", start.partition);
            (start.partition, Err(Error::new(kind, text)))
        };
        let _ = self
            .read
            .answer
            .send(self.read.starts.into_iter().map(no).collect());
    }
}

impl Client {
    fn watch(&self) -> &Watch {
        self.handle.consumer().context()
    }

    /// Topics of a read that nothing is known of yet. Those of its partitions that were stopped meanwhile do not count.
    fn missing(&mut self, waiting: &Waiting) -> BTreeSet<Topic> {
        self.known.retain(|_, (since, _)| since.elapsed() < FRESH);
        let mut missing = BTreeSet::new();
        for (start, gate) in &waiting.read.starts {
            let topic = &start.partition.topic;
            if !gate.is_shut()
                && !self.known.contains_key(topic)
                && !waiting.refused.contains_key(topic)
            {
                missing.insert(topic.clone());
            }
        }
        missing
    }

    fn ask_about(&mut self, topic: Topic, until: Instant, askers: &Askers, shared: &Arc<Shared>) {
        if !self.asked.insert(topic.clone()) {
            return;
        }
        let (number, handle, shared) = (self.number, self.handle.clone(), shared.clone());
        askers.ask(move || {
            let answer = know(handle.consumer(), &topic, until);
            drop(handle);
            shared.inbox.push(Letter::Described(number, topic, answer));
        });
    }

    /// Starts all of a read's partitions that can be started, and answers. Tells which of them nobody leads (T5).
    fn begin(&mut self, waiting: Waiting) -> Vec<TopicPartition> {
        let mut opened: Opened = Vec::new();
        let mut started = Vec::new();
        let mut leaderless = Vec::new();
        for (start, gate) in waiting.read.starts {
            let partition = start.partition.clone();
            if gate.is_shut() {
                opened.push((partition, Ok(Box::new(Silent))));
                continue;
            }
            match self.prepare(&start, &waiting.refused) {
                Err(error) => opened.push((partition, Err(error))),
                Ok((slot, has_leader)) => {
                    if !has_leader {
                        leaderless.push(partition);
                    }
                    started.push((start, gate, slot));
                }
            }
        }
        self.assign(started, &mut opened);
        let _ = waiting.read.answer.send(opened);
        leaderless
    }

    fn prepare(
        &mut self,
        start: &Start,
        refused: &BTreeMap<Topic, (ErrorKind, String)>,
    ) -> Result<(Arc<Slot>, bool)> {
        let partition = &start.partition;
        if let Some((kind, text)) = refused.get(&partition.topic) {
            return Err(Error::new(*kind, text.clone()));
        }
        if start.offset < 0 {
            // Below zero librdkafka has meanings of its own.
            return Err(Error::new(
                ErrorKind::Internal,
                format!("{partition} cannot be read from offset {}", start.offset),
            ));
        }
        let known = self.known.get(&partition.topic).map(|(_, known)| known);
        if known.is_some_and(|known| !known.partitions.contains(&partition.partition)) {
            // It may have been added since; the next try asks again.
            self.known.remove(&partition.topic);
            return Err(kafka(format!("the brokers do not know {partition}")));
        }
        let has_leader = known.is_none_or(|known| !known.leaderless.contains(&partition.partition));
        if let Some(slot) = self.slots.get(partition) {
            return Ok((slot.clone(), has_leader));
        }
        // Split before it is assigned: from then on nothing of it can come out elsewhere.
        let slot = Slot::split(&self.handle, partition)
            .ok_or_else(|| kafka(format!("the kafka client does not know {partition}")))?;
        self.slots.insert(partition.clone(), slot.clone());
        Ok((slot, has_leader))
    }

    fn assign(&mut self, started: Vec<(Start, Arc<Gate>, Arc<Slot>)>, opened: &mut Opened) {
        let partitions = started.iter().map(|(start, ..)| start.partition.clone());
        // One that is read already has to be let go before it can begin anew.
        self.unassign(&partitions.collect());
        for (start, _, slot) in &started {
            slot.hang(start.bell.clone());
        }
        let all = self.assign_at(started.iter().map(|(start, ..)| start));
        for (start, gate, slot) in started {
            // One refusal refuses all, so then each for itself.
            let one = match &all {
                Ok(()) => Ok(()),
                Err(_) => self.assign_at([&start]),
            };
            if let Err(error) = one {
                let text = printable(&error.to_string());
                let error = kafka(format!("starting to read {}: {text}", start.partition));
                opened.push((start.partition, Err(error)));
                continue;
            }
            self.assigned.insert(start.partition.clone(), gate.clone());
            let source: Box<dyn Queue> = Box::new(Source { slot, gate });
            opened.push((start.partition, Ok(source)));
            // What lies there from earlier times keeps the callback silent until a poll has cleared it away.
            start.bell.ring();
        }
    }

    fn assign_at<'a>(&self, starts: impl IntoIterator<Item = &'a Start>) -> KafkaResult<()> {
        let mut list = TopicPartitionList::new();
        for start in starts {
            let partition = &start.partition;
            list.add_partition_offset(
                partition.topic.as_str(),
                partition.partition,
                Offset::Offset(start.offset),
            )?;
        }
        if list.count() == 0 {
            return Ok(());
        }
        self.handle.consumer().incremental_assign(&list)
    }

    /// Stops those whose gate is shut: a later start of the same partition stays.
    fn stop(&mut self, partitions: &BTreeSet<TopicPartition>) {
        let is_over = |partition: &&TopicPartition| {
            self.assigned
                .get(partition)
                .is_some_and(|gate| gate.is_shut())
        };
        let over = partitions.iter().filter(is_over).cloned().collect();
        self.unassign(&over);
    }

    fn unassign(&mut self, partitions: &BTreeSet<TopicPartition>) {
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            if self.assigned.remove(partition).is_some() {
                list.add_partition(partition.topic.as_str(), partition.partition);
            }
        }
        if list.count() == 0 {
            return;
        }
        if let Err(error) = self.handle.consumer().incremental_unassign(&list) {
            tracing::warn!(%error, "kafka partitions could not be stopped");
        }
    }

    fn unassign_all(mut self) {
        let all = self.assigned.keys().cloned().collect();
        self.unassign(&all);
    }

    /// Lets go of it. Waits for its end if that is asked for and nobody else holds messages or queues of it.
    fn close(mut self, is_waited_for: bool) {
        let all = self.assigned.keys().cloned().collect();
        self.unassign(&all);
        let slots = self.slots.values().chain(&self.retired);
        let slots: Vec<Weak<Slot>> = slots.map(Arc::downgrade).collect();
        let gone = self.gone.clone();
        drop(self);
        if !is_waited_for || slots.iter().any(|slot| slot.strong_count() > 0) {
            return;
        }
        if !gone.wait(PATIENCE) {
            tracing::warn!(
                "the kafka client did not end within {} ms and is left behind",
                PATIENCE.as_millis()
            );
            relieve_if_stuck();
        }
    }
}

fn connect(
    fetching: &Fetching,
    generation: Generation,
    number: u64,
    shared: &Arc<Shared>,
) -> Result<Client> {
    let config = fetching.config(generation)?;
    let watch = Watch::default();
    let gone = watch.gone.clone();
    let mut consumer =
        Consumer::from_config_and_context(&config, watch).map_err(|error| refused(&error))?;
    let rung = Arc::downgrade(shared);
    consumer.set_nonempty_callback(move || {
        // K7: called from C.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if let Some(shared) = rung.upgrade() {
                shared.inbox.ring();
            }
        }));
    });
    // For what came before the callback was there.
    shared.inbox.ring();
    Ok(Client {
        number,
        born: Instant::now(),
        handle: Handle::new(consumer),
        gone,
        slots: BTreeMap::new(),
        retired: Vec::new(),
        assigned: BTreeMap::new(),
        known: BTreeMap::new(),
        asked: BTreeSet::new(),
        is_asked_whether_back: false,
        blind_since: None,
    })
}

fn place(topic: &str, partition: i32) -> Option<TopicPartition> {
    Some(TopicPartition::new(Topic::new(topic).ok()?, partition))
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Asks for a topic's partitions. Blocks until then at most.
pub(super) fn know(consumer: &Consumer, topic: &Topic, until: Instant) -> Result<Known> {
    let doing = || format!("asking the brokers about topic {topic}");
    let metadata = consumer
        .fetch_metadata(Some(topic.as_str()), left(until))
        .map_err(|error| kafka(format!("{}: {}", doing(), printable(&error.to_string()))))?;
    known(&metadata, topic).map_err(|why| kafka(format!("{}: {why}", doing())))
}

fn known(metadata: &Metadata, topic: &Topic) -> std::result::Result<Known, String> {
    let mut topics = metadata.topics().iter();
    let Some(found) = topics.find(|found| found.name() == topic.as_str()) else {
        return Err("they do not mention it".into());
    };
    if let Some(error) = found.error() {
        return Err(RDKafkaErrorCode::from(error).to_string());
    }
    let mut known = Known::default();
    for partition in found.partitions() {
        known.partitions.insert(partition.id());
        if partition.leader() < 0 {
            known.leaderless.insert(partition.id());
        }
    }
    Ok(known)
}

/// Finds out which partitions of a topic have a leader, and asks those.
fn ask_for_ends(
    handle: &Arc<Handle>,
    shared: &Arc<Shared>,
    askers: &Askers,
    topic: &Topic,
    list: Vec<(u64, TopicPartition, Instant)>,
) {
    let until = list.iter().map(|(_, _, until)| *until).min();
    let known = until.map(|until| know(handle.consumer(), topic, until));
    for (question, partition, until) in list {
        let is_leaderless = match &known {
            Some(Ok(known)) => known.leaderless.contains(&partition.partition),
            _ => false,
        };
        if is_leaderless {
            let answer = Err(kafka(format!(
                "asking for the ends of {partition}: it has no leader"
            )));
            shared.inbox.push(Letter::Edges(question, answer));
            continue;
        }
        let (handle, shared) = (handle.clone(), shared.clone());
        askers.ask(move || {
            let answer = edges(handle.consumer(), &partition, until);
            drop(handle);
            shared.inbox.push(Letter::Edges(question, answer));
        });
    }
}

/// Asks the leader for both ends of a log. Blocks until then at most.
pub(super) fn edges(
    consumer: &Consumer,
    partition: &TopicPartition,
    until: Instant,
) -> Result<(i64, i64)> {
    if left(until).is_zero() {
        return Err(kafka(format!(
            "asking for the ends of {partition}: its turn came too late"
        )));
    }
    let topic = partition.topic.as_str();
    let ask = || consumer.fetch_watermarks(topic, partition.partition, left(until));
    let answer = match ask() {
        // The client goes by what it was told up to five minutes ago; a partition added since has to be asked for.
        Err(error) if code(&error) == Some(RDKafkaErrorCode::UnknownPartition) => {
            know(consumer, &partition.topic, until)?;
            ask()
        }
        answer => answer,
    };
    answer.map_err(|error| {
        let text = printable(&error.to_string());
        kafka(format!("asking for the ends of {partition}: {text}"))
    })
}
