//! I8, I9, I10: whose nodes are whose.

use std::time::Duration;

use evenkeel::testing::check::{Change, Fact, Rule};

use crate::tale::{A, B, J, T, Tale, deleted, made, owner};

const C: i64 = 0xc;

#[test]
fn an_owner_without_a_registration_is_found() {
    // I8
    let mut tale = Tale::new();
    tale.txn(A, vec![deleted("/consumers/g/ids/g_a".into())]);
    tale.claim("g_a", A, 0, None);
    tale.breaks(Rule::I8);

    let mut tale = Tale::new();
    tale.claim("g_a", A, 0, None);
    tale.txn(A, vec![deleted("/consumers/g/ids/g_a".into())]);
    tale.keeps();
}

#[test]
fn an_owner_that_never_registered_is_known_by_the_text_of_its_node() {
    let mut tale = Tale::new();
    tale.txn(B, vec![Change::Opened]);
    tale.claim("g_b", B, 0, None);
    tale.breaks(Rule::I8);

    // Somebody else's affair.
    let mut tale = Tale::new();
    tale.txn(J, vec![Change::Opened]);
    tale.claim("g_j", J, 0, None);
    assert_eq!(tale.keeps().counts.others_claims, 1);
}

#[test]
fn an_owner_registered_in_an_earlier_session_is_found() {
    let mut tale = Tale::new();
    tale.txn(C, vec![Change::Opened]);
    tale.tell("g_a", Fact::Joined { session: C });
    tale.claim("g_a", C, 0, None);
    tale.breaks(Rule::I8);
}

#[test]
fn an_owner_node_for_another_member_is_found() {
    let mut tale = Tale::new();
    tale.join("g_b", B);
    tale.claim("g_b", A, 0, None);
    tale.breaks(Rule::I8);
}

/// `g_a` is killed, and so much later its session ends.
fn killed(after: i64) -> Tale {
    let mut tale = Tale::timed();
    tale.claim("g_a", A, 0, None);
    tale.txn(A, vec![deleted("/consumers/g/ids/g_a".into())]);
    let member = "g_a".into();
    tale.wait(20_000);
    tale.tell("nemesis", Fact::Killed { member });
    tale.wait(after);
    tale.close(A);
    tale
}

#[test]
fn the_nodes_of_a_killed_member_go_in_their_time() {
    // I9
    let verdict = killed(6000).keeps();
    assert_eq!(verdict.worst.lingering_ms, Some((6001, 6001)));
    assert_eq!((verdict.counts.deaths, verdict.counts.lingered), (1, 1));
    killed(5260).keeps();
    killed(5200).breaks(Rule::I9);
    killed(6990).keeps();
    killed(7010).breaks(Rule::I9);
    let mut tale = killed(5200);
    tale.tell("nemesis", Fact::Expired { session: A });
    tale.keeps();
}

#[test]
fn the_nodes_of_a_member_that_was_cut_off_when_it_was_killed_are_not_timed() {
    // I9
    let cut = |from: i64, to: i64| {
        let mut tale = killed(5200);
        let mut events = tale.record.events().iter();
        let kill = events.find(|event| matches!(event.fact, Fact::Killed { .. }));
        let kill = kill.expect("it is killed").mono;
        let at = |ms: i64| kill.saturating_add_signed(ms * 1_000_000);
        let (member, from, to) = ("g_a".into(), at(from), at(to));
        tale.tell("nemesis", Fact::Cut { member, from, to });
        tale
    };
    assert_eq!(cut(-1000, -100).keeps().counts.lingered, 0);
    assert_eq!(cut(500, 600).keeps().counts.lingered, 0);
    cut(-9000, -8000).breaks(Rule::I9);
    cut(10_000, 11_000).breaks(Rule::I9);
}

#[test]
fn a_killed_member_whose_nodes_never_go_is_found() {
    let until = |ms| {
        let mut tale = killed(ms);
        tale.history.pop();
        tale.txn(0, vec![made("/x", "", false)]);
        tale
    };
    until(7010).breaks(Rule::I9);
    until(6000).keeps();
}

#[test]
fn anothers_owner_node_is_left_alone() {
    // I10
    let mut tale = Tale::new();
    tale.join("g_j", J);
    tale.claim("g_j", J, 0, None);
    tale.txn(A, vec![deleted(owner(0))]);
    tale.breaks(Rule::I10);

    let mut tale = Tale::new();
    tale.join("g_j", J);
    tale.claim("g_a", A, 0, None);
    tale.txn(J, vec![deleted(owner(0))]);
    assert_eq!(tale.keeps().counts.taken, 1);
}

#[test]
fn a_node_of_an_earlier_session_of_ones_own_may_be_taken_away() {
    let mut tale = Tale::new();
    tale.claim("g_a", A, 0, None);
    tale.txn(C, vec![Change::Opened]);
    tale.tell("g_a", Fact::Joined { session: C });
    tale.txn(C, vec![deleted(owner(0))]);
    assert_eq!(tale.keeps().counts.stale, 1);
}

#[test]
fn a_member_makes_and_touches_only_what_is_its_own() {
    let deed = |change: Change| {
        let mut tale = Tale::new();
        tale.join("g_b", B);
        tale.txn(0, vec![made("/consumers/g/offsets/t/1", "3", false)]);
        tale.txn(A, vec![change]);
        tale
    };
    let set = |path: &str| Change::Set {
        path: path.into(),
        data: Vec::new(),
        version: 1,
    };
    for wrong in [
        made("/somewhere", "", false),
        made("/consumers/other/ids/g_a", "", true),
        made("/consumers/g/ids/g_x", "", true),
        set("/consumers/g/ids/g_b"),
        set("/brokers/topics/t"),
        deleted("/consumers/g/ids/g_b".into()),
        deleted("/consumers/g/offsets/t/1".into()),
        deleted("/consumers/g/owners/t".into()),
        made("/consumers/g/owners/t/0", "g_a-0", false),
    ] {
        let words = format!("{wrong:?}");
        let verdict = deed(wrong).breaks(Rule::I10);
        assert!(verdict.violations[0].zxid.is_some(), "{words}");
    }
    for right in [
        made("/consumers/g/owners", "", false),
        made("/consumers/g/owners/t", "", false),
        set("/consumers/g/ids/g_a"),
        deleted("/consumers/g/ids/g_a".into()),
    ] {
        deed(right).keeps();
    }
}

#[test]
fn a_chroot_is_not_part_of_the_paths() {
    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..3);
    tale.release(A, 0);
    for txn in &mut tale.history {
        for change in &mut txn.changes {
            if let Change::Created { path, .. }
            | Change::Deleted { path }
            | Change::Set { path, .. } = change
            {
                path.insert_str(0, "/kafka/one");
            }
        }
    }
    let verdict = tale.case().below("/kafka/one").judge();
    assert_eq!(verdict.rules(), [Rule::I7], "{verdict}");
    assert_eq!(verdict.counts.deliveries, 3);
}

#[test]
fn the_limits_follow_from_the_session_timeout() {
    let limits = Tale::timed().limits;
    let (least, most) = limits.lingering.unwrap();
    assert_eq!(least, T - T / 8);
    assert_eq!(most, T + Duration::from_millis(1000));
}

#[test]
fn a_stamp_that_met_what_was_made_in_place_of_ours_is_nobodys_fault() {
    // I10
    let stamped = |is_made_apart: bool| {
        let mut tale = Tale::new();
        tale.join("g_j", J);
        if is_made_apart {
            tale.txn(A, vec![made(&owner(0), "g_a-0", true)]);
        } else {
            tale.claim("g_a", A, 0, None);
        }
        tale.txn(J, vec![deleted(owner(0))]);
        tale.txn(J, vec![made(&owner(0), "g_j-0", true)]);
        let stamp = tale.set(owner(0), "g_a-0");
        tale.txn(A, vec![stamp]);
        tale
    };
    stamped(true).keeps();
    stamped(false).breaks(Rule::I10);

    // Once: whoever stamps a second time had time to look.
    let mut tale = stamped(true);
    let stamp = tale.set(owner(0), "g_a-0");
    tale.txn(A, vec![stamp]);
    tale.breaks(Rule::I10);
}
