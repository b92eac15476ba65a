//! Calls that refund or charge without a decision.

use limiter_core::registry::OnUnknownPolicy;
use limiter_core::{Key, Limiter, Rejection};

use super::condition::Condition;

/// Calls that refund or charge without a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settling {
    Refund,
    Charge,
    NamedRefund,
    NamedCharge,
}

impl Settling {
    pub(crate) const ALL: &[Self] = &[Self::Refund, Self::Charge, Self::NamedRefund, Self::NamedCharge];

    pub(crate) fn applies_to(self, condition: &Condition) -> bool {
        match condition.on_unknown_policy {
            None => true,
            // The entry point returns an error.
            Some(OnUnknownPolicy::Deny) => false,
            Some(_) => matches!(self, Self::NamedRefund | Self::NamedCharge),
        }
    }

    pub(crate) fn is_refund(self) -> bool {
        matches!(self, Self::Refund | Self::NamedRefund)
    }

    pub(crate) async fn call(
        self,
        limits: &Limiter,
        condition: &Condition,
        key: &Key<'_>,
        cost: u64,
    ) -> Result<(), Rejection> {
        let policy = &condition.policy("p");
        match self {
            Self::Refund => limits.refund(policy, key).cost(cost).await,
            Self::Charge => limits.charge(policy, key).cost(cost).await,
            Self::NamedRefund => limits.named("p").refund(key).cost(cost).await,
            Self::NamedCharge => limits.named("p").charge(key).cost(cost).await,
        }
    }
}
