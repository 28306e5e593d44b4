//! A run that is made up, step by step: a registry's history and what members saw of it.

use std::sync::Arc;
use std::time::Duration;

use evenkeel::config::Reset;
use evenkeel::testing::check::{Case, Change, Fact, Limits, Phase, Record, Rule, Txn, Verdict};
use evenkeel::wire::encode_topic;
use evenkeel::{GroupName, Topic, TopicPartition};

/// What the servers' clock shows when the events' clock shows nothing.
const ZERO_MS: i64 = 1_441_000_000_000;
/// The sessions of `g_a`, `g_b` and of a legacy member `g_j`.
pub const A: i64 = 0xa;
pub const B: i64 = 0xb;
pub const J: i64 = 0x1a;
/// The session timeout.
pub const T: Duration = Duration::from_secs(6);

pub struct Tale {
    pub history: Vec<Txn>,
    pub record: Record,
    pub limits: Limits,
    pub policy: Option<Reset>,
    zxid: i64,
    ms: i64,
    versions: i32,
    /// Events name the last transaction; otherwise the clock has to tell.
    pub is_exact: bool,
}

pub fn at(partition: i32) -> TopicPartition {
    TopicPartition::new(Topic::new("t").unwrap(), partition)
}

pub fn made(path: &str, data: &str, is_ephemeral: bool) -> Change {
    Change::Created {
        path: path.into(),
        data: data.into(),
        is_ephemeral,
    }
}

pub fn owner(partition: i32) -> String {
    format!("/consumers/g/owners/t/{partition}")
}

pub fn offset(partition: i32) -> String {
    format!("/consumers/g/offsets/t/{partition}")
}

pub fn deleted(path: String) -> Change {
    Change::Deleted { path }
}

impl Tale {
    /// A topic `t` with two partitions; `g_a` and the legacy member `g_j` have sessions, and only `g_a` is registered.
    pub fn new() -> Self {
        let mut tale = Self {
            history: Vec::new(),
            record: Record::new(),
            limits: Limits::exact(T),
            policy: None,
            zxid: 0,
            ms: 0,
            versions: 0,
            is_exact: true,
        };
        let real_us = ZERO_MS * 1000;
        tale.tell("clock", Fact::Clock { real_us });
        let topic = String::from_utf8(encode_topic(0..2)).unwrap();
        tale.txn(0, vec![made("/brokers/topics/t", &topic, false)]);
        tale.join("g_a", A);
        tale
    }

    /// The same with events that tell only the time.
    pub fn timed() -> Self {
        let mut tale = Self::new();
        tale.is_exact = false;
        tale.limits = Limits::timed(T, Duration::from_millis(500));
        tale
    }

    pub fn wait(&mut self, ms: i64) {
        self.ms += ms;
    }

    pub fn now(&self) -> u64 {
        u64::try_from(self.ms * 1_000_000).unwrap()
    }

    // ---- the registry ----

    pub fn txn(&mut self, session: i64, changes: Vec<Change>) -> i64 {
        self.zxid += 1;
        self.wait(1);
        self.history.push(Txn {
            zxid: self.zxid,
            time_ms: ZERO_MS + self.ms,
            session,
            changes,
        });
        self.zxid
    }

    pub fn set(&mut self, path: String, data: &str) -> Change {
        self.versions += 1;
        Change::Set {
            path,
            data: data.into(),
            version: self.versions,
        }
    }

    pub fn join(&mut self, name: &str, session: i64) {
        let text = r#"{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}"#;
        self.txn(session, vec![Change::Opened]);
        let path = format!("/consumers/g/ids/{name}");
        self.txn(session, vec![made(&path, text, true)]);
    }

    /// Claims as a member of ours does: the node, its stamp, and the offset confirmed if there is one.
    pub fn claim(&mut self, name: &str, session: i64, partition: i32, stored: Option<i64>) -> i64 {
        let text = format!("{name}-0");
        let stamp = self.set(owner(partition), &text);
        let mut changes = vec![made(&owner(partition), &text, true), stamp];
        if let Some(stored) = stored {
            changes.push(self.set(offset(partition), &stored.to_string()));
        }
        self.txn(session, changes)
    }

    pub fn commit(&mut self, session: i64, partition: i32, value: i64) -> i64 {
        let change = self.written(partition, value);
        self.txn(session, vec![change])
    }

    /// The offset node is made the first time.
    pub fn written(&mut self, partition: i32, value: i64) -> Change {
        let path = offset(partition);
        let mut changes = self.history.iter().flat_map(|txn| &txn.changes);
        let is_there = changes
            .any(|change| matches!(change, Change::Created { path: made, .. } if *made == path));
        if is_there {
            self.set(path, &value.to_string())
        } else {
            made(&path, &value.to_string(), false)
        }
    }

    pub fn release(&mut self, session: i64, partition: i32) -> i64 {
        self.txn(session, vec![deleted(owner(partition))])
    }

    pub fn close(&mut self, session: i64) -> i64 {
        self.txn(session, vec![Change::Closed])
    }

    // ---- what was seen ----

    pub fn tell(&mut self, who: &str, fact: Fact) {
        let zxid = self.is_exact.then_some(self.zxid);
        let mono = self.now();
        self.record.note(&Arc::from(who), 1, mono, zxid, fact);
    }

    pub fn check(&mut self, who: &str, partition: i32, token: i64) {
        let partition = at(partition);
        self.tell(who, Fact::Checked { partition, token });
    }

    pub fn deliver(&mut self, who: &str, partition: i32, token: i64, offset: i64) {
        let partition = at(partition);
        self.tell(
            who,
            Fact::Delivered {
                partition,
                token,
                offset,
            },
        );
    }

    pub fn done(&mut self, who: &str, partition: i32, token: i64, offset: i64) {
        let partition = at(partition);
        self.tell(
            who,
            Fact::Done {
                partition,
                token,
                offset,
            },
        );
    }

    /// Delivered and done, one by one.
    pub fn work(&mut self, who: &str, partition: i32, token: i64, offsets: std::ops::Range<i64>) {
        for offset in offsets {
            self.wait(1);
            self.deliver(who, partition, token, offset);
            self.done(who, partition, token, offset);
        }
    }

    pub fn send(&mut self, partition: i32, offsets: std::ops::Range<i64>) {
        for offset in offsets {
            let partition = at(partition);
            self.tell("producer", Fact::Sent { partition, offset });
        }
    }

    pub fn reset(&mut self, who: &str, partition: i32, from: Option<i64>, to: i64) {
        let partition = at(partition);
        self.tell(
            who,
            Fact::Reset {
                partition,
                from,
                to,
            },
        );
    }

    pub fn call(&mut self, who: &str, name: &str, phase: Phase, partition: i32) {
        self.tell(
            who,
            Fact::Callback {
                name: name.into(),
                phase,
                partitions: vec![at(partition)],
            },
        );
    }

    pub fn called(&mut self, who: &str, name: &str, partition: i32) {
        self.call(who, name, Phase::Enter, partition);
        self.call(who, name, Phase::Leave, partition);
    }

    /// `g_a` has partition 0 from offset 0 on, and ten messages are there.
    pub fn begun() -> (Self, i64) {
        let mut tale = Self::new();
        tale.send(0, 0..10);
        tale.txn(0, vec![made(&offset(0), "0", false)]);
        let token = tale.claim("g_a", A, 0, Some(0));
        (tale, token)
    }

    // ---- the judge ----

    pub fn case(self) -> Case {
        let case = Case::new(GroupName::new("g").unwrap())
            .with_ours(["g_a", "g_b"])
            .with_history(self.history)
            .with_events(self.record.events().to_vec())
            .with_limits(self.limits);
        match self.policy {
            Some(policy) => case.with_policy(policy),
            None => case,
        }
    }

    pub fn judge(self) -> Verdict {
        self.case().judge()
    }

    /// Exactly this is violated, once.
    #[track_caller]
    pub fn breaks(self, rule: Rule) -> Verdict {
        let verdict = self.judge();
        let rules: Vec<Rule> = verdict.violations.iter().map(|one| one.rule).collect();
        assert_eq!(rules, [rule], "{verdict}");
        verdict
    }

    #[track_caller]
    pub fn keeps(self) -> Verdict {
        let verdict = self.judge();
        assert!(verdict.is_good(), "{verdict}");
        verdict
    }
}
