//! A client: whose permits are counted where each has its own.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use crate::decision::Rejection;
use crate::error::ConfigError;
use crate::limiter::Limiter;
use crate::redisson::lookup::Lookup;
use crate::redisson::rate_limiter::RateLimiter;
use crate::redisson::remote::Remote;
use crate::registry::{Edit, PolicyEntry, PolicyRegistry};
use crate::units::Timestamp;

/// Makes [`RateLimiter`]s by name. Cheap to clone; clones are one client.
///
/// With Redis (and the feature `registry`) it follows what others change as long as there is a
/// clone or a limiter of it, in a task of the runtime that uses it.
#[derive(Clone)]
pub struct Client(Arc<ClientInner>);

struct ClientInner {
    limits: Limiter,
    id: Box<str>,
    /// Where rates are those of a namespace in Redis.
    remote: Option<Remote>,
}

impl Client {
    /// How many names a registry may have before a rate limiter with a new one is refused. Each
    /// name is a policy that all replicas read anew with every change, and a label of metrics;
    /// limits of users or tenants are keys of one policy ([`Limiter::named`]).
    pub const MAX_NAMES: usize = 1_000;

    /// A client by itself, with an [id](Self::id) that no other has. It decides as `limits` does.
    #[must_use]
    pub fn new(limits: &Limiter) -> Self {
        let random = || RandomState::new().hash_one(());
        Self::with_id(limits, format!("{:016x}{:016x}", random(), random()))
    }

    /// A client with this id. Clients with the same id, in whatever process, share what is counted
    /// by [client](crate::redisson::RateType::PerClient): it outlives a restart.
    #[must_use]
    pub fn with_id(limits: &Limiter, id: impl Into<String>) -> Self {
        let id: String = id.into();
        Self(Arc::new(ClientInner {
            limits: limits.clone(),
            id: id.into(),
            remote: Remote::from_limiter(limits),
        }))
    }

    /// What tells it from other clients: the key under which its own permits are counted.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// The rate limiter of this name, configured or not: of all clients with the same namespace, or
    /// of this process.
    #[must_use]
    pub fn rate_limiter(&self, name: impl Into<String>) -> RateLimiter {
        RateLimiter::new(self.clone(), name.into())
    }

    pub(super) fn limits(&self) -> &Limiter {
        &self.0.limits
    }

    /// What is known of a name, which Redis was asked for if nothing was.
    pub(super) async fn find_entry(&self, name: &str) -> Result<Option<Arc<PolicyEntry>>, Rejection> {
        let limits = self.limits();
        limits.open()?;
        if let Some(remote) = &self.0.remote {
            remote.sync_until(|| limits.entry(name).is_some()).await?;
        }
        Ok(limits.entry(name))
    }

    /// What counts under a name now, as far as Redis can be asked.
    pub(super) async fn current(&self, name: &str) -> Result<Option<Arc<PolicyEntry>>, Rejection> {
        let limits = self.limits();
        limits.open()?;
        let looked = match &self.0.remote {
            Some(remote) => remote.sync(limits.entry(name).is_some()).await,
            None => Ok(()),
        };
        match (limits.entry(name), looked) {
            // While Redis is out, what is known counts.
            (Some(entry), _) => Ok(Some(entry)),
            (None, looked) => looked.map(|()| None),
        }
    }

    /// Changes what is configured under a name by what is: with nobody else's change between.
    pub(super) async fn change<T>(
        &self,
        name: &str,
        mut change: impl FnMut(Lookup<'_>) -> Result<(T, Edit), ConfigError>,
    ) -> Result<T, Rejection> {
        let limits = self.limits();
        limits.open()?;
        let now = limits.calendar();
        let change = |entry: Option<&PolicyEntry>| change(Lookup::new(entry, limits.app(), now));
        match &self.0.remote {
            Some(remote) => remote.change(limits, name, change).await,
            None => {
                if is_crowded(limits.registry(), name) {
                    remove_expired(limits.registry(), now);
                }
                let is_crowded = is_crowded(limits.registry(), name);
                let mut change = change;
                let change = |entry: Option<&PolicyEntry>| match change(entry)? {
                    (_, Edit::Put(_)) if is_crowded => Err(crowded(name)),
                    edit => Ok(edit),
                };
                Ok(limits.registry().edit_code(name, change)?)
            }
        }
    }
}

/// Whether a registry has as many names already as rate limiters may have, without this one.
pub(super) fn is_crowded(registry: &PolicyRegistry, name: &str) -> bool {
    registry.get(name).is_none() && registry.names().len() >= Client::MAX_NAMES
}

pub(super) fn crowded(name: &str) -> ConfigError {
    let expected = format!(
        "one of at most {} names in the registry: limits of users are keys of one policy (`limits.named(\"…\").check(user)`)",
        Client::MAX_NAMES
    );
    ConfigError::invalid("name of a new rate limiter", name, expected)
}

/// What ended so long ago that nothing of what was used counts any more, and no clock that is ahead
/// takes out what others still use.
pub(super) fn remove_expired(registry: &PolicyRegistry, now: Timestamp) {
    for name in registry.names() {
        let Some(entry) = registry.get(&name) else {
            continue;
        };
        let counts_for = PolicyEntry::counts_for(entry.policy().window());
        if entry.end().is_some_and(|end| end.after(counts_for) <= now) {
            registry.remove(&name);
        }
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
