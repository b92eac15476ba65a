//! A validated request for concurrency permits: one limit, with its cost, maximum and lease.
//!
//! Validation rejects a rate policy, a fractional cost, and a cost above the maximum or above
//! `MAX_PERMIT_COST`. A waiting request can be repeated under the terms of a later call, because
//! the policy may change in the meantime. Tests: `tests/contract/concurrency.rs`.

use smallvec::SmallVec;

use crate::algorithm::{Mode, StepOutcome, StepResult};
use crate::decision::{Decision, LimitOutcome, Origin, Rejection};
use crate::error::ConfigError;
use crate::memory::permit_table::{MAX_PERMIT_COST, PermitTerms};
use crate::policy::{Algorithm, Concurrency};
use crate::request::limit_request::RequestedCost;
use crate::request::{DecisionRequest, LimitRequest, ValidatedLimit, identity, never_fits};
use crate::units::{Amount, Timestamp};

/// A validated request for concurrency permits.
#[derive(Clone, Debug)]
pub(crate) struct ConcurrencyRequest<'a> {
    /// Contains exactly one limit.
    request: DecisionRequest<'a>,
    terms: PermitTerms,
}

impl<'a> ConcurrencyRequest<'a> {
    /// Validates a request.
    pub(crate) fn new(
        LimitRequest { policy, key, cost }: LimitRequest<'a>,
        mode: Mode,
    ) -> Result<Self, Rejection> {
        let Algorithm::Concurrency(Concurrency { max, lease_ms }) = *policy.algorithm() else {
            let expected =
                "a concurrency policy; use `Limiter::check` or `Limiter::acquire` for a rate policy";
            return Err(Rejection::Config(ConfigError::invalid(
                "policy", policy, expected,
            )));
        };
        let cost = match cost {
            RequestedCost::Thousandths(cost) => Amount::from_thousandths(cost),
            RequestedCost::Other(cost) => (*cost).map_err(|error| error.for_policy(policy.name()))?,
        };
        if cost > policy.quota() {
            return Err(never_fits(policy, cost));
        }
        if !cost.is_whole() || cost > Amount::from(MAX_PERMIT_COST) {
            let expected = format!(
                "whole permits, at most {MAX_PERMIT_COST} in one call, for policy `{}`",
                policy.name()
            );
            return Err(Rejection::Config(ConfigError::invalid("cost", cost, expected)));
        }
        let key = key.bounded();
        let cost = cost.whole();
        let limit = ValidatedLimit {
            identity: identity(policy, &key),
            policy,
            cost,
            key,
            blocks: None,
        };
        let limits = SmallVec::from_buf([limit]);
        Ok(Self {
            request: DecisionRequest { limits, mode },
            terms: PermitTerms { cost, max, lease_ms },
        })
    }

    pub(crate) fn decision_request(&self) -> &DecisionRequest<'a> {
        &self.request
    }

    pub(crate) fn limit(&self) -> &ValidatedLimit<'a> {
        #[expect(
            clippy::expect_used,
            reason = "`new` adds one limit, and no method removes it"
        )]
        self.request.limits.first().expect("a request with one limit")
    }

    pub(crate) fn terms(&self) -> PermitTerms {
        self.terms
    }

    /// Returns the request under the terms of a later call.
    ///
    /// # Errors
    ///
    /// [`Rejection::NeverFits`] if the cost exceeds the maximum of these terms.
    pub(crate) fn under(&self, terms: PermitTerms) -> Result<Self, Rejection> {
        if terms.cost > terms.max {
            return Err(Rejection::NeverFits {
                policy: self.limit().policy.clone(),
                cost: Amount::from(terms.cost),
                quota: Amount::from(terms.max),
            });
        }
        Ok(Self {
            terms,
            ..self.clone()
        })
    }
}

impl DecisionRequest<'_> {
    /// Builds the decision of a request with one concurrency limit.
    pub(crate) fn concurrency_decision(
        &self,
        outcome: StepOutcome,
        decided_at: Timestamp,
        origin: Origin,
    ) -> Decision {
        let outcome_of =
            |limit: &ValidatedLimit<'_>| LimitOutcome::new(limit.policy, StepResult::Computed(outcome));
        Decision {
            limits: self.limits.iter().map(outcome_of).collect(),
            allowed: outcome.fits,
            ..Decision::without_query(origin, decided_at)
        }
    }
}
