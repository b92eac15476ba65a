//! The in-process store: a sharded map from limit identity to state.
//!
//! A decision on one limit takes one lock and updates the state in place. Idle keys are removed
//! during decisions: at most every 250 µs one decision examines up to 64 keys and removes expired
//! ones, which takes about a microsecond. The number of keys is bounded. A new key in a full store
//! is rejected with [`StoreErrorKind::Full`](crate::StoreErrorKind::Full), or replaces another key
//! (`evict.rs`).

mod change;
mod evict;
pub(crate) mod holder_lease;
mod locks;
mod several_limits;
mod sweep;
mod table;

use crossbeam_utils::CachePadded;
use smallvec::{SmallVec, smallvec};

use crate::algorithm;
use crate::algorithm::{FastOutcome, Mode, StateSlot, StepOutcome, StepState};
use crate::error::{StoreError, StoreErrorKind};
use crate::identity::Identity;
use crate::memory::evict::Evictions;
use crate::memory::table::StateTable;
use crate::policy::Algorithm;
use crate::request::{DecisionRequest, RequestedLimit, Verdict};
use crate::support::bounded_counter::BoundedCounter;
use crate::support::clock::Clock;
use crate::support::sync::atomic::{AtomicU64, AtomicUsize};
use crate::support::sync::{SpinGuard, SpinLock};
use crate::units::Timestamp;

const SHARDS: usize = 64;

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

/// The time of a decision on a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionTime {
    pub(crate) decided_at: Timestamp,
    /// The same time on the time scale of the limit's state, in microseconds: calendar periods use
    /// the calendar, all other algorithms use the time since the start of the process.
    pub(crate) own: u64,
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
    pub(crate) fn evicting(self, evicts: bool) -> Self {
        Self { evicts, ..self }
    }

    pub(crate) fn max_keys(&self) -> usize {
        self.keys.max()
    }

    /// Decides one limit by the fast step. `None` means that nothing was changed, because the limit
    /// is a window, or its state is absent or was stored by another algorithm.
    #[inline]
    pub(crate) fn decide_fast(
        &self,
        identity: Identity,
        algorithm: &Algorithm,
        cost: u64,
        mode: Mode,
    ) -> Option<(Timestamp, FastOutcome)> {
        if algorithm.is_window() {
            return None;
        }
        let before = self.clock.reading();
        let mut table = self.lock(identity);
        let decided_at = self.clock.in_order(before, table.decided_at);
        let now = decided_at.as_micros();
        let left = algorithm::step_fast(algorithm, table.find(identity)?, cost, now, mode)?;
        table.decided_at = decided_at;
        drop(table);
        self.sweep_some(now);
        Some((decided_at, left))
    }

    /// Decides one limit by the general step.
    #[inline(never)]
    pub(crate) fn decide_one(
        &self,
        identity: Identity,
        algorithm: &Algorithm,
        cost: u64,
        mode: Mode,
    ) -> Result<(Timestamp, StepOutcome), StoreError> {
        self.or_make_room(&[], || self.one(identity, algorithm, cost, mode, |_, _| {}))
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

    /// Decides by other algorithms than the policies' own, one for each limit. `begin` is called
    /// first with each limit's index and state, and may change the state as of this time; it may be
    /// called twice for a limit.
    pub(crate) fn decide_as(
        &self,
        request: &DecisionRequest<'_>,
        mode: Mode,
        algorithms: &[Algorithm],
        begin: impl Fn(usize, &mut StepState, DecisionTime),
    ) -> Result<Verdict, StoreError> {
        match (request.limits.as_slice(), algorithms) {
            ([limit], [algorithm]) => {
                let begin = |state: &mut StepState, moment| begin(0, state, moment);
                let one = self.or_make_room(&[], || {
                    self.one(limit.identity, algorithm, limit.cost, mode, begin)
                });
                one.map(|(decided_at, outcome)| Verdict::new(decided_at, smallvec![outcome]))
            }
            _ => self.or_make_room(&request.limits, || {
                self.several(&request.limits, mode, algorithms, &begin)
            }),
        }
    }

    /// Updates the state of one limit in place.
    pub(crate) fn one(
        &self,
        identity: Identity,
        algorithm: &Algorithm,
        cost: u64,
        mode: Mode,
        begin: impl Fn(&mut StepState, DecisionTime),
    ) -> Result<(Timestamp, StepOutcome), CapacityExceeded> {
        // The clock is read before the lock is taken, so that no thread waits for it, and adjusted
        // under the lock, so that decisions on one key have ascending times.
        let before = self.clock.reading();
        let mut table = self.lock(identity);
        let decided_at = self.clock.in_order(before, table.decided_at);
        table.decided_at = decided_at;
        let now = decided_at.as_micros();
        let mut absent = StepState::Absent;
        let (state, is_new) = match table.find(identity) {
            Some(state) => (state, false),
            None => (&mut absent, true),
        };
        let moment = self.moment_of(algorithm, decided_at);
        begin(state, moment);
        let outcome = algorithm::step(algorithm, state, cost, moment.own, mode);
        // Calls without a cost and denials store nothing.
        if is_new && outcome.fits && cost > 0 && mode == Mode::Charge {
            self.reserve(1).ok_or(CapacityExceeded { now, needed: 1 })?;
            table.insert(identity, absent);
        }
        drop(table);
        self.sweep_some(now);
        Ok((decided_at, with_window_end(algorithm, outcome, moment.own)))
    }

    #[inline]
    pub(crate) fn moment_of(&self, algorithm: &Algorithm, decided_at: Timestamp) -> DecisionTime {
        let own = match algorithm {
            Algorithm::FixedWindow(window) if window.is_aligned() => self.clock.calendar(),
            _ => decided_at,
        };
        DecisionTime {
            decided_at,
            own: own.as_micros(),
        }
    }

    /// Removes the states of several limits, decides them together, and stores them again.
    fn several(
        &self,
        limits: &[RequestedLimit<'_>],
        mode: Mode,
        algorithms: &[Algorithm],
        begin: &impl Fn(usize, &mut StepState, DecisionTime),
    ) -> Result<Verdict, CapacityExceeded> {
        let before = self.clock.reading();
        let mut locks = self.lock_all(limits.iter().map(|limit| limit.identity));
        let decided_at = locks.decide_at(before, &self.clock);
        let now = decided_at.as_micros();

        let mut new = 0;
        let mut states: SmallVec<[StepState; 2]> = SmallVec::new();
        let mut known: SmallVec<[bool; 2]> = SmallVec::new();
        let moments = algorithms
            .iter()
            .map(|algorithm| self.moment_of(algorithm, decided_at));
        let moments: SmallVec<[DecisionTime; 2]> = moments.collect();
        for (number, (limit, moment)) in limits.iter().zip(&moments).enumerate() {
            let state = locks.table(limit.identity).find(limit.identity);
            known.push(state.is_some());
            new += usize::from(state.is_none() && limit.is_charged());
            let mut state = state.map(std::mem::take).unwrap_or_default();
            begin(number, &mut state, *moment);
            states.push(state);
        }
        let mut slots: SmallVec<[StateSlot<'_>; 2]> = limits
            .iter()
            .zip(algorithms)
            .zip(&mut states)
            .zip(&moments)
            .map(|(((limit, algorithm), state), moment)| StateSlot {
                algorithm,
                cost: limit.cost,
                state,
                blocks: limit.blocks.is_some(),
                now: moment.own,
            })
            .collect();
        let full = mode == Mode::Charge && self.reserve(new).is_none();
        let mut outcomes = algorithm::decide(&mut slots, if full { Mode::Refuse } else { mode });
        for (slot, outcome) in slots.iter().zip(&mut outcomes) {
            *outcome = with_window_end(slot.algorithm, *outcome, slot.now);
        }
        drop(slots);

        let fits = outcomes.iter().all(|outcome| outcome.fits);
        let charged = fits && !full && mode == Mode::Charge;
        for ((limit, state), known) in limits.iter().zip(states).zip(known) {
            let table = locks.table(limit.identity);
            match table.find(limit.identity) {
                Some(place) if known => *place = state,
                // A key without an entry gets one when it is charged.
                _ if charged && limit.is_charged() => table.insert(limit.identity, state),
                _ => {}
            }
        }
        drop(locks);
        if mode == Mode::Charge && !full && !charged {
            self.release(new);
        }
        self.sweep_some(now);
        if full && fits {
            return Err(CapacityExceeded { now, needed: new });
        }
        Ok(Verdict::new(decided_at, outcomes))
    }

    /// Deletes a limit's state.
    pub(crate) fn forget(&self, limit: &RequestedLimit<'_>) {
        if self.lock(limit.identity).remove(limit.identity) {
            self.release(1);
        }
    }

    /// Repeats a decision after space was made for its keys. The keys of `kept` are not evicted.
    pub(crate) fn or_make_room<T>(
        &self,
        kept: &[RequestedLimit<'_>],
        decide: impl Fn() -> Result<T, CapacityExceeded>,
    ) -> Result<T, StoreError> {
        let mut attempts = 0;
        // A loop, so that `decide` is inlined once.
        loop {
            let no_room = match decide() {
                Ok(decided) => return Ok(decided),
                Err(no_room) => no_room,
            };
            let has_searched = attempts == 0 && self.search(no_room.now);
            if !has_searched && !self.evict(&no_room, attempts, kept) {
                return Err(full());
            }
            attempts += 1;
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
        self.shards[identity.shard(SHARDS)].lock()
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

/// Adds the time at which the usage has left a window, on the time scale of its state. For a level
/// it is the time of the decision.
#[inline]
fn with_window_end(algorithm: &Algorithm, outcome: StepOutcome, own: u64) -> StepOutcome {
    if !algorithm.is_window() {
        return outcome;
    }
    StepOutcome {
        whole_at: own.saturating_add(outcome.reset_after),
        ..outcome
    }
}

#[cold]
fn full() -> StoreError {
    StoreError::new(
        StoreErrorKind::Full,
        "the in-process table is full: raise max_keys or enable evict_when_full",
    )
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
mod tests;
