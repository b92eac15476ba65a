//! The ends that forms offer: instants, shown before they are saved. Tests: below.

use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};

use crate::admin::pages::time::PageTime;

const MINUTE: i64 = 60_000_000;
/// Durations that forms of blocks and trials offer: hours, name.
const DURATIONS: [(i64, &str); 3] = [(1, "1 hour"), (24, "1 day"), (168, "7 days")];

/// An end that a form offers.
#[derive(Debug)]
pub(super) struct OfferedEnd {
    /// The value of the field: a time in UTC, empty for no end.
    pub(super) value: String,
    pub(super) name: String,
    pub(super) text: String,
    pub(super) is_chosen: bool,
}

impl OfferedEnd {
    fn new(name: String, at: Timestamp, is_chosen: bool) -> Self {
        Self {
            value: at.strftime("%Y-%m-%dT%H:%M").to_string(),
            text: format!("{name}: {}", at.strftime("%a %-d %b, %H:%M UTC")),
            name,
            is_chosen,
        }
    }

    fn none() -> Self {
        Self {
            value: String::new(),
            name: "no end".to_owned(),
            text: "no end".to_owned(),
            is_chosen: false,
        }
    }
}

/// Returns the ends of days that a form offers, with names that fit into narrow pages. The end of
/// Friday is chosen.
pub(super) fn offered_days(now: PageTime) -> Vec<OfferedEnd> {
    let now = Timestamp::from_microsecond(now.0).unwrap_or_default();
    let today = now.to_zoned(TimeZone::UTC).date();
    let friday = match today.weekday() {
        Weekday::Friday => Ok(today),
        _ => today.nth_weekday(1, Weekday::Friday),
    };
    let days = [
        ("today", Ok(today), false),
        ("Friday", friday, true),
        ("7 days", today.checked_add(7.days()), false),
        ("30 days", today.checked_add(30.days()), false),
    ];
    let offered = days.into_iter().filter_map(|(name, last_day, is_chosen)| {
        let end = last_day.and_then(|day| day.tomorrow()).ok()?;
        let end = end.to_zoned(TimeZone::UTC).ok()?.timestamp();
        Some(OfferedEnd::new(format!("{name} (UTC)"), end, is_chosen))
    });
    offered.collect()
}

/// Returns the ends after a duration; the one after `chosen` hours is chosen. They are whole
/// minutes, so that a page does not change each second.
pub(super) fn offered_durations(now: PageTime, chosen: i64) -> Vec<OfferedEnd> {
    let next_minute = now.0.div_euclid(MINUTE).saturating_add(1).saturating_mul(MINUTE);
    let now = Timestamp::from_microsecond(next_minute).unwrap_or_default();
    let offered = DURATIONS.into_iter().filter_map(|(hours, name)| {
        let end = now.checked_add(hours.hours()).ok()?;
        Some(OfferedEnd::new(name.to_owned(), end, hours == chosen))
    });
    offered.collect()
}

/// Returns the ends of a block: after a duration, or none.
pub(super) fn offered_block_ends(now: PageTime) -> Vec<OfferedEnd> {
    let mut ends = offered_durations(now, 1);
    ends.push(OfferedEnd::none());
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> PageTime {
        PageTime(text.parse::<Timestamp>().unwrap().as_microsecond())
    }

    #[test]
    fn friday_is_the_end_of_the_next_friday() {
        // A Monday, and a Friday.
        for (now, expected) in [
            ("2026-11-23T02:12:29Z", "2026-11-28T00:00"),
            ("2026-11-27T23:59:00Z", "2026-11-28T00:00"),
        ] {
            let ends = offered_days(time(now));
            assert_eq!(ends.len(), 4);
            assert_eq!(ends[1].value, expected);
            assert!(ends[1].is_chosen);
            assert_eq!(ends[1].name, "Friday (UTC)");
            assert_eq!(ends[1].text, "Friday (UTC): Sat 28 Nov, 00:00 UTC");
        }
    }

    #[test]
    fn durations_end_at_an_instant() {
        let ends = offered_block_ends(time("2026-11-23T02:12:29Z"));
        assert_eq!(ends[1].value, "2026-11-24T02:13");
        assert_eq!(ends[1].text, "1 day: Tue 24 Nov, 02:13 UTC");
        assert!(ends[0].is_chosen && ends[3].value.is_empty());
    }
}
