//! The lookup of policies by name in the limiter's registry.
//!
//! A call that names its policy is resolved here to the policy for its app and key, or, for an
//! unknown name, to the limiter's `OnUnknownPolicy`: an allowed call without limits, or a
//! rejection. Each failed lookup is counted in the registry, and a call without a policy also in
//! the metrics. A call that waits follows the registry: when a policy is replaced, the call leaves
//! its queue and waits under the replacement. The module also contains the limiter's access to its
//! registry, local and in Redis. Tests: `tests/contract/named.rs`, `tests/registry.rs`.

use smallvec::SmallVec;

use crate::decision::{Decision, DecisionFlags, Origin, Rejection};
#[cfg(all(feature = "registry", feature = "redis"))]
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::observe;
use crate::observe::LimitEvent;
use crate::policy::{Enforcement, Policy};
use crate::registry::policy_lookup::PolicyLookup;
use crate::registry::{OnUnknownPolicy, PolicyRegistry, SharedRegistry};
use crate::request::LimitRequest;

/// The result of the lookup of a policy name.
#[derive(Debug)]
pub enum ResolvedPolicies<P = Policy> {
    /// The policy of this name in the registry.
    Policy(P),
    /// The registry has no such policy, and the limiter allows the call without limits.
    Allowed(Decision),
}

/// The limits of a call whose policies were looked up in the registry, by their positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisteredLimits(u16);

impl RegisteredLimits {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const FIRST: Self = Self(1);

    /// Returns whether there are none.
    pub(crate) fn is_empty(self) -> bool {
        self == Self::NONE
    }

    pub(crate) fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    fn contains(self, position: usize) -> bool {
        let position = u32::try_from(position).unwrap_or(u32::MAX);
        self.0 & 1_u16.checked_shl(position).unwrap_or(0) != 0
    }
}

/// From one flag for each limit. A decision has at most 16 limits.
impl FromIterator<bool> for RegisteredLimits {
    fn from_iter<I: IntoIterator<Item = bool>>(are_registered: I) -> Self {
        let flags = are_registered.into_iter().take(16).enumerate();
        Self(flags.fold(0, |bits, (position, is_registered)| {
            bits | u16::from(is_registered) << position
        }))
    }
}

impl Limiter {
    /// Returns the registry in which policies are looked up by name.
    #[must_use]
    pub fn registry(&self) -> &PolicyRegistry {
        &self.inner.names.registry
    }

    /// Returns access to single policies where all replicas of this limiter share them: in the
    /// registry of the namespace in Redis (feature `registry`), or in the limiter's own
    /// [registry](Self::registry).
    #[must_use]
    pub fn shared_registry(&self) -> SharedRegistry {
        let limiter = self.clone();
        SharedRegistry::new(
            self.inner.names.clone(),
            self.inner.clock.clone(),
            move || limiter.open(),
            #[cfg(all(feature = "registry", feature = "redis"))]
            self.redis_registry().ok(),
        )
    }

    /// Returns the registry of the namespace in Redis, to subscribe the limiter's own
    /// [registry](Self::registry) to it and to publish changes.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for an in-process limiter.
    #[cfg(all(feature = "registry", feature = "redis"))]
    pub fn redis_registry(&self) -> Result<crate::registry::RedisRegistry, ConfigError> {
        let Some((store, subscribers)) = self.inner.backend.registry_store() else {
            let expected = "a limiter whose state lives in Redis";
            return Err(ConfigError::invalid("limiter", "in process", expected));
        };
        Ok(crate::registry::RedisRegistry::new(
            store,
            subscribers,
            self.registry().clone(),
            self.inner.names.app.clone(),
        ))
    }

    /// Returns the policy of this name that currently applies to a key, for a decision together
    /// with other limits ([`check_all`](Self::check_all)) or for display. The returned policy does
    /// not follow later changes of the registry.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::registry::PolicyRegistry;
    /// use limiter_core::{Limiter, Policy};
    ///
    /// let burst = Policy::token_bucket("burst").capacity(5).rate(1).build()?;
    /// let daily = Policy::sliding_window("daily").limit(2).window("1d").build()?;
    /// let limits = Limiter::in_process().registry(&PolicyRegistry::new().with(daily)).build();
    ///
    /// let daily = limits.policy("daily", "ann")?;
    /// limits.check_all([(&burst, "ann"), (&daily, "ann")]).cost(2).await?.require()?;
    /// assert!(limits.policy("weekly", "ann").is_err());
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejection::NotConfigured`] when the registry contains no such policy for this app,
    /// regardless of [`OnUnknownPolicy`]. The lookup is counted as an unresolved call.
    pub fn policy<'a>(&self, name: &str, key: impl Into<Key<'a>>) -> Result<Policy, Rejection> {
        self.find(name, &key.into()).ok_or_else(|| not_configured(name))
    }

    /// Looks up a policy and counts a failure.
    fn find(&self, name: &str, key: &Key<'_>) -> Option<Policy> {
        let PolicyLookup { registry, app, .. } = &self.inner.names;
        let clock = &self.inner.clock;
        let found = registry.find(name, app.as_deref(), key, clock);
        found
            .inspect_err(|miss| registry.miss(name, app.as_deref(), *miss, clock))
            .ok()
    }

    /// Looks up the policy of a call. A call without a policy is counted by its result.
    pub(crate) fn resolve_call(&self, name: &str, key: &Key<'_>) -> Result<ResolvedPolicies, Rejection> {
        let resolved = self.resolve(name, key);
        match &resolved {
            Ok(ResolvedPolicies::Allowed(decision)) => observe::unconfigured(match decision.would_deny() {
                true => LimitEvent::ShadowDenied,
                false => LimitEvent::Allowed,
            }),
            Err(Rejection::NotConfigured { .. }) => observe::unconfigured(LimitEvent::Error),
            _ => {}
        }
        resolved
    }

    /// Looks up the policy of an operation that is not counted as a call.
    pub(crate) fn resolve(&self, name: &str, key: &Key<'_>) -> Result<ResolvedPolicies, Rejection> {
        self.resolved(name, self.find(name, key))
    }

    /// Returns the policies of requests, in the form in which [`replaced`](Self::replaced) compares
    /// them.
    pub(crate) fn policies_of(&self, requests: &[LimitRequest<'_>]) -> SmallVec<[Policy; 1]> {
        let requests = requests.iter().map(LimitRequest::borrowed);
        requests
            .map(|request| request.with_defaults(&self.inner.defaults).policy().clone())
            .collect()
    }

    /// Waits until the registry has other policies for requests that were made under these, and
    /// returns them. A policy that was removed stays in force for calls that wait under it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn replaced(
        &self,
        requests: &[LimitRequest<'_>],
        registered: RegisteredLimits,
        policies: &[Policy],
    ) -> SmallVec<[Policy; 1]> {
        let registry = self.registry();
        // Read before the policies: a later change ends the wait.
        let mut revision = registry.revision();
        loop {
            let limits = requests.iter().zip(policies).enumerate();
            let current = limits.map(|(position, (request, policy))| {
                let found = registered.contains(position);
                let found = found
                    .then(|| self.in_force(policy.name(), request.key()))
                    .flatten();
                found.unwrap_or_else(|| policy.clone())
            });
            let current: SmallVec<[Policy; 1]> = current.collect();
            if *current != *policies {
                return current;
            }
            revision = registry.changed(revision).await;
        }
    }

    /// Looks up the policy of a call again. [`resolve_call`](Self::resolve_call) has counted it.
    pub(crate) fn resolve_again(&self, name: &str, key: &Key<'_>) -> Result<ResolvedPolicies, Rejection> {
        self.resolved(name, self.in_force(name, key))
    }

    fn resolved(&self, name: &str, found: Option<Policy>) -> Result<ResolvedPolicies, Rejection> {
        if let Some(policy) = found {
            // After a shutdown, the mode of the policy determines whether the call is rejected.
            return Ok(ResolvedPolicies::Policy(policy));
        }
        if self.enforcement() == Enforcement::Enforce {
            self.open()?;
        }
        let decision = Decision::without_query(Origin::NotConfigured, self.inner.clock.now());
        match (self.inner.names.on_unknown_policy, self.enforcement()) {
            (OnUnknownPolicy::Deny, Enforcement::Enforce) => Err(not_configured(name)),
            (OnUnknownPolicy::Deny, Enforcement::Shadow) => {
                let flags = decision.flags.and(DecisionFlags::WOULD_DENY);
                Ok(ResolvedPolicies::Allowed(Decision { flags, ..decision }))
            }
            (OnUnknownPolicy::Deny, Enforcement::Off) | (OnUnknownPolicy::Allow, _) => {
                Ok(ResolvedPolicies::Allowed(decision))
            }
        }
    }
}

fn not_configured(name: &str) -> Rejection {
    let policy = name.to_owned();
    Rejection::NotConfigured { policy }
}
