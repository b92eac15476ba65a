//! Enforcement of decisions: enforced, shadow, off.
//!
//! A policy and a limiter each have a mode, and the looser one applies; hence the order of the
//! variants. A limiter reads its initial mode from the environment variable `LIMITER_ENFORCEMENT`
//! unless its builder sets one. Tests: below, and `tests/contract/enforcement.rs`.

use std::fmt;
use std::str::FromStr;

use crate::error::ConfigError;

/// The enforcement of the decisions of a policy or of a limiter.
///
/// A policy has one ([`PolicyBuilder::enforcement`](crate::PolicyBuilder::enforcement)), and so has
/// a limiter ([`Limiter::set_enforcement`](crate::Limiter::set_enforcement)); the looser of the two
/// applies: `Off` before `Shadow` before `Enforce`. A change takes effect on the next call.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use limiter_core::{Enforcement, Limiter, ManualClock, Origin, Policy};
///
/// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
/// let search = Policy::token_bucket("search")
///     .capacity(1)
///     .rate("1/min")
///     .enforcement(Enforcement::Shadow)
///     .build()?;
///
/// assert!(!limits.check(&search, "ann").await?.would_deny());
/// let second = limits.check(&search, "ann").await?;
/// assert!(second.is_allowed() && second.would_deny());
///
/// limits.set_enforcement(Enforcement::Off);
/// let third = limits.check(&search, "ann").await?;
/// assert!(third.is_allowed() && !third.would_deny());
/// assert_eq!(third.origin(), Origin::Off);
/// # Ok::<(), limiter_core::Rejection>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Enforcement {
    /// Denials are enforced. The default.
    #[default]
    Enforce,
    /// Calls are decided and charged as usual, but every call is allowed;
    /// [`Decision::would_deny`](crate::Decision::would_deny) marks calls that would be denied. No
    /// call waits, and other causes of a rejection (a cost above the quota, an unavailable store)
    /// are reported in the same way.
    ///
    /// Shadow limits do not affect enforced limits of the same decision: the enforced limits are
    /// decided first, and only a call that they allow is decided by all shadow limits together,
    /// which takes a second command with Redis. [`Decision::limits`](crate::Decision::limits)
    /// contains the shadow limits only in that case.
    Shadow,
    /// No decision is made, not even by key lists: every call is allowed, and its
    /// [`Origin`](crate::Origin) is `Off`.
    Off,
}

impl Enforcement {
    /// The environment variable that limiter builders read unless they are configured: `enforce`,
    /// `shadow` or `off`, in either case. In process another value is ignored and logged (an
    /// in-process limiter is built without errors); with Redis `build` returns an error, so that
    /// the program does not start in an unintended mode.
    pub const ENV: &'static str = "LIMITER_ENFORCEMENT";

    /// Returns the mode of the environment; `None` if the variable is unset or empty.
    pub(crate) fn from_environment() -> Result<Option<Self>, ConfigError> {
        match std::env::var_os(Self::ENV) {
            Some(text) if !text.is_empty() => Self::parse(Self::ENV, &text.to_string_lossy()).map(Some),
            _ => Ok(None),
        }
    }

    #[inline]
    pub(crate) const fn to_bits(self) -> u8 {
        match self {
            Self::Enforce => 0,
            Self::Shadow => 1,
            Self::Off => 2,
        }
    }

    pub(crate) const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Enforce,
            1 => Self::Shadow,
            _ => Self::Off,
        }
    }

    fn parse(name: &'static str, text: &str) -> Result<Self, ConfigError> {
        let is = |word: &str| text.trim().eq_ignore_ascii_case(word);
        [Self::Enforce, Self::Shadow, Self::Off]
            .into_iter()
            .find(|mode| is(mode.word()))
            .ok_or_else(|| ConfigError::invalid(name, text, "`enforce`, `shadow` or `off`"))
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Off => "off",
        }
    }
}

/// The word that [`FromStr`] reads.
impl fmt::Display for Enforcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// `enforce`, `shadow` or `off`, in either case.
impl FromStr for Enforcement {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        Self::parse("enforcement", text)
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::enforcement::*;

    #[test]
    fn modes_round_trip_and_other_texts_are_rejected() {
        for mode in [Enforcement::Enforce, Enforcement::Shadow, Enforcement::Off] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(format!(" {} ", mode.to_string().to_uppercase()).parse(), Ok(mode));
            assert_eq!(Enforcement::from_bits(mode.to_bits()), mode);
        }
        for text in ["", "on", "disabled", "enforced"] {
            let error = text.parse::<Enforcement>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("enforcement is `{text}`, expected `enforce`, `shadow` or `off`")
            );
        }
    }

    #[test]
    fn looser_mode_is_larger() {
        assert!(Enforcement::Off > Enforcement::Shadow && Enforcement::Shadow > Enforcement::Enforce);
    }
}
