//! What a look sees, and the watches that tell when to look again.
//!
//! A watch is armed by the read it belongs to and kept until it fires. What is not armed is not known to be as it was, so
//! the next look reads it; what is armed is not read again.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures_util::FutureExt;
use futures_util::future::{MaybeDone, join_all, maybe_done};

use crate::error::printable;
use crate::group::{ConsumerId, GroupView, Member, Subscription, Topic, TopicPartition};
use crate::registry::{Fault, Fired, Reply, Stat, Watch};
use crate::session::watches::Watches;
use crate::session::{Session, Trouble, trouble};
use crate::wire::paths;
use crate::wire::{Broker, decode_broker, decode_owner, decode_registration, decode_topic};

/// So many registrations are read again at every audit, in turn.
const DOUBTED: usize = 8;

/// What a watch is on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Watched {
    /// The list of members.
    Members,
    /// The list of topics.
    Topics,
    /// One topic's node.
    Topic(Topic),
    /// The list of brokers.
    Brokers,
    /// A partition's owner node.
    Owner(TopicPartition),
    /// A partition's offset node.
    Offset(TopicPartition),
}

/// What stands at a partition's owner node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnerNode {
    pub text: String,
    pub stat: Stat,
}

#[derive(Debug, Clone)]
enum TopicSeen {
    Missing,
    Partitions { ids: Vec<i32>, created: i64 },
    Unreadable(String),
}

/// A request that was sent before its answer is wanted.
type Sent<T> = MaybeDone<Reply<T>>;

/// What a first look will want to know in any case, asked for at once.
#[derive(Default)]
struct Ahead {
    topics: BTreeMap<Topic, Sent<(Vec<u8>, Stat, Watch)>>,
    owners: BTreeMap<Topic, Sent<(Vec<String>, Stat)>>,
    brokers: Option<Sent<(Vec<String>, Stat, Watch)>>,
}

fn send<T>(request: Reply<T>) -> Sent<T> {
    let mut sent = maybe_done(request);
    // The first poll sends it.
    let _ = (&mut sent).now_or_never();
    sent
}

async fn answer<T>(
    sent: Option<Sent<T>>,
    otherwise: impl FnOnce() -> Reply<T>,
) -> Result<T, Fault> {
    match sent {
        None => otherwise().await,
        Some(mut sent) => {
            (&mut sent).await;
            Pin::new(&mut sent)
                .take_output()
                .expect("it has been waited for and nobody else takes it")
        }
    }
}

/// The eyes of a session.
pub(crate) struct Lookout {
    session: Arc<Session>,
    armed: BTreeSet<Watched>,
    watches: Arc<Watches>,
    members: BTreeMap<ConsumerId, Result<Member, String>>,
    /// Listed and not read yet.
    unread: BTreeSet<ConsumerId>,
    members_version: Option<i32>,
    topics: BTreeMap<Topic, TopicSeen>,
    all_topics: BTreeSet<Topic>,
    brokers: Vec<Broker>,
    /// The member up to which registrations were doubted last.
    doubted: Option<ConsumerId>,
    ahead: Ahead,
}

impl Lookout {
    pub fn new(session: Arc<Session>) -> Self {
        Self {
            session,
            armed: BTreeSet::new(),
            watches: Arc::default(),
            members: BTreeMap::new(),
            unread: BTreeSet::new(),
            members_version: None,
            topics: BTreeMap::new(),
            all_topics: BTreeSet::new(),
            brokers: Vec::new(),
            doubted: None,
            ahead: Ahead::default(),
        }
    }

    /// Waits until something that was seen has changed; answers with all of it. Dropping the wait loses nothing.
    pub async fn changed(&mut self) -> Result<BTreeSet<Watched>, Trouble> {
        let first = self.watches.next().await;
        self.take_up(Some(first))
    }

    fn take_up(
        &mut self,
        mut next: Option<(Watched, Fired)>,
    ) -> Result<BTreeSet<Watched>, Trouble> {
        let mut fired = BTreeSet::new();
        while let Some((watched, how)) = next {
            if how == Fired::SessionLost {
                return Err(Trouble::SessionLost);
            }
            self.armed.remove(&watched);
            fired.insert(watched);
            next = self.watches.next_already();
        }
        Ok(fired)
    }

    /// What has changed so far, without waiting.
    pub fn changed_already(&mut self) -> Result<BTreeSet<Watched>, Trouble> {
        let first = self.watches.next_already();
        self.take_up(first)
    }

    pub fn is_armed(&self, watched: &Watched) -> bool {
        self.armed.contains(watched)
    }

    /// To be attended to beside whatever else is awaited.
    pub fn watches(&self) -> Arc<Watches> {
        self.watches.clone()
    }

    fn arm(&mut self, watched: Watched, watch: Watch, alarm: Option<Arc<AtomicBool>>) {
        // A second watch on the same thing tells nothing new; it still must not be dropped before it fires.
        self.armed.insert(watched.clone());
        self.watches.add(watched, watch, alarm);
    }

    /// Sends what the first look will ask in any case, so that its answers come with that of the first question: a member
    /// that joins keeps nobody waiting for one round trip after another.
    pub fn look_ahead(&mut self, topics: &BTreeSet<Topic>, needs_brokers: bool) {
        let connection = &self.session.connection;
        for topic in topics {
            let read = connection.data_and_watch(&paths::topic(topic));
            self.ahead.topics.insert(topic.clone(), send(read));
            let list = connection.children(&paths::owners_topic(self.session.group(), topic));
            self.ahead.owners.insert(topic.clone(), send(list));
        }
        if needs_brokers {
            self.ahead.brokers = Some(send(connection.children_and_watch(paths::broker_ids())));
        }
    }

    /// Reads what is not known to be unchanged. `interest` names the topics to know about, given the members and, if one
    /// of them has a filter, all topics.
    pub async fn look(
        &mut self,
        interest: &(dyn Fn(&GroupView) -> BTreeSet<Topic> + Sync),
    ) -> Result<GroupView, Trouble> {
        self.look_at_members().await?;
        if self.has_filters() {
            self.look_at_all_topics().await?;
        }
        let mut view = self.members_view();
        let wanted = interest(&view);
        self.look_at_topics(&wanted).await?;
        for topic in wanted {
            match self.topics.get(&topic) {
                Some(TopicSeen::Partitions { ids, .. }) => {
                    view.partitions.insert(topic, ids.clone());
                }
                Some(TopicSeen::Unreadable(reason)) => {
                    view.unreadable.insert(topic, reason.clone());
                }
                Some(TopicSeen::Missing) | None => {
                    view.partitions.insert(topic, Vec::new());
                }
            }
        }
        Ok(view)
    }

    fn has_filters(&self) -> bool {
        let is_filter =
            |member: &Member| matches!(member.subscription, Subscription::Filter { .. });
        self.members
            .values()
            .any(|member| member.as_ref().is_ok_and(is_filter))
    }

    fn members_view(&self) -> GroupView {
        let mut view = GroupView {
            topics: self.all_topics.clone(),
            ..GroupView::default()
        };
        for (consumer, member) in &self.members {
            match member {
                Ok(member) => {
                    view.members.insert(consumer.clone(), member.clone());
                }
                Err(reason) => {
                    view.malformed.insert(consumer.clone(), reason.clone());
                }
            }
        }
        view
    }

    async fn look_at_members(&mut self) -> Result<(), Trouble> {
        if !self.is_armed(&Watched::Members) {
            self.list_members().await?;
        }
        let group = self.session.group().clone();
        let mut nodes = Vec::new();
        for consumer in &self.unread {
            // A name that would change the path cannot be a child's name.
            if let Ok(path) = paths::id(&group, consumer) {
                nodes.push((consumer.clone(), path));
            }
        }
        let reads = nodes
            .iter()
            .map(|(_, path)| self.session.connection.data(path));
        let answers = join_all(reads).await;
        for ((consumer, path), answer) in nodes.into_iter().zip(answers) {
            match answer {
                Ok((data, stat)) => {
                    self.unread.remove(&consumer);
                    self.members.insert(consumer, read_member(&data, &stat));
                }
                // It left between the list and the read; the watch on the list tells (W5).
                Err(Fault::NoNode) => {
                    self.unread.remove(&consumer);
                    self.members.remove(&consumer);
                }
                Err(Fault::NoAuth) => {
                    self.unread.remove(&consumer);
                    self.members
                        .insert(consumer, Err("we may not read it".to_owned()));
                }
                Err(fault) => return Err(trouble("reading", &path, fault)),
            }
        }
        Ok(())
    }

    async fn list_members(&mut self) -> Result<(), Trouble> {
        let path = self.session.ids_path();
        let (names, stat, watch) = match self.session.connection.children_and_watch(&path).await {
            Ok(listed) => listed,
            Err(Fault::NoNode) => return Err(Trouble::RegistrationGone),
            Err(fault) => return Err(trouble("listing", &path, fault)),
        };
        self.arm(Watched::Members, watch, None);
        let names: BTreeSet<ConsumerId> = names.into_iter().map(ConsumerId::new).collect();
        if !names.contains(self.session.me()) {
            return Err(Trouble::RegistrationGone);
        }
        let gone: Vec<ConsumerId> = self
            .members
            .keys()
            .filter(|known| !names.contains(*known))
            .cloned()
            .collect();
        for consumer in &gone {
            self.members.remove(consumer);
        }
        let is_new = |name: &&ConsumerId| !self.members.contains_key(*name);
        let new: BTreeSet<ConsumerId> = names.iter().filter(is_new).cloned().collect();
        // Every join and leave counts once. If the sum does not fit, somebody left and came back under the same name.
        let explained = i32::try_from(gone.len() + new.len()).unwrap_or(i32::MAX);
        // What could not be read again since the last list still is to be.
        self.unread.retain(|name| names.contains(name));
        self.unread.extend(new);
        if self
            .members_version
            .is_some_and(|before| stat.cversion.wrapping_sub(before) != explained)
        {
            self.unread = names;
        }
        let malformed = self.members.iter().filter(|(_, member)| member.is_err());
        self.unread
            .extend(malformed.map(|(consumer, _)| consumer.clone()));
        self.members_version = Some(stat.cversion);
        Ok(())
    }

    async fn look_at_all_topics(&mut self) -> Result<(), Trouble> {
        if self.is_armed(&Watched::Topics) {
            return Ok(());
        }
        let path = paths::topics();
        match self.session.connection.children_and_watch(path).await {
            Ok((names, _, watch)) => {
                self.arm(Watched::Topics, watch, None);
                // A name that is no topic name cannot be a topic.
                self.all_topics = names
                    .iter()
                    .filter_map(|name| Topic::new(name).ok())
                    .collect();
                Ok(())
            }
            Err(Fault::NoNode) => self.await_creation(Watched::Topics, path).await,
            Err(fault) => Err(trouble("listing", path, fault)),
        }
    }

    /// Arms a watch on a node that does not exist, so that its creation is seen.
    async fn await_creation(&mut self, watched: Watched, path: &str) -> Result<(), Trouble> {
        match self.session.connection.stat_and_watch(path).await {
            Ok((None, watch)) => {
                self.arm(watched, watch, None);
                Ok(())
            }
            Ok((Some(_), watch)) => {
                self.watches.add(watched, watch, None);
                Err(Trouble::Transient(format!(
                    "{path} was created while we looked at it"
                )))
            }
            Err(fault) => Err(trouble("looking for", path, fault)),
        }
    }

    async fn look_at_topics(&mut self, wanted: &BTreeSet<Topic>) -> Result<(), Trouble> {
        let stale: Vec<Topic> = wanted
            .iter()
            .filter(|t| !self.is_armed(&Watched::Topic((*t).clone())))
            .cloned()
            .collect();
        let mut reads = Vec::new();
        for name in &stale {
            let connection = self.session.connection.clone();
            let path = paths::topic(name);
            let sent = self.ahead.topics.remove(name);
            reads.push(answer(sent, move || connection.data_and_watch(&path)));
        }
        let answers = join_all(reads).await;
        for (name, answer) in stale.into_iter().zip(answers) {
            match answer {
                Ok((data, stat, watch)) => {
                    self.arm(Watched::Topic(name.clone()), watch, None);
                    self.topics.insert(name, read_topic(&data, &stat));
                }
                Err(Fault::NoNode) => {
                    self.topics.insert(name.clone(), TopicSeen::Missing);
                    self.await_creation(Watched::Topic(name.clone()), &paths::topic(&name))
                        .await?;
                }
                Err(Fault::NoAuth) => {
                    self.topics
                        .insert(name, TopicSeen::Unreadable("we may not read it".to_owned()));
                }
                Err(fault) => return Err(trouble("reading", &paths::topic(&name), fault)),
            }
        }
        Ok(())
    }

    /// The transaction that created a topic's node, if the last look saw it.
    pub fn topic_created(&self, topic: &Topic) -> Option<i64> {
        match self.topics.get(topic) {
            Some(TopicSeen::Partitions { created, .. }) => Some(*created),
            _ => None,
        }
    }

    /// Whether the last look saw that a topic does not exist.
    pub fn is_missing(&self, topic: &Topic) -> bool {
        matches!(self.topics.get(topic), Some(TopicSeen::Missing))
    }

    /// The registered brokers, read again if they changed. Registrations that cannot be read are left out.
    pub async fn brokers(&mut self) -> Result<Vec<Broker>, Trouble> {
        if self.is_armed(&Watched::Brokers) {
            return Ok(self.brokers.clone());
        }
        let path = paths::broker_ids();
        let connection = self.session.connection.clone();
        let sent = self.ahead.brokers.take();
        match answer(sent, || connection.children_and_watch(path)).await {
            Ok((names, _, watch)) => {
                let nodes: Vec<String> = names
                    .iter()
                    .filter_map(|name| name.parse().ok())
                    .map(paths::broker)
                    .collect();
                let answers =
                    join_all(nodes.iter().map(|path| self.session.connection.data(path))).await;
                let mut brokers = Vec::new();
                for (path, answer) in nodes.iter().zip(answers) {
                    match answer {
                        Ok((data, _)) => brokers.extend(decode_broker(&data)),
                        // It vanished between the list and the read (r038), or is not for us to see.
                        Err(Fault::NoNode | Fault::NoAuth) => {}
                        Err(fault) => return Err(trouble("reading", path, fault)),
                    }
                }
                self.arm(Watched::Brokers, watch, None);
                self.brokers = brokers;
            }
            Err(Fault::NoNode) => {
                self.brokers.clear();
                self.await_creation(Watched::Brokers, path).await?;
            }
            Err(fault) => return Err(trouble("listing", path, fault)),
        }
        Ok(self.brokers.clone())
    }

    /// Which partitions of a topic have an owner node.
    pub async fn owned(
        &mut self,
        topics: &BTreeSet<Topic>,
    ) -> Result<BTreeSet<TopicPartition>, Trouble> {
        let nodes: Vec<String> = topics
            .iter()
            .map(|topic| paths::owners_topic(self.session.group(), topic))
            .collect();
        let mut lists = Vec::new();
        for (topic, path) in topics.iter().zip(&nodes) {
            let connection = self.session.connection.clone();
            let sent = self.ahead.owners.remove(topic);
            lists.push(answer(sent, move || connection.children(path)));
        }
        let answers = join_all(lists).await;
        let mut owned = BTreeSet::new();
        for ((topic, path), answer) in topics.iter().zip(&nodes).zip(answers) {
            match answer {
                Ok((names, _)) => {
                    let ids = names.iter().filter_map(|name| paths::partition(name));
                    owned.extend(ids.map(|id| TopicPartition::new(topic.clone(), id)));
                }
                Err(Fault::NoNode) => {}
                Err(fault) => return Err(trouble("listing", path, fault)),
            }
        }
        Ok(owned)
    }

    /// Reads owner nodes and watches those that are there, each with its alarm. What could be read is answered also if something
    /// else could not.
    pub async fn watch_owners(
        &mut self,
        partitions: &BTreeSet<TopicPartition>,
        alarm: impl Fn(&TopicPartition) -> Option<Arc<AtomicBool>>,
    ) -> (
        BTreeMap<TopicPartition, Option<OwnerNode>>,
        Result<(), Trouble>,
    ) {
        let nodes: Vec<String> = partitions
            .iter()
            .map(|at| paths::owner(self.session.group(), at))
            .collect();
        let answers = join_all(
            nodes
                .iter()
                .map(|path| self.session.connection.data_and_watch(path)),
        )
        .await;
        let (mut found, mut is_complete) = (BTreeMap::new(), Ok(()));
        for ((at, path), answer) in partitions.iter().zip(&nodes).zip(answers) {
            match answer {
                Ok((data, stat, watch)) => {
                    self.arm(Watched::Owner(at.clone()), watch, alarm(at));
                    found.insert(
                        at.clone(),
                        Some(OwnerNode {
                            text: decode_owner(&data),
                            stat,
                        }),
                    );
                }
                Err(Fault::NoNode) => {
                    found.insert(at.clone(), None);
                }
                Err(fault) => {
                    is_complete = is_complete.and(Err(trouble("reading", path, fault)));
                }
            }
        }
        (found, is_complete)
    }

    /// Watches the offset node of a partition that is held back until somebody repairs it. Answers its version.
    pub async fn watch_offset(&mut self, at: &TopicPartition) -> Result<Option<i32>, Trouble> {
        let watched = Watched::Offset(at.clone());
        let path = paths::offset(self.session.group(), at);
        match self.session.connection.stat_and_watch(&path).await {
            Ok((stat, watch)) => {
                self.arm(watched, watch, None);
                Ok(stat.map(|stat| stat.version))
            }
            Err(fault) => Err(trouble("watching", &path, fault)),
        }
    }

    /// Lists the members without relying on the watch; call after [`changed_already`](Self::changed_already). If that shows
    /// a change that no watch told, says so. The next look reads again what cannot be watched (L-12): registrations that
    /// could not be read, and a few of the others in turn.
    pub async fn audit(&mut self) -> Result<Option<String>, Trouble> {
        let path = self.session.ids_path();
        let (names, stat) = match self.session.connection.children(&path).await {
            Ok(listed) => listed,
            Err(Fault::NoNode) => return Err(Trouble::RegistrationGone),
            Err(fault) => return Err(trouble("listing", &path, fault)),
        };
        self.doubt_some();
        // The event of a change comes before the answer that shows it, so one that was told is here by now.
        let is_told = self.has_fired(&Watched::Members);
        if is_told || self.members_version == Some(stat.cversion) {
            return Ok(None);
        }
        self.unread = names.into_iter().map(ConsumerId::new).collect();
        self.members.retain(|known, _| self.unread.contains(known));
        self.members_version = Some(stat.cversion);
        Ok(Some(format!("{path} had changed without a watch telling")))
    }

    fn doubt_some(&mut self) {
        let malformed = self.members.iter().filter(|(_, member)| member.is_err());
        self.unread
            .extend(malformed.map(|(consumer, _)| consumer.clone()));
        let after = self.doubted.take();
        let rest = self
            .members
            .keys()
            .filter(|consumer| after.as_ref().is_none_or(|after| *consumer > after));
        let some: Vec<ConsumerId> = rest.take(DOUBTED).cloned().collect();
        // Past the last it begins at the first again.
        self.doubted = some.last().filter(|_| some.len() == DOUBTED).cloned();
        self.unread.extend(some);
    }

    /// A registration is to be read again, since it was written meanwhile.
    pub fn doubt(&mut self, consumer: &ConsumerId) {
        if self.members.contains_key(consumer) {
            self.unread.insert(consumer.clone());
        }
    }

    /// Whether a watch has fired that nobody has been told of yet. It stays to be told.
    pub fn has_fired(&self, watched: &Watched) -> bool {
        !self.is_armed(watched) || self.watches.has_fired(watched)
    }

    /// Whether a member's registration is at version 0 at this moment, as a JVM's is. A cached look may have caught one
    /// of ours between its making and its stamp.
    pub async fn is_jvm(&mut self, consumer: &ConsumerId) -> bool {
        let Ok(path) = paths::id(self.session.group(), consumer) else {
            return false;
        };
        matches!(self.session.connection.stat(&path).await, Ok(Some(stat)) if stat.version == 0)
    }
}

fn read_member(data: &[u8], stat: &Stat) -> Result<Member, String> {
    match decode_registration(data) {
        Ok(subscription) => Ok(Member {
            subscription,
            is_ours: stat.version > 0,
        }),
        Err(error) => Err(printable(&error.to_string())),
    }
}

fn read_topic(data: &[u8], stat: &Stat) -> TopicSeen {
    match decode_topic(data) {
        Ok(ids) => TopicSeen::Partitions {
            ids,
            created: stat.czxid,
        },
        Err(error) => TopicSeen::Unreadable(printable(&error.to_string())),
    }
}
