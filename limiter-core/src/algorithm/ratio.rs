//! The ratio of two quotas, which converts amounts at a proportional policy change.

use crate::policy::{Algorithm, Policy, PreviousPolicy};
use crate::units::MAX_EXACT;

/// A change of the numbers of a policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScaleChange<'a> {
    pub(crate) before: &'a Algorithm,
    pub(crate) after: &'a Algorithm,
    /// Time of the change, in microseconds.
    pub(crate) at: u64,
}

impl<'a> ScaleChange<'a> {
    /// Returns the change from the numbers of the previous policy to those of `after`.
    pub(crate) fn from_policies(previous: &'a PreviousPolicy, after: &'a Policy) -> Self {
        Self {
            before: previous.before.algorithm(),
            after: after.algorithm(),
            at: previous.at.as_micros(),
        }
    }
}

/// The ratio of the new quota to the old one, by which amounts are multiplied.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuotaRatio {
    old: u128,
    new: u128,
}

impl QuotaRatio {
    /// Returns the ratio of the quota after a change to the quota before it.
    pub(super) fn from_algorithms(before: &Algorithm, after: &Algorithm) -> Self {
        Self {
            // Quotas are positive.
            old: u128::from(before.quota().max(1)),
            new: u128::from(after.quota()),
        }
    }

    /// Converts an amount to the new quota, rounded down.
    pub(super) fn down(self, amount: u64) -> u64 {
        fitting(u128::from(amount) * self.new / self.old)
    }

    /// Converts an amount to the new quota, rounded up.
    pub(super) fn up(self, amount: u64) -> u64 {
        fitting((u128::from(amount) * self.new).div_ceil(self.old))
    }
}

fn fitting(amount: u128) -> u64 {
    u64::try_from(amount).unwrap_or(u64::MAX).min(MAX_EXACT)
}
