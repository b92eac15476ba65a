//! Numbers as pages and sentences show them. Pure.

/// Returns a number with separated thousands: `1,234,567`, `-1,200`, `1,234.5`. A text that is no
/// decimal number stays as it is.
pub(crate) fn grouped(number: impl ToString) -> String {
    let text = number.to_string();
    let unsigned = text.strip_prefix('-').unwrap_or(&text);
    let (whole, fraction) = match unsigned.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (unsigned, None),
    };
    if !whole.bytes().all(|byte| byte.is_ascii_digit()) {
        return text;
    }
    let mut grouped = if text.starts_with('-') { "-" } else { "" }.to_owned();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if let Some(fraction) = fraction {
        grouped.push('.');
        grouped.push_str(fraction);
    }
    grouped
}

/// `1 change`, `2 changes`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{} {noun}s", grouped(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        for (number, expected) in [
            ("0", "0"),
            ("999", "999"),
            ("1000", "1,000"),
            ("12428", "12,428"),
            ("1234567", "1,234,567"),
            ("-1200", "-1,200"),
            ("-120", "-120"),
            ("1234.5678", "1,234.5678"),
            ("many", "many"),
            ("1000x", "1000x"),
            ("", ""),
        ] {
            assert_eq!(grouped(number), expected);
        }
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn nouns_have_their_number() {
        assert_eq!(count(1, "change"), "1 change");
        assert_eq!(count(1_000, "change"), "1,000 changes");
        assert_eq!(count(0, "change"), "0 changes");
    }
}
