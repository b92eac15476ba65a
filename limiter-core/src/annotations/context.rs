//! Which limiter an annotated function uses when it does not name one.

use std::ops::Deref;
use std::sync::OnceLock;

use crate::error::{ConfigError, StoreError, StoreErrorKind};
use crate::limiter::Limiter;

tokio::task_local! {
    static CURRENT: Limiter;
}

/// Set once: by `install`, or by the first call that found none.
static GLOBAL: OnceLock<Global> = OnceLock::new();

enum Global {
    Installed(Limiter),
    /// A debug build decides in process.
    InProcess(Limiter),
    /// A release build rejects: every replica would silently allow the whole limit.
    None,
}

/// Sets the limiter of every annotated function that names none. Call it once, before the first of them is called.
///
/// Without any, a debug build decides in process (one limiter for the whole process, and the log says so once); a release
/// build rejects with [`StoreErrorKind::NotInstalled`].
///
/// # Errors
///
/// [`ConfigError::AlreadyInstalled`] when one is set already, or an annotated function has run without one.
pub fn install(limiter: Limiter) -> Result<(), ConfigError> {
    GLOBAL
        .set(Global::Installed(limiter))
        .map_err(|_| ConfigError::AlreadyInstalled)
}

/// Runs `future` with `limiter` as the limiter of every annotated function that names none and is called in the same
/// task, so that tests which run side by side share nothing. A task that the future spawns uses the installed limiter:
/// wrap its future in `with_limiter` again.
///
/// # Cancel safety
///
/// As that of `future`.
pub async fn with_limiter<F: Future>(limiter: Limiter, future: F) -> F::Output {
    CURRENT.scope(limiter, future).await
}

/// The limiter of a call that names none, where there is one already: the task's, else the installed one.
pub(crate) fn installed() -> Option<Limiter> {
    let of_task = CURRENT.try_with(Limiter::clone).ok();
    of_task.or_else(|| match GLOBAL.get() {
        Some(Global::Installed(limiter) | Global::InProcess(limiter)) => Some(limiter.clone()),
        Some(Global::None) | None => None,
    })
}

/// The limiter of a call that names none. The global one is there for good: nobody has to count who uses it.
#[derive(Debug)]
pub(crate) enum CurrentLimiter {
    OfTask(Limiter),
    Global(&'static Limiter),
}

impl Deref for CurrentLimiter {
    type Target = Limiter;

    fn deref(&self) -> &Limiter {
        match self {
            Self::OfTask(limiter) => limiter,
            Self::Global(limiter) => limiter,
        }
    }
}

/// The task's limiter, else the global one.
pub(crate) fn current() -> Result<CurrentLimiter, StoreError> {
    if let Ok(limiter) = CURRENT.try_with(Limiter::clone) {
        return Ok(CurrentLimiter::OfTask(limiter));
    }
    let nothing_installed = || {
        if cfg!(debug_assertions) {
            tracing::warn!(
                "no limiter is installed: this debug build decides in process, a release build would reject every call; \
                 call limiter_core::install at start-up"
            );
            Global::InProcess(Limiter::in_process().build())
        } else {
            Global::None
        }
    };
    match GLOBAL.get_or_init(nothing_installed) {
        Global::Installed(limiter) | Global::InProcess(limiter) => Ok(CurrentLimiter::Global(limiter)),
        Global::None => Err(StoreError::new(
            StoreErrorKind::NotInstalled,
            "no limiter is installed: call limiter_core::install at start-up, or give the attribute a `limiter`",
        )),
    }
}
