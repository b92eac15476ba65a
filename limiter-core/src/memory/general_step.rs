//! Decisions by the general step: on one limit in any state, and on several limits together.
//!
//! One limit is updated in place under the lock of its shard. The states of several limits are
//! taken out under all locks, decided together, and stored again. If the store is full, space is
//! made and the decision is repeated. Tests: `memory/tests.rs`, `tests/contract`.

use smallvec::{SmallVec, smallvec};

use crate::algorithm;
use crate::algorithm::{Mode, StateSlot, StepOutcome, StepResult, StepState};
use crate::decision::{Origin, SingleOutcome};
use crate::error::{StoreError, StoreErrorKind};
use crate::identity::Identity;
use crate::inheritance::DecisionTime;
use crate::memory::{CapacityExceeded, MemoryStore};
use crate::policy::Algorithm;
use crate::request::{DecisionRequest, IdentifiedLimit, ValidatedLimit, Verdict};
use crate::units::Timestamp;

impl MemoryStore {
    /// Decides one limit by the general step.
    pub(crate) fn decide_one(
        &self,
        limit: IdentifiedLimit<'_>,
        mode: Mode,
    ) -> Result<SingleOutcome, StoreError> {
        let (decided_at, outcome) =
            self.decide_in_place(limit.identity, limit.policy.algorithm(), limit.cost, mode)?;
        Ok(SingleOutcome {
            decided_at,
            fits: outcome.fits,
            result: StepResult::Computed(outcome),
            origin: Origin::Memory,
        })
    }

    /// Decides a limit by this algorithm, which may differ from its policy's.
    #[inline(never)]
    pub(crate) fn decide_in_place(
        &self,
        identity: Identity,
        algorithm: &Algorithm,
        cost: u64,
        mode: Mode,
    ) -> Result<(Timestamp, StepOutcome), StoreError> {
        self.or_make_room(&[], || self.one(identity, algorithm, cost, mode, |_, _| {}))
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
        limits: &[ValidatedLimit<'_>],
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
            let mut state = match state {
                // Two limits of one name have one block, which both check and none charges.
                Some(state) if limit.blocks.is_some() => state.clone(),
                Some(state) => std::mem::take(state),
                None => StepState::Absent,
            };
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

    /// Repeats a decision after space was made for its keys. The keys of `kept` are not evicted.
    pub(crate) fn or_make_room<T>(
        &self,
        kept: &[ValidatedLimit<'_>],
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
