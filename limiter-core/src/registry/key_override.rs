//! An override: the quota of one key.
//!
//! An override replaces the numbers of a policy for one key, for example for one customer, until
//! its end. All other settings are those of the registry's policy, so a change of the policy
//! applies to its overrides too. Tests: `tests/registry.rs`, `tests/contract/named.rs`,
//! `tests/registry/file.rs`.

use std::fmt;

use crate::key::Key;
use crate::policy::Policy;
use crate::units::Timestamp;

/// The quota of one key under a policy of a [`PolicyRegistry`](crate::registry::PolicyRegistry):
/// the policy's algorithm with other numbers. See
/// [`PolicyRegistry::set_override`](crate::registry::PolicyRegistry::set_override).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOverride {
    policy: Policy,
    key: Key<'static>,
    until: Option<Timestamp>,
}

impl KeyOverride {
    /// Gives a key the numbers of this policy instead of those of the registry's policy of the same
    /// name: a capacity and a rate, a limit and a window, or a maximum. All other settings
    /// (deadline, group, …) are those of the registry's policy. The override does not end unless
    /// [`until`](Self::until) sets an end.
    ///
    /// A colon in this key matches any colon in the key of a call, including one in a value that
    /// [`Key::part`] or an annotation has inserted: `user:2001:db8::7` matches the address under
    /// `key = "user:{ip}"`. An override whose key contains the colon as part of such a value takes
    /// precedence. Periods of a fixed window start as those of the registry's policy, unless the
    /// numbers are [aligned](crate::PolicyBuilder::aligned) themselves.
    ///
    /// A key with a group set by [`Key::in_group`] differs from the same key without one, unless
    /// the group is the policy's own.
    #[must_use]
    pub fn new<'a>(numbers: Policy, key: impl Into<Key<'a>>) -> Self {
        Self {
            policy: numbers,
            key: key.into().into_owned(),
            until: None,
        }
    }

    /// Sets the time at which the override ends, by the limiter's clock: a test's clock if it has
    /// one, else the system's. Accepts a [`SystemTime`](std::time::SystemTime).
    #[must_use]
    pub fn until(self, end: impl Into<Timestamp>) -> Self {
        Self {
            until: Some(end.into()),
            ..self
        }
    }

    /// Returns the policy that contains the numbers. Its other settings have no effect.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the name of the policy in the registry.
    #[must_use]
    pub fn policy_name(&self) -> &str {
        self.policy.name()
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &Key<'static> {
        &self.key
    }

    /// Returns the time at which the override ends, if any.
    #[must_use]
    pub fn end(&self) -> Option<Timestamp> {
        self.until
    }

    /// Returns whether its numbers are valid for a policy of this algorithm.
    pub(super) fn fits(&self, base: &Policy) -> bool {
        self.policy.algorithm().code() == base.algorithm().code()
    }

    /// Returns whether the override has not ended.
    pub(super) fn holds_at(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Returns the order in which overrides are listed.
    pub(super) fn order(&self) -> (&str, Option<&str>) {
        (self.key.as_str(), self.key.group(None))
    }
}

/// Formats as `ann of search (token bucket: 100, refilled at 50/s)`.
impl fmt::Display for KeyOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.key.as_str(), self.policy)
    }
}
