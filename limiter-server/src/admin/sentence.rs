//! A policy as a sentence, for people who do not know its algorithm.
//!
//! The sentence is made from the text of the policy, because the text names rates as their authors
//! wrote them: `100/min` is "100 requests a minute" and not "1.67 a second". Thousands have
//! separators. Tests: below.

use toml::{Table, Value};

use crate::admin::numbers::grouped;
use crate::policy_text::PolicyText;

/// `Each key may make 100 requests a minute, with bursts of 20.`
#[must_use]
pub fn sentence(policy: &PolicyText) -> String {
    let text = policy.to_toml();
    let table = text.parse::<Table>().unwrap_or_default();
    let table = table
        .get("policy")
        .and_then(|policies| policies.get(policy.name()));
    let described = table.and_then(Value::as_table).and_then(describe);
    described.unwrap_or_else(|| policy.entry().policy().to_string())
}

fn describe(policy: &Table) -> Option<String> {
    let text = |name: &str| policy.get(name).and_then(as_text);
    let subject = subject(policy);
    Some(match policy.get("algorithm")?.as_str()? {
        "token_bucket" => {
            let (rate, capacity) = (rate(&text("rate")?), grouped(text("capacity")?));
            format!("Each {subject} may make {rate}, with bursts of {capacity}.")
        }
        "funnel" => {
            let (rate, capacity) = (rate(&text("rate")?), grouped(text("capacity")?));
            match policy.get("paced").and_then(Value::as_bool) {
                Some(true) => {
                    format!("Each {subject} may make {rate}, evenly spaced; up to {capacity} wait.")
                }
                _ => format!("Each {subject} may make {rate}, and up to {capacity} at once."),
            }
        }
        "sliding_window" => {
            let (limit, window) = (requests(&text("limit")?), span(&text("window")?));
            format!("Each {subject} may make {limit} in any {window}.")
        }
        "counter_window" => {
            let (limit, window) = (requests(&text("limit")?), span(&text("window")?));
            format!("Each {subject} may make about {limit} in any {window}.")
        }
        "fixed_window" => {
            let (limit, window) = (requests(&text("limit")?), span(&text("window")?));
            match policy.contains_key("align") {
                true => format!("Each {subject} may make {limit} in each {window} of the calendar."),
                false => format!("Each {subject} may make {limit} in each {window} after its first one."),
            }
        }
        "concurrency" => {
            let max = text("max").or_else(|| text("limit"))?;
            format!("Each {subject} may have {} in progress.", requests(&max))
        }
        _ => return None,
    })
}

/// Returns the parts of the key, as the policy declares them.
fn subject(policy: &Table) -> String {
    let parts = policy.get("key").and_then(Value::as_array);
    let parts: Vec<&str> = parts.into_iter().flatten().filter_map(Value::as_str).collect();
    match parts.is_empty() {
        true => "key".to_owned(),
        false => parts.join(" and "),
    }
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        _ => None,
    }
}

fn requests(number: &str) -> String {
    match number {
        "1" => "1 request".to_owned(),
        number => format!("{} requests", grouped(number)),
    }
}

/// `100/min` as `100 requests a minute`.
fn rate(rate: &str) -> String {
    let (number, per) = rate.split_once('/').unwrap_or((rate, "s"));
    let per = span(per.trim());
    let article = if per.starts_with("hour") { "an" } else { "a" };
    match per.starts_with(|first: char| first.is_ascii_digit()) {
        true => format!("{} every {per}", requests(number.trim())),
        false => format!("{} {article} {per}", requests(number.trim())),
    }
}

/// `1m` as `minute`, `90s` as `90 seconds`.
fn span(text: &str) -> String {
    let digits = text.find(|of: char| !of.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim() {
        "us" => "microsecond",
        "ms" => "millisecond",
        "s" | "sec" => "second",
        "m" | "min" => "minute",
        "h" => "hour",
        "d" | "day" => "day",
        "w" | "week" => "week",
        "mo" | "month" => "month",
        // Several units, such as 1h30m.
        _ => return text.to_owned(),
    };
    match number {
        "" | "1" => unit.to_owned(),
        number => format!("{} {unit}s", grouped(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_name_numbers_as_written() {
        for (text, expected) in [
            (
                "algorithm = 'token_bucket'\ncapacity = 20\nrate = '100/min'",
                "Each key may make 100 requests a minute, with bursts of 20.",
            ),
            (
                "algorithm = 'token_bucket'\ncapacity = 1\nrate = '1/h'",
                "Each key may make 1 request an hour, with bursts of 1.",
            ),
            (
                "algorithm = 'sliding_window'\nlimit = 5\nwindow = '90s'",
                "Each key may make 5 requests in any 1m30s.",
            ),
            (
                "algorithm = 'counter_window'\nlimit = 5\nwindow = '1d'",
                "Each key may make about 5 requests in any day.",
            ),
            (
                "algorithm = 'fixed_window'\nlimit = 1\nwindow = '1m'",
                "Each key may make 1 request in each minute after its first one.",
            ),
            (
                "algorithm = 'fixed_window'\nlimit = 10\nwindow = '1d'\nalign = 'UTC'",
                "Each key may make 10 requests in each day of the calendar.",
            ),
            (
                "algorithm = 'concurrency'\nmax = 3\nlease = '30s'",
                "Each key may have 3 requests in progress.",
            ),
            (
                "algorithm = 'token_bucket'\ncapacity = 12500\nrate = '1250/s'",
                "Each key may make 1,250 requests a second, with bursts of 12,500.",
            ),
        ] {
            let policy = PolicyText::parse("a", &format!("[policy.a]\n{text}\n")).unwrap();
            assert_eq!(sentence(&policy), expected);
        }
    }

    #[test]
    fn parts_of_the_key_are_the_subject() {
        let table = "key = ['tenant', 'user']".parse::<Table>().unwrap();
        assert_eq!(subject(&table), "tenant and user");
        assert_eq!(subject(&Table::new()), "key");
    }

    #[test]
    fn rates_and_spans_are_words() {
        assert_eq!(rate("2"), "2 requests a second");
        assert_eq!(rate("5/30s"), "5 requests every 30 seconds");
        assert_eq!(span("1h30m"), "1h30m");
    }
}
