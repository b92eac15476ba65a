//! Time spans from text or a `Duration`.

use std::time::Duration;

use crate::error::ConfigError;
use crate::units::{micros_ceil, parse_duration};

/// A time span for [`PolicyBuilder::window`](crate::PolicyBuilder::window) and
/// [`PolicyBuilder::lease`](crate::PolicyBuilder::lease), from a [`Duration`] or from text.
/// `"week"` is seven days; `"month"` is a calendar month, for fixed windows only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(pub(super) Length);

impl Window {
    /// Returns the length, unless it depends on the calendar.
    pub(crate) fn span(self, setting: &'static str) -> Result<Duration, ConfigError> {
        match self.0 {
            Length::Of(length) => Ok(length),
            Length::Month => {
                let expected = "a length such as `30d`: only a fixed window can be a month of the calendar";
                Err(ConfigError::invalid(setting, "month", expected))
            }
        }
    }
}

impl From<Duration> for Window {
    fn from(length: Duration) -> Self {
        Self(Length::Of(length))
    }
}

impl TryFrom<&str> for Window {
    type Error = ConfigError;

    fn try_from(text: &str) -> Result<Self, ConfigError> {
        Ok(Self(match text.trim() {
            "month" => Length::Month,
            "week" => Length::Of(Duration::from_secs(7 * 86_400)),
            text => Length::Of(parse_duration(text).map_err(with_calendar_lengths)?),
        }))
    }
}

/// Adds the calendar lengths to the expected values.
fn with_calendar_lengths(error: ConfigError) -> ConfigError {
    match error {
        ConfigError::Invalid {
            field,
            value,
            expected,
        } => ConfigError::Invalid {
            field,
            value,
            expected: format!("{expected}, or `week`, or (for a fixed window) `month`"),
        },
        other => other,
    }
}

/// The length of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Of(Duration),
    Month,
}

/// Validates a window for the exact arithmetic and returns its microseconds.
pub(super) fn whole_micros(window: Duration, max: u64, text: &str) -> Result<u64, ConfigError> {
    let micros = micros_ceil(window);
    if micros == 0 || micros > max || window.as_nanos() % 1_000 != 0 {
        let expected = format!("whole microseconds, more than zero and at most {text}");
        return Err(ConfigError::invalid(
            "window",
            format_args!("{window:?}"),
            expected,
        ));
    }
    Ok(micros)
}
