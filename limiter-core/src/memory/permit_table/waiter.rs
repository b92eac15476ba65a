//! A waiter for permits, and the cell through which permits are handed to it.
//!
//! A released permit is put into the cell of the first waiter, which leaves the queue under the
//! same lock and takes the permit at its next poll. A cancelled waiter first leaves the queue and
//! then passes the permits of its cell on, so no permit is lost between the two steps.
//!
//! Tests: `permit_table/tests.rs`, `tests/contract/concurrency.rs`.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::identity::Identity;
#[cfg(feature = "redis")]
use crate::memory::permit_table::find;
use crate::memory::permit_table::{PermitGuard, PermitPayload, PermitTable, PermitTerms};
use crate::support::sync::atomic::{AtomicBool, Ordering};
use crate::support::sync::{Mutex, MutexGuard};

/// The cell through which permits are handed to a waiter.
#[derive(Debug)]
pub(crate) struct HandOff<C> {
    state: Mutex<HandOffState<C>>,
    pub(crate) changed: Notify,
    /// The waiter has to query the store.
    pub(crate) query_pending: AtomicBool,
}

#[derive(Debug)]
struct HandOffState<C> {
    /// The requested terms; fixed once permits were handed over.
    wanted: PermitTerms,
    take_permits: Option<C>,
}

/// A waiter. Dropping it leaves the queue; permits that were handed to it pass to the next waiter.
#[derive(Debug)]
pub(crate) struct PermitWaiter<C: PermitPayload> {
    holders: Arc<PermitTable<C>>,
    identity: Identity,
    hand_off: Arc<HandOff<C>>,
}

impl<C> HandOff<C> {
    pub(crate) fn new(wanted: PermitTerms) -> Self {
        Self {
            state: Mutex::new(HandOffState {
                wanted,
                take_permits: None,
            }),
            changed: Notify::new(),
            query_pending: AtomicBool::new(false),
        }
    }

    pub(crate) fn hand_over(&self, payload: C) {
        self.lock().take_permits = Some(payload);
        self.changed.notify_one();
    }

    pub(crate) fn requested_terms(&self) -> PermitTerms {
        self.lock().wanted
    }

    /// Replaces the terms by those of a later waiter and keeps the cost. If the new terms never
    /// admit the cost, the waiter is notified.
    pub(crate) fn set_terms(&self, later: &PermitTerms) {
        let mut state = self.lock();
        state.wanted = PermitTerms {
            cost: state.wanted.cost,
            ..*later
        };
        let never_fits = state.wanted.cost > later.max;
        drop(state);
        if never_fits {
            self.request_query();
        }
    }

    pub(crate) fn request_query(&self) {
        self.query_pending.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, HandOffState<C>> {
        self.state.lock()
    }
}

impl<C: PermitPayload> PermitWaiter<C> {
    pub(crate) fn new(holders: &Arc<PermitTable<C>>, identity: Identity, hand_off: &Arc<HandOff<C>>) -> Self {
        Self {
            holders: Arc::clone(holders),
            identity,
            hand_off: Arc::clone(hand_off),
        }
    }

    /// Waits for a change: permits were handed over, this waiter became first, or a query was
    /// requested.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: permits that were handed over stay in the cell.
    pub(crate) async fn notified(&self) {
        self.hand_off.changed.notified().await;
    }

    /// Returns true once for each requested query.
    pub(crate) fn query_requested(&self) -> bool {
        self.hand_off.query_pending.swap(false, Ordering::Relaxed)
    }

    /// True if no waiter is ahead.
    #[cfg(feature = "redis")]
    pub(crate) fn is_head(&self) -> bool {
        let mut shard = self.holders.lock(self.identity);
        let first = find(&mut shard, self.identity).and_then(|entry| entry.waiting.front());
        first.is_some_and(|first| Arc::ptr_eq(first, &self.hand_off))
    }

    /// Returns the requested terms, which are those of the newest waiter.
    pub(crate) fn wanted(&self) -> PermitTerms {
        self.hand_off.requested_terms()
    }

    /// Takes the permits that were handed over.
    pub(crate) fn take_permits(&self) -> Option<PermitGuard<C>> {
        let mut state = self.hand_off.lock();
        let (wanted, payload) = (state.wanted, state.take_permits.take()?);
        drop(state);
        Some(self.holders.guard(self.identity, wanted, payload))
    }
}

impl<C: PermitPayload> Drop for PermitWaiter<C> {
    fn drop(&mut self) {
        self.holders.leave_queue(self.identity, &self.hand_off);
        drop(self.take_permits());
    }
}
