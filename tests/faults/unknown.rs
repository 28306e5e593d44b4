//! Every kind of write, its answer or itself lost, while the session survives and while it does not.

use std::time::Duration;

use evenkeel::registry::Dialect;

use crate::stage::Group;
use crate::stage::PARTITIONS;
use crate::stage::commit;
use crate::stage::dialect;
use crate::stage::on_each;
use crate::support::Change;
use crate::support::Fault;
use crate::support::LONG;
use crate::support::Matcher;
use crate::support::Op;
use crate::support::until;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Write {
    Registration,
    Claim,
    /// The claim of a partition with an offset: the stamp, and the offset confirmed.
    Stamp,
    FirstOffset,
    Commit,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lost {
    Reply,
    Request,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Session {
    Survives,
    Expires,
}

impl Write {
    /// The write as this release gets it. On 3.4 nodes are made one by one, and then stamped.
    fn matcher(self, version: &str) -> Matcher {
        let made = |glob| match dialect(version) {
            Dialect::V3_5 => Matcher::of(&[Op::Multi]).with(&[Op::Create2], glob),
            Dialect::V3_4 => Matcher::of(&[Op::Create]).at(glob),
        };
        match self {
            Self::Registration => made("*/ids/*"),
            Self::Claim => made("*/owners/*/*"),
            Self::FirstOffset => made("*/offsets/*/*"),
            Self::Stamp => Matcher::of(&[Op::Multi])
                .with(&[Op::SetData], "*/owners/*/*")
                .with(&[Op::SetData], "*/offsets/*/*"),
            Self::Commit => commit(),
            Self::Release => Matcher::of(&[Op::Multi]).with(&[Op::Delete], "*/owners/*/*"),
        }
    }
}

fn case(version: &'static str, name: &str, write: Write, lost: Lost, session: Session) {
    let group = Group::new(version, name);
    let is_lost = || !group.proxy.fired().is_empty();
    let arm = || {
        if session == Session::Expires {
            group.proxy.refuse_after_loss();
        }
        match lost {
            Lost::Reply => group.proxy.lose_reply(write.matcher(version), 1),
            Lost::Request => group.proxy.lose_request(write.matcher(version), 1),
        }
    };
    let expire = || {
        until("the loss", LONG, is_lost);
        let doomed = group.proxy.fired()[0].session;
        let what = format!("the end of 0x{doomed:x}");
        group.log().await_txn(&what, LONG, |txn| {
            txn.session == doomed && txn.changes == [Change::Closed]
        });
        group.proxy.admit();
    };
    // One that is to survive does so on a slow machine too.
    let timeout = match session {
        Session::Survives => Duration::from_secs(10),
        Session::Expires => Duration::from_millis(1500),
    };
    let (members, before) = std::thread::scope(|scope| {
        if session == Session::Expires {
            scope.spawn(expire);
        }
        let mut before = Vec::new();
        let mut rival = None;
        if matches!(write, Write::Registration | Write::Stamp) {
            let first = group.rival();
            group.wait_shared(&[&first]);
            group.wait_finished(&first, 20);
            if write == Write::Stamp {
                before = first.leave().1;
            } else {
                rival = Some(first);
            }
        }
        let is_later = matches!(write, Write::Commit | Write::Release);
        if !is_later {
            arm();
        }
        let member = group.join(timeout);
        if is_later {
            group.wait_shared(&[&member]);
            group.wait_finished(&member, 20);
            if write == Write::Commit {
                let other = rival.insert(group.rival());
                group.wait_shared(&[&member, other]);
            }
            arm();
        }
        if write != Write::Release {
            until("the loss", LONG, is_lost);
        }
        let rival = rival.unwrap_or_else(|| group.rival());
        until("the loss", LONG, is_lost);
        (vec![member, rival], before)
    });
    let fired = group.proxy.fired();
    let fault = match lost {
        Lost::Reply => (Fault::LostReply, Some(0)),
        Lost::Request => (Fault::LostRequest, None),
    };
    assert_eq!(fired.len(), 1);
    assert_eq!((fired[0].fault, fired[0].error), fault);
    until("the cut", LONG, || group.proxy.counts().cut == 1);
    group.wait_shared(&members.iter().collect::<Vec<_>>());
    let sessions = group.proxy.sessions();
    let later = sessions.iter().rev().find(|session| **session != 0);
    assert_eq!(
        later != Some(&fired[0].session),
        session == Session::Expires,
        "{sessions:x?}"
    );
    let again = group.finish(members, before);
    println!("{name} {version}: {again} delivered again");
    if session == Session::Survives {
        assert_eq!(again, 0);
    }
}

macro_rules! cases {
    ($(fn $name:ident() { $write:ident, $lost:ident, $session:ident })*) => {
        $(
            #[test]
            fn $name() {
                on_each(|version| {
                    case(version, stringify!($name), Write::$write, Lost::$lost, Session::$session);
                });
            }
        )*
    };
}

cases! {
    fn haz_a1_registration_lost_reply() { Registration, Reply, Survives }
    fn haz_a1_registration_lost_request() { Registration, Request, Survives }
    fn haz_a1_registration_lost_reply_session_expires() { Registration, Reply, Expires }
    fn haz_a1_registration_lost_request_session_expires() { Registration, Request, Expires }
    fn haz_a1_claim_lost_reply() { Claim, Reply, Survives }
    fn haz_a1_claim_lost_request() { Claim, Request, Survives }
    fn haz_a1_claim_lost_reply_session_expires() { Claim, Reply, Expires }
    fn haz_a1_claim_lost_request_session_expires() { Claim, Request, Expires }
    fn haz_a1_stamp_lost_reply() { Stamp, Reply, Survives }
    fn haz_a1_stamp_lost_request() { Stamp, Request, Survives }
    fn haz_a1_stamp_lost_reply_session_expires() { Stamp, Reply, Expires }
    fn haz_a1_stamp_lost_request_session_expires() { Stamp, Request, Expires }
    fn haz_o3_first_offset_lost_reply() { FirstOffset, Reply, Survives }
    fn haz_o3_first_offset_lost_request() { FirstOffset, Request, Survives }
    fn haz_o3_first_offset_lost_reply_session_expires() { FirstOffset, Reply, Expires }
    fn haz_o3_first_offset_lost_request_session_expires() { FirstOffset, Request, Expires }
    fn haz_o3_commit_lost_reply() { Commit, Reply, Survives }
    fn haz_o3_commit_lost_request() { Commit, Request, Survives }
    fn haz_o3_commit_lost_reply_session_expires() { Commit, Reply, Expires }
    fn haz_o3_commit_lost_request_session_expires() { Commit, Request, Expires }
    fn haz_a7_release_lost_reply() { Release, Reply, Survives }
    fn haz_a7_release_lost_request() { Release, Request, Survives }
    fn haz_a7_release_lost_reply_session_expires() { Release, Reply, Expires }
    fn haz_a7_release_lost_request_session_expires() { Release, Request, Expires }
}

#[test]
fn haz_o3_commit_lost_reply_and_the_look_at_it_lost_too() {
    on_each(|version| {
        let mut group = Group::new(version, "haz_o3_twice");
        // Each of its partitions has to find out once.
        group.wrong_versions = PARTITIONS as usize / 2;
        let (member, rival) = (group.join(Duration::from_secs(20)), group.rival());
        group.wait_shared(&[&member, &rival]);
        group.wait_finished(&member, 20);
        // Then it commits again, and what stands there is its own.
        group.proxy.lose_reply(commit(), 1);
        let look = Matcher::of(&[Op::GetData]).at("*/offsets/*/*");
        group.proxy.lose_reply(look, 1);
        until("both losses", LONG, || group.proxy.fired().len() == 2);
        group.wait_finished(&member, 20);
        assert_eq!(group.finish(vec![member, rival], Vec::new()), 0);
    });
}

#[test]
fn haz_s9_a_session_whose_opening_answer_was_lost_holds_nothing_and_is_in_nobodys_way() {
    on_each(|version| {
        let group = Group::new(version, "haz_s9");
        let timeout = Duration::from_secs(4);
        group.proxy.lose_reply(Matcher::of(&[Op::Connect]), 2);
        let member = group.join(timeout);
        group.wait_shared(&[&member]);
        group.wait_finished(&member, 20);
        let mut lost = group.proxy.sessions();
        let kept = lost.split_off(2);
        assert!(kept.iter().all(|session| !lost.contains(session)));
        for phantom in lost {
            // The server ends it, since nobody speaks in it, and that is all it ever did.
            let what = format!("the end of 0x{phantom:x}");
            group.log().await_txn(&what, LONG, |txn| {
                txn.session == phantom && txn.changes == [Change::Closed]
            });
            for txn in group.log().more() {
                let is_nothing =
                    |change: &Change| matches!(change, Change::Opened { .. } | Change::Closed);
                assert!(
                    txn.session != phantom || txn.changes.iter().all(is_nothing),
                    "{txn:?}"
                );
            }
        }
        assert_eq!(group.finish(vec![member], Vec::new()), 0);
    });
}
