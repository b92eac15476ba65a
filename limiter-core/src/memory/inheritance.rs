//! Proportional policy changes in the memory store.
//!
//! The first decision, refund or charge of a key after the change converts its state in place,
//! under the lock of its shard. The policy in force is chosen before the decision is dated, so the
//! new quota never applies before the change. For calendar periods, the time of the change is
//! converted to the clock of their states.
//!
//! Tests: `tests/contract/inheritance.rs`, `tests/contract/settlement.rs`, `settlement/tests.rs`.

use smallvec::SmallVec;

use crate::algorithm::{Mode, StepState, UsageCorrection};
use crate::error::StoreError;
use crate::inheritance::{convert, in_force};
use crate::memory::MemoryStore;
use crate::policy::Algorithm;
use crate::request::{DecisionRequest, ValidatedLimit, Verdict};

impl MemoryStore {
    /// Decides by the policies in force, on states that are converted in place. The policies are
    /// looked up no later than the decision is dated, so the new quota never applies before the
    /// change.
    #[cold]
    pub(crate) fn decide_inheriting(&self, request: &DecisionRequest<'_>) -> Result<Verdict, StoreError> {
        let now = self.clock.now();
        let own: SmallVec<[Algorithm; 2]> = request.limits.iter().map(|limit| in_force(limit, now)).collect();
        self.decide_as(request, request.mode, &own, |number, state, moment| {
            if let Some(limit) = request.limits.get(number) {
                convert(limit, state, moment);
            }
        })
    }

    /// Applies a refund or charge after the conversion.
    #[cold]
    pub(crate) fn change_inheriting(
        &self,
        limit: &ValidatedLimit<'_>,
        change: UsageCorrection,
    ) -> Result<Verdict, StoreError> {
        let algorithm = in_force(limit, self.clock.now());
        self.convert_now(limit, &algorithm)?;
        self.change_as(limit, &algorithm, change)
    }

    /// Applies a refund or charge that is given in the units of the previous policy.
    #[cold]
    pub(crate) fn change_proportional(
        &self,
        limit: &ValidatedLimit<'_>,
        change: UsageCorrection,
    ) -> Result<Verdict, StoreError> {
        let algorithm = in_force(limit, self.clock.now());
        self.convert_now(limit, &algorithm)?;
        if algorithm == *limit.policy.algorithm() {
            let moment = self.moment_of(&algorithm, self.clock.now());
            let (limit, change) = limit.in_proportion(change, |scaling| scaling.clamped_to(moment));
            return self.change_as(&limit, &algorithm, change);
        }
        self.change_as(limit, &algorithm, change)
    }

    /// Converts the state before a refund or charge.
    fn convert_now(&self, limit: &ValidatedLimit<'_>, algorithm: &Algorithm) -> Result<(), StoreError> {
        let begin = |state: &mut StepState, moment| convert(limit, state, moment);
        self.or_make_room(&[], || self.one(limit.identity, algorithm, 0, Mode::Peek, begin))?;
        Ok(())
    }
}
