//! The mode of a quota: the budget of a key is divided, or all calls are allowed or denied.

use limiter_core::{Amount, Key, Limiter, Policy, Rejection};

use crate::gateway::quota::messages::BlanketRule;

/// The treatment of the streams of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaMode {
    /// The budget is divided among the streams.
    Divided,
    /// Every stream has this rule: shadow mode and off allow all calls; a suspension, a block or a
    /// key list can deny all.
    Blanket(BlanketRule),
}

/// Returns the mode of a key, without a call to the store.
///
/// A check with a cost above the quota is decided by the mode, the key lists, the blocks and the
/// suspensions alone: an enforced limit rejects the cost before it reaches the store.
pub async fn mode_of(limiter: &Limiter, policy: &Policy, key: &Key<'static>) -> QuotaMode {
    let quota = u64::try_from(policy.quota().as_thousandths()).unwrap_or(u64::MAX);
    let above = Amount::from_thousandths(quota.saturating_add(1_000));
    match limiter.check(policy, key).cost(above).await {
        Ok(decision) if decision.is_allowed() => QuotaMode::Blanket(BlanketRule::AllowAll),
        Ok(_) | Err(Rejection::Forbidden { .. }) => QuotaMode::Blanket(BlanketRule::DenyAll),
        Err(_) => QuotaMode::Divided,
    }
}
