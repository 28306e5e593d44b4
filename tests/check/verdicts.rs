//! What a verdict says and asks for.

use evenkeel::testing::check::{Counts, Verdict};

use crate::tale::{A, Tale};

fn good() -> Verdict {
    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..3);
    tale.commit(A, 0, 3);
    tale.keeps()
}

#[test]
fn a_run_that_was_too_tame_is_refused() {
    let verdict = good();
    let floors = Counts {
        deliveries: 3,
        commits: 1,
        ..Counts::default()
    };
    verdict.require(&floors).unwrap();
    let more = Counts {
        deliveries: 4,
        clean: 1,
        ..floors
    };
    let why = verdict.require(&more).unwrap_err();
    assert!(
        why.contains("only 3 deliveries, at least 4 are asked for"),
        "{why}"
    );
    assert!(why.contains("only 0 clean"), "{why}");
}

#[test]
fn a_run_that_broke_a_rule_is_refused_whatever_it_had() {
    let (mut tale, token) = Tale::begun();
    tale.close(A);
    tale.deliver("g_a", 0, token, 0);
    let verdict = tale.judge();
    let why = verdict.require(&Counts::default()).unwrap_err();
    assert!(why.contains("I1 t-0 token 5 zxid 6: a delivery"), "{why}");
    assert!(
        why.contains("zxid 6 at 1441000000006 ms, session 0xa: the session ends"),
        "{why}"
    );
    let json: serde_json::Value = serde_json::from_str(&verdict.to_json()).unwrap();
    assert_eq!(json["good"], false);
    assert_eq!(json["violations"][0]["rule"], "I1");
    assert_eq!(json["violations"][0]["window"]["tok"], 5);
    assert_eq!(json["counts"]["deliveries"], 1);
}

#[test]
fn a_good_verdict_says_what_was_judged() {
    let text = good().to_string();
    assert!(text.starts_with("nothing is violated\njudged:"), "{text}");
    assert!(text.contains(" deliveries 3 dones 3"), "{text}");
    let mut sum = good().counts;
    sum.add(&good().counts);
    assert_eq!((sum.deliveries, sum.commits), (6, 2));
}
