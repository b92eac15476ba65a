//! Checks of the policies of layers.

use std::sync::Arc;

use crate::enforcement::KeyRule;
use crate::error::ConfigError;
use crate::limiter::{LayerToken, Limiter};
use crate::policy::{KeyPrefixes, Policy};

/// Registers a policy of a layer, as long as the layer's token lives.
pub fn register_layer_policy(limiter: &Limiter, policy: &Policy, layer: &Arc<LayerToken>) {
    limiter.register_layer_policy(policy, layer);
}

/// Returns the policy of another layer of this limiter that has the name of this policy and other
/// limits.
#[must_use]
pub fn conflicting_layer_policy(limiter: &Limiter, policy: &Policy) -> Option<Policy> {
    limiter.conflicting_layer_policy(policy)
}

/// Fails if entries of the policy's key lists are longer than the prefixes of the layer's keys, so
/// that they never match.
///
/// # Errors
///
/// One error for each of these entries.
pub fn verify_key_lists(policy: &Policy, prefixes: KeyPrefixes) -> Result<(), ConfigError> {
    KeyRule::verify(policy, prefixes)
}

/// Logs the entries that [`verify_key_lists`] returns, once for each version of the policy.
pub fn warn_of_unmatchable_entries(policy: &Policy, prefixes: KeyPrefixes) {
    KeyRule::warn_of_unmatchable_entries(policy, prefixes);
}

/// Returns whether a policy limits concurrency and not a rate.
#[must_use]
pub fn is_concurrency(policy: &Policy) -> bool {
    policy.is_concurrency()
}

/// Returns whether no source of the limiter's registry has a policy of this name. `false` while
/// Redis may still provide one.
#[must_use]
pub fn names_missing_policy(limiter: &Limiter, name: &str) -> bool {
    let registry = limiter.registry();
    registry.get(name).is_none() && !registry.awaits_redis()
}
