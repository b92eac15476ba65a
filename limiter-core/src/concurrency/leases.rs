//! Permits that Redis leases to this process: they are taken, renewed while they are held, and
//! given back.
//!
//! The id of a permit is chosen before Redis is asked. An enter whose answer was lost, or whose
//! caller left, is therefore taken back by leaving; where even that is lost, the lease ends. What
//! is held here is renewed by one task a limiter, see [`keeper`].

pub(crate) mod housekeeper;
mod lease;
pub(crate) mod renewal;
mod validity;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

pub(crate) use crate::concurrency::leases::lease::PermitLease;
use crate::concurrency::leases::renewal::RenewalQueue;
use crate::concurrency::redis_store::{ConcurrencyStore, Occupancy};
use crate::concurrency::table::{PermitGuard, PermitTable, PermitTerms};
use crate::error::StoreError;
use crate::identity::Identity;
use crate::request::RequestedLimit;
use crate::support::clock::Clock;
use crate::support::deadline::within;
use crate::support::sync::{Mutex, MutexGuard};

/// What this process holds.
#[derive(Debug)]
pub(crate) struct PermitLeases {
    register: ConcurrencyStore,
    clock: Clock,
    /// How many permits of each key, by which this replica goes on alone while Redis is out.
    held: Arc<PermitTable<PermitLease>>,
    desk: Mutex<RenewalQueue>,
    /// Wakes the keeper: there is something to give back.
    wake: Notify,
    /// Whenever something was given back, or renewed.
    settled: Notify,
}

/// What became of an enter.
#[derive(Debug)]
pub(crate) enum AcquireOutcome {
    /// It was admitted, and is held.
    Admitted(PermitGuard<PermitLease>, Occupancy),
    /// There was no room.
    Denied(Occupancy),
}

impl PermitLeases {
    pub(crate) fn new(register: ConcurrencyStore, clock: Clock, max_waiting: usize) -> Arc<Self> {
        Arc::new(Self {
            register,
            clock,
            // Whoever holds one has memory for it.
            held: PermitTable::new(usize::MAX, max_waiting),
            desk: Mutex::new(RenewalQueue::new()),
            wake: Notify::new(),
            settled: Notify::new(),
        })
    }

    pub(crate) fn held(&self) -> &Arc<PermitTable<PermitLease>> {
        &self.held
    }

    /// Asks Redis for a permit.
    ///
    /// # Cancel safety
    ///
    /// What was admitted for a future that is dropped is given back in the background.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        limit: &RequestedLimit<'_>,
        terms: PermitTerms,
        deadline: Duration,
    ) -> Result<AcquireOutcome, StoreError> {
        let key: Arc<str> = self.register.key(limit).into();
        // Gives itself back when it is dropped, whatever Redis has heard of it.
        let lease = PermitLease::for_request(self, limit.identity, &key, self.register.permit(terms));
        let asked = self.register.enter(&key, lease.permit(), deadline);
        match within(deadline, asked).await {
            Ok((true, standing)) => {
                let held = self.count(limit.identity, terms, lease)?;
                Ok(AcquireOutcome::Admitted(held, standing))
            }
            Ok((false, standing)) => {
                lease.was_refused();
                Ok(AcquireOutcome::Denied(standing))
            }
            Err(error) => {
                if !error.may_have_been_charged() {
                    lease.was_refused();
                }
                Err(error)
            }
        }
    }

    /// Takes a permit without Redis, if no more than `most` are held here then; Redis is told of it
    /// when it is back. Else how many are held.
    pub(crate) fn enter_alone(
        self: &Arc<Self>,
        limit: &RequestedLimit<'_>,
        terms: PermitTerms,
        most: u64,
    ) -> Result<Result<PermitGuard<PermitLease>, u64>, StoreError> {
        if let Err(held) = self.held.count(limit.identity, terms.cost, most)? {
            return Ok(Err(held));
        }
        let key: Arc<str> = self.register.key(limit).into();
        let lease = PermitLease::without_end(self, limit.identity, &key, self.register.permit(terms));
        Ok(Ok(self.held.held(limit.identity, terms, lease.into_held())))
    }

    fn count(
        self: &Arc<Self>,
        identity: Identity,
        terms: PermitTerms,
        lease: PermitLease,
    ) -> Result<PermitGuard<PermitLease>, StoreError> {
        // As many as there are may be held here.
        let _ = self.held.count(identity, terms.cost, u64::MAX)?;
        Ok(self.held.held(identity, terms, lease.into_held()))
    }

    /// How a key stands.
    pub(crate) async fn peek(
        &self,
        limit: &RequestedLimit<'_>,
        deadline: Duration,
    ) -> Result<Occupancy, StoreError> {
        let key = self.register.key(limit);
        within(deadline, self.register.peek(&key, deadline)).await
    }

    /// Forgets what other processes hold. Those that live are counted again when they renew their
    /// leases.
    pub(crate) async fn reset(
        &self,
        limit: &RequestedLimit<'_>,
        deadline: Duration,
    ) -> Result<(), StoreError> {
        let key = self.register.key(limit);
        within(deadline, self.register.reset(&key, deadline)).await?;
        self.held.notify_first(limit.identity);
        Ok(())
    }

    /// Waits until Redis has heard of all that was given back, or can hear of it no more.
    pub(crate) async fn settle(self: &Arc<Self>) {
        loop {
            let mut settled = std::pin::pin!(self.settled.notified());
            settled.as_mut().enable();
            if self.lock().is_settled() {
                return;
            }
            crate::concurrency::leases::housekeeper::ensure_running(self);
            settled.await;
        }
    }

    /// Waits until a lease is not being renewed any more.
    async fn is_not_renewing(&self, number: u64) {
        loop {
            let mut settled = std::pin::pin!(self.settled.notified());
            settled.as_mut().enable();
            if !self.lock().is_under_way(number) {
                return;
            }
            settled.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, RenewalQueue> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
