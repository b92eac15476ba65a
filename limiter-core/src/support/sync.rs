//! Locks and atomics: the standard library's, one for brief moments, or those of the model checker.
//!
//! `cargo xtask model` compiles the crate's own tests with `cfg(shuttle)`; each lock and each
//! atomic access is then a point at which the checker may let another thread run, and the tests
//! named `model` run under all schedules, or very many. Shuttle rather than loom: what is shared
//! here is guarded by mutexes, so that weak memory orders, which loom would explore as well, change
//! nothing; shuttle runs futures and Tokio's channels as they stand; and no crate below this one
//! changes under `cfg(shuttle)`, as Tokio does under `cfg(loom)`, which takes its network away.

#[cfg(not(all(test, shuttle)))]
mod brief;

#[cfg(not(all(test, shuttle)))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
#[cfg(all(feature = "redis", not(all(test, shuttle))))]
pub(crate) use std::sync::{RwLock, RwLockWriteGuard};

#[cfg(all(test, shuttle))]
pub(crate) use modelled::{SpinGuard, SpinLock};
#[cfg(all(test, shuttle))]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, RwLock, RwLockWriteGuard, atomic};

#[cfg(not(all(test, shuttle)))]
pub(crate) use crate::support::sync::brief::{SpinGuard, SpinLock};

#[cfg(all(test, shuttle))]
mod modelled {
    use crate::support::sync::{Mutex, MutexGuard};

    /// The spin lock as the checker models it: a thread that spins waits for its turn.
    #[derive(Debug, Default)]
    pub(crate) struct SpinLock<T>(Mutex<T>);

    pub(crate) type SpinGuard<'a, T> = MutexGuard<'a, T>;

    impl<T> SpinLock<T> {
        pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
            self.0.lock().unwrap()
        }

        pub(crate) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}
