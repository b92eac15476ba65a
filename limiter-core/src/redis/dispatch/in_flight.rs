//! How many calls may be on their way at once.

use crate::support::sync::atomic::{AtomicU32, Ordering};

/// Places for so many calls. Nobody waits for one, so that it is a number and no lock.
#[derive(Debug)]
pub(crate) struct InFlightLimit {
    taken: AtomicU32,
    most: u32,
}

/// One of them, as long as it is held.
#[derive(Debug)]
#[must_use = "it is given back when this is dropped"]
pub(crate) struct InFlightSlot<'a>(&'a InFlightLimit);

impl InFlightLimit {
    pub(crate) fn new(most: u32) -> Self {
        let taken = AtomicU32::new(0);
        Self { taken, most }
    }

    /// How many there are.
    pub(crate) fn most(&self) -> u32 {
        self.most
    }

    /// A place, if one is free.
    pub(crate) fn try_acquire(&self) -> Option<InFlightSlot<'_>> {
        let one_more = |taken| (taken < self.most).then_some(taken + 1);
        // It guards nothing but itself.
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
    fn there_are_so_many_and_each_is_taken_again_when_it_was_given_back() {
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
