//! The time until which a lease is certainly valid, shared by its permit and the task that renews
//! it.
//!
//! An atomic contains the end of the lease, or that the lease is lost, or that Redis does not know
//! it yet. The end counts from before the call to Redis, so the lease in Redis does not end
//! earlier.
//!
//! Invariant: a lease that was reported as lost never becomes valid again, even if a renewal
//! succeeds at that moment. Tests: `tests/concurrency/outages.rs`.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::memory::permit_table::PermitTerms;
use crate::redis::permit_leases::store::RenewalResult;
use crate::support::clock::Clock;
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::units::Timestamp;

/// The time until which a lease is certainly valid. It is measured from before the call to Redis,
/// so the lease in Redis does not expire earlier.
#[derive(Debug)]
pub(crate) struct Validity {
    /// In microseconds, or [`LOST`], or [`NOT_IN_REDIS`].
    ends: AtomicU64,
    /// Notified after each change.
    changed: Notify,
}

/// The lease has expired; a lost lease never becomes valid again.
const LOST: u64 = 0;
/// Redis does not know the lease.
pub(super) const NOT_IN_REDIS: u64 = u64::MAX;

impl Validity {
    /// Returns a lease that expires at `ends`, in microseconds, unless it is renewed.
    pub(super) fn until(ends: u64) -> Self {
        Self {
            ends: AtomicU64::new(ends),
            changed: Notify::new(),
        }
    }

    /// Completes with the next change.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// True if the lease has not expired. Once false, it stays false.
    pub(super) fn is_held(&self, clock: &Clock) -> bool {
        self.remaining(clock).is_some()
    }

    /// Returns the time until the lease expires; `None` if it is lost.
    pub(super) fn remaining(&self, clock: &Clock) -> Option<Duration> {
        loop {
            let ends = self.ends.load(Ordering::Acquire);
            if ends == LOST {
                return None;
            }
            let now = clock.now().as_micros();
            if now < ends {
                return Some(Duration::from_micros(ends - now));
            }
            // Fails if a renewal changes the value concurrently.
            if self.set(ends, LOST) {
                return None;
            }
        }
    }

    /// True if Redis does not know the lease.
    pub(crate) fn is_not_in_redis(&self) -> bool {
        self.ends.load(Ordering::Acquire) == NOT_IN_REDIS
    }

    /// Applies the result of a renewal. `ends` counts from before the call.
    pub(crate) fn on_renewal(&self, renewed: RenewalResult, ends: u64) {
        loop {
            let current = self.ends.load(Ordering::Acquire);
            let next = match (current, renewed) {
                (LOST, _) => return,
                // Redis did not know the lease and had a free permit.
                (NOT_IN_REDIS, RenewalResult::Restarted) | (_, RenewalResult::Extended) => ends,
                // Other holders have taken its place. The renewals continue, so that Redis counts
                // the permit once there is a free one.
                (_, RenewalResult::Lost | RenewalResult::Restarted) => LOST,
            };
            if self.set(current, next) {
                self.changed.notify_waiters();
                return;
            }
        }
    }

    fn set(&self, from: u64, to: u64) -> bool {
        let set = self
            .ends
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        set.is_ok()
    }
}

/// Returns the end of a lease that starts at `from`, in microseconds.
pub(crate) fn ends(from: Timestamp, terms: &PermitTerms) -> u64 {
    from.as_micros().saturating_add(u64::from(terms.lease_ms) * 1_000)
}
