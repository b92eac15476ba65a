//! The less common forms of the decision without waiting.
//!
//! [`Check::try_decide`] decides one plain limit in place. This file builds a request for several
//! limits, for limits with leased tokens, and for limits whose policy was changed. It also answers
//! a peek at concurrency permits, and applies the failure mode when the store is full.
//! [`Limiter::try_pass`] is the form for layers and annotated functions with one limit, which write
//! no decision for an allowed call.
//!
//! Tests: `tests/entry_points.rs` compares all entry points.

use std::task::Poll;

use smallvec::smallvec;

use crate::algorithm::Mode;
use crate::check::Check;
use crate::decision::{Decision, Rejection, SingleOutcome};
use crate::error::StoreError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::observe;
use crate::permits::request::ConcurrencyRequest;
use crate::policy::Policy;
use crate::request::{IdentifiedLimit, LimitCharge, LimitRequest, charge_of_bounded_key};
use crate::store_failure::without_store;
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
    /// Decides several limits, or one whose usage may have to be converted or is leased.
    #[inline(never)]
    pub(super) fn try_decide_together(&self) -> Poll<Result<Decision, Rejection>> {
        let request = self.borrowed_request()?;
        match self.limiter.inner.backend.try_decide(&request) {
            Some(answer) => {
                observe::record_request(self.limiter.inner.backend.usage(), &request, &answer);
                Poll::Ready(answer)
            }
            None => Poll::Pending,
        }
    }

    /// Permits of concurrency cannot be charged by a check, but a peek reports them. Other limits
    /// are rejected.
    #[cold]
    pub(super) fn try_peek_permits(
        &self,
        limit: &LimitRequest<'_>,
        rejection: Rejection,
    ) -> Poll<Result<Decision, Rejection>> {
        if self.permit_peek().is_none() {
            observe::record_rejection(
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
    pub(super) fn decide_without_store(&self, error: StoreError) -> Poll<Result<Decision, Rejection>> {
        let request = self.borrowed_request()?;
        let answer = without_store(&request, error, self.limiter.now());
        observe::record_request(self.limiter.inner.backend.usage(), &request, &answer);
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
        let single = IdentifiedLimit {
            policy,
            identity,
            cost,
        };
        let backend = &self.limiter.inner.backend;
        let decided = match backend.try_decide_one_fast(single, self.mode) {
            Some(outcome) => Some(Ok(outcome)),
            None => backend.try_decide_one(single, self.mode),
        };
        match decided {
            Some(Ok(outcome)) if outcome.fits => {
                observe::record_decision(policy, self.mode, &outcome);
                Poll::Ready(Ok(outcome.decision(policy)))
            }
            _ => Poll::Pending,
        }
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
        let Ok(charge) = charge_of_bounded_key(policy, key, cost) else {
            return Passage::Undecided;
        };
        let single = IdentifiedLimit {
            policy,
            identity: charge.identity,
            cost: charge.cost,
        };
        let backend = &self.inner.backend;
        if let Some(outcome) = backend.try_decide_one_fast(single, Mode::Charge) {
            return passage(policy, outcome);
        }
        match backend.try_decide_one(single, Mode::Charge) {
            Some(Ok(outcome)) => passage(policy, outcome),
            Some(Err(error)) => {
                let limit = LimitRequest::new(policy, key).cost(cost);
                let check = Check::of(self, OneOrMany::One(limit), Mode::Charge);
                match check.decide_without_store(error) {
                    Poll::Ready(answer) => Passage::Decided(answer),
                    Poll::Pending => Passage::Undecided,
                }
            }
            None => Passage::Undecided,
        }
    }
}

/// Reports an outcome, and writes a decision if it denies the call.
#[inline(always)]
fn passage(policy: &Policy, outcome: SingleOutcome) -> Passage {
    observe::record_decision(policy, Mode::Charge, &outcome);
    if outcome.fits {
        Passage::Allowed
    } else {
        Passage::Decided(Ok(outcome.decision(policy)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Origin;
    use crate::policy::OnStoreFailure;

    #[test]
    fn full_store_applies_the_failure_mode() {
        let limiter = Limiter::in_process().max_keys(1).build();
        for (on_failure, origin) in [
            (OnStoreFailure::FailOpen, Origin::FailedOpen),
            (OnStoreFailure::FailClosed, Origin::FailedClosed),
        ] {
            let bucket = Policy::token_bucket("p").capacity(10).rate(1);
            let policy = bucket.on_store_failure(on_failure).build().unwrap();
            let pass = |key: &str| limiter.try_pass(&policy, &Key::from(key), Amount::from(2_u32));
            assert!(matches!(pass("stored"), Passage::Allowed));
            let Passage::Decided(Ok(decision)) = pass("new") else {
                panic!("a full store decides by the failure mode");
            };
            assert_eq!(decision.origin(), origin);
        }
    }
}
