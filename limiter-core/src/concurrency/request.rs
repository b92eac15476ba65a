//! A question for permits of what is in flight, checked before any I/O.

use smallvec::SmallVec;

use crate::algorithm::{Mode, StepOutcome, StepResult};
use crate::concurrency::table::{MOST_HELD_AT_ONCE, PermitTerms};
use crate::decision::{Decision, LimitOutcome, Origin, Rejection};
use crate::error::ConfigError;
use crate::policy::{Algorithm, Concurrency};
use crate::request::ask::RequestedCost;
use crate::request::{DecisionRequest, LimitRequest, RequestedLimit, identity, never_fits};
use crate::units::{Amount, Timestamp};

/// A question for permits of what is in flight.
#[derive(Clone, Debug)]
pub(crate) struct ConcurrencyRequest<'a> {
    /// About one limit.
    request: DecisionRequest<'a>,
    terms: PermitTerms,
}

impl<'a> ConcurrencyRequest<'a> {
    /// Checks what is asked.
    pub(crate) fn new(
        LimitRequest { policy, key, cost }: LimitRequest<'a>,
        mode: Mode,
    ) -> Result<Self, Rejection> {
        let Algorithm::Concurrency(Concurrency { max, lease_ms }) = *policy.algorithm() else {
            let expected =
                "one of concurrency: permits of a rate are taken by `Limiter::check` and `Limiter::acquire`";
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
        if !cost.is_whole() || cost > Amount::from(MOST_HELD_AT_ONCE) {
            let expected = format!(
                "whole permits, at most {MOST_HELD_AT_ONCE} in one call, for policy `{}`",
                policy.name()
            );
            return Err(Rejection::Config(ConfigError::invalid("cost", cost, expected)));
        }
        let key = key.bounded();
        let cost = cost.whole();
        let limit = RequestedLimit {
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

    pub(crate) fn request(&self) -> &DecisionRequest<'a> {
        &self.request
    }

    pub(crate) fn limit(&self) -> &RequestedLimit<'a> {
        #[expect(clippy::expect_used, reason = "`new` makes it so, and nothing changes it")]
        self.request.limits.first().expect("a question about one limit")
    }

    pub(crate) fn terms(&self) -> PermitTerms {
        self.terms
    }

    /// The same under the terms of a call that came later.
    ///
    /// # Errors
    ///
    /// [`Rejection::NeverFits`] where they never admit as much.
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
    /// The decision about each limit of which only this is to be said.
    pub(crate) fn concurrency_decision(
        &self,
        outcome: StepOutcome,
        decided_at: Timestamp,
        origin: Origin,
    ) -> Decision {
        let told = |limit: &RequestedLimit<'_>| LimitOutcome::new(limit.policy, StepResult::Told(outcome));
        Decision {
            limits: self.limits.iter().map(told).collect(),
            allowed: outcome.fits,
            ..Decision::unasked(origin, decided_at)
        }
    }
}
