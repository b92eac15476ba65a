//! Distributed concurrency limits: permits that a holder keeps until it releases them.
//!
//! The number of calls in progress cannot be limited by a rate. A concurrency policy therefore
//! hands out permits, and a permit counts until it is dropped. In process, `table` counts the
//! permits. With Redis, each permit is a lease in Redis that one task per limiter renews
//! (`leases`).
//!
//! Invariants: Redis never counts more unexpired leases than the policy's maximum; a permit reports
//! itself lost before its lease ends in Redis. Tests: `tests/concurrency.rs`,
//! `tests/contract/concurrency.rs`, `table/tests.rs`.

pub(crate) mod acquire;
pub(crate) mod deadline;
pub(crate) mod detached;
#[cfg(feature = "redis")]
pub(crate) mod distributed;
pub(crate) mod exempt;
#[cfg(feature = "redis")]
pub(crate) mod leases;
pub(crate) mod local;
mod permit;
#[cfg(feature = "redis")]
pub(crate) mod redis_acquire;
#[cfg(feature = "redis")]
pub(crate) mod redis_store;
pub(crate) mod request;
pub(crate) mod table;

pub use crate::concurrency::acquire::{AcquireConcurrency, ConcurrencyFuture};
pub use crate::concurrency::permit::ConcurrencyPermit;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::LimitRequest;

impl Limiter {
    /// Acquires a permit of a [`concurrency`](Policy::concurrency) policy for `key`. The permit is
    /// held until it is dropped.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let export = Policy::concurrency("export").max(3).build()?;
    ///
    /// let permit = limits.acquire_concurrency(&export, "ann").cost(2).await?;
    /// assert_eq!(permit.decision().remaining(), 1);
    /// let denied = limits.acquire_concurrency(&export, "ann").cost(2).await.unwrap_err();
    /// assert!(denied.is_limited());
    /// clock.advance(Duration::from_secs(3_600));
    /// assert_eq!(limits.peek(&export, "ann").await?.remaining(), 1, "a permit does not expire");
    /// drop(permit);
    /// assert_eq!(limits.peek(&export, "ann").await?.remaining(), 3);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// A denial has no [`retry_after`](crate::Decision::retry_after), because no one can predict
    /// when a holder releases its permit. The [`retry_after`](crate::LimitOutcome::retry_after) of
    /// the limit's own outcome is the time until the first lease ends if its holder does not renew
    /// it.
    ///
    /// # Errors
    ///
    /// [`Rejection::Limited`](crate::Rejection::Limited) if all permits are held, or
    /// [`Rejection::TimedOut`](crate::Rejection::TimedOut) if none was released within
    /// [`AcquireConcurrency::timeout`]; [`Rejection::NeverFits`](crate::Rejection::NeverFits) for a
    /// cost above the policy's maximum; [`Rejection::Config`](crate::Rejection::Config) for a
    /// fractional cost, a cost above 1,024, and a rate policy;
    /// [`Rejection::Unavailable`](crate::Rejection::Unavailable) as for [`acquire`](Self::acquire).
    /// While the store is unavailable, the policy's failure mode applies: by default this replica
    /// admits its share, max(1, ⌈max/replicas⌉), and counts the permits that it already holds.
    ///
    /// # Panics
    ///
    /// With Redis or with a timeout, if called outside of a Tokio runtime with time and I/O.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the permit: a permit that Redis may have admitted for it is
    /// released in the background, and if the release fails, the lease expires.
    pub fn acquire_concurrency<'a>(
        &'a self,
        policy: &'a Policy,
        key: impl Into<Key<'a>>,
    ) -> AcquireConcurrency<'a> {
        AcquireConcurrency::new(self, LimitRequest::new(policy, key))
    }

    pub(crate) fn acquire_concurrency_for<'a>(&'a self, ask: LimitRequest<'a>) -> AcquireConcurrency<'a> {
        AcquireConcurrency::new(self, ask)
    }
}
