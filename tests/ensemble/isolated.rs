//! The follower beside which a member runs is cut off from the other servers, and not from the member.

use std::collections::BTreeMap;
use std::time::Duration;
use std::time::Instant;

use crate::record::Window;
use crate::record::windows;
use crate::stage::Manner;
use crate::stage::PARTITIONS;
use crate::stage::Stage;
use crate::stage::TICK;
use crate::stage::assert_contiguous;
use crate::stage::await_event;
use crate::stage::in_quiet;
use crate::stage::ms;
use crate::stage::session;
use crate::support;
use crate::support::Change;
use crate::support::Child;
use crate::support::Delivery;
use crate::support::Pinger;
use crate::support::Txn;
use crate::support::WallClock;
use crate::support::ensemble_versions;
use crate::support::everything;
use crate::support::now;
use crate::support::passed;
use crate::support::random;
use crate::support::until;
use crate::support::until_some;

/// Session timeouts.
const SHORT: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(6);

/// A ping that is answered so long after the end of the session is proof enough; it is not awaited longer than that.
const AFTERWARDS: u64 = 200_000_000;
const PATIENCE: Duration = Duration::from_secs(1);

/// A trap that did not snap is set again, so often at most.
const REPEATS: u32 = 3;

/// The ensembles to start, by their tick, and how often to cut with which session timeout.
fn plan() -> Vec<(Duration, Vec<(Duration, u32)>)> {
    if everything() {
        // The lease is proved for a tick of half the timeout at most: there it is tightest.
        vec![
            (TICK, vec![(SHORT, 10), (LONG, 10)]),
            (SHORT / 2, vec![(SHORT, 10)]),
            (LONG / 2, vec![(LONG, 10)]),
        ]
    } else {
        vec![(TICK, vec![(SHORT, 2), (LONG, 1)])]
    }
}

#[test]
fn a_member_beside_an_isolated_follower_stops_before_its_partitions_are_free() {
    // S2, S3, I1
    let _alone = in_quiet();
    for version in ensemble_versions() {
        let mut counted: BTreeMap<Duration, [u32; 2]> = BTreeMap::new();
        for (tick, timeouts) in plan() {
            let longest = timeouts.iter().map(|(timeout, _)| *timeout).max();
            // So long that pings are answered for some seconds after the session is over.
            let blind = longest.expect("a timeout") + tick * 3 / 2 + Duration::from_secs(3);
            let mut stage = Stage::start(version, tick, blind);
            for (timeout, cuts) in timeouts {
                let of_them = cut_again_and_again(&mut stage, timeout, cuts);
                let [count, all] = counted.entry(timeout).or_default();
                *count += of_them;
                *all += cuts;
            }
        }
        for (timeout, [count, all]) in counted {
            println!(
                "ZooKeeper {version}, T {} ms: {all} cuts, pings were answered past the end of the session in {count}",
                timeout.as_millis()
            );
        }
        passed("ensemble", &[("ensemble", version)]);
    }
}

/// Cuts so often; how many of these cuts were traps.
fn cut_again_and_again(stage: &mut Stage, timeout: Duration, cuts: u32) -> u32 {
    let leader = stage.ensemble.wait_until_whole();
    let follower = (leader + 1) % 3;
    let tree = stage.ensemble.tree_of(leader);
    let (mut done, mut counted, mut void) = (0, 0, 0);
    let mut least = Duration::MAX;
    // In 3.4 one write that hangs, as our own probe does, holds up all answers of that server, those to pings as well: there is no trap, and
    // what is seen there does not count as having got past one.
    let traps = !stage.ensemble.version().starts_with("3.4.");
    let manner = Manner {
        timeout,
        streams: PARTITIONS / 2,
        is_bound: true,
        commits: false,
    };
    let member = stage.join(follower, manner);
    let rival = stage.join(leader, manner);
    while done < cuts {
        stage.settle(&tree, &[&member, &rival]);
        let cut = cut(stage, [leader, follower], [&member, &rival], timeout);
        least = least.min(cut.margin);
        counted += u32::from(cut.is_trap);
        if cut.is_trap || !traps {
            done += 1;
        } else {
            void += 1;
            assert!(void <= REPEATS, "pings are never answered for long enough");
        }
        let now_led_by = stage.ensemble.wait_until_whole();
        assert_eq!(now_led_by, leader, "the leader never lost its quorum");
    }
    println!(
        "ZooKeeper {}, T {} ms, tick {} ms: {counted} cuts that count and {} that do not, least margin {} ms",
        stage.ensemble.version(),
        timeout.as_millis(),
        stage.ensemble.options().tick.as_millis(),
        done - counted + void,
        least.as_millis()
    );
    assert_contiguous(&member.deliveries());
    assert_contiguous(&rival.deliveries());
    drop((member, rival));
    let what = "the members' registrations go with their sessions";
    until(what, support::LONG, || tree.members("g").is_empty());
    counted
}

/// What a cut came to.
struct Cut {
    /// So long before the end of its ownerships the member was given its last message.
    margin: Duration,
    /// Pings were answered until after that end: whoever goes by them does not know of it.
    is_trap: bool,
}

fn cut(
    stage: &Stage,
    [leader, follower]: [usize; 2],
    [member, rival]: [&Child; 2],
    timeout: Duration,
) -> Cut {
    let (mut log, before) = stage.log_of(leader);
    let session = session(&windows(&before), member);
    let pinger = Pinger::start(stage.ensemble.server(follower), timeout);
    // At any moment between one proof of the lease and the next.
    std::thread::sleep(timeout.mul_f64(random_share() / 2.0));

    let clock = WallClock::read();
    stage.ensemble.cut(follower);
    let cut = now();
    let is_end = |txn: &Txn| txn.session == session && txn.changes == [Change::Closed];
    let later = log.await_txn("the end of the member's session", timeout * 3, is_end);
    let end = later.iter().find(|txn| is_end(txn)).expect("awaited");
    let gone = clock.moment(end.time_ms);
    let start = Instant::now();
    while pinger.last_answer() < gone + AFTERWARDS && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    let answered = pinger.last_answer();

    let all: Vec<Txn> = before.into_iter().chain(later.iter().cloned()).collect();
    let owned: Vec<Window> = windows(&all)
        .into_iter()
        .filter(|window| window.session == session && window.is_owner())
        .filter(|window| window.end == Some((end.zxid, end.time_ms)))
        .collect();
    assert!(!owned.is_empty(), "it owned something");
    let taken = first_taken(rival, &owned, end.zxid);
    stage.ensemble.heal(follower);
    // It tells of this after all that was delivered to it before.
    await_event(member, "SessionLost", cut);
    assert!(
        clock.moved(WallClock::read()) < 10_000_000,
        "somebody set the clock"
    );

    let proof = all
        .iter()
        .rfind(|txn| txn.session == session && !is_end(txn));
    let proof = clock.moment(proof.expect("it was registered").time_ms + 1);
    let is_of_it = |delivery: &&Delivery| owned.iter().any(|window| window.token == delivery.token);
    let deliveries = member.deliveries();
    let last = deliveries
        .iter()
        .rfind(is_of_it)
        .expect("it was given something")
        .at;
    println!(
        "T {} ms, tick {} ms: cut {} ms after the last proof; then node gone {} ms, last delivery {} ms, last answered ping {} ms; margin {} ms",
        timeout.as_millis(),
        stage.ensemble.options().tick.as_millis(),
        ms(proof, cut),
        ms(cut, gone),
        ms(cut, last),
        ms(cut, answered),
        ms(last, gone)
    );
    assert!(cut < last, "deliveries had ended before the cut");
    assert!(last < gone, "delivered when the partition was free");
    // The proof was sent before the leader wrote it down; a half of T follows, and a sixteenth is allowed for a machine that is busy. A read
    // that renews the lease adds an eighth.
    let lease = nanos(timeout / 2 + timeout / 16);
    assert!(last < proof + lease, "delivered when the lease was over");
    assert!(
        gone <= taken.at,
        "the rival was given messages before the partition was free"
    );
    Cut {
        margin: Duration::from_nanos(gone - last),
        is_trap: answered > gone,
    }
}

/// Waits until the rival is given a message of one of these partitions in an ownership that began after this transaction; gives the first.
fn first_taken(rival: &Child, owned: &[Window], after: i64) -> Delivery {
    let is_taken = |delivery: &Delivery| {
        let mut owned = owned.iter();
        delivery.token > after && owned.any(|window| window.partition() == delivery.partition)
    };
    let look = || rival.deliveries().into_iter().find(is_taken);
    until_some("the rival reads on", support::LONG, look)
}

fn random_share() -> f64 {
    let draw = u32::try_from(random(now()) >> 32).expect("32 bits");
    f64::from(draw) / f64::from(u32::MAX)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a short time")
}
