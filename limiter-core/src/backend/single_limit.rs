//! One limit that is decided alone, without a request.

use crate::algorithm::{Mode, StepResult};
use crate::decision::{Decision, LimitOutcome, Origin};
use crate::identity::Identity;
use crate::policy::Policy;
use crate::support::one_or_many::OneOrMany;
use crate::units::Timestamp;

/// One limit that is decided alone: its state, its cost in the algorithm's own unit, and whether it
/// is charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SingleLimit<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) identity: Identity,
    pub(crate) cost: u64,
    pub(crate) mode: Mode,
}

/// The result of a limit that was decided alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SingleOutcome {
    pub(crate) decided_at: Timestamp,
    pub(crate) result: StepResult,
    pub(crate) origin: Origin,
}

impl SingleOutcome {
    /// The decision that consists of this outcome.
    #[inline]
    pub(crate) fn decision(&self, policy: &Policy) -> Decision {
        Decision {
            limits: OneOrMany::One(LimitOutcome::new(policy, self.result)),
            allowed: self.result.fits(),
            ..Decision::without_query(self.origin, self.decided_at)
        }
    }
}
