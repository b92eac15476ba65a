//! The rules and policies in force, prepared for decisions.
//!
//! The rule index and the copies of the policies with a shorter deadline are built once per
//! revision of the registry, not once per request. Tests: below.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use limiter_core::{Key, Limiter, Policy};

use crate::gateway::rules::RuleSet;

/// The largest number of prepared policies; the rest are prepared for each request.
const MAX_PREPARED: usize = 10_000;

/// The rules of the registry and its policies with a deadline.
#[derive(Debug)]
pub struct PreparedPolicies {
    deadline: Duration,
    rules: RwLock<(u64, Arc<RuleSet>)>,
    /// For each name the policy of the registry and its copy with the deadline.
    policies: RwLock<HashMap<String, (Policy, Policy)>>,
}

impl PreparedPolicies {
    /// Policies whose decisions take at most this duration.
    #[must_use]
    pub fn new(deadline: Duration) -> Self {
        Self {
            deadline,
            rules: RwLock::new((u64::MAX, Arc::default())),
            policies: RwLock::default(),
        }
    }

    /// Returns the rules in force.
    pub fn rules(&self, limiter: &Limiter) -> Arc<RuleSet> {
        let registry = limiter.registry();
        let revision = registry.revision();
        {
            let (of, rules) = &*self.rules.read().unwrap_or_else(PoisonError::into_inner);
            if *of == revision {
                return Arc::clone(rules);
            }
        }
        let rules = Arc::new(RuleSet::new(registry.rules()));
        let mut prepared = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        *prepared = (revision, Arc::clone(&rules));
        self.policies
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        rules
    }

    /// Returns the policy of a name for a key; `None` if there is none.
    pub fn policy(&self, limiter: &Limiter, name: &str, key: &Key<'static>) -> Option<Policy> {
        // Names without a policy are frequent and come from clients: they are not counted per name.
        limiter.registry().get(name)?;
        let policy = limiter.policy(name, key).ok()?;
        if policy.deadline() <= self.deadline {
            return Some(policy);
        }
        {
            let prepared = self.policies.read().unwrap_or_else(PoisonError::into_inner);
            // Equal policies are compared by address first.
            if let Some((of, shorter)) = prepared.get(name)
                && *of == policy
            {
                return Some(shorter.clone());
            }
        }
        let shorter = policy.with_max_deadline(self.deadline);
        let mut prepared = self.policies.write().unwrap_or_else(PoisonError::into_inner);
        if prepared.len() < MAX_PREPARED {
            prepared.insert(name.to_owned(), (policy, shorter.clone()));
        }
        Some(shorter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_is_the_shorter_one_of_policy_and_gateway() {
        let limiter = Limiter::in_process().build();
        let prepared = PreparedPolicies::new(Duration::from_millis(11));
        for (name, own, expected) in [
            ("short", Some(5), 5),
            ("long", Some(200), 11),
            ("default", None, 11),
        ] {
            let policy = Policy::token_bucket(name).capacity(2).rate("1/s");
            let policy = match own {
                Some(millis) => policy.deadline(Duration::from_millis(millis)),
                None => policy,
            };
            limiter.registry().set(policy.build().unwrap());
            let found = prepared.policy(&limiter, name, &Key::from("ann")).unwrap();
            assert_eq!(found.deadline(), Duration::from_millis(expected), "{name}");
            // The prepared copy is used from the second call on.
            let again = prepared.policy(&limiter, name, &Key::from("ann")).unwrap();
            assert_eq!(again.deadline(), found.deadline(), "{name}");
        }
    }
}
