//! Handling of denied calls.
//!
//! A value of a policy, which `admit`, annotated functions and layers apply (`check/admit.rs`). If
//! several limits are decided together, `stricter` determines the handling. Tests: below, and
//! `tests/contract/on_denial.rs`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::ConfigError;
use crate::policy::rate::Span;
use crate::units::{micros_ceil, parse_duration};

/// Handling of a denied call in [`Limiter::admit`](crate::Limiter::admit), in annotated functions
/// and behind a layer.
///
/// `check` and `acquire` ignore it. As text it is `reject`, `wait 500ms` or `degrade`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnDenial {
    /// The call is rejected. The default.
    #[default]
    Reject,
    /// The call waits for its permit for at most this time, first come, first served, as
    /// [`Limiter::acquire`](crate::Limiter::acquire) does, and is then rejected as
    /// [`TimedOut`](crate::Rejection::TimedOut).
    Wait(Duration),
    /// The call continues without a charge, and
    /// [`Decision::is_degraded`](crate::Decision::is_degraded) requests a cheaper
    /// response from the callee. A key that a penalty blocks or a list denies is still rejected.
    ///
    /// For an annotated function the fallback is the cheaper response. A call of a function without
    /// a fallback is rejected, because the function cannot see the decision and would be unlimited.
    Degrade,
}

impl OnDenial {
    /// Returns the stricter of two: a rejection, else the shorter wait, else degraded.
    pub(crate) fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Reject, _) | (_, Self::Reject) => Self::Reject,
            (Self::Wait(one), Self::Wait(other)) => Self::Wait(one.min(other)),
            (Self::Wait(timeout), Self::Degrade) | (Self::Degrade, Self::Wait(timeout)) => {
                Self::Wait(timeout)
            }
            (Self::Degrade, Self::Degrade) => Self::Degrade,
        }
    }
}

/// As [`FromStr`] reads it.
impl fmt::Display for OnDenial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reject => f.write_str("reject"),
            Self::Wait(timeout) => write!(f, "wait {}", Span(micros_ceil(*timeout))),
            Self::Degrade => f.write_str("degrade"),
        }
    }
}

/// `reject`, `wait 500ms` or `degrade`.
impl FromStr for OnDenial {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text.trim() {
            "reject" => Ok(Self::Reject),
            "degrade" => Ok(Self::Degrade),
            wait => match wait.strip_prefix("wait ") {
                Some(timeout) => parse_duration(timeout).map(Self::Wait),
                None => {
                    let expected = "`reject`, `degrade`, or `wait` with a duration, such as `wait 500ms`";
                    Err(ConfigError::invalid("on_denial", text, expected))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::on_denial::*;

    #[test]
    fn values_round_trip_through_text() {
        let waits = [1, 1_500, 60_000, 5_400_000].map(|ms| OnDenial::Wait(Duration::from_millis(ms)));
        for answer in [OnDenial::Reject, OnDenial::Degrade].into_iter().chain(waits) {
            assert_eq!(answer.to_string().parse(), Ok(answer), "{answer}");
        }
        assert!("wait".parse::<OnDenial>().is_err());
        assert!("wait 5".parse::<OnDenial>().is_err());
    }

    #[test]
    fn stricter_value_applies() {
        let wait = |ms| OnDenial::Wait(Duration::from_millis(ms));
        assert_eq!(OnDenial::Degrade.stricter(wait(5)), wait(5));
        assert_eq!(wait(5).stricter(wait(3)), wait(3));
        assert_eq!(wait(5).stricter(OnDenial::Reject), OnDenial::Reject);
        assert_eq!(OnDenial::Degrade.stricter(OnDenial::Degrade), OnDenial::Degrade);
    }
}
