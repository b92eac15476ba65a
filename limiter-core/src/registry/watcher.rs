//! Parts of the tasks that follow a source: a weak registry, the last error, the task handle.
//!
//! The tasks of files and of Redis hold the registry weakly, so that they end when its last owner
//! drops it. `LastError` stores the current error for callers and reports whether it is a new one,
//! so that a repeated error is logged once. Large texts are parsed on a blocking thread. Tests:
//! `tests/registry/file.rs`, `tests/registry_redis/edits.rs`.

use std::error::Error as _;
use std::fmt;
use std::sync::{Arc, Weak};

use tokio::task::AbortHandle;

#[cfg(feature = "redis")]
use crate::error::{StoreError, StoreErrorKind};
use crate::registry::text::RegistryError;
use crate::registry::{PolicyRegistry, RegistryInner};
use crate::support::sync::{Mutex, MutexGuard};

/// A registry that a task follows while another owner exists.
#[derive(Clone)]
pub(super) struct WeakRegistry(Weak<RegistryInner>);

impl WeakRegistry {
    pub(super) fn downgrade(registry: &PolicyRegistry) -> Self {
        Self(Arc::downgrade(&registry.0))
    }

    /// Returns a number that no other registry of this process has while this one exists.
    #[cfg(feature = "redis")]
    pub(super) fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    pub(super) fn upgrade(&self) -> Option<PolicyRegistry> {
        self.0.upgrade().map(PolicyRegistry)
    }
}

/// The current error of a source.
#[derive(Debug, Default)]
pub(super) struct LastError(Mutex<Option<RegistryError>>);

impl LastError {
    pub(super) fn last(&self) -> Option<RegistryError> {
        self.lock().clone()
    }

    /// Stores an error. Returns whether it differs from the previous one.
    pub(super) fn is_new(&self, error: RegistryError) -> bool {
        let text = reason(&error);
        let before = self.lock().replace(error);
        before.is_none_or(|before| reason(&before) != text)
    }

    pub(super) fn has_error(&self) -> bool {
        self.lock().is_some()
    }

    /// Removes the error. Returns whether there was one.
    pub(super) fn is_over(&self) -> bool {
        self.lock().take().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<RegistryError>> {
        self.0.lock()
    }
}

/// Returns an error and its causes as one line of a log.
pub(super) fn reason(error: &RegistryError) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The approximate size of one policy in a text.
#[cfg(feature = "redis")]
pub(crate) const BYTES_A_NAME: usize = 100;

/// Processes a text, on a blocking thread if it is large, so it does not delay other tasks.
#[cfg(feature = "redis")]
pub(crate) async fn run_blocking_if_large<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, RegistryError> + Send + 'static,
) -> Result<T, RegistryError> {
    /// Processing a smaller text takes less time than waking a thread.
    const SMALL: usize = 4 << 10;
    if bytes <= SMALL {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => {
                let error = StoreError::new(StoreErrorKind::ShutDown, "the runtime has ended");
                Err(RegistryError::Store(error))
            }
        },
    }
}

/// The task of a watcher. It ends by itself when the registry is dropped.
pub(super) struct WatcherTask(AbortHandle);

impl WatcherTask {
    pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task).abort_handle())
    }

    #[cfg(feature = "redis")]
    pub(super) fn is_running(&self) -> bool {
        !self.0.is_finished()
    }

    pub(super) fn stop(&self) {
        self.0.abort();
    }
}

impl fmt::Debug for WatcherTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_running = !self.0.is_finished();
        f.debug_struct("WatcherTask")
            .field("is_running", &is_running)
            .finish()
    }
}
