//! The format logfmt: `key=value key="value with \"quotes\""`.
//!
//! A line is a sequence of pairs separated by spaces; a key without a value is skipped. Only the
//! configured fields are copied, into reused buffers.
//!
//! A line without `=`, or with an unclosed quote, is an error. Text in quotes is never read as a
//! pair. Tests: below.

use crate::replay::line::{FieldNames, FieldValue, FieldValues};
use crate::replay::problems::{LineProblem, ProblemKind};

const EXPECTED: &str = "key=value pairs separated by spaces, values in quotes if they contain spaces";

/// Reads fields of lines in logfmt.
#[derive(Clone, Debug)]
pub(super) struct LogfmtParser {
    time: Vec<String>,
    fields: Vec<String>,
}

impl LogfmtParser {
    pub(super) fn new(names: &FieldNames, times: &[&str]) -> Self {
        let time = match &names.time {
            Some(time) => vec![time.clone()],
            None => times.iter().map(|time| (*time).to_owned()).collect(),
        };
        Self {
            time,
            fields: names.fields.clone(),
        }
    }

    pub(super) fn parse(&self, line: &str, values: &mut FieldValues) -> Result<(), LineProblem> {
        let mut rest = line.trim();
        if !rest.contains('=') {
            return Err(LineProblem::new(ProblemKind::Format, line, EXPECTED));
        }
        while !rest.is_empty() {
            let (name, after) = split_name(rest);
            let Some(after) = after else {
                // A key without a value.
                rest = rest.get(name.len()..).unwrap_or_default().trim_start();
                continue;
            };
            rest = match after.strip_prefix('"') {
                Some(quoted) => {
                    let raw = quoted_value(quoted)
                        .ok_or_else(|| LineProblem::new(ProblemKind::Format, line, EXPECTED))?;
                    self.each(name, values, |value| unescape(raw, value.buffer()));
                    quoted.get(raw.len() + 1..).unwrap_or_default()
                }
                None => {
                    let (value, rest) = after.split_once(' ').unwrap_or((after, ""));
                    self.each(name, values, |field| field.set(value));
                    rest
                }
            }
            .trim_start();
        }
        Ok(())
    }

    /// Sets the fields of this name.
    fn each(&self, name: &str, values: &mut FieldValues, set: impl Fn(&mut FieldValue)) {
        if self.time.iter().any(|time| time == name) && values.time.get().is_none() {
            set(&mut values.time);
        }
        for (field, value) in self.fields.iter().zip(&mut values.fields) {
            if field == name {
                set(value);
            }
        }
    }
}

/// Returns the name at the start, and the text after its `=`, if it has one.
fn split_name(text: &str) -> (&str, Option<&str>) {
    match text.find(['=', ' ']) {
        Some(at) => {
            let (name, rest) = text.split_at(at);
            (name, rest.strip_prefix('='))
        }
        None => (text, None),
    }
}

/// Returns the text before the closing quote, with its escapes.
fn quoted_value(text: &str) -> Option<&str> {
    let mut escaped = false;
    let end = text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    text.get(..end)
}

fn unescape(raw: &str, into: &mut String) {
    let mut escaped = false;
    for character in raw.chars() {
        match (escaped, character) {
            (false, '\\') => escaped = true,
            (true, 'n') => {
                into.push('\n');
                escaped = false;
            }
            (true, 't') => {
                into.push('\t');
                escaped = false;
            }
            (_, other) => {
                into.push(other);
                escaped = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::replay::line::{FieldNames, FieldValues};
    use crate::replay::logfmt::LogfmtParser;

    fn read(line: &str) -> Option<(Option<String>, Option<String>)> {
        let names = FieldNames {
            time: None,
            fields: vec!["path".to_owned()],
        };
        let mut values = FieldValues::new(1);
        LogfmtParser::new(&names, &["ts"]).parse(line, &mut values).ok()?;
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Some((owned(values.time.get()), owned(values.fields[0].get())))
    }

    #[test]
    fn logfmt_values_are_plain_or_quoted() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            read("ts=1 flag path=/a x=\"path=/b\""),
            Some((some("1"), some("/a")))
        );
        assert_eq!(
            read(r#"path="/a \"b\" \\" ts=2"#),
            Some((some("2"), some(r#"/a "b" \"#)))
        );
        assert_eq!(read("path= ts=3"), Some((some("3"), some(""))));
        assert_eq!(read("level=info"), Some((None, None)));
        assert_eq!(read(r#"path="/a ts=2"#), None);
        assert_eq!(read("plain text"), None);
    }
}
