//! What each source says, and what counts of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
#[cfg(feature = "book")]
use std::path::PathBuf;
use std::sync::Arc;

use super::{BookEntry, Override};
use crate::clock::Clock;
use crate::identity::Identity;
use crate::key::Key;
use crate::policy::Policy;
use crate::units::Timestamp;

/// Who says something. Later ones count before earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The program itself.
    Code,
    /// A file.
    #[cfg(feature = "book")]
    File(PathBuf),
    /// The book of a namespace in Redis.
    #[cfg(all(feature = "book", feature = "redis"))]
    Redis,
}

impl Source {
    #[cfg(feature = "book")]
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
pub(crate) struct Page {
    pub(super) entries: BTreeMap<Box<str>, Arc<BookEntry>>,
    overrides: HashMap<Box<str>, HashMap<Key<'static>, Arc<Override>>>,
    overrides_count: usize,
}

impl Page {
    /// The policies, in the order of their names.
    #[cfg(feature = "book")]
    pub(super) fn entries(&self) -> impl Iterator<Item = &Arc<BookEntry>> {
        self.entries.values()
    }

    /// Whether that changes something.
    pub(super) fn set(&mut self, entry: Arc<BookEntry>) -> bool {
        let name = entry.policy().name().into();
        let changes = self.entries.get(&name) != Some(&entry);
        if changes {
            self.entries.insert(name, entry);
        }
        changes
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
    pub(super) fn has_override(&self, own: &Override, base: &Policy) -> bool {
        self.overrides_of(own.key(), base).next().is_some()
    }

    /// Those for the limit of a key. There are two where the policy has a group and was given it later; that whose key says the
    /// group stands last, which makes it the one that counts.
    fn overrides_of(&self, key: &Key<'static>, base: &Policy) -> impl Iterator<Item = &Arc<Override>> {
        let of_policy = self.overrides.get(base.name());
        let names = key.names_in(base.escaped_group());
        names
            .into_iter()
            .flatten()
            .filter_map(move |key| of_policy?.get(&key))
    }

    /// In place of that for the same limit of this policy. Whether that changes something.
    pub(super) fn set_override(&mut self, own: Arc<Override>, base: &Policy) -> bool {
        let mut changes = false;
        for other in own.key().names_in(base.escaped_group()).into_iter().flatten() {
            if other != *own.key() {
                changes |= self.forget_override(base.name(), &other);
            }
        }
        self.add_override(own) || changes
    }

    /// Whether that changes something.
    pub(super) fn add_override(&mut self, own: Arc<Override>) -> bool {
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

    /// What counts, as one page.
    #[cfg(feature = "book")]
    pub(super) fn of<'a>(slots: impl IntoIterator<Item = &'a Slot>) -> Self {
        let mut page = Self::default();
        for slot in slots {
            page.set(Arc::clone(&slot.entry));
            for own in slot.overrides() {
                page.add_override(Arc::clone(own));
            }
        }
        page
    }

    /// The quotas of keys, in the order of policies and keys.
    #[cfg(feature = "book")]
    pub(super) fn overrides_in_order(&self) -> Vec<&Arc<Override>> {
        let mut all: Vec<_> = self.overrides.values().flat_map(HashMap::values).collect();
        all.sort_unstable_by(|a, b| (a.policy_name(), a.order()).cmp(&(b.policy_name(), b.order())));
        all
    }
}

/// The pages of all sources, those that count first standing last.
#[derive(Debug)]
pub(super) struct Pages {
    all: Vec<(Source, Page)>,
    /// The generations of policies that code has taken out, of those that were reset: what was used before must not come back with
    /// their names.
    left: HashMap<Box<str>, u32>,
    /// The revision of what Redis says; 0 where it was not heard.
    #[cfg(all(feature = "book", feature = "redis"))]
    pub(super) published: u64,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            all: vec![(Source::Code, Page::default())],
            left: HashMap::new(),
            #[cfg(all(feature = "book", feature = "redis"))]
            published: 0,
        }
    }
}

impl Pages {
    /// The page of the program itself, which is there from the beginning.
    pub(super) fn code(&mut self) -> &mut Page {
        #[expect(
            clippy::expect_used,
            reason = "`default` puts it first, and none is taken out"
        )]
        let (_, page) = self.all.first_mut().expect("the page of the program itself");
        page
    }

    /// Takes out what code says of a name: whether there was a policy, and whether there were quotas of its keys.
    pub(super) fn remove_from_code(&mut self, name: &str) -> (bool, bool) {
        if let Some(generation) = self.generation_in_code(name) {
            self.left.insert(name.into(), generation);
        }
        self.code().remove(name)
    }

    /// The last generation that code gave a name, where that is not the first.
    pub(super) fn generation_in_code(&mut self, name: &str) -> Option<u32> {
        let entry = self.code().entries.get(name);
        let there = entry.map(|entry| entry.policy().generation());
        there
            .max(self.left.get(name).copied())
            .filter(|generation| *generation > 0)
    }

    /// Whether that changes something.
    #[cfg(feature = "book")]
    pub(super) fn put(&mut self, source: &Source, page: Page) -> bool {
        if let Some((_, own)) = self.all.iter_mut().find(|(of, _)| of == source) {
            let changes = *own != page;
            *own = page;
            return changes;
        }
        let at = self.all.partition_point(|(of, _)| of.rank() <= source.rank());
        self.all.insert(at, (source.clone(), page));
        true
    }

    /// Whether nobody but code says anything of a name.
    pub(super) fn is_left_to_code(&self, name: &str) -> bool {
        let mut others = self.all.iter().filter(|(source, _)| *source != Source::Code);
        !others.any(|(_, page)| page.entries.contains_key(name))
    }

    /// What Redis says, where it was heard.
    #[cfg(all(feature = "book", feature = "redis"))]
    pub(super) fn redis(&self) -> Option<&Page> {
        let redis = self.all.iter().find(|(source, _)| *source == Source::Redis);
        redis.map(|(_, page)| page)
    }

    /// What would count under a name if Redis said nothing.
    #[cfg(all(feature = "book", feature = "redis"))]
    pub(super) fn beside_redis(&self, name: &str) -> Option<&Arc<BookEntry>> {
        let others = self
            .all
            .iter()
            .rev()
            .filter(|(source, _)| *source != Source::Redis);
        others
            .map(|(_, page)| page)
            .find_map(|page| page.entries.get(name))
    }

    /// What counts under a name.
    pub(super) fn slot(&self, name: &str) -> Option<Slot> {
        let entry = self.latest(|page| page.entries.get(name))?;
        let mut slot = Slot {
            entry: Arc::clone(entry),
            own: HashMap::new(),
        };
        // From the first to the last, so that the last one counts; in a page as `Page::overrides_of` has them.
        for own in (self.all.iter()).filter_map(|(_, page)| page.overrides.get(name)) {
            for says_group in [false, true] {
                let own = own
                    .values()
                    .filter(|own| own.key().group(None).is_some() == says_group);
                own.for_each(|own| slot.insert(own));
            }
        }
        Some(slot)
    }

    #[cfg(feature = "book")]
    pub(super) fn all_slots(&self) -> HashMap<Box<str>, Slot> {
        let names: BTreeSet<&str> = (self.all.iter())
            .flat_map(|(_, page)| page.entries.keys().map(AsRef::as_ref))
            .collect();
        let slots = names
            .into_iter()
            .filter_map(|name| Some((name.into(), self.slot(name)?)));
        slots.collect()
    }

    fn latest<'a, T>(&'a self, look: impl FnMut(&'a Page) -> Option<&'a T>) -> Option<&'a T> {
        self.all.iter().rev().map(|(_, page)| page).find_map(look)
    }
}

/// What counts under one name.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) entry: Arc<BookEntry>,
    /// By the identity of their state, so that a call makes no text to find one.
    own: HashMap<Identity, Own>,
}

/// What counts for one key.
#[derive(Debug)]
struct Own {
    policy: Policy,
    given: Arc<Override>,
    /// What counts when this is over.
    then: Option<Box<Own>>,
}

impl Own {
    /// The first that is not over.
    fn at(&self, now: Timestamp) -> Option<&Self> {
        let mut own = self;
        while !own.given.holds_at(now) {
            own = own.then.as_deref()?;
        }
        Some(own)
    }
}

impl Slot {
    /// Of those for one key the one that counts by the system's clock; the one that would if none was over.
    pub(super) fn overrides(&self) -> impl Iterator<Item = &Arc<Override>> {
        let now = Clock::System.calendar();
        (self.own.values()).map(move |own| &own.at(now).unwrap_or(own).given)
    }

    /// The policy for a key.
    pub(super) fn policy_for(&self, key: &Key<'_>, clock: &Clock) -> &Policy {
        let base = self.entry.policy();
        if self.own.is_empty() {
            return base;
        }
        match self.own_of(base, key) {
            Some(own) if own.given.end().is_none() => &own.policy,
            Some(own) => own.at(clock.calendar()).map_or(base, |own| &own.policy),
            None => base,
        }
    }

    /// What was given to this very key, else to the one that it is when colons of its values count as any other: people write
    /// `user:2001:db8::7` and mean `key = "user:{ip}"`.
    fn own_of(&self, base: &Policy, key: &Key<'_>) -> Option<&Own> {
        self.own
            .get(&identity(base, key))
            .or_else(|| self.own.get(&identity(base, &key.with_plain_colons()?)))
    }

    /// Has what counts for one key follow from the pages again.
    pub(super) fn renew(&mut self, pages: &Pages, key: &Key<'static>) {
        let base = self.entry.policy().clone();
        self.own.remove(&identity(&base, key));
        for (_, page) in &pages.all {
            page.overrides_of(key, &base).for_each(|given| self.insert(given));
        }
    }

    /// Before those that were there, which count when it is over. One for a policy of another algorithm, which stood in another
    /// source, counts as little as if it were not there.
    fn insert(&mut self, given: &Arc<Override>) {
        let base = self.entry.policy();
        if !given.fits(base) {
            return;
        }
        let identity = identity(base, given.key());
        let before = self.own.remove(&identity).filter(|_| given.end().is_some());
        let own = Own {
            policy: base.with_quota_of(given.policy()),
            given: Arc::clone(given),
            then: before.map(Box::new),
        };
        self.own.insert(identity, own);
    }
}

fn identity(policy: &Policy, key: &Key<'_>) -> Identity {
    let key = Key::from(key).bounded();
    policy.identity(key.group(policy.escaped_group()), key.as_str())
}
