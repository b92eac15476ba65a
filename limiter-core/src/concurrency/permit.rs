//! What is in flight: a permit that is held until it is dropped.

use std::fmt;
use std::future::pending;

#[cfg(feature = "redis")]
use crate::concurrency::leases::PermitLease;
use crate::concurrency::table::PermitGuard;
use crate::decision::{Decision, Rejection};
use crate::observe::AsDecision;

/// Permission to be in flight, until it is dropped. Made by
/// [`Limiter::acquire_concurrency`](crate::Limiter::acquire_concurrency).
///
/// It borrows nothing, and can be moved to wherever what it stands for ends: into a task, into the
/// body of a response.
///
/// With Redis it is a lease there, which is renewed in the background while the permit is held,
/// from when a sixth of it is over and before a third is. Redis counts the leases that have not
/// ended by its own clock, and admits none beyond the policy's maximum. A holder that is cut off
/// from Redis for longer than the lease may therefore find others in its place: it learns so from
/// [`is_valid`](Self::is_valid) and [`lost`](Self::lost), which count from before Redis was asked.
/// A machine that was suspended for as long learns it too late. In process nothing can take a
/// permit away.
///
/// Dropping it gives it back: to whoever waits next in this process under the same terms, at once;
/// else to Redis, by the task that renews leases. Where there is no runtime to run it, the lease
/// ends. [`release`](Self::release) does the same, and waits until it is done.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use limiter_core::{Limiter, Policy};
/// use std::time::Duration;
///
/// let limits = Limiter::in_process().build();
/// let export = Policy::concurrency("export").max(1).build()?;
///
/// let permit = limits.enter(&export, "ann").await?;
/// let task = tokio::spawn(async move {
///     // … what takes long …
///     assert!(permit.is_held());
///     permit.leave().await
/// });
/// let next = limits.enter(&export, "ann").timeout(Duration::from_secs(5)).await?;
/// task.await.unwrap()?;
/// assert_eq!(next.decision().remaining(), 0);
/// # Ok::<(), limiter_core::Rejection>(())
/// # }).unwrap();
/// ```
#[must_use = "it is given back when it is dropped"]
pub struct ConcurrencyPermit {
    decision: Decision,
    stand: PermitBacking,
}

/// What a permit stands on.
#[derive(Debug)]
pub(crate) enum PermitBacking {
    /// A count in this process.
    Here(#[expect(dead_code, reason = "it is there to be dropped")] PermitGuard<()>),
    /// A lease in Redis, or a share of this replica's while Redis is out.
    #[cfg(feature = "redis")]
    Leased(PermitGuard<PermitLease>),
    /// Nothing: it costs nothing, or the store is out and the policy allows it.
    Nothing,
}

impl AsDecision for ConcurrencyPermit {
    fn as_decision(&self) -> &Decision {
        self.decision()
    }
}

impl ConcurrencyPermit {
    pub(crate) fn new(decision: Decision, stand: PermitBacking) -> Self {
        Self { decision, stand }
    }

    /// One of what nobody limits.
    pub(crate) fn of_nothing(decision: Decision) -> Self {
        Self::new(decision, PermitBacking::Nothing)
    }

    /// The decision that admitted it.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Whether it is surely held: false once its lease may have ended before it was renewed, and
    /// from then on. Others may be in its place then; Redis goes on to count it as far as there is
    /// room.
    ///
    /// Always true where there is no lease that could end: in process, and for what was admitted
    /// while the store was out (its [`origin`](Decision::origin) says `LocalFallback` or
    /// `FailedOpen`), until Redis has been told of it.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        match &self.stand {
            #[cfg(feature = "redis")]
            PermitBacking::Leased(held) => held.carried().is_none_or(PermitLease::is_held),
            _ => true,
        }
    }

    /// Waits until it is not surely [held](Self::is_valid) any more: for ever, if that never comes.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, Policy};
    ///
    /// let limits = Limiter::in_process().build();
    /// let leader = Policy::concurrency("leader").max(1).build()?;
    /// let permit = limits.enter(&leader, "jobs").await?;
    /// let done = tokio::select! {
    ///     () = permit.lost() => false,
    ///     () = async { /* what only one may do */ } => true,
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
        if let PermitBacking::Leased(held) = &self.stand {
            if let Some(lease) = held.carried() {
                return lease.lost().await;
            }
        }
        pending().await
    }

    /// Gives it back, and waits until that is done.
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] when the store gives no answer within the policy's deadline. It
    /// goes on being told in the background, until the lease has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it goes on in the background.
    pub async fn release(self) -> Result<(), Rejection> {
        #[cfg(feature = "redis")]
        if let PermitBacking::Leased(held) = self.stand {
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
        f.debug_struct("Permit")
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}

const _: () = {
    const fn movable<T: Send + Sync + 'static>() {}
    movable::<ConcurrencyPermit>();
};

/// The permit that an allowed decision grants.
pub(crate) fn permitted(decision: Decision, stand: PermitBacking) -> Result<ConcurrencyPermit, Rejection> {
    let allowed = decision.require()?;
    Ok(ConcurrencyPermit::new(allowed.into_decision(), stand))
}
