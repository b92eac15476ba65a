//! Durations of settings.

use std::time::Duration;

use limiter_core::parse_duration;

use crate::settings::SettingsError;

/// Reads a positive duration.
pub(super) fn duration(setting: &'static str, text: &str) -> Result<Duration, SettingsError> {
    let parsed = parse_duration(text).ok().filter(|duration| !duration.is_zero());
    parsed.ok_or_else(|| SettingsError::Invalid {
        setting,
        value: text.to_owned(),
        expected: "a positive duration such as 500us, 12ms or 10s",
    })
}
