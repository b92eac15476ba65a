//! The handle of a subscription to a registry in Redis.

use std::sync::Arc;

use tokio::sync::watch;

use crate::error::{StoreError, StoreErrorKind};
use crate::registry::RegistryError;
use crate::registry::redis::watcher::RedisWatcher;
use crate::registry::watcher::WatcherTask;

/// The handle of a subscription to a [`RedisRegistry`](crate::registry::RedisRegistry).
///
/// The subscription runs until [`stop`](Self::stop) is called, all clones of the limiter's registry
/// are dropped, or the runtime ends. Dropping the handle does not stop it. The policies received
/// last stay in the registry.
#[derive(Debug)]
pub struct RedisSubscription {
    pub(super) shared: Arc<RedisWatcher>,
    pub(super) task: WatcherTask,
    /// True after the first read.
    pub(super) synced: watch::Receiver<bool>,
}

impl RedisSubscription {
    /// Waits until the first read has completed, at most half a second for each of its requests:
    /// two, and one for each further 64 KiB of the text. From then on the limiter's registry
    /// contains the policies of Redis.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # let server = limiter_testing::RedisServer::start();
    /// # let url = server.url();
    /// let limits = limiter_core::Limiter::redis(url).namespace("prod:checkout").build()?;
    /// let source = limits.redis_registry()?.follow();
    /// if let Err(error) = source.synced().await {
    ///     eprintln!("the policies of the code apply: {error}");
    /// }
    /// # assert!(source.last_error().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// The current error, as in [`last_error`](Self::last_error); the subscription continues
    /// nevertheless. [`RegistryError::Store`] with [`StoreErrorKind::ShutDown`] when the
    /// subscription has ended, because all clones of the registry were dropped or the runtime has
    /// ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn synced(&self) -> Result<(), RegistryError> {
        let mut synced = self.synced.clone();
        if synced.wait_for(|synced| *synced).await.is_err() {
            let detail = "the registry subscription has ended";
            return Err(StoreError::new(StoreErrorKind::ShutDown, detail).into());
        }
        self.last_error().map_or(Ok(()), Err)
    }

    /// Returns the current error of the registry in Redis, or of the attempt to read it; `None` if
    /// there is none.
    #[must_use]
    pub fn last_error(&self) -> Option<RegistryError> {
        self.shared.last_error.last()
    }

    /// Returns whether the task is still running.
    pub(crate) fn is_running(&self) -> bool {
        self.task.is_running()
    }

    /// Stops the subscription. The policies received last stay in the registry.
    pub fn stop(self) {
        self.task.stop();
    }
}
