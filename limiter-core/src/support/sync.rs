//! Locks and atomics: those of the standard library, a spin lock, or those of the model checker.
//!
//! `cargo xtask model` compiles the crate's own tests with `cfg(shuttle)`; each lock and each
//! atomic access is then a point at which the checker may switch threads, and the tests named
//! `model` run many schedules, depth first or random. Shuttle is used instead of loom: mutexes
//! guard all shared data, so weak memory orders, which loom would explore too, change nothing;
//! shuttle runs futures and Tokio's channels unchanged; and no dependency changes under
//! `cfg(shuttle)`, whereas `cfg(loom)` removes Tokio's network.

#[cfg(not(all(test, shuttle)))]
mod spin_lock;

mod locks;

#[cfg(not(all(test, shuttle)))]
pub(crate) use std::sync::atomic;

#[cfg(all(test, shuttle))]
pub(crate) use modelled::{SpinGuard, SpinLock};
#[cfg(all(test, shuttle))]
pub(crate) use shuttle::sync::atomic;

#[cfg(feature = "redis")]
pub(crate) use crate::support::sync::locks::RwLockWriteGuard;
pub(crate) use crate::support::sync::locks::{Mutex, MutexGuard, RwLock};

#[cfg(not(all(test, shuttle)))]
pub(crate) use crate::support::sync::spin_lock::{SpinGuard, SpinLock};

#[cfg(all(test, shuttle))]
mod modelled {
    use crate::support::sync::{Mutex, MutexGuard};

    /// The spin lock as the checker models it: a thread that spins waits for its turn.
    #[derive(Debug, Default)]
    pub(crate) struct SpinLock<T>(pub(crate) Mutex<T>);

    pub(crate) type SpinGuard<'a, T> = MutexGuard<'a, T>;

    impl<T> SpinLock<T> {
        pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
            self.0.lock()
        }

        pub(crate) fn wait(&self) -> SpinGuard<'_, T> {
            self.0.lock()
        }

        pub(crate) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
            self.0.try_lock()
        }
    }
}
