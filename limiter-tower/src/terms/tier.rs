//! The policies of one request.

use std::borrow::Cow;

use limiter_core::__private::OneOrMany;
use limiter_core::Policy;

/// The policies by which a request is limited: one, or several that are charged together, or not at all. Each is given, or named
/// and looked up in the limiter's book.
///
/// ```
/// use limiter_core::Policy;
/// use limiter_tower::Tier;
///
/// let burst = Policy::token_bucket("burst").capacity(20).rate("10/s").build()?;
/// let one = Tier::from(&burst);
/// let of_the_book = Tier::from("pro");
/// let both = Tier::from([one.clone(), of_the_book]);
/// assert_ne!(both, one);
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a tier limits nothing unless it is answered"]
pub struct Tier {
    pub(crate) policies: OneOrMany<Which>,
}

/// A policy of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Those that the layer was given.
    Layers,
    /// None, by mistake.
    Missing,
    Given(Policy),
    /// The one that stands under this name in the limiter's book.
    Named(Cow<'static, str>),
}

impl Which {
    /// The policy's name, where this says one.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Given(policy) => Some(policy.name()),
            Self::Named(name) => Some(name),
            Self::Layers | Self::Missing => None,
        }
    }
}

impl Which {
    /// The name that is looked up in the limiter's registry.
    pub(crate) fn registry_name(&self) -> Option<&str> {
        match self {
            Self::Named(name) => Some(name),
            Self::Given(_) | Self::Layers | Self::Missing => None,
        }
    }
}

impl Tier {
    /// No policies: the request is not limited, and not counted.
    pub fn unlimited() -> Self {
        Self {
            policies: OneOrMany::default(),
        }
    }

    fn one(policy: Which) -> Self {
        Self {
            policies: OneOrMany::One(policy),
        }
    }
}

impl From<Policy> for Tier {
    fn from(policy: Policy) -> Self {
        Self::one(Which::Given(policy))
    }
}

impl From<&Policy> for Tier {
    fn from(policy: &Policy) -> Self {
        policy.clone().into()
    }
}

/// The policy of this name.
impl From<&'static str> for Tier {
    fn from(name: &'static str) -> Self {
        Self::one(Which::Named(Cow::Borrowed(name)))
    }
}

/// The policy of this name.
impl From<String> for Tier {
    fn from(name: String) -> Self {
        Self::one(Which::Named(Cow::Owned(name)))
    }
}

impl<T: Into<Tier>, const N: usize> From<[T; N]> for Tier {
    fn from(all: [T; N]) -> Self {
        all.into_iter().collect()
    }
}

impl<T: Into<Tier>> From<Vec<T>> for Tier {
    fn from(all: Vec<T>) -> Self {
        all.into_iter().collect()
    }
}

impl<T: Into<Tier>> FromIterator<T> for Tier {
    /// None at all is a mistake, and rejects the request as one: what is not limited is [`unlimited`](Tier::unlimited).
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut all = all.into_iter().peekable();
        if all.peek().is_none() {
            return Self::one(Which::Missing);
        }
        Self {
            policies: all.flat_map(|tier| tier.into().policies).collect(),
        }
    }
}
