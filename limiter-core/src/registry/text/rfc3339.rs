//! Times in the format of RFC 3339, which TOML's offset date-times use.
//!
//! A date is converted by the algorithms of the proleptic Gregorian calendar in integer arithmetic,
//! without a date library. Times are written in UTC with microseconds; times before 1970 are
//! rejected. Tests: below.

use std::fmt;

use toml::de::DeValue;
use toml_datetime::{Datetime, Offset};

use crate::units::Timestamp;

const MICROS_PER_SECOND: u64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;
/// The last time with a year of four digits.
const LAST: u64 = 253_402_300_799_999_999;

/// Parses an offset date-time, quoted or not.
pub(super) fn parse(value: &DeValue<'_>) -> Option<Timestamp> {
    match value {
        DeValue::Datetime(moment) => timestamp(*moment),
        DeValue::String(text) => text.parse().ok().and_then(timestamp),
        _ => None,
    }
}

fn timestamp(moment: Datetime) -> Option<Timestamp> {
    let (date, time) = (moment.date?, moment.time?);
    let offset = match moment.offset? {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes),
    };
    let days = days_before(date.year.into(), date.month.into(), date.day.into());
    let minutes = i64::from(time.hour) * 60 + i64::from(time.minute) - offset;
    let seconds = days * SECONDS_PER_DAY + minutes * 60 + i64::from(time.second.unwrap_or(0));
    let micros = u64::from(time.nanosecond.unwrap_or(0)) / 1_000;
    let seconds = u64::try_from(seconds).ok()?;
    Some(Timestamp::from_micros(seconds * MICROS_PER_SECOND + micros))
}

/// Days from 1970 to a day of the Gregorian calendar (H. Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms"). Years begin in March here, so that a leap day is the last of its year.
const fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Returns year, month and day: the inverse.
const fn date_after(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (year + era * 400 + next, month, day)
}

/// Formats as `2030-12-31T23:59:59Z`, with the necessary number of decimals.
pub(super) struct Rfc3339(pub(super) Timestamp);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros().min(LAST);
        let (seconds, micros) = (micros / MICROS_PER_SECOND, micros % MICROS_PER_SECOND);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let (year, month, day) = date_after(seconds / SECONDS_PER_DAY);
        let of_day = seconds % SECONDS_PER_DAY;
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        )?;
        if micros > 0 {
            write!(f, ".{micros:06}")?;
        }
        f.write_str("Z")
    }
}

#[cfg(test)]
mod tests {
    use crate::registry::text::rfc3339::*;

    #[test]
    fn times_round_trip() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:01Z", 951_825_601),
            ("2023-11-14T22:13:20Z", 1_700_000_000),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
            ("9999-12-31T23:59:59Z", 253_402_300_799),
        ] {
            let moment = timestamp(text.parse().unwrap()).unwrap();
            assert_eq!(moment.as_micros(), seconds * MICROS_PER_SECOND, "{text}");
            assert_eq!(Rfc3339(moment).to_string(), text);
        }
        let parsed = |text: &str| text.parse().ok().and_then(timestamp).map(Timestamp::as_micros);
        assert_eq!(parsed("2023-11-15T00:13:20.5+02:00"), Some(1_700_000_000_500_000));
        assert_eq!(
            parsed("2023-11-14 21:13:20.000001-01:00"),
            Some(1_700_000_000_000_001)
        );
        for refused in [
            "1969-12-31T23:59:59Z",
            "2023-11-14T22:13:20",
            "2023-11-14",
            "22:13:20",
            "soon",
        ] {
            assert_eq!(parsed(refused), None, "{refused}");
        }
    }

    #[test]
    fn consecutive_days_differ_by_one() {
        let mut before = (1969, 12, 31);
        for days in 0..200_000 {
            let (year, month, day) = date_after(days);
            assert_eq!(days_before(year, month, day), days);
            assert!(before < (year, month, day), "{before:?}");
            before = (year, month, day);
        }
    }
}
