//! One clock for all processes of this host, and the way to it from the clock that servers write by.

use evenkeel::clock::BootClock;
use evenkeel::clock::LeaseClock;

/// Nanoseconds since the host was booted, the clock that leases go by. The same in every process, and in every namespace.
pub fn now() -> u64 {
    BootClock.now().nanos()
}

/// The wall clock as the clock of [`now`] sees it.
#[derive(Clone, Copy)]
pub struct WallClock {
    /// So many nanoseconds the wall clock is ahead.
    ahead: i128,
}

impl WallClock {
    /// Compares the two clocks.
    pub fn read() -> Self {
        // The best of a few: this thread may be held up between one clock and the other.
        let read = || {
            let before = now();
            let wall = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .expect("after 1970")
                .as_nanos();
            let after = now();
            let ahead = i128::try_from(wall).expect("a near time")
                - i128::from(before + (after - before) / 2);
            (after - before, ahead)
        };
        let (_, ahead) = (0..10).map(|_| read()).min().expect("ten readings");
        Self { ahead }
    }

    /// The moment, by the clock of [`now`], at which a server's millisecond begins.
    pub fn moment(self, wall_ms: i64) -> u64 {
        let nanos = i128::from(wall_ms) * 1_000_000 - self.ahead;
        u64::try_from(nanos).expect("a time since the boot")
    }

    /// How far the wall clock was set from one reading to the other, in nanoseconds.
    pub fn moved(self, later: Self) -> u128 {
        (self.ahead - later.ahead).unsigned_abs()
    }
}
