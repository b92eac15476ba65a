//! The moment until which a lease in Redis is surely held, shared by its permit and the task that
//! renews it.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::concurrency::redis_store::RenewalResult;
use crate::concurrency::table::PermitTerms;
use crate::support::clock::Clock;
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::units::Timestamp;

/// The moment until which a lease is surely held. It counts from before the request to Redis, so
/// the lease in Redis does not end earlier.
#[derive(Debug)]
pub(crate) struct Validity {
    /// In microseconds; [`LOST`], or [`WITHOUT_END`].
    ends: AtomicU64,
    /// Notified after each change.
    changed: Notify,
}

/// The lease has ended, and does not begin again.
const LOST: u64 = 0;
/// Redis has not been asked for the lease.
pub(super) const WITHOUT_END: u64 = u64::MAX;

impl Validity {
    /// A lease that ends at this moment, in microseconds, unless it is renewed.
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

    /// Whether it has surely not ended. Who is told once that it has is never told otherwise.
    pub(super) fn is_held(&self, clock: &Clock) -> bool {
        self.remaining(clock).is_some()
    }

    /// How long it lasts unless it is renewed: `None` if it is lost.
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
            // Unless it is renewed this moment.
            if self.set(ends, LOST) {
                return None;
            }
        }
    }

    /// Whether Redis has not been asked for it.
    pub(crate) fn is_without_end(&self) -> bool {
        self.ends.load(Ordering::Acquire) == WITHOUT_END
    }

    /// Takes note of what Redis says of it, which was asked at a moment.
    pub(crate) fn on_renewal(&self, renewed: RenewalResult, ends: u64) {
        loop {
            let ended = self.ends.load(Ordering::Acquire);
            let next = match (ended, renewed) {
                (LOST, _) => return,
                // It was Redis that had not heard of it, and had room.
                (WITHOUT_END, RenewalResult::Anew) | (_, RenewalResult::GoesOn) => ends,
                // Others are in its place. It goes on being renewed, so that Redis counts it when
                // there is room.
                (_, RenewalResult::Gone | RenewalResult::Anew) => LOST,
            };
            if self.set(ended, next) {
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

/// The end of a lease that begins at this moment.
pub(crate) fn ends(from: Timestamp, terms: &PermitTerms) -> u64 {
    from.as_micros().saturating_add(u64::from(terms.lease_ms) * 1_000)
}
