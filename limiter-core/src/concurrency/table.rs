//! What is held in this process: a count for each key, and who waits for it.
//!
//! In process the count is the limit. With Redis it is what this replica holds, by which it goes on
//! alone while Redis is out; there a lease travels along with each permit.
//!
//! Whoever gives a permit back hands it to the one who came first, under the lock under which it is
//! counted down: nobody comes in between, and nobody misses it.

pub(crate) mod guard;
mod waiter;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use hashbrown::HashTable;

pub(crate) use crate::concurrency::table::guard::PermitGuard;
use crate::concurrency::table::waiter::HandOff;
pub(crate) use crate::concurrency::table::waiter::PermitWaiter;
use crate::error::{StoreError, StoreErrorKind};
use crate::identity::Identity;
use crate::support::sync::atomic::{AtomicUsize, Ordering};
use crate::support::sync::{SpinGuard, SpinLock};

const SHARDS: usize = 64;

/// What one permit costs at most: Redis keeps each part of it by itself, and is busy for a
/// millisecond with so many.
pub(crate) const MOST_HELD_AT_ONCE: u64 = 1_024;

/// What somebody asks for, or holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitTerms {
    pub(crate) cost: u64,
    pub(crate) max: u64,
    pub(crate) lease_ms: u32,
}

impl PermitTerms {
    fn is_under_terms_of(&self, other: &Self) -> bool {
        (self.max, self.lease_ms) == (other.max, other.lease_ms)
    }
}

/// What travels along with a permit.
pub(crate) trait PermitPayload: fmt::Debug + Send + Sized + 'static {
    /// Itself for who is first, if a permit that was held under these terms can go on as one under
    /// those, with so many others held here; else itself.
    fn pass(self, held: &PermitTerms, wanted: &PermitTerms, others: u64) -> Result<Self, Self>;

    /// What there may be for the one after.
    fn another(&self) -> Option<Self>;
}

/// In process a permit is a number in the count: whoever waits has his if it fits.
impl PermitPayload for () {
    fn pass(self, _: &PermitTerms, wanted: &PermitTerms, others: u64) -> Result<(), ()> {
        if others.saturating_add(wanted.cost) <= wanted.max {
            Ok(())
        } else {
            Err(())
        }
    }

    fn another(&self) -> Option<()> {
        Some(())
    }
}

/// All that is held in this process. A key of which nothing is held, and that nobody waits for, is
/// not there.
#[derive(Debug)]
pub(crate) struct PermitTable<C> {
    shards: Box<[SpinLock<HashTable<PermitEntry<C>>>]>,
    keys: AtomicUsize,
    max_keys: usize,
    /// How many wait, for whatever key.
    waiting: AtomicUsize,
    max_waiting: usize,
}

#[derive(Debug)]
struct PermitEntry<C> {
    identity: Identity,
    held: u64,
    /// In order of arrival.
    waiting: VecDeque<Arc<HandOff<C>>>,
}

impl<C: PermitPayload> PermitTable<C> {
    /// Counts so many keys at most, and has so many wait.
    pub(crate) fn new(max_keys: usize, max_waiting: usize) -> Arc<Self> {
        Arc::new(Self {
            shards: (0..SHARDS).map(|_| SpinLock::default()).collect(),
            keys: AtomicUsize::new(0),
            max_keys,
            waiting: AtomicUsize::new(0),
            max_waiting,
        })
    }

    /// Counts permits if no more than `most` are held then; else says how many are.
    pub(crate) fn count(
        &self,
        identity: Identity,
        cost: u64,
        most: u64,
    ) -> Result<Result<u64, u64>, StoreError> {
        let mut shard = self.lock(identity);
        let held = find(&mut shard, identity).map_or(0, |entry| entry.held);
        match held.checked_add(cost).filter(|sum| *sum <= most) {
            Some(sum) => {
                self.entry(&mut shard, identity)?.held = sum;
                Ok(Ok(sum))
            }
            None => Ok(Err(held)),
        }
    }

    /// What was counted already, with what travels along.
    pub(crate) fn held(
        self: &Arc<Self>,
        identity: Identity,
        terms: PermitTerms,
        carried: C,
    ) -> PermitGuard<C> {
        PermitGuard::new(self, identity, terms, carried)
    }

    /// How many permits of a key are held here.
    pub(crate) fn number(&self, identity: Identity) -> u64 {
        find(&mut self.lock(identity), identity).map_or(0, |entry| entry.held)
    }

    /// Takes a place behind those who wait. Policies may have changed while they do: then all wait
    /// under the terms of who came last, lest what is not admitted under the old ones holds up
    /// everybody.
    pub(crate) fn join(
        self: &Arc<Self>,
        identity: Identity,
        wanted: PermitTerms,
    ) -> Result<PermitWaiter<C>, StoreError> {
        let room = |waiting: usize| (waiting < self.max_waiting).then_some(waiting + 1);
        self.waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
            .map_err(|_| overloaded(self.max_waiting))?;
        let seat = Arc::new(HandOff::new(wanted));
        // Leaves the seat, whether or not it was taken.
        let waiter = PermitWaiter::new(self, identity, &seat);
        let mut shard = self.lock(identity);
        let queue = &mut self.entry(&mut shard, identity)?.waiting;
        // All wait under the same.
        if queue
            .back()
            .is_some_and(|last| !last.requested_terms().is_under_terms_of(&wanted))
        {
            queue.iter().for_each(|earlier| earlier.go_on_under(&wanted));
            if let Some(first) = queue.front() {
                first.request_query();
            }
        }
        seat.asks.store(queue.is_empty(), Ordering::Relaxed);
        queue.push_back(seat);
        drop(shard);
        Ok(waiter)
    }

    /// Has who is first ask again.
    #[cfg(feature = "redis")]
    pub(crate) fn notify_first(&self, identity: Identity) {
        let mut shard = self.lock(identity);
        if let Some(seat) = find(&mut shard, identity).and_then(|entry| entry.waiting.front()) {
            seat.request_query();
        }
    }

    /// What travels along comes back where nobody takes it; whatever it does as it goes, it does
    /// without the lock.
    fn release(&self, identity: Identity, terms: &PermitTerms, carried: C) -> Option<C> {
        let mut shard = self.lock(identity);
        let Some(entry) = find(&mut shard, identity) else {
            return Some(carried);
        };
        entry.held = entry.held.saturating_sub(terms.cost);
        let mut rest = Some(carried);
        while let Some(seat) = entry.waiting.front() {
            let Some(carried) = rest.take() else { break };
            let wanted = seat.requested_terms();
            match carried.pass(terms, &wanted, entry.held) {
                Ok(carried) => {
                    entry.held = entry.held.saturating_add(wanted.cost);
                    rest = carried.another();
                    seat.hand_over(carried);
                    entry.waiting.pop_front();
                    // He is first now, which needs no answer at once: what there was is taken.
                    if let Some(first) = entry.waiting.front() {
                        first.told.notify_one();
                    }
                }
                Err(carried) => {
                    rest = Some(carried);
                    break;
                }
            }
        }
        self.remove_if_idle(&mut shard, identity);
        rest
    }

    fn leave_seat(&self, identity: Identity, seat: &Arc<HandOff<C>>) {
        let mut shard = self.lock(identity);
        if let Some(entry) = find(&mut shard, identity) {
            if let Some(place) = entry.waiting.iter().position(|other| Arc::ptr_eq(other, seat)) {
                entry.waiting.remove(place);
                if place == 0 {
                    if let Some(first) = entry.waiting.front() {
                        first.request_query();
                    }
                }
            }
        }
        self.remove_if_idle(&mut shard, identity);
        drop(shard);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// The entry of a key, made if there may be one more.
    fn entry<'a>(
        &self,
        shard: &'a mut SpinGuard<'_, HashTable<PermitEntry<C>>>,
        identity: Identity,
    ) -> Result<&'a mut PermitEntry<C>, StoreError> {
        let hash = |entry: &PermitEntry<C>| entry.identity.hash();
        match shard.entry(identity.hash(), |entry| entry.identity == identity, hash) {
            hashbrown::hash_table::Entry::Occupied(entry) => Ok(entry.into_mut()),
            hashbrown::hash_table::Entry::Vacant(place) => {
                let room = |keys: usize| (keys < self.max_keys).then_some(keys + 1);
                self.keys
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
                    .map_err(|_| full())?;
                let entry = PermitEntry {
                    identity,
                    held: 0,
                    waiting: VecDeque::new(),
                };
                Ok(place.insert(entry).into_mut())
            }
        }
    }

    fn remove_if_idle(&self, shard: &mut SpinGuard<'_, HashTable<PermitEntry<C>>>, identity: Identity) {
        let idle = |entry: &PermitEntry<C>| {
            entry.identity == identity && entry.held == 0 && entry.waiting.is_empty()
        };
        if let Ok(entry) = shard.find_entry(identity.hash(), idle) {
            entry.remove();
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn lock(&self, identity: Identity) -> SpinGuard<'_, HashTable<PermitEntry<C>>> {
        #[expect(clippy::indexing_slicing, reason = "there are so many shards")]
        self.shards[identity.shard(SHARDS)].lock()
    }

    #[cfg(test)]
    fn keys(&self) -> usize {
        let stored = self.shards.iter().map(|shard| shard.lock().len()).sum();
        assert_eq!(self.keys.load(Ordering::Relaxed), stored);
        stored
    }
}

fn find<'a, C>(
    shard: &'a mut SpinGuard<'_, HashTable<PermitEntry<C>>>,
    identity: Identity,
) -> Option<&'a mut PermitEntry<C>> {
    shard.find_mut(identity.hash(), |entry| entry.identity == identity)
}

#[cold]
fn full() -> StoreError {
    StoreError::new(
        StoreErrorKind::Full,
        "permits of as many keys as may be are held, or waited for",
    )
}

#[cold]
fn overloaded(most: usize) -> StoreError {
    let detail = format!("{most} calls are waiting already (max_waiting)");
    StoreError::new(StoreErrorKind::Overloaded, detail)
}

#[cfg(test)]
mod tests;
