//! A registry in Redis that is followed.

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
    /// Whether a look is over.
    pub(super) looked: watch::Receiver<bool>,
}

impl RedisSubscription {
    /// Waits until the first look is over, half a second at most: from then on the limiter's
    /// registry says what Redis says.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # let server = limiter_testing::RedisServer::start();
    /// # let url = server.url();
    /// let limits = limiter_core::Limiter::redis(url).namespace("prod:checkout").build()?;
    /// let source = limits.redis_registry()?.follow();
    /// if let Err(error) = source.synced().await {
    ///     eprintln!("the policies of the code count: {error}");
    /// }
    /// # assert!(source.last_error().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// What is wrong then, as [`last_error`](Self::last_error) says it; it is followed all the
    /// same. [`RegistryError::Store`] with [`StoreErrorKind::ShutDown`] when nobody looks, since
    /// all clones of the registry are dropped or the runtime has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn synced(&self) -> Result<(), RegistryError> {
        let mut looked = self.looked.clone();
        if looked.wait_for(|looked| *looked).await.is_err() {
            let detail = "the registry subscription has ended";
            return Err(StoreError::new(StoreErrorKind::ShutDown, detail).into());
        }
        self.last_error().map_or(Ok(()), Err)
    }

    /// What is wrong with the registry in Redis now, or why it cannot be looked at; `None` while
    /// all is well.
    #[must_use]
    pub fn last_error(&self) -> Option<RegistryError> {
        self.shared.trouble.last()
    }

    /// Whether its runtime has not ended.
    pub(crate) fn is_running(&self) -> bool {
        self.task.is_running()
    }

    /// Stops the subscription. The policies received last stay in the registry.
    pub fn stop(self) {
        self.task.stop();
    }
}
