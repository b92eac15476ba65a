//! Numbers and durations as text. Tests: below.

use std::time::Duration;

use serde::Serializer;

/// Serializes a duration as seconds.
pub(super) fn serialize_seconds<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(span.as_secs_f64())
}

/// Returns a number with thin groups of three digits: `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a share as a percentage, never rounded to 0 % or 100 %.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0 %".to_owned();
    }
    if part >= whole {
        return "100 %".to_owned();
    }
    let share = ratio(part, whole) * 100.0;
    match share {
        ..0.01 => "< 0.01 %".to_owned(),
        ..10.0 => format!("{share:.2} %"),
        ..99.95 => format!("{share:.1} %"),
        _ => "> 99.9 %".to_owned(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share is shown with three digits")]
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Returns a duration in its two largest units.
pub(super) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 if span.is_zero() => "0 s".to_owned(),
        0 => format!("{} ms", span.as_micros().div_ceil(1_000)),
        1..60 if span.subsec_millis() > 0 && seconds < 10 => format!("{:.1} s", span.as_secs_f64()),
        1..60 => format!("{seconds} s"),
        60..3_600 => two(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

fn two(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    match small {
        0 => format!("{large} {large_unit}"),
        _ => format!("{large} {large_unit} {small} {small_unit}"),
    }
}

/// Returns a time in UTC to the second.
pub(super) fn time(micros: u64) -> String {
    match i64::try_from(micros).map(jiff::Timestamp::from_microsecond) {
        Ok(Ok(time)) => time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        _ => micros.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::replay::text::{grouped, percent, span, time};

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
    }

    #[test]
    fn small_and_large_shares_are_not_rounded_away() {
        let shares = [
            (0, 10),
            (1, 1_000_000),
            (1, 30),
            (1, 3),
            (999_999, 1_000_000),
            (5, 5),
        ];
        let expected = ["0 %", "< 0.01 %", "3.33 %", "33.3 %", "> 99.9 %", "100 %"];
        assert_eq!(shares.map(|(part, whole)| percent(part, whole)), expected);
    }

    #[test]
    fn spans_have_two_units() {
        let spans = [0, 1_500, 59_000, 60_000, 61_000, 3_660_000, 90_000_000];
        let expected = [
            "0 s",
            "1.5 s",
            "59 s",
            "1 min",
            "1 min 1 s",
            "1 h 1 min",
            "1 d 1 h",
        ];
        assert_eq!(spans.map(|ms| span(Duration::from_millis(ms))), expected);
        assert_eq!(span(Duration::from_micros(1_200)), "2 ms");
    }

    #[test]
    fn times_are_in_utc() {
        assert_eq!(time(1_767_268_800_000_000), "2026-01-01 12:00:00");
    }
}
