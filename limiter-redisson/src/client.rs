//! A client: creates rate limiters by name, and owns the key of rates per client.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use limiter_core::Limiter;
use limiter_core::registry::SharedRegistry;

use crate::rate_limiter::RateLimiter;

/// Creates [`RateLimiter`]s by name. Cheap to clone; clones are one client.
///
/// With Redis (and the feature `redis`), it follows the changes of other clients while a clone or
/// one of its limiters exists, in a task of the runtime that uses it.
#[derive(Clone)]
pub struct Client(Arc<ClientInner>);

struct ClientInner {
    limits: Limiter,
    id: Box<str>,
    registry: SharedRegistry,
}

impl Client {
    /// The number of names in a registry above which a rate limiter with a new name is rejected.
    /// Every client reads every name again after each change, and each name is a label of metrics.
    /// Limits of users or tenants are keys of one policy ([`Limiter::named`]).
    pub const MAX_NAMES: usize = SharedRegistry::MAX_NAMES;

    /// Creates a client with a random [id](Self::id). `limits` makes its decisions.
    #[must_use]
    pub fn new(limits: &Limiter) -> Self {
        let random = || RandomState::new().hash_one(());
        Self::with_id(limits, format!("{:016x}{:016x}", random(), random()))
    }

    /// Creates a client with this id. Clients with one id, in any process, share the usage of rates
    /// [per client](crate::RateType::PerClient), so it survives a restart.
    #[must_use]
    pub fn with_id(limits: &Limiter, id: impl Into<String>) -> Self {
        let id: String = id.into();
        Self(Arc::new(ClientInner {
            limits: limits.clone(),
            id: id.into(),
            registry: limits.shared_registry(),
        }))
    }

    /// The id of the client: the key of its usage of rates per client.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Returns the rate limiter of this name, configured or not. All clients of the namespace, or
    /// of this process, share it.
    #[must_use]
    pub fn rate_limiter(&self, name: impl Into<String>) -> RateLimiter {
        RateLimiter::new(self.clone(), name.into())
    }

    pub(super) fn limits(&self) -> &Limiter {
        &self.0.limits
    }

    pub(super) fn registry(&self) -> &SharedRegistry {
        &self.0.registry
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.id())
            .field("limits", &self.0.limits)
            .finish_non_exhaustive()
    }
}
