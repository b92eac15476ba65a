//! The policy that applies to each key of one name.
//!
//! Several sources may name a policy and give a key an override. `EffectivePolicy` is the result:
//! the entry of the latest source, and for each key the overrides that apply, ordered by their
//! ends. It is rebuilt when a source changes, so a lookup reads one map. Tests:
//! `tests/registry.rs`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::identity::Identity;
use crate::key::Key;
use crate::policy::Policy;
use crate::registry::{KeyOverride, PolicyEntry};
use crate::support::clock::Clock;
use crate::units::Timestamp;

/// The entry of one name with the overrides of its keys.
#[derive(Debug)]
pub(super) struct EffectivePolicy {
    pub(super) entry: Arc<PolicyEntry>,
    /// Keyed by the identity of the state, so a lookup allocates no text.
    own: HashMap<Identity, EffectiveOverride>,
}

/// The override of one key.
#[derive(Debug)]
struct EffectiveOverride {
    policy: Policy,
    given: Arc<KeyOverride>,
    /// The override that applies after the end of this one.
    then: Option<Box<EffectiveOverride>>,
}

impl EffectiveOverride {
    /// Returns the first override that has not ended.
    fn at(&self, now: Timestamp) -> Option<&Self> {
        let mut own = self;
        while !own.given.holds_at(now) {
            own = own.then.as_deref()?;
        }
        Some(own)
    }
}

impl EffectivePolicy {
    pub(super) fn new(entry: Arc<PolicyEntry>) -> Self {
        let own = HashMap::new();
        Self { entry, own }
    }

    /// Returns one override per key: the one that applies by the system's clock, or the first one
    /// if all have ended.
    pub(super) fn overrides(&self) -> impl Iterator<Item = &Arc<KeyOverride>> {
        let now = Clock::System.calendar();
        (self.own.values()).map(move |own| &own.at(now).unwrap_or(own).given)
    }

    /// Returns the policy for a key.
    pub(super) fn policy_for(&self, key: &Key<'_>, clock: &Clock) -> &Policy {
        let base = self.entry.policy();
        if self.own.is_empty() {
            return base;
        }
        // If no override of the key applies, tries the key with unescaped colons, so that an
        // override of `user:2001:db8::7` matches `key = "user:{ip}"`.
        self.own_of(key, clock)
            .or_else(|| self.own_of(&key.with_plain_colons()?, clock))
            .map_or(base, |own| &own.policy)
    }

    /// Returns the override of exactly this key that has not ended.
    fn own_of(&self, key: &Key<'_>, clock: &Clock) -> Option<&EffectiveOverride> {
        let own = self.own.get(&identity(self.entry.policy(), key))?;
        match own.given.end() {
            None => Some(own),
            Some(_) => own.at(clock.calendar()),
        }
    }

    /// Replaces the overrides of one key. The last one applies first.
    pub(super) fn replace_overrides<'a>(
        &mut self,
        key: &Key<'static>,
        overrides: impl IntoIterator<Item = &'a Arc<KeyOverride>>,
    ) {
        self.own.remove(&identity(self.entry.policy(), key));
        for given in overrides {
            self.insert(given);
        }
    }

    /// Adds an override before the existing ones of its key, which apply after its end. Ignores an
    /// override for a policy of another algorithm, which belonged to another source.
    pub(super) fn insert(&mut self, given: &Arc<KeyOverride>) {
        let base = self.entry.policy();
        if !given.fits(base) {
            return;
        }
        let identity = identity(base, given.key());
        let before = self.own.remove(&identity).filter(|_| given.end().is_some());
        let own = EffectiveOverride {
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
