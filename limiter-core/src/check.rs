//! Checks and peeks.
//!
//! A [`Check`] is a builder. Its future ([`CheckFuture`]) decides without waiting if it can
//! ([`Check::try_decide`]), evaluates modes, key lists and penalties if a policy has them
//! ([`EnforcementPlan`](crate::enforcement::EnforcementPlan)), and queries the store otherwise.

mod acquire;
mod acquire_concurrency;
pub(crate) mod acquire_detached;
mod admit;
pub(crate) mod future;
pub(crate) mod named;
mod reserve;
pub(crate) mod try_decide;

use std::mem;
use std::pin::Pin;
use std::time::Duration;

use crate::algorithm::Mode;
pub use crate::check::acquire::Acquire;
pub use crate::check::acquire_concurrency::{AcquireConcurrency, ConcurrencyFuture};
pub use crate::check::admit::Admit;
pub use crate::check::future::CheckFuture;
pub use crate::check::reserve::Reserve;
use crate::decision::{Decision, Rejection};
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::observe;
use crate::policy::{OnDenial, Policy};
use crate::request::{DecisionRequest, LimitRequest};
use crate::support::one_or_many::OneOrMany;
use crate::units::Amount;

/// A check or a peek that was not sent: await it. Made by [`Limiter::check`],
/// [`Limiter::check_all`] and [`Limiter::peek`].
#[derive(Clone, Debug)]
#[must_use = "nothing is decided or charged until this is awaited"]
pub struct Check<'a> {
    pub(crate) limiter: &'a Limiter,
    asks: OneOrMany<LimitRequest<'a>>,
    mode: Mode,
    /// [`try_decide`](Check::try_decide) has returned `Pending`, so the store is queried at once.
    is_tried: bool,
}

impl Limiter {
    /// Asks for a permit of `policy` for `key`, and charges it if it is allowed.
    ///
    /// # Errors
    ///
    /// Being limited is not an error: see [`Decision::require`]. [`Rejection::NeverFits`] and
    /// [`Rejection::Config`] come before any I/O, [`Rejection::Unavailable`] when the store gives
    /// no answer and the policy says so.
    ///
    /// # Panics
    ///
    /// With Redis, outside of a Tokio runtime with time and I/O. In process it needs no runtime.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped while Redis is asked may have been charged. It is never charged
    /// twice.
    pub fn check<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Check<'a> {
        Check::alone(self, LimitRequest::new(policy, key), Mode::Charge)
    }

    /// Asks for permits of several limits as one decision: all are charged, or none.
    ///
    /// Their keys must share a group (the same key, or [`Key::in_group`]), so that a cluster can
    /// decide them at one place; unless the limiter is told that none does
    /// ([`InProcessBuilder::standalone_only`](crate::InProcessBuilder::standalone_only)).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, Policy};
    ///
    /// let limits = Limiter::in_process().build();
    /// let burst = Policy::token_bucket("burst").capacity(5).rate(1).build()?;
    /// let daily = Policy::sliding_window("daily").limit(2).window("1d").build()?;
    /// let both = [(&burst, "ann"), (&daily, "ann")];
    ///
    /// limits.check_all(both).cost(2).await?.require()?;
    /// let denied = limits.check_all(both).await?;
    /// assert_eq!(denied.denied_by().unwrap().policy().name(), "daily");
    /// assert_eq!(limits.peek(&burst, "ann").await?.remaining(), 3, "a denial charges nothing");
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn check_all<'a, A: Into<LimitRequest<'a>>>(
        &'a self,
        asks: impl IntoIterator<Item = A>,
    ) -> Check<'a> {
        Check::new(self, asks.into_iter().map(Into::into), Mode::Charge)
    }

    pub(crate) fn check_one_or_many<'a>(&'a self, asks: OneOrMany<LimitRequest<'a>>) -> Check<'a> {
        Check::of(self, asks, Mode::Charge)
    }

    /// Says what [`check`](Self::check) would answer now, and charges nothing.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn peek<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Check<'a> {
        Check::alone(self, LimitRequest::new(policy, key), Mode::Peek)
    }

    /// Says what [`check_all`](Self::check_all) would answer now, and charges nothing.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn peek_all<'a, A: Into<LimitRequest<'a>>>(&'a self, asks: impl IntoIterator<Item = A>) -> Check<'a> {
        Check::new(self, asks.into_iter().map(Into::into), Mode::Peek)
    }
}

impl<'a> Check<'a> {
    pub(crate) fn new(
        limiter: &'a Limiter,
        asks: impl IntoIterator<Item = LimitRequest<'a>>,
        mode: Mode,
    ) -> Self {
        Self::of(limiter, asks.into_iter().collect(), mode)
    }

    #[inline]
    pub(crate) fn alone(limiter: &'a Limiter, ask: LimitRequest<'a>, mode: Mode) -> Self {
        Self::of(limiter, OneOrMany::One(ask), mode)
    }

    #[inline]
    pub(crate) fn of(limiter: &'a Limiter, asks: OneOrMany<LimitRequest<'a>>, mode: Mode) -> Self {
        Self {
            limiter,
            asks,
            mode,
            is_tried: false,
        }
    }

    /// Sets the cost of the call under each of its limits. Default: 1, or the cost of each
    /// [`LimitRequest`].
    ///
    /// A cost of 0 charges nothing and is always allowed; fractions to a thousandth are for buckets
    /// and funnels.
    #[inline]
    pub fn cost<C>(mut self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        let cost = cost.try_into().map_err(Into::into);
        match &mut self.asks {
            OneOrMany::One(ask) => ask.set_cost(cost),
            OneOrMany::Several(asks) => asks.iter_mut().for_each(|ask| ask.set_cost(cost.clone())),
        }
        self
    }

    /// Skips the attempt to decide without waiting, which the caller has made.
    pub(crate) fn after_try(self) -> Self {
        Self {
            is_tried: true,
            ..self
        }
    }

    pub(crate) fn first_policy(&self) -> Option<&'a Policy> {
        self.asks.first().map(LimitRequest::policy)
    }

    /// Whether the result depends on the store alone: no shadow, off mode, key list or penalty.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        let policies = match &self.asks {
            OneOrMany::One(ask) => ask.policy().is_store_only(),
            OneOrMany::Several(asks) => asks.iter().all(|ask| ask.policy().is_store_only()),
        };
        // One branch, since both are evaluated for every call.
        self.limiter.enforces() & policies
    }

    /// The shortest deadline of its policies.
    pub(crate) fn deadline(&self) -> Duration {
        let each = self.asks.iter().map(|ask| ask.policy().deadline());
        each.min().unwrap_or(Policy::DEFAULT_DEADLINE)
    }

    /// The strictest reaction of its policies to a denial.
    pub(crate) fn on_denial(&self) -> OnDenial {
        let each = self.asks.iter().map(|ask| ask.policy().on_denial());
        each.reduce(OnDenial::stricter).unwrap_or_default()
    }

    pub(crate) fn limiter(&self) -> &'a Limiter {
        self.limiter
    }

    pub(crate) fn asks(&self) -> &[LimitRequest<'a>] {
        &self.asks
    }

    pub(crate) fn into_parts(self) -> (&'a Limiter, OneOrMany<LimitRequest<'a>>, Mode) {
        (self.limiter, self.asks, self.mode)
    }

    /// Moves the check out of a future that is polled once.
    fn take(&mut self) -> Self {
        Self {
            asks: mem::take(&mut self.asks),
            ..*self
        }
    }

    /// The limit of a check that reports concurrency permits, which are no part of a request.
    pub(super) fn permit_peek(&self) -> Option<&LimitRequest<'a>> {
        match &self.asks {
            OneOrMany::One(limit) if self.mode == Mode::Peek && limit.policy().is_concurrency() => {
                Some(limit)
            }
            _ => None,
        }
    }

    /// The request of the check.
    pub(crate) fn request(self) -> Result<DecisionRequest<'a>, Rejection> {
        self.limiter.open()?;
        request(self.limiter, self.asks.into_iter(), self.mode)
    }

    /// The request of the check, with its keys borrowed.
    fn borrowed_request(&self) -> Result<DecisionRequest<'_>, Rejection> {
        self.limiter.open()?;
        let limits = self.asks.iter().map(LimitRequest::borrowed);
        request(self.limiter, limits, self.mode)
    }
}

/// A request of these limits. A rejection is counted for the limit that is invalid.
fn request<'a>(
    limiter: &Limiter,
    limits: impl Iterator<Item = LimitRequest<'a>>,
    mode: Mode,
) -> Result<DecisionRequest<'a>, Rejection> {
    let mut last = None;
    let limits = limits.inspect(|limit| last = Some(limit.policy()));
    DecisionRequest::new(limits, mode, limiter.inner.any_groups).inspect_err(|rejection| {
        if let Some(policy) = last {
            observe::rejected(policy, mode, rejection);
        }
    })
}

type PendingDecision<'a> = Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + Send + 'a>>;
