//! The handle that people hold.

mod builder;
mod layer_policies;
pub(crate) mod lifecycle;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::algorithm::Mode;
use crate::check::Check;
use crate::concurrency::table::PermitTable;
use crate::decision::outage::without_store;
use crate::decision::{Decision, Origin, Rejection};
use crate::detachment::DetachedTables;
use crate::error::{StoreError, StoreErrorKind};
use crate::key::Key;
pub use crate::limiter::builder::InProcessBuilder;
#[cfg(feature = "redis")]
pub use crate::limiter::builder::RedisBuilder;
use crate::limiter::layer_policies::LayerPolicies;
pub use crate::limiter::layer_policies::LayerToken;
use crate::policy::Policy;
use crate::registry::lookup::PolicyLookup;
use crate::request::{DecisionRequest, LimitRequest, RequestedLimit};
use crate::store::{MemoryStore, Store};
use crate::support::clock::Clock;
use crate::support::deadline::within;
use crate::support::one_or_many::OneOrMany;
#[cfg(feature = "redis")]
use crate::tier::RedisBackend;
use crate::units::{Amount, Timestamp};
use crate::waiting::WaitQueues;

/// Decides calls, in process or in Redis. Cheap to clone; clones share everything.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use limiter_core::{Limiter, Policy};
///
/// let limits = Limiter::in_process().build();
/// let search = Policy::token_bucket("search").capacity(2).rate("1/min").build()?;
///
/// assert_eq!(limits.check(&search, "ann").await?.remaining(), 1);
/// limits.check(&search, "ann").await?.require()?;
/// let denied = limits.check(&search, "ann").await?;
/// assert!(!denied.is_allowed());
/// assert!(limits.check(&search, "bob").await?.is_allowed());
/// # Ok::<(), limiter_core::Rejection>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Limiter {
    pub(crate) inner: Arc<LimiterInner>,
}

pub(crate) struct LimiterInner {
    pub(crate) backend: Backend,
    pub(crate) clock: Clock,
    /// Limits in different groups may be decided together: there is no cluster, and there will be
    /// none.
    pub(crate) any_groups: bool,
    pub(crate) queues: Arc<WaitQueues>,
    /// What is in flight, where that is counted in this process alone.
    pub(crate) holders: Arc<PermitTable<()>>,
    pub(crate) detached: DetachedTables,
    pub(crate) closing: watch::Sender<bool>,
    /// Says the same to calls that do not wait, without a lock.
    closed: AtomicBool,
    pub(crate) names: PolicyLookup,
    pub(crate) enforcement: crate::enforcement::EnforcementSwitch,
    layer_policies: LayerPolicies,
}

pub(crate) enum Backend {
    Memory(MemoryStore),
    #[cfg(feature = "redis")]
    Redis(Box<RedisBackend>),
}

impl Backend {
    /// The origin of decisions that the store makes.
    pub(crate) fn origin(&self) -> Origin {
        match self {
            Self::Memory(_) => Origin::Memory,
            #[cfg(feature = "redis")]
            Self::Redis(_) => Origin::Redis,
        }
    }
}

impl Limiter {
    /// A limiter whose state lives in this process.
    pub fn in_process() -> InProcessBuilder {
        InProcessBuilder::default()
    }

    /// A limiter whose state lives in the Redis server at `url`, such as
    /// `redis://user:password@host:6379/0`, or `rediss://` for TLS (feature `tls`).
    ///
    /// The user needs no more permissions than these, on the keys of its namespace (and `+select`
    /// for a database other than 0; `+info` so that [`ready`](Self::ready) can warn of a server
    /// that evicts live limits):
    ///
    /// ```text
    /// ACL SETUSER user on >password ~namespace|* +evalsha +eval +time +get +mget +set +getrange +setrange +strlen +exists +pexpire +del
    /// # besides, where policies of concurrency are entered
    /// ACL SETUSER user +zadd +zrem +zrange +zcount +zscore +zremrangebyscore
    /// # besides, to be told at once of changes of a registry in Redis
    /// ACL SETUSER user +publish +subscribe resetchannels &namespace|book
    /// ```
    ///
    /// Without the last line, changes of a registry in Redis (feature `registry`) are found out
    /// within a second.
    #[cfg(feature = "redis")]
    pub fn redis(url: impl Into<String>) -> RedisBuilder {
        RedisBuilder::standalone(url.into())
    }

    /// A limiter whose state lives in the Redis Cluster to which these nodes belong; the others are
    /// found through them, and reached with the settings of the first.
    ///
    /// On every node the user needs `+cluster|slots +asking` besides what [`redis`](Self::redis)
    /// names. With TLS, the nodes' certificates have to be valid for what the cluster announces:
    /// addresses, or names with `cluster-announce-hostname`.
    #[cfg(feature = "redis")]
    pub fn redis_cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> RedisBuilder {
        RedisBuilder::cluster(urls)
    }

    /// A limiter whose state lives in the primary that Redis Sentinel watches over. The primary's
    /// URL has its name in place of a host, and says how to log in there:
    /// `redis://user:password@mymaster/0`. The sentinels' URLs say the same of them:
    /// `redis://host:26379`.
    ///
    /// On every server the user needs `+role` besides what [`redis`](Self::redis) names, and, where
    /// the sentinels have users, `+sentinel|get-master-addr-by-name` there. With TLS, certificates
    /// have to be valid for what sentinels announce.
    ///
    /// A new connection goes where most sentinels say, and is used only if the server there says of
    /// itself that it is the primary. As long as it is open, the sentinels are asked every half a
    /// second whether another has taken its place. Sentinels hear of a failover within two seconds,
    /// so what an old primary that goes on regardless is charged in these two or three seconds is
    /// lost. `min-replicas-to-write 1` on the servers has one that is cut off refuse.
    #[cfg(feature = "redis")]
    pub fn redis_sentinel<U: Into<String>>(
        sentinels: impl IntoIterator<Item = U>,
        primary: impl Into<String>,
    ) -> RedisBuilder {
        RedisBuilder::sentinel(sentinels, primary.into())
    }

    /// A limiter that dials through a pool which the application has already. It opens connections
    /// of its own from the pool's manager, since a decision must not wait for one that somebody
    /// else has checked out.
    ///
    /// Their settings are the manager's: its response timeout bounds a policy's deadline, and a
    /// connection whose server hung up is found out by the next call, where those of
    /// [`redis`](Self::redis) know at once.
    #[cfg(feature = "redis")]
    pub fn redis_pool(pool: bb8_redis::bb8::Pool<bb8_redis::RedisConnectionManager>) -> RedisBuilder {
        RedisBuilder::pool(pool)
    }

    /// Asks for a permit of `policy` for `key`, and charges it if it is allowed.
    ///
    /// # Errors
    ///
    /// Being limited is not an error: see [`Decision::require`]. [`Rejection::NeverFits`] and
    /// [`Rejection::Config`] come before any I/O, [`Rejection::Unavailable`] when the store gives
    /// no answer and the policy says so.
    ///
    /// # Panics
    ///
    /// With Redis, outside of a Tokio runtime with time and I/O. In process it needs no runtime.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped while Redis is asked may have been charged. It is never charged
    /// twice.
    pub fn check<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Check<'a> {
        Check::alone(self, LimitRequest::new(policy, key), Mode::Charge)
    }

    /// Asks for permits of several limits as one decision: all are charged, or none.
    ///
    /// Their keys must share a group (the same key, or [`Key::in_group`]), so that a cluster can
    /// decide them at one place; unless the limiter is told that none does
    /// ([`InProcessBuilder::standalone_only`](crate::InProcessBuilder::standalone_only)).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, Policy};
    ///
    /// let limits = Limiter::in_process().build();
    /// let burst = Policy::token_bucket("burst").capacity(5).rate(1).build()?;
    /// let daily = Policy::sliding_window("daily").limit(2).window("1d").build()?;
    /// let both = [(&burst, "ann"), (&daily, "ann")];
    ///
    /// limits.check_all(both).cost(2).await?.require()?;
    /// let denied = limits.check_all(both).await?;
    /// assert_eq!(denied.denied_by().unwrap().policy().name(), "daily");
    /// assert_eq!(limits.peek(&burst, "ann").await?.remaining(), 3, "a denial charges nothing");
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn check_all<'a, A: Into<LimitRequest<'a>>>(
        &'a self,
        asks: impl IntoIterator<Item = A>,
    ) -> Check<'a> {
        Check::new(self, asks.into_iter().map(Into::into), Mode::Charge)
    }

    pub(crate) fn check_few<'a>(&'a self, asks: OneOrMany<LimitRequest<'a>>) -> Check<'a> {
        Check::of(self, asks, Mode::Charge)
    }

    /// Says what [`check`](Self::check) would answer now, and charges nothing.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn peek<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Check<'a> {
        Check::alone(self, LimitRequest::new(policy, key), Mode::Peek)
    }

    /// Says what [`check_all`](Self::check_all) would answer now, and charges nothing.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn peek_all<'a, A: Into<LimitRequest<'a>>>(&'a self, asks: impl IntoIterator<Item = A>) -> Check<'a> {
        Check::new(self, asks.into_iter().map(Into::into), Mode::Peek)
    }

    /// Forgets what `key` has used under `policy`, and what it was denied; a penalty that blocks it
    /// is lifted.
    ///
    /// Of [`concurrency`](Policy::concurrency), what other processes hold: it frees what those held
    /// that died, before their leases end. Those that live are counted again when they renew
    /// theirs, before a third of a lease is over, and their permits are no longer
    /// [held](crate::concurrency::ConcurrencyPermit::is_valid) for sure. What this process holds
    /// stays.
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] when the store gives no answer. It may have forgotten all the
    /// same, or in part.
    ///
    /// # Cancel safety
    ///
    /// Dropped while Redis is asked, it is done or not; of concurrency, where many are held, it may
    /// be done in part.
    pub async fn reset<'a>(&self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Result<(), Rejection> {
        self.open()?;
        if policy.is_concurrency() {
            return Box::pin(self.reset_permits(LimitRequest::new(policy, key))).await;
        }
        let mut request = DecisionRequest::new(
            [LimitRequest::new(policy, key).cost(Amount::ZERO)],
            Mode::Peek,
            self.inner.any_groups,
        )?;
        let name = request.queue();
        request.add_penalties();
        let _notifier = self.inner.queues.refund_notifier(&name);
        match &self.inner.backend {
            Backend::Memory(store) => store.reset(&request).await?,
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => guard.reset(&request).await?,
        }
        Ok(())
    }

    fn new(
        backend: Backend,
        clock: Clock,
        any_groups: bool,
        max_waiting: usize,
        names: PolicyLookup,
    ) -> Self {
        let closing = watch::Sender::new(false);
        let max_keys = match &backend {
            Backend::Memory(store) => store.max_keys(),
            #[cfg(feature = "redis")]
            Backend::Redis(_) => 0,
        };
        let holders = PermitTable::new(max_keys, max_waiting);
        Self {
            inner: Arc::new(LimiterInner {
                backend,
                clock,
                any_groups,
                queues: Arc::new(WaitQueues::new(max_waiting)),
                holders,
                detached: DetachedTables::new(),
                closing,
                closed: AtomicBool::new(false),
                names,
                enforcement: crate::enforcement::EnforcementSwitch::default(),
                layer_policies: LayerPolicies::default(),
            }),
        }
    }

    pub(crate) fn is_standalone_only(&self) -> bool {
        self.inner.any_groups
    }

    pub(crate) fn open(&self) -> Result<(), StoreError> {
        if self.inner.closed.load(Ordering::Acquire) {
            Err(shut_down())
        } else {
            Ok(())
        }
    }

    /// The name of a limit that every process of its store derives; in process, that this process
    /// derives.
    pub(crate) fn scope(&self, limit: &RequestedLimit<'_>) -> String {
        match &self.inner.backend {
            Backend::Memory(_) => format!("{:?}", limit.identity),
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => guard.store().redis_key(limit),
        }
    }

    /// Whether nothing is asked of Redis.
    pub(crate) fn is_in_process(&self) -> bool {
        matches!(self.inner.backend, Backend::Memory(_))
    }

    /// The moment by which it waits.
    pub(crate) fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// The answer to a request, if it can be had without waiting.
    pub(crate) fn decide_now(&self, request: &DecisionRequest<'_>) -> Option<Result<Decision, Rejection>> {
        match &self.inner.backend {
            Backend::Memory(store) => Some(match store.decide_now(request) {
                Ok(verdict) => Ok(request.decision(verdict, Origin::Memory)),
                Err(error) => without_store(request, error, self.inner.clock.now()),
            }),
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => guard.decide_now(request).map(Ok),
        }
    }

    /// The answer to a request, within the deadline.
    pub(crate) async fn decide(
        &self,
        request: &DecisionRequest<'_>,
        deadline: Duration,
    ) -> Result<Decision, Rejection> {
        match &self.inner.backend {
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => guard.decide(request, deadline).await,
            Backend::Memory(store) => match within(deadline, store.decide(request)).await {
                Ok(verdict) => Ok(request.decision(verdict, Origin::Memory)),
                Err(error) => without_store(request, error, self.inner.clock.now()),
            },
        }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store: &dyn fmt::Debug = match &self.inner.backend {
            Backend::Memory(_) => &"memory",
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => guard.store(),
        };
        f.debug_struct("Limiter")
            .field("store", store)
            .field("clock", &self.inner.clock)
            .finish_non_exhaustive()
    }
}

pub(crate) fn shut_down() -> StoreError {
    StoreError::new(StoreErrorKind::ShutDown, "the limiter was shut down")
}
