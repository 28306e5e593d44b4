//! Runs through the history once: who owned what from when to when, who was registered, who wrote which offset.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::group::{Topic, TopicPartition};
use crate::wire::{StoredOffset, decode_offset, decode_owner, paths};

use crate::check::history::{Change, Txn};
use crate::check::nodes;
use crate::check::{Case, Fact, Rule};

/// A transaction's place and time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    pub zxid: i64,
    pub time_ms: i64,
}

/// How a node came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Its own session deleted it.
    Released,
    /// Its session ended.
    Session,
    /// A later session of the same member took it away.
    Stale,
    /// Another's hand deleted it.
    Taken,
}

/// A registration node, from its creation to its end.
pub(super) struct Registration {
    pub member: Arc<str>,
    pub session: i64,
    pub from: Mark,
    pub to: Option<(Mark, End)>,
    /// What it said from when on.
    pub texts: Vec<(Mark, Vec<u8>)>,
}

/// One ownership: an owner node, from its creation to its end.
pub(super) struct Window {
    pub partition: TopicPartition,
    /// The session it lives in, 0 for a lasting node.
    pub session: i64,
    pub member: Option<Arc<str>>,
    pub is_ours: bool,
    pub stream: String,
    pub from: Mark,
    pub to: Option<(Mark, End)>,
    /// What was committed when it began.
    pub stored: Option<i64>,
    /// What was committed when it ended.
    pub left: Option<i64>,
    /// The topic's node was deleted or missing at some moment of it.
    pub is_topic_gone: bool,
    /// Another's hand wrote into the owner node: its member may take that for a loss.
    pub is_spoiled: bool,
    /// What was written to the offset node meanwhile, by whomever: places in [`Story::writes`].
    pub writes: Vec<usize>,
}

impl Window {
    pub fn token(&self) -> i64 {
        self.from.zxid
    }
}

/// What an offset node said before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Previous {
    pub value: Option<i64>,
    pub is_ours: bool,
}

/// A write or the deletion of an offset node.
pub(super) struct OffsetWrite {
    pub partition: TopicPartition,
    pub mark: Mark,
    pub member: Option<Arc<str>>,
    pub is_ours: bool,
    /// The offset; none for what stands for none, for garbage, and for a deletion.
    pub value: Option<i64>,
    /// The same bytes stood there before.
    pub is_confirmation: bool,
    pub is_creation: bool,
    pub is_deletion: bool,
    pub previous: Option<Previous>,
    /// The ownership of the one who wrote, if it was the owner.
    pub owned: Option<usize>,
}

/// What a path of the history is to the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Registration(Arc<str>),
    Owner(TopicPartition),
    Offset(TopicPartition),
    Topic(Topic),
    /// Above or beside those: the directories of the group.
    Parent,
    Elsewhere,
}

/// Something against a rule that shows in the history alone.
pub(super) struct Fault {
    pub rule: Rule,
    pub window: Option<(TopicPartition, i64)>,
    pub zxid: i64,
    pub what: String,
}

/// What a topic node said from then on; none once it was deleted.
type TopicText = (Mark, Option<Vec<u8>>);

/// All of it.
#[derive(Default)]
pub(super) struct Story {
    pub windows: Vec<Window>,
    pub registrations: Vec<Registration>,
    pub writes: Vec<OffsetWrite>,
    pub topics: BTreeMap<Topic, Vec<TopicText>>,
    /// The members' sessions.
    pub members: BTreeMap<i64, Arc<str>>,
    pub faults: Vec<Fault>,
    /// Nodes of earlier sessions of one's own that were taken away.
    pub stale: u64,
}

struct Node {
    /// The session it lives and dies with, 0 for a lasting one.
    owner: i64,
    data: Vec<u8>,
    /// Its own session wrote it since it was made.
    is_stamped: bool,
}

/// The tree as it is at some moment, as far as it matters.
pub(super) struct Replay<'a> {
    case: &'a Case,
    prefixes: Prefixes,
    places: HashMap<String, Place>,
    nodes: HashMap<String, Node>,
    ephemerals: BTreeMap<i64, BTreeSet<String>>,
    /// The open ownership and the open registration at a path.
    open: HashMap<String, usize>,
    /// Whose owner node was taken away before it was stamped.
    unstamped: HashMap<String, i64>,
    /// The last writer of an offset node, and what it wrote.
    offsets: BTreeMap<TopicPartition, Previous>,
    story: Story,
}

struct Prefixes {
    ids: String,
    owners: String,
    offsets: String,
    topics: String,
    parents: BTreeSet<String>,
}

impl Prefixes {
    fn of(case: &Case) -> Self {
        let below = |path: String| format!("{path}/");
        let (ids, owners) = (paths::ids(&case.group), paths::owners(&case.group));
        let offsets = paths::offsets(&case.group);
        let mut parents: BTreeSet<String> = BTreeSet::new();
        for path in [&ids, &owners, &offsets] {
            parents.extend(paths::parents(path).into_iter().map(str::to_owned));
            parents.insert(path.clone());
        }
        Self {
            ids: below(ids),
            owners: below(owners),
            offsets: below(offsets),
            topics: below(paths::topics().to_owned()),
            parents,
        }
    }

    fn place(&self, path: &str) -> Place {
        if let Some(name) = path.strip_prefix(&self.ids) {
            return Place::Registration(name.into());
        }
        if let Some(rest) = path.strip_prefix(&self.owners) {
            return below_topic(rest, Place::Owner);
        }
        if let Some(rest) = path.strip_prefix(&self.offsets) {
            return below_topic(rest, Place::Offset);
        }
        let topic = path.strip_prefix(&self.topics);
        if let Some(topic) = topic.and_then(|name| Topic::foreign(name).ok()) {
            return Place::Topic(topic);
        }
        if self.parents.contains(path) {
            Place::Parent
        } else {
            Place::Elsewhere
        }
    }
}

fn below_topic(rest: &str, kind: impl FnOnce(TopicPartition) -> Place) -> Place {
    let (name, child) = match rest.split_once('/') {
        Some((name, child)) => (name, Some(child)),
        None => (rest, None),
    };
    match (Topic::foreign(name), child) {
        (Ok(_), None) => Place::Parent,
        (Ok(topic), Some(child)) => match paths::partition(child) {
            Some(partition) => kind(TopicPartition::new(topic, partition)),
            None => Place::Elsewhere,
        },
        (Err(_), _) => Place::Elsewhere,
    }
}

/// Whether an owner node's text is that of a stream of this member.
pub(super) fn is_stream_of(text: &str, member: &str) -> bool {
    let number = text
        .strip_prefix(member)
        .and_then(|rest| rest.strip_prefix('-'));
    number.is_some_and(|digits| {
        !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
    })
}

/// What an offset node's data says; none for what is none.
pub(super) fn offset(data: &[u8]) -> Option<i64> {
    match decode_offset(data) {
        Ok(StoredOffset::At(offset)) => Some(offset),
        Ok(StoredOffset::Negative(_)) | Err(_) => None,
    }
}

/// The whole history.
pub(super) fn replay(case: &Case) -> Story {
    let mut replay = Replay {
        case,
        prefixes: Prefixes::of(case),
        places: HashMap::new(),
        nodes: HashMap::new(),
        ephemerals: BTreeMap::new(),
        open: HashMap::new(),
        unstamped: HashMap::new(),
        offsets: BTreeMap::new(),
        story: Story::default(),
    };
    replay.find_members();
    let mut last = i64::MIN;
    for txn in &case.history {
        if txn.zxid <= last {
            let what = format!("transaction {} comes after {last}", txn.zxid);
            replay.fault(Rule::Form, None, txn.zxid, what);
        }
        last = txn.zxid;
        replay.carry_out(txn);
    }
    replay.story
}

impl Replay<'_> {
    fn inside<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix(self.case.chroot.as_str())?;
        rest.starts_with('/').then_some(rest)
    }

    fn place(&mut self, path: &str) -> Place {
        if let Some(place) = self.places.get(path) {
            return place.clone();
        }
        let place = match self.inside(path) {
            Some(inside) => self.prefixes.place(inside),
            None if self.case.chroot.starts_with(path) => Place::Parent,
            None => Place::Elsewhere,
        };
        self.places.insert(path.to_owned(), place.clone());
        place
    }

    /// Whose session is whose: those who said so, those who registered, and those who put a name of ours into an owner node.
    fn find_members(&mut self) {
        for event in &self.case.events {
            if let Fact::Joined { session } = event.fact {
                self.story.members.insert(session, event.member.clone());
            }
        }
        for txn in &self.case.history {
            for change in &txn.changes {
                if let Change::Created {
                    path,
                    is_ephemeral: true,
                    ..
                } = change
                    && let Place::Registration(name) = self.place(path)
                {
                    self.story.members.entry(txn.session).or_insert(name);
                }
            }
        }
        for txn in &self.case.history {
            for change in &txn.changes {
                let Change::Created { path, data, .. } = change else {
                    continue;
                };
                if txn.session == 0
                    || self.story.members.contains_key(&txn.session)
                    || !matches!(self.place(path), Place::Owner(_))
                {
                    continue;
                }
                let text = decode_owner(data);
                let ours = self.case.ours.iter();
                if let Some(name) = ours.into_iter().find(|name| is_stream_of(&text, name)) {
                    self.story.members.insert(txn.session, name.clone());
                }
            }
        }
    }

    pub fn member(&self, session: i64) -> Option<&Arc<str>> {
        self.story.members.get(&session)
    }

    pub fn is_ours(&self, session: i64) -> bool {
        let member = self.member(session);
        member.is_some_and(|member| self.case.ours.contains(member))
    }

    /// The session a node lives in; none if it is not there.
    pub fn owner(&self, path: &str) -> Option<i64> {
        self.nodes.get(path).map(|node| node.owner)
    }

    /// Whether the session made an owner node there that somebody took away before it was stamped.
    pub fn stamps_blindly(&self, session: i64, path: &str) -> bool {
        self.unstamped.get(path) == Some(&session)
    }

    /// The registration of a member, as a path of the history.
    pub fn registration(&self, member: &str) -> String {
        format!("{}{}{member}", self.case.chroot, self.prefixes.ids)
    }

    fn fault(
        &mut self,
        rule: Rule,
        window: Option<(TopicPartition, i64)>,
        zxid: i64,
        what: impl Into<String>,
    ) {
        self.story.faults.push(Fault {
            rule,
            window,
            zxid,
            what: what.into(),
        });
    }

    fn carry_out(&mut self, txn: &Txn) {
        let mark = Mark {
            zxid: txn.zxid,
            time_ms: txn.time_ms,
        };
        let is_end = txn.changes.contains(&Change::Closed);
        for change in &txn.changes {
            match change {
                Change::Opened => {}
                Change::Closed => {
                    let paths = self.ephemerals.get(&txn.session).cloned();
                    for path in paths.unwrap_or_default() {
                        self.delete(mark, &path, End::Session, txn.session);
                    }
                }
                // The end of the session has taken its nodes away already.
                Change::Deleted { .. } if is_end => {}
                Change::Created {
                    path,
                    data,
                    is_ephemeral,
                } => {
                    let place = self.place(path);
                    let deed = nodes::Deed {
                        session: txn.session,
                        path,
                        place: &place,
                    };
                    let faults = nodes::creation(self, &deed, data, *is_ephemeral);
                    self.judged(mark, path, &place, faults);
                    self.create(mark, txn.session, path, place, data, *is_ephemeral);
                }
                Change::Deleted { path } => {
                    let place = self.place(path);
                    let deed = nodes::Deed {
                        session: txn.session,
                        path,
                        place: &place,
                    };
                    let faults = nodes::deletion(self, &deed);
                    self.judged(mark, path, &place, faults);
                    let end = self.end(txn.session, path);
                    self.delete(mark, path, end, txn.session);
                }
                Change::Set { path, data, .. } => {
                    let place = self.place(path);
                    let deed = nodes::Deed {
                        session: txn.session,
                        path,
                        place: &place,
                    };
                    let faults = nodes::writing(self, &deed);
                    self.judged(mark, path, &place, faults);
                    self.set(mark, txn.session, path, &place, data);
                }
            }
        }
    }

    fn judged(&mut self, mark: Mark, path: &str, place: &Place, fault: Option<(Rule, String)>) {
        let Some((rule, what)) = fault else {
            return;
        };
        let window = match place {
            Place::Owner(partition) => {
                let open = self.open.get(path);
                let token = open.map(|at| self.story.windows[*at].token());
                Some((partition.clone(), token.unwrap_or(mark.zxid)))
            }
            _ => None,
        };
        self.fault(rule, window, mark.zxid, what);
    }

    fn end(&self, session: i64, path: &str) -> End {
        let owner = self.owner(path).unwrap_or(0);
        let is_same = self.is_ours(session) && self.member(session) == self.member(owner);
        match owner {
            owner if owner == session => End::Released,
            _ if is_same => End::Stale,
            _ => End::Taken,
        }
    }

    fn create(
        &mut self,
        mark: Mark,
        session: i64,
        path: &str,
        place: Place,
        data: &[u8],
        is_ephemeral: bool,
    ) {
        if place == Place::Elsewhere {
            return;
        }
        let owner = if is_ephemeral { session } else { 0 };
        let node = Node {
            owner,
            data: data.to_vec(),
            is_stamped: false,
        };
        if self.nodes.insert(path.to_owned(), node).is_some() {
            let what = format!("{path} is made and was there already");
            self.fault(Rule::Form, None, mark.zxid, what);
        }
        if is_ephemeral {
            let paths = self.ephemerals.entry(session).or_default();
            paths.insert(path.to_owned());
        }
        match place {
            Place::Registration(member) => {
                self.open
                    .insert(path.to_owned(), self.story.registrations.len());
                self.story.registrations.push(Registration {
                    member,
                    session: owner,
                    from: mark,
                    to: None,
                    texts: vec![(mark, data.to_vec())],
                });
            }
            Place::Owner(partition) => self.claim(mark, owner, path, partition, data),
            Place::Offset(partition) => {
                self.write(mark, session, partition, Some(data), false, true);
            }
            Place::Topic(topic) => {
                let texts = self.story.topics.entry(topic).or_default();
                texts.push((mark, Some(data.to_vec())));
            }
            Place::Parent | Place::Elsewhere => {}
        }
    }

    fn claim(
        &mut self,
        mark: Mark,
        owner: i64,
        path: &str,
        partition: TopicPartition,
        data: &[u8],
    ) {
        let stored = self.offsets.get(&partition).and_then(|last| last.value);
        let is_topic_gone = !self.is_topic_there(&partition.topic);
        self.open.insert(path.to_owned(), self.story.windows.len());
        self.story.windows.push(Window {
            partition,
            session: owner,
            member: self.member(owner).cloned(),
            is_ours: self.is_ours(owner),
            stream: decode_owner(data),
            from: mark,
            to: None,
            stored,
            left: None,
            is_topic_gone,
            is_spoiled: false,
            writes: Vec::new(),
        });
    }

    fn is_topic_there(&self, topic: &Topic) -> bool {
        let texts = self.story.topics.get(topic);
        texts
            .and_then(|texts| texts.last())
            .is_some_and(|(_, text)| text.is_some())
    }

    fn set(&mut self, mark: Mark, session: i64, path: &str, place: &Place, data: &[u8]) {
        let Some(node) = self.nodes.get_mut(path) else {
            return;
        };
        let is_same = node.data == data;
        node.data = data.to_vec();
        let is_foreign = node.owner != session;
        node.is_stamped |= !is_foreign;
        self.unstamped.remove(path);
        let open = self.open.get(path).copied();
        match (place, open) {
            (Place::Registration(_), Some(at)) => {
                self.story.registrations[at]
                    .texts
                    .push((mark, data.to_vec()));
            }
            (Place::Owner(_), Some(at)) => {
                let window = &mut self.story.windows[at];
                window.stream = decode_owner(data);
                window.is_spoiled |= is_foreign;
            }
            (Place::Offset(partition), _) => {
                self.write(mark, session, partition.clone(), Some(data), is_same, false);
            }
            (Place::Topic(topic), _) => {
                let texts = self.story.topics.entry(topic.clone()).or_default();
                texts.push((mark, Some(data.to_vec())));
            }
            _ => {}
        }
    }

    /// The open ownership of a partition.
    fn window(&self, partition: &TopicPartition) -> Option<usize> {
        let Prefixes { owners, .. } = &self.prefixes;
        let (chroot, TopicPartition { topic, partition }) = (&self.case.chroot, partition);
        let path = format!("{chroot}{owners}{}/{partition}", topic.as_str());
        self.open.get(&path).copied()
    }

    fn write(
        &mut self,
        mark: Mark,
        session: i64,
        partition: TopicPartition,
        data: Option<&[u8]>,
        is_confirmation: bool,
        is_creation: bool,
    ) {
        let window = self.window(&partition);
        let owned = window.filter(|at| self.story.windows[*at].session == session);
        if let Some(at) = window {
            let place = self.story.writes.len();
            self.story.windows[at].writes.push(place);
        }
        let value = data.and_then(offset);
        let is_ours = self.is_ours(session);
        let previous = self.offsets.get(&partition).copied();
        match data {
            Some(_) => self
                .offsets
                .insert(partition.clone(), Previous { value, is_ours }),
            None => self.offsets.remove(&partition),
        };
        self.story.writes.push(OffsetWrite {
            partition,
            mark,
            member: self.member(session).cloned(),
            is_ours,
            value,
            is_confirmation,
            is_creation,
            is_deletion: data.is_none(),
            previous,
            owned,
        });
    }

    fn delete(&mut self, mark: Mark, path: &str, end: End, session: i64) {
        let Some(node) = self.nodes.remove(path) else {
            return;
        };
        if let Some(paths) = self.ephemerals.get_mut(&node.owner) {
            paths.remove(path);
        }
        self.story.stale += u64::from(end == End::Stale);
        let open = self.open.remove(path);
        match (self.place(path), open) {
            (Place::Registration(_), Some(at)) => {
                self.story.registrations[at].to = Some((mark, end));
            }
            (Place::Owner(partition), Some(at)) => {
                if end == End::Taken && !node.is_stamped {
                    self.unstamped.insert(path.to_owned(), node.owner);
                }
                let left = self.offsets.get(&partition).and_then(|last| last.value);
                let window = &mut self.story.windows[at];
                (window.to, window.left) = (Some((mark, end)), left);
            }
            (Place::Offset(partition), _) => {
                self.write(mark, session, partition, None, false, false);
            }
            (Place::Topic(topic), _) => {
                let owners = self.story.windows.iter_mut();
                let of_it = owners.filter(|one| one.to.is_none() && one.partition.topic == topic);
                of_it.for_each(|window| window.is_topic_gone = true);
                let texts = self.story.topics.entry(topic).or_default();
                texts.push((mark, None));
            }
            _ => {}
        }
    }
}
