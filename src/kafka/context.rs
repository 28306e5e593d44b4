//! What librdkafka tells its owner beside messages: log lines, reasons of errors, and its end.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::error::printable;

pub(super) type Consumer = BaseConsumer<Watch>;

thread_local! {
    // The reason comes by a call of its own, on the polling thread, just before the error.
    static REASON: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// An event that happens once, for threads.
#[derive(Default)]
pub(super) struct Latch {
    is_open: Mutex<bool>,
    opened: Condvar,
    #[cfg(test)]
    pub opened_on: std::sync::OnceLock<Option<String>>,
}

impl Latch {
    pub fn open(&self) {
        #[cfg(test)]
        let _ = self
            .opened_on
            .set(std::thread::current().name().map(str::to_owned));
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }

    /// Whether it is open, after waiting for it at most so long.
    pub fn wait(&self, time: Duration) -> bool {
        let is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        let (is_open, _) = self
            .opened
            .wait_timeout_while(is_open, time, |is_open| !*is_open)
            .unwrap_or_else(PoisonError::into_inner);
        *is_open
    }
}

/// The context of one client. It is dropped when the client is gone for good, and opens its latch then.
#[derive(Default)]
pub(super) struct Watch {
    pub gone: Arc<Latch>,
    has_served: AtomicBool,
}

impl Watch {
    /// Whether a log line or the like was served since the last call: then a poll that gave nothing says nothing.
    pub fn take_served(&self) -> bool {
        self.has_served.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.gone.open();
    }
}

impl ClientContext for Watch {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.has_served.store(true, Ordering::Relaxed);
        // K7: a subscriber of the user's may panic.
        let _ = catch_unwind(AssertUnwindSafe(|| log(level, facility, line)));
    }

    fn stats_raw(&self, _: &[u8]) {
        self.has_served.store(true, Ordering::Relaxed);
    }

    fn error(&self, _: KafkaError, reason: &str) {
        REASON.with(|last| *last.borrow_mut() = Some(reason.to_owned()));
    }
}

impl ConsumerContext for Watch {}

fn log(level: RDKafkaLogLevel, facility: &str, line: &str) {
    let line = printable(line);
    match level {
        // Unreachable brokers are said once by a notice, not at every attempt.
        _ if matches!(facility, "FAIL" | "ERROR") => {
            tracing::debug!(target: "librdkafka", facility, "{line}");
        }
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error
        | RDKafkaLogLevel::Warning => tracing::warn!(target: "librdkafka", facility, "{line}"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            tracing::debug!(target: "librdkafka", facility, "{line}");
        }
        RDKafkaLogLevel::Debug => tracing::trace!(target: "librdkafka", facility, "{line}"),
    }
}

/// What a poll failed with, in words: the reason if librdkafka gave one on this thread, else the code's own.
pub(super) fn describe(error: &KafkaError) -> String {
    let reason = REASON.with(|last| last.borrow_mut().take());
    match (reason, error.rdkafka_error_code()) {
        (Some(reason), Some(code)) if !reason.is_empty() => {
            printable(&format!("{reason} ({code:?})"))
        }
        _ => printable(&error.to_string()),
    }
}

/// Its code, also for fatal ones.
pub(super) fn code(error: &KafkaError) -> Option<RDKafkaErrorCode> {
    error.rdkafka_error_code()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// A log that nobody should have installed.
    struct Bomb(Arc<AtomicUsize>);

    impl Subscriber for Bomb {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("as a test wishes");
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_log_subscriber_that_panics_does_not_unwind_into_librdkafka() {
        // K7
        let (watch, heard) = (Watch::default(), Arc::new(AtomicUsize::new(0)));
        tracing::subscriber::with_default(Bomb(heard.clone()), || {
            for level in [RDKafkaLogLevel::Error, RDKafkaLogLevel::Debug] {
                watch.log(level, "FETCH", "a line");
            }
        });
        assert_eq!(heard.load(Ordering::Relaxed), 2);
        assert!(watch.take_served(), "and the poll is known to have served");
    }
}
