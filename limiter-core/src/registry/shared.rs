//! Edits single policies of the registry that all replicas of a limiter share.
//!
//! A program that configures policies at run time needs one authoritative registry: the one in
//! Redis if the limiter uses Redis, else the one of the process. [`SharedRegistry`] hides the
//! difference. It follows the registry in Redis, reads a name from Redis when the process does not
//! know it, and repeats an edit that conflicts with another one.
//!
//! Invariant: an edit is applied to the latest revision or not at all. The tests are those of the
//! crate limiter-redisson, which run on every store.

#[cfg(all(feature = "registry", feature = "redis"))]
mod redis;

use std::fmt;
use std::sync::Arc;

use crate::decision::Rejection;
use crate::error::{ConfigError, StoreError};
#[cfg(all(feature = "registry", feature = "redis"))]
use crate::registry::RedisRegistry;
use crate::registry::policy_lookup::PolicyLookup;
#[cfg(all(feature = "registry", feature = "redis"))]
use crate::registry::shared::redis::RedisEdits;
use crate::registry::{EntryEdit, EntryState, PolicyEntry, PolicyRegistry};
use crate::support::clock::Clock;
use crate::units::Timestamp;

/// Reads and edits policies by name where all replicas of a limiter share them: in Redis, or in
/// process. Made by [`Limiter::shared_registry`](crate::Limiter::shared_registry). Cheap to clone.
///
/// With Redis (feature `registry`), it follows the registry of the namespace while a clone exists,
/// in a task of the runtime that uses it. During an outage of Redis, reads return the last known
/// entries and edits fail.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use limiter_core::registry::{EntryEdit, PolicyEntry};
/// use limiter_core::{Limiter, Policy};
///
/// let limits = Limiter::in_process().build();
/// let shared = limits.shared_registry();
/// let search = Policy::token_bucket("search").capacity(5).rate(1).build()?;
/// let is_new = shared
///     .edit("search", |state| match state.active() {
///         Some(_) => Ok((false, EntryEdit::Keep)),
///         None => Ok((true, EntryEdit::Put(Box::new(PolicyEntry::new(search.clone()))))),
///     })
///     .await?;
/// assert!(is_new);
/// assert_eq!(limits.named("search").peek("ann").await?.remaining(), 5);
/// # Ok::<(), limiter_core::Rejection>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct SharedRegistry(Arc<SharedInner>);

struct SharedInner {
    lookup: PolicyLookup,
    clock: Clock,
    /// Fails after the shutdown of the limiter.
    check_open: Box<dyn Fn() -> Result<(), StoreError> + Send + Sync>,
    #[cfg(all(feature = "registry", feature = "redis"))]
    redis: Option<RedisEdits>,
}

impl SharedRegistry {
    /// The number of names above which [`edit`](Self::edit) adds no further name. All replicas read
    /// every name again after each change, and each name is a label of metrics. Limits of users or
    /// tenants are keys of one policy ([`Limiter::named`](crate::Limiter::named)).
    pub const MAX_NAMES: usize = 1_000;

    pub(crate) fn new(
        lookup: PolicyLookup,
        clock: Clock,
        check_open: impl Fn() -> Result<(), StoreError> + Send + Sync + 'static,
        #[cfg(all(feature = "registry", feature = "redis"))] redis: Option<RedisRegistry>,
    ) -> Self {
        Self(Arc::new(SharedInner {
            lookup,
            clock,
            check_open: Box::new(check_open),
            #[cfg(all(feature = "registry", feature = "redis"))]
            redis: redis.map(RedisEdits::new),
        }))
    }

    /// Returns the time with which [ends](PolicyEntry::until) of entries are compared: the clock of
    /// a test if the limiter has one, else the system's.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.0.clock.calendar()
    }

    /// Finds the entry that applies to this app now. Reads Redis if the process does not know the
    /// name, at most four times a second for all unknown names together.
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] if the name is unknown and Redis does not reply, and after the
    /// shutdown of the limiter.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn find(&self, name: &str) -> Result<Option<Arc<PolicyEntry>>, Rejection> {
        (self.0.check_open)()?;
        #[cfg(all(feature = "registry", feature = "redis"))]
        if let Some(redis) = &self.0.redis {
            redis.sync_until(|| self.active(name).is_some()).await?;
        }
        Ok(self.active(name))
    }

    /// Reads Redis, and returns the entry that applies to this app now. Returns the last known
    /// entry if Redis does not reply.
    ///
    /// # Errors
    ///
    /// As [`find`](Self::find), and [`Rejection::Config`] if the text in Redis has errors.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn refresh(&self, name: &str) -> Result<Option<Arc<PolicyEntry>>, Rejection> {
        (self.0.check_open)()?;
        #[cfg(all(feature = "registry", feature = "redis"))]
        if let Some(redis) = &self.0.redis {
            let synced = match self.active(name) {
                Some(_) => redis.sync_briefly().await,
                None => redis.sync().await,
            };
            return match (self.active(name), synced) {
                (Some(entry), _) => Ok(Some(entry)),
                (None, synced) => synced.map(|()| None),
            };
        }
        Ok(self.active(name))
    }

    /// Edits the entry of one name atomically. `change` receives the current state and returns a
    /// result and the edit. It is called again if another program edits the registry meanwhile.
    ///
    /// An edit also removes ended entries under which no usage counts any more. In
    /// Redis it writes the text of the registry again, so comments in the text are lost.
    ///
    /// # Errors
    ///
    /// The errors of `change`; [`Rejection::Config`] for a new name above
    /// [`MAX_NAMES`](Self::MAX_NAMES), and for an entry that only a file (with Redis: or the code)
    /// defines; [`Rejection::Unavailable`] if Redis does not reply (the edit may have been made) or
    /// its text has errors, and after the shutdown of the limiter.
    ///
    /// # Cancel safety
    ///
    /// The edit of a dropped future is made or not.
    pub async fn edit<T>(
        &self,
        name: &str,
        mut change: impl FnMut(EntryState<'_>) -> Result<(T, EntryEdit), ConfigError>,
    ) -> Result<T, Rejection> {
        (self.0.check_open)()?;
        let PolicyLookup { registry, app, .. } = &self.0.lookup;
        let now = self.now();
        let mut change = |entry: Option<&PolicyEntry>| change(EntryState::new(entry, app.as_deref(), now));
        #[cfg(all(feature = "registry", feature = "redis"))]
        if let Some(redis) = &self.0.redis {
            return redis.edit(registry, name, now, change).await;
        }
        if is_full(registry, name) {
            remove_expired(registry, now);
        }
        let is_full = is_full(registry, name);
        let change = |entry: Option<&PolicyEntry>| match change(entry)? {
            (_, EntryEdit::Put(_)) if is_full => Err(too_many_names(name)),
            edit => Ok(edit),
        };
        Ok(registry.edit_code(name, change)?)
    }

    fn active(&self, name: &str) -> Option<Arc<PolicyEntry>> {
        self.0.lookup.active(name, &self.0.clock)
    }
}

impl fmt::Debug for SharedRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRegistry")
            .field("registry", &self.0.lookup.registry)
            .finish_non_exhaustive()
    }
}

/// Returns whether the registry has no room for a further name, if this one is new.
fn is_full(registry: &PolicyRegistry, name: &str) -> bool {
    registry.get(name).is_none() && registry.names().len() >= SharedRegistry::MAX_NAMES
}

fn too_many_names(name: &str) -> ConfigError {
    let expected = format!(
        "one of at most {} names in the registry: limits of users are keys of one policy (`limits.named(\"…\").check(user)`)",
        SharedRegistry::MAX_NAMES
    );
    ConfigError::invalid("name of a new rate limiter", name, expected)
}

/// Removes entries under which no usage counts any more, with a margin for clocks that run ahead.
fn remove_expired(registry: &PolicyRegistry, now: Timestamp) {
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
