//! Counts the requests in flight in this process.
//!
//! Requests of low priority must not use capacity reserved for higher priorities. One atomic
//! counter holds the number of requests in flight, of all priorities. Each priority has its own
//! bound on this counter (trunk reservation in telephone networks). limiter-core's `BoundedCounter`
//! does not fit: it has one bound, set at construction, and its guard borrows the counter, while a
//! guard here moves into a response body.
//!
//! Invariant: no thread observes more requests than the highest bound in use. The tests below
//! verify it with concurrent threads and with random steps.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use limiter_core::__private::shed;

use super::priority::Priority;

/// One value for each priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PerPriority<T>([T; Priority::ALL.len()]);

impl<T> PerPriority<T> {
    pub(super) fn from_fn(thing: impl FnMut(Priority) -> T) -> Self {
        Self(Priority::ALL.map(thing))
    }

    pub(super) fn get(&self, class: Priority) -> &T {
        #[expect(
            clippy::indexing_slicing,
            reason = "the array has one value for each priority"
        )]
        &self.0[class as usize]
    }

    pub(super) fn get_mut(&mut self, class: Priority) -> &mut T {
        #[expect(
            clippy::indexing_slicing,
            reason = "the array has one value for each priority"
        )]
        &mut self.0[class as usize]
    }
}

/// The number of requests in flight, and the numbers of shed requests.
#[derive(Debug, Default)]
pub(super) struct InFlightCounter {
    in_flight: AtomicUsize,
    shed: PerPriority<AtomicUsize>,
}

impl InFlightCounter {
    /// Admits a request if fewer than `bound` are in flight; otherwise counts it as shed.
    #[inline]
    pub(super) fn enter(self: &Arc<Self>, class: Priority, bound: usize) -> Option<InFlightGuard> {
        // Relaxed: the counter publishes no other data.
        let entered = self
            .in_flight
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |in_flight| {
                (in_flight < bound).then_some(in_flight + 1)
            });
        if entered.is_err() {
            self.count_shed(class);
            return None;
        }
        Some(InFlightGuard(Arc::clone(self)))
    }

    #[cold]
    fn count_shed(&self, class: Priority) {
        self.shed.get(class).fetch_add(1, Ordering::Relaxed);
        shed(class as usize);
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn shed(&self, class: Priority) -> usize {
        self.shed.get(class).load(Ordering::Relaxed)
    }
}

/// Counts one request as in flight until it is dropped.
pub struct InFlightGuard(Arc<InFlightCounter>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for InFlightGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InFlightGuard")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::thread;

    const fn bound(class: Priority) -> usize {
        match class {
            Priority::Sheddable => 3,
            Priority::Normal => 5,
            Priority::High => 6,
            Priority::Critical => 8,
        }
    }

    /// Admits and ends requests at random, for this priority and lower ones. Returns the number of
    /// shed requests.
    ///
    /// The threads count their requests themselves, after admission and before the end. This count
    /// never exceeds the bound of the highest priority.
    fn admit_at_random(
        counter: &Arc<InFlightCounter>,
        counted: &AtomicUsize,
        highest: Priority,
        mut random: usize,
    ) -> usize {
        let mut held = Vec::new();
        let mut shed = 0;
        let classes = Priority::ALL.iter().filter(|class| **class <= highest);
        for class in classes.cycle().take(20_000) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if random % 2 == 0 {
                if let Some(place) = held.pop() {
                    counted.fetch_sub(1, Ordering::SeqCst);
                    drop::<InFlightGuard>(place);
                }
            } else if let Some(place) = counter.enter(*class, bound(*class)) {
                held.push(place);
                let now = counted.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(now <= bound(highest), "{now} up to {highest:?}");
            } else {
                shed += 1;
            }
        }
        counted.fetch_sub(held.len(), Ordering::SeqCst);
        shed
    }

    #[test]
    fn threads_never_use_capacity_of_higher_priorities() {
        let counter = Arc::new(InFlightCounter::default());
        let counted = AtomicUsize::new(0);
        for highest in Priority::ALL {
            let before: usize = Priority::ALL.iter().map(|class| counter.shed(*class)).sum();
            let shed = AtomicUsize::new(0);
            thread::scope(|scope| {
                for seed in [3, 0x9E37_79B9, 0x85EB_CA6B, 0xC2B2_AE35] {
                    let (counter, counted, shed) = (&counter, &counted, &shed);
                    scope.spawn(move || {
                        shed.fetch_add(admit_at_random(counter, counted, highest, seed), Ordering::SeqCst);
                    });
                }
            });
            assert_eq!(counter.in_flight(), 0);
            let after: usize = Priority::ALL.iter().map(|class| counter.shed(*class)).sum();
            let shed = shed.into_inner();
            assert_eq!(after - before, shed);
            assert!(shed > 1_000, "{shed} up to {highest:?}");
        }
    }

    fn class() -> impl Strategy<Value = Priority> {
        prop::sample::select(Priority::ALL.to_vec())
    }

    proptest! {
        /// Compares single steps with the admission rule.
        #[test]
        fn request_is_admitted_below_the_bound_of_its_priority(
            steps in prop::collection::vec(prop::option::of(class()), 0..200)
        ) {
            let counter = Arc::new(InFlightCounter::default());
            let mut held = Vec::new();
            for step in steps {
                if let Some(class) = step {
                    let fits = held.len() < bound(class);
                    let place = counter.enter(class, bound(class));
                    prop_assert_eq!(place.is_some(), fits);
                    held.extend(place);
                } else {
                    held.pop();
                }
                prop_assert_eq!(counter.in_flight(), held.len());
            }
            drop(held);
            prop_assert_eq!(counter.in_flight(), 0);
        }
    }
}
