//! The end of a token's validity: a TOML date or date and time. Tests: below.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use toml::value::{Datetime, Offset};

/// The seconds of a day.
const DAY: i64 = 86_400;

/// The end of a token's validity, in whole seconds of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "Datetime")]
pub struct Expiry(i64);

impl Expiry {
    /// Returns the midnight that is at least this many days after a time.
    #[must_use]
    pub fn days_after(now: SystemTime, days: u32) -> Self {
        let midnight = (seconds(now) + DAY - 1).div_euclid(DAY) * DAY;
        Self(midnight + i64::from(days) * DAY)
    }

    /// Returns the second that contains a time in microseconds since 1970.
    #[must_use]
    pub const fn at_micros(micros: i64) -> Self {
        Self(micros.div_euclid(1_000_000))
    }

    /// Returns whether the validity has ended.
    #[must_use]
    pub fn has_passed(&self, now: SystemTime) -> bool {
        seconds(now) >= self.0
    }

    /// Returns the end as a time of the system; the epoch for earlier ends.
    #[must_use]
    pub fn time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(self.0).unwrap_or(0))
    }
}

/// A time without an offset is UTC, and a date is its first moment.
impl TryFrom<Datetime> for Expiry {
    type Error = String;

    fn try_from(at: Datetime) -> Result<Self, String> {
        let date = at
            .date
            .ok_or("expected a date such as 2027-03-31 or a date and time")?;
        let days = days_of(i64::from(date.year), i64::from(date.month), i64::from(date.day));
        let clock = at.time.map_or(0, |time| {
            i64::from(time.hour) * 3_600
                + i64::from(time.minute) * 60
                + i64::from(time.second.unwrap_or_default())
        });
        let offset = match at.offset {
            Some(Offset::Custom { minutes }) => i64::from(minutes) * 60,
            Some(Offset::Z) | None => 0,
        };
        Ok(Self(days * DAY + clock - offset))
    }
}

/// The date, and the time unless it is midnight, as TOML and RFC 3339 write them.
impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date_of(self.0.div_euclid(DAY));
        write!(f, "{year:04}-{month:02}-{day:02}")?;
        match self.0.rem_euclid(DAY) {
            0 => Ok(()),
            clock => write!(
                f,
                "T{:02}:{:02}:{:02}Z",
                clock / 3_600,
                clock / 60 % 60,
                clock % 60
            ),
        }
    }
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar. The year begins in March
/// here, so that the leap day is its last day.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468
}

/// Returns the inverse of [`days_of`].
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expiry(text: &str) -> Expiry {
        Expiry::try_from(text.parse::<Datetime>().unwrap()).unwrap()
    }

    #[test]
    fn dates_are_read_and_written() {
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("2000-02-29", 951_782_400),
            ("2024-12-31T23:59:59Z", 1_735_689_599),
            ("2026-11-22", 1_795_305_600),
        ] {
            assert_eq!(expiry(text), Expiry(seconds), "{text}");
            assert_eq!(Expiry(seconds).to_string(), text);
        }
        assert_eq!(expiry("2026-11-22T02:00:00+02:00"), expiry("2026-11-22"));
        assert!(Expiry::try_from("12:00:00".parse::<Datetime>().unwrap()).is_err());
    }

    #[test]
    fn dates_of_800_years_round_trip() {
        for days in -146_097..146_097 {
            let (year, month, day) = date_of(days);
            assert_eq!(days_of(year, month, day), days);
        }
    }

    #[test]
    fn validity_ends_at_the_expiry() {
        let at = expiry("2026-11-22");
        let before = at.time() - Duration::from_secs(1);
        assert!(!at.has_passed(before));
        assert!(at.has_passed(at.time()));
        assert_eq!(Expiry::days_after(before, 90).to_string(), "2027-02-20");
    }
}
