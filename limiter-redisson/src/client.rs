//! A client: creates rate limiters by name, and owns the key of rates per client.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use limiter_core::Limiter;
use limiter_core::registry::SharedRegistry;

use crate::client_state::ClientState;
use crate::rate_limiter::RateLimiter;

/// Creates [`RateLimiter`]s by name. Cheap to clone; clones are one client.
///
/// With Redis (and the feature `redis`), it follows the changes of other clients while a clone or
/// one of its limiters exists, in a task of the runtime that uses it.
#[derive(Clone)]
pub struct Client(Arc<ClientState>);

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
    /// [per client](crate::RateType::PerClient), so it survives a restart. An empty id has no such
    /// rates: their calls fail with [`Rejection::Config`](limiter_core::Rejection::Config).
    #[must_use]
    pub fn with_id(limits: &Limiter, id: impl Into<String>) -> Self {
        Self(Arc::new(ClientState::new(limits, id.into())))
    }

    /// Returns the id of the client: the key of its usage of rates per client.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Returns the rate limiter of this name, configured or not. All clients of the namespace, or
    /// of this process, share it.
    #[must_use]
    pub fn rate_limiter(&self, name: impl Into<String>) -> RateLimiter {
        RateLimiter::new(Arc::clone(&self.0), name.into())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
