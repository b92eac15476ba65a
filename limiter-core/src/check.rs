//! Checks and peeks: the builder, its future, and the decision that needs no waiting.
//!
//! Awaited checks, named policies, annotated functions and layers first call [`Check::try_decide`],
//! or one of its forms in `without_waiting.rs`, and query the store (`query.rs`) only if it returns
//! `Pending`. In process it decides every plain check. With Redis it decides those that
//! leased tokens or the deny cache decide.
//!
//! One plain limit is decided in place, without building a request: it is borrowed, its identity
//! and cost are computed once, and the decision is written into the caller's place. A check is
//! plain if its result depends on the store alone: the limiter enforces decisions, and no policy is
//! in shadow, is off, has a key list or a penalty. All other checks are evaluated by an
//! [`EnforcementPlan`](crate::enforcement::EnforcementPlan).
//!
//! Tests: `tests/entry_points.rs` compares all entry points; `cargo xtask bench --instructions`
//! counts the instructions of this path.

mod acquire;
mod acquire_concurrency;
pub(crate) mod acquire_detached;
mod admit;
mod policy_handle;
pub(crate) mod policy_ref;
mod query;
mod refund;
pub(crate) mod registry_lookup;
mod reserve;
mod several;
pub(crate) mod without_waiting;

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::{fmt, mem};

use crate::algorithm::Mode;
pub use crate::check::acquire::Acquire;
pub use crate::check::acquire_concurrency::{AcquireConcurrency, ConcurrencyFuture};
pub use crate::check::admit::Admit;
pub use crate::check::policy_handle::PolicyHandle;
use crate::check::policy_ref::Lookup;
pub use crate::check::policy_ref::PolicyRef;
use crate::check::query::PendingDecision;
pub use crate::check::refund::{Charge, Refund};
use crate::check::registry_lookup::{RegisteredLimits, ResolvedPolicies};
pub use crate::check::reserve::Reserve;
use crate::decision::{Decision, Rejection};
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::observe::{self, ReportedLimit};
use crate::policy::Policy;
use crate::request::{IdentifiedLimit, LimitCharge, LimitRequest};
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
    /// The limits whose policies the registry has.
    registered: RegisteredLimits,
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

    /// Returns the decision that [`check`](Self::check) would make now, and charges nothing.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn peek<'a>(&'a self, policy: &'a Policy, key: impl Into<Key<'a>>) -> Check<'a> {
        Check::alone(self, LimitRequest::new(policy, key), Mode::Peek)
    }
}

impl<'a, P> Check<'a, P> {
    #[inline]
    pub(crate) fn alone(limiter: &'a Limiter, request: LimitRequest<'a, P>, mode: Mode) -> Self {
        Self::of(limiter, OneOrMany::One(request), mode)
    }

    #[inline]
    pub(crate) fn of(limiter: &'a Limiter, requests: OneOrMany<LimitRequest<'a, P>>, mode: Mode) -> Self {
        Self {
            limiter,
            requests,
            mode,
            is_tried: false,
            registered: RegisteredLimits::default(),
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
            OneOrMany::One(request) => request.set_cost(cost),
            OneOrMany::Several(requests) => requests
                .iter_mut()
                .for_each(|request| request.set_cost(cost.clone())),
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

impl<'a, P: PolicyRef + 'a> IntoFuture for Check<'a, P> {
    type Output = Result<Decision, Rejection>;
    type IntoFuture = CheckFuture<'a, P>;

    #[inline]
    fn into_future(self) -> CheckFuture<'a, P> {
        CheckFuture {
            check: self,
            progress: CheckProgress::NotStarted,
        }
    }
}

/// The future of a [`Check`]. In process it is ready at the first poll, without an allocation.
#[must_use = "futures do nothing unless polled"]
pub struct CheckFuture<'a, P = &'a Policy> {
    check: Check<'a, P>,
    progress: CheckProgress<'a>,
}

enum CheckProgress<'a> {
    NotStarted,
    Queried(PendingDecision<'a>),
    Finished,
}

impl<'a, P: PolicyRef + 'a> Future for CheckFuture<'a, P> {
    type Output = Result<Decision, Rejection>;

    /// Reads the check in place and writes the decision to the place of the caller: a move of
    /// either takes longer than the decision.
    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let CheckProgress::NotStarted = this.progress {
            if let Some(check) = P::without_lookup(&this.check) {
                if !check.is_tried && check.is_plain() {
                    let undecided = Cell::new(None);
                    if check.limiter.inner.backend.is_in_process() {
                        this.progress = CheckProgress::Finished;
                        return check.try_decide_plain(&undecided);
                    }
                    let answer = check.try_decide_plain(&undecided);
                    if answer.is_ready() {
                        this.progress = CheckProgress::Finished;
                        return answer;
                    }
                    this.check.is_tried = true;
                    return this.poll_pending(context, undecided.get());
                }
            }
        }
        this.poll_pending(context, None)
    }
}

impl<'a, P: PolicyRef + 'a> CheckFuture<'a, P> {
    /// Polls the query to the store. `charge` is the identity and the cost of the only limit, if
    /// they are known.
    fn poll_pending(
        &mut self,
        context: &mut Context<'_>,
        charge: Option<LimitCharge>,
    ) -> Poll<Result<Decision, Rejection>> {
        #[expect(clippy::panic, reason = "a future must not be polled after completion")]
        let mut query = match mem::replace(&mut self.progress, CheckProgress::Finished) {
            CheckProgress::NotStarted => {
                let mut query = None;
                let answer = P::start(&mut self.check, charge, &mut query);
                match query {
                    Some(query) => query,
                    None => return answer,
                }
            }
            CheckProgress::Queried(query) => query,
            CheckProgress::Finished => panic!("`CheckFuture` polled after completion"),
        };
        let answer = query.as_mut().poll(context);
        if answer.is_pending() {
            self.progress = CheckProgress::Queried(query);
        }
        answer
    }
}

impl<'a> Check<'a> {
    /// Returns whether the result depends on the store alone: no shadow or off mode, overlay, key
    /// list or penalty.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        let policies = match &self.requests {
            OneOrMany::One(request) => request.policy.is_store_only(),
            OneOrMany::Several(requests) => requests.iter().all(|request| request.policy.is_store_only()),
        };
        // One branch, since both are evaluated for every call.
        (self.limiter.enforces() & policies) || (policies && self.limiter.is_free_of_overlays(&self.requests))
    }

    /// Decides without waiting. `Pending` has charged nothing: the store must be queried, or the
    /// check is not plain.
    #[inline]
    pub(crate) fn try_decide(&self) -> Poll<Result<Decision, Rejection>> {
        if self.is_plain() {
            self.try_decide_plain(&Cell::new(None))
        } else {
            Poll::Pending
        }
    }

    /// As [`try_decide`](Self::try_decide), of a plain check. In process it is never `Pending`.
    /// Before `Pending` it may write identity and cost of the only limit to `undecided`, so that
    /// the request to the store need not compute them again.
    #[inline]
    fn try_decide_plain(&self, undecided: &Cell<Option<LimitCharge>>) -> Poll<Result<Decision, Rejection>> {
        match &self.requests {
            OneOrMany::One(limit) => self.try_decide_one(limit, undecided),
            OneOrMany::Several(limits) => self.try_decide_several(limits),
        }
    }

    /// Decides one limit: by the fast step in process, which is inlined, so that its numbers stay
    /// in registers until they are written into the caller's `Decision`; else by
    /// [`try_decide_one_generally`](Self::try_decide_one_generally).
    #[inline(never)]
    fn try_decide_one(
        &self,
        limit: &LimitRequest<'_>,
        undecided: &Cell<Option<LimitCharge>>,
    ) -> Poll<Result<Decision, Rejection>> {
        self.limiter.open()?;
        let policy = limit.policy;
        let LimitCharge { identity, cost } = match limit.charge() {
            Ok(charge) => charge,
            Err(rejection) => return self.try_peek_permits(limit, rejection),
        };
        if policy.is_scaled() {
            return self.try_decide_together();
        }
        let identified = IdentifiedLimit {
            policy,
            identity,
            cost,
        };
        if let Some(outcome) = self
            .limiter
            .inner
            .backend
            .try_decide_one_fast(identified, self.mode)
        {
            observe::record_decision(policy, self.mode, &outcome);
            return Poll::Ready(Ok(outcome.decision(policy)));
        }
        self.try_decide_one_generally(&limit.key, identified, undecided)
    }

    /// Decides one limit that the fast step does not decide. Not inlined, so that the fast step
    /// needs fewer registers.
    #[inline(never)]
    fn try_decide_one_generally(
        &self,
        key: &Key<'_>,
        limit: IdentifiedLimit<'_>,
        undecided: &Cell<Option<LimitCharge>>,
    ) -> Poll<Result<Decision, Rejection>> {
        let (backend, policy) = (&self.limiter.inner.backend, limit.policy);
        match backend.try_decide_one(limit, self.mode) {
            Some(Ok(outcome)) => {
                observe::record_decision(policy, self.mode, &outcome);
                if let Some(usage) = backend.usage() {
                    observe::record_usage(usage, &ReportedLimit::new(policy, key), self.mode, &outcome);
                }
                Poll::Ready(Ok(outcome.decision(policy)))
            }
            Some(Err(error)) => self.decide_without_store(error),
            // Leased tokens are spent by requests.
            None if self.mode != Mode::Charge || policy.lease().is_some() => self.try_decide_together(),
            None => {
                undecided.set(Some(LimitCharge {
                    identity: limit.identity,
                    cost: limit.cost,
                }));
                Poll::Pending
            }
        }
    }
}

impl Lookup for &Policy {
    type Found = ();

    const REGISTERED: RegisteredLimits = RegisteredLimits::NONE;

    fn name(&self) -> &str {
        Policy::name(self)
    }

    #[inline]
    fn look_up(self, _: &Limiter, _: &Key<'_>) -> Result<ResolvedPolicies<()>, Rejection> {
        Ok(ResolvedPolicies::Policy(()))
    }

    #[inline]
    fn policy<'b>(self, (): &'b ()) -> &'b Policy
    where
        Self: 'b,
    {
        self
    }

    #[inline]
    fn without_lookup<'b>(check: &'b Check<'_, Self>) -> Option<&'b Check<'b>> {
        Some(check)
    }

    #[inline]
    fn look_up_for(_: &Check<'_, Self>) -> Result<ResolvedPolicies<()>, Rejection> {
        Ok(ResolvedPolicies::Policy(()))
    }

    fn start<'b>(
        check: &mut Check<'b, Self>,
        charge: Option<LimitCharge>,
        query: &mut Option<PendingDecision<'b>>,
    ) -> Poll<Result<Decision, Rejection>>
    where
        Self: 'b,
    {
        if !check.is_tried {
            if let Poll::Ready(answer) = check.try_decide() {
                return Poll::Ready(answer);
            }
        }
        *query = Some(check.take().query(charge)?);
        Poll::Pending
    }
}

impl<P> fmt::Debug for CheckFuture<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CheckFuture")
    }
}
