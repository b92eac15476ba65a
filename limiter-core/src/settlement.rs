//! Accounting after a decision: refunds, charges, and reservations that are settled with the actual
//! cost.

pub(crate) mod detached;
pub(crate) mod pending_grant;
mod reserve;
pub(crate) mod reserved_limit;

use crate::algorithm::UsageCorrection;
use crate::decision::Rejection;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::registry::policy_lookup::PolicyLookup;
use crate::request::{DecisionRequest, LimitRequest};
pub(crate) use crate::settlement::pending_grant::PendingGrant;
pub use crate::settlement::reserve::{Reservation, Settled};

impl Limiter {
    /// Returns the policy that currently applies to a key, if any. The lookup is not counted.
    pub(crate) fn in_force(&self, name: &str, key: &Key<'_>) -> Option<Policy> {
        let PolicyLookup { registry, app, .. } = &self.inner.names;
        let found = registry.find(name, app.as_deref(), key, &self.inner.clock).ok()?;
        let limit = LimitRequest::new(&found, key).with_defaults(&self.inner.defaults);
        Some(limit.policy().clone())
    }

    /// Applies a refund or an unconditional charge to the limits of a request.
    pub(crate) async fn apply_change(
        &self,
        request: &DecisionRequest<'_>,
        change: UsageCorrection,
    ) -> Result<(), Rejection> {
        Ok(self.inner.backend.change(request, change).await?)
    }

    /// Applies a refund or charge that is given in the units of the previous policy.
    pub(crate) async fn change_proportional(
        &self,
        request: &DecisionRequest<'_>,
        change: UsageCorrection,
    ) -> Result<(), Rejection> {
        Ok(self.inner.backend.change_in_proportion(request, change).await?)
    }
}

#[cfg(test)]
mod tests;
