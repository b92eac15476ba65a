//! What counter windows and fixed windows need.

use std::time::Duration;

use super::{PolicyBuilder, Window, whole_micros};
use crate::error::ConfigError;
use crate::policy::calendar::{MONTH, can_be_aligned};
use crate::policy::{Algorithm, CounterWindow, FixedWindow, MAX_COUNTED, Periods, Policy, UtcOffset};
use crate::units::{Amount, MAX_EXACT};

/// What a counter window needs: a limit and a window.
#[derive(Clone, Debug, Default)]
pub struct CounterWindowShape {
    limit: Option<Amount>,
    window: Option<Duration>,
}

/// What a fixed window needs: a limit and a window; and how it is aligned, where it is.
#[derive(Clone, Debug, Default)]
pub struct FixedWindowShape {
    limit: Option<Amount>,
    window: Option<Length>,
    aligned: Option<UtcOffset>,
}

/// How long a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Of(Duration),
    Month,
}

impl PolicyBuilder<CounterWindowShape> {
    pub(in crate::policy) fn counter_window(name: String) -> Self {
        Self::new(name, CounterWindowShape::default())
    }

    /// The permits in a window, a whole number from 1 to 4,398,046,511,104. Required.
    pub fn limit(mut self, limit: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.shape.limit = self.parse(limit);
        self
    }

    /// The window's length: a [`Duration`], or text such as `"1m"`; at most 50 days. Required.
    pub fn window(mut self, window: impl TryInto<Window, Error: Into<ConfigError>>) -> Self {
        self.shape.window = self.length("window", window);
        self
    }

    /// The policy.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first value that is missing or out of range.
    pub fn build(self) -> Result<Policy, ConfigError> {
        self.finish(|CounterWindowShape { limit, window }| {
            let limit = limit.ok_or(ConfigError::Missing { what: "limit" })?;
            let window = window.ok_or(ConfigError::Missing { what: "window" })?;
            Ok(Algorithm::CounterWindow(CounterWindow {
                limit: whole_permits(limit, MAX_COUNTED)?,
                window: whole_micros(window, MAX_COUNTED, "50 days")?,
            }))
        })
    }
}

impl PolicyBuilder<FixedWindowShape> {
    pub(in crate::policy) fn fixed_window(name: String) -> Self {
        Self::new(name, FixedWindowShape::default())
    }

    /// The permits in each period, a whole number from 1 to 4,503,599,627,370,496. Required.
    pub fn limit(mut self, limit: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.shape.limit = self.parse(limit);
        self
    }

    /// The length of a period: a [`Duration`], or text such as `"1d"`; or `"month"`, which has to be
    /// [aligned](Self::aligned). Required.
    pub fn window(mut self, window: impl TryInto<Window, Error: Into<ConfigError>>) -> Self {
        self.shape.window = self.parse(window).map(|Window(length)| length);
        self
    }

    /// Has periods begin with those of the calendar, at this offset from UTC: [`UtcOffset::UTC`], or text such as
    /// `"utc"` or `"+02:00"`. Default: they begin with a key's first permit.
    ///
    /// For months, weeks (which begin on Monday), and whatever makes a day a whole number of times: days, hours, minutes,
    /// 15 minutes, 8 hours, … The clock is the store's.
    pub fn aligned(mut self, offset: impl TryInto<UtcOffset, Error: Into<ConfigError>>) -> Self {
        self.shape.aligned = self.parse(offset);
        self
    }

    /// The policy.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first value that is missing or out of range.
    pub fn build(self) -> Result<Policy, ConfigError> {
        self.finish(|FixedWindowShape { limit, window, aligned }| {
            let limit = limit.ok_or(ConfigError::Missing { what: "limit" })?;
            let window = window.ok_or(ConfigError::Missing { what: "window" })?;
            let limit = whole_permits(limit, MAX_EXACT)?;
            let (window, periods) = match (window, aligned) {
                (Length::Month, Some(offset)) => (MONTH, Periods::Months(offset)),
                (Length::Month, None) => {
                    let expected = "a length, or `aligned` with an offset from UTC: a month is one of the calendar";
                    return Err(ConfigError::invalid("window", "month", expected));
                }
                (Length::Of(window), None) => (whole_micros(window, MAX_EXACT, "142 years")?, Periods::FirstUse),
                (Length::Of(window), Some(offset)) => {
                    let micros = whole_micros(window, MAX_EXACT, "142 years")?;
                    if !can_be_aligned(micros) {
                        let expected = "a month, a week, or what makes a day a whole number of times, since it is aligned";
                        return Err(ConfigError::invalid("window", format_args!("{window:?}"), expected));
                    }
                    (micros, Periods::Aligned(offset))
                }
            };
            Ok(Algorithm::FixedWindow(FixedWindow {
                limit,
                window,
                periods,
            }))
        })
    }
}

impl<S> PolicyBuilder<S> {
    /// Keeps a length that does not depend on the calendar, or the first mistake.
    pub(super) fn length(
        &mut self,
        what: &'static str,
        length: impl TryInto<Window, Error: Into<ConfigError>>,
    ) -> Option<Duration> {
        let length: Window = self.parse(length)?;
        let span = length.span(what);
        span.map_err(|error| self.mistake.get_or_insert(error).clone())
            .ok()
    }
}

/// A limit that is a whole number.
pub(super) fn whole_permits(limit: Amount, most: u64) -> Result<u64, ConfigError> {
    if !limit.is_whole() || limit.is_zero() || limit > Amount::from(most) {
        let expected = format!("whole permits from 1 to {most}");
        return Err(ConfigError::invalid("limit", limit, expected));
    }
    Ok(limit.whole())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_names_the_value_and_what_was_expected() {
        let counter = || Policy::counter_window("p");
        let fixed = || Policy::fixed_window("p");
        let refused = [
            (counter().window("1s").build(), "limit is missing"),
            (counter().limit(1).build(), "window is missing"),
            (counter().limit(0).window("1s").build(), "limit is `0`"),
            (counter().limit(0.5).window("1s").build(), "limit is `0.5`"),
            (
                counter().limit(5_000_000_000_000_u64).window("1s").build(),
                "from 1 to 4398046511104",
            ),
            (counter().limit(1).window("51d").build(), "at most 50 days"),
            (
                counter().limit(1).window("month").build(),
                "window is `month`, expected a length",
            ),
            (
                counter().limit(1).window("1s").lease("1s").build(),
                "expected none for a window",
            ),
            (fixed().window("1s").build(), "limit is missing"),
            (fixed().limit(1).build(), "window is missing"),
            (
                fixed().limit(u64::MAX).window("1s").build(),
                "from 1 to 4503599627370496",
            ),
            (fixed().limit(1).window("0s").build(), "window is `0ns`"),
            (
                fixed().limit(1).window("month").build(),
                "`aligned` with an offset",
            ),
            (
                fixed().limit(1).window("7m").aligned("utc").build(),
                "window is `420s`, expected a month",
            ),
            (
                fixed().limit(1).window("2w").aligned("utc").build(),
                "since it is aligned",
            ),
            (
                fixed().limit(1).window("1d").aligned("CET").build(),
                "offset from UTC is `CET`",
            ),
            (
                fixed().limit(1).window("1d").lease("1s").build(),
                "expected none for a window",
            ),
        ];
        for (policy, message) in refused {
            let error = policy.expect_err(message).to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn a_policy_shows_what_it_is() {
        let fixed = |window: &str| Policy::fixed_window("p").limit(5).window(window);
        let shown = [
            (
                Policy::counter_window("p").limit(5).window("week").build(),
                "p (counter window: 5 in about 7d)",
            ),
            (
                fixed("1h30m").build(),
                "p (fixed window: 5 in each 1h30m from its first use)",
            ),
            (
                fixed("1d").aligned(UtcOffset::UTC).build(),
                "p (fixed window: 5 in each 1d of UTC)",
            ),
            (
                fixed("month").aligned("-05:30").build(),
                "p (fixed window: 5 in each month of -05:30)",
            ),
        ];
        for (policy, text) in shown {
            assert_eq!(policy.unwrap().to_string(), text);
        }
        let month = fixed("month").aligned("utc").build().unwrap();
        assert_eq!(month.window(), Duration::from_secs(31 * 86_400));
    }
}
