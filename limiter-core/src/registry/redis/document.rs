//! A text of a namespace in Redis beside the registry, for programs that manage the registry.
//!
//! The document uses the store of the registry under another key: a text with a revision, which is
//! replaced by a compare-and-set, so that concurrent writers lose no change. Its content is not
//! parsed. Tests: `tests/registry_redis/edits.rs`.

use std::sync::Arc;

use crate::redis::registry_store::{RegistryStore, StoredRegistry};
use crate::registry::RegistryError;
use crate::registry::redis::{published_revision, too_high, unnumbered};
use crate::registry::text::without_revision;

/// A text of any format in Redis, with a revision, beside the registry of a namespace. Cheap to
/// clone. Returned by [`RedisRegistry::document`](crate::registry::RedisRegistry::document).
///
/// A program that manages the registry can share further settings with its replicas, for example
/// the hashes of tokens. The text has the durability and the permissions of the registry. Revisions
/// are those of the [registry](crate::registry::RedisRegistry#revisions).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let server = limiter_testing::RedisServer::start();
/// # let url = server.url();
/// let limits = limiter_core::Limiter::redis(url).namespace("prod").build()?;
/// let banner = limits.redis_registry()?.document("banner");
/// let revision = banner.publish("maintenance at 18:00", 0).await?;
///
/// let found = banner.read_after(0).await?;
/// assert_eq!(found, Some((revision, "maintenance at 18:00".to_owned())));
/// assert_eq!(banner.read_after(revision).await?, None, "no later text");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct RedisDocument(Arc<RegistryStore>);

impl RedisDocument {
    pub(super) fn new(store: RegistryStore) -> Self {
        Self(Arc::new(store))
    }

    /// Reads the revision and the text if the revision is later than `known`; 0 for any revision.
    ///
    /// # Errors
    ///
    /// [`RegistryError::Store`] when Redis does not answer a request within half a second;
    /// [`RegistryError::Parse`] for a text without a revision.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn read_after(&self, known: u64) -> Result<Option<(u64, String)>, RegistryError> {
        match self.0.read(known, RegistryStore::BRIEFLY).await? {
            StoredRegistry::Nothing | StoredRegistry::Revision(_, None) => Ok(None),
            StoredRegistry::Unnumbered => Err(unnumbered(&self.0)),
            StoredRegistry::TooHigh => Err(too_high(&self.0)),
            StoredRegistry::Revision(revision, Some(text)) => {
                Ok(Some((revision, without_revision(&text).to_owned())))
            }
        }
    }

    /// Replaces the text of revision `replaced` (0 if there is none), and returns the new revision.
    ///
    /// # Errors
    ///
    /// [`RegistryError::Conflict`] when Redis contains another revision than `replaced`; nothing is
    /// written then. [`RegistryError::Store`] when Redis does not answer; the text may have been
    /// published nevertheless.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while a request to Redis is in flight, the text is published or
    /// not.
    pub async fn publish(&self, text: &str, replaced: u64) -> Result<u64, RegistryError> {
        self.publish_above(text, replaced, 0).await
    }

    /// As [`publish`](Self::publish), with a revision above `least`: the highest one that readers
    /// can know from before a loss of data.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish).
    ///
    /// # Cancel safety
    ///
    /// As [`publish`](Self::publish).
    pub async fn publish_above(&self, text: &str, replaced: u64, least: u64) -> Result<u64, RegistryError> {
        let outcome = self.0.publish(text, replaced, least).await?;
        published_revision(&self.0, outcome, replaced)
    }
}
