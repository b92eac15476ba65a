//! Times in pages: UTC with the time zone named. A script shows them in the zone of the viewer.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::Deserialize;

use crate::admin::pages::failure::PageFailure;

/// A time in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
pub(super) struct PageTime(pub(super) i64);

impl PageTime {
    fn timestamp(self) -> Timestamp {
        Timestamp::from_microsecond(self.0).unwrap_or_default()
    }

    /// Returns whether the time has a date.
    pub(super) fn is_in_calendar(self) -> bool {
        Timestamp::from_microsecond(self.0).is_ok()
    }

    /// Returns the time of a field such as `2026-11-23T14:03`. Browsers send it without a zone, and
    /// the page asks for UTC.
    pub(super) fn of_field(text: &str) -> Result<Self, PageFailure> {
        let time = text.trim().trim_end_matches('Z').parse::<DateTime>();
        let time = time.and_then(|time| time.to_zoned(TimeZone::UTC));
        let expected = "Expected a time in UTC such as 2026-12-31T18:00.";
        time.map(|time| Self(time.timestamp().as_microsecond()))
            .map_err(|_| PageFailure::unprocessable(expected))
    }

    /// Returns the text of a field: `2026-11-23T14:03`.
    pub(super) fn field_text(self) -> String {
        self.iso().chars().take(16).collect()
    }

    /// `2026-11-23T02:12:29Z`.
    pub(super) fn iso(self) -> String {
        self.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// `2026-11-23 02:12:29 UTC`.
    pub(super) fn utc_seconds(self) -> String {
        self.timestamp().strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
    }

    /// `2026-11-23 02:12 UTC`.
    pub(super) fn utc(self) -> String {
        self.timestamp().strftime("%Y-%m-%d %H:%M UTC").to_string()
    }
}

/// The largest number of hours in a form.
const MAX_HOURS: i64 = 24 * 31;

/// Returns the number of hours in a field; `None` for an empty one.
pub(super) fn hours(text: &str) -> Result<Option<i64>, PageFailure> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let hours = text
        .parse::<i64>()
        .ok()
        .filter(|hours| (1..=MAX_HOURS).contains(hours));
    let expected = format!("Expected a number of hours from 1 to {MAX_HOURS}.");
    hours.map(Some).ok_or_else(|| PageFailure::bad_request(expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_names_its_zone() {
        let time = PageTime(1_795_399_949_123_456);
        assert_eq!(time.iso(), "2026-11-23T02:12:29Z");
        assert_eq!(time.utc(), "2026-11-23 02:12 UTC");
        assert_eq!(time.utc_seconds(), "2026-11-23 02:12:29 UTC");
        assert_eq!(time.field_text(), "2026-11-23T02:12");
    }

    #[test]
    fn time_of_a_field_is_utc() {
        for text in ["2026-11-23T14:03", "2026-11-23 14:03:00Z"] {
            assert_eq!(PageTime::of_field(text).unwrap(), PageTime(1_795_442_580_000_000));
        }
        for wrong in ["Friday", "14:03"] {
            assert!(PageTime::of_field(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn hours_are_bounded() {
        assert_eq!(hours(" 2 ").unwrap(), Some(2));
        assert_eq!(hours("").unwrap(), None);
        for wrong in ["0", "-1", "1.5", "745", "x"] {
            assert!(hours(wrong).is_err(), "{wrong}");
        }
    }
}
