//! Real servers, real old members and what a test needs to talk to them: every one started by the test itself, on a free port of 127.0.0.1,
//! or as an ensemble in network namespaces of its own.
//!
//! Everything here blocks and may be called from anywhere. Every wait has a deadline and says what it was waiting for. What is started is
//! stopped when it is dropped, and also when the test process dies in whatever way (`process.rs`).
// Each test binary uses another part of this tree. Waiting for other processes needs real clocks.
#![allow(dead_code, unused_imports, clippy::disallowed_methods)]

mod broker;
mod cache;
mod child;
mod ensemble;
mod history;
#[cfg(feature = "testing")]
mod journal;
mod member;
mod netns;
mod ours;
mod pinger;
mod process;
mod produce;
mod proxy;
mod reading;
pub mod record;
#[cfg(feature = "testing")]
pub mod stage;
mod time;
mod tree;
mod txn;
mod txnlog;
#[cfg(feature = "testing")]
mod verify;
mod versions;
mod wait;
#[cfg(feature = "testing")]
mod worker;
mod zookeeper;

pub use broker::Broker;
pub use broker::BrokerOptions;
pub use cache::Jars;
pub use cache::run_class;
pub use child::Child;
pub use child::Delivery;
pub use child::OwnLog;
pub use child::Told;
pub use child::obey;
pub use ensemble::Ensemble;
pub use ensemble::EnsembleOptions;
pub use ensemble::Saved;
pub use history::Beginning;
pub use history::History;
pub use history::Passage;
#[cfg(feature = "testing")]
pub use journal::Journal;
#[cfg(feature = "testing")]
pub use journal::LAPSED;
pub use member::JvmMember;
pub use member::JvmMemberOptions;
pub use member::JvmMessage;
pub use member::Seen;
pub use ours::Finished;
pub use ours::Ours;
pub use ours::block_on;
pub use ours::config;
pub use ours::config_below;
pub use pinger::Pinger;
pub use process::Output;
pub use process::Process;
pub use process::free_port;
pub use process::random;
pub use process::scratch;
pub use produce::Flow;
pub use produce::Producer;
pub use produce::Sent;
pub use proxy::Answer;
pub use proxy::Corruption;
pub use proxy::Counts;
pub use proxy::Direction;
pub use proxy::Exchange;
pub use proxy::Fault;
pub use proxy::Fired;
pub use proxy::Frames;
pub use proxy::Matcher;
pub use proxy::Op;
pub use proxy::Piece;
pub use proxy::Proxy;
pub use proxy::Request;
pub use proxy::Step;
pub use proxy::Welcome;
pub use reading::Got;
pub use reading::Reading;
pub use reading::nothing_more;
pub use time::WallClock;
pub use time::now;
pub use tree::Tree;
pub use tree::run_async;
pub use txnlog::Change;
pub use txnlog::Txn;
pub use txnlog::TxnLog;
#[cfg(feature = "testing")]
pub use verify::CaseFile;
#[cfg(feature = "testing")]
pub use verify::events;
#[cfg(feature = "testing")]
pub use verify::history;
#[cfg(feature = "testing")]
pub use verify::verify;
pub use versions::broker_versions;
pub use versions::ensemble_versions;
pub use versions::everything;
pub use versions::jvm_versions;
pub use versions::passed;
pub use versions::zookeeper_versions;
pub use wait::LONG;
pub use wait::until;
pub use wait::until_some;
pub use wait::until_some_or;
#[cfg(feature = "testing")]
pub use worker::Figures;
#[cfg(feature = "testing")]
pub use worker::Work;
#[cfg(feature = "testing")]
pub use worker::Worker;
pub use zookeeper::ZooKeeper;
pub use zookeeper::ZooKeeperOptions;
