//! Waiting for other processes, with a deadline and a word about what was awaited.

use std::time::Duration;
use std::time::Instant;

/// Longer than anything here takes on a busy machine; what runs into it has failed.
pub const LONG: Duration = Duration::from_secs(90);

/// Looks every few milliseconds until there is an answer.
///
/// # Panics
///
/// Past the deadline, with what was awaited.
#[track_caller]
pub fn until_some<T>(what: &str, limit: Duration, look: impl FnMut() -> Option<T>) -> T {
    until_some_or(limit, look, || what.to_string())
}

/// The same with a word that is made only when it is needed, and then knows the state of things.
#[track_caller]
pub fn until_some_or<T>(
    limit: Duration,
    mut look: impl FnMut() -> Option<T>,
    what: impl FnOnce() -> String,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = look() {
            return answer;
        }
        if start.elapsed() > limit {
            panic!("waited {limit:?} in vain: {}", what());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Looks every few milliseconds until it is so. See [`until_some`].
#[track_caller]
pub fn until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    until_some(what, limit, || is_so().then_some(()));
}
