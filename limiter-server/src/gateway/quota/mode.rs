//! The mode of a quota: the budget of a key is divided, or all calls are allowed or denied.

use limiter_core::{Amount, Key, Limiter, Origin, Policy};

use crate::gateway::quota::messages::BlanketRule;

/// The treatment of the streams of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaMode {
    /// The budget is divided among the streams.
    Divided,
    /// The policy is in shadow mode. Every stream may allow all calls; the budget is divided to
    /// count the calls that the policy would deny.
    Shadow,
    /// Every stream has one rule, without a division.
    Blanket {
        /// The rule: off and allow lists allow all calls; suspensions in deny deny all; blocks and
        /// deny lists deny all, or allow all under a policy in shadow mode.
        rule: BlanketRule,
        /// The setting that determines the rule.
        origin: Origin,
        /// True if the policy would deny all calls, and is in shadow mode.
        would_deny: bool,
    },
}

impl QuotaMode {
    /// Returns the rule that the streams receive in place of a share.
    #[must_use]
    pub fn rule(self) -> Option<BlanketRule> {
        match self {
            Self::Divided => None,
            Self::Shadow => Some(BlanketRule::AllowAll),
            Self::Blanket { rule, .. } => Some(rule),
        }
    }

    /// Returns whether the budget is divided.
    #[must_use]
    pub fn is_divided(self) -> bool {
        matches!(self, Self::Divided | Self::Shadow)
    }
}

/// Returns the mode of a key, without a call to the store. The query is not counted.
///
/// A peek with a cost above the quota is decided by the mode, the key lists, the blocks and the
/// suspensions alone: an enforced limit rejects the cost before it reaches the store, and a limit
/// in shadow mode allows it as a call that it would deny.
pub async fn mode_of(limiter: &Limiter, policy: &Policy, key: &Key<'static>) -> QuotaMode {
    let quota = u64::try_from(policy.quota().as_thousandths()).unwrap_or(u64::MAX);
    let above = Amount::from_thousandths(quota.saturating_add(1_000));
    let Ok(decision) = limiter.peek(policy, key).cost(above).await else {
        return QuotaMode::Divided;
    };
    let (origin, would_deny) = (decision.origin(), decision.would_deny());
    if would_deny && !origin.is_independent_of_permits() {
        return QuotaMode::Shadow;
    }
    let rule = match decision.is_allowed() {
        true => BlanketRule::AllowAll,
        false => BlanketRule::DenyAll,
    };
    QuotaMode::Blanket {
        rule,
        origin,
        would_deny,
    }
}
