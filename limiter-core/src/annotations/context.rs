//! The limiter of annotated functions that name none.
//!
//! A function without `limiter = …` uses the limiter of its task (`with_limiter`, a task-local
//! value), else the installed one (`install`), else in a debug build one implicit limiter in
//! process.
//!
//! Invariants: a limiter is installed at most once in a process; and in a release build, a call
//! without a task's or an installed limiter is rejected. Tests: `tests/install.rs` in both builds,
//! `limiter-macros/tests/behaviour/plain.rs` (limiters of tasks).

use std::ops::Deref;
use std::sync::OnceLock;

use crate::error::{ConfigError, StoreError, StoreErrorKind};
use crate::limiter::Limiter;

tokio::task_local! {
    static CURRENT: Limiter;
}

/// Set once, by `install`.
static INSTALLED: OnceLock<Limiter> = OnceLock::new();

/// Decides in process in a debug build, from the first call without an installed limiter until
/// `install`. A release build has none: every replica would silently allow the whole limit.
static IMPLICIT: OnceLock<Limiter> = OnceLock::new();

/// Sets the limiter of every annotated function that names none. Call it once, before the first
/// annotated call.
///
/// Without an installed limiter, a release build rejects annotated calls with
/// [`StoreErrorKind::NotInstalled`]. A debug build decides them in process, by one implicit limiter
/// for the whole process, and logs a warning once. A limiter that is installed later replaces the
/// implicit one: the next annotated call uses it, the usage of earlier calls is lost, and a warning
/// is logged. Calls that are waiting or running keep the limiter with which they started.
///
/// # Errors
///
/// [`ConfigError::AlreadyInstalled`] if `install` was called before.
pub fn install(limiter: Limiter) -> Result<(), ConfigError> {
    INSTALLED
        .set(limiter)
        .map_err(|_| ConfigError::AlreadyInstalled)?;
    if IMPLICIT.get().is_some() {
        tracing::warn!(
            "annotated functions were called before limiter_core::annotations::install: the usage of these calls in the implicit in-process \
             limiter is lost; install the limiter earlier"
        );
    }
    Ok(())
}

/// Runs `future` with `limiter` as the limiter of every annotated function that names none and is
/// called in the same task, so that tests which run side by side share nothing. A task that the
/// future spawns uses the installed limiter: wrap its future in `with_limiter` again.
///
/// # Cancel safety
///
/// That of `future`.
pub async fn with_limiter<F: Future>(limiter: Limiter, future: F) -> F::Output {
    CURRENT.scope(limiter, future).await
}

/// Returns the limiter of a call that names none, if one exists already: the task's, else the
/// installed one, else the implicit one of a debug build.
pub(crate) fn installed() -> Option<Limiter> {
    let of_task = CURRENT.try_with(Limiter::clone).ok();
    of_task.or_else(|| INSTALLED.get().or_else(|| IMPLICIT.get()).cloned())
}

/// The limiter of a call. A reference needs no reference count.
#[derive(Debug)]
pub(crate) enum CurrentLimiter<'a> {
    /// The limiter that an attribute names.
    Named(&'a Limiter),
    /// A handle of the task's or of a named limiter.
    Owned(Limiter),
    Global(&'static Limiter),
}

impl CurrentLimiter<'_> {
    /// Returns the limiter without borrows.
    pub(crate) fn into_owned(self) -> CurrentLimiter<'static> {
        match self {
            Self::Named(limiter) => CurrentLimiter::Owned(limiter.clone()),
            Self::Owned(limiter) => CurrentLimiter::Owned(limiter),
            Self::Global(limiter) => CurrentLimiter::Global(limiter),
        }
    }
}

impl Deref for CurrentLimiter<'_> {
    type Target = Limiter;

    #[inline]
    fn deref(&self) -> &Limiter {
        match self {
            Self::Owned(limiter) => limiter,
            Self::Named(limiter) | Self::Global(limiter) => limiter,
        }
    }
}

/// Returns the task's limiter, else the global one.
pub(crate) fn current() -> Result<CurrentLimiter<'static>, StoreError> {
    if let Ok(limiter) = CURRENT.try_with(Limiter::clone) {
        return Ok(CurrentLimiter::Owned(limiter));
    }
    match INSTALLED.get() {
        Some(limiter) => Ok(CurrentLimiter::Global(limiter)),
        None => implicit().map(CurrentLimiter::Global),
    }
}

/// Returns the limiter of calls without an installed one.
#[cold]
fn implicit() -> Result<&'static Limiter, StoreError> {
    if !cfg!(debug_assertions) {
        return Err(StoreError::new(
            StoreErrorKind::NotInstalled,
            "no limiter is installed: call limiter_core::annotations::install at start-up, or give the attribute a `limiter`",
        ));
    }
    Ok(IMPLICIT.get_or_init(|| {
        tracing::warn!(
            "no limiter is installed: this debug build decides in process, a release build would reject every call; \
             call limiter_core::annotations::install at start-up"
        );
        Limiter::in_process().build()
    }))
}
