//! The store in this process: a sharded map from identity to state.
//!
//! Idle keys leave by themselves: about once a second each shard drops what has expired, at the expense of whichever
//! call comes along. The number of keys is bounded; a new key beyond the bound is answered with
//! [`StoreErrorKind::Full`](crate::StoreErrorKind::Full).

mod table;

use std::sync::PoisonError;

use smallvec::SmallVec;

use super::Store;
use crate::algorithm::{self, Mode, Slot, State};
use crate::clock::Clock;
use crate::error::{StoreError, StoreErrorKind};
use crate::identity::Identity;
use crate::policy::Algorithm;
use crate::request::{Limit, Request, Verdict};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::units::Timestamp;
use table::Table;

const SHARDS: usize = 64;
/// Each shard is looked through about once a second.
const SWEEP_EVERY_MICROS: u64 = 1_000_000 / SHARDS as u64;

/// State in this process.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    shards: Box<[Mutex<Table>]>,
    clock: Clock,
    max_keys_per_shard: usize,
    next_sweep_at: AtomicU64,
    next_swept: AtomicUsize,
}

impl MemoryStore {
    pub(crate) fn new(clock: Clock, max_keys: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            clock,
            max_keys_per_shard: max_keys.div_ceil(SHARDS),
            next_sweep_at: AtomicU64::new(0),
            next_swept: AtomicUsize::new(0),
        }
    }

    /// Decides at once, without a future.
    pub(crate) fn decide_now(&self, request: &Request<'_>) -> Result<Verdict, StoreError> {
        let own: SmallVec<[Algorithm; 2]> = request
            .limits
            .iter()
            .map(|limit| *limit.policy.algorithm())
            .collect();
        self.decide_as(request, request.mode, &own, |_, _, _| {})
    }

    /// Decides by other algorithms than the policies' own, one for each limit. `begin` is shown each limit's state first, by
    /// the limit's number, and may change it as of this moment.
    pub(crate) fn decide_as(
        &self,
        request: &Request<'_>,
        mode: Mode,
        algorithms: &[Algorithm],
        begin: impl Fn(usize, &mut State, Timestamp),
    ) -> Result<Verdict, StoreError> {
        let places: SmallVec<[Place; 2]> = request.limits.iter().map(|limit| self.place(limit)).collect();
        let mut locks = self.lock(&places);
        // Read within the locks, so that no two decisions on one key see time in another order than they are made.
        let decided_at = self.clock.now();
        let now = decided_at.as_micros();

        let mut full = false;
        let mut states: SmallVec<[State; 2]> = SmallVec::new();
        let mut known: SmallVec<[bool; 2]> = SmallVec::new();
        for (number, (limit, place)) in request.limits.iter().zip(&places).enumerate() {
            let table = locks.table(place);
            let state = table.take(place.identity);
            // What costs nothing stores nothing.
            full |= state.is_none() && limit.cost > 0 && !table.has_room(self.max_keys_per_shard, now);
            known.push(state.is_some());
            let mut state = state.unwrap_or_default();
            begin(number, &mut state, decided_at);
            states.push(state);
        }
        let mut slots: SmallVec<[Slot<'_>; 2]> = request
            .limits
            .iter()
            .zip(algorithms)
            .zip(&mut states)
            .map(|((limit, algorithm), state)| Slot {
                algorithm,
                cost: limit.cost,
                state,
            })
            .collect();
        let full = full && mode == Mode::Charge;
        let outcomes = algorithm::decide(&mut slots, now, if full { Mode::Refuse } else { mode });
        drop(slots);

        // A key without an entry gets one when it is charged.
        let charged = !full && mode == Mode::Charge && outcomes.iter().all(|outcome| outcome.fits);
        for ((place, state), known) in places.iter().zip(states).zip(known) {
            if known || charged {
                locks.table(place).put(place.identity, state);
            }
        }
        drop(locks);
        self.sweep_one(now);
        if full && outcomes.iter().all(|outcome| outcome.fits) {
            return Err(StoreError::new(
                StoreErrorKind::Full,
                "the store in memory holds as many keys as it may",
            ));
        }
        Ok(Verdict { decided_at, outcomes })
    }

    /// Gives back at once, without a future.
    pub(crate) fn refund_now(&self, limit: &Limit<'_>) -> Verdict {
        let place = self.place(limit);
        let mut locks = self.lock(std::slice::from_ref(&place));
        let decided_at = self.clock.now();
        let table = locks.table(&place);
        let mut state = table.take(place.identity).unwrap_or_default();
        let now = decided_at.as_micros();
        let outcome = algorithm::refund(limit.policy.algorithm(), &mut state, limit.cost, now);
        table.put(place.identity, state);
        let outcomes = [outcome].into_iter().collect();
        Verdict { decided_at, outcomes }
    }

    /// Forgets a limit's state.
    pub(crate) fn forget(&self, limit: &Limit<'_>) {
        let place = self.place(limit);
        let mut locks = self.lock(std::slice::from_ref(&place));
        locks.table(&place).remove(place.identity);
    }

    fn place(&self, limit: &Limit<'_>) -> Place {
        Place {
            identity: limit.identity,
            shard: limit.identity.shard(SHARDS),
        }
    }

    /// Locks the shards of these places, always in ascending order, so that no two calls wait for each other.
    fn lock(&self, places: &[Place]) -> Locks<'_> {
        let mut numbers: SmallVec<[usize; 2]> = places.iter().map(|place| place.shard).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Locks(
            numbers
                .into_iter()
                .filter_map(|number| Some((number, lock(self.shards.get(number)?))))
                .collect(),
        )
    }

    /// Drops what has expired from the next shard, if its turn has come and nobody is using it.
    fn sweep_one(&self, now: u64) {
        let due = self.next_sweep_at.load(Ordering::Relaxed);
        // A clock that stepped back by more than a round starts the rounds anew.
        if now < due && due - now <= SWEEP_EVERY_MICROS {
            return;
        }
        let next = now.saturating_add(SWEEP_EVERY_MICROS);
        if self
            .next_sweep_at
            .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        let number = self.next_swept.fetch_add(1, Ordering::Relaxed) % SHARDS;
        if let Some(Ok(mut shard)) = self.shards.get(number).map(Mutex::try_lock) {
            shard.sweep(now);
        }
    }

    #[cfg(test)]
    fn keys(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }
}

/// Where a limit's state lives.
#[derive(Debug)]
struct Place {
    identity: Identity,
    shard: usize,
}

/// The locked shards of one decision.
struct Locks<'a>(SmallVec<[(usize, MutexGuard<'a, Table>); 2]>);

impl Locks<'_> {
    fn table(&mut self, place: &Place) -> &mut Table {
        #[expect(
            clippy::expect_used,
            reason = "`lock` took the shard of every place of the decision"
        )]
        let (_, table) = self
            .0
            .iter_mut()
            .find(|(number, _)| *number == place.shard)
            .expect("a locked shard");
        table
    }
}

/// Nothing between taking states out and putting them back can panic: it is arithmetic on bounded numbers.
fn lock(shard: &Mutex<Table>) -> MutexGuard<'_, Table> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for MemoryStore {
    async fn decide(&self, request: &Request<'_>) -> Result<Verdict, StoreError> {
        self.decide_now(request)
    }

    async fn refund(&self, limit: &Limit<'_>) -> Result<Verdict, StoreError> {
        Ok(self.refund_now(limit))
    }

    async fn reset(&self, request: &Request<'_>) -> Result<(), StoreError> {
        request.limits.iter().for_each(|limit| self.forget(limit));
        Ok(())
    }

    async fn ready(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::policy::Policy;
    use crate::request::Ask;
    use std::time::Duration;

    fn ask<'a>(policy: &'a Policy, key: &'a str) -> Request<'a> {
        Request::new([Ask::new(policy, key)], Mode::Charge, false).expect("a valid request")
    }

    #[test]
    fn idle_keys_leave_by_themselves() {
        let clock = ManualClock::new();
        let store = MemoryStore::new(Clock::Manual(clock.clone()), usize::MAX);
        let policy = Policy::token_bucket("p")
            .capacity(5)
            .rate(5)
            .build()
            .expect("valid");
        for key in 0..10_000 {
            store
                .decide_now(&ask(&policy, &key.to_string()))
                .expect("decided");
        }
        assert_eq!(store.keys(), 10_000);
        for _ in 0..SHARDS * 2 {
            clock.advance(Duration::from_millis(100));
            store.decide_now(&ask(&policy, "busy")).expect("decided");
        }
        assert_eq!(store.keys(), 1);
    }

    #[test]
    fn a_full_store_answers_a_new_key_with_full_and_serves_the_others() {
        let clock = ManualClock::new();
        let store = MemoryStore::new(Clock::Manual(clock.clone()), 640);
        let policy = Policy::token_bucket("p")
            .capacity(5)
            .rate(5)
            .build()
            .expect("valid");
        let refused = (0..10_000)
            .filter(|key| {
                let answer = store.decide_now(&ask(&policy, &key.to_string()));
                answer.is_err_and(|error| error.kind() == StoreErrorKind::Full)
            })
            .count();
        assert_eq!((store.keys(), refused), (640, 10_000 - 640));
        assert!(store.decide_now(&ask(&policy, "0")).is_ok());
        clock.advance(Duration::from_secs(1));
        assert!(store.decide_now(&ask(&policy, "new")).is_ok());
    }
}
