//! What the one who runs the tests asked for, in the environment; and one test at a time.

use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

/// A number from the environment, if one was given.
///
/// # Panics
///
/// When it is none.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name} is no number: {text}"),
    }
}

/// The seed that was asked for; otherwise always the same one in the short form, and in a long one one that nobody has seen.
pub fn seed() -> u64 {
    let unseen = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since: Duration| since.as_secs())
    };
    number("EVENKEEL_CHAOS_SEED")
        .unwrap_or_else(|| number("EVENKEEL_MINUTES").map_or(1, |_| unseen()))
}

/// The processors belong to one test at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
