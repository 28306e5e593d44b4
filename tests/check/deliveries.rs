//! I1, I5, I6, I7: what is delivered when, from where, and again.

use std::sync::Arc;

use evenkeel::testing::check::{Fact, Rule};

use crate::tale::{A, B, T, Tale, at, deleted, made, offset, owner};

#[test]
fn a_delivery_after_the_end_of_the_session_is_found() {
    // I1
    let (mut tale, token) = Tale::begun();
    tale.close(A);
    tale.deliver("g_a", 0, token, 0);
    let verdict = tale.breaks(Rule::I1);
    let violation = &verdict.violations[0];
    assert_eq!(violation.window, Some((at(0), token)));
    assert!(!violation.around.is_empty());

    let (mut tale, token) = Tale::begun();
    tale.deliver("g_a", 0, token, 0);
    tale.wait(700);
    tale.close(A);
    let verdict = tale.keeps();
    assert_eq!(verdict.worst.margin_ms, Some(702));
    assert_eq!(verdict.counts.expiries, 1);
}

#[test]
fn a_delivery_after_the_release_is_found() {
    let (mut tale, token) = Tale::begun();
    tale.release(A, 0);
    tale.deliver("g_a", 0, token, 0);
    tale.breaks(Rule::I1);
}

#[test]
fn two_clocks_may_be_apart_by_the_tolerance() {
    for (late, is_found) in [(40, false), (60, true)] {
        let mut tale = Tale::timed();
        let token = tale.claim("g_a", A, 0, None);
        tale.commit(A, 0, 0);
        tale.close(A);
        tale.wait(late);
        tale.deliver("g_a", 0, token, 0);
        if is_found {
            tale.breaks(Rule::I1);
        } else {
            tale.keeps();
        }
    }
}

/// `g_a` looked at its lease, stood still, and its session ended; it has two partitions.
fn stopped(deliveries: &[i32], is_checked_late: bool) -> Tale {
    let (mut tale, first) = Tale::begun();
    tale.txn(0, vec![made(&offset(1), "0", false)]);
    let second = tale.claim("g_a", A, 1, Some(0));
    if !is_checked_late {
        tale.check("g_a", 0, first);
        tale.check("g_a", 1, second);
    }
    let from = tale.now();
    tale.wait(9000);
    tale.close(A);
    tale.wait(1000);
    let to = tale.now();
    let member: Arc<str> = "g_a".into();
    tale.tell("nemesis", Fact::Stopped { member, from, to });
    if is_checked_late {
        tale.check("g_a", 0, first);
    }
    for partition in deliveries {
        let token = [first, second][*partition as usize];
        tale.deliver("g_a", *partition, token, 0);
    }
    tale
}

#[test]
fn a_stop_between_the_look_at_the_lease_and_the_delivery_excuses_one_message_of_a_stream() {
    let verdict = stopped(&[0], false).keeps();
    assert_eq!((verdict.counts.excused, verdict.counts.stops), (1, 1));
    assert_eq!(verdict.worst.late_ms, Some(999));
    // Both partitions are of one stream.
    let verdict = stopped(&[0, 1], false).breaks(Rule::I1);
    assert_eq!(verdict.counts.excused, 1);
    stopped(&[0], true).breaks(Rule::I1);
}

#[test]
fn a_delivery_is_no_violation_while_the_member_cannot_know_what_anothers_hand_did() {
    // A5
    for (late, is_found) in [(2990, false), (3010, true)] {
        let (mut tale, token) = Tale::begun();
        tale.txn(0, vec![deleted(owner(0))]);
        tale.wait(late);
        tale.deliver("g_a", 0, token, 0);
        let verdict = if is_found {
            tale.breaks(Rule::I1)
        } else {
            tale.keeps()
        };
        assert_eq!(verdict.counts.unaware, u64::from(!is_found));
        assert_eq!(verdict.counts.taken, 1);
    }
    let (mut tale, token) = Tale::begun();
    tale.tell("nemesis", Fact::Expired { session: A });
    tale.close(A);
    tale.wait(i64::try_from(T.as_millis()).unwrap() / 3);
    tale.deliver("g_a", 0, token, 0);
    tale.keeps();
}

type Deafness = fn(Arc<str>, u64, u64) -> Fact;

#[test]
fn a_member_that_is_cut_off_or_stopped_hears_of_it_when_that_is_over() {
    // The node is taken 100 ms after it began, and it lasts 5 s.
    let late = |late, kind: Option<Deafness>| {
        let (mut tale, token) = Tale::begun();
        let from = tale.now();
        tale.wait(99);
        tale.txn(0, vec![deleted(owner(0))]);
        tale.wait(4900);
        if let Some(kind) = kind {
            let to = tale.now();
            tale.tell("nemesis", kind("g_a".into(), from, to));
        }
        tale.wait(late);
        tale.deliver("g_a", 0, token, 0);
        tale
    };
    let cut = |member, from, to| Fact::Cut { member, from, to };
    let stopped = |member, from, to| Fact::Stopped { member, from, to };
    assert_eq!(late(2990, Some(cut)).keeps().counts.cuts, 1);
    assert_eq!(late(2990, Some(stopped)).keeps().counts.stops, 1);
    late(3010, Some(cut)).breaks(Rule::I1);
    late(3010, Some(stopped)).breaks(Rule::I1);
    late(0, None).breaks(Rule::I1);
}

#[test]
fn a_message_that_is_skipped_is_found() {
    // I5
    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..3);
    tale.deliver("g_a", 0, token, 4);
    tale.breaks(Rule::I5);

    // What was never sent need not come.
    let mut tale = Tale::new();
    tale.send(0, 0..3);
    tale.send(0, 4..6);
    let token = tale.claim("g_a", A, 0, None);
    tale.commit(A, 0, 0);
    tale.work("g_a", 0, token, 0..3);
    tale.work("g_a", 0, token, 4..6);
    tale.keeps();
}

#[test]
fn what_somebody_set_forward_on_a_live_ownership_may_be_skipped() {
    // I5
    let set = |is_late: bool| {
        let (mut tale, token) = Tale::begun();
        if !is_late {
            tale.commit(0, 0, 5);
        }
        tale.work("g_a", 0, token, 0..3);
        if is_late {
            tale.commit(0, 0, 5);
        }
        tale.work("g_a", 0, token, 5..6);
        tale
    };
    set(true).keeps();
    // What was written before the last delivery does not explain a gap behind it.
    set(false).breaks(Rule::I5);
}

#[test]
fn a_step_back_within_an_ownership_is_found_unless_somebody_asked_for_it() {
    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..3);
    tale.work("g_a", 0, token, 1..3);
    tale.breaks(Rule::I5);

    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..3);
    tale.reset("g_a", 0, Some(3), 1);
    tale.work("g_a", 0, token, 1..3);
    tale.keeps();

    // One reset explains one step.
    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..3);
    tale.reset("g_a", 0, Some(3), 1);
    tale.work("g_a", 0, token, 1..3);
    tale.work("g_a", 0, token, 1..3);
    tale.breaks(Rule::I5);
}

#[test]
fn a_start_elsewhere_than_at_what_was_committed_is_found() {
    // I6
    let (mut tale, token) = Tale::begun();
    tale.deliver("g_a", 0, token, 2);
    tale.breaks(Rule::I6);

    let (mut tale, token) = Tale::begun();
    tale.reset("g_a", 0, Some(0), 2);
    tale.deliver("g_a", 0, token, 2);
    tale.keeps();
}

#[test]
fn a_start_by_the_policy_is_committed_before_the_first_delivery() {
    // O4
    let begin = |is_committed_first: bool| {
        let mut tale = Tale::new();
        tale.send(0, 0..10);
        let token = tale.claim("g_a", A, 0, None);
        if is_committed_first {
            tale.commit(A, 0, 5);
        }
        tale.deliver("g_a", 0, token, 5);
        tale.done("g_a", 0, token, 5);
        tale.commit(A, 0, 6);
        tale
    };
    begin(true).keeps();
    begin(false).breaks(Rule::I6);

    for is_committed_later in [false, true] {
        let mut tale = Tale::new();
        tale.send(0, 0..10);
        let token = tale.claim("g_a", A, 0, None);
        tale.deliver("g_a", 0, token, 5);
        if is_committed_later {
            tale.commit(A, 0, 5);
        }
        tale.breaks(Rule::I6);
    }
}

/// `g_a` finished five messages, committed some, and gave the partition up; `g_b` took it.
fn handed_over(committed: i64, before: impl FnOnce(&mut Tale)) -> Tale {
    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..5);
    if committed > 0 {
        tale.commit(A, 0, committed);
    }
    before(&mut tale);
    tale.release(A, 0);
    tale.join("g_b", B);
    let token = tale.claim("g_b", B, 0, Some(committed));
    tale.work("g_b", 0, token, committed..7);
    tale
}

#[test]
fn a_clean_hand_over_repeats_nothing() {
    // I7
    let verdict = handed_over(5, |_| {}).keeps();
    assert_eq!((verdict.counts.clean, verdict.counts.redeliveries), (1, 0));
    let verdict = handed_over(3, |_| {}).breaks(Rule::I7);
    assert_eq!(verdict.counts.redeliveries, 2);
    assert_eq!(verdict.worst.redelivered, 2);
    handed_over(0, |_| {}).breaks(Rule::I7);
}

#[test]
fn what_is_gone_from_the_log_needs_not_be_committed_by_who_hands_over() {
    // I7
    let given_up = |before| {
        let (mut tale, token) = Tale::begun();
        tale.work("g_a", 0, token, 0..3);
        let gone = Fact::Trimmed {
            partition: at(0),
            before,
        };
        tale.tell("log", gone);
        tale.release(A, 0);
        tale
    };
    given_up(3).keeps();
    given_up(2).breaks(Rule::I7);
}

#[test]
fn what_was_done_of_a_topic_that_was_made_anew_unheard_may_be_repeated() {
    // I7
    let (mut tale, token) = Tale::begun();
    tale.txn(0, vec![deleted("/brokers/topics/t".to_owned())]);
    let topic = made("/brokers/topics/t", r#"{"partitions":{"0":[0]}}"#, false);
    tale.txn(0, vec![topic]);
    tale.work("g_a", 0, token, 0..1);
    let none = tale.set(offset(0), "-1");
    tale.txn(A, vec![none, deleted(owner(0))]);
    tale.keeps();
}

#[test]
fn a_hand_over_that_was_not_clean_may_repeat() {
    let forced = |tale: &mut Tale| {
        let fact = Fact::Released {
            partition: at(0),
            undone: 1,
            is_forced: true,
        };
        tale.tell("g_a", fact);
    };
    let verdict = handed_over(3, forced).keeps();
    assert_eq!((verdict.counts.clean, verdict.counts.redeliveries), (0, 2));
    let killed = |tale: &mut Tale| {
        let member = "g_a".into();
        tale.tell("nemesis", Fact::Killed { member });
    };
    handed_over(3, killed).keeps();
    // Its registration went while the release was under way.
    let lost = |tale: &mut Tale| {
        for call in ["after_claim", "before_release", "on_lost"] {
            tale.called("g_a", call, 0);
        }
    };
    handed_over(3, lost).keeps();
    handed_over(3, |tale| tale.limits.is_committing = false).keeps();
    // What is behind a message that is not done is not committed.
    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..2);
    tale.deliver("g_a", 0, token, 2);
    tale.work("g_a", 0, token, 3..4);
    tale.commit(A, 0, 2);
    tale.release(A, 0);
    assert_eq!(tale.keeps().counts.clean, 1);
}

#[test]
fn an_end_of_the_session_may_repeat() {
    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..5);
    tale.close(A);
    tale.join("g_b", B);
    let token = tale.claim("g_b", B, 0, Some(0));
    tale.work("g_b", 0, token, 0..5);
    let verdict = tale.keeps();
    assert_eq!((verdict.counts.clean, verdict.counts.redeliveries), (0, 5));
}
