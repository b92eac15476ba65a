//! Whether decisions are obeyed.

use std::fmt;
use std::str::FromStr;

use crate::error::ConfigError;

/// Whether the decisions of a policy, or of a limiter, are obeyed.
///
/// A policy has one ([`PolicyBuilder::enforcement`](crate::PolicyBuilder::enforcement)), and so has
/// a limiter ([`Limiter::set_enforcement`](crate::Limiter::set_enforcement)); the looser of the two
/// holds: `Off` before `Shadow` before `Enforce`. A change takes effect on the next call.
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
    /// What is denied is denied. The default.
    #[default]
    Enforce,
    /// It is decided and charged as ever, but every call is allowed;
    /// [`Decision::would_deny`](crate::Decision::would_deny) tells of those that would not be.
    /// Nothing waits, and whatever would reject the call (a cost above the quota, a store that is
    /// out) is told in the same way.
    ///
    /// In one decision with limits that are enforced it makes no difference to these: they are
    /// decided first, by themselves, and only a call that they allow is put to those in shadow, all
    /// of them together, which takes a second command where Redis decides. Those in shadow stand in
    /// [`Decision::limits`](crate::Decision::limits) only then.
    Shadow,
    /// Nothing is asked, looked at or charged, not even lists of keys: every call is allowed, and
    /// its [`Origin`](crate::Origin) says `Off`.
    Off,
}

impl Enforcement {
    /// The environment variable that builders of limiters read, where they are told nothing else:
    /// `enforce`, `shadow` or `off`, in letters of either case. Another word changes nothing in
    /// process, and is an event (an in-process limiter is built without errors); with Redis `build`
    /// refuses it, so that the program does not start by mistake in a mode that nobody asked for.
    pub const ENV: &'static str = "LIMITER_ENFORCEMENT";

    /// What the environment says; nothing where the variable is not set, or empty.
    pub(crate) fn of_environment() -> Result<Option<Self>, ConfigError> {
        match std::env::var_os(Self::ENV) {
            Some(text) if !text.is_empty() => Self::parse(Self::ENV, &text.to_string_lossy()).map(Some),
            _ => Ok(None),
        }
    }

    pub(crate) const fn to_bits(self) -> u8 {
        match self {
            Self::Enforce => 0,
            Self::Shadow => 1,
            Self::Off => 2,
        }
    }

    pub(crate) const fn of_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Enforce,
            1 => Self::Shadow,
            _ => Self::Off,
        }
    }

    fn parse(what: &'static str, text: &str) -> Result<Self, ConfigError> {
        let is = |word: &str| text.trim().eq_ignore_ascii_case(word);
        [Self::Enforce, Self::Shadow, Self::Off]
            .into_iter()
            .find(|mode| is(mode.word()))
            .ok_or_else(|| ConfigError::invalid(what, text, "`enforce`, `shadow` or `off`"))
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

/// `enforce`, `shadow` or `off`, in letters of either case.
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
    fn every_mode_is_read_as_it_is_written_and_nothing_else_is() {
        for mode in [Enforcement::Enforce, Enforcement::Shadow, Enforcement::Off] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(format!(" {} ", mode.to_string().to_uppercase()).parse(), Ok(mode));
            assert_eq!(Enforcement::of_bits(mode.to_bits()), mode);
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
    fn the_looser_is_the_larger() {
        assert!(Enforcement::Off > Enforcement::Shadow && Enforcement::Shadow > Enforcement::Enforce);
    }
}
