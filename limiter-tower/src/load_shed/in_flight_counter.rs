//! How much is in flight, and how much may be.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use limiter_core::__private::shed;

use super::priority::Priority;

/// One thing for each class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PerPriority<T>([T; Priority::ALL.len()]);

impl<T> PerPriority<T> {
    pub(super) fn from_fn(thing: impl FnMut(Priority) -> T) -> Self {
        Self(Priority::ALL.map(thing))
    }

    pub(super) fn get(&self, class: Priority) -> &T {
        #[expect(clippy::indexing_slicing, reason = "there is one for each class")]
        &self.0[class as usize]
    }

    pub(super) fn get_mut(&mut self, class: Priority) -> &mut T {
        #[expect(clippy::indexing_slicing, reason = "there is one for each class")]
        &mut self.0[class as usize]
    }
}

/// Counts what is in flight, in this process.
///
/// One number decides: a request of a class is admitted while fewer are in flight, of whatever
/// class, than the bound less what is kept for the classes above it. (Trunk reservation, as
/// telephone exchanges have it.)
#[derive(Debug, Default)]
pub(super) struct InFlightCounter {
    in_flight: AtomicUsize,
    shed: PerPriority<AtomicUsize>,
}

impl InFlightCounter {
    /// A place, if fewer than `most` are taken; else it is counted as shed.
    #[inline]
    pub(super) fn enter(self: &Arc<Self>, class: Priority, most: usize) -> Option<InFlightGuard> {
        // The number itself is all that threads agree on: nothing is published through it.
        let entered = self
            .in_flight
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken < most).then_some(taken + 1)
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

/// The place of a request among those in flight, until it is dropped.
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

    const fn most(class: Priority) -> usize {
        match class {
            Priority::Sheddable => 3,
            Priority::Normal => 5,
            Priority::High => 6,
            Priority::Critical => 8,
        }
    }

    /// Takes places and gives them back at random, for this class and those below it. Returns how
    /// many requests were shed.
    ///
    /// What the threads count by themselves, after they have a place and before they give it back,
    /// is never more than what is in flight; and that never more than the part of the highest of
    /// them.
    fn come_and_go(
        gauge: &Arc<InFlightCounter>,
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
            } else if let Some(place) = gauge.enter(*class, most(*class)) {
                held.push(place);
                let now = counted.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(now <= most(highest), "{now} up to {highest:?}");
            } else {
                shed += 1;
            }
        }
        counted.fetch_sub(held.len(), Ordering::SeqCst);
        shed
    }

    #[test]
    fn of_many_threads_none_takes_what_is_kept_for_higher_classes() {
        let gauge = Arc::new(InFlightCounter::default());
        let counted = AtomicUsize::new(0);
        for highest in Priority::ALL {
            let before: usize = Priority::ALL.iter().map(|class| gauge.shed(*class)).sum();
            let shed = AtomicUsize::new(0);
            thread::scope(|scope| {
                for seed in [3, 0x9E37_79B9, 0x85EB_CA6B, 0xC2B2_AE35] {
                    let (gauge, counted, shed) = (&gauge, &counted, &shed);
                    scope.spawn(move || {
                        shed.fetch_add(come_and_go(gauge, counted, highest, seed), Ordering::SeqCst);
                    });
                }
            });
            assert_eq!(gauge.in_flight(), 0);
            let after: usize = Priority::ALL.iter().map(|class| gauge.shed(*class)).sum();
            let shed = shed.into_inner();
            assert_eq!(after - before, shed);
            assert!(shed > 1_000, "{shed} up to {highest:?}");
        }
    }

    fn class() -> impl Strategy<Value = Priority> {
        prop::sample::select(Priority::ALL.to_vec())
    }

    proptest! {
        /// Against the rule itself, one step after the other.
        #[test]
        fn who_comes_is_admitted_while_less_is_in_flight_than_its_part(
            steps in prop::collection::vec(prop::option::of(class()), 0..200)
        ) {
            let gauge = Arc::new(InFlightCounter::default());
            let mut held = Vec::new();
            for step in steps {
                if let Some(class) = step {
                    let fits = held.len() < most(class);
                    let place = gauge.enter(class, most(class));
                    prop_assert_eq!(place.is_some(), fits);
                    held.extend(place);
                } else {
                    held.pop();
                }
                prop_assert_eq!(gauge.in_flight(), held.len());
            }
            drop(held);
            prop_assert_eq!(gauge.in_flight(), 0);
        }
    }
}
