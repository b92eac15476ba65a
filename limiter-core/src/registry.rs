//! Policies by name, which may change while the program runs.

mod change;
mod edit;
mod effective;
mod entry;
mod entry_state;
#[cfg(feature = "registry")]
mod file;
mod key_overrides;
pub(crate) mod lookup;
mod metadata;
mod on_unknown_policy;
mod rate_type;
#[cfg(all(feature = "registry", feature = "redis"))]
mod redis;
mod retired;
mod rule;
mod shared;
mod sources;
#[cfg(feature = "registry")]
mod text;
mod unresolved;
#[cfg(feature = "registry")]
mod watcher;

use std::collections::HashMap;
use std::fmt;
#[cfg(all(feature = "registry", feature = "redis"))]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::sync::watch;

use crate::key::Key;
use crate::observe;
use crate::policy::Policy;
use crate::registry::effective::EffectivePolicy;
pub use crate::registry::entry::PolicyEntry;
pub use crate::registry::entry_state::{EntryEdit, EntryState};
#[cfg(feature = "registry")]
pub use crate::registry::file::FileSource;
pub use crate::registry::key_overrides::KeyOverride;
pub use crate::registry::metadata::PolicyMetadata;
pub use crate::registry::on_unknown_policy::OnUnknownPolicy;
pub use crate::registry::rate_type::RateType;
#[cfg(all(feature = "registry", feature = "redis"))]
pub use crate::registry::redis::{RedisRegistry, RedisSubscription};
pub use crate::registry::rule::{EntryPattern, Rule};
pub use crate::registry::shared::SharedRegistry;
use crate::registry::sources::SourceStack;
#[cfg(feature = "registry")]
pub(crate) use crate::registry::sources::{Source, SourceSnapshot};
#[cfg(feature = "registry")]
pub use crate::registry::text::{ParseError, RegistryError};
pub(crate) use crate::registry::unresolved::LookupError;
use crate::registry::unresolved::UnresolvedNames;
#[cfg(all(feature = "registry", feature = "redis"))]
pub(crate) use crate::registry::watcher::{BYTES_A_NAME, run_blocking_if_large};
use crate::support::clock::Clock;

/// Policies by name. Cheap to clone; clones are one registry, and whatever changes in it counts
/// from the next call on.
///
/// A [`Limiter`](crate::Limiter) that is given a registry
/// ([`InProcessBuilder::registry`](crate::InProcessBuilder::registry),
/// [`RedisBuilder::registry`](crate::RedisBuilder::registry)) decides by
/// [name](crate::Limiter::named).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use limiter_core::registry::PolicyRegistry;
/// use limiter_core::{Limiter, ManualClock, Policy};
///
/// let sized = |capacity: u32| Policy::token_bucket("search").capacity(capacity).rate("1/h").build();
/// let registry = PolicyRegistry::new().with(sized(2)?);
/// let limits = Limiter::in_process().clock(&ManualClock::new()).registry(&registry).build();
///
/// let search = limits.named("search");
/// search.check("ann").cost(2).await?.require()?;
/// assert_eq!(search.peek("bob").await?.remaining(), 2);
///
/// registry.set(sized(5)?);
/// assert_eq!(search.peek("ann").await?.remaining(), 0, "a bucket keeps its tokens");
/// assert_eq!(search.peek("bob").await?.remaining(), 5);
/// # Ok::<(), limiter_core::Rejection>(())
/// # }).unwrap();
/// ```
///
/// # Where policies come from
///
/// From code ([`with`](Self::with), [`set`](Self::set)), from files, and from Redis (feature
/// `registry`). The same name may stand at several of these places: what Redis says counts before
/// what a file says, a file followed later before one followed earlier, and each of them before the
/// code. So a replica that starts while Redis is out has a registry. When a source does not name a
/// policy any more, the next one counts that does; so it is with the quota of a key, also when it
/// is over.
///
/// # What a change means for who has used something
///
/// State belongs to the policy's name, algorithm, group and key. A changed capacity, limit or rate
/// finds it as it is, as with any changed policy: buckets keep what is left, funnels and windows
/// what was used. With another algorithm or group everybody starts afresh. [`change`](Self::change)
/// chooses otherwise: in proportion, or afresh.
#[derive(Clone)]
pub struct PolicyRegistry(Arc<RegistryInner>);

struct RegistryInner {
    /// What each source says. Locked before `policies`, by those who change something.
    sources: Mutex<SourceStack>,
    /// What counts of it: all that a call looks at.
    policies: RwLock<HashMap<Box<str>, EffectivePolicy>>,
    rules: RwLock<Arc<[Rule]>>,
    revision: watch::Sender<u64>,
    missed: UnresolvedNames,
    /// Redis is followed, and has not said anything yet.
    #[cfg(all(feature = "registry", feature = "redis"))]
    awaits_redis: AtomicBool,
}

impl PolicyRegistry {
    /// How many keys have a quota of their own at most, of those that one source names.
    pub const MAX_OVERRIDES: usize = 10_000;

    /// A registry without policies.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(RegistryInner {
            sources: Mutex::default(),
            policies: RwLock::default(),
            rules: RwLock::default(),
            revision: watch::Sender::new(0),
            missed: UnresolvedNames::default(),
            #[cfg(all(feature = "registry", feature = "redis"))]
            awaits_redis: AtomicBool::new(false),
        }))
    }

    /// The registry with a policy, for all apps, or with a [`PolicyEntry`], for some of them. See
    /// [`set`](Self::set).
    #[must_use]
    pub fn with(self, entry: impl Into<PolicyEntry>) -> Self {
        self.set(entry);
        self
    }

    /// Puts a policy into the registry, in place of the one that
    /// [code](Self#where-policies-come-from) has put there under its name. As long as a file or
    /// Redis names a policy so, theirs counts.
    ///
    /// A policy of a rate and one of concurrency cannot stand in for each other: calls by a name
    /// that turned from the one into the other all fail. [`change`](Self::change), files and Redis
    /// refuse that, and this is an event. A process that starts knows of nothing before, and takes
    /// a text as it stands.
    pub fn set(&self, entry: impl Into<PolicyEntry>) {
        let entry = entry.into();
        let name: Box<str> = entry.policy().name().into();
        let mut sources = self.sources();
        if let Some(reason) = self.kind_change_error(&entry) {
            tracing::warn!(%reason, "policy changed between rate and concurrency; its calls fail until it is renamed");
        }
        let entry = change::going_on(entry, sources.generation_in_code(&name));
        if sources.set_in_code(entry, Clock::System.now()) {
            self.renew(&sources, &name);
        }
    }

    /// Takes a policy out that code has put into the registry, and the quotas of its keys: whether
    /// there was one. Where one of its name is put there again, what was used counts again, but
    /// nothing from before a reset.
    pub fn remove(&self, name: &str) -> bool {
        let mut sources = self.sources();
        // The quotas may be of the keys of another source's policy.
        let (removed, has_quotas) = sources.remove_from_code(name, Clock::System.now());
        if removed || has_quotas {
            self.renew(&sources, name);
        }
        removed
    }

    /// What counts under a name. An entry is among them that has [ended](PolicyEntry::until) and
    /// was not taken out.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<PolicyEntry>> {
        self.with_effective(name, |effective| Arc::clone(&effective.entry))
    }

    /// All names, in alphabetical order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let policies = self.0.policies.read().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<String> = policies.keys().map(|name| name.to_string()).collect();
        names.sort_unstable();
        names
    }

    /// How often the registry has changed since this process made it. Clones have the same.
    #[must_use]
    pub fn revision(&self) -> u64 {
        *self.0.revision.borrow()
    }

    /// Waits until the [`revision`](Self::revision) is another than this, and says which.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn changed(&self, revision: u64) -> u64 {
        let mut revisions = self.0.revision.subscribe();
        // The sender lives as long as `self`.
        match revisions.wait_for(|now| *now != revision).await {
            Ok(now) => *now,
            Err(_) => self.revision(),
        }
    }

    /// How many calls asked for a policy that is not there, or is not for their app.
    #[must_use]
    pub fn not_configured(&self) -> u64 {
        self.0.missed.count()
    }

    /// The policy that counts for a call of an app, if it is there and for it.
    pub(crate) fn find(
        &self,
        name: &str,
        app: Option<&str>,
        key: &Key<'_>,
        clock: &Clock,
    ) -> Result<Policy, LookupError> {
        let policies = self.0.policies.read().unwrap_or_else(PoisonError::into_inner);
        let effective = policies.get(name).ok_or(LookupError::NotThere)?;
        if !effective.entry.is_for(app) {
            return Err(LookupError::NotForApp);
        }
        if effective.entry.end().is_some() && !effective.entry.holds_at(clock.calendar()) {
            return Err(LookupError::NotThere);
        }
        Ok(effective.policy_for(key, clock).clone())
    }

    /// Whether names may still come from Redis, which is followed and was not heard yet.
    pub(crate) fn awaits_redis(&self) -> bool {
        #[cfg(all(feature = "registry", feature = "redis"))]
        return self.0.awaits_redis.load(Ordering::Relaxed);
        #[cfg(not(all(feature = "registry", feature = "redis")))]
        return false;
    }

    /// Counts a call that asked for what it did not find.
    pub(crate) fn miss(&self, name: &str, app: Option<&str>, miss: LookupError, clock: &Clock) {
        self.0.missed.add(name, app, miss, clock.now());
        observe::not_configured();
    }

    /// Has a source say something else than before, or for the first time.
    #[cfg(feature = "registry")]
    pub(crate) fn adopt(&self, source: &Source, snapshot: SourceSnapshot) {
        self.replace_source(self.sources(), source, snapshot);
    }

    #[cfg(feature = "registry")]
    fn replace_source(
        &self,
        mut sources: MutexGuard<'_, SourceStack>,
        source: &Source,
        snapshot: SourceSnapshot,
    ) {
        if !sources.replace(source, snapshot) {
            return;
        }
        self.renew_rules(&sources);
        let policies = sources.all_effective();
        let old = {
            let mut now = self.0.policies.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *now, policies)
        };
        self.count_change();
        // Which takes a while; nobody waits for it.
        drop(old);
    }

    /// Whether a name turns from a rate into what is in flight, or back, and what to say of that.
    fn kind_change_error(&self, entry: &PolicyEntry) -> Option<String> {
        let before = self.get(entry.policy().name())?;
        let (old, new) = (before.policy(), entry.policy());
        (old.is_concurrency() != new.is_concurrency() && before.holds_at(Clock::System.calendar())).then(|| {
            format!(
                "policy `{}` turns from {old} into {new}, expected another name, since calls by this one would all fail \
                 (or take it out first)",
                new.name()
            )
        })
    }

    /// The same of all names of a text.
    #[cfg(feature = "registry")]
    pub(crate) fn refuse_turned(&self, place: &str, snapshot: &SourceSnapshot) -> Result<(), RegistryError> {
        match snapshot.entries().find_map(|entry| self.kind_change_error(entry)) {
            Some(told) => Err(RegistryError::one(place, &told)),
            None => Ok(()),
        }
    }

    /// All that counts, as one source would say it.
    #[cfg(feature = "registry")]
    pub(crate) fn as_snapshot(&self) -> SourceSnapshot {
        let policies = self.0.policies.read().unwrap_or_else(PoisonError::into_inner);
        let mut snapshot = SourceSnapshot::from_policies(policies.values());
        snapshot.rules = self.rules();
        snapshot
    }

    fn with_effective<T>(&self, name: &str, look: impl FnOnce(&EffectivePolicy) -> T) -> Option<T> {
        let policies = self.0.policies.read().unwrap_or_else(PoisonError::into_inner);
        policies.get(name).map(look)
    }

    fn sources(&self) -> MutexGuard<'_, SourceStack> {
        self.0.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has what counts under a name follow from the sources again.
    fn renew(&self, sources: &SourceStack, name: &str) {
        let effective = sources.effective(name);
        let old = {
            let mut policies = self.0.policies.write().unwrap_or_else(PoisonError::into_inner);
            match effective {
                Some(effective) => policies.insert(name.into(), effective),
                None => policies.remove(name),
            }
        };
        self.count_change();
        drop(old);
    }

    /// After what counts has changed, so that who is told finds it.
    fn count_change(&self) {
        self.0.revision.send_modify(|revision| *revision += 1);
    }
}

impl Default for PolicyRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PolicyRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyRegistry")
            .field("revision", &self.revision())
            .field("names", &self.names())
            .finish_non_exhaustive()
    }
}
