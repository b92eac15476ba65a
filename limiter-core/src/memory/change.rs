//! Changes of a limit's usage outside of decisions: refunds, and unconditional charges.

use smallvec::smallvec;

use crate::algorithm;
use crate::algorithm::{StepState, UsageCorrection};
use crate::error::StoreError;
use crate::memory::{CapacityExceeded, MemoryStore};
use crate::policy::Algorithm;
use crate::request::{ValidatedLimit, Verdict};

impl MemoryStore {
    /// Refunds or charges by another algorithm than the policy's.
    pub(crate) fn change_as(
        &self,
        limit: &ValidatedLimit<'_>,
        algorithm: &Algorithm,
        change: UsageCorrection,
    ) -> Result<Verdict, StoreError> {
        self.or_make_room(&[], || self.change_one(limit, algorithm, change))
    }

    fn change_one(
        &self,
        limit: &ValidatedLimit<'_>,
        algorithm: &Algorithm,
        change: UsageCorrection,
    ) -> Result<Verdict, CapacityExceeded> {
        let before = self.clock.reading();
        let mut table = self.lock(limit.identity);
        let decided_at = self.clock.in_order(before, table.decided_at);
        table.decided_at = decided_at;
        let now = decided_at.as_micros();
        let mut absent = StepState::Absent;
        let (state, is_new) = match table.find(limit.identity) {
            Some(state) => (state, false),
            None => (&mut absent, true),
        };
        let own = self.moment_of(algorithm, decided_at).own;
        let outcome = algorithm::change(algorithm, state, limit.cost, change, own);
        // A refund to an absent state has no effect.
        if is_new && !matches!(absent, StepState::Absent) {
            self.reserve(1).ok_or(CapacityExceeded { now, needed: 1 })?;
            table.insert(limit.identity, absent);
        }
        let outcomes = smallvec![outcome];
        Ok(Verdict::new(decided_at, outcomes))
    }
}
