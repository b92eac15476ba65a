//! One limit's part in a decision.

use std::fmt;
use std::time::Duration;

use crate::algorithm::{StepOutcome, StepResult};
use crate::policy::{CachedPolicy, Policy};
use crate::units::Amount;

/// One limit's part in a [`Decision`](crate::Decision).
#[derive(Clone)]
pub struct LimitOutcome {
    policy: CachedPolicy,
    /// Most callers look at nothing of it, so it is computed when they do.
    standing: StepResult,
}

impl LimitOutcome {
    #[inline]
    pub(crate) fn new(policy: &Policy, standing: StepResult) -> Self {
        Self {
            policy: CachedPolicy::new(policy),
            standing,
        }
    }

    /// The same, for which nobody waits.
    pub(crate) fn without_delay(self) -> Self {
        let outcome = StepOutcome {
            delay: 0,
            ..self.outcome()
        };
        Self {
            standing: StepResult::Computed(outcome),
            ..self
        }
    }

    pub(crate) fn outcome(&self) -> StepOutcome {
        self.standing.outcome(self.policy.algorithm())
    }

    /// The policy that was asked, with its name and quota.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether this limit had room for its cost. The call is allowed when all of its limits have.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.standing.fits()
    }

    /// What could be admitted under this limit right after the decision.
    #[must_use]
    pub fn remaining(&self) -> Amount {
        self.policy.amount(self.outcome().remaining)
    }

    /// Time until this cost fits, with nobody else asking, exact to the microsecond; zero when it
    /// fits.
    ///
    /// Of what is in flight nobody knows that, since it is up to the holders: it is the time until
    /// the first lease ends, if its holder is gone; in process, where none goes without giving its
    /// permit back, a whole lease.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        Duration::from_micros(self.outcome().retry_after)
    }

    /// How long a call that this limit admits waits, so that calls leave evenly: until all that was
    /// admitted before it has drained. Zero unless the policy is a
    /// [paced](crate::PolicyBuilder::paced) funnel, and where it does not fit.
    #[must_use]
    pub fn delay(&self) -> Duration {
        Duration::from_micros(self.standing.delay())
    }

    /// Time until nothing is left of what was used. Of what is in flight an upper bound, should all
    /// holders be gone: a lease, or the rest of the longest that goes on; zero when nothing is
    /// held.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.outcome().reset_after)
    }

    /// Time until the stored state equals absence, which is when the store lets go of it; zero when
    /// nothing is stored.
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
