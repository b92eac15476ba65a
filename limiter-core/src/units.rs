//! Time and amounts as integers, and their text form.
//!
//! Times are microseconds since the Unix epoch, amounts are thousandths of a permit. Floating-point
//! values would drift, and the numbers of Lua are exact below 2^53 only, so `MAX_EXACT` bounds
//! capacities. Durations are rounded up to a microsecond.
//!
//! Invariant: an amount that is no multiple of a thousandth is an error; no amount is rounded.
//! Tests: below (`decimals_are_kept_to_a_thousandth`), and the fuzz target `policy`.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::ConfigError;

/// The maximum time span and the maximum stored number of the exact arithmetic: 2^52.
///
/// Lua computes in doubles, which represent every integer below 2^53. A time (below 2^52 until the
/// year 2112) plus a span of this length still fits. In microseconds it is 142 years.
pub(crate) const MAX_EXACT: u64 = 1 << 52;

const MICROS_PER_SECOND: u64 = 1_000_000;

/// A time, in whole microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub(crate) u64);

impl Timestamp {
    /// Returns the time `micros` microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this time; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Returns this time plus `span` (rounded up to a microsecond).
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros_ceil(span)))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(moment: Timestamp) -> Self {
        UNIX_EPOCH + Duration::from_micros(moment.0)
    }
}

/// To the microsecond, rounded up. Times before 1970 become 1970, and the maximum is the year
/// 586,512.
///
/// ```
/// use limiter_core::Timestamp;
/// use std::time::{Duration, SystemTime, UNIX_EPOCH};
///
/// let noon = UNIX_EPOCH + Duration::from_secs(1_767_268_800);
/// assert_eq!(Timestamp::from(noon).as_micros(), 1_767_268_800_000_000);
/// assert_eq!(SystemTime::from(Timestamp::from(noon)), noon);
/// ```
impl From<SystemTime> for Timestamp {
    fn from(moment: SystemTime) -> Self {
        Self(micros_ceil(moment.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

/// Returns whole microseconds of `span`, rounded up.
pub(crate) fn micros_ceil(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// A number of permits, exact to a thousandth.
///
/// Every unsigned integer converts into it; signed integers and floats do when they are neither
/// negative nor finer than a thousandth.
///
/// ```
/// use limiter_core::Amount;
///
/// let half: Amount = 0.5.try_into()?;
/// assert_eq!(half.to_string(), "0.5");
/// assert_eq!(Amount::from(3_u32).whole(), 3);
/// assert!(Amount::try_from(-1).is_err());
/// assert!(Amount::try_from(f64::NAN).is_err());
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount {
    thousandths: u128,
}

impl Amount {
    /// No permits: the cost of a peek.
    pub const ZERO: Self = Self { thousandths: 0 };
    /// One permit: the default cost of a call.
    pub const ONE: Self = Self { thousandths: 1_000 };

    /// Creates an amount from thousandths of a permit.
    #[must_use]
    pub const fn from_thousandths(thousandths: u64) -> Self {
        Self {
            thousandths: thousandths as u128,
        }
    }

    /// Returns the amount in thousandths of a permit.
    #[must_use]
    pub const fn as_thousandths(self) -> u128 {
        self.thousandths
    }

    /// Returns the whole permits, rounded down; `u64::MAX` for more than that.
    #[must_use]
    pub fn whole(self) -> u64 {
        match u64::try_from(self.thousandths) {
            // A 128-bit division is many times slower.
            Ok(thousandths) => thousandths / 1_000,
            Err(_) => u64::try_from(self.thousandths / 1_000).unwrap_or(u64::MAX),
        }
    }

    /// Returns true if the amount is a whole number of permits.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the upper half is zero")]
    pub const fn is_whole(self) -> bool {
        match self.thousandths >> 64 {
            0 => (self.thousandths as u64) % 1_000 == 0,
            _ => self.thousandths % 1_000 == 0,
        }
    }

    /// Returns true if the amount is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.thousandths == 0
    }

    fn from_float(value: f64) -> Result<Self, ConfigError> {
        const EXPECTED: &str = "a finite number of permits, not negative, with at most three decimals";
        /// Doubles of this size still distinguish thousandths.
        const MAX_FLOAT: f64 = 1e12;
        let invalid = || ConfigError::invalid("amount", value, EXPECTED);
        if !(0.0..=MAX_FLOAT).contains(&value) {
            return Err(invalid());
        }
        let thousandths = (value * 1_000.0).round();
        let (low, high) = (thousandths - 0.5, thousandths + 0.5);
        // A decimal such as 0.1 has no exact double: compare with the text of the nearest
        // thousandth.
        if thousandths / 1_000.0 != value || !(low..=high).contains(&(value * 1_000.0)) {
            return Err(invalid());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 10^15, and integral"
        )]
        Ok(Self::from_thousandths(thousandths as u64))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.thousandths / 1_000, self.thousandths % 1_000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let decimals = format!("{rest:03}");
        write!(f, "{whole}.{}", decimals.trim_end_matches('0'))
    }
}

impl fmt::Debug for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Amount({self})")
    }
}

impl FromStr for Amount {
    type Err = ConfigError;

    /// Reads `20`, `0.5`, `1_000`.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let invalid = || {
            ConfigError::invalid(
                "amount",
                text,
                "a number such as 20, 1_000 or 0.5, with at most three decimals",
            )
        };
        let digits: String = text.trim().chars().filter(|c| *c != '_').collect();
        let (whole, decimals) = digits.split_once('.').unwrap_or((&digits, "0"));
        let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let decimals = match decimals.trim_end_matches('0') {
            "" if all_digits(decimals) => "0",
            trimmed => trimmed,
        };
        if !all_digits(whole) || !all_digits(decimals) || decimals.len() > 3 {
            return Err(invalid());
        }
        let thousandths: u64 = format!("{decimals:0<3}").parse().map_err(|_| invalid())?;
        let whole: u64 = whole.parse().map_err(|_| invalid())?;
        Ok(Self {
            thousandths: u128::from(whole) * 1_000 + u128::from(thousandths),
        })
    }
}

macro_rules! amount_from_unsigned {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Amount {
            fn from(permits: $integer) -> Self {
                Self { thousandths: permits as u128 * 1_000 }
            }
        }
    )*};
}
amount_from_unsigned!(u8, u16, u32, u64, usize);

macro_rules! amount_from_signed {
    ($($integer:ty),*) => {$(
        impl TryFrom<$integer> for Amount {
            type Error = ConfigError;

            fn try_from(permits: $integer) -> Result<Self, ConfigError> {
                u64::try_from(permits)
                    .map(Self::from)
                    .map_err(|_| ConfigError::invalid("amount", permits, "a number of permits, not negative"))
            }
        }
    )*};
}
amount_from_signed!(i8, i16, i32, i64, isize);

impl TryFrom<f64> for Amount {
    type Error = ConfigError;

    fn try_from(permits: f64) -> Result<Self, ConfigError> {
        Self::from_float(permits)
    }
}

impl TryFrom<f32> for Amount {
    type Error = ConfigError;

    fn try_from(permits: f32) -> Result<Self, ConfigError> {
        // The shortest decimal that parses back to this float is the intended one.
        permits
            .to_string()
            .parse::<f64>()
            .map_err(|_| ConfigError::invalid("amount", permits, "a number"))
            .and_then(Self::from_float)
    }
}

impl TryFrom<&str> for Amount {
    type Error = ConfigError;

    fn try_from(text: &str) -> Result<Self, ConfigError> {
        text.parse()
    }
}

/// Reads a span of time: a number and a unit, such as `500ms`, `1m`, `1h30m` or `30d`.
///
/// Units: `us`, `ms`, `s`, `m` or `min`, `h`, `d`, `w`, and their English names.
///
/// # Errors
///
/// [`ConfigError::Invalid`] for a missing or unknown unit, an empty text, or a span beyond 142
/// years.
pub fn parse_duration(text: &str) -> Result<Duration, ConfigError> {
    let invalid = || {
        ConfigError::invalid(
            "duration",
            text,
            "a number with a unit, such as 500ms, 10s, 1m, 1h30m or 7d",
        )
    };
    let mut rest = text.trim();
    let mut total: u64 = 0;
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let digits_end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '_')
            .ok_or_else(invalid)?;
        let (digits, tail) = rest.split_at(digits_end);
        let count: u64 = digits.replace('_', "").parse().map_err(|_| invalid())?;
        let tail = tail.trim_start();
        let unit_end = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let micros = unit_micros(unit).ok_or_else(invalid)?;
        total = count
            .checked_mul(micros)
            .and_then(|span| total.checked_add(span))
            .ok_or_else(invalid)?;
        rest = tail.trim_start();
    }
    if total > MAX_EXACT {
        return Err(ConfigError::invalid("duration", text, "at most 142 years"));
    }
    Ok(Duration::from_micros(total))
}

fn unit_micros(unit: &str) -> Option<u64> {
    Some(match unit {
        "us" | "micros" | "microsecond" | "microseconds" => 1,
        "ms" | "millis" | "millisecond" | "milliseconds" => 1_000,
        "s" | "sec" | "secs" | "second" | "seconds" => MICROS_PER_SECOND,
        "m" | "min" | "mins" | "minute" | "minutes" => 60 * MICROS_PER_SECOND,
        "h" | "hr" | "hour" | "hours" => 3_600 * MICROS_PER_SECOND,
        "d" | "day" | "days" => 86_400 * MICROS_PER_SECOND,
        "w" | "week" | "weeks" => 7 * 86_400 * MICROS_PER_SECOND,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use crate::units::*;

    #[test]
    fn decimals_are_kept_to_a_thousandth() {
        assert_eq!(Amount::try_from(0.1).map(Amount::as_thousandths), Ok(100));
        assert_eq!(Amount::try_from(2.675).map(Amount::as_thousandths), Ok(2_675));
        assert_eq!(Amount::try_from(0.1_f32).map(Amount::as_thousandths), Ok(100));
        for refused in [-0.001, 0.0001, 1.00005, f64::NAN, f64::INFINITY, 1e13] {
            assert!(Amount::try_from(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn text_and_display_agree() {
        for text in ["0", "1", "0.5", "12.345", "18446744073709551615"] {
            assert_eq!(
                text.parse::<Amount>().map(|amount| amount.to_string()),
                Ok(text.to_owned())
            );
        }
        assert_eq!(
            "1_000.50".parse::<Amount>().map(Amount::as_thousandths),
            Ok(1_000_500)
        );
        for refused in [
            "",
            ".5",
            "5.",
            "-1",
            "1e3",
            "0.0001",
            "NaN",
            "99999999999999999999999",
        ] {
            assert!(refused.parse::<Amount>().is_err(), "{refused}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(parse_duration("500 ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for refused in [
            "",
            "10",
            "s",
            "1x",
            "-1s",
            "1.5s",
            "999999999999999999999s",
            "200000w",
        ] {
            assert!(parse_duration(refused).is_err(), "{refused}");
        }
    }
}
