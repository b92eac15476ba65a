//! What is in flight: permits that are held until they are dropped.

pub(crate) mod acquire;
pub(crate) mod deadline;
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
    /// Asks to be in flight: for a permit of a policy of [`concurrency`](Policy::concurrency) for
    /// `key`, which is held until it is dropped.
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
    /// let permit = limits.enter(&export, "ann").cost(2).await?;
    /// assert_eq!(permit.decision().remaining(), 1);
    /// let denied = limits.enter(&export, "ann").cost(2).await.unwrap_err();
    /// assert!(denied.is_limited());
    /// clock.advance(Duration::from_secs(3_600));
    /// assert_eq!(limits.peek(&export, "ann").await?.remaining(), 1, "it is held for as long as it takes");
    /// drop(permit);
    /// assert_eq!(limits.peek(&export, "ann").await?.remaining(), 3);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// A denial has no [`retry_after`](crate::Decision::retry_after): when a permit comes back is
    /// up to its holder. That of the limit's own [outcome](crate::LimitOutcome::retry_after) says
    /// when the first lease ends, should its holder be gone.
    ///
    /// # Errors
    ///
    /// [`Rejection::Limited`](crate::Rejection::Limited) when there is no room, or
    /// [`Rejection::TimedOut`](crate::Rejection::TimedOut) when none came in the time that
    /// [`AcquireConcurrency::timeout`] gives; [`Rejection::NeverFits`](crate::Rejection::NeverFits)
    /// for a cost above the policy's maximum; [`Rejection::Config`](crate::Rejection::Config) for a
    /// cost that is no whole number or above 1,024, and for a policy of a rate;
    /// [`Rejection::Unavailable`](crate::Rejection::Unavailable) as [`acquire`](Self::acquire).
    /// While the store is out, the policy says what happens: by default this replica admits its
    /// share, max(1, ⌈max/replicas⌉), counting what it holds already.
    ///
    /// # Panics
    ///
    /// With Redis, and to wait, outside of a Tokio runtime with time and I/O.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped holds nothing: what Redis may have admitted for it is given back in
    /// the background, and where even that fails, the lease ends.
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
