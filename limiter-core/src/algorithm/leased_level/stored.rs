//! What is lent of a level, as a store outside of this process keeps it.

use crate::algorithm::leased_level::{LeaseGrants, LeasedLevel};
use crate::algorithm::{StepState, StoredLevel};
use crate::units::MAX_EXACT;

/// The numbers of what is lent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredLoans {
    pub(crate) current: u64,
    pub(crate) previous: u64,
    pub(crate) since: u64,
    pub(crate) epoch: u32,
    pub(crate) number: u32,
}

impl LeasedLevel {
    /// From when on it equals absence.
    pub(crate) fn keep_until(&self) -> u64 {
        self.level.keep_until
    }

    /// The numbers of its level and of its loans.
    pub(crate) fn stored(&self) -> (StoredLevel, StoredLoans) {
        let loans = StoredLoans {
            current: self.loans.current,
            previous: self.loans.previous,
            since: self.loans.since,
            // Half of a lease, which is an hour at most.
            epoch: u32::try_from(self.loans.epoch).unwrap_or(u32::MAX),
            number: self.loans.number,
        };
        (self.level.stored(), loans)
    }
}

impl StoredLoans {
    /// The state of a level of which so much is lent, if these are numbers of loans.
    pub(crate) fn state(self, level: &StepState) -> Option<StepState> {
        let (StepState::TokenBucket(level) | StepState::Funnel(level)) = *level else {
            return None;
        };
        let is_sound = self.current <= MAX_EXACT
            && self.previous <= MAX_EXACT
            && self.since <= level.at
            // An epoch that has ended is never stored as the current one.
            && self.since + u64::from(self.epoch) >= level.at
            && self.epoch > 0;
        let loans = LeaseGrants {
            current: self.current,
            previous: self.previous,
            since: self.since,
            epoch: self.epoch.into(),
            number: self.number,
        };
        is_sound.then(|| StepState::Lent(Box::new(LeasedLevel { level, loans })))
    }
}
