//! One lease: its validity, its transfer to the next waiter and its release on drop.
//!
//! A lease exists from before the call that requests it, so that a dropped call is followed by a
//! release of a permit that Redis may have admitted. The permit table moves the lease to a waiter
//! with equal terms without a call, for at most one second; then other processes get a turn.
//!
//! Invariant: each lease that Redis may have admitted is released or expires. Tests:
//! `tests/concurrency.rs`, `tests/concurrency/two_processes.rs`.

use std::sync::Arc;
use std::time::Duration;

use crate::error::StoreError;
use crate::identity::Identity;
use crate::memory::permit_table::{PermitPayload, PermitTerms};
use crate::redis::permit_leases::renewal_queue::{Release, Renewal};
use crate::redis::permit_leases::store::PermitId;
use crate::redis::permit_leases::validity::{NOT_IN_REDIS, Validity, ends};
use crate::redis::permit_leases::{PermitLeases, housekeeper};
use crate::support::real_time::with_deadline;
use crate::units::Timestamp;

/// Maximum time for which holders of this process pass a lease on to each other. Then it returns to
/// Redis, so that waiters of other processes get a turn.
const MAX_TRANSFER_TIME: Duration = Duration::from_secs(1);

/// A lease of a permit. Dropping it releases it in the background.
#[derive(Debug)]
pub(crate) struct PermitLease {
    leases: Arc<PermitLeases>,
    identity: Identity,
    key: Arc<str>,
    permit: PermitId,
    /// Time of the first transfer to another holder.
    transferred_at: Option<Timestamp>,
    validity: Arc<Validity>,
    end: OnDrop,
}

/// Action when a lease is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnDrop {
    /// Releases the lease and notifies the first waiter.
    ReleaseAndNotify,
    /// Releases the lease without a notification, so that another process can take it.
    ReleaseSilently,
    /// Releases the lease and repeats the release: Redis may have admitted it, or may admit it
    /// later.
    ReleaseRepeatedly,
    /// No action: there is no lease.
    Nothing,
}

impl PermitLease {
    /// Returns a lease for a call to Redis that is about to start.
    pub(crate) fn for_request(
        leases: &Arc<PermitLeases>,
        identity: Identity,
        key: &Arc<str>,
        permit: PermitId,
    ) -> Self {
        let now = leases.clock.now();
        let ends = ends(now, &permit.terms);
        Self::new(leases, identity, key, permit, (ends, OnDrop::ReleaseRepeatedly))
    }

    /// Returns a lease that Redis does not know, because it is unavailable.
    pub(crate) fn not_in_redis(
        leases: &Arc<PermitLeases>,
        identity: Identity,
        key: &Arc<str>,
        permit: PermitId,
    ) -> Self {
        Self::new(
            leases,
            identity,
            key,
            permit,
            (NOT_IN_REDIS, OnDrop::ReleaseAndNotify),
        )
    }

    fn new(
        leases: &Arc<PermitLeases>,
        identity: Identity,
        key: &Arc<str>,
        permit: PermitId,
        (ends, end): (u64, OnDrop),
    ) -> Self {
        Self {
            leases: Arc::clone(leases),
            identity,
            key: Arc::clone(key),
            permit,
            transferred_at: None,
            validity: Arc::new(Validity::until(ends)),
            end,
        }
    }

    pub(crate) fn permit(&self) -> PermitId {
        self.permit
    }

    /// Renews the lease from now on.
    pub(crate) fn into_held(mut self) -> Self {
        self.end = OnDrop::ReleaseAndNotify;
        let renewing = Renewal {
            key: Arc::clone(&self.key),
            identity: self.identity,
            permit: self.permit,
            validity: Arc::clone(&self.validity),
        };
        let now = self.leases.clock.now();
        self.leases.lock().schedule_renewal(renewing, now);
        // This lease may be due before the time for which the housekeeper sleeps.
        self.leases.wake.notify_one();
        housekeeper::ensure_running(&self.leases);
        self
    }

    /// Records that Redis denied the permit.
    pub(crate) fn on_denied(mut self) {
        self.end = OnDrop::Nothing;
    }

    /// True if the lease has not expired.
    pub(crate) fn is_held(&self) -> bool {
        housekeeper::ensure_running(&self.leases);
        self.validity.is_held(&self.leases.clock)
    }

    /// True if the permit was admitted by the local fallback and Redis does not know it yet.
    pub(crate) fn is_local_fallback(&self) -> bool {
        self.validity.is_not_in_redis()
    }

    /// Waits until the lease may have expired.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn lost(&self) {
        let clock = &self.leases.clock;
        loop {
            let mut changed = std::pin::pin!(self.validity.changed());
            changed.as_mut().enable();
            housekeeper::ensure_running(&self.leases);
            let now = clock.now();
            let Some(remaining) = self.validity.remaining(clock) else {
                return;
            };
            tokio::select! {
                biased;
                () = changed => {}
                // One hour replaces an unlimited validity; the loop then checks again.
                () = clock.sleep(now, remaining.min(Duration::from_secs(3_600))) => {}
            }
        }
    }

    /// Releases the lease and waits for the reply.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the release continues in the background.
    pub(crate) async fn release(mut self, deadline: Duration) -> Result<(), StoreError> {
        let leases = Arc::clone(&self.leases);
        let permits = [self.permit];
        let released = async {
            leases.lock().forget(self.permit.number);
            leases.is_not_renewing(self.permit.number).await;
            leases.register.release(&self.key, &permits, deadline).await
        };
        with_deadline(deadline, released).await?;
        let notifies_next = self.end != OnDrop::ReleaseSilently;
        // Redis may execute an unanswered renewal later, so the drop releases the lease once more.
        if !leases.lock().is_unanswered(self.permit.number) {
            self.end = OnDrop::Nothing;
        }
        if notifies_next {
            leases.table.notify_first(self.identity);
        }
        Ok(())
    }
}

impl PermitPayload for PermitLease {
    fn transfer(mut self, held: &PermitTerms, wanted: &PermitTerms, _: u64) -> Result<Self, Self> {
        let clock = &self.leases.clock;
        if held != wanted || !self.validity.is_held(clock) {
            return Err(self);
        }
        let now = clock.now();
        if now.since(*self.transferred_at.get_or_insert(now)) >= MAX_TRANSFER_TIME {
            self.end = OnDrop::ReleaseSilently;
            return Err(self);
        }
        Ok(self)
    }

    fn try_clone_for_next(&self) -> Option<Self> {
        None
    }
}

impl Drop for PermitLease {
    fn drop(&mut self) {
        if self.end == OnDrop::Nothing {
            return;
        }
        let now = self.leases.clock.now();
        self.leases.lock().schedule_release(Release {
            key: Arc::clone(&self.key),
            identity: self.identity,
            permit: self.permit,
            // The call in flight may still admit the permit, but not after this time.
            expires_at: ends(now, &self.permit.terms),
            due: now.as_micros(),
            repeats: self.end == OnDrop::ReleaseRepeatedly,
            notifies_next: self.end != OnDrop::ReleaseSilently,
        });
        self.leases.wake.notify_one();
        housekeeper::ensure_running(&self.leases);
    }
}
