//! Conversion of stored usage after a policy change with `Inheritance::Proportional`.
//!
//! The first call after a change converts the state of its key to the new quota. The memory store
//! converts under the shard's lock (`memory/inheritance.rs`); `redis/backend/inheritance.rs`
//! converts by compare-and-set, so that several replicas convert a key once. This module computes
//! the conversion of one state in process.
//!
//! Invariant: the previous policy decides until the time of the change. Tests:
//! `tests/contract/inheritance.rs`, `tests/contract/settlement.rs`, `settlement/tests.rs`.

use crate::algorithm::{ScaleChange, StepState, scale};
use crate::policy::Algorithm;
use crate::request::ValidatedLimit;
use crate::units::Timestamp;

/// The time of a decision on a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionTime {
    pub(crate) decided_at: Timestamp,
    /// The time of the decision on the time scale of the limit's state, in microseconds: calendar
    /// periods use the calendar, all other algorithms use the time since the start of the process.
    pub(crate) own: u64,
}

/// Returns the algorithm that is in force at a time: until the change, that of the previous policy.
pub(crate) fn in_force(limit: &ValidatedLimit<'_>, now: Timestamp) -> Algorithm {
    let previous = limit
        .policy
        .pending(now)
        .and_then(|scaled| scaled.in_force_at(now));
    *previous.unwrap_or(limit.policy).algorithm()
}

/// Converts a state to the new quota, unless the change is not in force yet.
pub(crate) fn convert(limit: &ValidatedLimit<'_>, state: &mut StepState, moment: DecisionTime) {
    if let Some(scaled) = limit.policy.pending(moment.decided_at) {
        let scaling = ScaleChange::from_policies(scaled, limit.policy);
        scale(&scaling.clamped_to(moment), state, moment.own);
    }
}

impl ScaleChange<'_> {
    /// Converts the time of the change to the clock of the stored state.
    pub(crate) fn clamped_to(self, moment: DecisionTime) -> Self {
        let decided_at = moment.decided_at.as_micros();
        let at = match self.at.checked_sub(decided_at) {
            Some(ahead) => moment.own.saturating_add(ahead),
            None => moment.own.saturating_sub(decided_at.saturating_sub(self.at)),
        };
        Self { at, ..self }
    }
}
