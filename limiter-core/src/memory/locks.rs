//! The locks of shards: one for a decision on one limit, several in one order for a decision on
//! several.

use smallvec::SmallVec;

use crate::identity::Identity;
use crate::memory::table::StateTable;
use crate::memory::{MemoryStore, SHARDS};
use crate::request::RequestedLimit;
use crate::support::clock::Clock;
use crate::support::sync::SpinGuard;
use crate::units::Timestamp;

impl MemoryStore {
    /// Locks the shards of these limits, always in ascending order, so that no two calls wait for
    /// each other.
    pub(crate) fn lock_all(&self, limits: &[RequestedLimit<'_>]) -> Locks<'_> {
        let shard = |limit: &RequestedLimit<'_>| limit.identity.shard(SHARDS);
        let mut numbers: SmallVec<[usize; 2]> = limits.iter().map(shard).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Locks(
            numbers
                .into_iter()
                .filter_map(|number| Some((number, self.shards.get(number)?.lock())))
                .collect(),
        )
    }
}

/// The locked shards of one decision.
pub(crate) struct Locks<'a>(SmallVec<[(usize, SpinGuard<'a, StateTable>); 2]>);

impl Locks<'_> {
    /// The moment of a decision on all of them.
    pub(crate) fn decide_at(&mut self, before: Timestamp, clock: &Clock) -> Timestamp {
        let last = self.0.iter().map(|(_, table)| table.decided_at).max();
        let decided_at = clock.in_order(before, last.unwrap_or(before));
        for (_, table) in &mut self.0 {
            table.decided_at = decided_at;
        }
        decided_at
    }

    pub(crate) fn table(&mut self, identity: Identity) -> &mut StateTable {
        let shard = identity.shard(SHARDS);
        #[expect(
            clippy::expect_used,
            reason = "`lock_all` took the shard of every limit of the decision"
        )]
        let (_, table) = self
            .0
            .iter_mut()
            .find(|(number, _)| *number == shard)
            .expect("a locked shard");
        table
    }
}
