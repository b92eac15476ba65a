//! Text form of rates and time spans.
//!
//! Policies are written to registry texts and compared with policies that are read from them.
//!
//! Invariant: the text of a rate parses back to exactly this rate. Tests: below, and
//! `tests/registry/properties.rs`.

use std::fmt;

use crate::error::ConfigError;
use crate::policy::rate::{Rate, greatest_common_divisor};
use crate::units::{Amount, parse_duration};

/// The shortest text that parses back to exactly this rate: `10/s`, `100/min`, `7/3s`, `1/30d`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (thousandths, micros) = (u128::from(self.thousandths), u128::from(self.micros));
        // A whole number in the shortest common period; otherwise the fewest permits in their time.
        for (unit, name) in [
            (1_000_000, "s"),
            (60_000_000, "min"),
            (3_600_000_000, "h"),
            (DAY.into(), "d"),
        ] {
            let amount = thousandths * unit;
            if amount % (micros * 1_000) == 0 {
                return write!(f, "{}/{name}", amount / (micros * 1_000));
            }
        }
        let parts = greatest_common_divisor(self.thousandths, 1_000);
        // Below 2^42 times 1000.
        let micros = self.micros * (1_000 / parts);
        write!(f, "{}/{}", self.thousandths / parts, Span(micros))
    }
}

const DAY: u64 = 86_400_000_000;

/// Microseconds as exact text: `3s`, `1h30m`, `30d`.
pub(crate) struct Span(pub(crate) u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        for (unit, name) in [
            (DAY, "d"),
            (3_600_000_000, "h"),
            (60_000_000, "m"),
            (1_000_000, "s"),
            (1_000, "ms"),
            (1, "us"),
        ] {
            let count = rest / unit;
            rest %= unit;
            if count > 0 {
                write!(f, "{count}{name}")?;
            }
        }
        match self.0 {
            0 => f.write_str("0s"),
            _ => Ok(()),
        }
    }
}

impl std::str::FromStr for Rate {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let invalid = || {
            ConfigError::invalid(
                "rate",
                text,
                "permits per time, such as 10/s, 100/min, 7/3s or 1/30d",
            )
        };
        let (amount, period) = text.split_once('/').ok_or_else(invalid)?;
        let amount: Amount = amount.parse().map_err(|_| invalid())?;
        let period = period.trim();
        // A period without a number, such as `min`, is one unit.
        let is_unit = period.starts_with(char::is_alphabetic);
        let period = if is_unit {
            parse_duration(&format!("1{period}"))
        } else {
            parse_duration(period)
        };
        Self::per(amount, period.map_err(|_| invalid())?)
    }
}

impl TryFrom<&str> for Rate {
    type Error = ConfigError;

    fn try_from(text: &str) -> Result<Self, ConfigError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::policy::rate::text::*;

    #[test]
    fn displayed_rate_equals_written_rate() {
        for text in [
            "1/s",
            "100/min",
            "7/h",
            "5/d",
            "1/7s",
            "1/30d",
            "1000000/s",
            "999983/d",
            "11/1d3h",
            "13/1d1us",
        ] {
            assert_eq!(
                text.parse::<Rate>().map(|rate| rate.to_string()),
                Ok(text.to_owned())
            );
        }
        for (text, shown) in [
            ("0.5/s", "30/min"),
            ("60/min", "1/s"),
            ("7/3s", "140/min"),
            ("7/_3s", "140/min"),
            ("0.001/s", "1/16m40s"),
            ("4294967295.999/s", "4294967295999/16m40s"),
            ("0.001/50d", "1/50000d"),
            ("1.5/7us", "3/14us"),
            // More permits than 64 bits count in thousandths, in a fraction that is small.
            ("60857968597548750/d", "60857968597548750/d"),
        ] {
            let rate: Rate = text.parse().expect(text);
            assert_eq!(rate.to_string(), shown);
            assert_eq!(shown.parse(), Ok(rate), "{text}");
        }
    }

    #[test]
    fn policies_display_readable_time_units() {
        use crate::policy::Policy;

        let daily = Policy::sliding_window("send")
            .limit(3)
            .window("1d")
            .build()
            .unwrap();
        assert_eq!(daily.to_string(), "send (sliding window: 3 in any 1d)");
        let search = Policy::token_bucket("search")
            .capacity(20)
            .rate(1)
            .build()
            .unwrap();
        assert_eq!(search.to_string(), "search (token bucket: 20, refilled at 1/s)");
        assert_eq!(Span(5_400_000_001).to_string(), "1h30m1us");
    }

    #[test]
    fn rate_out_of_range_is_named() {
        for text in [
            "0/s",
            "1/0s",
            "10",
            "x/s",
            "1/fortnight",
            "-1/s",
            "5000000000/us",
            "0.001/60d1us",
        ] {
            let error = text.parse::<Rate>().expect_err(text).to_string();
            assert!(error.starts_with("rate is `"), "{error}");
        }
        assert!(Rate::per(1, Duration::from_nanos(1_500)).is_err());
        assert!(Rate::try_from(-1).is_err());
        assert!(Rate::try_from(f64::NAN).is_err());
    }
}
