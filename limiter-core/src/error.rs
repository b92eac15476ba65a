//! Configuration errors and store errors.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

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

    /// The error without the name of the policy.
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

/// The reason why a store made no decision.
///
/// [`kind`](Self::kind) distinguishes the cases. [`source`](Error::source) is the error of the
/// Redis client, if there is one.
#[derive(Clone)]
pub struct StoreError {
    kind: StoreErrorKind,
    detail: Arc<str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
    /// The error occurred before anything was sent.
    unsent: bool,
}

/// The cases of a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No reply within the deadline. The call may have been charged.
    Timeout,
    /// The connection could not be established, or it broke. A call that was sent may have been
    /// charged.
    Connection,
    /// The circuit breaker of the server is open, because recent calls received no reply. Nothing
    /// was sent or charged.
    CircuitOpen,
    /// Nothing was sent: after an outage, other replicas may not yet have reported the permits that
    /// they admitted, and this replica's share is used up. Nothing was charged.
    Reconciling,
    /// The maximum number of calls in flight to the server, or of waiting calls, is reached.
    /// Nothing was charged.
    Overloaded,
    /// The server rejected the call (busy, out of memory, read-only, no permission, …) before
    /// anything was charged.
    Refused,
    /// The key contains a value of another type. The value was not changed.
    WrongType,
    /// The key contains a value of another layout (a newer version, or foreign data). The value was
    /// not changed.
    UnknownLayout,
    /// The reply does not have the format of the script's replies.
    Protocol,
    /// The in-process store contains its maximum number of keys.
    Full,
    /// No limiter is installed, in a release build.
    NotInstalled,
    /// The limiter was shut down.
    ShutDown,
}

impl StoreError {
    pub(crate) fn new(kind: StoreErrorKind, detail: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            source: None,
            unsent: false,
        }
    }

    /// Marks the error as one that occurred before anything was sent.
    #[cfg(feature = "redis")]
    pub(crate) fn unsent(mut self) -> Self {
        self.unsent = true;
        self
    }

    /// Returns whether the error proves that no permits were taken or returned. A proxy's error
    /// about a server's reply proves nothing.
    #[cfg(feature = "redis")]
    pub(crate) fn has_changed_nothing(&self) -> bool {
        use StoreErrorKind::{CircuitOpen, Overloaded, Reconciling, UnknownLayout, WrongType};
        let never_charges = matches!(
            self.kind,
            CircuitOpen | Reconciling | Overloaded | WrongType | UnknownLayout
        );
        self.unsent || never_charges
    }

    #[cfg(feature = "redis")]
    pub(crate) fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Formats the error with its causes, in one line for a log.
    pub(crate) fn with_causes(&self) -> impl fmt::Display {
        let (mut text, mut cause) = (self.detail.to_string(), self.source());
        while let Some(error) = cause {
            let cause_text = error.to_string();
            // Some errors contain the text of their cause.
            if !text.ends_with(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            cause = error.source();
        }
        text
    }

    /// Moves the causes into the error's text, for callers that show only the text.
    #[cfg(feature = "redis")]
    pub(crate) fn in_one_line(self) -> Self {
        let detail = self.with_causes().to_string().into();
        Self {
            detail,
            source: None,
            ..self
        }
    }

    /// Returns whether the call may have been charged although no reply arrived.
    #[must_use]
    pub fn may_have_been_charged(&self) -> bool {
        let may_have_run = matches!(
            self.kind,
            StoreErrorKind::Timeout | StoreErrorKind::Connection | StoreErrorKind::Protocol
        );
        may_have_run && !self.unsent
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreError")
            .field("kind", &self.kind)
            .field("detail", &self.detail)
            .field("source", &self.source)
            .finish()
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use crate::error::*;

    #[test]
    fn repeated_cause_is_formatted_once() {
        let refused = || std::io::Error::other("connection refused");
        let text = |detail: &str| {
            let error = StoreError::new(StoreErrorKind::Connection, detail).with_source(refused());
            error.with_causes().to_string()
        };
        assert_eq!(text("cannot connect"), "cannot connect: connection refused");
        assert_eq!(
            text("cannot connect: connection refused"),
            "cannot connect: connection refused"
        );
    }

    #[test]
    fn long_or_escaped_value_is_truncated() {
        let error = ConfigError::invalid("key", "x".repeat(100_000), "fewer bytes");
        assert!(error.to_string().len() < 300);
        assert!(error.to_string().contains("100000 bytes"));
        let error = ConfigError::invalid("amount", "1\nERROR forged\u{1b}[0m", "a number");
        assert_eq!(
            error.to_string(),
            r"amount is `1\nERROR forged\u{1b}[0m`, expected a number"
        );
    }

    #[test]
    fn shown_value_is_bounded_in_written_bytes() {
        for character in ['x', '\u{1b}', '\n', '\u{9f}', 'é', '€', '🦀'] {
            let text = character.to_string().repeat(256);
            let shown = Bounded(&text).to_string();
            let (beginning, rest) = shown.split_once('…').unwrap();
            assert!((231..=240).contains(&beginning.len()), "{shown}");
            assert_eq!(rest, format!(" ({} bytes)", text.len()));
            assert!(!shown.contains(char::is_control));
        }
        let whole = "€".repeat(80);
        assert_eq!(Bounded(&whole).to_string(), whole);
        assert_eq!(Bounded("").to_string(), "");
    }

    #[test]
    fn error_of_a_policy_with_a_long_escaped_name_is_bounded() {
        let name = "\u{1b}".repeat(256);
        let error = ConfigError::invalid("capacity", "\n".repeat(100_000), "a number");
        let error = error.for_policy(&name).of_policy(&name);
        assert!(error.to_string().len() < 1_000);
        let repeated = ConfigError::RepeatedLimit { policy: name.clone() };
        assert!(repeated.to_string().len() < 400);
        let groups = ConfigError::DifferentGroups {
            first: name.clone(),
            other: name.clone(),
        };
        assert!(groups.to_string().len() < 1_000);
    }
}
