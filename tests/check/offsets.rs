//! I2, I3, I4: who commits what.

use evenkeel::testing::check::{Fact, Rule};

use crate::tale::{A, B, J, Tale, at, deleted, made, offset, owner};

#[test]
fn a_commit_by_one_who_does_not_own_the_partition_is_found() {
    // I2
    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..3);
    tale.release(A, 0);
    tale.limits.is_committing = false;
    tale.commit(A, 0, 3);
    tale.breaks(Rule::I2);

    // In one transaction with the release, before it, it still does.
    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..3);
    let commit = tale.written(0, 3);
    tale.txn(A, vec![commit, deleted(owner(0))]);
    tale.keeps();

    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..3);
    let commit = tale.written(0, 3);
    tale.limits.is_committing = false;
    tale.txn(A, vec![deleted(owner(0)), commit]);
    tale.breaks(Rule::I2);
}

#[test]
fn a_commit_over_the_next_owner_is_found() {
    let (mut tale, token) = Tale::begun();
    tale.join("g_b", B);
    tale.work("g_a", 0, token, 0..3);
    tale.txn(0, vec![deleted(owner(0))]);
    tale.claim("g_b", B, 0, Some(0));
    tale.commit(A, 0, 3);
    tale.breaks(Rule::I2);
}

#[test]
fn a_node_made_in_advance_that_says_there_is_no_offset_is_no_commit() {
    let mut tale = Tale::new();
    tale.txn(A, vec![made(&offset(0), "-1", false)]);
    tale.keeps();

    let mut tale = Tale::new();
    tale.txn(A, vec![made(&offset(0), "0", false)]);
    tale.breaks(Rule::I2);
}

#[test]
fn a_claim_may_take_away_what_is_no_offset_of_its_topic_and_a_commit_may_not() {
    let claimed = |tale: &mut Tale| {
        let (path, stream) = (offset(0), "g_a-0");
        tale.txn(0, vec![made(&path, "7", false)]);
        let none = tale.set(path, "-1");
        tale.txn(A, vec![made(&owner(0), stream, true), none]);
    };
    let mut tale = Tale::new();
    claimed(&mut tale);
    tale.keeps();

    let mut tale = Tale::new();
    claimed(&mut tale);
    let none = tale.set(offset(0), "-2");
    tale.txn(A, vec![none]);
    tale.breaks(Rule::I4);
}

#[test]
fn an_offset_that_goes_back_is_found() {
    // I3
    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..5);
    tale.commit(A, 0, 5);
    tale.commit(A, 0, 4);
    tale.breaks(Rule::I3);

    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..5);
    tale.commit(A, 0, 5);
    tale.commit(A, 0, 4);
    tale.reset("g_a", 0, Some(5), 4);
    assert_eq!(tale.keeps().counts.set_back, 1);

    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..5);
    tale.commit(A, 0, 5);
    tale.reset("g_a", 0, Some(5), 3);
    tale.commit(A, 0, 4);
    tale.breaks(Rule::I3);
}

#[test]
fn a_legacy_member_may_go_back_and_ours_may_go_back_behind_it() {
    let (mut tale, token) = Tale::begun();
    tale.join("g_j", J);
    tale.work("g_a", 0, token, 0..5);
    tale.commit(A, 0, 3);
    tale.commit(J, 0, 9);
    tale.commit(J, 0, 1);
    tale.commit(J, 0, 9);
    tale.commit(A, 0, 5);
    let verdict = tale.keeps();
    assert_eq!(
        (verdict.counts.others_commits, verdict.counts.set_back),
        (4, 1)
    );

    // A claim confirms what stands there, and then it is ours.
    let mut tale = Tale::new();
    tale.txn(0, vec![made(&offset(0), "5", false)]);
    tale.claim("g_a", A, 0, Some(5));
    tale.commit(A, 0, 4);
    tale.breaks(Rule::I3);
}

#[test]
fn a_commit_of_what_is_not_done_is_found() {
    // I4
    let (mut tale, token) = Tale::begun();
    tale.work("g_a", 0, token, 0..2);
    tale.deliver("g_a", 0, token, 2);
    tale.commit(A, 0, 3);
    tale.breaks(Rule::I4);

    // Done, but behind one that is not.
    let (mut tale, token) = Tale::begun();
    tale.deliver("g_a", 0, token, 0);
    tale.work("g_a", 0, token, 1..3);
    tale.commit(A, 0, 3);
    tale.breaks(Rule::I4);

    let (mut tale, token) = Tale::begun();
    tale.deliver("g_a", 0, token, 0);
    tale.work("g_a", 0, token, 1..3);
    tale.done("g_a", 0, token, 0);
    tale.commit(A, 0, 3);
    tale.keeps();
}

#[test]
fn what_is_done_after_the_commit_does_not_count() {
    for (is_exact, late, is_found) in [(true, 0, true), (false, 30, false), (false, 70, true)] {
        let (mut tale, token) = if is_exact {
            Tale::begun()
        } else {
            let mut tale = Tale::timed();
            tale.txn(0, vec![made(&offset(0), "0", false)]);
            let token = tale.claim("g_a", A, 0, Some(0));
            (tale, token)
        };
        tale.deliver("g_a", 0, token, 0);
        tale.commit(A, 0, 1);
        tale.wait(late);
        tale.done("g_a", 0, token, 0);
        if is_found {
            tale.breaks(Rule::I4);
        } else {
            tale.keeps();
        }
    }
}

#[test]
fn what_bears_the_same_offset_later_is_another_message() {
    // I4
    let again = |is_done| {
        let (mut tale, token) = Tale::begun();
        tale.work("g_a", 0, token, 0..2);
        tale.deliver("g_a", 0, token, 2);
        if is_done {
            tale.done("g_a", 0, token, 2);
        }
        tale.commit(A, 0, 3);
        // The topic is made anew.
        tale.reset("g_a", 0, Some(3), 0);
        tale.commit(A, 0, 0);
        tale.work("g_a", 0, token, 0..3);
        tale
    };
    again(true).keeps();
    again(false).breaks(Rule::I4);
}

#[test]
fn a_reset_may_be_committed_with_nothing_done() {
    let (mut tale, token) = Tale::begun();
    tale.check("g_a", 0, token);
    tale.commit(A, 0, 8);
    tale.reset("g_a", 0, Some(0), 8);
    tale.keeps();

    let (mut tale, token) = Tale::begun();
    tale.check("g_a", 0, token);
    tale.commit(A, 0, 8);
    tale.reset("g_a", 0, Some(0), 7);
    tale.breaks(Rule::I4);
}

#[test]
fn what_is_in_hand_where_reading_began_anew_behind_a_trimmed_log_holds_up_no_commit() {
    // I4
    let trimmed = |is_told| {
        let (mut tale, token) = Tale::begun();
        tale.deliver("g_a", 0, token, 0);
        let gone = Fact::Trimmed {
            partition: at(0),
            before: 3,
        };
        tale.tell("log", gone);
        if is_told {
            tale.commit(A, 0, 3);
            tale.reset("g_a", 0, Some(1), 3);
        }
        tale.work("g_a", 0, token, 3..4);
        tale.commit(A, 0, 4);
        tale
    };
    trimmed(true).keeps();
    trimmed(false).breaks(Rule::I4);

    // Only what was told since the delivery before explains it.
    let (mut tale, token) = Tale::begun();
    tale.commit(A, 0, 3);
    tale.reset("g_a", 0, Some(0), 3);
    tale.deliver("g_a", 0, token, 3);
    tale.work("g_a", 0, token, 4..5);
    tale.commit(A, 0, 5);
    tale.breaks(Rule::I4);
}

#[test]
fn what_is_no_offset_is_not_written() {
    let (mut tale, token) = Tale::begun();
    tale.deliver("g_a", 0, token, 0);
    let garbage = tale.set(offset(0), "x");
    tale.txn(A, vec![garbage]);
    tale.breaks(Rule::I4);
}

#[test]
fn what_stands_there_of_a_former_topic_may_be_taken_away_by_the_owner() {
    // I4
    let path = "/brokers/topics/t";
    let remake = |tale: &mut Tale| {
        tale.txn(0, vec![deleted(path.to_owned())]);
        tale.txn(0, vec![made(path, r#"{"partitions":{"0":[0]}}"#, false)]);
    };
    let clear = |tale: &mut Tale| {
        let none = tale.set(offset(0), "-1");
        tale.txn(A, vec![none]);
    };
    let (mut tale, _) = Tale::begun();
    clear(&mut tale);
    tale.breaks(Rule::I4);

    let (mut tale, _) = Tale::begun();
    remake(&mut tale);
    clear(&mut tale);
    // Once for each time that it was made anew.
    remake(&mut tale);
    clear(&mut tale);
    tale.keeps();

    let (mut tale, _) = Tale::begun();
    remake(&mut tale);
    clear(&mut tale);
    let again = tale.set(offset(0), "7");
    tale.txn(0, vec![again]);
    clear(&mut tale);
    tale.breaks(Rule::I4);

    // Whoever registered after that cannot have known the former one.
    let mut tale = Tale::new();
    remake(&mut tale);
    tale.join("g_b", B);
    tale.txn(0, vec![made(&offset(0), "3", false)]);
    tale.claim("g_b", B, 0, Some(3));
    let none = tale.set(offset(0), "-1");
    tale.txn(B, vec![none]);
    tale.breaks(Rule::I4);

    // One that claimed before it heard of that may.
    let mut tale = Tale::new();
    tale.txn(0, vec![made(&offset(0), "3", false)]);
    remake(&mut tale);
    tale.claim("g_a", A, 0, Some(3));
    clear(&mut tale);
    tale.keeps();
}
