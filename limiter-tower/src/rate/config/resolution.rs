//! The limits of a request after the lookup of their policies.

use std::borrow::Cow;

use limiter_core::{Amount, ConfigError, Decision, Key, Policy};

/// One limit of a request, with its resolved policy.
pub(crate) struct ResolvedLimit<'a> {
    pub(crate) policy: Cow<'a, Policy>,
    pub(crate) key: Key<'a>,
    /// An invalid cost rejects the request, unless limits are not enforced.
    pub(crate) cost: &'a Result<Amount, ConfigError>,
    pub(super) keeps_cost: bool,
}

impl ResolvedLimit<'_> {
    /// Returns whether the policy was looked up in the registry.
    pub(crate) fn is_registered(&self) -> bool {
        matches!(self.policy, Cow::Owned(_))
    }
}

/// The result of the policy lookup.
pub(crate) enum Resolution<T> {
    Limits(T),
    /// No policy is configured for the request, and the limiter allows that; or the request is
    /// unlimited.
    Nothing(Decision),
}
