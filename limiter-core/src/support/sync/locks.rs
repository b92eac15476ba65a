//! Locks without poisoning. A panic while a lock is held leaves the data as it is: each holder
//! keeps its data valid at every point at which it may panic.

use std::fmt;
use std::sync::PoisonError;

#[cfg(not(all(test, shuttle)))]
use std::sync as base;

#[cfg(all(test, shuttle))]
use shuttle::sync as base;

pub(crate) type MutexGuard<'a, T> = base::MutexGuard<'a, T>;
pub(crate) type RwLockReadGuard<'a, T> = base::RwLockReadGuard<'a, T>;
pub(crate) type RwLockWriteGuard<'a, T> = base::RwLockWriteGuard<'a, T>;

/// A mutex whose holders may panic.
#[derive(Default)]
pub(crate) struct Mutex<T>(base::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(base::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }

    #[cfg(all(feature = "redis", feature = "registry"))]
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A read-write lock whose holders may panic.
#[derive(Default)]
pub(crate) struct RwLock<T>(base::RwLock<T>);

impl<T> RwLock<T> {
    #[inline]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
