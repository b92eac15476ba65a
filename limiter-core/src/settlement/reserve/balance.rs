//! How the limits of a call stand once it is settled, or has given back what it was granted.

use std::time::Duration;

use crate::algorithm::{StepOutcome, StepResult};
use crate::decision::{Decision, LimitOutcome, Participation};
use crate::settlement::reserve::Reservation;
use crate::settlement::reserved_limit::ReservedLimit;
pub(crate) use crate::units::micros_ceil;

impl Reservation {
    /// The denial of a call that waits no longer than this for its turn, once it has given back
    /// what it was granted.
    pub(crate) fn denied_within(&self, patience: Duration) -> Decision {
        let mut denied = Decision {
            allowed: false,
            ..Decision::clone(&self.allowed)
        };
        self.for_each_balance(&mut denied, |reserved, told| {
            let outcome = told.outcome();
            let too_late = told.delay().saturating_sub(patience);
            let denied = StepOutcome {
                fits: too_late.is_zero(),
                remaining: outcome.remaining.saturating_add(reserved.estimate()),
                retry_after: micros_ceil(too_late),
                delay: 0,
                ..outcome
            };
            *told = LimitOutcome::new(told.policy(), StepResult::Told(denied));
        });
        denied
    }

    /// Each of its limits of which there is something to be settled, and what is told of it.
    fn for_each_balance(
        &self,
        decision: &mut Decision,
        mut change: impl FnMut(&ReservedLimit, &mut LimitOutcome),
    ) {
        let parts = decision.parts;
        let mut outcomes = decision.limits.iter_mut();
        for (number, reserved) in self.limits.iter().enumerate() {
            let told = match parts.get(number) {
                Participation::Absent => None,
                Participation::AsDecided | Participation::Apart => outcomes.next(),
            };
            if let (Some(reserved), Some(told)) = (reserved, told) {
                change(reserved, told);
            }
        }
    }
}

/// A reservation that is settled in this process.
#[derive(Debug)]
pub struct Settled(pub(crate) Reservation);

impl Settled {
    /// The decision by which it was granted, with its limits as they stand now in place of how they
    /// stood. What was not charged stands as it was told.
    pub fn standing(&self) -> Decision {
        let Self(settled) = self;
        let mut standing = Decision::clone(&settled.allowed);
        let mut looked_at = standing.decided_at;
        settled.for_each_balance(&mut standing, |reserved, told| {
            if let Some(Ok(now)) = settled.limiter.decide_now(&reserved.limit(0).alone()) {
                if let Some(outcome) = now.limits.into_iter().next() {
                    *told = outcome;
                    looked_at = now.decided_at;
                }
            }
        });
        standing.decided_at = looked_at;
        standing
    }
}
