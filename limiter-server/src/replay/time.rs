//! Times of log lines, as microseconds since 1970, and the time zones in which they are written.
//!
//! Three notations are accepted: the one of Apache and nginx, RFC 3339 and its relatives, and
//! seconds, milli-, micro- or nanoseconds since 1970. Consecutive lines often have the same text,
//! so the last result is kept: parsing is then a comparison. Tests: below.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use serde::Serialize;

use crate::replay::problems::{LineProblem, ProblemKind};

/// The names of the time in JSON and logfmt, if no name is given.
pub(super) const TIME_FIELDS: [&str; 8] = [
    "time",
    "timestamp",
    "ts",
    "@timestamp",
    "time_local",
    "time_iso8601",
    "msec",
    "start_time",
];
const COMMON: &str = "%d/%b/%Y:%H:%M:%S %z";
const EXPECTED: &str = "10/Oct/2000:13:55:36 -0700, 2000-10-10T20:55:36Z or a number since 1970";
/// The last time of a limiter's clock: in the year 2112.
const LAST: u64 = 1 << 52;
/// The number of time zones that are counted one by one.
const MAX_ZONES: usize = 16;

/// The notation of a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zone {
    /// Minutes ahead of UTC.
    Offset(i32),
    /// A number since 1970.
    Epoch,
    /// A time without a zone, read as UTC.
    Absent,
    /// More zones than are counted.
    Other,
}

/// The number of lines whose time is in one zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ZoneCount {
    /// The zone.
    pub zone: String,
    /// The number of lines.
    pub lines: u64,
}

/// Parses times and counts their zones.
#[derive(Clone, Debug, Default)]
pub(super) struct TimeParser {
    text: String,
    last: Option<(u64, usize)>,
    zones: Vec<(Zone, u64)>,
}

impl TimeParser {
    pub(super) fn parse(&mut self, text: &str) -> Result<u64, LineProblem> {
        if let Some((micros, zone)) = self.last
            && self.text == text
        {
            self.count(zone);
            return Ok(micros);
        }
        let parsed = parse(text).filter(|(micros, _)| (1..=LAST).contains(micros));
        let (micros, zone) = parsed.ok_or_else(|| LineProblem::new(ProblemKind::Time, text, EXPECTED))?;
        let zone = self.place(zone);
        self.count(zone);
        self.text.clear();
        self.text.push_str(text);
        self.last = Some((micros, zone));
        Ok(micros)
    }

    fn place(&mut self, zone: Zone) -> usize {
        let zone = if self.zones.len() >= MAX_ZONES && self.zones.iter().all(|(of, _)| *of != zone) {
            Zone::Other
        } else {
            zone
        };
        self.zones
            .iter()
            .position(|(of, _)| *of == zone)
            .unwrap_or_else(|| {
                self.zones.push((zone, 0));
                self.zones.len() - 1
            })
    }

    fn count(&mut self, zone: usize) {
        if let Some((_, lines)) = self.zones.get_mut(zone) {
            *lines += 1;
        }
    }

    /// Adds the counts of another file.
    pub(super) fn add_counts(&mut self, other: &Self) {
        for (zone, lines) in &other.zones {
            let place = self.place(*zone);
            if let Some((_, sum)) = self.zones.get_mut(place) {
                *sum += lines;
            }
        }
    }

    /// Returns the zones, that of most lines first.
    pub(super) fn report(&self) -> Vec<ZoneCount> {
        let mut zones: Vec<ZoneCount> = self
            .zones
            .iter()
            .map(|(zone, lines)| ZoneCount {
                zone: zone.to_string(),
                lines: *lines,
            })
            .collect();
        zones.sort_by(|a, b| b.lines.cmp(&a.lines).then_with(|| a.zone.cmp(&b.zone)));
        zones
    }
}

impl std::fmt::Display for Zone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Offset(0) => f.write_str("UTC"),
            Self::Offset(minutes) => {
                let (sign, minutes) = (if *minutes < 0 { '-' } else { '+' }, minutes.abs());
                write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
            }
            Self::Epoch => f.write_str("number since 1970"),
            Self::Absent => f.write_str("no time zone, read as UTC"),
            Self::Other => f.write_str("further time zones"),
        }
    }
}

fn parse(text: &str) -> Option<(u64, Zone)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    match text.as_bytes().get(digits) {
        Some(b'/') => parse_common(text),
        Some(b'-') => parse_rfc3339(text),
        None | Some(b'.') if digits > 0 => Some((parse_number(text)?, Zone::Epoch)),
        _ => None,
    }
}

fn parse_common(text: &str) -> Option<(u64, Zone)> {
    let parsed = strtime::parse(COMMON, text).ok()?;
    let offset = parsed.offset()?;
    Some((
        micros(parsed.to_timestamp().ok()?)?,
        Zone::Offset(offset.seconds() / 60),
    ))
}

fn parse_rfc3339(text: &str) -> Option<(u64, Zone)> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some((micros(time)?, Zone::Offset(offset_minutes(text)?)));
    }
    let time: DateTime = text.parse().ok()?;
    let time = time.to_zoned(TimeZone::UTC).ok()?.timestamp();
    Some((micros(time)?, Zone::Absent))
}

fn micros(time: Timestamp) -> Option<u64> {
    u64::try_from(time.as_microsecond()).ok()
}

/// Returns the offset at the end of a time that is known to be valid.
fn offset_minutes(text: &str) -> Option<i32> {
    let text = text.split('[').next()?;
    if text.ends_with(['Z', 'z']) {
        return Some(0);
    }
    let at = text.rfind(['+', '-'])?;
    let sign = if text.get(at..)?.starts_with('-') { -1 } else { 1 };
    let digits: String = text.get(at + 1..)?.chars().filter(char::is_ascii_digit).collect();
    let hours: i32 = digits.get(..2)?.parse().ok()?;
    let minutes: i32 = digits.get(2..4).unwrap_or("0").parse().ok()?;
    Some(sign * (hours * 60 + minutes))
}

/// Returns seconds since 1970 with decimals, or a whole number in the unit that fits its size.
fn parse_number(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Seconds have 10 digits until the year 2286.
    let (multiplier, divisor) = match whole {
        0..100_000_000_000 => (1_000_000, 1),
        100_000_000_000..100_000_000_000_000 => (1_000, 1),
        100_000_000_000_000..100_000_000_000_000_000 => (1, 1),
        _ => (1, 1_000),
    };
    let mut micros = whole.checked_mul(multiplier)? / divisor;
    let mut unit = multiplier;
    for digit in fraction.bytes() {
        unit /= 10;
        micros = micros.checked_add(u64::from(digit - b'0') * unit)?;
    }
    Some(micros)
}

#[cfg(test)]
mod tests {
    use crate::replay::time::TimeParser;

    const NOON: u64 = 1_767_268_800_000_000;

    #[test]
    fn all_notations_of_one_time_are_equal() {
        let mut parser = TimeParser::default();
        for text in [
            "01/Jan/2026:12:00:00 +0000",
            "01/Jan/2026:13:00:00 +0100",
            "31/Dec/2025:23:30:00 -1230",
            "2026-01-01T12:00:00Z",
            "2026-01-01T12:00:00.000000Z",
            "2026-01-01 17:30:00+05:30",
            "2026-01-01T12:00:00",
            "1767268800",
            "1767268800.000",
            "1767268800000",
            "1767268800000000",
            "1767268800000000000",
        ] {
            assert_eq!(parser.parse(text), Ok(NOON), "{text}");
        }
        assert_eq!(parser.parse("1767268800.25"), Ok(NOON + 250_000));
        assert_eq!(parser.parse("2026-01-01T12:00:00.123456789Z"), Ok(NOON + 123_456));
        let zones: Vec<(String, u64)> = parser
            .report()
            .into_iter()
            .map(|zone| (zone.zone, zone.lines))
            .collect();
        let expected = [
            ("number since 1970", 6),
            ("UTC", 4),
            ("+01:00", 1),
            ("+05:30", 1),
            ("-12:30", 1),
            ("no time zone, read as UTC", 1),
        ];
        assert_eq!(zones, expected.map(|(zone, lines)| (zone.to_owned(), lines)));
    }

    #[test]
    fn repeated_texts_are_counted() {
        let mut parser = TimeParser::default();
        for _ in 0..3 {
            assert_eq!(parser.parse("1767268800"), Ok(NOON));
        }
        assert_eq!(parser.report()[0].lines, 3);
    }

    #[test]
    fn other_texts_are_rejected_with_expectation() {
        let mut parser = TimeParser::default();
        for text in [
            "",
            "-",
            "noon",
            "01/Foo/2026:12:00:00 +0000",
            "2026-13-01T00:00:00Z",
            "0",
            "1.5x",
            "99999999999",
        ] {
            let problem = parser.parse(text).unwrap_err();
            assert!(problem.expected.contains("2000-10-10T20:55:36Z"), "{text}");
        }
        // Beyond the clock of a limiter.
        assert!(parser.parse("2120-01-01T00:00:00Z").is_err());
    }
}
