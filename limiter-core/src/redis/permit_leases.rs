//! Permits that Redis leases to this process: acquisition, renewal and release.
//!
//! The id of a permit is chosen before the call to Redis. A release by this id therefore undoes an
//! acquisition that was cancelled or got no reply; if the release is lost too, the lease expires.
//! One task per limiter renews the held leases, see [`housekeeper`].
//!
//! Invariant: a lease is released after all renewals of it have ended, because a late renewal would
//! create it again (see [`renewal_queue`]). Tests: `tests/concurrency.rs`,
//! `tests/concurrency/two_processes.rs`.

pub(crate) mod housekeeper;
mod lease;
pub(crate) mod renewal_queue;
pub(crate) mod store;
mod validity;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::StoreError;
use crate::identity::Identity;
use crate::memory::permit_table::{PermitCount, PermitGuard, PermitTable, PermitTerms};
pub(crate) use crate::redis::permit_leases::lease::PermitLease;
use crate::redis::permit_leases::renewal_queue::RenewalQueue;
use crate::redis::permit_leases::store::{ConcurrencyStore, Occupancy};
use crate::request::ValidatedLimit;
use crate::support::clock::Clock;
use crate::support::real_time;
use crate::support::real_time::with_deadline;
use crate::support::sync::{Mutex, MutexGuard};

/// The permit leases of this process.
#[derive(Debug)]
pub(crate) struct PermitLeases {
    register: ConcurrencyStore,
    clock: Clock,
    /// Number of permits held per key. The local fallback limits this replica by this number while
    /// Redis is unavailable.
    table: Arc<PermitTable<PermitLease>>,
    renewals: Mutex<RenewalQueue>,
    /// Wakes the housekeeper when there is a lease to renew or release.
    wake: Notify,
    /// Notified after each release or renewal.
    settled: Notify,
}

/// Result of an acquisition.
#[derive(Debug)]
pub(crate) enum AcquireOutcome {
    /// Redis admitted the permit.
    Admitted(PermitGuard<PermitLease>, Occupancy),
    /// All permits are held.
    Denied(Occupancy),
}

/// Result of an acquisition without Redis, with the number of permits that this process then holds.
#[derive(Debug)]
pub(crate) enum LocalAcquireOutcome {
    Admitted(PermitGuard<PermitLease>, u64),
    Denied(u64),
}

impl PermitLeases {
    pub(crate) fn new(register: ConcurrencyStore, clock: Clock, max_waiting: usize) -> Arc<Self> {
        Arc::new(Self {
            register,
            clock,
            // No bound on the number of keys: each held permit already occupies memory.
            table: PermitTable::new(usize::MAX, max_waiting),
            renewals: Mutex::new(RenewalQueue::new()),
            wake: Notify::new(),
            settled: Notify::new(),
        })
    }

    pub(crate) fn register(&self) -> &ConcurrencyStore {
        &self.register
    }

    pub(crate) fn table(&self) -> &Arc<PermitTable<PermitLease>> {
        &self.table
    }

    /// Acquires a permit from Redis.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a permit that Redis admitted for it is released in the background.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        limit: &ValidatedLimit<'_>,
        terms: PermitTerms,
        deadline: Duration,
    ) -> Result<AcquireOutcome, StoreError> {
        let key: Arc<str> = self.register.key(limit).into();
        // Releases itself on drop, in every state of the call.
        let lease = PermitLease::for_request(self, limit.identity, &key, self.register.permit(terms));
        let reply = self.register.enter(&key, lease.permit(), deadline);
        match with_deadline(deadline, reply).await {
            Ok((true, result)) => {
                let held = self.count(limit.identity, terms, lease)?;
                Ok(AcquireOutcome::Admitted(held, result))
            }
            Ok((false, result)) => {
                lease.on_denied();
                Ok(AcquireOutcome::Denied(result))
            }
            Err(error) => {
                if !error.may_have_been_charged() {
                    lease.on_denied();
                }
                Err(error)
            }
        }
    }

    /// Takes a permit without Redis if at most `max` permits are then held in this process. The
    /// permit is registered in Redis when Redis is available again.
    pub(crate) fn acquire_local(
        self: &Arc<Self>,
        limit: &ValidatedLimit<'_>,
        terms: PermitTerms,
        max: u64,
    ) -> Result<LocalAcquireOutcome, StoreError> {
        let held = match self.table.try_count(limit.identity, terms.cost, max)? {
            PermitCount::Counted(held) => held,
            PermitCount::Denied(held) => return Ok(LocalAcquireOutcome::Denied(held)),
        };
        let key: Arc<str> = self.register.key(limit).into();
        let lease = PermitLease::not_in_redis(self, limit.identity, &key, self.register.permit(terms));
        let guard = self.table.guard(limit.identity, terms, lease.into_held());
        Ok(LocalAcquireOutcome::Admitted(guard, held))
    }

    fn count(
        self: &Arc<Self>,
        identity: Identity,
        terms: PermitTerms,
        lease: PermitLease,
    ) -> Result<PermitGuard<PermitLease>, StoreError> {
        // Redis has admitted the permit, so this process does not limit it.
        let _ = self.table.try_count(identity, terms.cost, u64::MAX)?;
        Ok(self.table.guard(identity, terms, lease.into_held()))
    }

    /// Returns the occupancy of a key.
    pub(crate) async fn peek(
        &self,
        limit: &ValidatedLimit<'_>,
        deadline: Duration,
    ) -> Result<Occupancy, StoreError> {
        let key = self.register.key(limit);
        with_deadline(deadline, self.register.peek(&key, deadline)).await
    }

    /// Removes the permits of other processes. A live process registers its permits again with its
    /// next renewal.
    pub(crate) async fn reset(
        &self,
        limit: &ValidatedLimit<'_>,
        deadline: Duration,
    ) -> Result<(), StoreError> {
        let key = self.register.key(limit);
        with_deadline(deadline, self.register.reset(&key, deadline)).await?;
        self.table.notify_first(limit.identity);
        Ok(())
    }

    /// Waits until all releases have reached Redis or their leases have expired.
    pub(crate) async fn settle(self: &Arc<Self>) {
        loop {
            let mut settled = std::pin::pin!(self.settled.notified());
            settled.as_mut().enable();
            if self.lock().is_settled() {
                return;
            }
            housekeeper::ensure_running(self);
            // The runtime of the task may end or stall during the wait.
            let _ = real_time::timeout(housekeeper::HEARTBEAT, settled).await;
        }
    }

    /// Waits until no renewal of the lease is in flight.
    async fn is_not_renewing(self: &Arc<Self>, number: u64) {
        loop {
            let mut settled = std::pin::pin!(self.settled.notified());
            settled.as_mut().enable();
            if !self.lock().is_under_way(number) {
                return;
            }
            // The runtime of the task may have ended during the renewal.
            housekeeper::ensure_running(self);
            let _ = real_time::timeout(housekeeper::HEARTBEAT, settled).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, RenewalQueue> {
        self.renewals.lock()
    }
}
