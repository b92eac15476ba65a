//! The policies of each source, and the effective policies.
//!
//! Code, each file and Redis have a snapshot each, in ascending order of precedence. A name takes
//! its definition from the last snapshot that contains it, so a source that removes a name uncovers
//! the definition of another source. Tests: `sources/tests.rs`, `tests/registry.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
#[cfg(feature = "registry")]
use std::path::PathBuf;
use std::sync::Arc;

use crate::key::Key;
use crate::policy::Policy;
use crate::registry::effective_policy::EffectivePolicy;
use crate::registry::retired_generations::RetiredGenerations;
use crate::registry::{KeyOverride, PolicyEntry, Rule, SourceOverlays};
use crate::units::Timestamp;

/// A source of policies. Later sources have precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The program.
    Code,
    /// A file.
    #[cfg(feature = "registry")]
    File(PathBuf),
    /// The registry of a namespace in Redis.
    #[cfg(all(feature = "registry", feature = "redis"))]
    Redis,
}

impl Source {
    #[cfg(feature = "registry")]
    fn rank(&self) -> u8 {
        match self {
            Self::Code => 0,
            Self::File(_) => 1,
            #[cfg(feature = "redis")]
            Self::Redis => 2,
        }
    }
}

/// The policies, overrides, rules and overlays of one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceSnapshot {
    pub(super) entries: BTreeMap<Box<str>, Arc<PolicyEntry>>,
    overrides: HashMap<Box<str>, HashMap<Key<'static>, Arc<KeyOverride>>>,
    overrides_count: usize,
    pub(super) rules: Arc<[Rule]>,
    pub(super) overlays: Arc<SourceOverlays>,
}

impl SourceSnapshot {
    #[cfg(feature = "registry")]
    pub(super) fn entries(&self) -> impl Iterator<Item = &Arc<PolicyEntry>> {
        self.entries.values()
    }

    /// Adds or replaces an entry. Returns whether that changes the snapshot.
    pub(super) fn set(&mut self, entry: Arc<PolicyEntry>) -> bool {
        let name = entry.policy().name().into();
        let changes = self.entries.get(&name) != Some(&entry);
        if changes {
            self.entries.insert(name, entry);
        }
        changes
    }

    /// Reuses the entries of the previous snapshot that are equal, because this process keeps data
    /// with a policy (a record of logged warnings, texts for clients) that must survive for
    /// unchanged policies.
    #[cfg(feature = "registry")]
    fn reuse_entries_of(&mut self, before: &Self) {
        for (name, entry) in &mut self.entries {
            if let Some(old) = before.entries.get(name).filter(|old| *old == entry) {
                *entry = Arc::clone(old);
            }
        }
    }

    /// Keeps the entry of the previous snapshot for a name.
    #[cfg(all(feature = "registry", feature = "redis"))]
    pub(super) fn retain_generations(&mut self, name: &str, before: &Self) {
        if let Some(entry) = before.entries.get(name) {
            self.entries.insert(name.into(), Arc::clone(entry));
        }
        if let Some(own) = before.overrides.get(name) {
            self.overrides_count += own.len();
            self.overrides.insert(name.into(), own.clone());
        }
    }

    /// Removes a policy and its overrides. Returns whether there was a policy, and whether there
    /// were overrides.
    pub(super) fn remove(&mut self, name: &str) -> (bool, bool) {
        let own = self.overrides.remove(name);
        self.overrides_count -= own.as_ref().map_or(0, HashMap::len);
        (self.entries.remove(name).is_some(), own.is_some())
    }

    pub(super) fn overrides_count(&self) -> usize {
        self.overrides_count
    }

    /// Returns whether there is an override for the same limit under this base policy.
    pub(super) fn has_override(&self, own: &KeyOverride, base: &Policy) -> bool {
        self.overrides_of(own.key(), base).next().is_some()
    }

    /// Returns the overrides for the limit of a key. There are two if the key was set with and
    /// without the policy's group; the one with the group comes last and takes precedence.
    pub(super) fn overrides_of(
        &self,
        key: &Key<'static>,
        base: &Policy,
    ) -> impl Iterator<Item = &Arc<KeyOverride>> {
        let of_policy = self.overrides.get(base.name());
        let names = key.names_in(base.escaped_group());
        names
            .into_iter()
            .flatten()
            .filter_map(move |key| of_policy?.get(&key))
    }

    /// Replaces the override for the same limit of this policy. Returns whether that changes the
    /// snapshot.
    pub(super) fn set_override(&mut self, own: Arc<KeyOverride>, base: &Policy) -> bool {
        let mut changes = false;
        for other in own.key().names_in(base.escaped_group()).into_iter().flatten() {
            if other != *own.key() {
                changes |= self.forget_override(base.name(), &other);
            }
        }
        self.add_override(own) || changes
    }

    /// Adds or replaces an override. Returns whether that changes the snapshot.
    pub(super) fn add_override(&mut self, own: Arc<KeyOverride>) -> bool {
        let of_policy = self.overrides.entry(own.policy_name().into()).or_default();
        match of_policy.insert(own.key().clone(), Arc::clone(&own)) {
            Some(before) => before != own,
            None => {
                self.overrides_count += 1;
                true
            }
        }
    }

    /// Removes the overrides for the limit of a key under this base policy. Returns whether there
    /// was one.
    pub(super) fn remove_override(&mut self, key: &Key<'static>, base: &Policy) -> bool {
        let mut removed = false;
        for key in key.names_in(base.escaped_group()).into_iter().flatten() {
            removed |= self.forget_override(base.name(), &key);
        }
        removed
    }

    /// Removes the override of exactly this key. Returns whether there was one.
    pub(super) fn forget_override(&mut self, name: &str, key: &Key<'static>) -> bool {
        let Some(of_policy) = self.overrides.get_mut(name) else {
            return false;
        };
        let removed = of_policy.remove(key).is_some();
        self.overrides_count -= usize::from(removed);
        if of_policy.is_empty() {
            self.overrides.remove(name);
        }
        removed
    }

    /// Removes overrides that have ended. Returns the names of their policies.
    pub(super) fn forget_overrides_until(&mut self, now: Timestamp) -> BTreeSet<Box<str>> {
        let mut touched = BTreeSet::new();
        let mut count = 0;
        self.overrides.retain(|name, own| {
            let before = own.len();
            own.retain(|_, own| own.holds_at(now));
            if own.len() < before {
                touched.insert(name.clone());
            }
            count += own.len();
            !own.is_empty()
        });
        self.overrides_count = count;
        touched
    }

    /// Builds a snapshot of effective policies.
    #[cfg(feature = "registry")]
    pub(super) fn from_policies<'a>(policies: impl IntoIterator<Item = &'a EffectivePolicy>) -> Self {
        let mut snapshot = Self::default();
        for effective in policies {
            snapshot.set(Arc::clone(&effective.entry));
            for own in effective.overrides() {
                snapshot.add_override(Arc::clone(own));
            }
        }
        snapshot
    }

    /// Returns the overrides in the order of policies and keys.
    #[cfg(feature = "registry")]
    pub(super) fn overrides_in_order(&self) -> Vec<&Arc<KeyOverride>> {
        let mut all: Vec<_> = self.overrides.values().flat_map(HashMap::values).collect();
        all.sort_unstable_by(|a, b| (a.policy_name(), a.order()).cmp(&(b.policy_name(), b.order())));
        all
    }
}

/// The snapshots of all sources, in ascending order of precedence.
#[derive(Debug)]
pub(super) struct SourceStack {
    all: Vec<(Source, SourceSnapshot)>,
    /// Generations of policies that code has removed.
    left: RetiredGenerations,
    /// The revision of the snapshot from Redis; 0 before the first one.
    #[cfg(all(feature = "registry", feature = "redis"))]
    pub(super) published: u64,
    /// That text contains policies that this version cannot read, so this version must not rewrite
    /// it.
    #[cfg(all(feature = "registry", feature = "redis"))]
    pub(super) published_partly: bool,
}

impl Default for SourceStack {
    fn default() -> Self {
        Self {
            all: vec![(Source::Code, SourceSnapshot::default())],
            left: RetiredGenerations::default(),
            #[cfg(all(feature = "registry", feature = "redis"))]
            published: 0,
            #[cfg(all(feature = "registry", feature = "redis"))]
            published_partly: false,
        }
    }
}

impl SourceStack {
    /// Returns the snapshot of the program itself, which always exists.
    pub(super) fn code(&mut self) -> &mut SourceSnapshot {
        #[expect(
            clippy::expect_used,
            reason = "`default` puts it first, and none is taken out"
        )]
        let (_, snapshot) = self.all.first_mut().expect("the snapshot of the program itself");
        snapshot
    }

    /// Removes the entry of a name from the snapshot of code. Returns whether there was a policy,
    /// and whether there were overrides of its keys.
    pub(super) fn remove_from_code(&mut self, name: &str, now: Timestamp) -> (bool, bool) {
        if let Some(generation) = self.generation_in_code(name) {
            self.retire(name, generation, now);
        }
        self.code().remove(name)
    }

    /// Adds an entry to the snapshot of code. Returns whether that changes the snapshot.
    pub(super) fn set_in_code(&mut self, entry: PolicyEntry, now: Timestamp) -> bool {
        let (name, generation) = (entry.policy().name(), entry.policy().generation());
        let before = self.code().entries.get(name);
        if before.is_some_and(|before| before.policy().generation() < generation) {
            self.retire(name, generation, now);
        }
        self.code().set(Arc::new(entry))
    }

    /// Records the generation of a code entry that is removed or replaced.
    fn retire(&mut self, name: &str, generation: u32, now: Timestamp) {
        let code = self.code();
        let Some(entry) = code.entries.get(name) else {
            return;
        };
        let own = (code.overrides.get(name).into_iter()).flat_map(HashMap::values);
        let windows = own
            .map(|own| own.policy())
            .chain([entry.policy()])
            .map(Policy::window);
        let counts_for = PolicyEntry::counts_for(windows.max().unwrap_or_default());
        // An ended policy has not been charged since its end.
        let used_until = entry.end().map_or(now, |end| end.min(now));
        self.left
            .record(name, generation, used_until.after(counts_for), now);
    }

    /// Returns the last generation of a name in code, unless it is the first.
    pub(super) fn generation_in_code(&mut self, name: &str) -> Option<u32> {
        let entry = self.code().entries.get(name);
        let there = entry.map(|entry| entry.policy().generation());
        there
            .max(self.left.generation(name))
            .filter(|generation| *generation > 0)
    }

    /// Replaces the snapshot of a source. Returns whether that changes something.
    #[cfg(feature = "registry")]
    pub(super) fn replace(&mut self, source: &Source, mut snapshot: SourceSnapshot) -> bool {
        if let Some((_, own)) = self.all.iter_mut().find(|(of, _)| of == source) {
            let changes = *own != snapshot;
            snapshot.reuse_entries_of(own);
            *own = snapshot;
            return changes;
        }
        let at = self.all.partition_point(|(of, _)| of.rank() <= source.rank());
        self.all.insert(at, (source.clone(), snapshot));
        true
    }

    /// Returns whether no source except code defines a name.
    pub(super) fn is_left_to_code(&self, name: &str) -> bool {
        let mut others = self.all.iter().filter(|(source, _)| *source != Source::Code);
        !others.any(|(_, snapshot)| snapshot.entries.contains_key(name))
    }

    /// Returns the snapshot of Redis, if one was received.
    #[cfg(all(feature = "registry", feature = "redis"))]
    pub(super) fn redis(&self) -> Option<&SourceSnapshot> {
        let redis = self.all.iter().find(|(source, _)| *source == Source::Redis);
        redis.map(|(_, snapshot)| snapshot)
    }

    /// Returns the policy that would apply to a name without the snapshot of Redis.
    #[cfg(all(feature = "registry", feature = "redis"))]
    pub(super) fn beside_redis(&self, name: &str) -> Option<&Arc<PolicyEntry>> {
        let others = self
            .all
            .iter()
            .rev()
            .filter(|(source, _)| *source != Source::Redis);
        others
            .map(|(_, snapshot)| snapshot)
            .find_map(|snapshot| snapshot.entries.get(name))
    }

    /// Returns the effective policy of a name.
    pub(super) fn effective(&self, name: &str) -> Option<EffectivePolicy> {
        let entry = self.latest(|snapshot| snapshot.entries.get(name))?;
        let mut effective = EffectivePolicy::new(Arc::clone(entry));
        // In ascending order of precedence, so that the last override applies; within a snapshot,
        // overrides with a group come last, as in `SourceSnapshot::overrides_of`.
        for own in (self.all.iter()).filter_map(|(_, snapshot)| snapshot.overrides.get(name)) {
            for says_group in [false, true] {
                let own = own
                    .values()
                    .filter(|own| own.key().group(None).is_some() == says_group);
                own.for_each(|own| effective.insert(own));
            }
        }
        Some(effective)
    }

    #[cfg(feature = "registry")]
    pub(super) fn all_effective(&self) -> HashMap<Box<str>, EffectivePolicy> {
        let names: BTreeSet<&str> = (self.all.iter())
            .flat_map(|(_, snapshot)| snapshot.entries.keys().map(AsRef::as_ref))
            .collect();
        let policies = names
            .into_iter()
            .filter_map(|name| Some((name.into(), self.effective(name)?)));
        policies.collect()
    }

    /// Returns the snapshots in ascending order of precedence.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &SourceSnapshot> {
        self.all.iter().map(|(_, snapshot)| snapshot)
    }

    fn latest<'a, T>(&'a self, look: impl FnMut(&'a SourceSnapshot) -> Option<&'a T>) -> Option<&'a T> {
        self.iter().rev().find_map(look)
    }
}

#[cfg(test)]
mod tests;
