//! Setting a member up: the name, and what a configuration cannot say.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{broadcast, mpsc, watch};

use crate::assign::{Assignor, named};
use crate::clock::{BootClock, LeaseClock};
use crate::config::Config;
use crate::coordinator::{Outlets, Snapshot};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::group::ConsumerId;
#[cfg(any(test, feature = "testing"))]
use crate::group::Topic;
use crate::id::{Fixed, HashedHost, IdContext, IdStrategy, name};
use crate::listener::{Outside, RebalanceListener};
use crate::registry::{Dialect, Registry};
#[cfg(any(test, feature = "testing"))]
use crate::stream::Streams;
use crate::stream::{Common, ReaderSource};
use crate::wire::paths;
use crate::zk::{ZkRegistry, ZkSettings};

use crate::connector::host::Host;
use crate::connector::outside::Aside;

use crate::connector::{ConsumerConnector, Waiting};

/// So many events wait for a watcher that is slow; then the oldest are dropped.
const EVENTS: usize = 8192;

/// Sets a member up with more than a [`Config`] can say.
pub struct Builder {
    config: Config,
    strategy: Option<Arc<dyn IdStrategy>>,
    instance: u32,
    assignor: Option<Arc<dyn Assignor>>,
    listener: Option<Arc<dyn RebalanceListener>>,
    registry: Option<Arc<dyn Registry>>,
    source: Option<Arc<dyn ReaderSource>>,
    outside: Option<Arc<dyn Outside>>,
    clock: Option<Arc<dyn LeaseClock>>,
    context: Option<IdContext>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Builder({:?})", self.config)
    }
}

impl Builder {
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            strategy: None,
            instance: 0,
            assignor: None,
            listener: None,
            registry: None,
            source: None,
            outside: None,
            clock: None,
            context: None,
        }
    }

    /// How the member's name is made; [`HashedHost`] otherwise. `consumer.id` in the configuration wins over both.
    #[must_use]
    pub fn with_id_strategy(mut self, strategy: Arc<dyn IdStrategy>) -> Self {
        self.strategy = Some(strategy);
        self
    }

    /// Which of several processes of this group on this host it is, from 0, for the strategies that ask. Ignored together with
    /// [`with_id_context`](Self::with_id_context): that context has its own, see [`IdContext::with_instance`].
    #[must_use]
    pub fn with_instance(mut self, instance: u32) -> Self {
        self.instance = instance;
        self
    }

    /// Who should own what. **All members of the group must compute the same**, and nothing in ZooKeeper checks that.
    /// It runs outside the member's task, with the session timeout as its deadline.
    #[must_use]
    pub fn with_assignor(mut self, assignor: Arc<dyn Assignor>) -> Self {
        self.assignor = Some(assignor);
        self
    }

    /// Is told when partitions come and go.
    #[must_use]
    pub fn with_listener(mut self, listener: Arc<dyn RebalanceListener>) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Another registry than the ZooKeeper servers of the configuration, as the test kit's.
    #[must_use]
    pub fn with_registry(mut self, registry: Arc<dyn Registry>) -> Self {
        self.registry = Some(registry);
        self
    }

    /// Another source of messages than the Kafka brokers, as the test kit's.
    #[must_use]
    pub fn with_reader_source(mut self, source: Arc<dyn ReaderSource>) -> Self {
        self.source = Some(source);
        self
    }

    /// Another clock for the lease, as the test kit's.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn LeaseClock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Another place for the user's code to run, as the test kit's.
    #[must_use]
    pub fn with_outside(mut self, outside: Arc<dyn Outside>) -> Self {
        self.outside = Some(outside);
        self
    }

    /// What the id is made from, instead of this host's name, the time and chance: for pretended hosts and for tests.
    #[must_use]
    pub fn with_id_context(mut self, context: IdContext) -> Self {
        self.context = Some(context);
        self
    }

    /// Checks the settings and connects to ZooKeeper. Nothing is written yet.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) for a setting that cannot work, naming its key. [`Connection`](ErrorKind::Connection)
    /// within `zookeeper.connection.timeout.ms` if no server can be reached or serves us, saying which of the things it is.
    pub async fn connect(self) -> Result<ConsumerConnector> {
        self.config.check()?;
        let host = Host::shared()?;
        let registry = self.registry();
        let dialect = Dialect::from(self.config.zookeeper_dialect);
        let ids = paths::ids(&self.config.group);
        // Members live on a thread of their own; a first session there shows that there is somebody to speak to, and who
        // is registered already.
        let asked = registry.clone();
        let tried = host.run(async move {
            let connection = asked.open(dialect).await?;
            let registered = connection
                .children(&ids)
                .await
                .map_or_else(|_| Vec::new(), |(names, _)| names);
            connection.close().await;
            Ok::<_, Error>(registered)
        });
        let gone = |_| Error::new(ErrorKind::Internal, "the members' thread is gone");
        let registered = tried.await.map_err(gone)??;
        let mut connector = self.with_registry(registry).prepare(registered)?;
        let waiting = connector
            .waiting
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        waiting.as_mut().expect("it was just made").host = Some(host);
        Ok(connector)
    }

    fn registry(&self) -> Arc<dyn Registry> {
        let servers =
            || -> Arc<dyn Registry> { Arc::new(ZkRegistry::new(ZkSettings::of(&self.config))) };
        self.registry.clone().unwrap_or_else(servers)
    }

    /// The member's name, and what it was made from if the host's own could not be used.
    fn name(&self, registered: Vec<String>) -> Result<(ConsumerId, Option<String>)> {
        let (context, instead) = match &self.context {
            Some(context) => (context.clone(), None),
            None => {
                let (context, from) = IdContext::of_this_process(&self.config.group);
                let instead = from.is_fallback().then(|| context.host.clone());
                (context.with_instance(self.instance), instead)
            }
        };
        let context = context.with_registered(registered.into_iter().map(ConsumerId::new));
        match (&self.config.consumer_id, &self.strategy) {
            (Some(fixed), _) => Ok((name(&context, &Fixed::new(fixed.clone()))?, None)),
            (None, Some(strategy)) => Ok((name(&context, &**strategy)?, instead)),
            (None, None) => Ok((name(&context, &HashedHost)?, instead)),
        }
    }

    fn prepare(self, registered: Vec<String>) -> Result<ConsumerConnector> {
        self.config.check()?;
        let (me, instead) = self.name(registered)?;
        let registry = self.registry();
        let config = self.config;
        let (events, early) = broadcast::channel(EVENTS);
        let (snapshot_in, snapshot) = watch::channel(Snapshot::default());
        let outlets = Outlets {
            events,
            snapshot: snapshot_in,
        };
        if let Some(instead) = instead {
            outlets.tell(Event::HostNameReplaced { instead });
        }
        for what in config.warnings() {
            outlets.tell(Event::Warning { what });
        }
        let clock: Arc<dyn LeaseClock> = self.clock.unwrap_or_else(|| Arc::new(BootClock));
        let seed = seed_of(&me, clock.wall_ms());
        let (commands_in, commands) = mpsc::channel(16);
        let (stop_in, stop) = watch::channel(None);
        let is_foreign_assignor = self.assignor.is_some();
        let assignor = match self.assignor {
            Some(assignor) => assignor,
            None => named(config.strategy, config.compat),
        };
        let weak = outlets.events.downgrade();
        let waiting = Waiting {
            registry,
            source: self.source,
            assignor,
            is_foreign_assignor,
            listener: self.listener,
            assignor_place: self
                .outside
                .clone()
                .unwrap_or_else(|| Arc::new(Aside::default())),
            outside: self.outside.unwrap_or_else(|| Arc::new(Aside::default())),
            commands,
            stop,
            outlets,
            seed,
            host: None,
        };
        Ok(ConsumerConnector {
            config,
            me,
            commands: commands_in,
            stop: stop_in,
            events: weak,
            snapshot,
            early: Mutex::new(Some(early)),
            common: Arc::new(Common::new(clock)),
            cores: Mutex::default(),
            waiting: Mutex::new(Some(waiting)),
            process: std::process::id(),
        })
    }

    /// The member as a future for the caller to poll, pause and drop, in the caller's own runtime: for simulations with
    /// paused time. `topics` as for [`ConsumerConnector::streams`].
    ///
    /// # Errors
    /// As [`connect`](Self::connect) and [`streams`](ConsumerConnector::streams), as far as settings are concerned.
    #[cfg(any(test, feature = "testing"))]
    pub fn into_future(
        self,
        topics: impl IntoIterator<Item = (Topic, u32)>,
    ) -> Result<(
        ConsumerConnector,
        Streams,
        impl Future<Output = ()> + Send + 'static,
    )> {
        let connector = self.prepare(Vec::new())?;
        let (waiting, subscription) = connector.take_topics(topics)?;
        let (streams, coordinator, _joined, _host) = connector.assemble(waiting, subscription)?;
        Ok((connector, streams, coordinator.run()))
    }
}

/// Only pauses depend on it, so that members do not come back in step.
fn seed_of(me: &ConsumerId, time: u64) -> u64 {
    me.as_str().bytes().fold(time, |seed, byte| {
        seed.rotate_left(5) ^ u64::from(byte).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}
