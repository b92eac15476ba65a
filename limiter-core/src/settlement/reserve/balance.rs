//! Balance of the limits of a call after a settlement or refund.
//!
//! The decision of a reservation contains the balances from before its settlement. `Settled`
//! queries the limits again in process, and `denied_within` computes the denial of a paced call
//! whose delay is too long. Limits that were not charged keep their outcome. Tests:
//! `tests/contract/paced.rs`.

use std::time::Duration;

use crate::algorithm::{StepOutcome, StepResult};
use crate::decision::{Decision, LimitOutcome, Participation};
use crate::settlement::reserve::Reservation;
use crate::settlement::reserved_limit::ReservedLimit;
pub(crate) use crate::units::micros_ceil;

impl Reservation {
    /// Returns the denial of a call whose delay exceeds `max_delay`, with the balances after the
    /// refund of its grant.
    pub(crate) fn denied_within(&self, max_delay: Duration) -> Decision {
        let mut denied = Decision {
            allowed: false,
            ..Decision::clone(&self.allowed)
        };
        self.for_each_balance(&mut denied, |reserved, limit_outcome| {
            let outcome = limit_outcome.outcome();
            let too_late = limit_outcome.delay().saturating_sub(max_delay);
            let denied = StepOutcome {
                fits: too_late.is_zero(),
                remaining: outcome.remaining.saturating_add(reserved.estimate()),
                retry_after: micros_ceil(too_late),
                delay: 0,
                ..outcome
            };
            *limit_outcome = LimitOutcome::new(limit_outcome.policy(), StepResult::Computed(denied));
        });
        denied
    }

    /// Calls `change` for each limit that can be settled, with its outcome.
    fn for_each_balance(
        &self,
        decision: &mut Decision,
        mut change: impl FnMut(&ReservedLimit, &mut LimitOutcome),
    ) {
        let parts = decision.parts;
        let mut outcomes = decision.limits.iter_mut();
        for (number, reserved) in self.limits.iter().enumerate() {
            let limit_outcome = match parts.get(number) {
                Participation::Absent => None,
                Participation::AsDecided | Participation::InShadow | Participation::Apart => outcomes.next(),
            };
            if let (Some(reserved), Some(limit_outcome)) = (reserved, limit_outcome) {
                change(reserved, limit_outcome);
            }
        }
    }
}

/// A reservation that was settled in this process.
#[derive(Debug)]
pub struct Settled(pub(crate) Reservation);

impl Settled {
    /// Returns the decision of the reservation with the current balances of its limits. Limits that
    /// were not charged keep their outcome.
    pub fn balance(&self) -> Decision {
        let Self(settled) = self;
        let mut balance = Decision::clone(&settled.allowed);
        let mut decided_at = balance.decided_at;
        settled.for_each_balance(&mut balance, |reserved, limit_outcome| {
            if let Some(Ok(now)) = settled
                .limiter
                .inner
                .backend
                .try_decide(&reserved.limit(0).alone())
            {
                if let Some(outcome) = now.limits.into_iter().next() {
                    *limit_outcome = outcome;
                    decided_at = now.decided_at;
                }
            }
        });
        balance.decided_at = decided_at;
        balance
    }
}
