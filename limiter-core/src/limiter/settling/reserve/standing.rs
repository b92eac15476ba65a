//! How the limits of a call stand once it is settled.

use super::Reservation;
use crate::decision::{Decision, Part};

/// A reservation that is settled in this process.
#[derive(Debug)]
pub struct Settled(pub(super) Reservation);

impl Settled {
    /// The decision by which it was granted, with its limits as they stand now in place of how they stood. What was not charged stands
    /// as it was told.
    pub fn standing(&self) -> Decision {
        let Reservation {
            limiter,
            limits,
            allowed,
        } = &self.0;
        let mut standing = Decision::clone(allowed);
        let parts = standing.parts;
        let mut outcomes = standing.limits.iter_mut();
        for (number, reserved) in limits.iter().enumerate() {
            let told = match parts.of(number) {
                Part::Absent => None,
                Part::AsDecided | Part::Apart => outcomes.next(),
            };
            let (Some(reserved), Some(told)) = (reserved, told) else {
                continue;
            };
            if let Some(Ok(now)) = limiter.decide_now(&reserved.limit(0).alone()) {
                standing.decided_at = now.decided_at;
                if let Some(outcome) = now.limits.into_iter().next() {
                    *told = outcome;
                }
            }
        }
        standing
    }
}
