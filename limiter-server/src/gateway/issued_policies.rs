//! The policies of the ids that this node issued.
//!
//! A client that holds a permit or a reservation must be able to give it back after its policy was
//! removed. The policy that was last used for an id of a name is therefore kept for the life of the
//! process. Clients choose among configured names only, so the number of policies is bounded by
//! those that were ever configured; [`MAX_NAMES`] bounds it besides.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use limiter_core::{Key, Limiter, Policy, Rejection};

/// The largest number of kept policies.
const MAX_NAMES: usize = 10_000;

/// The policies by their names.
#[derive(Debug, Default)]
pub struct IssuedPolicies(RwLock<HashMap<String, Policy>>);

impl IssuedPolicies {
    /// Keeps the policy of an issued id.
    pub fn record(&self, policy: &Policy) {
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner);
        // Equal policies are compared by address first.
        if kept.get(policy.name()) == Some(policy) {
            return;
        }
        drop(kept);
        let mut kept = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_NAMES || kept.contains_key(policy.name()) {
            kept.insert(policy.name().to_owned(), policy.clone());
        }
    }

    /// The policy of a name for a key: the one in force, or else the kept one.
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] if the name has neither.
    pub fn find(&self, limiter: &Limiter, name: &str, key: &Key<'static>) -> Result<Policy, Rejection> {
        let rejection = match limiter.policy(name, key) {
            Err(rejection @ Rejection::NotConfigured { .. }) => rejection,
            found => return found,
        };
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner);
        kept.get(name).cloned().ok_or(rejection)
    }
}
