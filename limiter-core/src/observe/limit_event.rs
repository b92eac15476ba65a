//! The outcome of one limit of a call, as the metrics and the usage of the fleet count it.

#[cfg(feature = "redis")]
use crate::usage_recorder::UsageOutcome;

/// The outcome of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitEvent {
    /// The cost fitted; it was charged unless the store did not decide.
    Allowed,
    /// The cost did not fit.
    Denied,
    /// A penalty blocks the key.
    Blocked,
    /// The call would have been denied or rejected, but the policy is in shadow mode.
    ShadowDenied,
    /// The cost fitted and was not charged, because another limit of the decision denied.
    Spared,
    /// No permit became available within the timeout.
    TimedOut,
    /// The request is invalid: a cost above the quota, an invalid cost or key.
    Invalid,
    /// There was no decision.
    Error,
}

#[cfg(feature = "redis")]
impl LimitEvent {
    /// Returns the outcome in the usage; `None` for a limit that another one spared.
    pub(super) fn usage(self) -> Option<UsageOutcome> {
        match self {
            Self::Allowed => Some(UsageOutcome::Allowed),
            Self::Denied | Self::Blocked | Self::TimedOut => Some(UsageOutcome::Denied),
            Self::ShadowDenied => Some(UsageOutcome::WouldDeny),
            Self::Invalid | Self::Error => Some(UsageOutcome::Failed),
            Self::Spared => None,
        }
    }
}
