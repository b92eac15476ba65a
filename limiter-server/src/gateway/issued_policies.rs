//! The policies of the ids that this node issued.
//!
//! A client that holds a permit or a reservation must be able to give it back after its policy was
//! removed, also if a policy of the other kind, rate or concurrency, has its name then. The policy
//! that was last used for an id of a name and a kind is therefore kept for the life of the process,
//! with its apps, to which the scopes of clients refer. Clients choose among configured names only,
//! so the number of policies is bounded by those that were ever configured; [`MAX_NAMES`] bounds it
//! besides. Tests: `tests/http_api.rs`.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use limiter_core::registry::{PolicyEntry, PolicyRegistry};
use limiter_core::{Key, Limiter, Policy, Rejection};

use crate::access::Action;

/// The largest number of kept policies of a kind.
const MAX_NAMES: usize = 10_000;

/// The policies by their names.
#[derive(Debug, Default)]
pub struct IssuedPolicies {
    permits: RwLock<HashMap<String, IssuedPolicy>>,
    reservations: RwLock<HashMap<String, IssuedPolicy>>,
}

#[derive(Debug)]
struct IssuedPolicy {
    policy: Policy,
    /// The apps to which it belongs; empty for a policy of all apps.
    apps: Arc<[String]>,
}

impl IssuedPolicy {
    /// Returns whether an entry of the registry has these values, or was removed.
    fn is_current(&self, policy: &Policy, entry: Option<&PolicyEntry>) -> bool {
        // Equal policies are compared by address first.
        let has_apps = |entry| apps_of(entry).eq(self.apps.iter().map(String::as_str));
        entry.is_none_or(|entry| self.policy == *policy && has_apps(entry))
    }
}

fn apps_of(entry: &PolicyEntry) -> impl Iterator<Item = &str> {
    entry.apps().into_iter().flatten()
}

impl IssuedPolicies {
    /// Returns the policies of the ids that an action uses.
    fn of(&self, action: Action) -> &RwLock<HashMap<String, IssuedPolicy>> {
        match action {
            Action::Acquire => &self.permits,
            _ => &self.reservations,
        }
    }

    /// Keeps the policy of an issued id.
    pub fn record(&self, registry: &PolicyRegistry, policy: &Policy) {
        let entry = registry.get(policy.name());
        let entry = entry.as_deref();
        let of_kind = self.of(action_on(policy));
        let kept = of_kind.read().unwrap_or_else(PoisonError::into_inner);
        let of_name = kept.get(policy.name());
        if of_name.is_some_and(|kept| kept.is_current(policy, entry)) {
            return;
        }
        drop(kept);
        let mut kept = of_kind.write().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_NAMES || kept.contains_key(policy.name()) {
            let apps = entry.into_iter().flat_map(apps_of);
            let issued = IssuedPolicy {
                policy: policy.clone(),
                apps: apps.map(str::to_owned).collect(),
            };
            kept.insert(policy.name().to_owned(), issued);
        }
    }

    /// Returns the apps of a kept policy; empty for a policy of all apps, and for an unknown one.
    #[must_use]
    pub fn apps(&self, action: Action, name: &str) -> Arc<[String]> {
        let kept = self.of(action).read().unwrap_or_else(PoisonError::into_inner);
        kept.get(name)
            .map(|kept| Arc::clone(&kept.apps))
            .unwrap_or_default()
    }

    /// Returns the policy of a name for a key, on which an action is taken by an id: the one in
    /// force, or else the kept one.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] if the name has neither.
    pub fn find(
        &self,
        limiter: &Limiter,
        action: Action,
        (name, key): (&str, &Key<'static>),
    ) -> Result<Policy, Rejection> {
        let in_force = limiter.policy(name, key);
        let is_of_kind = match &in_force {
            Ok(policy) => action_on(policy) == action,
            Err(rejection) => !matches!(rejection, Rejection::NotConfigured { .. }),
        };
        if is_of_kind {
            return in_force;
        }
        let kept = self.of(action).read().unwrap_or_else(PoisonError::into_inner);
        kept.get(name).map_or(in_force, |kept| Ok(kept.policy.clone()))
    }
}

/// Returns the action of ids of a policy.
pub(crate) fn action_on(policy: &Policy) -> Action {
    match policy.algorithm_name() {
        "concurrency" => Action::Acquire,
        _ => Action::Reserve,
    }
}
