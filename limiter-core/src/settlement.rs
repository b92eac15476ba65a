//! What is told of a call afterwards: refunds, charges, and reservations that are settled.

pub(crate) mod pending_grant;
mod refund;
mod reserve;
pub(crate) mod reserved_limit;

use crate::algorithm::Change;
use crate::decision::Rejection;
use crate::key::Key;
use crate::limiter::{Backend, Limiter};
use crate::policy::Policy;
use crate::request::{DecisionRequest, LimitRequest};
pub(crate) use crate::settlement::pending_grant::PendingGrant;
pub use crate::settlement::refund::{Charge, Refund};
pub use crate::settlement::reserve::{Reservation, Reserve, Settled};
use crate::store::Store;

impl Limiter {
    /// Gives `key` back what it has used under `policy`: a permit, or what [`Refund::cost`] says,
    /// and never more than is used.
    ///
    /// Of a window the permits come back that would leave it next. What was never asked for cannot
    /// be told from what was, so a refund belongs to a call that was allowed and came to nothing,
    /// once, and while its permit is still in use: one that comes after a fixed window's period
    /// gives back of the next. [`reserve`](Self::reserve) knows when that is. Where calls are
    /// charged nothing, because the policy is [`Off`](crate::Enforcement::Off) or a list names the
    /// key, nothing is given back.
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
    /// [`Rejection::Config`] for a cost that is no amount; [`Rejection::Unavailable`] when the
    /// store gives no answer. It may have given back all the same.
    ///
    /// # Cancel safety
    ///
    /// Dropped while Redis is asked, it is done or not. It is never done twice.
    pub fn refund<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Refund<'a> {
        Refund::new(self, LimitRequest::new(policy, key))
    }

    /// Charges `key` under `policy`, whatever is left: a permit, or what [`Charge::cost`] says,
    /// which may be more than the quota.
    ///
    /// It is for what is known only afterwards, such as bytes that were sent. Where less is left,
    /// the limit is in debt: nothing fits until that has come back, as
    /// [`retry_after`](crate::Decision::retry_after) tells. A window remembers as many permits as
    /// its limit, so that its debt is over after one window.
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
    /// assert_eq!(denied.retry_after(), Some(Duration::from_secs(3)), "200 that are owed, and 100");
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejection::Config`] for a cost that is no amount, or that the policy cannot count;
    /// [`Rejection::Unavailable`] when the store gives no answer. It may have been charged all the
    /// same.
    ///
    /// # Cancel safety
    ///
    /// Dropped while Redis is asked, it is done or not. It is never done twice.
    pub fn charge<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Charge<'a> {
        Charge::new(self, LimitRequest::new(policy, key))
    }

    /// Takes permits by an estimate, which is settled when the true cost is known: tokens of a
    /// language model, bytes, rows.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let tokens = Policy::token_bucket("tokens").capacity(1_000).rate("100/s").build()?;
    ///
    /// let reservation = limits.reserve(&tokens, "ann").cost(800).await?;
    /// reservation.settle(300).await?;
    /// assert_eq!(limits.peek(&tokens, "ann").await?.remaining(), 700);
    ///
    /// // More than was thought, and than is left: a debt of 400.
    /// let reservation = limits.reserve(&tokens, "ann").cost(700).await?;
    /// reservation.settle(1_100).await?;
    /// let denied = limits.check(&tokens, "ann").await?;
    /// assert_eq!(denied.retry_after(), Some(Duration::from_millis(4_010)));
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejection::Limited`] when the estimate does not fit, [`Rejection::TimedOut`] when it does
    /// not in the time that [`Reserve::timeout`] gives; else as [`check`](Self::check).
    ///
    /// # Panics
    ///
    /// As [`check`](Self::check).
    ///
    /// # Cancel safety
    ///
    /// As [`check`](Self::check), and as [`acquire`](Self::acquire) where it waits.
    pub fn reserve<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Reserve<'a> {
        Reserve::new(self.check(policy, key))
    }

    /// Takes permits of several limits by an estimate, as one decision. See
    /// [`check_all`](Self::check_all); they are settled together, by [`Reservation::settle_each`]
    /// where their costs differ.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{LimitRequest, Limiter, ManualClock, Policy};
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let calls = Policy::sliding_window("calls").limit(60).window("1m").build()?;
    /// let tokens = Policy::token_bucket("tokens").capacity(1_000).rate("100/s").build()?;
    ///
    /// let asks = [LimitRequest::new(&calls, "ann"), LimitRequest::new(&tokens, "ann").cost(800)];
    /// let reservation = limits.reserve_all(asks).await?;
    /// assert_eq!(reservation.decision().limits().len(), 2);
    /// reservation.cancel().await?;
    /// assert_eq!(limits.peek(&calls, "ann").await?.remaining(), 60);
    /// assert_eq!(limits.peek(&tokens, "ann").await?.remaining(), 1_000);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    pub fn reserve_all<'a, A: Into<LimitRequest<'a>>>(
        &'a self,
        asks: impl IntoIterator<Item = A>,
    ) -> Reserve<'a> {
        Reserve::new(self.check_all(asks))
    }

    /// Gives back what the only limit of a request costs, or charges it whatever is left.
    pub(crate) async fn apply_change(
        &self,
        request: &DecisionRequest<'_>,
        change: Change,
    ) -> Result<(), Rejection> {
        match &self.inner.backend {
            Backend::Memory(store) => {
                for limit in &request.limits {
                    store.change(limit, change).await?;
                }
            }
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => guard.change(request, change).await?,
        }
        Ok(())
    }

    /// The same of what is told in the numbers of the policy before its change.
    pub(crate) async fn change_in_proportion(
        &self,
        request: &DecisionRequest<'_>,
        change: Change,
    ) -> Result<(), Rejection> {
        match &self.inner.backend {
            Backend::Memory(store) => {
                for limit in &request.limits {
                    store.change_in_proportion(limit, change)?;
                }
            }
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => guard.change_in_proportion(request, change).await?,
        }
        Ok(())
    }

    /// The same of what this replica's share was charged in place of the store.
    #[cfg_attr(
        not(feature = "redis"),
        expect(unused_variables, reason = "a store in this process is never out")
    )]
    pub(crate) fn change_share(
        &self,
        request: &DecisionRequest<'_>,
        change: Change,
    ) -> Result<(), Rejection> {
        match &self.inner.backend {
            Backend::Memory(_) => Ok(()),
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => Ok(guard.change_share(request, change)?),
        }
    }
}

#[cfg(test)]
mod tests;
