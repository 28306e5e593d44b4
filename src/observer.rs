//! Looks at any group from outside, without taking part and without writing anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;

use crate::config::InternalTopics;
use crate::error::{Error, ErrorKind, Result, printable};
use crate::filter::expand;
use crate::group::{ConsumerId, GroupName, GroupView, Member, Subscription, Topic, TopicPartition};
use crate::id::{HashedHost, IdContext, IdStrategy, RankedHost};
use crate::registry::{Connection, Dialect, Fault, Registry, Stat};
use crate::wire::paths;
use crate::wire::{
    Broker, NO_OFFSET, StoredOffset, decode_broker, decode_offset, decode_owner, decode_topic,
    read_registration,
};

/// A session that only reads.
///
/// What it shows was true at some moment of the reading, but not all of it at the same one: a group that is rebalancing may
/// be seen half in the old order and half in the new.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> evenkeel::error::Result<()> {
/// use std::sync::Arc;
/// use evenkeel::observer::{Observer, State};
/// use evenkeel::registry::Dialect;
/// use evenkeel::GroupName;
/// # #[cfg(feature = "testing")] {
/// # let registry = Arc::new(evenkeel::testing::MemoryRegistry::new());
/// let observer = Observer::open(registry, Dialect::default()).await?;
/// let group = observer.group(&GroupName::new("etl")?).await?;
/// assert_eq!(group.state, State::Absent);
/// observer.close().await;
/// # }
/// # Ok(()) }
/// ```
pub struct Observer {
    connection: Arc<dyn Connection>,
}

/// Whether anybody is in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// It has members, though their registrations may be malformed.
    Live,
    /// It is there and has none.
    Empty,
    /// Nothing of it is there.
    Absent,
}

/// A group, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seen {
    /// Whether anybody is in it.
    pub state: State,
    /// Its members by name.
    pub members: BTreeMap<ConsumerId, SeenMember>,
    /// All partitions of the topics that somebody subscribes to, and those that have an owner or an offset.
    pub partitions: BTreeMap<TopicPartition, SeenPartition>,
    /// What could not be read or does not fit, each with its path.
    pub troubles: Vec<String>,
}

/// A member, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeenMember {
    /// What it subscribes to; none if its registration is malformed.
    pub subscription: Option<Subscription>,
    /// The host in its name, if the name has one of the known forms; see [`host_of`].
    pub host: Option<String>,
    /// When it registered, in milliseconds since 1970: by its own clock, or by the server's if its registration does not say.
    pub since_ms: u64,
    /// It is one of this library's, by its registration's version, which a JVM member never raises.
    pub is_ours: bool,
    /// The session it registered with.
    pub session: i64,
}

/// A partition, as it was seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeenPartition {
    /// What its owner node says; none if there is none.
    pub owner: Option<String>,
    /// The offset of the next message to read; none if none is stored, it is negative, or it is malformed.
    pub offset: Option<i64>,
}

impl Observer {
    /// Opens a session.
    ///
    /// # Errors
    /// [`Connection`](ErrorKind::Connection), saying what is in the way.
    pub async fn open(registry: Arc<dyn Registry>, dialect: Dialect) -> Result<Self> {
        let connection = registry.open(dialect).await?;
        Ok(Self { connection })
    }

    /// Ends the session.
    pub async fn close(self) {
        self.connection.close().await;
    }

    /// All groups, in order. Names that no group of ours could have are left out.
    ///
    /// # Errors
    /// [`NoAuth`](ErrorKind::NoAuth), [`Connection`](ErrorKind::Connection).
    pub async fn groups(&self) -> Result<BTreeSet<GroupName>> {
        let names = self.children(paths::consumers()).await?;
        Ok(names
            .iter()
            .filter_map(|name| GroupName::new(name).ok())
            .collect())
    }

    /// The registered brokers. Those that cannot be read are left out.
    ///
    /// # Errors
    /// [`NoAuth`](ErrorKind::NoAuth), [`Connection`](ErrorKind::Connection).
    pub async fn brokers(&self) -> Result<Vec<Broker>> {
        let names = self.children(paths::broker_ids()).await?;
        let ids = names.iter().filter_map(|name| name.parse().ok());
        let found = self.read(ids.map(paths::broker).collect()).await?;
        let found = found.into_iter().flatten();
        Ok(found
            .filter_map(|(data, _)| decode_broker(&data).ok())
            .collect())
    }

    /// One group. That it is not there is an answer and no error.
    ///
    /// # Errors
    /// [`NoAuth`](ErrorKind::NoAuth), [`Connection`](ErrorKind::Connection).
    pub async fn group(&self, group: &GroupName) -> Result<Seen> {
        let mut troubles = Vec::new();
        let members = self.members(group, &mut troubles).await?;
        let topics = self.topics(group, &members).await?;
        let partitions = self.partitions(group, topics, &mut troubles).await?;
        let state = match members.is_empty() {
            false => State::Live,
            true if self.is_there(&paths::group(group)).await? => State::Empty,
            true => State::Absent,
        };
        Ok(Seen {
            state,
            members,
            partitions,
            troubles,
        })
    }

    async fn members(
        &self,
        group: &GroupName,
        troubles: &mut Vec<String>,
    ) -> Result<BTreeMap<ConsumerId, SeenMember>> {
        let names = self.children(&paths::ids(group)).await?;
        let named = names.into_iter().map(ConsumerId::new);
        let named: Vec<(ConsumerId, String)> = named
            .filter_map(|consumer| Some((consumer.clone(), paths::id(group, &consumer).ok()?)))
            .collect();
        let found = self
            .read(named.iter().map(|(_, path)| path.clone()).collect())
            .await?;
        let mut members = BTreeMap::new();
        for ((consumer, path), found) in named.into_iter().zip(found) {
            // It left between the list and the read.
            let Some((data, stat)) = found else { continue };
            let host = host_of(group, &consumer);
            let member = member(&data, &stat, host, &path, troubles);
            members.insert(consumer, member);
        }
        Ok(members)
    }

    /// The topics that concern a group: subscribed to, owned, or with offsets.
    async fn topics(
        &self,
        group: &GroupName,
        members: &BTreeMap<ConsumerId, SeenMember>,
    ) -> Result<BTreeSet<Topic>> {
        let (owners, offsets) = (paths::owners(group), paths::offsets(group));
        let (owned, stored) = (
            self.children(&owners).await?,
            self.children(&offsets).await?,
        );
        let named = owned.iter().chain(&stored);
        let mut topics: BTreeSet<Topic> = named.filter_map(|name| Topic::new(name).ok()).collect();
        topics.extend(self.subscribed(members).await?);
        Ok(topics)
    }

    async fn subscribed(
        &self,
        members: &BTreeMap<ConsumerId, SeenMember>,
    ) -> Result<BTreeSet<Topic>> {
        let mut view = GroupView::default();
        let mut has_filter = false;
        for (consumer, member) in members {
            let Some(subscription) = member.subscription.clone() else {
                continue;
            };
            has_filter |= matches!(subscription, Subscription::Filter { .. });
            let is_ours = member.is_ours;
            view.members.insert(
                consumer.clone(),
                Member {
                    subscription,
                    is_ours,
                },
            );
        }
        if has_filter {
            let all = self.children(paths::topics()).await?;
            view.topics = all
                .iter()
                .filter_map(|name| Topic::new(name).ok())
                .collect();
        }
        let expansion = expand(&view, InternalTopics::OffsetsAndTransactions);
        let topics = expansion
            .subscriptions
            .into_values()
            .flat_map(BTreeMap::into_keys);
        Ok(topics.chain(expansion.unsure).collect())
    }

    async fn partitions(
        &self,
        group: &GroupName,
        topics: BTreeSet<Topic>,
        troubles: &mut Vec<String>,
    ) -> Result<BTreeMap<TopicPartition, SeenPartition>> {
        let mut partitions = self.existing(&topics, troubles).await?;
        let (owned, stored) = (
            self.listed(&topics, |topic| paths::owners_topic(group, topic))
                .await?,
            self.listed(&topics, |topic| paths::offsets_topic(group, topic))
                .await?,
        );
        let owners = self
            .read(owned.iter().map(|at| paths::owner(group, at)).collect())
            .await?;
        for (at, found) in owned.into_iter().zip(owners) {
            let entry = partitions.entry(at).or_default();
            entry.owner = found.map(|(data, _)| decode_owner(&data));
        }
        let offsets = self
            .read(stored.iter().map(|at| paths::offset(group, at)).collect())
            .await?;
        for (at, found) in stored.into_iter().zip(offsets) {
            let path = paths::offset(group, &at);
            let entry = partitions.entry(at).or_default();
            entry.offset = found.and_then(|(data, _)| offset(&data, &path, troubles));
        }
        Ok(partitions)
    }

    /// The partitions that the topic nodes tell of.
    async fn existing(
        &self,
        topics: &BTreeSet<Topic>,
        troubles: &mut Vec<String>,
    ) -> Result<BTreeMap<TopicPartition, SeenPartition>> {
        let found = self.read(topics.iter().map(paths::topic).collect()).await?;
        let mut partitions = BTreeMap::new();
        for (topic, found) in topics.iter().zip(found) {
            let ids = match found.map(|(data, _)| decode_topic(&data)) {
                None => continue,
                Some(Ok(ids)) => ids,
                Some(Err(error)) => {
                    troubles.push(format!("{}: {error}", paths::topic(topic)));
                    continue;
                }
            };
            let all = ids
                .into_iter()
                .map(|id| TopicPartition::new(topic.clone(), id));
            partitions.extend(all.map(|at| (at, SeenPartition::default())));
        }
        Ok(partitions)
    }

    /// The partitions that have a node below one of these.
    async fn listed(
        &self,
        topics: &BTreeSet<Topic>,
        path: impl Fn(&Topic) -> String,
    ) -> Result<BTreeSet<TopicPartition>> {
        let paths: Vec<String> = topics.iter().map(path).collect();
        let lists = join_all(paths.iter().map(|path| self.children(path))).await;
        let mut all = BTreeSet::new();
        for (topic, names) in topics.iter().zip(lists) {
            let names = names?;
            let ids = names.iter().filter_map(|name| paths::partition(name));
            all.extend(ids.map(|id| TopicPartition::new(topic.clone(), id)));
        }
        Ok(all)
    }

    async fn is_there(&self, path: &str) -> Result<bool> {
        let found = self.connection.stat(path).await;
        Ok(found
            .map_err(|fault| failed("looking for", path, &fault))?
            .is_some())
    }

    /// A node's children; none if it is not there.
    async fn children(&self, path: &str) -> Result<Vec<String>> {
        match self.connection.children(path).await {
            Ok((names, _)) => Ok(names),
            Err(Fault::NoNode) => Ok(Vec::new()),
            Err(fault) => Err(failed("listing", path, &fault)),
        }
    }

    /// The data of nodes, all asked for at once; none for those that are not there.
    async fn read(&self, paths: Vec<String>) -> Result<Vec<Option<(Vec<u8>, Stat)>>> {
        let answers = join_all(paths.iter().map(|path| self.connection.data(path))).await;
        let answers = answers.into_iter().zip(&paths);
        answers
            .map(|(answer, path)| match answer {
                Ok(found) => Ok(Some(found)),
                Err(Fault::NoNode) => Ok(None),
                Err(fault) => Err(failed("reading", path, &fault)),
            })
            .collect()
    }
}

fn failed(doing: &str, path: &str, fault: &Fault) -> Error {
    let kind = match fault {
        Fault::NoAuth => ErrorKind::NoAuth,
        Fault::SessionLost => ErrorKind::SessionLost,
        _ => ErrorKind::Connection,
    };
    Error::new(kind, format!("{doing} {}: {fault}", printable(path)))
}

fn member(
    data: &[u8],
    stat: &Stat,
    host: Option<String>,
    path: &str,
    troubles: &mut Vec<String>,
) -> SeenMember {
    let (subscription, said) = match read_registration(data) {
        Ok(registration) => (Some(registration.subscription), registration.since_ms),
        Err(error) => {
            troubles.push(format!("{}: {error}", printable(path)));
            (None, None)
        }
    };
    SeenMember {
        subscription,
        host,
        since_ms: said.unwrap_or_else(|| u64::try_from(stat.ctime).unwrap_or(0)),
        is_ours: stat.version > 0,
        session: stat.ephemeral_owner,
    }
}

fn offset(data: &[u8], path: &str, troubles: &mut Vec<String>) -> Option<i64> {
    match decode_offset(data) {
        Ok(StoredOffset::At(offset)) => Some(offset),
        Ok(StoredOffset::Negative(NO_OFFSET)) => None,
        Ok(StoredOffset::Negative(offset)) => {
            troubles.push(format!("{path}: offset {offset} stands for none"));
            None
        }
        Err(error) => {
            troubles.push(format!("{path}: {error}"));
            None
        }
    }
}

/// Hexadecimal digits of a hash in an id.
const HASH: usize = 64;
/// Random digits that this library puts at the end of an id.
const RANDOM: usize = 16;

/// The host in a member's name, as far as the name tells: of the forms `<group>_<host>-<milliseconds>-<hexadecimal>` of a JVM
/// member, and of this library's hashed forms. None for any other, as a `consumer.id` chosen by hand.
///
/// The random part at the end of a hashed form may run into the host; the hash says where it begins, unless it holds a salt
/// or an instance number. Then 16 digits are assumed.
///
/// ```
/// use evenkeel::observer::host_of;
/// use evenkeel::{ConsumerId, GroupName};
///
/// let etl = GroupName::new("etl")?;
/// let jvm = ConsumerId::new("etl_web-01-1441234567890-1a2b3c4d");
/// assert_eq!(host_of(&etl, &jvm).as_deref(), Some("web-01"));
/// assert_eq!(host_of(&etl, &ConsumerId::new("etl_the-spare")), None);
/// # Ok::<(), evenkeel::error::Error>(())
/// ```
pub fn host_of(group: &GroupName, consumer: &ConsumerId) -> Option<String> {
    let id = consumer
        .as_str()
        .strip_prefix(group.as_str())?
        .strip_prefix('_')?;
    hashed(group, id).or_else(|| jvm(id))
}

fn is_hex(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn jvm(id: &str) -> Option<String> {
    let (rest, random) = id.rsplit_once('-')?;
    let (host, time) = rest.rsplit_once('-')?;
    let is_time = time.len() >= 12 && time.bytes().all(|b| b.is_ascii_digit());
    (is_time && is_hex(random) && random.len() <= 8 && !host.is_empty()).then(|| host.to_owned())
}

fn hashed(group: &GroupName, id: &str) -> Option<String> {
    let unranked = id.strip_prefix('g').and_then(|rest| {
        let rank = u8::from_str_radix(rest.get(..2)?, 16).ok()?;
        Some((rank, rest.get(2..)?))
    });
    let (rank, rest) = unranked.unwrap_or((0, id));
    let (hash, rest) = (rest.get(..HASH)?, rest.get(HASH..)?);
    if !is_hex(hash) {
        return None;
    }
    let digits = rest
        .bytes()
        .rev()
        .take_while(|b| b.is_ascii_hexdigit())
        .count();
    let proven = (1..=digits.min(2 * RANDOM)).find_map(|random| {
        let (host, random) = rest.split_at(rest.len() - random);
        let host = unescaped(host)?;
        let context = IdContext::new(&*host, group, random).ok()?;
        let same = match rank {
            0 => HashedHost.id(&context),
            rank => RankedHost { rank, salt: 0 }.id(&context),
        };
        (same.ok()? == id).then_some(host)
    });
    proven.or_else(|| unescaped(rest.get(..rest.len().checked_sub(RANDOM.min(digits))?)?))
}

/// The host before it was escaped; none if nothing is left.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'%').then(|| after.get(..2)).flatten();
        match escaped.and_then(|digits| hex::decode(digits).ok()) {
            Some(byte) => {
                bytes.extend(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::id::{Fixed, HashedInstance, LegacyAuto, name};
    use crate::memory::{Act, MemoryRegistry};

    fn etl() -> GroupName {
        GroupName::new("etl").unwrap()
    }

    async fn look(registry: &MemoryRegistry) -> Seen {
        let observer = Observer::open(Arc::new(registry.clone()), Dialect::V3_5)
            .await
            .unwrap();
        let seen = observer.group(&etl()).await.unwrap();
        observer.close().await;
        seen
    }

    fn at(partition: i32) -> TopicPartition {
        TopicPartition::new(Topic::new("t").unwrap(), partition)
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_that_is_not_there_is_absent_and_one_without_members_empty() {
        let registry = MemoryRegistry::new();
        assert_eq!(look(&registry).await.state, State::Absent);
        registry.put("/consumers/etl/offsets/t/0", "7");
        let seen = look(&registry).await;
        assert_eq!(seen.state, State::Empty);
        assert_eq!(seen.partitions[&at(0)].offset, Some(7));
        assert_eq!(seen.partitions[&at(0)].owner, None);
    }

    #[tokio::test(start_paused = true)]
    async fn members_partitions_owners_and_offsets_are_seen_and_nothing_is_written() {
        let registry = MemoryRegistry::new();
        registry.put(
            "/brokers/topics/t",
            r#"{"version":1,"partitions":{"0":[1],"1":[1]}}"#,
        );
        registry.put(
            "/consumers/etl/ids/etl_web-1441234567890-1a2b3c4d",
            r#"{"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"1441234567891"}"#,
        );
        registry.put(
            "/consumers/etl/owners/t/1",
            "etl_web-1441234567890-1a2b3c4d-0",
        );
        registry.put("/consumers/etl/offsets/t/1", "12");
        let before = registry.zxid();
        let seen = look(&registry).await;
        let acts = registry.log_since(before).into_iter();
        let acts: Vec<Act> = acts.map(|write| write.act).collect();
        assert_eq!(acts, [Act::Open, Act::Close]);
        assert_eq!(seen.state, State::Live);
        let member = seen.members.values().next().unwrap();
        assert_eq!(member.host.as_deref(), Some("web"));
        assert_eq!(member.since_ms, 1_441_234_567_891);
        assert_eq!(member.subscription.as_ref().unwrap().streams(), 2);
        assert_eq!(seen.partitions.len(), 2);
        assert_eq!(seen.partitions[&at(0)], SeenPartition::default());
        let owner = seen.partitions[&at(1)].owner.as_deref();
        assert_eq!(owner, Some("etl_web-1441234567890-1a2b3c4d-0"));
        assert_eq!(seen.partitions[&at(1)].offset, Some(12));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_filter_covers_is_seen_before_anybody_owns_it() {
        let registry = MemoryRegistry::new();
        registry.put(
            "/brokers/topics/t",
            r#"{"version":1,"partitions":{"0":[1]}}"#,
        );
        registry.put(
            "/brokers/topics/u",
            r#"{"version":1,"partitions":{"0":[1]}}"#,
        );
        registry.put(
            "/consumers/etl/ids/etl_w",
            r#"{"version":1,"subscription":{"t.*":1},"pattern":"white_list","timestamp":"1"}"#,
        );
        assert_eq!(
            look(&registry).await.partitions.keys().collect::<Vec<_>>(),
            [&at(0)]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_malformed_is_named_by_its_path_and_still_shown() {
        let registry = MemoryRegistry::new();
        tokio::time::advance(Duration::from_secs(1)).await;
        registry.put("/consumers/etl/ids/etl_odd", "what?");
        registry.put("/consumers/etl/offsets/t/0", "seven");
        registry.put("/brokers/topics/t", "?");
        let seen = look(&registry).await;
        assert_eq!(seen.state, State::Live);
        let member = &seen.members[&ConsumerId::new("etl_odd")];
        assert_eq!(member.subscription, None);
        assert_eq!(seen.partitions[&at(0)].offset, None);
        let paths = ["ids/etl_odd", "/brokers/topics/t", "offsets/t/0"];
        for (trouble, path) in seen.troubles.iter().zip(paths) {
            assert!(trouble.contains(path), "{trouble}");
        }
        assert_eq!(seen.troubles.len(), 3);
    }

    #[test]
    fn the_host_is_read_from_every_form_that_holds_it() {
        for host in ["app01.example.com", "dead", "my host", "a-1", "ホスト"] {
            let context = IdContext::new(host, &etl(), "00c0ffee00c0ffee").unwrap();
            let context = context.with_time_ms(1_450_000_000_000).with_instance(1);
            let strategies: [&dyn IdStrategy; 5] = [
                &HashedHost,
                &RankedHost { rank: 3, salt: 0 },
                &RankedHost { rank: 0, salt: 9 },
                &HashedInstance,
                &LegacyAuto,
            ];
            for strategy in strategies {
                let consumer = name(&context, strategy).unwrap();
                assert_eq!(
                    host_of(&etl(), &consumer).as_deref(),
                    Some(host),
                    "{consumer}"
                );
            }
        }
    }

    #[test]
    fn a_random_part_of_another_length_is_told_apart_by_the_hash() {
        let context = IdContext::new("node-dead", &etl(), "00c0ffee").unwrap();
        let consumer = name(&context, &HashedHost).unwrap();
        assert_eq!(host_of(&etl(), &consumer).as_deref(), Some("node-dead"));
    }

    #[test]
    fn a_name_of_no_known_form_has_no_host() {
        let context = IdContext::new("h", &etl(), "00").unwrap();
        for id in ["spare", "a-b-c", "web-12-1a2b3c4d", "web-1441234567890-zz"] {
            let consumer = name(&context, &Fixed::new(id)).unwrap();
            assert_eq!(host_of(&etl(), &consumer), None, "{id}");
        }
        assert_eq!(host_of(&etl(), &ConsumerId::new("other_x")), None);
    }
}
