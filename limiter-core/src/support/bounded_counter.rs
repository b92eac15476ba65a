//! A count with an upper bound: in-flight calls, stored keys, waiters.
//!
//! The bounds limit memory and concurrent calls, and a caller at the bound fails at once. The count
//! is one atomic number that is changed by compare-and-swap, so counting takes no lock.
//!
//! Invariants: the count never exceeds the bound, also for amounts that would overflow, and each
//! added amount is subtracted once, which `CountGuard` does on drop. Tests: below, and
//! `memory/permit_table/tests.rs` compares the count with the number of stored keys.

use crate::support::sync::atomic::{AtomicUsize, Ordering};

/// A count between 0 and its bound. It publishes no other data, so its accesses are relaxed.
#[derive(Debug)]
pub(crate) struct BoundedCounter {
    count: AtomicUsize,
    max: usize,
}

impl BoundedCounter {
    pub(crate) const fn new(max: usize) -> Self {
        Self {
            count: AtomicUsize::new(0),
            max,
        }
    }

    /// Returns the bound.
    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// Returns the current count.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Adds `amount`; false if the count would exceed the bound.
    #[inline]
    #[must_use]
    pub(crate) fn try_add(&self, amount: usize) -> bool {
        let fits = |count: usize| count.checked_add(amount).filter(|sum| *sum <= self.max);
        self.count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .is_ok()
    }

    /// Adds one until the guard is dropped, if the bound permits it.
    #[cfg(feature = "redis")]
    pub(crate) fn try_hold(&self) -> Option<CountGuard<'_>> {
        self.try_add(1).then(|| CountGuard(self))
    }

    /// Subtracts an amount that was added before.
    #[inline]
    pub(crate) fn subtract(&self, amount: usize) {
        self.count.fetch_sub(amount, Ordering::Relaxed);
    }
}

/// One of a count, which is subtracted again on drop.
#[cfg(feature = "redis")]
#[derive(Debug)]
#[must_use = "the count is reduced when this is dropped"]
pub(crate) struct CountGuard<'a>(&'a BoundedCounter);

#[cfg(feature = "redis")]
impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.subtract(1);
    }
}

#[cfg(test)]
mod tests {
    use crate::support::bounded_counter::*;

    #[test]
    fn count_is_bounded_and_reusable() {
        let counter = BoundedCounter::new(3);
        assert!(counter.try_add(2) && !counter.try_add(2) && counter.try_add(1));
        assert!(counter.try_add(0) && !counter.try_add(usize::MAX));
        counter.subtract(2);
        assert!(counter.try_add(2));
        assert_eq!((counter.count(), counter.max()), (3, 3));
        assert!(!BoundedCounter::new(0).try_add(1));
    }

    #[cfg(feature = "redis")]
    #[test]
    fn dropped_guard_reduces_count() {
        let counter = BoundedCounter::new(2);
        let (first, second) = (counter.try_hold(), counter.try_hold());
        assert!(first.is_some() && second.is_some());
        assert!(counter.try_hold().is_none() && counter.try_hold().is_none());
        drop(first);
        let third = counter.try_hold();
        assert!(third.is_some() && counter.try_hold().is_none());
        assert!(BoundedCounter::new(0).try_hold().is_none());
    }
}
