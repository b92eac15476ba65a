//! Sets of policies that are decided together.
//!
//! A request can have one policy or several, each given as a value or as a name in the registry. A
//! [`PolicySet`] stores one policy inline and several in a list. Names are resolved for each
//! request, so a change of the registry applies to the next request.
//!
//! Invariant: an empty list is an error and not an unlimited request. Tests:
//! `tests/decisions/request_limits.rs`, `tests/verify.rs`.

use std::borrow::Cow;

use limiter_core::__private::OneOrMany;
use limiter_core::Policy;

/// One or more policies that limit a request. Either all of them are charged or none. Each is a
/// policy or the name of one in the limiter's registry.
///
/// ```
/// use limiter_core::Policy;
/// use limiter_tower::PolicySet;
///
/// let burst = Policy::token_bucket("burst").capacity(20).rate("10/s").build()?;
/// let one = PolicySet::from(&burst);
/// let from_registry = PolicySet::from("pro");
/// let both = PolicySet::from([one.clone(), from_registry]);
/// assert_ne!(both, one);
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a policy set has no effect unless it is passed to a layer or returned from a closure"]
pub struct PolicySet {
    pub(crate) policies: OneOrMany<RequestedPolicy>,
}

/// A policy of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestedPolicy {
    /// The layer's policies.
    Layers,
    /// An empty list, which is an error.
    Missing,
    Given(Policy),
    /// The policy of this name in the limiter's registry.
    Named(Cow<'static, str>),
}

impl RequestedPolicy {
    /// Returns the policy's name.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Given(policy) => Some(policy.name()),
            Self::Named(name) => Some(name),
            Self::Layers | Self::Missing => None,
        }
    }
}

impl RequestedPolicy {
    /// Returns the name that is looked up in the limiter's registry.
    pub(crate) fn registry_name(&self) -> Option<&str> {
        match self {
            Self::Named(name) => Some(name),
            Self::Given(_) | Self::Layers | Self::Missing => None,
        }
    }
}

impl PolicySet {
    /// Creates an empty set: the request is neither limited nor counted.
    pub fn unlimited() -> Self {
        Self {
            policies: OneOrMany::default(),
        }
    }

    fn single(policy: RequestedPolicy) -> Self {
        Self {
            policies: OneOrMany::One(policy),
        }
    }
}

impl From<Policy> for PolicySet {
    fn from(policy: Policy) -> Self {
        Self::single(RequestedPolicy::Given(policy))
    }
}

impl From<&Policy> for PolicySet {
    fn from(policy: &Policy) -> Self {
        policy.clone().into()
    }
}

/// The policy of this name.
impl From<&'static str> for PolicySet {
    fn from(name: &'static str) -> Self {
        Self::single(RequestedPolicy::Named(Cow::Borrowed(name)))
    }
}

/// The policy of this name.
impl From<String> for PolicySet {
    fn from(name: String) -> Self {
        Self::single(RequestedPolicy::Named(Cow::Owned(name)))
    }
}

impl<T: Into<PolicySet>, const N: usize> From<[T; N]> for PolicySet {
    fn from(all: [T; N]) -> Self {
        all.into_iter().collect()
    }
}

impl<T: Into<PolicySet>> From<Vec<T>> for PolicySet {
    fn from(all: Vec<T>) -> Self {
        all.into_iter().collect()
    }
}

impl<T: Into<PolicySet>> FromIterator<T> for PolicySet {
    /// An empty iterator is an error and rejects the request. Use
    /// [`unlimited`](PolicySet::unlimited) for a request without limits.
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut all = all.into_iter().peekable();
        if all.peek().is_none() {
            return Self::single(RequestedPolicy::Missing);
        }
        Self {
            policies: all.flat_map(|set| set.into().policies).collect(),
        }
    }
}
