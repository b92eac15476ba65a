//! Tables of a text. Reading removes the fields one by one; the remaining fields are unknown.
//!
//! `Field` converts one value and reports an invalid one with its path, its position and the
//! expected values; `Table` contains the fields that are not yet read. Readers continue after an
//! error, so that a report contains all errors of a text. Tests: `tests/registry/text_errors.rs`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::ConfigError;
use crate::policy::{KeyList, Rate, Window};
use crate::registry::text::expected;
use crate::registry::text::report::ErrorReport;
use crate::registry::text::rfc3339;
use crate::units::{Amount, Timestamp, parse_duration};

/// A value and its position.
pub(super) struct Field<'t> {
    pub(super) name: &'t str,
    /// The name in messages: `policy.search.rate`.
    pub(super) path: String,
    pub(super) value: &'t DeValue<'t>,
    /// The position of the name, or of the value if it has no name.
    pub(super) at: usize,
    span: Range<usize>,
}

impl<'t> Field<'t> {
    /// Creates a field of an array, which has an index and no name.
    pub(super) fn new(path: String, value: &'t Spanned<DeValue<'t>>) -> Self {
        Self {
            name: "",
            path,
            value: value.get_ref(),
            at: value.span().start,
            span: value.span(),
        }
    }

    pub(super) fn refuse(&self, report: &mut ErrorReport<'_>, expected: &str) {
        let message = format!(
            "{} is {}, expected {expected}",
            self.path,
            report.excerpt(self.span.clone())
        );
        report.push(self.span.start, message);
    }

    pub(super) fn refuse_as(&self, report: &mut ErrorReport<'_>, error: &ConfigError) {
        self.refuse(report, &expected(error));
    }

    pub(super) fn table(&self, report: &mut ErrorReport<'_>) -> Option<Table<'t>> {
        match self.value {
            DeValue::Table(table) => Some(Table::new(self.path.clone(), self.at, table)),
            _ => {
                self.refuse(report, "a table");
                None
            }
        }
    }

    pub(super) fn text(&self, report: &mut ErrorReport<'_>, expected: &str) -> Option<&'t str> {
        match self.value {
            DeValue::String(text) => Some(text),
            _ => {
                self.refuse(report, &format!("{expected}, in quotes"));
                None
            }
        }
    }

    /// Reads a number of permits.
    pub(super) fn amount(&self, report: &mut ErrorReport<'_>) -> Option<Amount> {
        const EXPECTED: &str = "a number such as 20, 1_000 or 0.5, with at most three decimals";
        let amount = number(self.value);
        if amount.is_none() {
            self.refuse(report, EXPECTED);
        }
        amount
    }

    /// Reads a rate: permits per time, or a number per second.
    pub(super) fn rate(&self, report: &mut ErrorReport<'_>) -> Option<Rate> {
        let rate = match self.value {
            DeValue::String(text) => text.parse(),
            DeValue::Integer(_) | DeValue::Float(_) => Rate::per_second(self.amount(report)?),
            _ => Rate::try_from(""),
        };
        rate.map_err(|error| self.refuse_as(report, &error)).ok()
    }

    pub(super) fn duration(&self, report: &mut ErrorReport<'_>) -> Option<Duration> {
        let span = parse_duration(self.text_or_empty());
        span.map_err(|error| self.refuse_as(report, &error)).ok()
    }

    /// Reads a duration, or `"month"`.
    pub(super) fn window(&self, report: &mut ErrorReport<'_>) -> Option<Window> {
        let window = Window::try_from(self.text_or_empty());
        window.map_err(|error| self.refuse_as(report, &error)).ok()
    }

    /// Reads a value that is parsed from text.
    pub(super) fn parsed<T: FromStr<Err = ConfigError>>(&self, report: &mut ErrorReport<'_>) -> Option<T> {
        let parsed = self.text_or_empty().parse();
        parsed.map_err(|error| self.refuse_as(report, &error)).ok()
    }

    /// Reads an offset date-time.
    pub(super) fn time(&self, report: &mut ErrorReport<'_>) -> Option<Timestamp> {
        let time = rfc3339::parse(self.value);
        if time.is_none() {
            let expected = "a time after 1970 with its offset, such as 2030-12-31T23:59:59Z";
            self.refuse(report, expected);
        }
        time
    }

    /// Reads a list of keys.
    pub(super) fn keys(&self, report: &mut ErrorReport<'_>) -> Option<KeyList> {
        let DeValue::Array(values) = self.value else {
            self.refuse(report, "a list of keys, such as [\"10.0.0.0/8\", \"user:*\"]");
            return None;
        };
        let before = report.len();
        let mut list = KeyList::default();
        for (index, value) in values.iter().enumerate() {
            let entry = Field::new(format!("{}[{index}]", self.path), value);
            if let Some((key, end)) = entry.listed_key(report) {
                if let Err(error) = list.add(key, end) {
                    entry.refuse_as(report, &error);
                }
            }
        }
        (report.len() == before).then_some(list)
    }

    /// Reads an entry of a list of keys: a key, or a table with a key and its end.
    fn listed_key(&self, report: &mut ErrorReport<'_>) -> Option<(&'t str, Option<Timestamp>)> {
        let DeValue::Table(_) = self.value else {
            let text = self.text(report, "a key")?;
            return Some((text, None));
        };
        let mut table = self.table(report)?;
        let (key, until) = (table.require(report, "key"), table.take("until"));
        table.refuse_rest(report, "key or until");
        let key = key?.text(report, "a key")?;
        match until {
            Some(until) => Some((key, Some(until.time(report)?))),
            None => Some((key, None)),
        }
    }

    pub(super) fn flag(&self, report: &mut ErrorReport<'_>) -> Option<bool> {
        match self.value {
            DeValue::Boolean(flag) => Some(*flag),
            _ => {
                self.refuse(report, "true or false");
                None
            }
        }
    }

    /// Reads a whole number of 32 bits.
    pub(super) fn number(&self, report: &mut ErrorReport<'_>) -> Option<u32> {
        let number = match self.value {
            DeValue::Integer(integer) => u32::from_str_radix(integer.as_str(), integer.radix()).ok(),
            _ => None,
        };
        if number.is_none() {
            self.refuse(report, &format!("a whole number from 0 to {}", u32::MAX));
        }
        number
    }

    /// Reads the version of a format: a whole number from 1.
    pub(super) fn version(&self, report: &mut ErrorReport<'_>) -> Option<u32> {
        let version = self.as_version();
        if version.is_none() {
            self.refuse(report, "a whole number from 1");
        }
        version
    }

    pub(super) fn as_version(&self) -> Option<u32> {
        let DeValue::Integer(integer) = self.value else {
            return None;
        };
        let version = u64::from_str_radix(integer.as_str(), integer.radix()).ok()?;
        // A higher number is as unknown as the maximum.
        Some(u32::try_from(version).unwrap_or(u32::MAX)).filter(|version| *version > 0)
    }

    fn text_or_empty(&self) -> &'t str {
        match self.value {
            DeValue::String(text) => text,
            _ => "",
        }
    }
}

fn number(value: &DeValue<'_>) -> Option<Amount> {
    match value {
        DeValue::Integer(integer) => {
            let permits = u64::from_str_radix(integer.as_str(), integer.radix()).ok()?;
            Some(Amount::from(permits))
        }
        // Parsed from its text, so that no precision is lost.
        DeValue::Float(float) => float.as_str().trim_start_matches('+').parse().ok(),
        _ => None,
    }
}

/// A table whose fields are removed as they are read.
pub(super) struct Table<'t> {
    path: String,
    at: usize,
    fields: BTreeMap<&'t str, Field<'t>>,
    /// The positions of the removed fields.
    spans: BTreeMap<&'t str, Range<usize>>,
}

impl<'t> Table<'t> {
    pub(super) fn new(path: String, at: usize, table: &'t DeTable<'t>) -> Self {
        let fields = table.iter().map(|(key, value)| {
            let name: &'t str = key.get_ref();
            let shown = shown(name);
            let field = Field {
                name,
                path: if path.is_empty() {
                    shown
                } else {
                    format!("{path}.{shown}")
                },
                value: value.get_ref(),
                at: key.span().start,
                span: value.span(),
            };
            (name, field)
        });
        Self {
            fields: fields.collect(),
            spans: BTreeMap::new(),
            path,
            at,
        }
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Field<'t>> {
        let (name, field) = self.fields.remove_entry(name)?;
        self.spans.insert(name, field.span.clone());
        Some(field)
    }

    pub(super) fn require(&mut self, report: &mut ErrorReport<'_>, name: &str) -> Option<Field<'t>> {
        let field = self.take(name);
        if field.is_none() {
            self.report_missing(report, name);
        }
        field
    }

    pub(super) fn report_missing(&self, report: &mut ErrorReport<'_>, name: &str) {
        report.push(self.at, format!("{}.{name} is missing", self.path));
    }

    /// Reports the value of a removed field, or the whole table if it has no such field.
    pub(super) fn refuse(&self, report: &mut ErrorReport<'_>, name: &str, expected: &str) {
        match self.spans.get(name) {
            Some(span) => {
                let value = report.excerpt(span.clone());
                let message = format!("{}.{name} is {value}, expected {expected}", self.path);
                report.push(span.start, message);
            }
            None => report.push(self.at, format!("{}: {name}, expected {expected}", self.path)),
        }
    }

    /// Reports all remaining fields as unknown.
    pub(super) fn refuse_rest(&mut self, report: &mut ErrorReport<'_>, expected: &str) {
        for field in std::mem::take(&mut self.fields).into_values() {
            report.push_unknown(
                field.at,
                format!("{} is unknown, expected {expected}", field.path),
            );
        }
    }

    pub(super) fn into_fields(self) -> impl Iterator<Item = Field<'t>> {
        self.fields.into_values()
    }
}

/// Formats a name, quoted unless it is a bare key.
fn shown(name: &str) -> String {
    const SHOWN: usize = 60;
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !name.is_empty() && name.len() <= SHOWN && name.chars().all(is_bare) {
        name.to_owned()
    } else {
        let short: String = name.chars().take(SHOWN).collect();
        format!("{short:?}")
    }
}
