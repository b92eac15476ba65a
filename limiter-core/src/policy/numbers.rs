//! Policies with the numbers of another policy, for changes and key overrides.

use std::sync::Arc;

use crate::policy::{Algorithm, Concurrency, FixedWindow, Funnel, Periods, Policy, PolicyInner};

impl Policy {
    /// Returns this policy with the quota, rate and window of another one, and with its own
    /// algorithm settings and options. State of this policy counts for the result if both have the
    /// same algorithm.
    #[must_use]
    pub fn with_numbers_of(&self, other: &Self) -> Self {
        let algorithm = match (self.0.algorithm, other.0.algorithm) {
            // The lease and the pacing are not numbers of permits.
            (Algorithm::Concurrency(own), Algorithm::Concurrency(Concurrency { max, .. })) => {
                Algorithm::Concurrency(Concurrency { max, ..own })
            }
            (Algorithm::Funnel(Funnel { paced, .. }), Algorithm::Funnel(numbers)) => {
                Algorithm::Funnel(Funnel { paced, ..numbers })
            }
            (_, other) => other,
        };
        Self(Arc::new(PolicyInner {
            algorithm,
            scaled: None,
            ..(*self.0).clone()
        }))
    }

    /// Returns this policy with the quota of a key override. Periods of a fixed window start as in
    /// this policy, unless the override is aligned itself.
    pub(crate) fn with_quota_of(&self, other: &Self) -> Self {
        let mut own = self.without_trial().with_numbers_of(other);
        if let Some(aligned) = self.aligned_as_this(other) {
            if let Some(inner) = Arc::get_mut(&mut own.0) {
                inner.algorithm = Algorithm::FixedWindow(aligned);
            }
        }
        own
    }

    /// Returns the numbers of `other` with the alignment of this policy, if only this policy is
    /// aligned.
    fn aligned_as_this(&self, other: &Self) -> Option<FixedWindow> {
        let (Algorithm::FixedWindow(own), Algorithm::FixedWindow(numbers)) =
            (self.0.algorithm, other.0.algorithm)
        else {
            return None;
        };
        let (Periods::Aligned(offset) | Periods::Months(offset), Periods::FirstUse) =
            (own.periods, numbers.periods)
        else {
            return None;
        };
        let periods = Periods::Aligned(offset);
        Some(FixedWindow { periods, ..numbers })
    }
}
