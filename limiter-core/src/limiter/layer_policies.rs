//! The policies of the layers in this process.
//!
//! Problem: two layers whose policies share a name share one budget in the store. That is intended
//! for two layers with one policy and a mistake for two policies with different limits. Each layer
//! registers its policies here, with a token that it and its clones keep; an entry counts while the
//! token lives. A layer that finds another limit under its policy's name reports it when it is
//! verified or built. Tests: `limiter-tower/tests/verify.rs`.

use std::sync::{Arc, Weak};

use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::support::sync::Mutex;

/// A layer that uses policies of a limiter. Clones of the layer share it.
#[derive(Debug, Default)]
pub struct LayerToken(());

/// Each policy, and the layer that uses it.
#[derive(Debug, Default)]
pub(super) struct LayerPolicies(Mutex<Vec<(Policy, Weak<LayerToken>)>>);

impl Limiter {
    /// Notes that a layer uses a policy, as long as its token lives.
    pub(crate) fn register_layer_policy(&self, policy: &Policy, layer: &Arc<LayerToken>) {
        let mut policies = self.inner.layer_policies.0.lock();
        policies.retain(|(_, layer)| layer.strong_count() > 0);
        policies.push((policy.clone(), Arc::downgrade(layer)));
    }

    /// Returns the policy of another layer that has the name of this policy and other limits.
    pub(crate) fn conflicting_layer_policy(&self, policy: &Policy) -> Option<Policy> {
        let policies = self.inner.layer_policies.0.lock();
        let conflicts =
            |other: &Policy| other.name() == policy.name() && other.algorithm() != policy.algorithm();
        policies
            .iter()
            .find(|(other, layer)| layer.strong_count() > 0 && conflicts(other))
            .map(|(other, _)| other.clone())
    }
}
