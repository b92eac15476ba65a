//! Somebody who waits, and the seat where what is handed on is left for him.

use std::sync::{Arc, PoisonError};

use tokio::sync::Notify;

#[cfg(feature = "redis")]
use crate::concurrency::table::find;
use crate::concurrency::table::{PermitGuard, PermitPayload, PermitTable, PermitTerms};
use crate::identity::Identity;
use crate::support::sync::atomic::{AtomicBool, Ordering};
use crate::support::sync::{Mutex, MutexGuard};

/// Where what is handed on is left for who waits.
#[derive(Debug)]
pub(crate) struct HandOff<C> {
    left: Mutex<HandOffState<C>>,
    pub(crate) told: Notify,
    /// There is a reason to ask the store.
    pub(crate) asks: AtomicBool,
}

#[derive(Debug)]
struct HandOffState<C> {
    /// What is waited for; as it was then, once it was handed on.
    wanted: PermitTerms,
    passed: Option<C>,
}

/// Somebody who waits. Dropping it leaves the seat, and what was handed on meanwhile goes to the
/// one after.
#[derive(Debug)]
pub(crate) struct PermitWaiter<C: PermitPayload> {
    holders: Arc<PermitTable<C>>,
    identity: Identity,
    seat: Arc<HandOff<C>>,
}

impl<C> HandOff<C> {
    pub(crate) fn new(wanted: PermitTerms) -> Self {
        Self {
            left: Mutex::new(HandOffState { wanted, passed: None }),
            told: Notify::new(),
            asks: AtomicBool::new(false),
        }
    }

    pub(crate) fn hand_over(&self, carried: C) {
        self.lock().passed = Some(carried);
        self.told.notify_one();
    }

    pub(crate) fn requested_terms(&self) -> PermitTerms {
        self.lock().wanted
    }

    /// Waits for as much under the terms of who came later. One that these never admit hears of it.
    pub(crate) fn go_on_under(&self, later: &PermitTerms) {
        let mut left = self.lock();
        left.wanted = PermitTerms {
            cost: left.wanted.cost,
            ..*later
        };
        let never_fits = left.wanted.cost > later.max;
        drop(left);
        if never_fits {
            self.request_query();
        }
    }

    pub(crate) fn request_query(&self) {
        self.asks.store(true, Ordering::Relaxed);
        self.told.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, HandOffState<C>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: PermitPayload> PermitWaiter<C> {
    pub(crate) fn new(holders: &Arc<PermitTable<C>>, identity: Identity, seat: &Arc<HandOff<C>>) -> Self {
        Self {
            holders: Arc::clone(holders),
            identity,
            seat: Arc::clone(seat),
        }
    }

    /// Waits until something is different: permits were handed on, or he is first, or there is a
    /// reason to ask.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what was handed on lies in the seat.
    pub(crate) async fn notified(&self) {
        self.seat.told.notified().await;
    }

    /// Whether there is a reason to ask now: said once.
    pub(crate) fn query_requested(&self) -> bool {
        self.seat.asks.swap(false, Ordering::Relaxed)
    }

    /// Whether nobody came before.
    #[cfg(feature = "redis")]
    pub(crate) fn is_first(&self) -> bool {
        let mut shard = self.holders.lock(self.identity);
        let first = find(&mut shard, self.identity).and_then(|entry| entry.waiting.front());
        first.is_some_and(|first| Arc::ptr_eq(first, &self.seat))
    }

    /// What is waited for, under the terms of who came last.
    pub(crate) fn wanted(&self) -> PermitTerms {
        self.seat.requested_terms()
    }

    /// What was handed on.
    pub(crate) fn passed(&self) -> Option<PermitGuard<C>> {
        let mut left = self.seat.lock();
        let (wanted, carried) = (left.wanted, left.passed.take()?);
        drop(left);
        Some(self.holders.held(self.identity, wanted, carried))
    }
}

impl<C: PermitPayload> Drop for PermitWaiter<C> {
    fn drop(&mut self) {
        self.holders.leave_seat(self.identity, &self.seat);
        drop(self.passed());
    }
}
