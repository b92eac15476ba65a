//! The store in this process: a sharded map from identity to state.
//!
//! A decision on one limit takes one lock and steps on the state where it lies. Idle keys leave by themselves: every quarter of
//! a millisecond whichever call comes along looks at some dozens of keys and drops those that have expired, which takes it
//! about a microsecond. The number of keys is bounded; a new key beyond the bound is answered with
//! [`StoreErrorKind::Full`](crate::StoreErrorKind::Full).

mod table;

use std::sync::PoisonError;

use smallvec::{SmallVec, smallvec};

use super::Store;
use crate::algorithm::{self, Mode, Outcome, Slot, State};
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
/// A quarter of a million keys a second are looked at, if there are calls enough.
const SWEEP_EVERY_MICROS: u64 = 250;
/// So many keys are looked at by one call, in so many shards.
const SWEPT_AT_ONCE: usize = 64;
const SHARDS_AT_ONCE: usize = 4;
/// A full store is searched for what may go at most this often, so that new keys cannot make it search all the time.
const SEARCH_EVERY_MICROS: u64 = 1_000;
const SEARCHED_AT_ONCE: usize = 1_024;

/// State in this process.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    shards: Box<[Apart<Mutex<Table>>]>,
    clock: Clock,
    max_keys: usize,
    /// How many there are, in all shards; counted before one is stored, and after one has gone.
    keys: Box<Apart<AtomicUsize>>,
    next_sweep_at: AtomicU64,
    next_swept: AtomicUsize,
    searched_at: AtomicU64,
}

/// In cache lines of its own, so that a processor which writes it disturbs nobody that reads or writes what lies beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// The store has no room for a key, which would be charged at this moment.
#[derive(Debug)]
struct NoRoom(u64);

impl MemoryStore {
    pub(crate) fn new(clock: Clock, max_keys: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Apart::default()).collect(),
            clock,
            max_keys,
            keys: Box::default(),
            next_sweep_at: AtomicU64::new(0),
            next_swept: AtomicUsize::new(0),
            searched_at: AtomicU64::new(0),
        }
    }

    /// Decides one limit at once, without a future, and with nothing allocated for a key that is there.
    #[inline]
    pub(crate) fn decide_one(
        &self,
        identity: Identity,
        algorithm: &Algorithm,
        cost: u64,
        mode: Mode,
    ) -> Result<(Timestamp, Outcome), StoreError> {
        self.or_make_room(|| self.one(identity, algorithm, cost, mode, |_, _| {}))
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
    /// the limit's number, and may change it as of this moment; it may be shown it twice.
    pub(crate) fn decide_as(
        &self,
        request: &Request<'_>,
        mode: Mode,
        algorithms: &[Algorithm],
        begin: impl Fn(usize, &mut State, Timestamp),
    ) -> Result<Verdict, StoreError> {
        match (request.limits.as_slice(), algorithms) {
            ([limit], [algorithm]) => {
                let begin = |state: &mut State, now| begin(0, state, now);
                let one = self.or_make_room(|| self.one(limit.identity, algorithm, limit.cost, mode, begin));
                one.map(|(decided_at, outcome)| Verdict {
                    decided_at,
                    outcomes: smallvec![outcome],
                })
            }
            _ => self.or_make_room(|| self.several(&request.limits, mode, algorithms, &begin)),
        }
    }

    /// Steps on the state of one limit, where it lies.
    #[inline]
    fn one(
        &self,
        identity: Identity,
        algorithm: &Algorithm,
        cost: u64,
        mode: Mode,
        begin: impl Fn(&mut State, Timestamp),
    ) -> Result<(Timestamp, Outcome), NoRoom> {
        let mut table = self.lock(identity);
        // Read within the lock, so that no two decisions on one key see time in another order than they are made.
        let decided_at = self.clock.now();
        let now = decided_at.as_micros();
        let outcome = if let Some(state) = table.find(identity) {
            begin(state, decided_at);
            algorithm::step(algorithm, state, cost, now, mode)
        } else {
            let mut state = State::Absent;
            begin(&mut state, decided_at);
            let outcome = algorithm::step(algorithm, &mut state, cost, now, mode);
            // What costs nothing stores nothing, and neither does a denial.
            if outcome.fits && cost > 0 && mode == Mode::Charge {
                self.reserve(1).ok_or(NoRoom(now))?;
                table.insert(identity, state);
            }
            outcome
        };
        drop(table);
        self.sweep_some(now);
        Ok((decided_at, outcome))
    }

    /// Takes the states of several limits out, decides them as one, and puts them back.
    fn several(
        &self,
        limits: &[Limit<'_>],
        mode: Mode,
        algorithms: &[Algorithm],
        begin: &impl Fn(usize, &mut State, Timestamp),
    ) -> Result<Verdict, NoRoom> {
        let mut locks = self.lock_all(limits);
        let decided_at = self.clock.now();
        let now = decided_at.as_micros();

        let mut new = 0;
        let mut states: SmallVec<[State; 2]> = SmallVec::new();
        let mut known: SmallVec<[bool; 2]> = SmallVec::new();
        for (number, limit) in limits.iter().enumerate() {
            let state = locks.table(limit.identity).find(limit.identity);
            known.push(state.is_some());
            new += usize::from(state.is_none() && limit.cost > 0);
            let mut state = state.map(std::mem::take).unwrap_or_default();
            begin(number, &mut state, decided_at);
            states.push(state);
        }
        let mut slots: SmallVec<[Slot<'_>; 2]> = limits
            .iter()
            .zip(algorithms)
            .zip(&mut states)
            .map(|((limit, algorithm), state)| Slot {
                algorithm,
                cost: limit.cost,
                state,
            })
            .collect();
        let full = mode == Mode::Charge && self.reserve(new).is_none();
        let outcomes = algorithm::decide(&mut slots, now, if full { Mode::Refuse } else { mode });
        drop(slots);

        let fits = outcomes.iter().all(|outcome| outcome.fits);
        let charged = fits && !full && mode == Mode::Charge;
        for ((limit, state), known) in limits.iter().zip(states).zip(known) {
            let table = locks.table(limit.identity);
            match table.find(limit.identity) {
                Some(place) if known => *place = state,
                // A key without an entry gets one when it is charged.
                _ if charged && limit.cost > 0 => table.insert(limit.identity, state),
                _ => {}
            }
        }
        drop(locks);
        if mode == Mode::Charge && !full && !charged {
            self.release(new);
        }
        self.sweep_some(now);
        if full && fits {
            return Err(NoRoom(now));
        }
        Ok(Verdict { decided_at, outcomes })
    }

    /// Gives back at once, without a future.
    pub(crate) fn refund_now(&self, limit: &Limit<'_>) -> Verdict {
        let mut table = self.lock(limit.identity);
        let decided_at = self.clock.now();
        let mut absent = State::Absent;
        // Nothing is given back to what is not there.
        let state = table.find(limit.identity).unwrap_or(&mut absent);
        let algorithm = limit.policy.algorithm();
        let outcome = algorithm::refund(algorithm, state, limit.cost, decided_at.as_micros());
        let outcomes = [outcome].into_iter().collect();
        Verdict { decided_at, outcomes }
    }

    /// Forgets a limit's state.
    pub(crate) fn forget(&self, limit: &Limit<'_>) {
        if self.lock(limit.identity).remove(limit.identity) {
            self.release(1);
        }
    }

    /// Makes room and decides once more, where there is none.
    fn or_make_room<T>(&self, decide: impl Fn() -> Result<T, NoRoom>) -> Result<T, StoreError> {
        match decide() {
            Ok(decided) => Ok(decided),
            Err(NoRoom(now)) => {
                self.make_room(now);
                decide().map_err(|NoRoom(_)| full())
            }
        }
    }

    /// Counts so many keys more, if there may be.
    fn reserve(&self, more: usize) -> Option<()> {
        if more == 0 {
            return Some(());
        }
        let all = |keys: usize| keys.checked_add(more).filter(|keys| *keys <= self.max_keys);
        let counted = self
            .keys
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, all);
        counted.ok().map(|_| ())
    }

    fn release(&self, gone: usize) {
        self.keys.0.fetch_sub(gone, Ordering::Relaxed);
    }

    fn lock(&self, identity: Identity) -> MutexGuard<'_, Table> {
        #[expect(clippy::indexing_slicing, reason = "there are so many shards")]
        lock(&self.shards[identity.shard(SHARDS)].0)
    }

    /// Locks the shards of these limits, always in ascending order, so that no two calls wait for each other.
    fn lock_all(&self, limits: &[Limit<'_>]) -> Locks<'_> {
        let shard = |limit: &Limit<'_>| limit.identity.shard(SHARDS);
        let mut numbers: SmallVec<[usize; 2]> = limits.iter().map(shard).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Locks(
            numbers
                .into_iter()
                .filter_map(|number| Some((number, lock(&self.shards.get(number)?.0))))
                .collect(),
        )
    }

    /// Drops what has expired among the next keys, if it is time.
    fn sweep_some(&self, now: u64) {
        if self.is_due(&self.next_sweep_at, now, SWEEP_EVERY_MICROS) {
            self.sweep(now, SHARDS_AT_ONCE, SWEPT_AT_ONCE);
        }
    }

    #[cold]
    fn make_room(&self, now: u64) {
        if self.is_due(&self.searched_at, now, SEARCH_EVERY_MICROS) {
            self.sweep(now, SHARDS, SEARCHED_AT_ONCE);
        }
    }

    /// Whether the moment has come, for one caller alone; the next is then so much later.
    fn is_due(&self, next: &AtomicU64, now: u64, every: u64) -> bool {
        let due = next.load(Ordering::Relaxed);
        // A clock that stepped back by more than that starts anew.
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

    /// Drops what has expired among so many keys at most, in so many shards that nobody is using.
    fn sweep(&self, now: u64, shards: usize, keys: usize) {
        let mut left = keys;
        for _ in 0..shards {
            let number = self.next_swept.load(Ordering::Relaxed) % SHARDS;
            let mut ended = true;
            if let Some(Ok(mut table)) = self.shards.get(number).map(|shard| shard.0.try_lock()) {
                let swept = table.sweep(now, left);
                self.release(swept.gone);
                left -= swept.seen;
                ended = swept.ended;
            }
            if ended {
                self.next_swept.fetch_add(1, Ordering::Relaxed);
            }
            if left == 0 {
                break;
            }
        }
    }

    #[cfg(test)]
    fn keys(&self) -> usize {
        let stored = self.shards.iter().map(|shard| lock(&shard.0).len()).sum();
        assert_eq!(
            self.keys.0.load(Ordering::Relaxed),
            stored,
            "as many are counted as there are"
        );
        stored
    }
}

/// The locked shards of one decision.
struct Locks<'a>(SmallVec<[(usize, MutexGuard<'a, Table>); 2]>);

impl Locks<'_> {
    fn table(&mut self, identity: Identity) -> &mut Table {
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

#[cold]
fn full() -> StoreError {
    StoreError::new(
        StoreErrorKind::Full,
        "the store in memory holds as many keys as it may",
    )
}

/// Nothing that is done to a state can panic: it is arithmetic on bounded numbers.
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
        for _ in 0..SHARDS * 4 {
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

    #[test]
    fn a_full_store_has_room_as_soon_as_one_key_of_whatever_shard_is_idle() {
        let clock = ManualClock::new();
        let store = MemoryStore::new(Clock::Manual(clock.clone()), 1);
        let policy = Policy::token_bucket("p")
            .capacity(1)
            .rate(1)
            .build()
            .expect("valid");
        for key in 0..100 {
            let (key, other) = (key.to_string(), format!("other than {key}"));
            assert!(store.decide_now(&ask(&policy, &key)).is_ok(), "{key}");
            assert!(store.decide_now(&ask(&policy, &other)).is_err(), "{other}");
            clock.advance(Duration::from_secs(1));
            assert_eq!(store.keys(), 1, "{key}");
        }
    }

    #[test]
    fn several_limits_find_room_for_all_of_them_or_store_nothing() {
        let clock = ManualClock::new();
        let store = MemoryStore::new(Clock::Manual(clock.clone()), 3);
        let [one, other] = ["one", "other"].map(|name| {
            let policy = Policy::token_bucket(name).capacity(1).rate(1);
            policy.build().expect("valid")
        });
        let both = |key| Request::new([Ask::new(&one, key), Ask::new(&other, key)], Mode::Charge, false);
        let both = |key| store.decide_now(&both(key).expect("a valid request"));
        assert!(both("ann").is_ok());
        assert!(
            both("bob").is_err(),
            "there is room for one more key, not for two"
        );
        assert_eq!(store.keys(), 2);
        let denied = both("ann").expect("decided");
        assert!(denied.outcomes.iter().all(|outcome| !outcome.fits));
        clock.advance(Duration::from_secs(1));
        assert!(both("bob").is_ok());
    }
}
