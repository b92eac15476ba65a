//! Upper bound of the calls in flight.

use crate::support::bounded_counter::BoundedCounter;

/// A counter of occupied slots. No caller waits for a slot.
#[derive(Debug)]
pub(crate) struct InFlightLimit(BoundedCounter);

/// An occupied slot.
#[derive(Debug)]
#[must_use = "the slot is released when this is dropped"]
pub(crate) struct InFlightSlot<'a>(&'a InFlightLimit);

impl InFlightLimit {
    pub(crate) fn new(max: u32) -> Self {
        Self(BoundedCounter::new(usize::try_from(max).unwrap_or(usize::MAX)))
    }

    /// Returns the number of slots.
    pub(crate) fn max(&self) -> usize {
        self.0.max()
    }

    /// Occupies a slot, if one is free.
    pub(crate) fn try_acquire(&self) -> Option<InFlightSlot<'_>> {
        self.0.try_add(1).then(|| InFlightSlot(self))
    }
}

impl Drop for InFlightSlot<'_> {
    fn drop(&mut self) {
        self.0.0.subtract(1);
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
