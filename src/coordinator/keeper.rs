//! Keeps the lease of a session: asks the quorum in time, and says when it lapsed and when it came back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::coordinator::Outlets;
use crate::event::Event;
use crate::session::{Session, Trouble};
use crate::stream::{Common, StreamCore};

/// A lease that has lapsed for so many session timeouts, while the client says the session lives, is the client's failure:
/// the session is given up (S16).
const HOPELESS: u32 = 3;

pub(super) struct Keeper {
    pub session: Arc<Session>,
    pub common: Arc<Common>,
    pub streams: Vec<Arc<StreamCore>>,
    pub outlets: Outlets,
    /// Whether anything is held. A member that holds nothing asks for nothing (hazards 2.3).
    pub holds: watch::Receiver<bool>,
}

impl Keeper {
    /// Runs as long as the session; answers with what ended it.
    pub async fn keep(mut self) -> Trouble {
        let mut lapsed: Option<Instant> = None;
        let mut is_probe = true;
        loop {
            if self.holds.wait_for(|holds| *holds).await.is_err() {
                return std::future::pending().await;
            }
            let asked = Instant::now();
            let terms = self.session.terms();
            // Probes and plain packets alternate: a proof every T/4, something every T/8.
            if is_probe {
                match timeout(self.patience(terms.session_timeout()), self.session.probe()).await {
                    Ok(Ok(()) | Err(Trouble::Transient(_))) | Err(_) => {}
                    Ok(Err(trouble)) => return trouble,
                }
            } else {
                // Nobody waits for it; it only has to leave.
                let _ = timeout(self.patience(terms.packet_every()), self.session.touch()).await;
            }
            lapsed = self.judge(lapsed);
            if lapsed.is_some_and(|since| since.elapsed() > terms.session_timeout() * HOPELESS) {
                return Trouble::SessionLost;
            }
            is_probe = lapsed.is_some() || !is_probe;
            let pause = terms.packet_every().saturating_sub(asked.elapsed());
            sleep(self.patience(pause).max(Duration::from_millis(1))).await;
        }
    }

    /// No wait lasts longer than the lease, so that the lapse is told when it happens.
    fn patience(&self, wait: Duration) -> Duration {
        let left = self.session.lease.left(self.common.clock.now());
        if left.is_zero() { wait } else { wait.min(left) }
    }

    fn judge(&self, lapsed: Option<Instant>) -> Option<Instant> {
        let is_valid = self.session.lease.is_valid(self.common.clock.now());
        if is_valid {
            for stream in &self.streams {
                stream.lease_renewed();
            }
        }
        match (lapsed, is_valid) {
            (None, false) => {
                self.outlets.tell(Event::Lapsed);
                Some(Instant::now())
            }
            (Some(since), true) => {
                self.outlets.tell(Event::Resumed {
                    paused: since.elapsed(),
                });
                None
            }
            (lapsed, _) => lapsed,
        }
    }
}
