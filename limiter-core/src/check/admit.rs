//! A check followed by the denial handling of the policy: reject, wait or degrade.
//!
//! `Limiter::admit` leaves the delay of a paced funnel to the caller, unless the policy waits for
//! permits. Annotated functions and layers call `admitted_in_turn`, which waits for this delay in
//! every case.
//!
//! Invariants: only a denial by the limits is degraded, so a penalty, a key list and `FailClosed`
//! still reject; and a call that is cancelled during its delay is refunded. Tests: below,
//! `tests/contract/on_denial.rs`, `tests/contract/paced.rs`.

use std::pin::Pin;
use std::time::Duration;

use crate::check::registry_lookup::ResolvedPolicies;
use crate::check::{Acquire, Check, PolicyRef};
use crate::decision::{Allowed, Decision, DecisionFlags, Origin, Rejection};
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::{OnDenial, Policy};
use crate::request::LimitRequest;
use crate::units::Amount;
use crate::wait_queue::QueueId;
use crate::waiting::WaitLimit;
use crate::waiting::pacing::PacingBudget;
use crate::waiting::wait_limit::WaitSlot;

/// An admission that has not started: await it. Created by [`Limiter::admit`],
/// [`Limiter::admit_all`] and [`PolicyHandle::admit`](crate::PolicyHandle::admit).
#[derive(Clone, Debug)]
#[must_use = "nothing is charged until this is awaited"]
pub struct Admit<'a, P = &'a Policy>(Check<'a, P>);

impl Limiter {
    /// Requests a permit of `policy` for `key` and handles a denial as the policy configures
    /// ([`PolicyBuilder::on_denial`](crate::PolicyBuilder::on_denial)): rejects the call, waits, or
    /// continues degraded.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, OnDenial, Policy};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let search = Policy::token_bucket("search")
    ///     .capacity(1)
    ///     .rate("1/min")
    ///     .on_denial(OnDenial::Degrade)
    ///     .build()?;
    ///
    /// assert!(!limits.admit(&search, "ann").await?.is_degraded());
    /// let second = limits.admit(&search, "ann").await?;
    /// assert!(second.is_degraded(), "answer from a cache, for example");
    /// assert_eq!(second.denied_by().unwrap().policy().name(), "search");
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejection::Limited`] for a denied call that does not wait, [`Rejection::TimedOut`] after a
    /// wait without a permit, [`Rejection::Forbidden`] for a key on a deny list; otherwise as
    /// [`check`](Self::check).
    ///
    /// # Panics
    ///
    /// As [`check`](Self::check), and outside of a Tokio runtime with time if the policy waits.
    ///
    /// # Cancel safety
    ///
    /// As [`check`](Self::check), or as [`acquire`](Self::acquire) if the policy waits.
    pub fn admit<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Admit<'a> {
        Admit::new(self.check(policy, key))
    }

    /// Requests permits of several limits as one decision. The strictest policy determines the
    /// handling of a denial: rejection, then the shortest wait, then degradation. See
    /// [`check_all`](Self::check_all).
    ///
    /// # Errors
    ///
    /// As [`admit`](Self::admit).
    pub fn admit_all<'a, A: Into<LimitRequest<'a>>>(
        &'a self,
        requests: impl IntoIterator<Item = A>,
    ) -> Admit<'a> {
        Admit::new(self.check_all(requests))
    }
}

impl<'a, P> Admit<'a, P> {
    pub(super) fn new(check: Check<'a, P>) -> Self {
        Self(check)
    }

    /// Sets the cost of the call, as [`Check::cost`].
    pub fn cost<C>(self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        Self(self.0.cost(cost))
    }
}

impl Check<'_> {
    /// Decides and applies the denial handling; allocates nothing if the policies reject.
    pub(crate) async fn admitted(self) -> Result<Allowed, Rejection> {
        match self.on_denial() {
            OnDenial::Reject => self.await?.require(),
            OnDenial::Wait(timeout) => Acquire::new(self).timeout(timeout).await,
            OnDenial::Degrade => self.await?.or_degraded(),
        }
    }
}

impl<'a, P: PolicyRef + 'a> IntoFuture for Admit<'a, P> {
    type Output = Result<Allowed, Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match P::look_up_for(&self.0)? {
                ResolvedPolicies::Policy(found) => self.0.resolved(&found).admitted().await,
                ResolvedPolicies::Allowed(decision) => decision.require(),
            }
        })
    }
}

impl Allowed {
    /// Converts a degraded decision to a denial, for calls that cannot respond degraded.
    pub(crate) fn or_denied(self) -> Result<Self, Rejection> {
        let mut decision = self.into_decision();
        if decision.is_degraded() {
            decision.allowed = false;
            decision.flags = decision.flags.without(DecisionFlags::DEGRADED);
        }
        decision.require()
    }
}

impl Decision {
    /// Applies `Degrade`: only a denial by the limits is degraded.
    fn or_degraded(mut self) -> Result<Allowed, Rejection> {
        let denied_by_limits =
            !self.origin.is_independent_of_permits() && self.origin != Origin::FailedClosed;
        if !self.allowed && denied_by_limits && !self.is_blocked() {
            self.allowed = true;
            self.flags = self.flags.and(DecisionFlags::DEGRADED);
        }
        self.require()
    }
}

impl Check<'_> {
    /// True if a limit may delay the call.
    pub(crate) fn is_paced(&self) -> bool {
        self.requests().iter().any(|request| request.policy().is_paced())
    }

    /// Applies the policies' denial rules and waits for the delay. Allocates nothing if no limit is
    /// paced.
    ///
    /// # Cancel safety
    ///
    /// As for the check until it is decided; afterwards the charge is refunded.
    pub(crate) async fn admitted_in_turn(self) -> Result<Allowed, Rejection> {
        self.admitted_in_turn_within(None, None).await
    }

    /// Bounds the wait for the delay by `bound` and by the slots of `wait_limit`.
    pub(crate) async fn admitted_in_turn_within(
        self,
        bound: Option<Duration>,
        wait_limit: Option<&WaitLimit>,
    ) -> Result<Allowed, Rejection> {
        if self.is_paced() {
            Box::pin(self.wait_until_admitted(bound, wait_limit)).await
        } else {
            self.admitted().await
        }
    }

    async fn wait_until_admitted(
        self,
        bound: Option<Duration>,
        wait_limit: Option<&WaitLimit>,
    ) -> Result<Allowed, Rejection> {
        if let OnDenial::Wait(_) = self.on_denial() {
            // `admitted` also waits for the delay.
            return self.admitted().await;
        }
        let check = self.clone();
        let budget = bound.map(|bound| PacingBudget::from(&check.limiter().inner.clock, bound));
        let allowed = self.admitted().await?;
        if allowed.delay().is_zero() {
            return Ok(allowed);
        }
        let grant = check.reservation(allowed);
        // The request is valid because it was granted.
        let limiter = check.limiter();
        let queue = || {
            check
                .request(None)
                .map_or_else(|_| QueueId::new(), |request| request.queue())
        };
        let slot = WaitSlot::new(wait_limit, queue);
        limiter.wait_for_delay(grant, budget, slot).await
    }
}

#[cfg(test)]
mod tests {
    use crate::check::admit::*;
    use crate::{ManualClock, Policy, PolicyBuilder};

    const SECOND: Duration = Duration::from_secs(1);

    fn paced() -> PolicyBuilder<crate::typestate::LevelParams> {
        Policy::funnel("p").capacity(3).rate("1/s").paced()
    }

    #[tokio::test]
    async fn cancelled_delayed_call_is_refunded() {
        let policy = paced().build().unwrap();
        let limits = Limiter::in_process().clock(&ManualClock::new()).build();
        for cancelled in [false, true, true] {
            let call = limits.check(&policy, "a").admitted_in_turn();
            let result = tokio::time::timeout(Duration::ZERO, call).await;
            assert_eq!(result.is_err(), cancelled);
            let refunded = async {
                while limits.peek(&policy, "a").await.unwrap().remaining() != 2 {
                    tokio::task::yield_now().await;
                }
            };
            assert!(tokio::time::timeout(SECOND * 10, refunded).await.is_ok());
        }
    }

    #[tokio::test]
    async fn call_with_wait_on_denial_waits_for_delay_once() {
        let policy = paced().on_denial(OnDenial::Wait(SECOND * 5)).build().unwrap();
        let clock = ManualClock::new();
        let limits = Limiter::in_process().clock(&clock).build();
        assert!(limits.check(&policy, "a").admitted_in_turn().await.is_ok());
        let mut second = std::pin::pin!(limits.check(&policy, "a").admitted_in_turn());
        assert!(tokio::time::timeout(Duration::ZERO, &mut second).await.is_err());
        clock.advance(SECOND);
        let second = tokio::time::timeout(SECOND * 10, second).await;
        assert!(second.is_ok_and(|second| second.is_ok_and(|second| second.delay() == SECOND)));
    }
}
