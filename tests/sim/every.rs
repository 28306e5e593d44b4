//! A small group, and every single thing that may happen to it: each fault on each of its requests, each disturbance at each moment
//! of a hand-over. Where the seeds draw, this counts through.

use crate::plan::{Deed, Manner, Mishap, Plan, Step, Way, Work};
use crate::{attempt, hush, report};

/// What everybody asks for.
const SESSION_MS: u64 = 4000;

fn step(after_ms: u64, deed: Deed) -> Step {
    Step { after_ms, deed }
}

/// Two members, two partitions: one comes, one more, messages come all the time, the first leaves, a third comes.
fn story(is_old: bool) -> Plan {
    let manner = Manner {
        streams: 1,
        commit_every_ms: 200,
        listener_ms: None,
        panics: false,
        work: Work::Lend { ms: 20 },
    };
    let mut steps = vec![step(0, Deed::Join)];
    let send = || step(150, Deed::Send { each: 1 });
    steps.extend([send(), send()]);
    steps.extend([step(0, Deed::Join), send(), send(), send()]);
    let leave = Deed::Leave {
        place: 0,
        within_ms: 5000,
    };
    steps.extend([step(300, leave), send(), send()]);
    steps.extend([step(0, Deed::Join), send(), send(), send()]);
    Plan {
        seed: 0,
        servers: 1,
        is_old,
        tick_ms: 500,
        session_ms: SESSION_MS,
        lag_ms: 250 + SESSION_MS / 8,
        sync_limit_ms: SESSION_MS,
        latency_ms: [3, 3],
        relay_ms: [10, 10],
        one_in: 0,
        mishaps: Vec::new(),
        partitions: 2,
        manners: vec![manner],
        steps,
        cut_for_good: None,
        cut_loses: Way::default(),
        brokers_ms: 0,
    }
}

fn assert_good(plan: &Plan) {
    if let Err(failed) = attempt(plan) {
        panic!("{}", report(plan, &failed.words));
    }
}

/// Each fault on each request of the story.
fn every_mishap(is_old: bool) {
    hush();
    let plan = story(is_old);
    let requests = match attempt(&plan) {
        Ok(outcome) => outcome.requests,
        Err(failed) => panic!("{}", report(&plan, &failed.words)),
    };
    let mishaps = [
        Mishap::LoseBefore,
        Mishap::LoseAfter,
        Mishap::BreakBefore,
        Mishap::BreakAfter,
        Mishap::Delay {
            ms: SESSION_MS * 3 / 2,
        },
        Mishap::DelayAnswer {
            ms: SESSION_MS * 3 / 2,
        },
    ];
    println!("{requests} requests, {} faults each", mishaps.len());
    for request in 1..=requests {
        for mishap in mishaps {
            let mut plan = plan.clone();
            plan.mishaps = vec![(request, mishap)];
            assert_good(&plan);
        }
    }
}

#[test]
fn every_single_fault_of_a_request_is_got_over() {
    // A1, O3, N2, S17
    every_mishap(false);
}

#[test]
fn every_single_fault_of_a_request_is_got_over_on_old_servers() {
    // A1, O3, N2, S17
    every_mishap(true);
}

#[test]
fn every_disturbance_at_every_moment_is_got_over() {
    // S1, S2, S5, S8, S11, A5, J1
    hush();
    let times = [4, 8, 14, 24, 48].map(|sixteenths| SESSION_MS * sixteenths / 16);
    let mut runs = 0;
    for place in 0..2 {
        let lasting = times.into_iter().flat_map(|ms| {
            [
                Deed::Stop { place, ms },
                Deed::Cut { place, ms },
                Deed::CutOneWay {
                    place,
                    ms,
                    loses: Way::Answers,
                },
                Deed::CutOneWay {
                    place,
                    ms,
                    loses: Way::Requests,
                },
                Deed::Isolate { server: 1, ms },
                Deed::Halt { ms },
            ]
        });
        let sudden = [
            Deed::Kill {
                place,
                returns: false,
            },
            Deed::Kill {
                place,
                returns: true,
            },
            Deed::Expire { place },
            Deed::Sever { place },
            Deed::Drop { place },
            Deed::DeleteId { place },
            Deed::DeleteOwner { partition: 0 },
            Deed::Rewind {
                partition: 0,
                by: 2,
            },
        ];
        let deeds: Vec<Deed> = lasting.chain(sudden).collect();
        for deed in &deeds {
            // Around the second's coming and the first's leaving.
            for at in [4, 7, 8, 10, 11] {
                for delay in [0, 20, 90] {
                    let mut plan = story(false);
                    if matches!(deed, Deed::Isolate { .. }) {
                        plan.servers = 3;
                    }
                    plan.steps.insert(at, step(delay, deed.clone()));
                    assert_good(&plan);
                    runs += 1;
                }
            }
        }
    }
    println!("{runs} runs");
}
