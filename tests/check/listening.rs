//! I11: the listener's calls.

use evenkeel::testing::check::{Fact, Phase, Rule};

use crate::tale::{A, Tale, at, owner};

#[test]
fn a_call_within_a_call_is_found() {
    // I11
    let (mut tale, _) = Tale::begun();
    tale.call("g_a", "after_claim", Phase::Enter, 0);
    tale.called("g_a", "after_claim", 1);
    tale.breaks(Rule::I11);

    let (mut tale, _) = Tale::begun();
    tale.call("g_a", "after_claim", Phase::Enter, 0);
    tale.call("g_a", "after_claim", Phase::Panic, 0);
    tale.called("g_a", "after_claim", 1);
    assert_eq!(tale.keeps().counts.calls, 2);
}

#[test]
fn a_call_that_ends_without_a_beginning_is_found() {
    let (mut tale, _) = Tale::begun();
    tale.call("g_a", "after_claim", Phase::Leave, 0);
    tale.breaks(Rule::I11);
}

#[test]
fn for_one_partition_the_calls_alternate() {
    let told = |calls: &[&str]| {
        let mut tale = Tale::new();
        for call in calls {
            tale.called("g_a", call, 0);
        }
        tale
    };
    told(&["after_claim", "before_release", "after_claim", "on_lost"]).keeps();
    told(&["after_claim", "before_release", "on_lost", "after_claim"]).keeps();
    told(&["after_claim", "after_claim"]).breaks(Rule::I11);
    told(&["before_release"]).breaks(Rule::I11);
    told(&["after_claim", "on_lost", "on_lost"]).breaks(Rule::I11);
}

#[test]
fn nothing_is_delivered_after_the_listener_was_asked() {
    let (mut tale, token) = Tale::begun();
    tale.called("g_a", "after_claim", 0);
    tale.called("g_a", "before_release", 0);
    tale.deliver("g_a", 0, token, 0);
    tale.release(A, 0);
    tale.breaks(Rule::I11);

    let (mut tale, token) = Tale::begun();
    // Delivery may have begun before the listener is told of the claim.
    tale.deliver("g_a", 0, token, 0);
    tale.called("g_a", "after_claim", 0);
    tale.called("g_a", "before_release", 0);
    tale.release(A, 0);
    let token = tale.claim("g_a", A, 0, Some(0));
    tale.deliver("g_a", 0, token, 0);
    tale.keeps();
}

#[test]
fn a_partition_is_released_only_after_the_listener_was_asked() {
    let (mut tale, _) = Tale::begun();
    tale.called("g_a", "after_claim", 0);
    tale.release(A, 0);
    tale.called("g_a", "before_release", 0);
    tale.breaks(Rule::I11);

    let (mut tale, _) = Tale::begun();
    tale.called("g_a", "after_claim", 0);
    tale.called("g_a", "before_release", 0);
    tale.release(A, 0);
    tale.keeps();

    let (mut tale, _) = Tale::begun();
    tale.called("g_a", "after_claim", 0);
    tale.release(A, 0);
    let fact = Fact::Released {
        partition: at(0),
        undone: 0,
        is_forced: true,
    };
    tale.tell("g_a", fact);
    tale.keeps();

    // Somebody wrote into the owner node: that is a loss, and what is left of it is put away.
    let (mut tale, _) = Tale::begun();
    tale.called("g_a", "after_claim", 0);
    let text = tale.set(owner(0), "somebody-0");
    tale.txn(0, vec![text]);
    tale.called("g_a", "on_lost", 0);
    tale.release(A, 0);
    tale.keeps();

    // Its session ended: there was nothing to be asked.
    let (mut tale, _) = Tale::begun();
    tale.called("g_a", "after_claim", 0);
    tale.close(A);
    tale.called("g_a", "on_lost", 0);
    tale.keeps();
}

/// `g_a` is told of a claim by a call that takes its time; asked to release it is meanwhile, or after it was lost and claimed anew.
fn slow_listener(is_lost: bool, is_told: bool) -> Tale {
    let (mut tale, mut token) = Tale::begun();
    tale.call("g_a", "after_claim", Phase::Enter, 0);
    if is_told {
        tale.tell("g_a", Fact::Queued);
    }
    if is_lost {
        tale.close(A);
        tale.join("g_a", A + 0x100);
        token = tale.claim("g_a", A + 0x100, 0, Some(0));
    }
    tale.call("g_a", "after_claim", Phase::Leave, 0);
    tale.called("g_a", "before_release", 0);
    tale.deliver("g_a", 0, token, 0);
    tale
}

#[test]
fn a_call_that_waited_for_its_turn_is_about_what_was_owned_when_it_was_made() {
    // I11
    assert_eq!(slow_listener(true, true).keeps().counts.queued, 1);
    slow_listener(true, false).breaks(Rule::I11);
    // It was made in time, and what it is about is still owned.
    slow_listener(false, true).breaks(Rule::I11);

    // Calls that waited are judged as well: this one was not made before the release.
    let (mut tale, _) = Tale::begun();
    tale.call("g_a", "after_claim", Phase::Enter, 0);
    tale.release(A, 0);
    tale.tell("g_a", Fact::Queued);
    tale.call("g_a", "after_claim", Phase::Leave, 0);
    tale.called("g_a", "before_release", 0);
    tale.breaks(Rule::I11);
}

#[test]
fn a_delivery_before_the_claim_is_found() {
    let (mut tale, token) = Tale::begun();
    tale.txn(A, Vec::new());
    let token = token + 2;
    tale.deliver("g_a", 1, token, 0);
    tale.claim("g_a", A, 1, None);
    tale.commit(A, 1, 0);
    let verdict = tale.judge();
    // It was before the commit of the start as well.
    assert_eq!(verdict.rules(), [Rule::I6, Rule::I11], "{verdict}");
}

#[test]
fn a_release_whose_answer_the_end_overtook_may_have_asked_nobody() {
    // I11
    let ended = |is_over| {
        let (mut tale, _) = Tale::begun();
        tale.called("g_a", "after_claim", 0);
        tale.release(A, 0);
        if is_over {
            tale.close(A);
        }
        tale
    };
    ended(true).keeps();
    ended(false).breaks(Rule::I11);

    // One that said how it gave the partition up is held to that.
    let mut tale = ended(false);
    let told = Fact::Released {
        partition: at(0),
        undone: 0,
        is_forced: false,
    };
    tale.tell("g_a", told);
    tale.close(A);
    tale.breaks(Rule::I11);
}
