//! Permits held in this process: a count and a queue of waiters for each key.
//!
//! In process the count is the limit. With Redis it is the number of permits of this replica, which
//! the local fallback uses; each permit then carries its lease as payload.
//!
//! A released permit passes to the first waiter under the lock under which it is counted down, so
//! no other call can take it in between and no waiter misses it. Tests: `permit_table/tests.rs`,
//! `tests/contract/concurrency.rs`.

pub(crate) mod guard;
mod waiter;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use hashbrown::HashTable;

use crate::error::{StoreError, StoreErrorKind};
use crate::identity::Identity;
pub(crate) use crate::memory::permit_table::guard::PermitGuard;
use crate::memory::permit_table::waiter::HandOff;
pub(crate) use crate::memory::permit_table::waiter::PermitWaiter;
use crate::support::bounded_counter::BoundedCounter;
use crate::support::sync::atomic::Ordering;
use crate::support::sync::{SpinGuard, SpinLock};

const SHARDS: usize = 64;

/// Maximum cost of one permit: Redis stores each unit separately, and 1,024 units take about one
/// millisecond.
pub(crate) const MAX_PERMIT_COST: u64 = 1_024;

/// Terms of a requested or held permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitTerms {
    pub(crate) cost: u64,
    pub(crate) max: u64,
    pub(crate) lease_ms: u32,
}

impl PermitTerms {
    fn has_policy_of(&self, other: &Self) -> bool {
        (self.max, self.lease_ms) == (other.max, other.lease_ms)
    }
}

/// Data that moves with a permit from holder to holder.
pub(crate) trait PermitPayload: fmt::Debug + Send + Sized + 'static {
    /// Returns the payload for the first waiter if a permit with the terms `held` can become one
    /// with the terms `wanted` while `others` permits are held; otherwise returns `Err(self)`.
    fn transfer(self, held: &PermitTerms, wanted: &PermitTerms, others: u64) -> Result<Self, Self>;

    /// Returns a payload for the next waiter, if there can be one.
    fn try_clone_for_next(&self) -> Option<Self>;
}

/// In process a permit is only a count: a waiter is served if its cost fits.
impl PermitPayload for () {
    fn transfer(self, _: &PermitTerms, wanted: &PermitTerms, others: u64) -> Result<(), ()> {
        if others.saturating_add(wanted.cost) <= wanted.max {
            Ok(())
        } else {
            Err(())
        }
    }

    fn try_clone_for_next(&self) -> Option<()> {
        Some(())
    }
}

/// All permits held in this process. A key without permits and waiters has no entry.
#[derive(Debug)]
pub(crate) struct PermitTable<C> {
    shards: Box<[SpinLock<HashTable<PermitEntry<C>>>]>,
    keys: BoundedCounter,
    /// Waiters of all keys.
    waiting: BoundedCounter,
}

#[derive(Debug)]
struct PermitEntry<C> {
    identity: Identity,
    held: u64,
    /// In order of arrival.
    waiting: VecDeque<Arc<HandOff<C>>>,
}

/// The result of a request for permits, with the number of permits that are held after it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PermitCount {
    Counted(u64),
    Denied(u64),
}

impl<C: PermitPayload> PermitTable<C> {
    /// Creates a table for at most `max_keys` keys and `max_waiting` waiters.
    pub(crate) fn new(max_keys: usize, max_waiting: usize) -> Arc<Self> {
        Arc::new(Self {
            shards: (0..SHARDS).map(|_| SpinLock::default()).collect(),
            keys: BoundedCounter::new(max_keys),
            waiting: BoundedCounter::new(max_waiting),
        })
    }

    /// Counts `cost` permits if at most `max` are then held.
    pub(crate) fn try_count(
        &self,
        identity: Identity,
        cost: u64,
        max: u64,
    ) -> Result<PermitCount, StoreError> {
        let mut shard = self.lock(identity);
        let held = find(&mut shard, identity).map_or(0, |entry| entry.held);
        match held.checked_add(cost).filter(|sum| *sum <= max) {
            Some(sum) => {
                self.entry(&mut shard, identity)?.held = sum;
                Ok(PermitCount::Counted(sum))
            }
            None => Ok(PermitCount::Denied(held)),
        }
    }

    /// Creates the guard of permits that are already counted.
    pub(crate) fn guard(
        self: &Arc<Self>,
        identity: Identity,
        terms: PermitTerms,
        payload: C,
    ) -> PermitGuard<C> {
        PermitGuard::new(self, identity, terms, payload)
    }

    /// Returns the number of permits of a key that this process holds.
    pub(crate) fn count_held(&self, identity: Identity) -> u64 {
        find(&mut self.lock(identity), identity).map_or(0, |entry| entry.held)
    }

    /// Adds a waiter at the end of the queue. If the policy has changed, all waiters continue under
    /// the terms of the newest one, because a waiter whose old terms never admit it would block the
    /// queue.
    pub(crate) fn join(
        self: &Arc<Self>,
        identity: Identity,
        wanted: PermitTerms,
    ) -> Result<PermitWaiter<C>, StoreError> {
        if !self.waiting.try_add(1) {
            return Err(overloaded(self.waiting.max()));
        }
        let hand_off = Arc::new(HandOff::new(wanted));
        // Removes the waiter on drop, whether or not it was queued.
        let waiter = PermitWaiter::new(self, identity, &hand_off);
        let mut shard = self.lock(identity);
        let queue = &mut self.entry(&mut shard, identity)?.waiting;
        // All waiters have the same terms, so the last one is representative.
        if queue
            .back()
            .is_some_and(|last| !last.requested_terms().has_policy_of(&wanted))
        {
            queue.iter().for_each(|earlier| earlier.set_terms(&wanted));
            if let Some(first) = queue.front() {
                first.request_query();
            }
        }
        hand_off.query_pending.store(queue.is_empty(), Ordering::Relaxed);
        queue.push_back(hand_off);
        drop(shard);
        Ok(waiter)
    }

    /// Requests a store query by the first waiter.
    pub(crate) fn notify_first(&self, identity: Identity) {
        let mut shard = self.lock(identity);
        if let Some(hand_off) = find(&mut shard, identity).and_then(|entry| entry.waiting.front()) {
            hand_off.request_query();
        }
    }

    /// Returns the payload if no waiter takes it; its drop may do work and must run without the
    /// lock.
    fn release(&self, identity: Identity, terms: &PermitTerms, payload: C) -> Option<C> {
        let mut shard = self.lock(identity);
        let Some(entry) = find(&mut shard, identity) else {
            return Some(payload);
        };
        entry.held = entry.held.saturating_sub(terms.cost);
        let mut unclaimed = Some(payload);
        while let Some(hand_off) = entry.waiting.front() {
            let Some(payload) = unclaimed.take() else { break };
            let wanted = hand_off.requested_terms();
            match payload.transfer(terms, &wanted, entry.held) {
                Ok(payload) => {
                    entry.held = entry.held.saturating_add(wanted.cost);
                    unclaimed = payload.try_clone_for_next();
                    hand_off.hand_over(payload);
                    entry.waiting.pop_front();
                    // The new first waiter only needs a wake-up: all free permits are taken.
                    if let Some(first) = entry.waiting.front() {
                        first.changed.notify_one();
                    }
                }
                Err(payload) => {
                    unclaimed = Some(payload);
                    break;
                }
            }
        }
        self.remove_if_idle(&mut shard, identity);
        unclaimed
    }

    fn leave_queue(&self, identity: Identity, hand_off: &Arc<HandOff<C>>) {
        let mut shard = self.lock(identity);
        if let Some(entry) = find(&mut shard, identity) {
            if let Some(position) = entry
                .waiting
                .iter()
                .position(|other| Arc::ptr_eq(other, hand_off))
            {
                entry.waiting.remove(position);
                if position == 0 {
                    if let Some(first) = entry.waiting.front() {
                        first.request_query();
                    }
                }
            }
        }
        self.remove_if_idle(&mut shard, identity);
        drop(shard);
        self.waiting.subtract(1);
    }

    /// Returns the entry of a key and creates it if the table is not full.
    fn entry<'a>(
        &self,
        shard: &'a mut SpinGuard<'_, HashTable<PermitEntry<C>>>,
        identity: Identity,
    ) -> Result<&'a mut PermitEntry<C>, StoreError> {
        let hash = |entry: &PermitEntry<C>| entry.identity.hash();
        match shard.entry(identity.hash(), |entry| entry.identity == identity, hash) {
            hashbrown::hash_table::Entry::Occupied(entry) => Ok(entry.into_mut()),
            hashbrown::hash_table::Entry::Vacant(vacant) => {
                if !self.keys.try_add(1) {
                    return Err(full());
                }
                let entry = PermitEntry {
                    identity,
                    held: 0,
                    waiting: VecDeque::new(),
                };
                Ok(vacant.insert(entry).into_mut())
            }
        }
    }

    fn remove_if_idle(&self, shard: &mut SpinGuard<'_, HashTable<PermitEntry<C>>>, identity: Identity) {
        let idle = |entry: &PermitEntry<C>| {
            entry.identity == identity && entry.held == 0 && entry.waiting.is_empty()
        };
        if let Ok(entry) = shard.find_entry(identity.hash(), idle) {
            entry.remove();
            self.keys.subtract(1);
        }
    }

    fn lock(&self, identity: Identity) -> SpinGuard<'_, HashTable<PermitEntry<C>>> {
        #[expect(clippy::indexing_slicing, reason = "`shard` returns an index below `SHARDS`")]
        self.shards[identity.shard(SHARDS)].lock()
    }

    #[cfg(test)]
    fn keys(&self) -> usize {
        let stored = self.shards.iter().map(|shard| shard.lock().len()).sum();
        assert_eq!(self.keys.count(), stored);
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
        "the table of concurrency permits is full; raise the maximum number of keys",
    )
}

#[cold]
fn overloaded(max: usize) -> StoreError {
    let detail = format!("{max} calls are already waiting; the maximum is reached (max_waiting)");
    StoreError::new(StoreErrorKind::Overloaded, detail)
}

#[cfg(test)]
mod tests;
