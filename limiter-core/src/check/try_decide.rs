//! The decision of a check that needs no waiting.
//!
//! [`Check::try_decide`] is the only function that decides without waiting. Awaited checks, named
//! policies, annotated functions and layers call it first, and query the store only if it returns
//! `Pending`. In process it decides every plain check. With Redis it decides those that leased
//! tokens or the deny cache decide.
//!
//! One plain limit is decided in place, without building a request: it is borrowed, its
//! identity and cost are computed once, and the decision is written into the caller's place.
//! Several limits are decided in the same way in process if the fast step can decide all of them;
//! otherwise they become a [`DecisionRequest`] that borrows their keys. A check is plain if its
//! result depends on the store alone: the limiter enforces decisions, and no policy is in shadow,
//! is off, has a key list or a penalty.
//!
//! Tests: `tests/entry_points.rs` compares all entry points; `cargo xtask bench --instructions`
//! counts the instructions of this path.

use std::cell::Cell;
use std::task::Poll;

use smallvec::smallvec;

use crate::algorithm::Mode;
use crate::backend::SingleLimit;
use crate::backend::without_store::without_store;
use crate::check::Check;
use crate::concurrency::request::ConcurrencyRequest;
use crate::decision::{Decision, Origin, Rejection};
use crate::error::StoreError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::observe::{self, ReportedLimit};
use crate::policy::Policy;
use crate::request::{IdentifiedLimit, LimitCharge, LimitRequest, charge};
use crate::support::one_or_many::OneOrMany;
use crate::units::Amount;

/// The result of an attempt to pass a limit without waiting.
#[derive(Debug)]
pub enum Passage {
    /// The call is allowed, and was charged.
    Allowed,
    /// The call is denied, or decided or rejected without the store. It was not charged.
    Decided(Result<Decision, Rejection>),
    /// Nothing was decided or charged: the call needs a check.
    Undecided,
}

impl Check<'_> {
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
    pub(super) fn try_decide_plain(
        &self,
        undecided: &Cell<Option<LimitCharge>>,
    ) -> Poll<Result<Decision, Rejection>> {
        match &self.requests {
            OneOrMany::One(limit) => self.try_decide_one(limit, undecided),
            OneOrMany::Several(limits) => self.try_decide_several(limits),
        }
    }

    /// Decides one limit. A single function into which the steps are inlined: the numbers stay in
    /// registers until they are written into the caller's `Decision`. Copying a decision that was
    /// just written in smaller pieces stalls for about 4 ns.
    #[inline(never)]
    fn try_decide_one(
        &self,
        limit: &LimitRequest<'_>,
        undecided: &Cell<Option<LimitCharge>>,
    ) -> Poll<Result<Decision, Rejection>> {
        self.limiter.open()?;
        let policy = limit.policy();
        let LimitCharge { identity, cost } = match limit.charge() {
            Ok(charge) => charge,
            Err(rejection) => return self.try_peek_permits(limit, rejection),
        };
        if policy.is_scaled() {
            return self.try_decide_together();
        }
        let single = SingleLimit {
            policy,
            identity,
            cost,
            mode: self.mode,
        };
        let backend = &self.limiter.inner.backend;
        backend.try_decide_one(single, |decided| match decided {
            Some(Ok(outcome)) => {
                let (fits, origin) = (outcome.result.fits(), outcome.origin);
                observe::decided(policy, self.mode, fits, origin);
                // Usage is reported to Redis only; the comparison is evaluated at compile time.
                if origin != Origin::Memory {
                    if let Some(usage) = backend.usage() {
                        let limit = ReportedLimit::new(policy, limit.key());
                        observe::used(usage, &limit, self.mode, fits, origin);
                    }
                }
                Poll::Ready(Ok(outcome.decision(policy)))
            }
            Some(Err(error)) => self.decide_without_store(error),
            // Leased tokens are spent by requests.
            None if self.mode != Mode::Charge || policy.lease().is_some() => self.try_decide_together(),
            None => {
                undecided.set(Some(LimitCharge { identity, cost }));
                Poll::Pending
            }
        })
    }

    /// Decides several limits: in process without a request, if the fast step suffices. The number
    /// of limits is a constant of the fast step, so that it needs no tables on the heap.
    fn try_decide_several(&self, limits: &[LimitRequest<'_>]) -> Poll<Result<Decision, Rejection>> {
        let decided = match limits.len() {
            2 => self.try_decide_several_fast::<2>(limits),
            3 => self.try_decide_several_fast::<3>(limits),
            4 => self.try_decide_several_fast::<4>(limits),
            _ => None,
        };
        match decided {
            Some(decision) => Poll::Ready(Ok(decision)),
            None => self.try_decide_together(),
        }
    }

    /// Decides `N` limits by the fast step, if it can decide all of them.
    #[inline(never)]
    fn try_decide_several_fast<const N: usize>(&self, limits: &[LimitRequest<'_>]) -> Option<Decision> {
        let limiter = &self.limiter.inner;
        if !self.limiter.is_in_process() || self.limiter.open().is_err() {
            return None;
        }
        let limits = IdentifiedLimit::each::<N>(limits.first_chunk()?, limiter.any_groups)?;
        let decision = limiter.backend.try_decide_several_fast(&limits, self.mode)?;
        let answer = Ok(decision);
        let policies = limits
            .iter()
            .map(|limit| ReportedLimit::without_key(limit.policy));
        observe::answered(None, policies, self.mode, &answer);
        answer.ok()
    }

    /// Decides several limits, or one whose usage may have to be converted or is leased.
    #[inline(never)]
    fn try_decide_together(&self) -> Poll<Result<Decision, Rejection>> {
        let request = self.borrowed_request()?;
        match self.limiter.inner.backend.try_decide(&request) {
            Some(answer) => {
                self.limiter.report_answer(&request, &answer);
                Poll::Ready(answer)
            }
            None => Poll::Pending,
        }
    }

    /// Permits of concurrency cannot be charged by a check, but a peek reports them. Other limits
    /// are rejected.
    #[cold]
    fn try_peek_permits(
        &self,
        limit: &LimitRequest<'_>,
        rejection: Rejection,
    ) -> Poll<Result<Decision, Rejection>> {
        if self.permit_peek().is_none() {
            observe::rejected(
                self.limiter.inner.backend.usage(),
                limit.policy(),
                self.mode,
                &rejection,
            );
            return Poll::Ready(Err(rejection));
        }
        let request = ConcurrencyRequest::new(limit.borrowed(), self.mode)?;
        match self.limiter.inner.backend.try_peek_permits(&request) {
            Some(decision) => Poll::Ready(Ok(decision)),
            None => Poll::Pending,
        }
    }

    #[cold]
    fn decide_without_store(&self, error: StoreError) -> Poll<Result<Decision, Rejection>> {
        let request = self.borrowed_request()?;
        let answer = without_store(&request, error, self.limiter.now());
        self.limiter.report_answer(&request, &answer);
        Poll::Ready(answer)
    }

    /// Takes a permit in process for a call that otherwise waits. `Pending` has charged and counted
    /// nothing: earlier calls wait for the limit, the call is denied, or the limit is not plain.
    pub(crate) fn try_acquire(&self) -> Poll<Result<Decision, Rejection>> {
        let OneOrMany::One(limit) = &self.requests else {
            return Poll::Pending;
        };
        let policy = limit.policy();
        if !self.limiter.is_in_process() || !self.is_plain() || policy.is_scaled() {
            return Poll::Pending;
        }
        self.limiter.open()?;
        // The wait reports invalid requests.
        let Ok(LimitCharge { identity, cost }) = limit.charge() else {
            return Poll::Pending;
        };
        if self.limiter.inner.queues.has_waiters(&smallvec![identity]) {
            return Poll::Pending;
        }
        let single = SingleLimit {
            policy,
            identity,
            cost,
            mode: self.mode,
        };
        let backend = &self.limiter.inner.backend;
        backend.try_decide_one(single, |decided| match decided {
            Some(Ok(outcome)) if outcome.result.fits() => {
                observe::decided(policy, self.mode, true, outcome.origin);
                Poll::Ready(Ok(outcome.decision(policy)))
            }
            _ => Poll::Pending,
        })
    }
}

impl Limiter {
    /// Decides one plain limit in process for a caller that reads a decision only if it denies the
    /// call. An allowed call writes no decision.
    #[inline(never)]
    pub(crate) fn try_pass(&self, policy: &Policy, key: &Key<'_>, cost: Amount) -> Passage {
        // One branch, since all conditions are evaluated for every call.
        let is_plain = self.enforces()
            & policy.is_store_only()
            & !policy.is_scaled()
            & key.is_bounded()
            & self.is_in_process();
        if !is_plain || self.open().is_err() {
            return Passage::Undecided;
        }
        let Ok(LimitCharge { identity, cost }) = charge(policy, key, cost) else {
            return Passage::Undecided;
        };
        let single = SingleLimit {
            policy,
            identity,
            cost,
            mode: Mode::Charge,
        };
        self.inner
            .backend
            .try_decide_one(single, |decided| match decided {
                Some(Ok(outcome)) => {
                    let fits = outcome.result.fits();
                    observe::decided(policy, Mode::Charge, fits, outcome.origin);
                    if fits {
                        return Passage::Allowed;
                    }
                    Passage::Decided(Ok(outcome.decision(policy)))
                }
                Some(Err(error)) => {
                    let limit = LimitRequest::new(policy, key).cost(cost);
                    match self
                        .check_one_or_many(OneOrMany::One(limit))
                        .decide_without_store(error)
                    {
                        Poll::Ready(answer) => Passage::Decided(answer),
                        Poll::Pending => Passage::Undecided,
                    }
                }
                None => Passage::Undecided,
            })
    }
}
