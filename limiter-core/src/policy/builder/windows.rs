//! Parameters of windows.
//!
//! Exact sliding windows, counter windows and fixed windows have a limit of whole permits and a
//! length; a fixed window can also be aligned with the calendar. The maxima follow from the
//! storage: 8 bytes per permit for an exact window, and exact arithmetic for the others. Tests:
//! `policy/builder/windows/tests.rs`, `tests/contract/counter_windows.rs`.

use std::time::Duration;

use crate::error::ConfigError;
use crate::policy::builder::PolicyBuilder;
use crate::policy::calendar::MONTH;
use crate::policy::window::{Length, Window, whole_micros};
use crate::policy::{
    Algorithm, CounterWindow, FixedWindow, MAX_COUNTED, Periods, Policy, SlidingWindow, UtcOffset,
};
use crate::units::{Amount, MAX_EXACT};

/// Maximum limit of an exact window: its ring then takes 8 MiB, which a call of that cost writes at
/// once.
const MAX_WINDOW_LIMIT: u64 = 1 << 20;
/// Parameters of a sliding window: a limit and a window.
#[derive(Clone, Debug, Default)]
pub struct SlidingWindowParams {
    limit: Option<Amount>,
    window: Option<Duration>,
}

/// Parameters of a counter window: a limit and a window.
#[derive(Clone, Debug, Default)]
pub struct CounterWindowParams {
    limit: Option<Amount>,
    window: Option<Duration>,
}

/// Parameters of a fixed window: a limit, a window and an optional alignment.
#[derive(Clone, Debug, Default)]
pub struct FixedWindowParams {
    limit: Option<Amount>,
    window: Option<Length>,
    aligned: Option<UtcOffset>,
}

impl PolicyBuilder<SlidingWindowParams> {
    pub(in crate::policy) fn sliding_window(name: String) -> Self {
        Self::new(name, SlidingWindowParams::default())
    }

    /// Sets the permits in any window, a whole number from 1 to 1,048,576. Required.
    pub fn limit(mut self, limit: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.shape.limit = self.parse(limit);
        self
    }

    /// Sets the window's length: a [`Duration`], or text such as `"1m"`. Required.
    pub fn window(mut self, window: impl TryInto<Window, Error: Into<ConfigError>>) -> Self {
        self.shape.window = self.length("window", window);
        self
    }

    /// Builds the policy.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first value that is missing or out of range.
    pub fn build(self) -> Result<Policy, ConfigError> {
        self.finish(|SlidingWindowParams { limit, window }| {
            let (limit, window) = both(limit, window)?;
            Ok(Algorithm::SlidingWindow(SlidingWindow {
                limit: whole_permits(limit, MAX_WINDOW_LIMIT)?,
                window: whole_micros(window, MAX_EXACT, "142 years")?,
            }))
        })
    }
}

impl PolicyBuilder<CounterWindowParams> {
    pub(in crate::policy) fn counter_window(name: String) -> Self {
        Self::new(name, CounterWindowParams::default())
    }

    /// Sets the permits in a window, a whole number from 1 to 4,398,046,511,104. Required.
    pub fn limit(mut self, limit: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.shape.limit = self.parse(limit);
        self
    }

    /// Sets the window's length: a [`Duration`], or text such as `"1m"`; at most 50 days. Required.
    pub fn window(mut self, window: impl TryInto<Window, Error: Into<ConfigError>>) -> Self {
        self.shape.window = self.length("window", window);
        self
    }

    /// Builds the policy.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first value that is missing or out of range.
    pub fn build(self) -> Result<Policy, ConfigError> {
        self.finish(|CounterWindowParams { limit, window }| {
            let (limit, window) = both(limit, window)?;
            Ok(Algorithm::CounterWindow(CounterWindow {
                limit: whole_permits(limit, MAX_COUNTED)?,
                window: whole_micros(window, MAX_COUNTED, "50 days")?,
            }))
        })
    }
}

impl PolicyBuilder<FixedWindowParams> {
    pub(in crate::policy) fn fixed_window(name: String) -> Self {
        Self::new(name, FixedWindowParams::default())
    }

    /// Sets the permits in each period, a whole number from 1 to 4,503,599,627,370,496. Required.
    pub fn limit(mut self, limit: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.shape.limit = self.parse(limit);
        self
    }

    /// Sets the length of a period: a [`Duration`], or text such as `"1d"`; or `"month"`, which has
    /// to be [aligned](Self::aligned). Required.
    pub fn window(mut self, window: impl TryInto<Window, Error: Into<ConfigError>>) -> Self {
        self.shape.window = self.parse(window).map(|Window(length)| length);
        self
    }

    /// Aligns periods with the calendar at this offset from UTC: [`UtcOffset::UTC`], or text such
    /// as `"utc"` or `"+02:00"`. Default: a period starts with a key's first permit.
    ///
    /// Months are those of the calendar, and weeks start on Monday. Periods of any other length are
    /// counted from 1970-01-01, so days, hours and 15 minutes start with those of the calendar. The
    /// clock is the store's.
    pub fn aligned(mut self, offset: impl TryInto<UtcOffset, Error: Into<ConfigError>>) -> Self {
        self.shape.aligned = self.parse(offset);
        self
    }

    /// Builds the policy.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first value that is missing or out of range.
    pub fn build(self) -> Result<Policy, ConfigError> {
        self.finish(|FixedWindowParams { limit, window, aligned }| {
            let (limit, window) = both(limit, window)?;
            let limit = whole_permits(limit, MAX_EXACT)?;
            let (window, periods) = match (window, aligned) {
                (Length::Month, Some(offset)) => (MONTH, Periods::Months(offset)),
                (Length::Month, None) => {
                    let expected = "a length such as `30d`, or an offset from UTC besides (`aligned`, in texts `align`), such as `utc`: \
                                    a month is one of the calendar";
                    return Err(ConfigError::invalid("window", "month", expected));
                }
                (Length::Of(window), None) => (whole_micros(window, MAX_EXACT, "142 years")?, Periods::FirstUse),
                (Length::Of(window), Some(offset)) => {
                    (whole_micros(window, MAX_EXACT, "142 years")?, Periods::Aligned(offset))
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

/// Returns the required parameters of a window.
fn both<W>(limit: Option<Amount>, window: Option<W>) -> Result<(Amount, W), ConfigError> {
    let limit = limit.ok_or(ConfigError::Missing { field: "limit" })?;
    let window = window.ok_or(ConfigError::Missing { field: "window" })?;
    Ok((limit, window))
}

/// Validates a limit, which is a whole number.
fn whole_permits(limit: Amount, max: u64) -> Result<u64, ConfigError> {
    if !limit.is_whole() || limit.is_zero() || limit > Amount::from(max) {
        let expected = format!("whole permits from 1 to {max}");
        return Err(ConfigError::invalid("limit", limit, expected));
    }
    Ok(limit.whole())
}

#[cfg(test)]
mod tests;
