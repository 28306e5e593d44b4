//! The in-memory registry keeps the same promises as real servers: one suite, with answers at once and answers that take
//! their time, in both dialects. Time is paused, so this takes none.
#![cfg(feature = "testing")]

mod conformance;

use std::time::Duration;

use evenkeel::registry::Dialect;

use conformance::Bench;

use evenkeel::memory::Latency;
use evenkeel::memory::MemoryRegistry;

fn ensembles() -> Vec<(Dialect, MemoryRegistry)> {
    let slow = || Latency::between(Duration::from_millis(1), Duration::from_millis(9), 7);
    vec![
        (Dialect::V3_5, MemoryRegistry::new()),
        (Dialect::V3_5, MemoryRegistry::new().with_latency(slow())),
        (Dialect::V3_4, MemoryRegistry::new().with_version(3, 4)),
        (
            Dialect::V3_4,
            MemoryRegistry::new()
                .with_version(3, 4)
                .with_latency(slow()),
        ),
    ]
}

macro_rules! with_memory {
    ($($name:ident)*) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $name() {
                for (dialect, registry) in ensembles() {
                    let bench = Bench::new(&registry, dialect, stringify!($name)).await;
                    conformance::$name(&bench).await;
                }
            }
        )*
    };
}

every_check!(with_memory);
