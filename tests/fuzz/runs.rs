//! What a run left: logs that are torn, foreign or forged are refused or judged, never the end of the judge.

use std::time::Duration;

use evenkeel::GroupName;
use evenkeel::testing::check::Case;
use evenkeel::testing::check::Event;
use evenkeel::testing::check::Limits;
use evenkeel::testing::check::Txn;
use evenkeel::testing::check::read_events;

use crate::decoders::assert_fit_for_a_log;
use crate::txn;

fn judge(history: &[Txn], events: &[Event]) {
    let timeout = Duration::from_secs(6);
    let limits = [
        Limits::exact(timeout),
        Limits::timed(timeout, Duration::from_secs(2)),
    ];
    for limits in limits {
        let names: Vec<&str> = events.iter().map(|event| &*event.member).collect();
        let case = Case::new(GroupName::new("g").unwrap())
            .with_ours(names)
            .with_history(history.to_vec())
            .with_events(events.to_vec())
            .with_limits(limits);
        let verdict = case.judge();
        assert!(!verdict.to_string().is_empty() && !verdict.to_json().is_empty());
    }
}

/// A member's short life as a server wrote it down: `g_a` owns `t` 0 and commits once.
fn life() -> Vec<Txn> {
    let log = include_bytes!("../corpus/txn_log/entries-of-3.9");
    let mut txns = Vec::new();
    txn::entries(log, &mut txns).expect("a real log");
    assert!(txns.len() > 10);
    txns.into_iter().map(txn::judged).collect()
}

/// Lines of events, on their own and beside a life that they may be about.
pub fn event_log(bytes: &[u8]) {
    match read_events(bytes) {
        Err(error) => assert_fit_for_a_log(&error),
        Ok(events) => {
            let text: String = events.iter().map(Event::to_line).collect();
            assert_eq!(read_events(text.as_bytes()).unwrap(), events);
            judge(&[], &events);
            judge(&life(), &events);
        }
    }
}

/// Entries of a server's log, without the file's head; and the same bytes as the body of an entry whose sum is right, since chance
/// hardly finds one.
pub fn txn_log(bytes: &[u8]) {
    let sum = i64::from(txn::adler(bytes)).to_be_bytes();
    let length = i32::try_from(bytes.len()).unwrap().to_be_bytes();
    let summed = [&sum, &length[..], bytes, &[txn::MARK]].concat();
    let bodies = mended(bytes);
    for log in [bytes, &summed, &bodies] {
        let mut txns = Vec::new();
        if let Ok(taken) = txn::entries(log, &mut txns) {
            assert!(taken <= log.len());
        }
        assert!(txn::wanted(log) < 1 << 33);
        let history: Vec<Txn> = txns.into_iter().map(txn::judged).collect();
        judge(&history, &[]);
    }
}

/// The same log with the sums of its entries made right, as far as their lengths lead.
fn mended(bytes: &[u8]) -> Vec<u8> {
    let mut log = bytes.to_vec();
    let mut at = 0;
    while let Some(head) = log.get(at + 8..at + txn::BEFORE) {
        let length = i32::from_be_bytes(head.try_into().unwrap());
        let Ok(length @ 1..) = usize::try_from(length) else {
            break;
        };
        let start = at + txn::BEFORE;
        let Some(body) = log.get(start..start + length) else {
            break;
        };
        let sum = i64::from(txn::adler(body)).to_be_bytes();
        log[at..at + 8].copy_from_slice(&sum);
        let end = start + length;
        match log.get_mut(end) {
            Some(mark) => *mark = txn::MARK,
            None => break,
        }
        at = end + 1;
    }
    log
}
