//! The clock that leases are measured by.

use crate::lease::Moment;

/// Tells the time for leases. It must never stop, also while the host is suspended, and never go back.
pub trait LeaseClock: Send + Sync {
    /// Now.
    fn now(&self) -> Moment;

    /// Milliseconds since the epoch by the wall clock, for texts only: no decision rests on it.
    fn wall_ms(&self) -> u64;
}

/// The time since the host was booted, suspension included.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

impl LeaseClock for BootClock {
    fn now(&self) -> Moment {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let id = rustix::time::ClockId::Boottime;
        // Elsewhere the monotonic clock is the nearest there is; on macOS it goes on in sleep.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let id = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(id);
        let nanos = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
        Moment::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }

    fn wall_ms(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
    }
}

/// Tokio's clock, which tests may pause and move (feature `testing`).
#[cfg(any(test, feature = "testing"))]
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    zero: tokio::time::Instant,
}

#[cfg(any(test, feature = "testing"))]
impl TokioClock {
    /// A clock whose zero is now. Within a runtime whose time is paused it stands still with it.
    pub fn new() -> Self {
        Self {
            zero: tokio::time::Instant::now(),
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(any(test, feature = "testing"))]
impl LeaseClock for TokioClock {
    fn now(&self) -> Moment {
        // Zero would read as "before everything"; an hour in is plenty.
        Moment::from_nanos(3_600_000_000_000).plus(self.zero.elapsed())
    }

    fn wall_ms(&self) -> u64 {
        1_450_000_000_000 + u64::try_from(self.zero.elapsed().as_millis()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_runs() {
        let first = BootClock.now();
        while BootClock.now() == first {
            std::hint::spin_loop();
        }
        assert!(BootClock.now() > first);
    }
}
