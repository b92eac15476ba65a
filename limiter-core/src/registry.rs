//! Named policies that can change while the program runs.
//!
//! A limiter looks a policy up by its name in a [`PolicyRegistry`] at each call. Code, files and
//! Redis are its sources. Each source is a snapshot; the sources have an order of precedence, and
//! the effective policies are computed after each change. Beside policies, a registry contains
//! quotas of single keys ([`KeyOverride`]), rules for gateways ([`Rule`]), and temporary changes
//! ([`Suspension`], [`Block`]).
//!
//! Invariants: a file, or a text before its publication, is applied as a whole or not at all; a
//! subscription to Redis keeps the previous version of a policy that it cannot read; a source that
//! stops defining a name uncovers the definition of the next source.

// Tests: `tests/registry.rs`, `tests/registry_redis.rs`, `tests/rules.rs`.

mod change;
mod edit;
mod effective_policy;
mod entry;
mod entry_state;
#[cfg(feature = "registry")]
mod file;
mod key_override;
mod key_overrides;
mod metadata;
mod on_unknown_policy;
mod overlay;
mod overlays;
pub(crate) mod policy_lookup;
mod rate_type;
#[cfg(all(feature = "registry", feature = "redis"))]
mod redis;
mod retired_generations;
mod rule;
mod rules;
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
use std::sync::{Arc, Weak};

use tokio::sync::watch;

use crate::key::Key;
use crate::observe;
use crate::policy::Policy;
use crate::registry::effective_policy::EffectivePolicy;
pub(crate) use crate::registry::entry::EVERY_APP;
pub use crate::registry::entry::PolicyEntry;
pub use crate::registry::entry_state::{EntryEdit, EntryState};
#[cfg(feature = "registry")]
pub use crate::registry::file::FileSource;
pub use crate::registry::key_override::KeyOverride;
pub use crate::registry::metadata::PolicyMetadata;
pub use crate::registry::on_unknown_policy::OnUnknownPolicy;
pub use crate::registry::overlay::{Block, BlockTarget, Suspension, SuspensionMode, SuspensionScope};
pub(crate) use crate::registry::overlay::{OverlaidLimit, OverlayRule, OverlaySet, SourceOverlays};
pub(crate) use crate::registry::overlays::OverlayWatcher;
pub use crate::registry::rate_type::RateType;
#[cfg(all(feature = "registry", feature = "redis"))]
pub use crate::registry::redis::{
    RedisDocument, RedisRegistry, RedisSubscription, RegistryAccess, Subscriber,
};
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
use crate::support::sync::{Mutex, MutexGuard, RwLock};

/// A registry of policies by name. Cheap to clone; clones share the registry, and a change applies
/// to the next call.
///
/// Pass it to a [`Limiter`](crate::Limiter)
/// ([`InProcessBuilder::registry`](crate::InProcessBuilder::registry),
/// [`RedisBuilder::registry`](crate::RedisBuilder::registry)) to decide calls by policy
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
/// Policies come from code ([`with`](Self::with), [`set`](Self::set)), from files, and from Redis
/// (feature `registry`). If several sources define a name, Redis takes precedence over files, a
/// file that was added later over earlier ones, and files over code. A replica that starts while
/// Redis is unavailable therefore has a registry. When a source no longer defines a policy, the
/// definition of the next source applies. The same rules apply to key overrides, including those
/// that have ended.
///
/// # Effect of a change on recorded usage
///
/// State belongs to the policy's name, algorithm, group and key. A change of a capacity, limit or
/// rate keeps the state: buckets keep their remaining permits; funnels and windows keep their
/// usage. A change of the algorithm or the group starts with no usage. [`change`](Self::change) can
/// instead scale the usage or delete it.
#[derive(Clone)]
pub struct PolicyRegistry(Arc<RegistryInner>);

struct RegistryInner {
    /// The entries of each source. Changes lock it before `policies`.
    sources: Mutex<SourceStack>,
    /// The effective policies, which calls read.
    policies: RwLock<HashMap<Box<str>, EffectivePolicy>>,
    rules: RwLock<Arc<[Rule]>>,
    overlays: RwLock<OverlaySet>,
    /// The limiters that look policies up here.
    overlay_watchers: Mutex<Vec<Weak<dyn OverlayWatcher>>>,
    revision: watch::Sender<u64>,
    unresolved: UnresolvedNames,
    /// A subscription to Redis exists and has not received a snapshot yet.
    #[cfg(all(feature = "registry", feature = "redis"))]
    awaits_redis: AtomicBool,
}

impl PolicyRegistry {
    /// Maximum number of key overrides of one source.
    pub const MAX_OVERRIDES: usize = 10_000;

    /// Creates a registry without policies.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(RegistryInner {
            sources: Mutex::default(),
            policies: RwLock::default(),
            rules: RwLock::default(),
            overlays: RwLock::default(),
            overlay_watchers: Mutex::default(),
            revision: watch::Sender::new(0),
            unresolved: UnresolvedNames::default(),
            #[cfg(all(feature = "registry", feature = "redis"))]
            awaits_redis: AtomicBool::new(false),
        }))
    }

    /// Adds a policy, for all apps, or a [`PolicyEntry`], which can restrict it to some apps. See
    /// [`set`](Self::set).
    #[must_use]
    pub fn with(self, entry: impl Into<PolicyEntry>) -> Self {
        self.set(entry);
        self
    }

    /// Adds a policy to the registry, or replaces the one that
    /// [code](Self#where-policies-come-from) has added under its name. A policy of this name in a
    /// file or in Redis takes precedence.
    ///
    /// A rate policy and a concurrency policy cannot replace each other: calls by a name whose
    /// policy changed its kind fail. [`change`](Self::change), files and Redis reject such a
    /// change; this method logs a warning. A starting process has no previous policies and accepts
    /// any text.
    pub fn set(&self, entry: impl Into<PolicyEntry>) {
        let entry = entry.into();
        let name: Box<str> = entry.policy().name().into();
        let mut sources = self.sources();
        if let Some(reason) = self.kind_change_error(&entry) {
            tracing::warn!(%reason, "policy changed between rate and concurrency; its calls fail until it is renamed");
        }
        let entry = change::in_current_generation(entry, sources.generation_in_code(&name));
        let entry = change::converting(entry, self.get(&name).as_deref());
        if sources.set_in_code(entry, Clock::System.now()) {
            self.renew(&sources, &name);
        }
    }

    /// Removes a policy that code has added, and the overrides of its keys. Returns whether the
    /// policy existed. If a policy of this name is added again, the recorded usage applies again,
    /// except usage from before a reset.
    pub fn remove(&self, name: &str) -> bool {
        let mut sources = self.sources();
        // The overrides may belong to a policy of another source.
        let (removed, has_quotas) = sources.remove_from_code(name, Clock::System.now());
        if removed || has_quotas {
            self.renew(&sources, name);
        }
        removed
    }

    /// Returns the effective entry of a name, including an entry that has
    /// [ended](PolicyEntry::until) and was not removed.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<PolicyEntry>> {
        self.with_effective(name, |effective| Arc::clone(&effective.entry))
    }

    /// Returns all names, in alphabetical order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let policies = self.0.policies.read();
        let mut names: Vec<String> = policies.keys().map(|name| name.to_string()).collect();
        names.sort_unstable();
        names
    }

    /// Returns the number of changes since this process created the registry. Clones share it.
    #[must_use]
    pub fn revision(&self) -> u64 {
        *self.0.revision.borrow()
    }

    /// Waits until the [`revision`](Self::revision) differs from the given one, and returns it.
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

    /// Returns a receiver that is notified of each change after this call.
    #[cfg(all(feature = "registry", feature = "redis"))]
    pub(crate) fn watch_revision(&self) -> watch::Receiver<u64> {
        self.0.revision.subscribe()
    }

    /// Returns the number of calls whose policy was missing or not configured for their app.
    #[must_use]
    pub fn not_configured(&self) -> u64 {
        self.0.unresolved.count()
    }

    /// Returns the effective policy for a call of an app, if it is configured for this app.
    pub(crate) fn find(
        &self,
        name: &str,
        app: Option<&str>,
        key: &Key<'_>,
        clock: &Clock,
    ) -> Result<Policy, LookupError> {
        let policies = self.0.policies.read();
        let effective = policies.get(name).ok_or(LookupError::NotThere)?;
        if !effective.entry.is_for(app) {
            return Err(LookupError::NotForApp);
        }
        if effective.entry.end().is_some() && !effective.entry.holds_at(clock.calendar()) {
            return Err(LookupError::NotThere);
        }
        Ok(effective.policy_for(key, clock).clone())
    }

    /// Returns whether further names may come from Redis: a subscription exists and has not
    /// received a snapshot yet.
    pub(crate) fn awaits_redis(&self) -> bool {
        #[cfg(all(feature = "registry", feature = "redis"))]
        return self.0.awaits_redis.load(Ordering::Relaxed);
        #[cfg(not(all(feature = "registry", feature = "redis")))]
        return false;
    }

    /// Counts a call whose policy was not found.
    pub(crate) fn miss(&self, name: &str, app: Option<&str>, miss: LookupError, clock: &Clock) {
        self.0.unresolved.add(name, app, miss, clock.now());
        observe::not_configured();
    }

    /// Replaces the entries of a source, or adds the source.
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
            // The revision in Redis may have changed.
            self.0.revision.send_modify(|_| ());
            return;
        }
        self.renew_overlays(&sources);
        let policies = sources.all_effective();
        let old = {
            let mut now = self.0.policies.write();
            // Gateways find the policy of a rule by two reads: one that has read the new rules or
            // the new revision waits for the new policies.
            self.renew_rules(&sources);
            self.count_change();
            std::mem::replace(&mut *now, policies)
        };
        // Deallocation may take long, so it happens after the lock is released.
        drop(old);
    }

    /// Returns an error text if the entry changes a rate policy into a concurrency policy or the
    /// reverse.
    fn kind_change_error(&self, entry: &PolicyEntry) -> Option<String> {
        let before = self.get(entry.policy().name())?;
        let (old, new) = (before.policy(), entry.policy());
        (old.is_concurrency() != new.is_concurrency() && before.holds_at(Clock::System.calendar())).then(|| {
            format!(
                "policy `{}` changes from {old} to {new}: use another name or remove the policy first, because calls by this name would \
                 fail",
                new.name()
            )
        })
    }

    /// Rejects a text in which any policy changes between rate and concurrency.
    #[cfg(feature = "registry")]
    pub(crate) fn refuse_turned(&self, place: &str, snapshot: &SourceSnapshot) -> Result<(), RegistryError> {
        match snapshot.entries().find_map(|entry| self.kind_change_error(entry)) {
            Some(message) => Err(RegistryError::single(place, &message)),
            None => Ok(()),
        }
    }

    /// Returns all effective policies as the snapshot of one source.
    #[cfg(feature = "registry")]
    pub(crate) fn as_snapshot(&self) -> SourceSnapshot {
        let policies = self.0.policies.read();
        let mut snapshot = SourceSnapshot::from_policies(policies.values());
        snapshot.rules = self.rules();
        snapshot.overlays = Arc::new(self.with_overlays(OverlaySet::to_source));
        snapshot
    }

    fn with_effective<T>(&self, name: &str, look: impl FnOnce(&EffectivePolicy) -> T) -> Option<T> {
        let policies = self.0.policies.read();
        policies.get(name).map(look)
    }

    fn sources(&self) -> MutexGuard<'_, SourceStack> {
        self.0.sources.lock()
    }

    /// Recomputes the effective policy of a name from the sources.
    fn renew(&self, sources: &SourceStack, name: &str) {
        let effective = sources.effective(name);
        let old = {
            let mut policies = self.0.policies.write();
            match effective {
                Some(effective) => policies.insert(name.into(), effective),
                None => policies.remove(name),
            }
        };
        self.count_change();
        drop(old);
    }

    /// Called after the effective policies have changed, or while they are locked for the change,
    /// so that notified tasks read the new ones.
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
