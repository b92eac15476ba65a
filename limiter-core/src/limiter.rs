//! The handle of a limiter: its store, clock, queues and settings.
//!
//! Clones of a `Limiter` share one `LimiterInner`, which contains all state of the process: the
//! backend, the wait queues, the detached permits, the registry and the enforcement switch. The
//! calls are in `check`, the constructors and settings in `builder`, and shutdown in `lifecycle`. A
//! policy's unset deadline and failure mode are replaced by `defaults` in each request. Tests:
//! `tests/limiter_defaults.rs`, `tests/contract/peek_and_reset.rs` (`reset`).

mod builder;
mod enforcement_switch;
#[cfg(feature = "redis")]
pub(crate) mod fleet_usage;
mod layer_policies;
pub(crate) mod lifecycle;

use std::fmt;
use std::sync::{Arc, Weak};

use tokio::sync::watch;

use crate::algorithm::Mode;
use crate::backend::Backend;
use crate::decision::Rejection;
use crate::detachment::DetachedTables;
use crate::error::{StoreError, StoreErrorKind};
use crate::key::Key;
pub use crate::limiter::builder::InProcessBuilder;
#[cfg(feature = "redis")]
pub use crate::limiter::builder::RedisBuilder;
pub(crate) use crate::limiter::enforcement_switch::EnforcementSwitch;
use crate::limiter::layer_policies::LayerPolicies;
pub use crate::limiter::layer_policies::LayerToken;
use crate::observe::ReportedLimit;
use crate::permits::request::ConcurrencyRequest;
use crate::policy::{LimiterDefaults, Policy};
use crate::registry::policy_lookup::PolicyLookup;
use crate::request::{DecisionRequest, LimitRequest, ValidatedLimit};
use crate::support::clock::Clock;
use crate::units::{Amount, Timestamp};
use crate::wait_queue::WaitQueues;

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
    /// Limits of different groups may be decided together, because the store is not a cluster.
    pub(crate) any_groups: bool,
    /// Replace the deadline and the failure mode that a policy leaves open.
    pub(crate) defaults: LimiterDefaults,
    pub(crate) queues: Arc<WaitQueues>,
    pub(crate) detached: DetachedTables,
    /// True after the shutdown, for calls that wait. Others read `enforcement`.
    pub(crate) closing: watch::Sender<bool>,
    pub(crate) names: PolicyLookup,
    pub(crate) enforcement: EnforcementSwitch,
    layer_policies: LayerPolicies,
}

/// The settings that both builders have.
#[derive(Clone, Debug)]
struct LimiterSettings {
    any_groups: bool,
    max_waiting: usize,
    names: PolicyLookup,
    defaults: LimiterDefaults,
}

impl Default for LimiterSettings {
    fn default() -> Self {
        Self {
            any_groups: false,
            max_waiting: 10_000,
            names: PolicyLookup::default(),
            defaults: LimiterDefaults::default(),
        }
    }
}

impl Limiter {
    /// Builds a limiter whose state lives in this process.
    pub fn in_process() -> InProcessBuilder {
        InProcessBuilder::default()
    }

    /// Builds a limiter whose state lives in the Redis server at `url`, such as
    /// `redis://user:password@host:6379/0`, or `rediss://` for TLS (feature `tls`).
    ///
    /// The Redis user needs only the following permissions, on the keys of its namespace (and
    /// `+select` for a database other than 0; `+info` so that [`ready`](Self::ready) can warn about
    /// a server that evicts live limits):
    ///
    /// ```text
    /// ACL SETUSER user on >password ~namespace|* +evalsha +eval +time +get +mget +set +getrange +setrange +strlen +exists +pexpire +del
    /// # additionally, for concurrency policies
    /// ACL SETUSER user +zadd +zrem +zrange +zcount +zscore +zremrangebyscore
    /// # additionally, to report usage to Redis and to read it
    /// ACL SETUSER user +hget +hgetall +hmget +hset +hincrby
    /// # additionally, to receive changes of a registry in Redis immediately
    /// ACL SETUSER user +publish +subscribe resetchannels &namespace|book
    /// ```
    ///
    /// Without the last line, the limiter polls a registry in Redis (feature `registry`) for
    /// changes every half second.
    #[cfg(feature = "redis")]
    pub fn redis(url: impl Into<String>) -> RedisBuilder {
        RedisBuilder::standalone(url.into())
    }

    /// Builds a limiter whose state lives in a Redis Cluster. The other nodes are discovered
    /// through the given ones and use the connection settings of the first.
    ///
    /// On every node the user needs `+cluster|slots +asking` in addition to the permissions of
    /// [`redis`](Self::redis). With TLS, the nodes' certificates must be valid for the announced
    /// addresses, or for the announced names with `cluster-announce-hostname`.
    #[cfg(feature = "redis")]
    pub fn redis_cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> RedisBuilder {
        RedisBuilder::cluster(urls)
    }

    /// Builds a limiter whose state lives in the primary that Redis Sentinel monitors. The
    /// primary's URL contains its name in place of a host, and the credentials for the primary:
    /// `redis://user:password@mymaster/0`. The sentinels' URLs contain their own addresses and
    /// credentials: `redis://host:26379`.
    ///
    /// On every server the user needs `+role` in addition to the permissions of
    /// [`redis`](Self::redis), and on sentinels with users `+sentinel|get-master-addr-by-name`.
    /// With TLS, certificates must be valid for the addresses that the sentinels announce.
    ///
    /// A new connection goes to the address that most sentinels return, and is used only if the
    /// server's `ROLE` is master. While it is open, the sentinels are queried every half second for
    /// a new primary. Sentinels detect a failover within two seconds, so charges that an isolated
    /// old primary accepts during these two to three seconds are lost. `min-replicas-to-write 1` on
    /// the servers makes an isolated primary reject writes.
    #[cfg(feature = "redis")]
    pub fn redis_sentinel<U: Into<String>>(
        sentinels: impl IntoIterator<Item = U>,
        primary: impl Into<String>,
    ) -> RedisBuilder {
        RedisBuilder::sentinel(sentinels, primary.into())
    }

    /// Builds a limiter from an existing connection pool of the application. It opens its own
    /// connections through the pool's manager, so that a decision never waits for a connection that
    /// other code has checked out.
    ///
    /// The connections use the manager's settings. Its response timeout bounds a policy's deadline,
    /// and a connection that the server closed is detected by the next call, whereas connections of
    /// [`redis`](Self::redis) detect it immediately.
    #[cfg(feature = "redis")]
    pub fn redis_pool(pool: bb8_redis::bb8::Pool<bb8_redis::RedisConnectionManager>) -> RedisBuilder {
        RedisBuilder::pool(pool)
    }

    /// Deletes the usage of `key` under `policy`, its cached denials, and a penalty that blocks it.
    ///
    /// For a [`concurrency`](Policy::concurrency) policy it deletes the leases of other processes,
    /// which frees permits of crashed processes before their leases end. Live processes count again
    /// after their next renewal, within a third of a lease; until then their permits may report
    /// that they are [not valid](crate::concurrency::ConcurrencyPermit::is_valid). Permits of this
    /// process stay.
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] when the store does not answer. The state may have been deleted
    /// nevertheless, completely or in part.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while a request to Redis is in flight, the reset is done or not;
    /// with many leases of a concurrency policy, it may be done in part.
    pub async fn reset<'a>(&self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Result<(), Rejection> {
        self.open()?;
        if policy.is_concurrency() {
            let limit = LimitRequest::new(policy, key).with_defaults(&self.inner.defaults);
            let request = ConcurrencyRequest::new(limit, Mode::Peek)?;
            let (identity, tables) = (request.limit().identity, &self.inner.detached);
            // Detached permits belong to other processes, which may no longer exist.
            drop(tables.permits.take_matching(|hold| hold.identity == identity));
            return Ok(Box::pin(self.inner.backend.reset_permits(&request)).await?);
        }
        let limit = LimitRequest::new(policy, key)
            .cost(Amount::ZERO)
            .with_defaults(&self.inner.defaults);
        let mut request = DecisionRequest::new([limit], Mode::Peek, self.inner.any_groups)?;
        let name = request.queue();
        request.add_penalties();
        let _notifier = self.inner.queues.refund_notifier(&name);
        Ok(self.inner.backend.reset(&request).await?)
    }

    fn new(backend: Backend, clock: Clock, settings: LimiterSettings) -> Self {
        let LimiterSettings {
            any_groups,
            max_waiting,
            names,
            defaults,
        } = settings;
        let closing = watch::Sender::new(false);
        let detached_permits = backend.detached_permits();
        let inner = Arc::new(LimiterInner {
            backend,
            clock,
            any_groups,
            defaults,
            queues: Arc::new(WaitQueues::new(max_waiting)),
            detached: DetachedTables::new(detached_permits),
            closing,
            names,
            enforcement: EnforcementSwitch::default(),
            layer_policies: LayerPolicies::default(),
        });
        let watcher: Weak<LimiterInner> = Arc::downgrade(&inner);
        inner.names.registry.watch_overlays(watcher);
        Self { inner }
    }

    /// Returns a limit of a call, with its key if a denial of it is reported.
    pub(crate) fn reported_limit<'a>(&self, request: &LimitRequest<'a>) -> ReportedLimit<'a> {
        let policy = request.policy();
        match self.inner.backend.usage() {
            Some(_) => ReportedLimit {
                policy,
                key: Some(request.key().clone()),
            },
            None => ReportedLimit::without_key(policy),
        }
    }

    pub(crate) fn is_standalone_only(&self) -> bool {
        self.inner.any_groups
    }

    /// Returns the name of a limit that every process of its store derives; for the in-process
    /// store, a name that is unique in this process.
    pub(crate) fn scope(&self, limit: &ValidatedLimit<'_>) -> String {
        self.inner.backend.scope(limit)
    }

    /// Returns whether the limiter sends no request to Redis.
    #[inline]
    pub(crate) fn is_in_process(&self) -> bool {
        self.inner.backend.is_in_process()
    }

    /// Returns the time by which the limiter waits.
    pub(crate) fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("store", &self.inner.backend)
            .field("clock", &self.inner.clock)
            .finish_non_exhaustive()
    }
}

pub(crate) fn shut_down() -> StoreError {
    StoreError::new(StoreErrorKind::ShutDown, "the limiter was shut down")
}
