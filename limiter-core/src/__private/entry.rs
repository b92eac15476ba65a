//! One attribute's limit, for one call.

use crate::__private::{BuiltPolicy, ResolvedPolicies};
use crate::decision::Rejection;
use crate::error::ConfigError;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::LimitRequest;
use crate::units::Amount;

/// One attribute's limit, evaluated for one call.
#[derive(Debug)]
pub struct AnnotationEntry {
    pub(super) policy: EntryPolicy,
    pub(super) key: Key<'static>,
    pub(super) cost: Result<Amount, ConfigError>,
}

#[derive(Debug)]
pub(super) enum EntryPolicy {
    /// Every parameter is constant: built once.
    Fixed(&'static BuiltPolicy),
    /// Built for this call.
    Built(BuiltPolicy),
    /// Whatever the limiter has under that name.
    Named(&'static str),
    /// There is nothing to be asked any more: it is held already, or not configured and allowed.
    Nothing,
}

impl AnnotationEntry {
    /// A limit of one permit, of a policy that was built once.
    #[must_use]
    pub fn fixed(policy: &'static BuiltPolicy, key: Key<'static>) -> Self {
        Self {
            policy: EntryPolicy::Fixed(policy),
            key,
            cost: Ok(Amount::ONE),
        }
    }

    /// A limit of one permit, of a policy that was built for this call.
    #[must_use]
    pub fn built(policy: BuiltPolicy, key: Key<'static>) -> Self {
        Self {
            policy: EntryPolicy::Built(policy),
            key,
            cost: Ok(Amount::ONE),
        }
    }

    /// A limit of one permit, of the policy that the limiter has under a name.
    #[must_use]
    pub fn named(policy: &'static str, key: Key<'static>) -> Self {
        Self {
            policy: EntryPolicy::Named(policy),
            key,
            cost: Ok(Amount::ONE),
        }
    }

    /// The same with another cost.
    #[must_use]
    pub fn need(self, cost: Result<Amount, ConfigError>) -> Self {
        Self { cost, ..self }
    }

    /// Looks a policy up that is only named.
    pub(super) fn resolve(&mut self, limiter: &Limiter) -> Result<(), Rejection> {
        if let EntryPolicy::Named(name) = self.policy {
            self.policy = match limiter.resolve_call(name, &self.key)? {
                ResolvedPolicies::Policy(policy) => EntryPolicy::Built(Ok(policy)),
                ResolvedPolicies::Allowed(_) => EntryPolicy::Nothing,
            };
        }
        Ok(())
    }

    pub(super) fn has_request(&self) -> bool {
        !matches!(self.policy, EntryPolicy::Nothing)
    }

    /// What it costs, if it is asked for.
    pub(super) fn asked_cost(&self) -> Option<Amount> {
        self.cost.clone().ok().filter(|_| self.has_request())
    }

    pub(super) fn policy(&self) -> Result<&Policy, Rejection> {
        match &self.policy {
            EntryPolicy::Fixed(built) => built.as_ref(),
            EntryPolicy::Built(built) => built.as_ref(),
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

    pub(super) fn limit_request(&self) -> Result<LimitRequest<'_>, Rejection> {
        let policy = self.policy()?;
        let cost = self.cost.clone();
        let cost = cost.map_err(|error| error.for_policy(policy.name()))?;
        Ok(LimitRequest::new(policy, &self.key).cost(cost))
    }
}
