//! What is handed in has to fit together.

use std::sync::Arc;

use evenkeel::GroupName;
use evenkeel::testing::check::{Case, Event, Fact, Rule, Verdict};

use crate::tale::{A, B, Tale, at, made, offset};

fn judged(tale: Tale, change: impl FnOnce(&mut Vec<Event>)) -> Verdict {
    let mut events = tale.record.events().to_vec();
    change(&mut events);
    let case: Case = tale.case();
    case.with_events(events).judge()
}

#[track_caller]
fn is_found(verdict: &Verdict, words: &str) {
    assert_eq!(verdict.rules(), [Rule::Form], "{verdict}");
    assert!(verdict.violations[0].what.contains(words), "{verdict}");
}

fn worked() -> Tale {
    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..3);
    tale
}

#[test]
fn a_gap_in_the_numbering_is_found() {
    let drop_one = |events: &mut Vec<Event>| {
        let place = events
            .iter()
            .position(|event| event.seq == 3 && &*event.member == "g_a");
        events[place.unwrap()].fact = Fact::Other("view".into());
    };
    // A kind that is not known still has its number; here it was a delivery.
    assert!(!judged(worked(), drop_one).is_good());
    let verdict = judged(worked(), |events| {
        events.remove(0);
    });
    // The clock told nothing else, and the first event of a writer may not be missing.
    assert!(verdict.is_good(), "{verdict}");
    let verdict = judged(worked(), |events| events.retain(|event| event.seq != 7));
    is_found(&verdict, "tells 8 where 7 was to come");
    assert!(judged(worked(), |_| {}).is_good());
}

#[test]
fn two_starts_of_one_number_are_found() {
    let verdict = judged(worked(), |events| {
        let mut again = events[0].clone();
        again.fact = Fact::Other("start".into());
        events.push(again);
    });
    is_found(&verdict, "two starts of clock have the number 1");
    let verdict = judged(worked(), |events| {
        let mut again = events[0].clone();
        (again.incarnation, again.fact) = (2, Fact::Other("start".into()));
        events.push(again);
    });
    assert!(verdict.is_good(), "{verdict}");
}

#[test]
fn a_token_without_an_ownership_is_found() {
    let (mut tale, token) = Tale::begun();
    tale.deliver("g_a", 0, token + 1, 0);
    is_found(&tale.judge(), "was ever made");

    let (mut tale, token) = Tale::begun();
    tale.deliver("g_a", 1, token, 0);
    is_found(&tale.judge(), "no owner node of t-1");
}

#[test]
fn a_token_of_another_member_is_found() {
    let (mut tale, token) = Tale::begun();
    tale.join("g_b", B);
    tale.deliver("g_b", 0, token, 0);
    is_found(&tale.judge(), "g_b uses the token of g_a");

    // What legacy members say of themselves is their affair.
    let (mut tale, token) = Tale::begun();
    tale.deliver("g_j", 0, token, 0);
    tale.keeps();
}

#[test]
fn a_message_that_is_done_was_delivered() {
    let (mut tale, token) = Tale::begun();
    tale.done("g_a", 0, token, 0);
    is_found(&tale.judge(), "was not delivered");
}

#[test]
fn a_clock_that_goes_back_is_found() {
    let shown = |real_us, wait| {
        let mut tale = Tale::new();
        tale.wait(wait);
        tale.tell("clock", Fact::Clock { real_us });
        tale
    };
    is_found(&shown(1, 10).judge(), "the clock goes back");
    shown(1_441_000_000_010_000, 10).keeps();
}

#[test]
fn events_that_nobody_can_place_are_found() {
    let verdict = judged(worked(), |events| {
        events.remove(0);
        events.iter_mut().for_each(|event| event.zxid = None);
    });
    is_found(&verdict, "nobody can tell when this was");
    // Either is enough.
    let verdict = judged(worked(), |events| {
        events.iter_mut().for_each(|event| event.zxid = None);
    });
    assert!(verdict.is_good(), "{verdict}");
}

#[test]
fn a_history_out_of_order_is_found() {
    let mut tale = worked();
    let last = tale.history.len() - 1;
    tale.history[last].zxid = 2;
    assert!(tale.judge().rules().contains(&Rule::Form));

    let mut tale = worked();
    tale.txn(0, vec![made(&offset(0), "0", false)]);
    is_found(&tale.judge(), "was there already");
}

#[test]
fn nothing_at_all_is_no_violation() {
    let verdict = Case::new(GroupName::new("g").unwrap()).judge();
    assert!(verdict.is_good());
    let mut tale = Tale::new();
    tale.txn(A, Vec::new());
    tale.tell("g_a", Fact::Other("start".into()));
    let member: Arc<str> = "g_a".into();
    tale.tell("nemesis", Fact::Killed { member });
    let partition = at(0);
    tale.tell(
        "producer",
        Fact::Trimmed {
            partition,
            before: 3,
        },
    );
    tale.keeps();
}
