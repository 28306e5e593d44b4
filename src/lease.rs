//! How long a member may deliver and commit: the lease, its arithmetic and the guard that streams look at.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A moment on the lease clock, which goes on counting while the host is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// The moment so many nanoseconds after the clock's zero.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds after the clock's zero.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// A later moment.
    #[must_use]
    pub fn plus(self, time: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// The time from an earlier moment to this one; zero if it was not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// What the session timeout that the servers granted means for the lease (hazards 2.3).
///
/// With a timeout of 6 s: a lease lasts 3 s from the moment its proof was *sent*, a proof is asked for every 1.5 s,
/// a packet of some kind leaves every 750 ms, and a commit is sent only with 750 ms left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    session_timeout: Duration,
}

impl Terms {
    /// The terms that follow from a granted session timeout.
    pub fn new(session_timeout: Duration) -> Self {
        Self { session_timeout }
    }

    /// The granted session timeout.
    pub fn session_timeout(self) -> Duration {
        self.session_timeout
    }

    /// Until when a proof that was sent at this moment, and acknowledged by the quorum at any later one, lets us deliver.
    pub fn deadline(self, sent: Moment) -> Moment {
        sent.plus(self.session_timeout / 2)
    }

    /// How often to ask the quorum for a proof.
    pub fn probe_every(self) -> Duration {
        self.session_timeout / 4
    }

    /// How often a packet of any kind must leave, so that the follower in between reports us in time.
    pub fn packet_every(self) -> Duration {
        self.session_timeout / 8
    }

    /// How much of the lease must be left for a commit to be sent.
    pub fn commit_margin(self) -> Duration {
        self.session_timeout / 8
    }
}

/// The lease of one session, as everybody who hands out messages sees it: a deadline that only moves forward, and an end.
#[derive(Debug)]
pub struct LeaseGuard {
    terms: Terms,
    deadline: AtomicU64,
    ended: AtomicBool,
    blind: bool,
}

impl LeaseGuard {
    /// A lease that has not begun: nothing may be delivered until the first [`renew`](Self::renew).
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            deadline: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            blind: false,
        }
    }

    /// No lease at all (`lease=off`): valid until the session is known to be over, which is as blind as a JVM member.
    pub fn blind(terms: Terms) -> Self {
        Self {
            blind: true,
            ..Self::new(terms)
        }
    }

    /// The terms it follows.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// The quorum acknowledged something we sent at this moment. An older proof than the newest changes nothing.
    pub fn renew(&self, sent: Moment) {
        self.deadline
            .fetch_max(self.terms.deadline(sent).nanos(), Ordering::AcqRel);
    }

    /// The session is over, or the registration is gone: nothing renews this lease any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether it has ended for good.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// What is left of it at this moment: zero once it lapsed or ended.
    pub fn left(&self, now: Moment) -> Duration {
        if self.has_ended() {
            return Duration::ZERO;
        }
        if self.blind {
            return Duration::MAX;
        }
        Moment(self.deadline.load(Ordering::Acquire)).since(now)
    }

    /// Whether a message may be handed out at this moment.
    pub fn is_valid(&self, now: Moment) -> bool {
        !self.left(now).is_zero()
    }

    /// Whether a commit may be sent at this moment.
    pub fn allows_commit(&self, now: Moment) -> bool {
        self.left(now) >= self.terms.commit_margin()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(6);

    fn at(ms: u64) -> Moment {
        Moment::default().plus(Duration::from_millis(ms))
    }

    #[test]
    fn a_lease_runs_half_the_session_timeout_from_the_sending() {
        let lease = LeaseGuard::new(Terms::new(T));
        assert!(!lease.is_valid(at(0)));
        lease.renew(at(1000));
        assert!(lease.is_valid(at(3999)));
        assert!(!lease.is_valid(at(4000)));
    }

    #[test]
    fn an_older_proof_does_not_shorten_it() {
        let lease = LeaseGuard::new(Terms::new(T));
        lease.renew(at(2000));
        lease.renew(at(1000));
        assert_eq!(lease.left(at(2000)), T / 2);
    }

    #[test]
    fn an_ended_lease_stays_ended() {
        for lease in [
            LeaseGuard::new(Terms::new(T)),
            LeaseGuard::blind(Terms::new(T)),
        ] {
            lease.end();
            lease.renew(at(1000));
            assert!(!lease.is_valid(at(1001)));
        }
    }

    #[test]
    fn a_commit_needs_an_eighth_of_the_session_timeout() {
        let lease = LeaseGuard::new(Terms::new(T));
        lease.renew(at(0));
        assert!(lease.allows_commit(at(2250)));
        assert!(!lease.allows_commit(at(2251)));
    }

    /// The relay of touches, as the servers do it: a follower reports once per half tick which sessions it heard of,
    /// the leader then counts the timeout from that moment, rounded up to a tick.
    fn server_expiry(
        sent: u64,
        timeout: u64,
        tick: u64,
        relay_phase: u64,
        packet_every: u64,
    ) -> u64 {
        let report = sent - (sent + relay_phase) % (tick / 2);
        // The newest packet before that report may be as old as the packet interval.
        let touched = report.saturating_sub(packet_every);
        (touched + timeout).div_ceil(tick) * tick
    }

    #[test]
    fn half_the_timeout_is_inside_the_servers_own_and_the_whole_is_not() {
        let mut whole_would_do = true;
        for timeout in [2000u64, 4000, 6000, 10_000, 40_000] {
            let packet = timeout / 8;
            for tick in [100, 500, timeout / 2]
                .into_iter()
                .filter(|t| t * 2 <= timeout)
            {
                for step in 0..200 {
                    let sent = 100_000 + step * 37;
                    let expiry = server_expiry(sent, timeout, tick, step * 13 % (tick / 2), packet);
                    let deadline = Terms::new(Duration::from_millis(timeout)).deadline(at(sent));
                    assert!(
                        deadline <= at(expiry),
                        "T={timeout} tick={tick} sent={sent} expiry={expiry}"
                    );
                    whole_would_do &= sent + timeout <= expiry;
                }
            }
        }
        assert!(
            !whole_would_do,
            "the model must be able to fail a lease of the whole timeout"
        );
    }
}
