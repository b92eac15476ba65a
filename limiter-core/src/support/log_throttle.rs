//! Bounds the rate of repeated log messages.
//!
//! An outage or a wrong setting affects each call, and a message for each call would fill the log.
//! A throttle keeps the time of its last message and permits the next one after an interval, by
//! default of ten seconds; the variant form keeps the times of up to `MAX_VARIANTS` variants and
//! drops further ones.
//!
//! Invariants: the first message is due at once, one of several concurrent callers logs it, and
//! memory is bounded. Tests: below.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::support::sync::Mutex;
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::units::{Timestamp, micros_ceil};

/// The time between two messages.
const INTERVAL: Duration = Duration::from_secs(10);

/// Permits one message in an interval.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    /// Time of the last message in microseconds; 0 for none.
    last: AtomicU64,
}

impl LogThrottle {
    pub(crate) const fn new() -> Self {
        Self {
            last: AtomicU64::new(0),
        }
    }

    /// Returns whether the message may be logged now, ten seconds after the last one, and counts it
    /// as logged.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        self.is_due_every(INTERVAL, now)
    }

    /// Returns whether the message may be logged now with this interval, and counts it as logged.
    pub(crate) fn is_due_every(&self, interval: Duration, now: Timestamp) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        let now = now.as_micros().max(1);
        // The clock of a test may move backward, hence the absolute difference.
        let is_due = last == 0 || now.abs_diff(last) >= micros_ceil(interval);
        is_due
            && self
                .last
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// Permits one message every ten seconds for each variant of an event.
#[derive(Debug, Default)]
pub(crate) struct VariantLogThrottle {
    /// Time of the last message by the hash of its variant.
    logged: Mutex<Option<HashMap<u64, Timestamp>>>,
}

impl VariantLogThrottle {
    /// Maximum number of variants every ten seconds. Further variants are not logged.
    pub(crate) const MAX_VARIANTS: usize = 16;

    pub(crate) const fn new() -> Self {
        Self {
            logged: Mutex::new(None),
        }
    }

    /// Returns whether the event may be logged now for this variant, and counts it as logged.
    pub(crate) fn is_due(&self, now: Timestamp, variant: &impl Hash) -> bool {
        let mut hasher = DefaultHasher::new();
        variant.hash(&mut hasher);
        let mut logged = self.logged.lock();
        let logged = logged.get_or_insert_default();
        logged.retain(|_, last| now.since(*last) < INTERVAL);
        let is_new = logged.len() < Self::MAX_VARIANTS && !logged.contains_key(&hasher.finish());
        if is_new {
            logged.insert(hasher.finish(), now);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use crate::support::log_throttle::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros((100 + seconds) * 1_000_000)
    }

    #[test]
    fn message_is_due_at_once_and_after_interval() {
        let throttle = LogThrottle::new();
        let due = [0, 1, 9, 10, 19, 20].map(|seconds| throttle.is_due(at(seconds)));
        assert_eq!(due, [true, false, false, true, false, true]);
    }

    #[test]
    fn each_variant_is_due_once_per_interval() {
        let throttle = VariantLogThrottle::new();
        let due = [(0, "a"), (1, "a"), (1, "b"), (10, "a"), (10, "b"), (11, "b")];
        let due = due.map(|(seconds, variant)| throttle.is_due(at(seconds), &variant));
        assert_eq!(due, [true, false, true, true, false, true]);
    }

    #[test]
    fn variants_are_bounded() {
        let throttle = VariantLogThrottle::new();
        let logged = (0..100).filter(|variant| throttle.is_due(at(1), variant));
        assert_eq!(logged.count(), VariantLogThrottle::MAX_VARIANTS);
        assert!(throttle.is_due(at(11), &100));
    }
}
