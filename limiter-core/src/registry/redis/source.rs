//! A book in Redis that is followed.

use std::sync::Arc;

use tokio::sync::watch;

use crate::error::{StoreError, StoreErrorKind};
use crate::registry::RegistryError;
use crate::registry::redis::watcher::RedisWatcher;
use crate::registry::watcher::AbortOnDrop;

/// A [`RedisRegistry`](crate::RedisRegistry) that is followed. It is until this is dropped
/// ([`detach`](Self::detach) prevents that), all clones of the book are, or the runtime ends. What
/// it said last stays in the book.
#[derive(Debug)]
#[must_use = "dropping it stops the subscription: keep it, or call `detach`"]
pub struct RedisSubscription {
    pub(super) shared: Arc<RedisWatcher>,
    pub(super) task: AbortOnDrop,
    /// Whether a look is over.
    pub(super) looked: watch::Receiver<bool>,
}

impl RedisSubscription {
    /// Waits until the first look is over, half a second at most: from then on the limiter's book
    /// says what Redis says.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # let server = limiter_testing::RedisServer::start();
    /// # let url = server.url();
    /// let limits = limiter_core::Limiter::redis(url).namespace("prod:checkout").build()?;
    /// let source = limits.redis_registry()?.follow();
    /// if let Err(error) = source.heard().await {
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
    /// all clones of the book are dropped or the runtime has ended.
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

    /// What is wrong with the book in Redis now, or why it cannot be looked at; `None` while all is
    /// well.
    #[must_use]
    pub fn last_error(&self) -> Option<RegistryError> {
        self.shared.trouble.last()
    }

    /// Whether its runtime has not ended.
    pub(crate) fn is_running(&self) -> bool {
        self.task.is_running()
    }

    /// Follows the book as long as there is the limiter's.
    pub fn detach(self) {
        self.task.detach();
    }
}
