//! Upper bound of the calls in flight.

use crate::support::sync::atomic::{AtomicU32, Ordering};

/// A counter of occupied slots. No caller waits for a slot, so an atomic counter suffices.
#[derive(Debug)]
pub(crate) struct InFlightLimit {
    taken: AtomicU32,
    max: u32,
}

/// An occupied slot.
#[derive(Debug)]
#[must_use = "the slot is released when this is dropped"]
pub(crate) struct InFlightSlot<'a>(&'a InFlightLimit);

impl InFlightLimit {
    pub(crate) fn new(max: u32) -> Self {
        let taken = AtomicU32::new(0);
        Self { taken, max }
    }

    /// Returns the number of slots.
    pub(crate) fn max(&self) -> u32 {
        self.max
    }

    /// Occupies a slot, if one is free.
    pub(crate) fn try_acquire(&self) -> Option<InFlightSlot<'_>> {
        let one_more = |taken| (taken < self.max).then_some(taken + 1);
        // Relaxed, since the counter guards no other data.
        let taken = self
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.ok().map(|_| InFlightSlot(self))
    }
}

impl Drop for InFlightSlot<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use crate::redis::dispatch::in_flight::*;

    #[test]
    fn slots_are_bounded_and_reusable() {
        let places = InFlightLimit::new(2);
        let (first, second) = (places.try_acquire(), places.try_acquire());
        assert!(first.is_some() && second.is_some());
        assert!(places.try_acquire().is_none() && places.try_acquire().is_none());
        drop(first);
        let third = places.try_acquire();
        assert!(third.is_some() && places.try_acquire().is_none());
        assert!(InFlightLimit::new(0).try_acquire().is_none());
    }
}
