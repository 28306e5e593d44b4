//! I6: where reading begins, and what is told of it.

use evenkeel::Event;
use evenkeel::config::Reset;
use evenkeel::event::ResetCause;
use evenkeel::testing::check::{Fact, Hearing, How, Rule};

use crate::tale::{A, Tale, at, deleted, made, offset};

fn say(tale: &mut Tale, token: i64, how: How, offset: i64) {
    let partition = at(0);
    let fact = Fact::Started {
        partition,
        token,
        offset,
        how,
    };
    tale.tell("g_a", fact);
}

#[test]
fn what_a_member_says_of_its_start_must_be_so() {
    // I6
    let said = |how, offset| {
        let (mut tale, token) = Tale::begun();
        say(&mut tale, token, how, offset);
        tale
    };
    assert_eq!(said(How::Stored, 0).keeps().counts.starts, 1);
    said(How::Stored, 1).breaks(Rule::I6);
    said(How::Policy, 0).breaks(Rule::I6);
    said(How::Reset, 7).keeps();
}

#[test]
fn what_is_said_to_be_stored_must_be_stored() {
    let nothing = |is_written| {
        let mut tale = Tale::new();
        let token = tale.claim("g_a", A, 0, None);
        if is_written {
            tale.txn(0, vec![made(&offset(0), "3", false)]);
        }
        say(&mut tale, token, How::Stored, 3);
        tale
    };
    nothing(false).breaks(Rule::I6);
    nothing(true).keeps();
}

#[test]
fn the_policy_may_be_asked_for_what_an_operator_took_away() {
    let (mut tale, token) = Tale::begun();
    tale.txn(0, vec![deleted(offset(0))]);
    say(&mut tale, token, How::Policy, 0);
    tale.keeps();
}

/// Ten messages are there, and the start is committed as this.
fn started(policy: Reset, trimmed: i64, start: i64) -> Tale {
    let mut tale = Tale::new();
    tale.policy = Some(policy);
    tale.send(0, 0..10);
    let partition = at(0);
    let before = trimmed;
    tale.tell("producer", Fact::Trimmed { partition, before });
    let token = tale.claim("g_a", A, 0, None);
    tale.send(0, 10..12);
    tale.commit(A, 0, start);
    tale.work("g_a", 0, token, start..12);
    tale
}

#[test]
fn the_first_start_is_where_the_policy_says() {
    // I6
    let verdict = started(Reset::Smallest, 0, 0).keeps();
    assert_eq!(verdict.counts.first_starts, 1);
    let verdict = started(Reset::Smallest, 0, 1).breaks(Rule::I6);
    assert!(verdict.violations[0].what.ends_with("0 lies before it"));
    started(Reset::Smallest, 4, 4).keeps();
    started(Reset::Smallest, 4, 5).breaks(Rule::I6);

    started(Reset::Largest, 0, 10).keeps();
    // Its end when it was looked at: between the claim and the commit.
    started(Reset::Largest, 0, 12).keeps();
    started(Reset::Largest, 0, 9).breaks(Rule::I6);
    // What is new is read from its beginning.
    started(Reset::Largest, 0, 0).keeps();

    started(Reset::None, 0, 0).breaks(Rule::I6);
}

#[test]
fn a_member_that_begins_at_the_end_where_the_smallest_was_asked_for_is_found() {
    started(Reset::Smallest, 0, 12).breaks(Rule::I6);
    started(Reset::Smallest, 10, 10).keeps();
}

#[test]
fn a_position_that_is_set_is_where_the_policy_says() {
    let reset = |to| {
        let (mut tale, token) = Tale::begun();
        tale.policy = Some(Reset::Smallest);
        let (partition, before) = (at(0), 4);
        tale.tell("producer", Fact::Trimmed { partition, before });
        tale.reset("g_a", 0, Some(0), to);
        tale.work("g_a", 0, token, to..10);
        tale
    };
    reset(4).keeps();
    reset(6).breaks(Rule::I6);
}

fn claimed(hearing: &mut Hearing, token: i64) {
    let stream = evenkeel::StreamId::new(&evenkeel::ConsumerId::new("g_a"), 0);
    let event = Event::Claimed {
        partition: at(0),
        stream,
        token,
    };
    assert_eq!(hearing.hear(&event), None);
}

fn begins(hearing: &mut Hearing, offset: i64) -> Option<(i64, How)> {
    let partition = at(0);
    match hearing.hear(&Event::Started { partition, offset })? {
        Fact::Started { token, how, .. } => Some((token, how)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_hears_a_member_knows_why_it_begins_where_it_does() {
    let mut hearing = Hearing::new();
    assert_eq!(begins(&mut hearing, 0), None);
    claimed(&mut hearing, 5);
    assert_eq!(begins(&mut hearing, 7), Some((5, How::Stored)));
    // It goes on after trouble.
    assert_eq!(begins(&mut hearing, 9), None);
    let causes = [
        (ResetCause::NoOffset, How::Policy),
        (ResetCause::OutOfRange, How::Reset),
        (ResetCause::TopicRecreated, How::Reset),
        (ResetCause::Malformed, How::Policy),
    ];
    for (cause, how) in causes {
        claimed(&mut hearing, 6);
        let reset = Event::OffsetReset {
            partition: at(0),
            token: 6,
            from: None,
            to: Some(3),
            cause,
        };
        assert!(hearing.hear(&reset).is_some());
        assert_eq!(begins(&mut hearing, 3), Some((6, how)));
        // What is heard late of a former ownership says nothing of this one.
        claimed(&mut hearing, 7);
        assert!(hearing.hear(&reset).is_some());
        assert_eq!(begins(&mut hearing, 3), Some((7, How::Stored)));
    }
    claimed(&mut hearing, 8);
    hearing.hear(&Event::Missed { count: 1 });
    assert_eq!(begins(&mut hearing, 3), None);
}
