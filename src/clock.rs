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

    // This is the door to the wall clock.
    #[allow(clippy::disallowed_methods)]
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

    /// What tells the test below that it runs in a host of its own.
    #[cfg(target_os = "linux")]
    const ASLEEP: &str = "EVENKEEL_TEST_ASLEEP";

    /// In a namespace of its own a host can have slept for a day, so that the clocks of the kernel differ.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_boot_clock_counts_what_the_host_slept() {
        const DAY: std::time::Duration = std::time::Duration::from_secs(86_400);
        let now = BootClock.now();
        if let Ok(before) = std::env::var(ASLEEP) {
            let before = Moment::from_nanos(before.parse().unwrap());
            assert!(now.since(before) >= DAY, "{:?}", now.since(before));
            return;
        }
        let slept = || {
            let mut command = std::process::Command::new("unshare");
            command.args(["--map-root-user", "--time", "--boottime", "86400", "--fork"]);
            command
        };
        if !slept()
            .arg("true")
            .status()
            .is_ok_and(|status| status.success())
        {
            // An old kernel or an old unshare, or one that may not.
            let must = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!must, "no namespace for time here: unshare --time failed");
            println!("not shown: there is no namespace for time here");
            return;
        }
        let name = "clock::tests::the_boot_clock_counts_what_the_host_slept";
        let ran = slept()
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(ASLEEP, now.nanos().to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }
}
