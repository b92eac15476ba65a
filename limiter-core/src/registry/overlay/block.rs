//! Blocks: keys that are denied under all policies.
//!
//! A block denies a key, a network or a part of keys without a change of the policies, for example
//! during an attack, for all apps or for one. It has the effect of an entry of `deny_keys` in each
//! policy. `check` validates a block before it is added or read from a text. Tests:
//! `tests/contract/overlays.rs`, `tests/registry/overlays.rs`.

use std::fmt;

use crate::error::ConfigError;
use crate::key::Key;
use crate::policy::{KeyList, check_text, is_network};
use crate::units::Timestamp;

/// The keys that a [`Block`] denies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BlockTarget {
    /// A key, or with `*` at its end all keys with this beginning, as in a
    /// [`KeyList`].
    Key(String),
    /// An address or a network, as in a [`KeyList`].
    Network(String),
    /// The keys that contain this name and this value as neighbouring parts: `tenant` and `acme`
    /// are parts of `tenant:acme` and of `tenant:acme:user:7`. Under a policy that declares the
    /// parts of its keys ([`PolicyEntry::with_key_parts`](crate::registry::PolicyEntry)), also the
    /// keys with this value in the part of this name: `acme:7` with the parts `tenant` and `user`.
    Part {
        /// The name, without `=`.
        name: String,
        /// The value.
        value: String,
    },
}

impl BlockTarget {
    /// Creates a target from `NAME=VALUE`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for a text without `=`, or with an empty name or value.
    pub fn part(text: &str) -> Result<Self, ConfigError> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok(Self::Part {
                name: name.to_owned(),
                value: value.to_owned(),
            }),
            _ => Err(ConfigError::invalid("part", text, "NAME=VALUE")),
        }
    }

    /// Returns the name of the field of this target in a text.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Key(_) => "key",
            Self::Network(_) => "network",
            Self::Part { .. } => "part",
        }
    }

    /// Returns the value of the field in a text.
    #[must_use]
    pub fn value(&self) -> String {
        match self {
            Self::Key(text) | Self::Network(text) => text.clone(),
            Self::Part { name, value } => format!("{name}={value}"),
        }
    }

    /// Returns the escaped parts of a key, joined as in the key.
    pub(super) fn escaped_part(name: &str, value: &str) -> String {
        Key::from(name).text(":").part(value).as_str().to_owned()
    }

    /// Returns the escaped parts of a key from a name and an escaped value.
    pub(super) fn joined(name: &str, escaped_value: &str) -> String {
        format!("{}:{escaped_value}", Key::from(name).as_str())
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match self {
            Self::Key(text) if text == "*" => Err(ConfigError::invalid(
                "key",
                text,
                "a key; use a suspension to deny all calls",
            )),
            Self::Key(text) => {
                check_text("key", text)?;
                KeyList::parse([text]).map(drop)
            }
            Self::Network(text) => {
                KeyList::parse([text])?;
                match is_network(text) {
                    true => Ok(()),
                    false => Err(ConfigError::invalid(
                        "network",
                        text,
                        "an address, or a network such as 10.0.0.0/8 or 2001:db8::/32",
                    )),
                }
            }
            // The first `=` of the text ends the name.
            Self::Part { name, .. } if name.contains('=') => {
                Err(ConfigError::invalid("name of a part", name, "a name without `=`"))
            }
            Self::Part { name, value } => {
                check_text("name of a part", name)?;
                check_text("value of a part", value)
            }
        }
    }
}

/// Formats as `key=ann`, `network=10.0.0.0/8` or `part=tenant=acme`.
impl fmt::Display for BlockTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.field(), self.value())
    }
}

/// Keys that are denied under all policies of a limiter, for all apps or for one. See
/// [`PolicyRegistry::block`](crate::registry::PolicyRegistry::block).
///
/// A block has the effect of an entry of [`deny_keys`](crate::PolicyBuilder::deny_keys) in each
/// policy: it takes precedence over allow lists, it only marks calls in shadow mode, and it does
/// not apply to policies that are off. The rejection is
/// [`Rejection::Forbidden`](crate::Rejection::Forbidden) with the origin
/// [`Block`](crate::Origin::Block).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    target: BlockTarget,
    app: Option<Box<str>>,
    until: Option<Timestamp>,
    by: Option<Box<str>>,
    reason: Option<Box<str>>,
}

impl Block {
    /// Creates a block for all apps and without an end.
    #[must_use]
    pub fn new(target: BlockTarget) -> Self {
        Self {
            target,
            app: None,
            until: None,
            by: None,
            reason: None,
        }
    }

    /// Restricts the block to limiters with this [app](crate::InProcessBuilder::app); in limiters
    /// of all apps (`*`), to the policies that belong to this app alone.
    #[must_use]
    pub fn for_app(self, app: impl Into<String>) -> Self {
        let app = Some(app.into().into());
        Self { app, ..self }
    }

    /// Sets the end, by the clock of each limiter. Accepts a
    /// [`SystemTime`](std::time::SystemTime).
    #[must_use]
    pub fn until(self, end: impl Into<Timestamp>) -> Self {
        let until = Some(end.into());
        Self { until, ..self }
    }

    /// Sets the author. Default: none.
    #[must_use]
    pub fn with_author(self, by: impl Into<String>) -> Self {
        let by = Some(by.into().into());
        Self { by, ..self }
    }

    /// Sets the reason. Default: none.
    #[must_use]
    pub fn with_reason(self, reason: impl Into<String>) -> Self {
        let reason = Some(reason.into().into());
        Self { reason, ..self }
    }

    /// Returns the keys.
    #[must_use]
    pub fn target(&self) -> &BlockTarget {
        &self.target
    }

    /// Returns the app; `None` for all.
    #[must_use]
    pub fn app(&self) -> Option<&str> {
        self.app.as_deref()
    }

    /// Returns the end, if any.
    #[must_use]
    pub fn end(&self) -> Option<Timestamp> {
        self.until
    }

    /// Returns the author, if set.
    #[must_use]
    pub fn author(&self) -> Option<&str> {
        self.by.as_deref()
    }

    /// Returns the reason, if set.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Returns whether the block has not ended.
    #[must_use]
    pub fn is_active_at(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Returns whether both blocks deny the same keys of the same apps.
    pub(crate) fn replaces(&self, other: &Self) -> bool {
        self.target == other.target && self.app == other.app
    }

    pub(super) fn ends_before(&self, other: &Self) -> bool {
        self.until
            .is_some_and(|until| other.until.is_none_or(|later| until < later))
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.target.check()?;
        self.app.as_deref().map_or(Ok(()), |app| check_text("app", app))
    }
}
