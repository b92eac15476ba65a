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
mod policy_handle;
pub(crate) mod policy_ref;
mod refund;
pub(crate) mod registry_lookup;
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
pub use crate::check::policy_handle::PolicyHandle;
pub use crate::check::policy_ref::PolicyRef;
pub use crate::check::refund::{Charge, Refund};
pub use crate::check::reserve::Reserve;
use crate::decision::{Decision, Rejection};
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::observe;
use crate::policy::{OnDenial, Policy};
use crate::request::{DecisionRequest, LimitCharge, LimitRequest};
use crate::support::one_or_many::OneOrMany;
use crate::units::Amount;

/// A check or a peek; the request is sent when the value is awaited. Returned by
/// [`Limiter::check`], [`Limiter::check_all`] and [`Limiter::peek`], and for a policy's name
/// (`P = &str`) by [`PolicyHandle::check`](crate::PolicyHandle::check).
#[derive(Clone, Debug)]
#[must_use = "nothing is decided or charged until this is awaited"]
pub struct Check<'a, P = &'a Policy> {
    pub(crate) limiter: &'a Limiter,
    requests: OneOrMany<LimitRequest<'a, P>>,
    mode: Mode,
    /// [`try_decide`](Check::try_decide) has returned `Pending`, so the store is queried at once.
    is_tried: bool,
}

impl Limiter {
    /// Requests a permit of `policy` for `key`, and charges it if the call is allowed.
    ///
    /// # Errors
    ///
    /// A denial is not an error: see [`Decision::require`]. [`Rejection::NeverFits`] and
    /// [`Rejection::Config`] are returned before any I/O. [`Rejection::Unavailable`] is returned
    /// when the store does not answer and the policy's [`OnStoreFailure`](crate::OnStoreFailure) is
    /// an error.
    ///
    /// # Panics
    ///
    /// With Redis, panics outside of a Tokio runtime with time and I/O. In process, no runtime is
    /// needed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while a request to Redis is in flight, the call may have been
    /// charged, at most once.
    pub fn check<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Check<'a> {
        Check::alone(self, LimitRequest::new(policy, key), Mode::Charge)
    }

    /// Requests permits of several limits as one decision: either all are charged or none.
    ///
    /// The keys must share a group (the same key, or [`Key::in_group`]), so that one node of a
    /// cluster can decide them.
    /// [`InProcessBuilder::standalone_only`](crate::InProcessBuilder::standalone_only) removes this
    /// requirement.
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
        requests: impl IntoIterator<Item = A>,
    ) -> Check<'a> {
        Check::new(self, requests.into_iter().map(Into::into), Mode::Charge)
    }

    pub(crate) fn check_one_or_many<'a>(&'a self, requests: OneOrMany<LimitRequest<'a>>) -> Check<'a> {
        Check::of(self, requests, Mode::Charge)
    }

    /// Returns the decision that [`check`](Self::check) would make now, and charges nothing.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn peek<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Check<'a> {
        Check::alone(self, LimitRequest::new(policy, key), Mode::Peek)
    }

    /// Returns the decision that [`check_all`](Self::check_all) would make now, and charges
    /// nothing.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn peek_all<'a, A: Into<LimitRequest<'a>>>(
        &'a self,
        requests: impl IntoIterator<Item = A>,
    ) -> Check<'a> {
        Check::new(self, requests.into_iter().map(Into::into), Mode::Peek)
    }
}

impl<'a, P> Check<'a, P> {
    #[inline]
    pub(crate) fn alone(limiter: &'a Limiter, ask: LimitRequest<'a, P>, mode: Mode) -> Self {
        Self::of(limiter, OneOrMany::One(ask), mode)
    }

    #[inline]
    pub(crate) fn of(limiter: &'a Limiter, requests: OneOrMany<LimitRequest<'a, P>>, mode: Mode) -> Self {
        Self {
            limiter,
            requests,
            mode,
            is_tried: false,
        }
    }

    /// Sets the cost of the call under each of its limits. Default: 1, or the cost of each
    /// [`LimitRequest`].
    ///
    /// A cost of 0 charges nothing and is always allowed. Token buckets and funnels accept
    /// fractions of 0.001.
    #[inline]
    pub fn cost<C>(mut self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        let cost = cost.try_into().map_err(Into::into);
        match &mut self.requests {
            OneOrMany::One(ask) => ask.set_cost(cost),
            OneOrMany::Several(requests) => requests.iter_mut().for_each(|ask| ask.set_cost(cost.clone())),
        }
        self
    }

    /// Returns the reference to the policy of the first limit.
    pub(crate) fn first_ref(&self) -> Option<P>
    where
        P: Copy,
    {
        self.requests.first().map(|request| request.policy)
    }

    /// Moves the check out of its future, which is not polled again.
    fn take(&mut self) -> Self {
        Self {
            requests: mem::take(&mut self.requests),
            ..*self
        }
    }
}

impl<'a> Check<'a> {
    pub(crate) fn new(
        limiter: &'a Limiter,
        requests: impl IntoIterator<Item = LimitRequest<'a>>,
        mode: Mode,
    ) -> Self {
        Self::of(limiter, requests.into_iter().collect(), mode)
    }

    /// Skips the attempt to decide without waiting, because the caller has already made it.
    pub(crate) fn after_try(self) -> Self {
        Self {
            is_tried: true,
            ..self
        }
    }

    /// Returns whether the result depends on the store alone: no shadow or off mode, overlay, key
    /// list or penalty.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        let policies = match &self.requests {
            OneOrMany::One(ask) => ask.policy().is_store_only(),
            OneOrMany::Several(requests) => requests.iter().all(|ask| ask.policy().is_store_only()),
        };
        // One branch, since both are evaluated for every call.
        (self.limiter.enforces() & policies) || (policies && self.limiter.is_free_of_overlays(&self.requests))
    }

    /// Returns the shortest deadline of the policies.
    pub(crate) fn deadline(&self) -> Duration {
        let each = self.requests.iter().map(|ask| ask.policy().deadline());
        each.min().unwrap_or(Policy::DEFAULT_DEADLINE)
    }

    /// Returns the strictest reaction of the policies to a denial.
    pub(crate) fn on_denial(&self) -> OnDenial {
        let each = self.requests.iter().map(|ask| ask.policy().on_denial());
        each.reduce(OnDenial::stricter).unwrap_or_default()
    }

    pub(crate) fn limiter(&self) -> &'a Limiter {
        self.limiter
    }

    pub(crate) fn requests(&self) -> &[LimitRequest<'a>] {
        &self.requests
    }

    pub(crate) fn into_parts(self) -> (&'a Limiter, OneOrMany<LimitRequest<'a>>, Mode) {
        (self.limiter, self.requests, self.mode)
    }

    /// Returns the limit if this is a peek at concurrency permits, which are not part of a request.
    pub(super) fn permit_peek(&self) -> Option<&LimitRequest<'a>> {
        match &self.requests {
            OneOrMany::One(limit) if self.mode == Mode::Peek && limit.policy().is_concurrency() => {
                Some(limit)
            }
            _ => None,
        }
    }

    /// Validates the check and builds its request. `charge` is the identity and the cost of its
    /// only limit, if they are known.
    pub(crate) fn request(self, charge: Option<LimitCharge>) -> Result<DecisionRequest<'a>, Rejection> {
        self.limiter.open()?;
        match (self.requests, charge) {
            (OneOrMany::One(limit), Some(charge)) => {
                Ok(DecisionRequest::of_charged(limit, charge, self.mode))
            }
            (requests, _) => request(self.limiter, requests.into_iter(), self.mode),
        }
    }

    /// Validates the check and builds its request with borrowed keys.
    fn borrowed_request(&self) -> Result<DecisionRequest<'_>, Rejection> {
        self.limiter.open()?;
        let limits = self.requests.iter().map(LimitRequest::borrowed);
        request(self.limiter, limits, self.mode)
    }
}

/// Builds a request of these limits. A rejection is counted for the limit that is invalid.
fn request<'a>(
    limiter: &Limiter,
    limits: impl Iterator<Item = LimitRequest<'a>>,
    mode: Mode,
) -> Result<DecisionRequest<'a>, Rejection> {
    let mut last = None;
    let limits = limits.inspect(|limit| last = Some(limit.policy()));
    DecisionRequest::new(limits, mode, limiter.inner.any_groups).inspect_err(|rejection| {
        if let Some(policy) = last {
            observe::rejected(limiter.inner.backend.usage(), policy, mode, rejection);
        }
    })
}

pub(crate) type PendingDecision<'a> = Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + Send + 'a>>;
