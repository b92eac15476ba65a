//! The outcome of one limit of a decision.
//!
//! Most callers read only whether a call is allowed, so the outcome stores the result of the
//! algorithm's step unevaluated. Each accessor evaluates it and converts the algorithm's units to
//! an `Amount` or a `Duration`. Tests: `tests/contract/retry.rs`.

use std::fmt;
use std::time::Duration;

use crate::algorithm::{StepOutcome, StepResult};
use crate::policy::{CachedPolicy, Policy};
use crate::units::Amount;

/// The outcome of one limit in a [`Decision`](crate::Decision).
#[derive(Clone)]
pub struct LimitOutcome {
    pub(crate) policy: CachedPolicy,
    /// Unevaluated, because most callers read none of its values.
    pub(crate) result: StepResult,
}

impl LimitOutcome {
    #[inline]
    pub(crate) fn new(policy: &Policy, result: StepResult) -> Self {
        Self {
            policy: CachedPolicy::new(policy),
            result,
        }
    }

    /// Returns the outcome with a delay of zero, for a call that does not wait.
    pub(crate) fn without_delay(self) -> Self {
        let outcome = StepOutcome {
            delay: 0,
            ..self.outcome()
        };
        Self {
            result: StepResult::Computed(outcome),
            ..self
        }
    }

    pub(crate) fn outcome(&self) -> StepOutcome {
        self.result.outcome(self.policy.algorithm())
    }

    /// Returns the policy of the request, with its name and quota.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns whether this limit had capacity for its cost. A call is allowed when all its limits
    /// have.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.result.fits()
    }

    /// Returns the amount that could be admitted under this limit right after the decision.
    #[must_use]
    pub fn remaining(&self) -> Amount {
        self.policy.amount(self.outcome().remaining)
    }

    /// Returns the time until this cost fits if no other caller takes permits, exact to the
    /// microsecond; zero when it fits.
    ///
    /// The holders of concurrency permits determine when capacity returns, so for a concurrency
    /// limit it is the time until the first lease expires if its holder does not renew it. In
    /// process, where every holder releases its permit, it is the length of a lease.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        Duration::from_micros(self.outcome().retry_after)
    }

    /// Returns the time that a call admitted by this limit waits so that calls are evenly spaced:
    /// until all previously admitted calls have drained. Zero unless the policy is a
    /// [paced](crate::PolicyBuilder::paced) funnel and the call fits.
    #[must_use]
    pub fn delay(&self) -> Duration {
        Duration::from_micros(self.result.delay())
    }

    /// Returns the time until no usage remains. For a concurrency limit it is an upper bound for
    /// the case that no holder renews its lease: the longest remaining lease; zero when no permit
    /// is held.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.outcome().reset_after)
    }

    /// Returns the time until the stored state equals that of an unused key, when the store deletes
    /// it; zero when nothing is stored.
    #[must_use]
    pub fn expires_after(&self) -> Duration {
        Duration::from_micros(self.outcome().expires_after)
    }
}

impl fmt::Debug for LimitOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitOutcome")
            .field("policy", &self.policy)
            .field("outcome", &self.outcome())
            .finish()
    }
}
