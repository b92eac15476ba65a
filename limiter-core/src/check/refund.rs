//! The builders and futures of refunds and charges.
//!
//! A refund returns permits of an earlier call, and a charge takes permits without a decision, also
//! beyond the quota. Both look the policy up and send one `UsageCorrection` to the store. A refund
//! also notifies the wait queue of its limit.
//!
//! Invariant: if calls under the policy are not charged (`Off`, key lists), neither are refunds and
//! charges. Tests: `tests/contract/refunds.rs`, `tests/contract/reservations.rs`,
//! `tests/entry_points/settling.rs`.

use std::pin::Pin;

use crate::algorithm::{Mode, UsageCorrection};
use crate::check::PolicyRef;
use crate::check::registry_lookup::ResolvedPolicies;
use crate::decision::Rejection;
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::{DecisionRequest, LimitRequest, used_units};
use crate::units::Amount;

impl Limiter {
    /// Refunds permits of `policy` to `key`: one, or as many as [`Refund::cost`] sets, and never
    /// more than the usage.
    ///
    /// In a window, a refund returns the permits that would expire next. The store cannot match a
    /// refund with a charge, so refund an allowed call that had no effect, once, and while its
    /// permit is still in use: a refund after the end of a fixed window reduces the usage of the
    /// next one. [`reserve`](Self::reserve) tracks this. A refund repays a debt first. A sliding
    /// window does not store its debt, so a refund after a [`charge`](Self::charge) beyond the
    /// limit makes permits available at once. If calls are not charged, because the policy is
    /// [`Off`](crate::Enforcement::Off) or the key is on a list, nothing is refunded.
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
    /// [`retry_after`](crate::Decision::retry_after) states. The debt of a window ends after one
    /// window, that of a counter window after two at most.
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
}

/// A refund that has not started: await it. Created by [`Limiter::refund`] and
/// [`PolicyHandle::refund`](crate::PolicyHandle::refund).
#[derive(Clone, Debug)]
#[must_use = "nothing is refunded until this is awaited"]
pub struct Refund<'a, P = &'a Policy> {
    limiter: &'a Limiter,
    request: LimitRequest<'a, P>,
}

impl<'a, P> Refund<'a, P> {
    pub(crate) fn new(limiter: &'a Limiter, request: LimitRequest<'a, P>) -> Self {
        Self { limiter, request }
    }

    /// Sets the amount to refund: the cost of the call. Default: 1. A cost of 0 refunds nothing; a
    /// cost above the usage refunds the usage.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.request.set_cost(cost.try_into().map_err(Into::into));
        self
    }
}

impl<'a, P: PolicyRef + 'a> IntoFuture for Refund<'a, P> {
    type Output = Result<(), Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let found = match self.request.look_up(self.limiter)? {
                ResolvedPolicies::Policy(found) => found,
                ResolvedPolicies::Allowed(_) => return Ok(()),
            };
            let mut limit = self
                .request
                .resolved(&found)
                .with_defaults(&self.limiter.inner.defaults);
            // Otherwise the refund would reduce the usage of other calls.
            if !self.limiter.charges(&limit) {
                return Ok(());
            }
            self.limiter.open()?;
            let inner = &self.limiter.inner;
            // Debts exceed the quota, so a refund may too.
            let refunded = limit.take_cost();
            let mut request = DecisionRequest::new([limit], Mode::Peek, inner.any_groups)?;
            if let Some(limit) = request.limits.first_mut() {
                limit.cost = used_units(limit.policy, refunded?)?;
            }
            if request.is_free() {
                return Ok(());
            }
            let refund = UsageCorrection::Refund { whole_at: 0 };
            let name = request.queue();
            let _notifier = inner.queues.refund_notifier(&name);
            self.limiter.apply_change(&request, refund).await
        })
    }
}

/// An unconditional charge that has not started: await it. Created by [`Limiter::charge`] and
/// [`PolicyHandle::charge`](crate::PolicyHandle::charge).
#[derive(Clone, Debug)]
#[must_use = "nothing is charged until this is awaited"]
pub struct Charge<'a, P = &'a Policy> {
    limiter: &'a Limiter,
    request: LimitRequest<'a, P>,
    used: Result<Amount, ConfigError>,
}

impl<'a, P> Charge<'a, P> {
    pub(crate) fn new(limiter: &'a Limiter, request: LimitRequest<'a, P>) -> Self {
        let used = Ok(Amount::ONE);
        Self {
            limiter,
            request,
            used,
        }
    }

    /// Sets the amount to charge. Default: 1. A cost of 0 charges nothing.
    pub fn cost(self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        Self {
            used: cost.try_into().map_err(Into::into),
            ..self
        }
    }
}

impl<'a, P: PolicyRef + 'a> IntoFuture for Charge<'a, P> {
    type Output = Result<(), Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let found = match self.request.look_up(self.limiter)? {
                ResolvedPolicies::Policy(found) => found,
                ResolvedPolicies::Allowed(_) => return Ok(()),
            };
            let limit = self
                .request
                .resolved(&found)
                .with_defaults(&self.limiter.inner.defaults);
            if !self.limiter.charges(&limit) {
                return Ok(());
            }
            self.limiter.open()?;
            let limit = limit.cost(Amount::ZERO);
            let mut request = DecisionRequest::new([limit], Mode::Peek, self.limiter.inner.any_groups)?;
            if let Some(limit) = request.limits.first_mut() {
                limit.cost = used_units(limit.policy, self.used?)?;
            }
            if request.is_free() {
                return Ok(());
            }
            self.limiter
                .apply_change(&request, UsageCorrection::ForceCharge)
                .await
        })
    }
}
