//! The policies of one request.

use std::borrow::Cow;

use limiter_core::__private::OneOrMany;
use limiter_core::Policy;

/// The policies by which a request is limited: one, or several that are charged together, or not at
/// all. Each is given, or named and looked up in the limiter's book.
///
/// ```
/// use limiter_core::Policy;
/// use limiter_tower::PolicySet;
///
/// let burst = Policy::token_bucket("burst").capacity(20).rate("10/s").build()?;
/// let one = PolicySet::from(&burst);
/// let of_the_book = PolicySet::from("pro");
/// let both = PolicySet::from([one.clone(), of_the_book]);
/// assert_ne!(both, one);
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a tier limits nothing unless it is answered"]
pub struct PolicySet {
    pub(crate) policies: OneOrMany<PolicyRef>,
}

/// A policy of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PolicyRef {
    /// Those that the layer was given.
    Layers,
    /// None, by mistake.
    Missing,
    Given(Policy),
    /// The one that stands under this name in the limiter's book.
    Named(Cow<'static, str>),
}

impl PolicyRef {
    /// The policy's name, where this says one.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Given(policy) => Some(policy.name()),
            Self::Named(name) => Some(name),
            Self::Layers | Self::Missing => None,
        }
    }
}

impl PolicyRef {
    /// The name that is looked up in the limiter's registry.
    pub(crate) fn registry_name(&self) -> Option<&str> {
        match self {
            Self::Named(name) => Some(name),
            Self::Given(_) | Self::Layers | Self::Missing => None,
        }
    }
}

impl PolicySet {
    /// No policies: the request is not limited, and not counted.
    pub fn unlimited() -> Self {
        Self {
            policies: OneOrMany::default(),
        }
    }

    fn one(policy: PolicyRef) -> Self {
        Self {
            policies: OneOrMany::One(policy),
        }
    }
}

impl From<Policy> for PolicySet {
    fn from(policy: Policy) -> Self {
        Self::one(PolicyRef::Given(policy))
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
        Self::one(PolicyRef::Named(Cow::Borrowed(name)))
    }
}

/// The policy of this name.
impl From<String> for PolicySet {
    fn from(name: String) -> Self {
        Self::one(PolicyRef::Named(Cow::Owned(name)))
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
    /// None at all is a mistake, and rejects the request as one: what is not limited is
    /// [`unlimited`](PolicySet::unlimited).
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut all = all.into_iter().peekable();
        if all.peek().is_none() {
            return Self::one(PolicyRef::Missing);
        }
        Self {
            policies: all.flat_map(|tier| tier.into().policies).collect(),
        }
    }
}
