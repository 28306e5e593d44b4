//! Random scripts find a registry that differs from another, wherever it does: the in-memory registry against itself
//! with something planted. How it fares against real servers, `zookeeper.rs` says.
#![cfg(feature = "testing")]

#[path = "conformance/scripts/mod.rs"]
mod scripts;

use std::sync::Arc;
use std::time::Duration;

use evenkeel::error::Error;
use evenkeel::memory::MemoryRegistry;
use evenkeel::registry::Connection;
use evenkeel::registry::Dialect;
use evenkeel::registry::Fault;
use evenkeel::registry::Later;
use evenkeel::registry::MultiFault;
use evenkeel::registry::Op;
use evenkeel::registry::Registry;
use evenkeel::registry::Reply;
use evenkeel::registry::Stat;
use evenkeel::registry::Watch;

use scripts::Pair;
use scripts::draw::Habit;
use scripts::draw::draw;
use scripts::play::Stage;
use scripts::play::play;

/// What is wrong with a registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bend {
    SetWithoutCount,
    DeleteWithChildren,
    MultiInPieces,
    DeafToDeletes,
    WrongFault,
    NoCversion,
    NewToken,
    Backwards,
    LateRequests,
    EphemeralsStay,
    WrongStep,
}

struct Bent {
    plain: MemoryRegistry,
    bend: Bend,
}

impl Registry for Bent {
    fn open(&self, dialect: Dialect) -> Later<Result<Arc<dyn Connection>, Error>> {
        let (plain, bend) = (self.plain.clone(), self.bend);
        Box::pin(async move {
            let connection = plain.open(dialect).await?;
            let bent = BentConnection {
                plain,
                bend,
                connection,
            };
            Ok(Arc::new(bent) as Arc<dyn Connection>)
        })
    }

    fn describe(&self) -> String {
        format!("memory with {:?}", self.bend)
    }
}

#[derive(Clone)]
struct BentConnection {
    plain: MemoryRegistry,
    bend: Bend,
    connection: Arc<dyn Connection>,
}

impl BentConnection {
    fn stat_of(&self, mut stat: Stat) -> Stat {
        if self.bend == Bend::NoCversion {
            stat.cversion = 0;
        }
        if self.bend == Bend::NewToken {
            stat.czxid = stat.mzxid;
        }
        if self.bend == Bend::Backwards {
            (stat.czxid, stat.mzxid) = (-stat.czxid, -stat.mzxid);
        }
        stat
    }

    /// One by one, and stops where it fails.
    async fn in_pieces(self, ops: Vec<Op>) -> Result<Vec<Option<Stat>>, MultiFault> {
        let mut stats = Vec::new();
        for (at, op) in ops.into_iter().enumerate() {
            let done = self.connection.multi(vec![op]).await;
            let at = |fault: MultiFault| MultiFault {
                index: fault.index.map(|_| at),
                ..fault
            };
            stats.extend(done.map_err(at)?);
        }
        Ok(stats)
    }

    fn watch(&self, path: &str, watch: Watch) -> Watch {
        if self.bend != Bend::DeafToDeletes {
            return watch;
        }
        let (plain, path) = (self.plain.clone(), path.to_owned());
        Box::pin(async move {
            let fired = watch.await;
            if plain.read(&path).is_none() {
                std::future::pending::<()>().await;
            }
            fired
        })
    }
}

impl Connection for BentConnection {
    fn session_id(&self) -> i64 {
        self.connection.session_id()
    }

    fn session_timeout(&self) -> Duration {
        self.connection.session_timeout()
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        let (bent, reply) = (self.clone(), self.connection.data(path));
        Box::pin(async move {
            let (data, stat) = reply.await?;
            Ok((data, bent.stat_of(stat)))
        })
    }

    fn data_and_watch(&self, path: &str) -> Reply<(Vec<u8>, Stat, Watch)> {
        let (bent, reply) = (self.clone(), self.connection.data_and_watch(path));
        let path = path.to_owned();
        Box::pin(async move {
            let (data, stat, watch) = reply.await?;
            Ok((data, bent.stat_of(stat), bent.watch(&path, watch)))
        })
    }

    fn stat(&self, path: &str) -> Reply<Option<Stat>> {
        let (bent, reply) = (self.clone(), self.connection.stat(path));
        Box::pin(async move { Ok(reply.await?.map(|stat| bent.stat_of(stat))) })
    }

    fn stat_and_watch(&self, path: &str) -> Reply<(Option<Stat>, Watch)> {
        let (bent, reply) = (self.clone(), self.connection.stat_and_watch(path));
        Box::pin(async move {
            let (stat, watch) = reply.await?;
            Ok((stat.map(|stat| bent.stat_of(stat)), watch))
        })
    }

    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)> {
        let (bent, reply) = (self.clone(), self.connection.children(path));
        Box::pin(async move {
            let (names, stat) = reply.await?;
            Ok((names, bent.stat_of(stat)))
        })
    }

    fn children_and_watch(&self, path: &str) -> Reply<(Vec<String>, Stat, Watch)> {
        let (bent, reply) = (self.clone(), self.connection.children_and_watch(path));
        Box::pin(async move {
            let (names, stat, watch) = reply.await?;
            Ok((names, bent.stat_of(stat), watch))
        })
    }

    fn create(&self, path: &str, data: &[u8], ephemeral: bool) -> Reply<()> {
        let bend = self.bend;
        let ephemeral = ephemeral && bend != Bend::EphemeralsStay;
        let reply = self.connection.create(path, data, ephemeral);
        Box::pin(async move {
            if bend == Bend::LateRequests {
                tokio::task::yield_now().await;
            }
            match reply.await {
                Err(Fault::NoNode) if bend == Bend::WrongFault => Err(Fault::NodeExists),
                other => other,
            }
        })
    }

    fn set(&self, path: &str, data: &[u8], version: Option<i32>) -> Reply<Stat> {
        let (bent, reply) = (self.clone(), self.connection.set(path, data, version));
        Box::pin(async move {
            let mut stat = bent.stat_of(reply.await?);
            if bent.bend == Bend::SetWithoutCount {
                stat.version -= 1;
            }
            Ok(stat)
        })
    }

    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()> {
        let (bent, reply) = (self.clone(), self.connection.delete(path, version));
        let path = path.to_owned();
        Box::pin(async move {
            match reply.await {
                Err(Fault::NotEmpty) if bent.bend == Bend::DeleteWithChildren => {
                    bent.plain.delete(&path);
                    Ok(())
                }
                other => other,
            }
        })
    }

    fn multi(&self, ops: Vec<Op>) -> Later<Result<Vec<Option<Stat>>, MultiFault>> {
        if self.bend == Bend::MultiInPieces {
            return Box::pin(self.clone().in_pieces(ops));
        }
        let (bent, reply) = (self.clone(), self.connection.multi(ops));
        Box::pin(async move {
            match reply.await {
                Ok(stats) => {
                    let stats = stats.into_iter();
                    Ok(stats.map(|stat| stat.map(|s| bent.stat_of(s))).collect())
                }
                Err(fault) if bent.bend == Bend::WrongStep => Err(MultiFault {
                    index: fault.index.map(|_| 0),
                    ..fault
                }),
                other => other,
            }
        })
    }

    fn ended(&self) -> Later<()> {
        self.connection.ended()
    }

    fn close(&self) -> Later<()> {
        self.connection.close()
    }
}

fn stage(registry: &dyn Registry) -> Stage<'_> {
    Stage {
        registry,
        dialect: Dialect::V3_5,
    }
}

/// By one of the 200 scripts of a run, of which little is left.
async fn is_found(bend: Bend, habit: Habit) {
    let bent = Bent {
        plain: MemoryRegistry::new(),
        bend,
    };
    let plain = MemoryRegistry::new();
    let pair = Pair {
        one: stage(&plain),
        other: stage(&bent),
    };
    let all = (0..200).map(|seed| draw(seed, habit)).collect();
    let found = pair.first_difference(all).await;
    let found = found.unwrap_or_else(|| panic!("{bend:?} is not found"));
    println!("{found}");
    assert!(found.script.steps.len() <= 8, "{bend:?}: {found}");
}

macro_rules! planted {
    ($($name:ident: $bend:ident, $habit:ident;)*) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $name() {
                is_found(Bend::$bend, Habit::$habit).await;
            }
        )*
    };
}

planted! {
    a_set_that_does_not_count_is_found: SetWithoutCount, OneByOne;
    a_delete_that_ignores_children_is_found: DeleteWithChildren, OneByOne;
    a_transaction_in_pieces_is_found: MultiInPieces, OneByOne;
    a_watch_that_is_deaf_to_deletes_is_found: DeafToDeletes, OneByOne;
    a_wrong_fault_for_a_missing_parent_is_found: WrongFault, OneByOne;
    children_that_are_not_counted_are_found: NoCversion, OneByOne;
    a_token_that_a_write_changes_is_found: NewToken, OneByOne;
    transactions_numbered_backwards_are_found: Backwards, OneByOne;
    an_ephemeral_node_that_stays_is_found: EphemeralsStay, OneByOne;
    a_transaction_that_names_a_wrong_step_is_found: WrongStep, OneByOne;
    requests_out_of_order_are_found: LateRequests, Pipelined;
}

/// Nothing is found where there is nothing, also when answers take their time.
#[tokio::test(start_paused = true)]
async fn equal_registries_are_alike() {
    for habit in [Habit::OneByOne, Habit::Pipelined] {
        let low = Duration::from_millis(1);
        let slow = evenkeel::memory::Latency::between(low, low * 9, 7);
        let (one, other) = (
            MemoryRegistry::new(),
            MemoryRegistry::new().with_latency(slow),
        );
        let pair = Pair {
            one: stage(&one),
            other: stage(&other),
        };
        pair.are_alike(scripts::scripts(habit)).await;
    }
}

/// Scripts that only fail, or never do, would prove little.
#[tokio::test(start_paused = true)]
async fn scripts_meet_everything_that_can_be_answered() {
    let registry = MemoryRegistry::new();
    for habit in [Habit::OneByOne, Habit::Pipelined] {
        let mut told = String::new();
        for seed in 0..200 {
            let lines = play(stage(&registry), &draw(seed, habit)).await.told();
            told.push_str(&lines.join("\n"));
        }
        for word in [
            "-> done",
            "no node",
            "nobody there",
            "NoNode",
            "NodeExists",
            "BadVersion",
            "NotEmpty",
            "Refused",
            "SessionLost",
            "before it w",
            "after it w",
            " Changed",
            " SessionLost",
            " at step 0",
            " at step 4",
            "[]",
            "[done; done; (",
            " of s",
        ] {
            let count = told.matches(word).count();
            println!("{word:?}: {count}");
            assert!(count > 5, "{word:?} is there {count} times");
        }
    }
}
