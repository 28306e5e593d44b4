//! A child of a fork leaves its parent's member alone. A process of its own, since it is forked.
#![cfg(all(unix, feature = "testing"))]

#[allow(dead_code)]
#[path = "group/book.rs"]
mod book;
#[allow(dead_code)]
#[path = "group/kit.rs"]
mod kit;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use evenkeel::clock::BootClock;
use evenkeel::{ConsumerConnector, ErrorKind};
use futures_util::FutureExt;

use kit::{Kit, at, topic};

#[allow(unsafe_code)]
mod system {
    unsafe extern "C" {
        fn fork() -> i32;
        fn _exit(status: i32) -> !;
        fn waitpid(child: i32, status: *mut i32, options: i32) -> i32;
    }

    /// Runs this in a child of a fork; answers what the child exited with, if it was not killed.
    pub fn in_a_child(work: impl FnOnce() -> u8) -> Option<u8> {
        // The child has this thread only. It ends without a word to what the others had begun.
        let child = match unsafe { fork() } {
            0 => unsafe { _exit(work().into()) },
            child => child,
        };
        assert!(child > 0, "there is no child");
        let mut status = 0;
        assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
        (status & 0x7f == 0).then(|| u8::try_from(status >> 8 & 0xff).unwrap())
    }
}

/// What a child may do with a handle that is its parent's. The number of the first thing that was not as it should be.
fn meddle(connector: ConsumerConnector) -> u8 {
    let is_closed = |error: Option<evenkeel::Error>| {
        error.is_some_and(|error| {
            error.kind() == ErrorKind::Closed && error.to_string().contains("fork")
        })
    };
    // Each is refused at once: there is nobody in this process who could answer.
    let commit = connector.commit().now_or_never();
    if !is_closed(commit.and_then(Result::err)) {
        return 1;
    }
    let pass = connector.pass(&at("t", 0), 0).now_or_never();
    if !is_closed(pass.and_then(Result::err)) {
        return 2;
    }
    let streams = connector.streams([(topic("t"), 1)]).now_or_never();
    if !is_closed(streams.and_then(Result::err)) {
        return 3;
    }
    // It is dropped with this.
    let shutdown = connector.shutdown(Duration::from_secs(5)).now_or_never();
    if !is_closed(shutdown.and_then(Result::err)) {
        return 4;
    }
    0
}

#[test]
fn a_child_of_a_fork_is_refused_everything_and_its_drop_does_nothing() {
    // R8
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let mut kit = Kit::new();
    kit.create("t", 2);
    let mut config = kit.config();
    config.session_timeout = Duration::from_secs(1);
    let builder = kit.builder("h1", config).with_clock(Arc::new(BootClock));
    let (connector, mut streams) = runtime.block_on(async {
        let connector = builder.connect().await.unwrap();
        let streams = connector.streams([(topic("t"), 1)]).await.unwrap();
        connector.settled().await.unwrap();
        (connector, streams)
    });
    let session = connector.health().session;
    let mut handle = Some(connector);
    for is_dropped_alone in [true, false] {
        let exited = system::in_a_child(|| {
            // Taken out of the child's memory, which is a copy.
            let work = || {
                let connector = handle.take().expect("the parent has it");
                if is_dropped_alone {
                    drop(connector);
                    return 0;
                }
                meddle(connector)
            };
            catch_unwind(AssertUnwindSafe(work)).unwrap_or(u8::MAX)
        });
        assert_eq!(exited, Some(0), "dropped alone: {is_dropped_alone}");
    }
    let connector = handle.expect("the children took copies");
    // The parent's member has noticed nothing, also when its session would have timed out.
    std::thread::sleep(Duration::from_millis(1500));
    let health = connector.health();
    assert_eq!(health.session, session);
    assert!(health.is_ready(), "{health:?}");
    kit.send("t", 2);
    let stream = &mut streams.get_mut(&topic("t")).unwrap()[0];
    runtime.block_on(async {
        for _ in 0..2 {
            stream.recv_owned().await.unwrap().ack();
        }
        connector.commit().await.unwrap();
        assert_eq!(kit.offset("t", 1).as_deref(), Some("1"));
        let farewell = connector.shutdown(Duration::from_secs(5)).await.unwrap();
        assert!(farewell.forced.is_empty());
    });
    assert!(kit.members().is_empty());
}
