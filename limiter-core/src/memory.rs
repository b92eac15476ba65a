//! The in-process store: a sharded map from limit identity to state.
//!
//! A decision on one limit takes one lock and updates the state in place: by the fast step
//! (`algorithm/fast_level.rs`) or by the general step (`general_step.rs`). Idle keys are removed
//! during decisions: at most every 250 µs one decision examines up to 64 keys and removes expired
//! ones, which takes about a microsecond (`sweep.rs`). The number of keys is bounded. A new key in
//! a full store is rejected with [`StoreErrorKind::Full`](crate::StoreErrorKind::Full), or replaces
//! another key (`evict.rs`). Tests: `memory/tests.rs`, `tests/contract`.

mod change;
mod evict;
mod general_step;
pub(crate) mod holder_lease;
mod inheritance;
mod locks;
pub(crate) mod permit_table;
mod several_limits;
mod sweep;
mod table;

use crossbeam_utils::CachePadded;
use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::algorithm::{Mode, StepResult, StepState, UsageCorrection, has_fast_level, step_fast};
use crate::decision::{Origin, SingleOutcome};
use crate::error::StoreError;
use crate::identity::Identity;
use crate::memory::evict::Evictions;
use crate::memory::sweep::SweepExtent;
use crate::policy::Algorithm;
use crate::request::{DecisionRequest, IdentifiedLimit, ValidatedLimit, Verdict};
use crate::support::bounded_counter::BoundedCounter;
use crate::support::clock::Clock;
use crate::support::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::support::sync::{SpinGuard, SpinLock};
use crate::units::Timestamp;

const SHARDS: usize = 64;
/// Interval between sweeps: up to 256,000 keys are examined per second.
const SWEEP_EVERY_MICROS: u64 = 250;
/// The extent of a sweep during a decision.
const SWEEP: SweepExtent = SweepExtent {
    shards: 4,
    keys: 64,
    max_kept: u64::MAX,
};

/// The in-process store.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    shards: Box<[CachePadded<SpinLock<StateTable>>]>,
    pub(crate) clock: Clock,
    /// Number of keys in all shards; incremented before a key is stored, decremented after one is
    /// removed.
    keys: Box<CachePadded<BoundedCounter>>,
    next_sweep_at: AtomicU64,
    next_swept: AtomicUsize,
    searched_at: AtomicU64,
    /// A new key replaces another one when the store is full.
    evicts: bool,
    evicted: Evictions,
}

/// One shard of the store: states by identity.
///
/// The states are stored in a vector, and a hash table of 32-bit indices refers to them: its free
/// slots take 5 bytes each instead of the size of a state, and the vector grows by an eighth where
/// a hash table doubles.
#[derive(Debug, Default)]
pub(crate) struct StateTable {
    entries: Vec<StateEntry>,
    /// Index into `entries`, by identity.
    index: HashTable<u32>,
    /// Number of entries that the current sweep round has not examined, from the first on.
    unswept: usize,
    /// Time of the last decision on one of the entries.
    pub(crate) decided_at: Timestamp,
}

/// 64 bytes.
#[derive(Debug)]
struct StateEntry {
    identity: Identity,
    state: StepState,
}

/// The store has no capacity for the new keys of a request at this time.
#[derive(Debug)]
pub(crate) struct CapacityExceeded {
    now: u64,
    needed: usize,
}

impl MemoryStore {
    pub(crate) fn new(clock: Clock, max_keys: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            clock,
            keys: Box::new(CachePadded::new(BoundedCounter::new(max_keys))),
            next_sweep_at: AtomicU64::new(0),
            next_swept: AtomicUsize::new(0),
            searched_at: AtomicU64::new(0),
            evicts: false,
            evicted: Evictions::default(),
        }
    }

    /// Makes a new key replace another one when the store is full. Default: a new key is rejected
    /// with `Full`.
    pub(crate) fn evicting(self) -> Self {
        Self { evicts: true, ..self }
    }

    pub(crate) fn max_keys(&self) -> usize {
        self.keys.max()
    }

    /// Decides one limit by the fast step. `None` means that nothing was changed, because the limit
    /// has no fast level, or its state is absent or was stored by another algorithm.
    ///
    /// Always inlined: the result of a call is written in parts and read as a whole at once, which
    /// delays a check of one key by 6 of 51 ns.
    #[inline(always)]
    pub(crate) fn decide_one_fast(&self, limit: IdentifiedLimit<'_>, mode: Mode) -> Option<SingleOutcome> {
        let algorithm = limit.policy.algorithm();
        if !has_fast_level(algorithm) {
            return None;
        }
        let before = self.clock.reading();
        let mut table = self.lock(limit.identity);
        let decided_at = self.clock.in_order(before, table.decided_at);
        let state = table.find(limit.identity)?;
        let outcome = step_fast(algorithm, state, limit.cost, decided_at.0, mode)?;
        table.decided_at = decided_at;
        drop(table);
        self.sweep_some(decided_at.0);
        Some(SingleOutcome {
            decided_at,
            fits: outcome.fits(),
            result: StepResult::Level(outcome),
            origin: Origin::Memory,
        })
    }

    /// Decides all limits of a request: all are charged, or none.
    pub(crate) fn decide_now(&self, request: &DecisionRequest<'_>) -> Result<Verdict, StoreError> {
        if request.is_scaled() {
            return self.decide_inheriting(request);
        }
        let own: SmallVec<[Algorithm; 2]> = request
            .limits
            .iter()
            .map(|limit| *limit.policy.algorithm())
            .collect();
        self.decide_as(request, request.mode, &own, |_, _, _| {})
    }

    /// Refunds or charges immediately, without a future.
    pub(crate) fn change_now(
        &self,
        limit: &ValidatedLimit<'_>,
        change: UsageCorrection,
    ) -> Result<Verdict, StoreError> {
        if limit.policy.is_scaled() {
            return self.change_inheriting(limit, change);
        }
        self.change_as(limit, limit.policy.algorithm(), change)
    }

    /// Removes expired keys among the next ones, if a sweep is due.
    #[inline]
    pub(crate) fn sweep_some(&self, now: u64) {
        if self.is_due(&self.next_sweep_at, now, SWEEP_EVERY_MICROS) {
            self.sweep(now, SWEEP);
        }
    }

    /// Returns whether the work is due, to one caller only, and schedules the next time.
    #[inline]
    fn is_due(&self, next: &AtomicU64, now: u64, every: u64) -> bool {
        let due = next.load(Ordering::Relaxed);
        // If the clock has stepped back further than one interval, the schedule restarts.
        let early = now < due && due - now <= every;
        !early
            && next
                .compare_exchange(
                    due,
                    now.saturating_add(every),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Deletes a limit's state.
    pub(crate) fn forget(&self, limit: &ValidatedLimit<'_>) {
        if self.lock(limit.identity).remove(limit.identity) {
            self.release(1);
        }
    }

    /// Adds to the number of keys, if the bound permits it.
    fn reserve(&self, more: usize) -> Option<()> {
        (more == 0 || self.keys.try_add(more)).then_some(())
    }

    fn release(&self, gone: usize) {
        self.keys.subtract(gone);
    }

    #[inline]
    fn lock(&self, identity: Identity) -> SpinGuard<'_, StateTable> {
        #[expect(clippy::indexing_slicing, reason = "the shard is below the number of shards")]
        let shard = &self.shards[identity.shard(SHARDS)];
        shard.lock()
    }

    #[cfg(test)]
    fn keys(&self) -> usize {
        let stored = self.shards.iter().map(|shard| shard.lock().len()).sum();
        assert_eq!(
            self.keys.count(),
            stored,
            "the count equals the number of stored keys"
        );
        stored
    }
}

impl StateTable {
    /// Returns the state of an identity, if it has an entry.
    #[inline(always)]
    pub(crate) fn find(&mut self, identity: Identity) -> Option<&mut StepState> {
        let place = self.position(identity)?;
        self.state_at(place)
    }

    /// Returns the place of an identity's entry until the next entry is inserted or removed.
    #[inline(always)]
    fn position(&self, identity: Identity) -> Option<usize> {
        let found = self.index.find(identity.hash(), is_at(&self.entries, identity));
        found.copied().map(index)
    }

    #[inline]
    fn state_at(&mut self, place: usize) -> Option<&mut StepState> {
        self.entries.get_mut(place).map(|entry| &mut entry.state)
    }
}

fn is_at(entries: &[StateEntry], identity: Identity) -> impl Fn(&u32) -> bool {
    move |at| {
        entries
            .get(index(*at))
            .is_some_and(|entry| entry.identity == identity)
    }
}

fn index(at: u32) -> usize {
    at as usize
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
mod tests;
