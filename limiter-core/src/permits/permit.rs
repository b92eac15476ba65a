//! The permit of a concurrency limit, which is held until it is dropped.
//!
//! A permit consists of the decision and the object that keeps it counted: a count in this process,
//! a lease in Redis, or nothing. A drop of that object releases the permit. A detached permit is
//! released by its id instead.
//!
//! Tests: `tests/contract/concurrency.rs`, `tests/concurrency.rs`; validity and loss of leases:
//! `tests/concurrency/outages.rs`.

use std::fmt;
use std::future::pending;

use crate::decision::{Decision, Rejection};
use crate::memory::permit_table::PermitGuard;
use crate::observe::AsDecision;
#[cfg(feature = "redis")]
use crate::redis::permit_leases::PermitLease;

/// A permit of a concurrency limit, released on drop. Created by
/// [`Limiter::acquire_concurrency`](crate::Limiter::acquire_concurrency).
///
/// The permit borrows nothing and can move to the place where the guarded work ends: into a task or
/// into the body of a response.
///
/// With Redis the permit is a lease that is renewed in the background after a sixth and before a
/// third of its length. Redis counts the leases that have not expired by its own clock, and admits
/// none beyond the policy's maximum. If a holder is disconnected from Redis for longer than the
/// lease, other holders may take its place: [`is_valid`](Self::is_valid) and [`lost`](Self::lost)
/// report this, measured from before the call to Redis. A machine that was suspended for that time
/// detects it too late. In process a permit cannot be lost.
///
/// Dropping the permit releases it: the next waiter of this process receives it at once if it waits
/// under the same policy; otherwise the background task returns it to Redis. Without a runtime for
/// the task, the lease expires. [`release`](Self::release) does the same and waits for the result.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use limiter_core::{Limiter, Policy};
/// use std::time::Duration;
///
/// let limits = Limiter::in_process().build();
/// let export = Policy::concurrency("export").max(1).build()?;
///
/// let permit = limits.acquire_concurrency(&export, "ann").await?;
/// let task = tokio::spawn(async move {
///     // … long work …
///     assert!(permit.is_valid());
///     permit.release().await
/// });
/// let next = limits.acquire_concurrency(&export, "ann").timeout(Duration::from_secs(5)).await?;
/// task.await.unwrap()?;
/// assert_eq!(next.decision().remaining(), 0);
/// # Ok::<(), limiter_core::Rejection>(())
/// # }).unwrap();
/// ```
#[must_use = "the permit is released when it is dropped"]
pub struct ConcurrencyPermit {
    decision: Decision,
    backing: PermitBacking,
}

/// The object that keeps a permit counted.
#[derive(Debug)]
pub(crate) enum PermitBacking {
    /// A count in this process.
    Local(#[expect(dead_code, reason = "its drop releases the permit")] PermitGuard<()>),
    /// A lease in Redis, or a part of this replica's share while Redis is unavailable.
    #[cfg(feature = "redis")]
    Leased(PermitGuard<PermitLease>),
    /// A lease in Redis that a client holds by an id.
    #[cfg(feature = "redis")]
    Detached,
    /// Nothing: the cost is zero, or the policy allows the call while the store is unavailable.
    Nothing,
}

impl AsDecision for ConcurrencyPermit {
    fn as_decision(&self) -> &Decision {
        self.decision()
    }
}

impl ConcurrencyPermit {
    pub(crate) fn new(decision: Decision, backing: PermitBacking) -> Self {
        Self { decision, backing }
    }

    /// Returns the decision and the state that is held.
    pub(crate) fn into_parts(self) -> (Decision, PermitBacking) {
        (self.decision, self.backing)
    }

    /// Creates a permit of a call that is not limited.
    pub(crate) fn unlimited(decision: Decision) -> Self {
        Self::new(decision, PermitBacking::Nothing)
    }

    /// Returns the decision that admitted the permit.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns true while the permit is certainly held: false from the time at which its lease may
    /// have expired before a renewal. Other holders may then take its place; Redis counts the
    /// permit again once there is a free one.
    ///
    /// Always true for a permit without a lease that could expire: in process, and for a permit
    /// that was admitted while the store was unavailable (its [`origin`](Decision::origin) is
    /// `LocalFallback` or `FailedOpen`), until Redis knows it.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        match &self.backing {
            #[cfg(feature = "redis")]
            PermitBacking::Leased(held) => held.payload().is_none_or(PermitLease::is_held),
            _ => true,
        }
    }

    /// Waits until the permit is no longer [valid](Self::is_valid); never completes if that does
    /// not happen.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, Policy};
    ///
    /// let limits = Limiter::in_process().build();
    /// let leader = Policy::concurrency("leader").max(1).build()?;
    /// let permit = limits.acquire_concurrency(&leader, "jobs").await?;
    /// let done = tokio::select! {
    ///     () = permit.lost() => false,
    ///     () = async { /* exclusive work */ } => true,
    /// };
    /// assert!(done);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Panics
    ///
    /// With Redis, outside of a Tokio runtime with time.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) {
        #[cfg(feature = "redis")]
        if let PermitBacking::Leased(held) = &self.backing {
            if let Some(lease) = held.payload() {
                return lease.lost().await;
            }
        }
        pending().await
    }

    /// Releases the permit and waits for the reply of the store.
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] if the store does not reply within the policy's deadline. The
    /// release is then retried in the background until the lease has expired.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the release continues in the background.
    pub async fn release(self) -> Result<(), Rejection> {
        #[cfg(feature = "redis")]
        if let PermitBacking::Leased(held) = self.backing {
            if let Some(lease) = held.release() {
                let deadline = self
                    .decision
                    .limits()
                    .first()
                    .map(|limit| limit.policy().deadline());
                lease
                    .release(deadline.unwrap_or(crate::Policy::DEFAULT_DEADLINE))
                    .await?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ConcurrencyPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyPermit")
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}

const _: () = {
    const fn movable<T: Send + Sync + 'static>() {}
    movable::<ConcurrencyPermit>();
};

/// Returns the permit that an allowed decision grants.
pub(crate) fn into_permit(
    decision: Decision,
    backing: PermitBacking,
) -> Result<ConcurrencyPermit, Rejection> {
    let allowed = decision.require()?;
    Ok(ConcurrencyPermit::new(allowed.into_decision(), backing))
}
