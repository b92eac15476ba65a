//! The form in which an external store keeps leased tokens.

use crate::algorithm::leased_level::pace::WHOLE_RATE;
use crate::algorithm::leased_level::{LeaseGrants, LeasedLevel};
use crate::algorithm::{StepState, StoredLevel};
use crate::units::MAX_EXACT;

/// The stored numbers of leased tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredLoans {
    pub(crate) current: u64,
    pub(crate) previous: u64,
    pub(crate) since: u64,
    pub(crate) epoch: u32,
    pub(crate) number: u32,
    /// The steady rates of the current and of the previous epoch, in millionths.
    pub(crate) steady: [u32; 2],
    /// Millionths of a microsecond.
    pub(crate) fraction: u32,
}

impl LeasedLevel {
    /// Returns the time from which the state equals absence.
    pub(crate) fn keep_until(&self) -> u64 {
        self.level.keep_until
    }

    /// Returns the numbers of the level and of the leased tokens.
    pub(crate) fn stored(&self) -> (StoredLevel, StoredLoans) {
        let loans = StoredLoans {
            current: self.loans.current,
            previous: self.loans.previous,
            since: self.loans.since,
            // Half of a lease of at most one hour.
            epoch: u32::try_from(self.loans.epoch).unwrap_or(u32::MAX),
            number: self.loans.number,
            steady: self.loans.steady,
            fraction: self.loans.fraction,
        };
        (self.level.stored(), loans)
    }
}

impl StoredLoans {
    /// Returns the state of a level with these leased tokens, if the numbers are valid.
    pub(crate) fn state(self, level: &StepState) -> Option<StepState> {
        let (StepState::TokenBucket(level) | StepState::Funnel(level)) = *level else {
            return None;
        };
        let is_valid = self.current <= MAX_EXACT
            && self.previous <= MAX_EXACT
            && self.since <= level.at
            // An epoch that has ended is never stored as the current one.
            && self.since + u64::from(self.epoch) >= level.at
            && self.epoch > 0
            && u64::from(self.fraction) < WHOLE_RATE;
        let loans = LeaseGrants {
            current: self.current,
            previous: self.previous,
            since: self.since,
            epoch: self.epoch.into(),
            number: self.number,
            steady: self.steady,
            fraction: self.fraction,
        };
        is_valid.then(|| StepState::Leased(Box::new(LeasedLevel { level, loans })))
    }
}
