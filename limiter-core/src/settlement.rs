//! Accounting after a decision: refunds, charges, and reservations that are settled with the actual
//! cost.

pub(crate) mod detached;
pub(crate) mod pending_grant;
mod refund;
mod reserve;
pub(crate) mod reserved_limit;

use crate::algorithm::Change;
use crate::decision::Rejection;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::{DecisionRequest, LimitRequest};
pub(crate) use crate::settlement::pending_grant::PendingGrant;
pub use crate::settlement::refund::{Charge, Refund};
pub use crate::settlement::reserve::{Reservation, Settled};

impl Limiter {
    /// Refunds permits of `policy` to `key`: one, or as many as [`Refund::cost`] sets, and never
    /// more than the usage.
    ///
    /// In a window, a refund returns the permits that would expire next. The store cannot match a
    /// refund with a charge, so refund an allowed call that had no effect, once, and while its
    /// permit is still in use: a refund after the end of a fixed window reduces the usage of the
    /// next one. [`reserve`](Self::reserve) tracks this. If calls are not charged, because the
    /// policy is [`Off`](crate::Enforcement::Off) or the key is on a list, nothing is refunded.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, Policy};
    ///
    /// let limits = Limiter::in_process().build();
    /// let mail = Policy::sliding_window("mail").limit(2).window("1h").build()?;
    ///
    /// limits.check(&mail, "ann").cost(2).await?.require()?;
    /// limits.refund(&mail, "ann").await?;
    /// assert_eq!(limits.peek(&mail, "ann").await?.remaining(), 1);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejection::Config`] for an invalid cost; [`Rejection::Unavailable`] if the store does not
    /// reply. The refund may have been applied in that case.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped during a call to Redis, the refund may or may not be applied. It is
    /// never applied twice.
    pub fn refund<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Refund<'a> {
        Refund::new(self, LimitRequest::new(policy, key))
    }

    /// Charges `key` under `policy` unconditionally: one permit, or as many as [`Charge::cost`]
    /// sets, which may exceed the quota.
    ///
    /// Use it for a cost that is known only afterwards, such as bytes sent. If the charge exceeds
    /// the remaining permits, the limit is in debt: calls are denied until the debt is refilled, as
    /// [`retry_after`](crate::Decision::retry_after) states. A window stores at most as many
    /// permits as its limit, so its debt ends after one window.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let bytes = Policy::token_bucket("bytes").capacity(1_000).rate("100/s").build()?;
    ///
    /// limits.charge(&bytes, "ann").cost(1_200).await?;
    /// let denied = limits.check(&bytes, "ann").cost(100).await?;
    /// assert_eq!(denied.retry_after(), Some(Duration::from_secs(3)), "a debt of 200 and a cost of 100");
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejection::Config`] for an invalid cost or a cost that the policy cannot count;
    /// [`Rejection::Unavailable`] if the store does not reply. The charge may have been applied in
    /// that case.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped during a call to Redis, the charge may or may not be applied. It is
    /// never applied twice.
    pub fn charge<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Charge<'a> {
        Charge::new(self, LimitRequest::new(policy, key))
    }

    /// Applies a refund or an unconditional charge to the limits of a request.
    pub(crate) async fn apply_change(
        &self,
        request: &DecisionRequest<'_>,
        change: Change,
    ) -> Result<(), Rejection> {
        Ok(self.inner.backend.change(request, change).await?)
    }

    /// Applies a refund or charge that is given in the units of the previous policy.
    pub(crate) async fn change_proportional(
        &self,
        request: &DecisionRequest<'_>,
        change: Change,
    ) -> Result<(), Rejection> {
        Ok(self.inner.backend.change_in_proportion(request, change).await?)
    }
}

#[cfg(test)]
mod tests;
