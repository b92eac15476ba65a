//! A lock that is nearly always held for some dozens of nanoseconds: to let it go is a write, where
//! a mutex that threads sleep on has to ask whether one does.

use std::time::Duration;
use std::{hint, thread};

use spin::mutex::{SpinMutex, SpinMutexGuard};

/// So often a thread looks again before it lets others run, who may have the lock …
const LOOKS: u32 = 16;
/// … pausing up to two to this power in between …
const MOST_PAUSES_BITS: u32 = 3;
/// … and so often before it sleeps: one of real-time priority only lets others run that have it
/// too.
const YIELDING_LOOKS: u32 = LOOKS + 64;
const SLEEP: Duration = Duration::from_micros(50);

/// What is behind the lock. A panic while it is held leaves it as it is then.
#[derive(Debug, Default)]
pub(crate) struct SpinLock<T>(SpinMutex<T>);

pub(crate) type SpinGuard<'a, T> = SpinMutexGuard<'a, T>;

impl<T> SpinLock<T> {
    #[inline]
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        self.0.try_lock().unwrap_or_else(|| self.wait())
    }

    /// The lock, if nobody has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        self.0.try_lock()
    }

    #[cold]
    fn wait(&self) -> SpinGuard<'_, T> {
        let mut looks = 0_u32;
        loop {
            // To look does not take the cache line from whoever has the lock; to try does.
            if !self.0.is_locked() {
                if let Some(guard) = self.0.try_lock() {
                    return guard;
                }
            }
            looks += 1;
            if looks < LOOKS {
                // Longer each time: meanwhile whoever has the lock takes it again and again, with
                // all that is behind it in its processor's own cache.
                for _ in 0..1_u32 << looks.min(MOST_PAUSES_BITS) {
                    hint::spin_loop();
                }
            } else if looks < YIELDING_LOOKS {
                thread::yield_now();
            } else {
                thread::sleep(SLEEP);
                looks = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use crate::support::sync::brief::*;

    #[test]
    fn one_thread_has_it_at_a_time() {
        let (sum, inside) = (SpinLock::<u64>::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..20_000 {
                        let mut sum = sum.lock();
                        assert!(!inside.swap(true, Ordering::Relaxed));
                        *sum += 1;
                        if turn % 5_000 == 0 {
                            // Long enough for the others to spin, to yield and to sleep.
                            thread::sleep(SLEEP * 4);
                        }
                        inside.store(false, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(*sum.lock(), 80_000);
    }

    #[test]
    fn it_can_be_tried() {
        let lock = SpinLock::<u64>::default();
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }
}
