//! Configuration errors and store errors.
//!
//! `ConfigError` names the invalid value and the expected one, so that a program can be corrected
//! from the message alone. `StoreError` is the reason why a store made no decision.
//!
//! Invariant: a value from outside is shown in one line and truncated, so that it can neither forge
//! nor flood a log. Tests: `error/tests.rs`, and `tests/contract/input.rs`.

mod store;

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::fmt::Write as _;

pub use crate::error::store::{StoreError, StoreErrorKind};

/// An invalid value, its name, and the expected value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A required value is missing.
    Missing {
        /// The name of the missing value.
        field: &'static str,
    },
    /// A value is out of range or malformed.
    Invalid {
        /// The name of the value.
        field: &'static str,
        /// The value, as text.
        value: String,
        /// The accepted values.
        expected: String,
    },
    /// A policy cannot be built.
    Policy {
        /// The name of the policy.
        policy: String,
        /// The reason.
        error: Box<ConfigError>,
    },
    /// Several values are invalid.
    Several {
        /// One error for each value; at least two.
        errors: Vec<ConfigError>,
    },
    /// Limits of one decision are in different groups, so a cluster cannot decide them atomically.
    ///
    /// The error does not contain the groups: the default group is the key, and keys must not be
    /// logged.
    DifferentGroups {
        /// The name of the first limit's policy.
        first: String,
        /// The name of the policy whose limit is in another group.
        other: String,
    },
    /// One decision contains the same policy with the same key twice.
    RepeatedLimit {
        /// The policy's name.
        policy: String,
    },
    /// A global limiter is already installed.
    AlreadyInstalled,
    /// Annotated functions contradict each other, or one cannot be built; see
    /// [`verify_annotations`](crate::annotations::verify_annotations).
    Annotations {
        /// One line for each error, with file and line.
        errors: Vec<String>,
    },
}

/// The name of a policy's name in [`ConfigError::Invalid`].
pub(crate) const POLICY_NAME: &str = "policy name";

impl ConfigError {
    pub(crate) fn invalid(
        field: &'static str,
        value: impl fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self::Invalid {
            field,
            value: value.to_string(),
            expected: expected.into(),
        }
    }

    /// Returns one error for all of them; `None` if there is none.
    pub(crate) fn several(mut errors: Vec<Self>) -> Option<Self> {
        match errors.len() {
            0 | 1 => errors.pop(),
            _ => Some(Self::Several { errors }),
        }
    }

    /// Adds the name of the policy that cannot be built. An error about the name itself already
    /// contains it.
    pub(crate) fn of_policy(self, policy: &str) -> Self {
        match self {
            Self::Invalid {
                field: POLICY_NAME, ..
            } => self,
            error => Self::Policy {
                policy: policy.to_owned(),
                error: Box::new(error),
            },
        }
    }

    /// Returns the error without the name of the policy.
    #[cfg(feature = "registry")]
    pub(crate) fn without_policy(self) -> Self {
        match self {
            Self::Policy { error, .. } => *error,
            error => error,
        }
    }

    /// Adds the name of the policy of the call. Errors of the policy's own settings stay unchanged.
    #[must_use]
    pub(crate) fn for_policy(mut self, policy: &str) -> Self {
        if let Self::Invalid { expected, .. } = &mut self {
            *expected = format!("{expected}, for policy `{}`", Bounded(policy));
        }
        self
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { field } => write!(f, "{field} is missing"),
            Self::Invalid {
                field,
                value,
                expected,
            } => {
                write!(f, "{field} is `{}`, expected {expected}", Bounded(value))
            }
            Self::Policy { policy, error } => write!(f, "policy `{}`: {error}", Bounded(policy)),
            Self::Several { errors } => {
                // The text may be logged.
                const SHOWN: usize = 20;
                for (index, error) in errors.iter().take(SHOWN).enumerate() {
                    let separator = if index > 0 { "; " } else { "" };
                    write!(f, "{separator}{error}")?;
                }
                match errors.len().saturating_sub(SHOWN) {
                    0 => Ok(()),
                    more => write!(f, "; and {more} more errors"),
                }
            }
            Self::DifferentGroups { first, other } => write!(
                f,
                "limits decided together must share a group, and those of policies `{}` and `{}` do not: expected the same key, \
                 or the same group for all of them (`group = …` in every attribute, `Key::in_group` by hand), or a limiter \
                 that is `standalone_only()`",
                Bounded(first),
                Bounded(other)
            ),
            Self::RepeatedLimit { policy } => {
                write!(
                    f,
                    "policy `{}` occurs twice in one decision with the same key; pass each limit once",
                    Bounded(policy)
                )
            }
            Self::AlreadyInstalled => f.write_str("a limiter is already installed; call install once"),
            Self::Annotations { errors } => {
                match errors.len() {
                    1 => f.write_str("an annotated function cannot be used as written:")?,
                    many => write!(f, "{many} annotated functions cannot be used as written:")?,
                }
                errors.iter().try_for_each(|error| write!(f, "\n  {error}"))
            }
        }
    }
}

impl Error for ConfigError {}

/// Lets a conversion that cannot fail satisfy the bound of conversions that can.
impl From<Infallible> for ConfigError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Shows the beginning of a value in one line, so that hostile input can neither flood a log nor
/// forge its lines.
///
/// The bound applies to the bytes that are written: an escaped control character takes up to ten
/// bytes.
struct Bounded<'a>(&'a str);

impl fmt::Display for Bounded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_SHOWN_BYTES: usize = 240;
        let mut unused = MAX_SHOWN_BYTES;
        for character in self.0.chars() {
            let is_escaped = character.is_control();
            let bytes = match is_escaped {
                true => character.escape_default().len(),
                false => character.len_utf8(),
            };
            let Some(rest) = unused.checked_sub(bytes) else {
                return write!(f, "… ({} bytes)", self.0.len());
            };
            unused = rest;
            match is_escaped {
                true => write!(f, "{}", character.escape_default())?,
                false => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
