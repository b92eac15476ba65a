//! What counts under one name, for each key.

use std::collections::HashMap;
use std::sync::Arc;

use crate::identity::Identity;
use crate::key::Key;
use crate::policy::Policy;
use crate::registry::sources::SourceStack;
use crate::registry::{KeyOverride, PolicyEntry};
use crate::support::clock::Clock;
use crate::units::Timestamp;

/// What counts under one name.
#[derive(Debug)]
pub(super) struct EffectivePolicy {
    pub(super) entry: Arc<PolicyEntry>,
    /// By the identity of their state, so that a call makes no text to find one.
    own: HashMap<Identity, EffectiveOverride>,
}

/// What counts for one key.
#[derive(Debug)]
struct EffectiveOverride {
    policy: Policy,
    given: Arc<KeyOverride>,
    /// What counts when this is over.
    then: Option<Box<EffectiveOverride>>,
}

impl EffectiveOverride {
    /// The first that is not over.
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

    /// Of those for one key the one that counts by the system's clock; the one that would if none
    /// was over.
    pub(super) fn overrides(&self) -> impl Iterator<Item = &Arc<KeyOverride>> {
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

    /// What was given to this very key, else to the one that it is when colons of its values count
    /// as any other: people write `user:2001:db8::7` and mean `key = "user:{ip}"`.
    fn own_of(&self, base: &Policy, key: &Key<'_>) -> Option<&EffectiveOverride> {
        self.own
            .get(&identity(base, key))
            .or_else(|| self.own.get(&identity(base, &key.with_plain_colons()?)))
    }

    /// Has what counts for one key follow from the sources again.
    pub(super) fn renew(&mut self, sources: &SourceStack, key: &Key<'static>) {
        let base = self.entry.policy().clone();
        self.own.remove(&identity(&base, key));
        for snapshot in sources.iter() {
            snapshot
                .overrides_of(key, &base)
                .for_each(|given| self.insert(given));
        }
    }

    /// Before those that were there, which count when it is over. One for a policy of another
    /// algorithm, which stood in another source, counts as little as if it were not there.
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
