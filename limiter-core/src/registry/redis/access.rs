//! The users of Redis that may write a registry.

use crate::registry::RegistryError;
use crate::registry::redis::RedisRegistry;

/// The users of Redis that may write a registry. Returned by [`RedisRegistry::access`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistryAccess {
    user: Option<String>,
    writers: Option<Vec<String>>,
}

impl RegistryAccess {
    /// Returns the user of this process; `None` without the permission `+acl|whoami`.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Returns the users that may replace or delete the registry, including those that are off;
    /// `None` if this is not known.
    #[must_use]
    pub fn writers(&self) -> Option<&[String]> {
        self.writers.as_deref()
    }
}

impl RedisRegistry {
    /// Queries which users of Redis may write the registry. A process that follows the registry
    /// needs to read it only; a user that only a publisher has protects the policies from changes
    /// by the others.
    ///
    /// The writers are known with the permissions `+acl|users` and `+acl|dryrun`, on Redis 7 or
    /// later, with at most 32 users. In a cluster, the node of the registry answers.
    ///
    /// # Errors
    ///
    /// [`RegistryError::Store`] when Redis does not answer.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn access(&self) -> Result<RegistryAccess, RegistryError> {
        let (user, writers) = self.0.store.access().await?;
        Ok(RegistryAccess { user, writers })
    }
}
