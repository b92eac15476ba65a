//! The revision of the policies that a node serves.
//!
//! It is that of the registry in Redis, or else the number of changes in this process. A node that
//! starts without Redis and the database serves the policies of its cache, and reports their
//! revision until the first change.
//!
//! Tests: `tests/state_dir.rs`.

use std::sync::{Arc, OnceLock};

use limiter_core::registry::PolicyRegistry;

/// The revision of cached policies.
#[derive(Clone, Copy, Debug)]
pub struct CachedRevision {
    revision: u64,
    /// The number of changes in this process when the cached policies were in force.
    changes: u64,
}

impl CachedRevision {
    /// Creates the revision of the policies that a registry has from the cache.
    pub(crate) fn new(revision: u64, registry: &PolicyRegistry) -> Self {
        let changes = registry.revision();
        Self { revision, changes }
    }
}

/// The revision of the policies in force. Cheap to clone; clones share the state.
#[derive(Clone, Debug)]
pub struct ServedRevision {
    registry: PolicyRegistry,
    cached: Arc<OnceLock<CachedRevision>>,
}

impl ServedRevision {
    /// Creates the revision of a registry without cached policies.
    pub(crate) fn new(registry: PolicyRegistry) -> Self {
        let cached = Arc::default();
        Self { registry, cached }
    }

    /// Sets the revision of the cached policies with which the process has started.
    pub(crate) fn restore(&self, cached: CachedRevision) {
        // A process starts once.
        let _ = self.cached.set(cached);
    }

    /// Returns the policies.
    pub(crate) fn registry(&self) -> &PolicyRegistry {
        &self.registry
    }

    /// Returns the current revision.
    #[must_use]
    pub fn current(&self) -> u64 {
        let changes = self.registry.revision();
        let of_cache = || self.cached.get().filter(|cached| cached.changes == changes);
        let published = self.registry.published();
        published
            .or_else(|| of_cache().map(|cached| cached.revision))
            .unwrap_or(changes)
    }
}
