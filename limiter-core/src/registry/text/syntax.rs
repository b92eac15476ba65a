//! Messages for syntax errors of TOML.
//!
//! The parser guesses the type of a value by its first character, so it calls the unquoted text
//! `token_bucket` an invalid boolean. This module finds the whole unquoted value and reports that
//! text must be quoted.

use toml::de::Error;

use crate::registry::text::report::ErrorReport;

/// Reports the errors of the parser, each value once.
pub(super) fn report(report: &mut ErrorReport<'_>, text: &str, errors: &[Error]) {
    let mut reported = None;
    for error in errors {
        let at = error.span().map_or(0, |span| span.start);
        match unquoted(text, at).filter(|_| is_about_a_value(error.message())) {
            Some((start, _)) if reported == Some(start) => {}
            Some((start, value)) => {
                reported = Some(start);
                report.push(start, message(value));
            }
            None => report.push(at, error.message().to_owned()),
        }
    }
}

/// Returns whether the parser took something for a value of another type.
fn is_about_a_value(message: &str) -> bool {
    const BEGINNINGS: [&str; 5] = [
        "invalid boolean",
        "invalid float",
        "invalid integer",
        "invalid datetime",
        "string values must be quoted",
    ];
    BEGINNINGS.iter().any(|beginning| message.starts_with(beginning))
}

/// Returns the unquoted value around a byte, and where it begins.
fn unquoted(text: &str, at: usize) -> Option<(usize, &str)> {
    let before = text.get(..at)?;
    let start = before
        .rfind(['=', '[', '{', ',', '\n'])
        .map_or(0, |separator| separator + 1);
    let value = text.get(start..)?;
    let value = value.split([',', ']', '}', '#', '\n']).next()?;
    let start = start + (value.len() - value.trim_start().len());
    let value = value.trim();
    (!value.contains(['"', '\'', '='])).then_some((start, value))
}

fn message(value: &str) -> String {
    const SHOWN: usize = 60;
    if value.is_empty() {
        return "a value is missing, expected text in quotes, a number, true or false, a list or a table"
            .to_owned();
    }
    let shown: String = value.chars().take(SHOWN).collect();
    let more = if shown.len() < value.len() { "…" } else { "" };
    if value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false") {
        return format!(
            "{shown} is not a value, expected {} in lower case",
            value.to_ascii_lowercase()
        );
    }
    format!("{shown}{more} is not a value, expected text in quotes: \"{shown}{more}\"")
}
