//! Finds errors in a layer's configuration before the first request.
//!
//! [`Verification::verify`] returns them; a layer that was not verified logs them when it wraps a
//! service. Tests: `tests/verify.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use limiter_core::__private::{
    LayerToken, conflicting_layer_policy, is_concurrency, names_missing_policy, register_layer_policy,
    verify_key_lists, warn_of_unmatchable_entries,
};
use limiter_core::{ConfigError, Limiter, Policy};

use super::LayerConfig;
use crate::request_limits::RequestedPolicy;

/// The kind of policies that a layer can apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyKind {
    Rate,
    Concurrency,
}

/// The state of a layer's verification. Clones of the layer share it.
#[derive(Debug)]
pub(crate) struct Verification {
    kind: PolicyKind,
    /// Keeps the layer's policies registered with the limiter.
    #[expect(dead_code, reason = "its lifetime is its purpose")]
    token: Arc<LayerToken>,
    has_logged: AtomicBool,
}

impl PolicyKind {
    pub(crate) const fn layer(self) -> &'static str {
        match self {
            Self::Rate => "RateLimitLayer",
            Self::Concurrency => "ConcurrencyLimitLayer",
        }
    }

    /// Fails if a layer of this kind cannot apply the policy.
    pub(crate) fn check(self, policy: &Policy) -> Result<(), ConfigError> {
        let is_concurrency = is_concurrency(policy);
        let expected = match self {
            Self::Rate if is_concurrency => {
                "a policy of a rate, or a `ConcurrencyLimitLayer` for this policy"
            }
            Self::Concurrency if !is_concurrency => {
                "a policy of concurrency, or a `RateLimitLayer` for this policy"
            }
            Self::Rate | Self::Concurrency => return Ok(()),
        };
        Err(invalid("policy of a layer", policy.name(), expected))
    }
}

impl Verification {
    pub(crate) fn new(kind: PolicyKind, limiter: &Limiter, policies: &[RequestedPolicy]) -> Self {
        let token = Arc::default();
        for which in policies {
            if let RequestedPolicy::Given(policy) = which {
                register_layer_policy(limiter, policy, &token);
            }
        }
        Self {
            kind,
            token,
            has_logged: AtomicBool::new(false),
        }
    }

    /// Fails if a layer with these policies could not decide requests.
    pub(crate) fn verify(&self, limiter: &Limiter, policies: &[RequestedPolicy]) -> Result<(), ConfigError> {
        self.verify_policies(limiter, policies)?;
        for name in policies.iter().filter_map(RequestedPolicy::registry_name) {
            if names_missing_policy(limiter, name) {
                let expected =
                    "the name of a policy in the limiter's registry, loaded before the layer is verified";
                return Err(invalid("name of a layer's policy", name, expected));
            }
            if let Some(entry) = limiter.registry().get(name) {
                self.kind.check(entry.policy())?;
            }
        }
        Ok(())
    }

    /// As [`verify`](Self::verify), without the names: a policy may still be added to the registry.
    pub(crate) fn verify_policies(
        &self,
        limiter: &Limiter,
        policies: &[RequestedPolicy],
    ) -> Result<(), ConfigError> {
        if self.kind == PolicyKind::Concurrency && policies.len() > 1 {
            return Err(invalid(
                "number of policies of a layer",
                policies.len(),
                "1: nest one `ConcurrencyLimitLayer` for each policy of concurrency",
            ));
        }
        for which in policies {
            match which {
                RequestedPolicy::Given(policy) => {
                    self.kind.check(policy)?;
                    verify_name(limiter, policy)?;
                }
                RequestedPolicy::Missing => {
                    return Err(invalid(
                        "number of policies of a layer",
                        0,
                        "at least 1, or `PolicySet::unlimited()`",
                    ));
                }
                RequestedPolicy::Named(_) | RequestedPolicy::Layers => {}
            }
        }
        Ok(())
    }

    /// Logs an error once for all clones of a layer.
    pub(crate) fn log(&self, layer: &'static str, verified: Result<(), ConfigError>) {
        if let Err(error) = verified {
            if !self.has_logged.swap(true, Ordering::Relaxed) {
                tracing::error!(layer, %error, "a layer is misconfigured");
            }
        }
    }
}

impl LayerConfig {
    /// Fails if requests could not be decided as configured.
    pub(crate) fn verify(&self) -> Result<(), ConfigError> {
        self.cost.clone()?;
        self.verification.verify(&self.limiter, &self.policies)?;
        let Some(prefixes) = self.prefixes else {
            return Ok(());
        };
        for which in self.policies.iter() {
            if let RequestedPolicy::Given(policy) = which {
                verify_key_lists(policy, prefixes.lengths())?;
            }
            if let Some(entry) = which
                .registry_name()
                .and_then(|name| self.limiter.registry().get(name))
            {
                verify_key_lists(entry.policy(), prefixes.lengths())?;
            }
        }
        Ok(())
    }

    /// Logs an error that [`verify`](Self::verify) would return, except for missing names.
    pub(crate) fn log_errors(&self) {
        let given = |()| self.verification.verify_policies(&self.limiter, &self.policies);
        let verified = self.cost.clone().map(drop).and_then(given);
        self.verification.log(self.verification.kind.layer(), verified);
        if let Some(prefixes) = self.prefixes {
            let given = self.policies.iter().filter_map(|which| match which {
                RequestedPolicy::Given(policy) => Some(policy),
                _ => None,
            });
            given.for_each(|policy| warn_of_unmatchable_entries(policy, prefixes.lengths()));
        }
    }
}

/// Fails if another layer of the limiter uses the policy's name for other limits: both would share
/// one budget.
fn verify_name(limiter: &Limiter, policy: &Policy) -> Result<(), ConfigError> {
    match conflicting_layer_policy(limiter, policy) {
        None => Ok(()),
        Some(other) => Err(invalid(
            "policy of a layer",
            policy,
            &format!("another name, or the limits of the other layer's policy of this name ({other})"),
        )),
    }
}

fn invalid(subject: &'static str, value: impl ToString, expected: &str) -> ConfigError {
    ConfigError::Invalid {
        field: subject,
        value: value.to_string(),
        expected: expected.to_owned(),
    }
}
