//! Quotas of single keys.

use std::fmt;

use crate::key::Key;
use crate::policy::Policy;
use crate::units::Timestamp;

/// A key's own quota under a policy of a [`PolicyBook`](crate::PolicyBook): the same algorithm with other numbers.
/// See [`PolicyBook::set_override`](crate::PolicyBook::set_override).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    policy: Policy,
    key: Key<'static>,
    until: Option<Timestamp>,
}

impl Override {
    /// For this key the policy of the same name in the book has the numbers of this one: a capacity and a rate, a limit and a
    /// window, or a maximum. All else (deadline, group, …) is as in the book. For good, unless it is given an [end](Self::until).
    ///
    /// A key that is in a group by [`Key::in_group`] is another key than the same without one, unless it is the policy's own group.
    #[must_use]
    pub fn new<'a>(numbers: Policy, key: impl Into<Key<'a>>) -> Self {
        Self {
            policy: numbers,
            key: key.into().into_owned(),
            until: None,
        }
    }

    /// Ends at this moment of the limiter's clock: a test's where it has one, else the system's.
    #[must_use]
    pub fn until(self, end: Timestamp) -> Self {
        Self {
            until: Some(end),
            ..self
        }
    }

    /// Whose numbers it has. Its settings beside these mean nothing.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The name of the policy in the book.
    #[must_use]
    pub fn policy_name(&self) -> &str {
        self.policy.name()
    }

    /// Whose quota it is.
    #[must_use]
    pub fn key(&self) -> &Key<'static> {
        &self.key
    }

    /// When it ends, if it does.
    #[must_use]
    pub fn end(&self) -> Option<Timestamp> {
        self.until
    }

    /// Whether it has numbers for a policy of this algorithm.
    pub(super) fn fits(&self, base: &Policy) -> bool {
        self.policy.algorithm().code() == base.algorithm().code()
    }

    /// Whether it still counts.
    pub(super) fn holds_at(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// By what they are listed.
    pub(super) fn order(&self) -> (&str, Option<&str>) {
        (self.key.as_str(), self.key.group(None))
    }
}

/// `ann of search (token bucket: 100, refilled at 50/s)`.
impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.key.as_str(), self.policy)
    }
}
