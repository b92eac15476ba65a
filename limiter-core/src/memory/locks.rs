//! The locks of shards for a decision on several limits.
//!
//! A decision on several limits charges all of them or none, so it locks all their shards at once,
//! each shard once and in ascending order. `lock_all` accepts any number of limits. `lock_each`
//! accepts a fixed number, for the fast step.
//!
//! Invariants: no two decisions wait for each other, and by the system clock no decision is dated
//! before an earlier one in its shards. Tests: `memory/model.rs` (model check),
//! `memory/tests.rs`.

use smallvec::SmallVec;

use crate::identity::Identity;
use crate::memory::{MemoryStore, SHARDS, StateTable};
use crate::request::IdentifiedLimit;
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

    /// Locks the tables of these limits in ascending order, so that no two calls wait for each
    /// other.
    #[inline]
    pub(crate) fn lock_each<const N: usize>(&self, limits: &[IdentifiedLimit<'_>; N]) -> EachTable<'_, N> {
        let mut tables = [const { None }; N];
        let mut places = [0; N];
        let mut number = 0..N;
        let mut order = limits.each_ref().map(|limit| {
            let number = number.next().unwrap_or_default();
            (limit.identity.shard(SHARDS), number)
        });
        order.sort_unstable();
        let mut last = None;
        #[expect(
            clippy::indexing_slicing,
            reason = "a number is below `N`, and the shard below the number of shards"
        )]
        for (shard, number) in order {
            places[number] = match last {
                Some((same, place)) if same == shard => place,
                _ => {
                    tables[number] = Some(self.shards[shard].lock());
                    last = Some((shard, number));
                    number
                }
            };
        }
        EachTable { tables, places }
    }
}

/// The locked tables of a decision on `N` limits.
pub(crate) struct EachTable<'a, const N: usize> {
    /// The table of each limit; `None` if an earlier limit has the same table.
    tables: [Option<SpinGuard<'a, StateTable>>; N],
    /// The index in `tables`, for each limit.
    places: [usize; N],
}

impl<const N: usize> EachTable<'_, N> {
    /// Returns the moment of a decision on all of them.
    #[inline]
    pub(crate) fn decide_at(&mut self, before: Timestamp, clock: &Clock) -> Timestamp {
        let last = self.tables.iter().flatten().map(|table| table.decided_at);
        let decided_at = clock.in_order(before, last.fold(before, Timestamp::max));
        for table in self.tables.iter_mut().flatten() {
            table.decided_at = decided_at;
        }
        decided_at
    }

    /// Returns the table of a limit.
    #[inline]
    pub(crate) fn of(&mut self, limit: usize) -> Option<&mut StateTable> {
        let place = *self.places.get(limit)?;
        self.tables.get_mut(place)?.as_deref_mut()
    }
}

/// The locked shards of one decision.
pub(crate) struct Locks<'a> {
    shards: ShardSet,
    /// In the order of the set.
    guards: SmallVec<[SpinGuard<'a, StateTable>; 4]>,
}

impl Locks<'_> {
    /// Returns the moment of a decision on all of them.
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
