//! The locks of shards: one for a decision on one limit, several in one order for a decision on
//! several.

use smallvec::SmallVec;

use crate::identity::Identity;
use crate::memory::table::StateTable;
use crate::memory::{MemoryStore, SHARDS};
use crate::support::clock::Clock;
use crate::support::sync::SpinGuard;
use crate::units::Timestamp;

/// A set of shards, one bit each: it contains no shard twice and lists them in ascending order.
#[derive(Clone, Copy, Debug, Default)]
struct ShardSet(u64);

const _: () = assert!(SHARDS <= 64, "a set has a bit for each shard");

impl ShardSet {
    #[inline]
    fn with(self, shard: usize) -> Self {
        Self(self.0 | 1 << shard)
    }

    /// Removes and returns the lowest shard.
    #[inline]
    fn pop(&mut self) -> Option<usize> {
        let lowest = (self.0 != 0).then(|| self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(lowest)
    }

    /// Returns the number of shards below this one.
    #[inline]
    fn position(self, shard: usize) -> usize {
        (self.0 & ((1 << shard) - 1)).count_ones() as usize
    }
}

impl MemoryStore {
    /// Locks the shards of these limits, always in ascending order, so that no two calls wait for
    /// each other.
    #[inline]
    pub(crate) fn lock_all(&self, limits: impl Iterator<Item = Identity>) -> Locks<'_> {
        let shards = limits.fold(ShardSet::default(), |shards, limit| {
            shards.with(limit.shard(SHARDS))
        });
        let mut guards = SmallVec::new();
        let mut rest = shards;
        while let Some(shard) = rest.pop() {
            #[expect(clippy::indexing_slicing, reason = "the shard is below the number of shards")]
            guards.push(self.shards[shard].lock());
        }
        Locks { shards, guards }
    }
}

/// The locked shards of one decision.
pub(crate) struct Locks<'a> {
    shards: ShardSet,
    /// In the order of the set.
    guards: SmallVec<[SpinGuard<'a, StateTable>; 4]>,
}

impl Locks<'_> {
    /// The moment of a decision on all of them.
    #[inline]
    pub(crate) fn decide_at(&mut self, before: Timestamp, clock: &Clock) -> Timestamp {
        let last = self.guards.iter().map(|table| table.decided_at).max();
        let decided_at = clock.in_order(before, last.unwrap_or(before));
        for table in &mut self.guards {
            table.decided_at = decided_at;
        }
        decided_at
    }

    /// Returns the table of a limit of the decision.
    #[inline]
    pub(crate) fn table(&mut self, identity: Identity) -> &mut StateTable {
        let position = self.shards.position(identity.shard(SHARDS));
        #[expect(
            clippy::indexing_slicing,
            reason = "`lock_all` took the shard of every limit of the decision"
        )]
        &mut self.guards[position]
    }
}
