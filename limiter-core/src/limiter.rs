//! The handle of a limiter: its store, clock, queues and settings.

mod builder;
mod enforcement_switch;
mod layer_policies;
pub(crate) mod lifecycle;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::algorithm::Mode;
use crate::backend::Backend;
use crate::concurrency::request::ConcurrencyRequest;
use crate::decision::Rejection;
use crate::detachment::DetachedTables;
use crate::error::{StoreError, StoreErrorKind};
use crate::key::Key;
pub use crate::limiter::builder::InProcessBuilder;
#[cfg(feature = "redis")]
pub use crate::limiter::builder::RedisBuilder;
use crate::limiter::enforcement_switch::EnforcementSwitch;
use crate::limiter::layer_policies::LayerPolicies;
pub use crate::limiter::layer_policies::LayerToken;
use crate::policy::Policy;
use crate::registry::lookup::PolicyLookup;
use crate::request::{DecisionRequest, LimitRequest, RequestedLimit};
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
    /// Limits in different groups may be decided together: there is no cluster, and there will be
    /// none.
    pub(crate) any_groups: bool,
    pub(crate) queues: Arc<WaitQueues>,
    pub(crate) detached: DetachedTables,
    pub(crate) closing: watch::Sender<bool>,
    /// Says the same to calls that do not wait, without a lock.
    closed: AtomicBool,
    pub(crate) names: PolicyLookup,
    pub(crate) enforcement: EnforcementSwitch,
    layer_policies: LayerPolicies,
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
            let request = ConcurrencyRequest::new(LimitRequest::new(policy, key), Mode::Peek)?;
            let (identity, tables) = (request.limit().identity, &self.inner.detached);
            // Detached permits belong to other processes, which may no longer exist.
            drop(tables.permits.take_matching(|hold| hold.identity == identity));
            return Ok(Box::pin(self.inner.backend.reset_permits(&request)).await?);
        }
        let mut request = DecisionRequest::new(
            [LimitRequest::new(policy, key).cost(Amount::ZERO)],
            Mode::Peek,
            self.inner.any_groups,
        )?;
        let name = request.queue();
        request.add_penalties();
        let _notifier = self.inner.queues.refund_notifier(&name);
        Ok(self.inner.backend.reset(&request).await?)
    }

    fn new(
        backend: Backend,
        clock: Clock,
        any_groups: bool,
        max_waiting: usize,
        names: PolicyLookup,
    ) -> Self {
        let closing = watch::Sender::new(false);
        let detached_permits = backend.detached_permits();
        Self {
            inner: Arc::new(LimiterInner {
                backend,
                clock,
                any_groups,
                queues: Arc::new(WaitQueues::new(max_waiting)),
                detached: DetachedTables::new(detached_permits),
                closing,
                closed: AtomicBool::new(false),
                names,
                enforcement: EnforcementSwitch::default(),
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
        self.inner.backend.scope(limit)
    }

    /// Whether nothing is asked of Redis.
    pub(crate) fn is_in_process(&self) -> bool {
        self.inner.backend.is_in_process()
    }

    /// The moment by which it waits.
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
