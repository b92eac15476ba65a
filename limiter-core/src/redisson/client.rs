//! A client: whose permits are counted where each has its own.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::rate_limiter::RateLimiter;
use super::remote::Remote;
use crate::book::{BookEntry, Edit};
use crate::decision::Rejection;
use crate::error::ConfigError;
use crate::limiter::Limiter;

/// Makes [`RateLimiter`]s by name. Cheap to clone; clones are one client.
///
/// With Redis (and the feature `book`) it follows what others change as long as there is a clone or a limiter of it, in a task of
/// the runtime that uses it.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    limits: Limiter,
    id: Box<str>,
    /// Where rates are those of a namespace in Redis.
    remote: Option<Remote>,
}

impl Client {
    /// A client by itself, with an [id](Self::id) that no other has. It decides as `limits` does.
    #[must_use]
    pub fn new(limits: &Limiter) -> Self {
        let random = || RandomState::new().hash_one(());
        Self::with_id(limits, format!("{:016x}{:016x}", random(), random()))
    }

    /// A client with this id. Clients with the same id, in whatever process, share what is counted by
    /// [client](super::RateType::PerClient): it outlives a restart.
    #[must_use]
    pub fn with_id(limits: &Limiter, id: impl Into<String>) -> Self {
        let id: String = id.into();
        Self(Arc::new(Inner {
            limits: limits.clone(),
            id: id.into(),
            remote: Remote::of(limits),
        }))
    }

    /// What tells it from other clients: the key under which its own permits are counted.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// The rate limiter of this name, configured or not: of all clients with the same namespace, or of this process.
    #[must_use]
    pub fn rate_limiter(&self, name: impl Into<String>) -> RateLimiter {
        RateLimiter::new(self.clone(), name.into())
    }

    pub(super) fn limits(&self) -> &Limiter {
        &self.0.limits
    }

    /// What is known of a name, which Redis was asked for if nothing was.
    pub(super) async fn known(&self, name: &str) -> Result<Option<Arc<BookEntry>>, Rejection> {
        let limits = self.limits();
        limits.open()?;
        if let Some(remote) = &self.0.remote {
            remote.look_for(|| limits.entry(name).is_some()).await?;
        }
        Ok(limits.entry(name))
    }

    /// What counts under a name now, as far as Redis can be asked.
    pub(super) async fn current(&self, name: &str) -> Result<Option<Arc<BookEntry>>, Rejection> {
        let limits = self.limits();
        limits.open()?;
        let looked = match &self.0.remote {
            Some(remote) => remote.look(limits.entry(name).is_some()).await,
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
        mut change: impl FnMut(Option<&BookEntry>) -> Result<(T, Edit), ConfigError>,
    ) -> Result<T, Rejection> {
        let limits = self.limits();
        limits.open()?;
        let now = limits.now();
        let mut change = |entry: Option<&BookEntry>| change(entry.filter(|entry| entry.holds_at(now)));
        match &self.0.remote {
            Some(remote) => remote.change(limits, name, change).await,
            None => Ok(limits.book().edit_code(name, &mut change)?),
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
