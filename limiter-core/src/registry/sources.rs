//! What each source says, and what counts of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
#[cfg(feature = "registry")]
use std::path::PathBuf;
use std::sync::Arc;

use crate::key::Key;
use crate::policy::Policy;
use crate::registry::effective::EffectivePolicy;
use crate::registry::retired::RetiredGenerations;
use crate::registry::{KeyOverride, PolicyEntry, Rule};
use crate::units::Timestamp;

/// A source of policies. Later sources have precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The program itself.
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

/// What one source says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceSnapshot {
    pub(super) entries: BTreeMap<Box<str>, Arc<PolicyEntry>>,
    overrides: HashMap<Box<str>, HashMap<Key<'static>, Arc<KeyOverride>>>,
    overrides_count: usize,
    pub(super) rules: Arc<[Rule]>,
}

impl SourceSnapshot {
    #[cfg(feature = "registry")]
    pub(super) fn entries(&self) -> impl Iterator<Item = &Arc<PolicyEntry>> {
        self.entries.values()
    }

    /// Whether that changes something.
    pub(super) fn set(&mut self, entry: Arc<PolicyEntry>) -> bool {
        let name = entry.policy().name().into();
        let changes = self.entries.get(&name) != Some(&entry);
        if changes {
            self.entries.insert(name, entry);
        }
        changes
    }

    /// Takes over the entries that are equal to those of the snapshot before: what this process
    /// keeps with a policy (warnings that were logged, texts for clients) stays with the policies
    /// that did not change.
    #[cfg(feature = "registry")]
    fn reuse_entries_of(&mut self, before: &Self) {
        for (name, entry) in &mut self.entries {
            if let Some(old) = before.entries.get(name).filter(|old| *old == entry) {
                *entry = Arc::clone(old);
            }
        }
    }

    /// Takes over what the snapshot before says of a name.
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

    /// Whether there was a policy, and whether there were quotas of its keys.
    pub(super) fn remove(&mut self, name: &str) -> (bool, bool) {
        let own = self.overrides.remove(name);
        self.overrides_count -= own.as_ref().map_or(0, HashMap::len);
        (self.entries.remove(name).is_some(), own.is_some())
    }

    pub(super) fn overrides_count(&self) -> usize {
        self.overrides_count
    }

    /// Whether there is one for the same limit, if the policy is this one.
    pub(super) fn has_override(&self, own: &KeyOverride, base: &Policy) -> bool {
        self.overrides_of(own.key(), base).next().is_some()
    }

    /// Those for the limit of a key. There are two where the policy has a group and was given it
    /// later; that whose key says the group stands last, which makes it the one that counts.
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

    /// In place of that for the same limit of this policy. Whether that changes something.
    pub(super) fn set_override(&mut self, own: Arc<KeyOverride>, base: &Policy) -> bool {
        let mut changes = false;
        for other in own.key().names_in(base.escaped_group()).into_iter().flatten() {
            if other != *own.key() {
                changes |= self.forget_override(base.name(), &other);
            }
        }
        self.add_override(own) || changes
    }

    /// Whether that changes something.
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

    /// Takes those out for the limit of a key, if the policy is this one: whether there was one.
    pub(super) fn remove_override(&mut self, key: &Key<'static>, base: &Policy) -> bool {
        let mut removed = false;
        for key in key.names_in(base.escaped_group()).into_iter().flatten() {
            removed |= self.forget_override(base.name(), &key);
        }
        removed
    }

    /// The same for a key that is said so.
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

    /// Takes those out that are over: the names of their policies.
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

    /// What counts, as one snapshot.
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

    /// The quotas of keys, in the order of policies and keys.
    #[cfg(feature = "registry")]
    pub(super) fn overrides_in_order(&self) -> Vec<&Arc<KeyOverride>> {
        let mut all: Vec<_> = self.overrides.values().flat_map(HashMap::values).collect();
        all.sort_unstable_by(|a, b| (a.policy_name(), a.order()).cmp(&(b.policy_name(), b.order())));
        all
    }
}

/// The sources of all sources, those that count first standing last.
#[derive(Debug)]
pub(super) struct SourceStack {
    all: Vec<(Source, SourceSnapshot)>,
    /// Of the policies that code has taken out.
    left: RetiredGenerations,
    /// The revision of what Redis says; 0 where it was not heard.
    #[cfg(all(feature = "registry", feature = "redis"))]
    pub(super) published: u64,
    /// Whether that text has something that this version cannot read, so that it cannot be written
    /// again.
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
    /// The snapshot of the program itself, which is there from the beginning.
    pub(super) fn code(&mut self) -> &mut SourceSnapshot {
        #[expect(
            clippy::expect_used,
            reason = "`default` puts it first, and none is taken out"
        )]
        let (_, snapshot) = self.all.first_mut().expect("the snapshot of the program itself");
        snapshot
    }

    /// Takes out what code says of a name: whether there was a policy, and whether there were
    /// quotas of its keys.
    pub(super) fn remove_from_code(&mut self, name: &str, now: Timestamp) -> (bool, bool) {
        if let Some(generation) = self.generation_in_code(name) {
            self.retire(name, generation, now);
        }
        self.code().remove(name)
    }

    /// Puts an entry into the snapshot of code. Whether that changes something.
    pub(super) fn set_in_code(&mut self, entry: PolicyEntry, now: Timestamp) -> bool {
        let (name, generation) = (entry.policy().name(), entry.policy().generation());
        let before = self.code().entries.get(name);
        if before.is_some_and(|before| before.policy().generation() < generation) {
            self.retire(name, generation, now);
        }
        self.code().set(Arc::new(entry))
    }

    /// Code goes on from what it says of a name: that generation is the last until then.
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
        // Nobody has used anything since it has ended.
        let used_until = entry.end().map_or(now, |end| end.min(now));
        self.left
            .note(name, generation, used_until.after(counts_for), now);
    }

    /// The last generation that code gave a name, where that is not the first.
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

    /// Whether nobody but code says anything of a name.
    pub(super) fn is_left_to_code(&self, name: &str) -> bool {
        let mut others = self.all.iter().filter(|(source, _)| *source != Source::Code);
        !others.any(|(_, snapshot)| snapshot.entries.contains_key(name))
    }

    /// What Redis says, where it was heard.
    #[cfg(all(feature = "registry", feature = "redis"))]
    pub(super) fn redis(&self) -> Option<&SourceSnapshot> {
        let redis = self.all.iter().find(|(source, _)| *source == Source::Redis);
        redis.map(|(_, snapshot)| snapshot)
    }

    /// What would count under a name if Redis said nothing.
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

    /// What counts under a name.
    pub(super) fn effective(&self, name: &str) -> Option<EffectivePolicy> {
        let entry = self.latest(|snapshot| snapshot.entries.get(name))?;
        let mut effective = EffectivePolicy::new(Arc::clone(entry));
        // From the first to the last, so that the last one counts; in a snapshot as
        // `Page::overrides_of` has them.
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

    /// The sources, those that count first standing last.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &SourceSnapshot> {
        self.all.iter().map(|(_, snapshot)| snapshot)
    }

    fn latest<'a, T>(&'a self, look: impl FnMut(&'a SourceSnapshot) -> Option<&'a T>) -> Option<&'a T> {
        self.iter().rev().find_map(look)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::registry::sources::*;

    fn windowed(generation: u32, window: &str) -> PolicyEntry {
        let policy = Policy::sliding_window("p").limit(5).window(window).build();
        PolicyEntry::new(policy.expect("valid").with_generation(generation))
    }

    #[test]
    fn a_generation_is_remembered_as_long_as_anything_counts_that_was_used_before_it() {
        let (mut sources, now) = (SourceStack::default(), Timestamp::from_micros(1));
        let remembered = |sources: &mut SourceStack, at| {
            // Others come and go.
            for number in 0..1_000 {
                sources.left.note(&number.to_string(), 1, at, at);
            }
            sources.generation_in_code("p")
        };
        let hours = |hours: u64| now.after(Duration::from_secs(3_600 * hours));
        assert!(sources.set_in_code(windowed(0, "10h"), now));
        assert!(sources.set_in_code(windowed(1, "1s"), hours(1)));
        assert_eq!(sources.remove_from_code("p", hours(2)), (true, false));
        assert_eq!(
            remembered(&mut sources, hours(20)),
            Some(1),
            "of before the reset"
        );
        assert_eq!(remembered(&mut sources, hours(22)), None);

        // Which has ended long ago.
        assert!(sources.set_in_code(windowed(3, "1s").until(hours(23)), hours(22)));
        assert_eq!(sources.remove_from_code("p", hours(40)), (true, false));
        assert_eq!(remembered(&mut sources, hours(40)), None);
    }
}
