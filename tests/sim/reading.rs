//! Brokers as one member sees them: everything it asks them is noted, and what they answer.

use std::sync::{Arc, OnceLock};

use evenkeel::registry::Later;
use evenkeel::stream::{Edge, Notice, Opened, Reader, ReaderSource, Start};
use evenkeel::testing::MemoryLog;
use evenkeel::wire::Broker;
use evenkeel::{Error, TopicPartition};

use crate::sometimes::Sometimes;
use crate::trace::Trace;

/// Notes whatever its member asks.
#[derive(Clone)]
pub struct TracedLog {
    pub log: MemoryLog,
    pub trace: Trace,
    pub sometimes: Sometimes,
    /// Set as soon as the member has one.
    pub name: Arc<OnceLock<String>>,
}

impl TracedLog {
    fn name(&self) -> String {
        self.name.get().cloned().unwrap_or_default()
    }
}

impl ReaderSource for TracedLog {
    fn needs_brokers(&self) -> bool {
        self.log.needs_brokers()
    }

    fn open(&self, brokers: &[Broker], partitions: usize) -> Result<Arc<dyn Reader>, Error> {
        let inner = self.log.open(brokers, partitions)?;
        let log = self.clone();
        Ok(Arc::new(TracedReader { inner, log }))
    }
}

struct TracedReader {
    inner: Arc<dyn Reader>,
    log: TracedLog,
}

impl Reader for TracedReader {
    fn read(&self, starts: Vec<Start>) -> Later<Opened> {
        let (log, name) = (self.log.clone(), self.log.name());
        for start in &starts {
            log.trace
                .note(&(&name, "read", &start.partition, start.offset));
            log.sometimes.begins(&name, &start.partition);
        }
        let answer = self.inner.read(starts);
        Box::pin(async move {
            let opened = answer.await;
            for (partition, queue) in &opened {
                let queue = queue.as_ref().map(|_| "begun");
                log.trace.note(&(&name, partition, queue));
                log.sometimes.has_begun(&name, partition);
            }
            opened
        })
    }

    fn stop(&self, partitions: &[TopicPartition]) {
        self.log.trace.note(&(self.log.name(), "stop", partitions));
        self.inner.stop(partitions);
    }

    fn edge(&self, partition: &TopicPartition, edge: Edge) -> Later<Result<i64, Error>> {
        let (log, name, partition) = (self.log.clone(), self.log.name(), partition.clone());
        log.trace.note(&(&name, "edge", &partition, edge));
        let answer = self.inner.edge(&partition, edge);
        Box::pin(async move {
            let answer = answer.await;
            log.trace.note(&(&name, &partition, &answer));
            answer
        })
    }

    fn notice(&self) -> Later<Notice> {
        let (log, answer) = (self.log.clone(), self.inner.notice());
        Box::pin(async move {
            let notice = answer.await;
            log.trace.note(&(log.name(), &notice));
            notice
        })
    }

    fn close(&self) -> Later<()> {
        self.log.trace.note(&(self.log.name(), "close"));
        self.inner.close()
    }
}
