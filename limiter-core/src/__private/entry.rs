//! The limit of one attribute, for one call.
//!
//! The expansion creates one entry for each attribute: the policy (built once, built for this call,
//! or a name of the registry), the key and the cost. Before the decision, a name is replaced by the
//! policy of the registry. An entry without a request remains in its position, because the index of
//! an entry identifies its attribute. Tests: `tests/entry_points.rs`, and
//! `limiter-macros/tests/behaviour/named.rs`.

use crate::__private::{BuiltPolicy, ResolvedPolicies, never_waits};
use crate::decision::Rejection;
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::LimitRequest;
use crate::units::Amount;

/// One attribute's limit, evaluated for one call.
#[derive(Debug)]
pub struct AnnotationEntry<'a> {
    pub(super) policy: EntryPolicy,
    pub(super) key: Key<'a>,
    pub(super) cost: Result<Amount, ConfigError>,
}

#[derive(Debug)]
pub(super) enum EntryPolicy {
    /// All parameters are constant, so the policy is built once.
    Fixed(&'static BuiltPolicy),
    /// Built for this call.
    Built(BuiltPolicy),
    /// The policy that the limiter's registry has under this name.
    Named(&'static str),
    /// The policy that the registry had under the name of the attribute.
    Registered(Policy),
    /// No request remains: a permit is held already, or no policy is configured and the call is
    /// allowed.
    Nothing,
}

impl<'a> AnnotationEntry<'a> {
    /// Creates a limit of one permit under a policy that was built once.
    #[must_use]
    #[inline]
    pub fn fixed(policy: &'static BuiltPolicy, key: Key<'a>) -> Self {
        Self {
            policy: EntryPolicy::Fixed(policy),
            key,
            cost: Ok(Amount::ONE),
        }
    }

    /// Creates a limit of one permit under a policy that was built for this call.
    #[must_use]
    #[inline]
    pub fn built(policy: BuiltPolicy, key: Key<'a>) -> Self {
        Self {
            policy: EntryPolicy::Built(policy),
            key,
            cost: Ok(Amount::ONE),
        }
    }

    /// Creates a limit of one permit under the policy that the registry has under this name.
    #[must_use]
    #[inline]
    pub fn named(policy: &'static str, key: Key<'a>) -> Self {
        Self {
            policy: EntryPolicy::Named(policy),
            key,
            cost: Ok(Amount::ONE),
        }
    }

    /// Sets the cost.
    #[must_use]
    #[inline]
    pub fn need(self, cost: Result<Amount, ConfigError>) -> Self {
        Self { cost, ..self }
    }

    /// Returns the entry with its own key.
    pub(super) fn into_owned(self) -> AnnotationEntry<'static> {
        AnnotationEntry {
            policy: self.policy,
            key: self.key.into_owned(),
            cost: self.cost,
        }
    }

    /// Looks up a policy that is given by name.
    #[inline]
    pub(super) fn resolve(&mut self, limiter: &Limiter) -> Result<(), Rejection> {
        if let EntryPolicy::Named(name) = self.policy {
            self.policy = match limiter.resolve_call(name, &self.key)? {
                ResolvedPolicies::Policy(policy) => EntryPolicy::Registered(policy),
                ResolvedPolicies::Allowed(_) => EntryPolicy::Nothing,
            };
        }
        Ok(())
    }

    /// Returns whether the policy was looked up in the registry.
    pub(super) fn is_registered(&self) -> bool {
        matches!(self.policy, EntryPolicy::Registered(_))
    }

    pub(super) fn has_request(&self) -> bool {
        !matches!(self.policy, EntryPolicy::Nothing)
    }

    /// Returns the policy and the cost of a valid entry whose calls never wait.
    #[inline]
    pub(super) fn immediate(&self) -> Option<(&Policy, Amount)> {
        let policy = match &self.policy {
            EntryPolicy::Fixed(built) => built.as_ref().ok()?,
            EntryPolicy::Built(built) => built.as_ref().ok()?,
            EntryPolicy::Registered(policy) => policy,
            EntryPolicy::Named(_) | EntryPolicy::Nothing => return None,
        };
        never_waits(policy).then_some((policy, *self.cost.as_ref().ok()?))
    }

    /// Returns the cost, if the entry has a request. An invalid cost is not charged.
    pub(super) fn requested_cost(&self) -> Option<Amount> {
        let cost = self.cost.as_ref().copied();
        self.has_request().then(|| cost.unwrap_or(Amount::ZERO))
    }

    pub(super) fn policy(&self) -> Result<&Policy, Rejection> {
        match &self.policy {
            EntryPolicy::Fixed(built) => built.as_ref(),
            EntryPolicy::Built(built) => built.as_ref(),
            EntryPolicy::Registered(policy) => return Ok(policy),
            EntryPolicy::Named(name) => {
                let policy = (*name).to_owned();
                return Err(Rejection::NotConfigured { policy });
            }
            EntryPolicy::Nothing => {
                let policy = String::new();
                return Err(Rejection::NotConfigured { policy });
            }
        }
        .map_err(|error| error.clone().into())
    }

    /// Returns the request. An invalid cost is a part of it, because the mode of the limiter and of
    /// the policy determines whether the error rejects the call.
    pub(super) fn limit_request(&self) -> Result<LimitRequest<'_>, Rejection> {
        let mut request = LimitRequest::new(self.policy()?, &self.key);
        request.set_cost(self.cost.clone());
        Ok(request)
    }
}
