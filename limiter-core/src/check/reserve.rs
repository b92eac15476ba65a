//! The builder of a reservation.
//!
//! `Reserve` charges an estimate, without a wait or with a timeout as `Acquire`, and returns a
//! `Reservation`, which is settled when the actual cost is known (`settlement/reserve.rs`). An
//! unknown policy that the limiter allows gives a reservation without limits. Tests:
//! `tests/contract/reservations.rs`, `tests/reservations.rs`.

use std::pin::Pin;
use std::time::Duration;

use crate::check::registry_lookup::ResolvedPolicies;
use crate::check::{Acquire, Check, PolicyRef};
use crate::decision::{Allowed, Rejection};
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::observe;
use crate::policy::Policy;
use crate::request::LimitRequest;
use crate::settlement::Reservation;
use crate::units::Amount;

impl Limiter {
    /// Reserves permits by an estimate, which is settled when the actual cost is known: tokens of a
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
    /// // Above the estimate and the remaining permits: a debt of 400.
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
    /// [`Rejection::Limited`] if the estimate does not fit, [`Rejection::TimedOut`] if it does not
    /// fit within [`Reserve::timeout`]; otherwise as [`check`](Self::check).
    ///
    /// # Panics
    ///
    /// As [`check`](Self::check).
    ///
    /// # Cancel safety
    ///
    /// As [`check`](Self::check); with a timeout as [`acquire`](Self::acquire).
    pub fn reserve<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Reserve<'a> {
        Reserve::new(self.check(policy, key))
    }

    /// Reserves permits of several limits by an estimate, as one decision. See
    /// [`check_all`](Self::check_all). The limits are settled together, by
    /// [`Reservation::settle_each`] if their costs differ.
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
    /// let requests = [LimitRequest::new(&calls, "ann"), LimitRequest::new(&tokens, "ann").cost(800)];
    /// let reservation = limits.reserve_all(requests).await?;
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
        requests: impl IntoIterator<Item = A>,
    ) -> Reserve<'a> {
        Reserve::new(self.check_all(requests))
    }
}

/// A reservation that has not started: await it. Created by [`Limiter::reserve`],
/// [`Limiter::reserve_all`] and [`PolicyHandle::reserve`](crate::PolicyHandle::reserve).
#[derive(Clone, Debug)]
#[must_use = "nothing is charged until this is awaited"]
pub struct Reserve<'a, P = &'a Policy> {
    check: Check<'a, P>,
    timeout: Option<Duration>,
}

impl<'a, P> Reserve<'a, P> {
    pub(crate) fn new(check: Check<'a, P>) -> Self {
        Self { check, timeout: None }
    }

    /// Sets the estimate, as [`Check::cost`]. Default: 1, or the cost of each
    /// [`LimitRequest`](crate::LimitRequest). With an estimate of 0 the whole actual cost is
    /// charged at settlement.
    pub fn cost<C>(self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        Self {
            check: self.check.cost(cost),
            ..self
        }
    }

    /// Waits for the permits, as [`Acquire::timeout`](crate::future::Acquire::timeout). Default: no
    /// wait.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self {
            timeout: Some(timeout),
            ..self
        }
    }
}

impl<'a, P: PolicyRef + 'a> IntoFuture for Reserve<'a, P> {
    type Output = Result<Reservation, Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let (first, limiter) = (self.check.first_ref(), self.check.limiter);
        let is_immediate = limiter.is_in_process() && self.timeout.is_none();
        let reserved = async move {
            let found = match P::look_up_for(&self.check)? {
                ResolvedPolicies::Policy(found) => found,
                ResolvedPolicies::Allowed(decision) => {
                    return Ok(Reservation::unlimited(limiter, decision.require()?));
                }
            };
            let check = self.check.resolved(&found);
            let call = check.clone();
            let allowed = match self.timeout {
                Some(timeout) => Acquire::new(call).timeout(timeout).await?,
                None => call.await?.require()?,
            };
            Ok(check.reservation(allowed))
        };
        if is_immediate {
            Box::pin(reserved)
        } else {
            observe::reserving(first.as_ref().map(P::name), reserved)
        }
    }
}

impl Check<'_> {
    /// Returns the reservation of a call that was allowed.
    pub(crate) fn reservation(&self, allowed: Allowed) -> Reservation {
        Reservation::from_requests(self.limiter, self.requests().iter().cloned(), allowed)
    }
}
