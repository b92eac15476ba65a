//! A check followed by the denial handling of the policy.

use std::pin::Pin;

use crate::check::Check;
use crate::decision::{Allowed, Decision, DecisionFlags, Origin, Rejection};
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::{OnDenial, Policy};
use crate::request::LimitRequest;
use crate::units::Amount;
use crate::waiting::Acquire;

/// An admission that has not started: await it. Created by [`Limiter::admit`] and
/// [`Limiter::admit_all`].
#[derive(Clone, Debug)]
#[must_use = "nothing is charged until this is awaited"]
pub struct Admit<'a>(Check<'a>);

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
        Admit(self.check(policy, key))
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
        asks: impl IntoIterator<Item = A>,
    ) -> Admit<'a> {
        Admit(self.check_all(asks))
    }
}

impl Admit<'_> {
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

impl<'a> IntoFuture for Admit<'a> {
    type Output = Result<Allowed, Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.admitted())
    }
}

impl Allowed {
    /// Converts a degraded decision to a denial, for calls that cannot respond degraded.
    pub(crate) fn or_denied(self) -> Result<Self, Rejection> {
        let mut decision = self.into_decision();
        if decision.is_degraded() {
            decision.allowed = false;
            decision.marks = decision.marks.without(DecisionFlags::DEGRADED);
        }
        decision.require()
    }
}

impl Decision {
    /// Applies `Degrade`: only a denial by the limits is degraded.
    fn or_degraded(mut self) -> Result<Allowed, Rejection> {
        let denied_by_limits = !matches!(self.origin, Origin::KeyList | Origin::FailedClosed);
        if !self.allowed && denied_by_limits && !self.is_blocked() {
            self.allowed = true;
            self.marks = self.marks.and(DecisionFlags::DEGRADED);
        }
        self.require()
    }
}
