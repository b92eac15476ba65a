//! Ends of calendar periods in local time: integer arithmetic without a time zone database.
//!
//! An offset from UTC is fixed and has no daylight saving time. Days have 86,400 seconds, as in
//! Unix time.
//!
//! Invariant: each period starts at the end of the previous one. Tests: below
//! (`period_starts_at_end_of_previous`, `months_match_calendar_for_600_years`),
//! `tests/contract/counter_windows.rs`.

use std::fmt;
use std::str::FromStr;

use crate::error::ConfigError;

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const DAY: u64 = 86_400 * SECOND;
pub(crate) const WEEK: u64 = 7 * DAY;
/// The length of the longest month.
pub(crate) const MONTH: u64 = 31 * DAY;
/// Unix time started on a Thursday: the first Monday was its fifth day.
const FIRST_MONDAY: u64 = 4 * DAY;

/// The offset of local time from UTC, in whole minutes; less than a day.
///
/// Written as `"utc"`, `"+02:00"` or `"-05:30"`. It is an offset and no time zone: it has no
/// daylight saving time.
///
/// ```
/// use limiter_core::UtcOffset;
///
/// assert_eq!("utc".parse(), Ok(UtcOffset::UTC));
/// assert_eq!("+05:30".parse(), UtcOffset::minutes(330));
/// assert_eq!(UtcOffset::minutes(-150)?.to_string(), "-02:30");
/// assert!("Europe/Berlin".parse::<UtcOffset>().is_err());
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UtcOffset {
    minutes: i16,
}

impl UtcOffset {
    /// No offset.
    pub const UTC: Self = Self { minutes: 0 };

    /// Creates an offset of local time in minutes ahead of UTC; negative if it is behind.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for a day or more.
    pub fn minutes(minutes: i16) -> Result<Self, ConfigError> {
        if minutes.unsigned_abs() < 24 * 60 {
            return Ok(Self { minutes });
        }
        Err(invalid(minutes))
    }

    /// Returns the offset plus one day in microseconds, so that it is never negative.
    pub(crate) fn plus_one_day(self) -> u64 {
        let ahead = u64::from(self.minutes.unsigned_abs()) * 60 * SECOND;
        if self.minutes < 0 {
            DAY - ahead
        } else {
            DAY + ahead
        }
    }
}

fn invalid(value: impl fmt::Display) -> ConfigError {
    const EXPECTED: &str = "`utc`, or hours and minutes such as `+02:00` or `-05:30`, less than a day";
    ConfigError::invalid("offset from UTC", value, EXPECTED)
}

impl FromStr for UtcOffset {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let invalid_text = || invalid(text);
        let trimmed = text.trim();
        if trimmed.eq_ignore_ascii_case("utc") || trimmed == "Z" {
            return Ok(Self::UTC);
        }
        let (sign, digits) = match (trimmed.strip_prefix('+'), trimmed.strip_prefix('-')) {
            (Some(digits), _) => (1, digits),
            (_, Some(digits)) => (-1, digits),
            _ => return Err(invalid_text()),
        };
        let (hours, minutes) = digits.split_once(':').ok_or_else(invalid_text)?;
        let number = |part: &str| match part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit()) {
            true => part.parse::<i16>().map_err(|_| invalid_text()),
            false => Err(invalid_text()),
        };
        let (hours, minutes) = (number(hours)?, number(minutes)?);
        if hours > 23 || minutes > 59 {
            return Err(invalid_text());
        }
        Self::minutes(sign * (60 * hours + minutes))
    }
}

impl TryFrom<&str> for UtcOffset {
    type Error = ConfigError;

    fn try_from(text: &str) -> Result<Self, ConfigError> {
        text.parse()
    }
}

/// `UTC`, `+02:00`: parses back to the same offset.
impl fmt::Display for UtcOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.minutes == 0 {
            return f.write_str("UTC");
        }
        let sign = if self.minutes < 0 { '-' } else { '+' };
        let minutes = self.minutes.unsigned_abs();
        write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    }
}

/// Returns the first start of a period of this length since the epoch. A week starts on Monday, and
/// periods of other lengths are counted from 1970-01-01 of local time.
pub(crate) fn origin(window: u64, offset: UtcOffset) -> u64 {
    let begins = if window == WEEK { FIRST_MONDAY } else { 0 };
    // A whole window keeps the difference from being negative.
    (begins + DAY + window - offset.plus_one_day() % window) % window
}

/// Returns the end of the period of this length that contains `now`.
pub(crate) fn end_of_period(now: u64, window: u64, offset: UtcOffset) -> u64 {
    // The origin is less than a window, so nothing is negative.
    now + window - (now + window - origin(window, offset)) % window
}

/// Returns the end of the calendar month that contains `now`, in local time.
pub(crate) fn end_of_month(now: u64, offset: UtcOffset) -> u64 {
    let ahead = offset.plus_one_day();
    // Days since the day before the epoch.
    let day = (now + ahead) / DAY;
    // 31 days after the first of a month is one of the first four days of the next month.
    let later = day + 32 - day_of_month(day);
    let next = later + 1 - day_of_month(later);
    next * DAY - ahead
}

/// Returns the day of the month, from 1; `day` counts from the day before the epoch.
///
/// The years start in March, so that the leap day is the last, in eras of 400 years: Howard
/// Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
fn day_of_month(day: u64) -> u64 {
    const ERA: u64 = 146_097;
    // Days since the first of March of the year 0.
    let day_of_era = (day + 719_467) % ERA;
    let leaps = day_of_era / 1_460 + day_of_era / (ERA - 1);
    let year_of_era = (day_of_era + day_of_era / 36_524 - leaps) / 365;
    let day_of_year = day_of_era + year_of_era / 100 - 365 * year_of_era - year_of_era / 4;
    let month = (5 * day_of_year + 2) / 153;
    day_of_year - (153 * month + 2) / 5 + 1
}

#[cfg(test)]
mod tests {
    use crate::policy::calendar::*;

    /// Reference implementation of the length of a month.
    fn length(year: u64, month: u64) -> u64 {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        match month {
            2 => 28 + u64::from(is_leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    #[test]
    fn months_match_calendar_for_600_years() {
        let mut first = 0;
        for year in 1970..2_570 {
            for month in 1..=12 {
                let next = first + length(year, month) * DAY;
                for moment in [first, first + 1, (first + next) / 2, next - 1] {
                    assert_eq!(end_of_month(moment, UtcOffset::UTC), next, "{year}-{month}");
                }
                first = next;
            }
        }
    }

    #[test]
    fn local_months_start_earlier_in_east() {
        // 2024-02-29T23:00:00Z.
        let moment = 1_709_247_600 * SECOND;
        let march = 1_709_251_200 * SECOND;
        let april = 1_711_929_600 * SECOND;
        let end = |offset: &str| end_of_month(moment, offset.parse().unwrap());
        assert_eq!(end("utc"), march);
        assert_eq!(end("+00:59"), march - 59 * 60 * SECOND);
        assert_eq!(end("+01:00"), april - 3_600 * SECOND);
        assert_eq!(end("-05:30"), march + 19_800 * SECOND);
        assert_eq!(
            end_of_month(0, "-01:00".parse().unwrap()),
            3_600 * SECOND,
            "1969 ends"
        );
    }

    #[test]
    fn periods_follow_local_time() {
        // 2024-02-29T23:00:00Z, a Thursday.
        let moment = 1_709_247_600 * SECOND;
        let hour = 3_600 * SECOND;
        let end = |window: u64, offset: &str| end_of_period(moment, window, offset.parse().unwrap()) - moment;
        assert_eq!(end(DAY, "utc"), hour);
        assert_eq!(end(DAY, "+02:00"), 23 * hour);
        assert_eq!(end(DAY, "-02:00"), 3 * hour);
        assert_eq!(end(hour, "utc"), hour, "an hour that has just begun");
        assert_eq!(end(hour, "+05:30"), hour / 2);
        assert_eq!(end(WEEK, "utc"), 3 * DAY + hour, "until Monday");
        assert_eq!(end(WEEK, "+01:00"), 3 * DAY);
        assert_eq!(end_of_period(0, WEEK, UtcOffset::UTC), 4 * DAY);
        assert_eq!(end_of_period(0, DAY, "+23:59".parse().unwrap()), 60 * SECOND);
        for days in [14, 30, 365] {
            let (window, now) = (days * DAY, 20_000 * DAY + hour);
            let next = (20_000 / days + 1) * window;
            let end = |offset: &str| end_of_period(now, window, offset.parse().unwrap());
            assert_eq!(end("utc"), next, "a multiple of {days} days since the epoch");
            assert_eq!(end("+02:00"), next - 2 * hour);
            assert_eq!(end("-05:30"), next + 11 * hour / 2);
        }
        assert_eq!(end_of_period(8 * hour, 7 * hour, UtcOffset::UTC), 14 * hour);
    }

    #[test]
    fn period_starts_at_end_of_previous() {
        let mut random = fastrand::Rng::with_seed(fastrand::u64(..));
        for _ in 0..10_000 {
            let offset = UtcOffset::minutes(random.i16(-1_439..=1_439)).unwrap();
            let windows = [
                1,
                SECOND,
                7 * SECOND,
                7_200 * SECOND,
                DAY,
                WEEK,
                30 * DAY,
                365 * DAY,
            ];
            let window = windows[random.usize(..windows.len())];
            let now = random.u64(..1 << 51);
            let end = end_of_period(now, window, offset);
            assert!((now + 1..=now + window).contains(&end));
            assert_eq!(end_of_period(end, window, offset), end + window);
            assert_eq!(end_of_period(end - 1, window, offset), end);
            let end = end_of_month(now, offset);
            assert!((now + 1..=now + MONTH).contains(&end));
            assert_eq!(end_of_month(end - 1, offset), end);
            assert!((28 * DAY..=MONTH).contains(&(end_of_month(end, offset) - end)));
        }
    }

    #[test]
    fn invalid_offset_is_named() {
        for text in [
            "", "2", "+2", "+2:00", "+24:00", "+00:60", "02:00", "+ab:cd", "CET", "+1:000", "-00:0",
        ] {
            let error = text.parse::<UtcOffset>().expect_err(text).to_string();
            assert!(
                error.starts_with(&format!("offset from UTC is `{text}`")),
                "{error}"
            );
        }
        assert!(UtcOffset::minutes(1_440).is_err() && UtcOffset::minutes(-1_439).is_ok());
    }
}
