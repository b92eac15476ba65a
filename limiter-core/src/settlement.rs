//! Accounting after a decision: refunds, charges, and reservations that are settled with the actual
//! cost.

pub(crate) mod detached;
pub(crate) mod pending_grant;
mod reserve;
pub(crate) mod reserved_limit;

use crate::algorithm::UsageCorrection;
use crate::decision::Rejection;
use crate::limiter::Limiter;
use crate::request::DecisionRequest;
pub(crate) use crate::settlement::pending_grant::PendingGrant;
pub use crate::settlement::reserve::{Reservation, Settled};

impl Limiter {
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
