//! I14, I16: when the faults are over.

use std::time::Duration;

use evenkeel::config::Reset;
use evenkeel::testing::check::{Fact, Owners, Rule};

use crate::tale::{A, B, J, Tale, at, made, offset};

/// `g_a` and `g_b` share, by range, or as told.
fn shared(first: (&str, i64), second: (&str, i64)) -> Tale {
    let mut tale = Tale::new();
    tale.join("g_b", B);
    tale.claim(first.0, first.1, 0, None);
    tale.claim(second.0, second.1, 1, None);
    tale.tell("nemesis", Fact::Settled);
    tale
}

#[test]
fn in_the_end_the_owners_are_those_of_the_rule() {
    // I14
    let verdict = shared(("g_a", A), ("g_b", B)).keeps();
    assert_eq!(verdict.counts.settled, 1);
    let verdict = shared(("g_b", B), ("g_a", A)).breaks(Rule::I14);
    assert!(verdict.violations[0].what.contains("t-0 g_b-0 not g_a-0"));
    shared(("g_a", A), ("g_a", A)).breaks(Rule::I14);
}

#[test]
fn the_owners_are_judged_when_the_group_is_settled_and_not_later() {
    let mut tale = shared(("g_a", A), ("g_b", B));
    tale.release(B, 1);
    tale.close(A);
    tale.keeps();

    let mut tale = shared(("g_a", A), ("g_b", B));
    tale.release(B, 1);
    tale.tell("nemesis", Fact::Settled);
    tale.breaks(Rule::I14);
}

#[test]
fn after_the_faults_the_group_has_a_bounded_time() {
    let healed = |wait| {
        let mut tale = Tale::timed();
        tale.limits.convergence = Some(Duration::from_secs(3));
        tale.claim("g_a", A, 0, None);
        tale.tell("nemesis", Fact::Healed);
        tale.wait(wait);
        tale.claim("g_a", A, 1, None);
        tale
    };
    healed(2990).keeps();
    healed(3010).breaks(Rule::I14);
}

#[test]
fn another_rule_may_be_given() {
    let all = |owner: &'static str| {
        move |roll: &evenkeel::testing::check::Roll| -> Owners {
            let topics = roll.partitions.iter();
            let all = topics.flat_map(|(_, ids)| ids.iter().map(|id| at(*id)));
            all.map(|partition| (partition, owner.to_owned())).collect()
        }
    };
    let tale = shared(("g_a", A), ("g_a", A));
    assert!(tale.case().with_expected(all("g_a-0")).judge().is_good());
    let tale = shared(("g_a", A), ("g_a", A));
    let verdict = tale.case().with_expected(all("g_b-0")).judge();
    assert_eq!(verdict.rules(), [Rule::I14]);
}

#[test]
fn in_the_end_everything_sent_is_done() {
    // I16
    let verdict = settled(|_| {}).breaks(Rule::I16);
    assert!(verdict.violations[0].what.ends_with("8 9"), "{verdict}");
    assert_eq!(verdict.counts.sent, 10);
}

#[test]
fn what_was_trimmed_skipped_or_committed_by_others_needs_not_be_done() {
    let trimmed = |before| {
        move |tale: &mut Tale| {
            let partition = at(0);
            tale.tell("producer", Fact::Trimmed { partition, before });
        }
    };
    settled(trimmed(10)).keeps();
    settled(trimmed(9)).breaks(Rule::I16);
    settled(|tale| tale.reset("g_a", 0, Some(8), 10)).keeps();
    settled(|tale| tale.reset("g_a", 0, Some(8), 9)).breaks(Rule::I16);
    settled(|tale| {
        tale.join("g_j", J);
        tale.commit(A, 0, 8);
        tale.commit(J, 0, 10);
        tale.close(J);
    })
    .keeps();
    settled(|tale| {
        tale.commit(A, 0, 8);
        tale.txn(0, vec![made("/elsewhere", &offset(0), false)]);
    })
    .breaks(Rule::I16);
}

fn settled(more: impl FnOnce(&mut Tale)) -> Tale {
    let (mut tale, token) = Tale::begun();
    tale.claim("g_a", A, 1, None);
    tale.work("g_a", 0, token, 0..8);
    more(&mut tale);
    tale.tell("nemesis", Fact::Settled);
    tale
}

#[test]
fn what_was_sent_before_the_first_start_needs_not_be_done() {
    let mut tale = Tale::new();
    tale.send(0, 0..10);
    let token = tale.claim("g_a", A, 0, None);
    tale.claim("g_a", A, 1, None);
    tale.commit(A, 0, 6);
    tale.work("g_a", 0, token, 6..10);
    tale.tell("nemesis", Fact::Settled);
    tale.keeps();
}

#[test]
fn with_the_smallest_as_the_policy_nothing_is_sent_before_the_first_start() {
    // I16
    let tale = |is_ours: bool| {
        let mut tale = Tale::new();
        tale.policy = Some(Reset::Smallest);
        tale.send(0, 0..10);
        if !is_ours {
            tale.txn(0, vec![made(&offset(0), "6", false)]);
        }
        let token = tale.claim("g_a", A, 0, (!is_ours).then_some(6));
        tale.claim("g_a", A, 1, None);
        if is_ours {
            tale.commit(A, 0, 6);
        }
        tale.work("g_a", 0, token, 6..10);
        tale.tell("nemesis", Fact::Settled);
        tale.judge()
    };
    assert_eq!(tale(true).rules(), [Rule::I6, Rule::I16]);
    // An operator wrote where to begin.
    assert!(tale(false).is_good());
}

#[test]
fn owners_that_cannot_be_compared_are_counted() {
    // I14
    let mut tale = shared(("g_a", A), ("g_b", B));
    let text = r#"{"version":1,"subscription":{"t.*":1},"pattern":"white_list","timestamp":"1"}"#;
    let path = "/consumers/g/ids/g_b".to_owned();
    let filter = tale.set(path, text);
    tale.txn(B, vec![filter]);
    tale.tell("nemesis", Fact::Settled);
    let counts = tale.keeps().counts;
    assert_eq!((counts.settled, counts.unsettled), (1, 1));
}

#[test]
fn what_is_sent_after_the_group_settled_is_not_asked_for() {
    let mut tale = settled(|_| {});
    let token = tale.history.iter().rev().nth(1).unwrap().zxid;
    tale.work("g_a", 0, token, 8..10);
    tale.wait(1);
    tale.send(0, 10..12);
    tale.keeps();
}
