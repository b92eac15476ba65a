//! A rate as the exact fraction with which the algorithms compute.
//!
//! A rate is a reduced fraction of thousandths of a permit and microseconds. Both parts stay below
//! `MAX_PART`, so that the scripts compute with them exactly. A rate that does not fit is an error;
//! it is never rounded.
//!
//! Tests: below (`fast_arithmetic_equals_128_bit_arithmetic`), `tests/properties.rs`, and the fuzz
//! target `policy`.

mod text;

use std::ops::Rem;
use std::time::Duration;

use crate::error::ConfigError;
pub(crate) use crate::policy::rate::text::Span;
use crate::policy::reciprocal::Reciprocal;
use crate::units::{Amount, MAX_EXACT, micros_ceil};

/// Both halves of a reduced rate stay below this, so that a remainder times 1024 plus a digit's
/// product stays below 2^53 in the scripts.
const MAX_PART: u64 = 1 << 42;

/// An exact rate: an amount of permits per period of time.
///
/// A bare number is per second. Text names the period: `"100/min"`, `"7/3s"`, `"999_983/day"`,
/// `"1/30d"`.
///
/// ```
/// use limiter_core::Rate;
/// use std::time::Duration;
///
/// let slow: Rate = "7/3s".try_into()?;
/// assert_eq!(slow, Rate::per(7, Duration::from_secs(3))?);
/// assert_eq!(Rate::try_from(0.5)?, Rate::per(1, Duration::from_secs(2))?);
/// assert!(Rate::try_from(0).is_err());
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Thousandths of a permit …
    pub(crate) thousandths: u64,
    /// … per this many microseconds; the fraction is reduced.
    pub(crate) micros: u64,
    /// Precomputed reciprocals of both parts.
    by_thousandths: Reciprocal,
    by_micros: Reciprocal,
}

impl Rate {
    /// Creates a rate of `amount` permits every `period`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] when either is zero, or the reduced fraction does not fit the exact
    /// arithmetic (a prime number of permits over more than 50 days, or more than 4 billion permits
    /// a second).
    pub fn per<A>(amount: A, period: Duration) -> Result<Self, ConfigError>
    where
        A: TryInto<Amount, Error: Into<ConfigError>>,
    {
        let amount: Amount = amount.try_into().map_err(Into::into)?;
        let invalid =
            |expected: &str| ConfigError::invalid("rate", format_args!("{amount} per {period:?}"), expected);
        if amount.is_zero() || period.is_zero() {
            return Err(invalid("more than zero permits in more than zero time"));
        }
        if period.as_nanos() % 1_000 != 0 {
            return Err(invalid("a period of whole microseconds"));
        }
        let (thousandths, micros) = (amount.as_thousandths(), u128::from(micros_ceil(period)));
        let divisor = greatest_common_divisor(thousandths, micros);
        let part = |parts: u128| {
            u64::try_from(parts / divisor)
                .ok()
                .filter(|part| *part < MAX_PART)
        };
        match (part(thousandths), part(micros)) {
            (Some(thousandths), Some(micros)) => Ok(Self::reduced(thousandths, micros)),
            _ => Err(invalid(
                "a rate whose reduced fraction of thousandths to microseconds has parts below 2^42",
            )),
        }
    }

    fn reduced(thousandths: u64, micros: u64) -> Self {
        Self {
            thousandths,
            micros,
            by_thousandths: Reciprocal::new(thousandths),
            by_micros: Reciprocal::new(micros),
        }
    }

    /// Creates a rate of `amount` permits every second.
    ///
    /// # Errors
    ///
    /// As [`Rate::per`].
    pub fn per_second<A>(amount: A) -> Result<Self, ConfigError>
    where
        A: TryInto<Amount, Error: Into<ConfigError>>,
    {
        Self::per(amount, Duration::from_secs(1))
    }

    /// Returns the rate of one permit per second.
    #[cfg(feature = "registry")]
    pub(crate) fn one_per_second() -> Self {
        Self::reduced(1, 1_000)
    }

    /// Divides the rate by `times`. The period may then be too long for the scripts, but not for
    /// the algorithms here.
    #[cfg(feature = "redis")]
    pub(crate) fn slower(&self, times: u32) -> Self {
        let divisor = greatest_common_divisor(self.thousandths, u64::from(times));
        let micros = self.micros.saturating_mul(u64::from(times) / divisor);
        Self::reduced(self.thousandths / divisor, micros)
    }

    /// Returns the thousandths that accrue in `elapsed` microseconds in addition to `remainder`
    /// (parts of a thousandth; [`micros`](Self::micros) parts are one thousandth), and the new
    /// remainder. Both are exact, so frequent polling loses nothing; the amount is capped at
    /// [`MAX_EXACT`].
    #[inline]
    pub(crate) fn accrue(&self, elapsed: u64, remainder: u64) -> (u64, u64) {
        let parts = u128::from(elapsed) * u128::from(self.thousandths) + u128::from(remainder);
        let (whole, rest) = divide(parts, self.by_micros, self.micros);
        if whole <= u128::from(MAX_EXACT) {
            (u64::try_from(whole).unwrap_or(MAX_EXACT), rest)
        } else {
            (MAX_EXACT, 0)
        }
    }

    /// Returns the minimum number of microseconds after which [`accrue`](Self::accrue) returns at
    /// least `amount` thousandths; at most [`MAX_EXACT`].
    #[inline]
    pub(crate) fn time_for(&self, amount: u64, remainder: u64) -> u64 {
        if amount == 0 {
            return 0;
        }
        let parts = self.parts(amount, remainder);
        let (whole, rest) = divide(parts, self.by_thousandths, self.thousandths);
        u64::try_from(whole).map_or(MAX_EXACT, |time| {
            time.saturating_add(u64::from(rest > 0)).min(MAX_EXACT)
        })
    }

    /// True if `span` is longer than the [`time_for`](Self::time_for) this amount, without a
    /// division.
    pub(crate) fn takes_less(&self, amount: u64, remainder: u64, span: u64) -> bool {
        let shorter = |span: u64| u128::from(span) * u128::from(self.thousandths);
        span > MAX_EXACT || (span > 0 && shorter(span - 1) >= self.parts(amount, remainder))
    }

    /// Returns the microseconds in which `parts` accrue, rounded up; [`micros`](Self::micros) parts
    /// are one thousandth.
    #[inline]
    pub(crate) fn time_for_parts(&self, parts: u64) -> u64 {
        let (time, rest) = self.by_thousandths.divide(parts, self.thousandths);
        time + u64::from(rest > 0)
    }

    /// Returns the thousandths in `parts`, rounded down.
    #[inline]
    pub(crate) fn thousandths_of(&self, parts: u64) -> u64 {
        self.by_micros.divide(parts, self.micros).0
    }

    /// Returns the missing part of an amount, in parts of which [`micros`](Self::micros) are one
    /// thousandth.
    fn parts(&self, amount: u64, remainder: u64) -> u128 {
        (u128::from(amount) * u128::from(self.micros)).saturating_sub(u128::from(remainder))
    }

    /// Converts a remainder with `parts` per thousandth to the parts of this rate, rounded down, so
    /// that a policy change creates no permits.
    pub(crate) fn convert(&self, remainder: u64, parts: u64) -> u64 {
        if parts == self.micros || parts == 0 {
            return remainder;
        }
        let converted = u128::from(remainder) * u128::from(self.micros) / u128::from(parts);
        u64::try_from(converted).unwrap_or(0)
    }
}

impl TryFrom<Amount> for Rate {
    type Error = ConfigError;

    fn try_from(per_second: Amount) -> Result<Self, ConfigError> {
        Self::per_second(per_second)
    }
}

macro_rules! rate_from_number {
    ($($number:ty),*) => {$(
        impl TryFrom<$number> for Rate {
            type Error = ConfigError;

            fn try_from(per_second: $number) -> Result<Self, ConfigError> {
                Self::per_second(per_second)
            }
        }
    )*};
}
rate_from_number!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize, f32, f64);

/// Returns quotient and remainder. Nearly every product fits in 64 bits; a 128-bit division is many
/// times slower.
#[inline]
fn divide(parts: u128, reciprocal: Reciprocal, by: u64) -> (u128, u64) {
    if let Ok(parts) = u64::try_from(parts) {
        let (whole, rest) = reciprocal.divide(parts, by);
        (u128::from(whole), rest)
    } else {
        let by = u128::from(by);
        // Below the divisor, which has 64 bits.
        (parts / by, u64::try_from(parts % by).unwrap_or(0))
    }
}

fn greatest_common_divisor<N>(a: N, b: N) -> N
where
    N: Copy + Default + PartialEq + Rem<Output = N>,
{
    if b == N::default() {
        a
    } else {
        greatest_common_divisor(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::rate::*;

    #[test]
    fn written_rates_are_exact() {
        for (text, thousandths, micros) in [
            ("7/3s", 7, 3_000),
            ("0.001/s", 1, 1_000_000),
            ("1_000_000/s", 1_000, 1),
            ("999_983/day", 999_983, 86_400_000),
            ("1/30d", 1, 2_592_000_000),
            ("100/min", 1, 600),
        ] {
            assert_eq!(text.parse(), Ok(Rate::reduced(thousandths, micros)), "{text}");
        }
    }

    #[test]
    fn fast_arithmetic_equals_128_bit_arithmetic() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut number = || random.u64(..) >> random.u32(12..64);
        for _ in 0..100_000 {
            let (thousandths, micros) = (number().clamp(1, MAX_PART - 1), number().clamp(1, MAX_PART - 1));
            let rate = Rate::reduced(thousandths, micros);
            let (amount, elapsed, remainder) = (number(), number(), number() % micros);
            let parts = u128::from(elapsed) * u128::from(thousandths) + u128::from(remainder);
            let whole = parts / u128::from(micros);
            let expected = match u64::try_from(whole).unwrap_or(u64::MAX) {
                whole if whole <= MAX_EXACT => (whole, u64::try_from(parts % u128::from(micros)).unwrap()),
                _ => (MAX_EXACT, 0),
            };
            assert_eq!(
                rate.accrue(elapsed, remainder),
                expected,
                "{rate:?} {elapsed} {remainder}"
            );
            let parts = (u128::from(amount) * u128::from(micros)).saturating_sub(u128::from(remainder));
            let time = u64::try_from(parts.div_ceil(u128::from(thousandths)))
                .unwrap_or(u64::MAX)
                .min(MAX_EXACT);
            assert_eq!(
                rate.time_for(amount, remainder),
                time,
                "{rate:?} {amount} {remainder}"
            );
            for span in [
                0,
                1,
                time.saturating_sub(1),
                time,
                time + 1,
                elapsed,
                MAX_EXACT,
                u64::MAX,
            ] {
                let less = rate.takes_less(amount, remainder, span);
                assert_eq!(less, span > time, "{rate:?} {amount} {remainder} {span}");
            }
        }
    }
}
