//! Suspensions: a temporary enforcement in place of the policies' own.
//!
//! An operator can switch limits off, observe them in shadow mode or deny all calls during an
//! incident, without a change of the policies. A suspension has a scope (all policies, an app, one
//! policy), a mode and always an end, so that it cannot be forgotten. Tests:
//! `tests/contract/overlays.rs`, `tests/registry/overlays.rs`.

use std::fmt;
use std::str::FromStr;

use crate::error::ConfigError;
use crate::policy::check_text;
use crate::units::Timestamp;

/// The policies to which a [`Suspension`] applies, as text `all`, `app:NAME` or `policy:NAME`.
///
/// If several suspensions apply to a call, the scope of the policy takes precedence, then the app,
/// then `all`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SuspensionScope {
    /// The policy of this name.
    Policy(String),
    /// All policies of limiters with this [app](crate::InProcessBuilder::app); in limiters of all
    /// apps (`*`), the policies that belong to this app alone.
    App(String),
    /// All policies.
    All,
}

impl SuspensionScope {
    /// Names are as long as those of policies and apps.
    fn check(&self) -> Result<(), ConfigError> {
        match self {
            Self::Policy(name) => check_text("policy of a suspension", name),
            Self::App(name) => check_text("app of a suspension", name),
            Self::All => Ok(()),
        }
    }

    /// Returns the position among the suspensions of a call; a lower one takes precedence.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Self::Policy(_) => 0,
            Self::App(_) => 1,
            Self::All => 2,
        }
    }

    pub(super) fn contains(&self, policy: &str, app: Option<&str>) -> bool {
        match self {
            Self::Policy(name) => name == policy,
            Self::App(name) => Some(&**name) == app,
            Self::All => true,
        }
    }
}

/// The text that [`FromStr`] reads.
impl fmt::Display for SuspensionScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(name) => write!(f, "policy:{name}"),
            Self::App(name) => write!(f, "app:{name}"),
            Self::All => f.write_str("all"),
        }
    }
}

/// `all`, `app:NAME` or `policy:NAME`.
impl FromStr for SuspensionScope {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let scope = match text.split_once(':') {
            None if text == "all" => Self::All,
            Some(("policy", name)) => Self::Policy(name.to_owned()),
            Some(("app", name)) => Self::App(name.to_owned()),
            _ => {
                let expected = "`all`, `app:NAME` or `policy:NAME`";
                return Err(ConfigError::invalid("scope", text, expected));
            }
        };
        scope.check().map(|()| scope)
    }
}

/// The enforcement of suspended policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SuspensionMode {
    /// As [`Enforcement::Off`](crate::Enforcement::Off): every call is allowed without a decision.
    Off,
    /// As [`Enforcement::Shadow`](crate::Enforcement::Shadow): calls are decided, and allowed.
    Shadow,
    /// Every call is denied without a decision, as
    /// [`Rejection::Forbidden`](crate::Rejection::Forbidden) with the origin
    /// [`Suspension`](crate::Origin::Suspension).
    Deny,
}

impl SuspensionMode {
    const ALL: [Self; 3] = [Self::Off, Self::Shadow, Self::Deny];

    const fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Shadow => "shadow",
            Self::Deny => "deny",
        }
    }
}

/// The word that [`FromStr`] reads.
impl fmt::Display for SuspensionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// `off`, `shadow` or `deny`.
impl FromStr for SuspensionMode {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        (Self::ALL.into_iter().find(|mode| mode.word() == text))
            .ok_or_else(|| ConfigError::invalid("enforcement", text, "`off`, `shadow` or `deny`"))
    }
}

/// A temporary enforcement of policies, until a time. See
/// [`PolicyRegistry::suspend`](crate::registry::PolicyRegistry::suspend).
///
/// The environment variable [`LIMITER_ENFORCEMENT`](crate::Enforcement::ENV) takes precedence over
/// suspensions: a limiter that was built with it ignores them. Suspensions take precedence over the
/// modes of policies and of limiters, over key lists and over blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    scope: SuspensionScope,
    mode: SuspensionMode,
    /// `None` for a suspension that has always been active.
    from: Option<Timestamp>,
    until: Timestamp,
    by: Option<Box<str>>,
    reason: Option<Box<str>>,
}

impl Suspension {
    /// Creates a suspension that ends at `until`, by the clock of each limiter: a test's clock if
    /// it has one, else the system's. Accepts a [`SystemTime`](std::time::SystemTime).
    #[must_use]
    pub fn new(scope: SuspensionScope, mode: SuspensionMode, until: impl Into<Timestamp>) -> Self {
        Self {
            scope,
            mode,
            from: None,
            until: until.into(),
            by: None,
            reason: None,
        }
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

    /// Sets the time from which the suspension is active. Default: it is active at once.
    #[must_use]
    pub fn with_start(self, from: impl Into<Timestamp>) -> Self {
        let from = Some(from.into());
        Self { from, ..self }
    }

    /// Replaces the end.
    #[must_use]
    pub fn with_end(self, until: impl Into<Timestamp>) -> Self {
        let until = until.into();
        Self { until, ..self }
    }

    /// Returns the policies to which it applies.
    #[must_use]
    pub fn scope(&self) -> &SuspensionScope {
        &self.scope
    }

    /// Returns the enforcement.
    #[must_use]
    pub fn mode(&self) -> SuspensionMode {
        self.mode
    }

    /// Returns the time from which the suspension is active, if it is planned.
    #[must_use]
    pub fn start(&self) -> Option<Timestamp> {
        self.from
    }

    /// Returns the end.
    #[must_use]
    pub fn end(&self) -> Timestamp {
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

    /// Returns whether the suspension has started and has not ended.
    #[must_use]
    pub fn is_active_at(&self, now: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= now) && !self.has_ended_at(now)
    }

    /// Returns whether the suspension has ended.
    #[must_use]
    pub fn has_ended_at(&self, now: Timestamp) -> bool {
        self.until <= now
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if let Some(from) = self.from.filter(|from| *from >= self.until) {
            let from = from.as_micros().to_string();
            return Err(ConfigError::invalid("from", from, "a time before `until`"));
        }
        self.scope.check()
    }
}
