//! Tables of a text, whose fields are taken out one by one; what stays is unknown.

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
use crate::units::{Amount, parse_duration};

/// One value, and where it stands.
pub(super) struct Field<'t> {
    pub(super) name: &'t str,
    /// As messages call it: `policy.search.rate`.
    pub(super) path: String,
    pub(super) value: &'t DeValue<'t>,
    /// Where its name stands, or the value of one that has none.
    pub(super) at: usize,
    span: Range<usize>,
}

impl<'t> Field<'t> {
    /// One that has a number in place of a name.
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
        let told = format!(
            "{} is {}, expected {expected}",
            self.path,
            report.excerpt(self.span.clone())
        );
        report.push(self.span.start, told);
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

    /// A number of permits.
    pub(super) fn amount(&self, report: &mut ErrorReport<'_>) -> Option<Amount> {
        const EXPECTED: &str = "a number such as 20, 1_000 or 0.5, with at most three decimals";
        let amount = number(self.value);
        if amount.is_none() {
            self.refuse(report, EXPECTED);
        }
        amount
    }

    /// Permits per time, or a number of them per second.
    pub(super) fn rate(&self, report: &mut ErrorReport<'_>) -> Option<Rate> {
        let rate = match self.value {
            DeValue::String(text) => text.parse(),
            DeValue::Integer(_) | DeValue::Float(_) => Rate::per_second(self.amount(report)?),
            _ => Rate::try_from(""),
        };
        rate.map_err(|error| self.refuse_as(report, &error)).ok()
    }

    pub(super) fn duration(&self, report: &mut ErrorReport<'_>) -> Option<Duration> {
        let span = parse_duration(self.text_or_nothing());
        span.map_err(|error| self.refuse_as(report, &error)).ok()
    }

    /// A duration, or `"month"`.
    pub(super) fn window(&self, report: &mut ErrorReport<'_>) -> Option<Window> {
        let window = Window::try_from(self.text_or_nothing());
        window.map_err(|error| self.refuse_as(report, &error)).ok()
    }

    /// Whatever is read from text.
    pub(super) fn parsed<T: FromStr<Err = ConfigError>>(&self, report: &mut ErrorReport<'_>) -> Option<T> {
        let parsed = self.text_or_nothing().parse();
        parsed.map_err(|error| self.refuse_as(report, &error)).ok()
    }

    /// A list of keys.
    pub(super) fn keys(&self, report: &mut ErrorReport<'_>) -> Option<KeyList> {
        let DeValue::Array(values) = self.value else {
            self.refuse(report, "a list of keys, such as [\"10.0.0.0/8\", \"user:*\"]");
            return None;
        };
        let before = report.len();
        let mut texts = Vec::with_capacity(values.len());
        for (index, value) in values.iter().enumerate() {
            let entry = Field::new(format!("{}[{index}]", self.path), value);
            let text = entry.text(report, "a key").unwrap_or("*");
            // Each entry is parsed alone first, so that every error is reported where its entry is.
            if let Err(error) = KeyList::parse([text]) {
                entry.refuse_as(report, &error);
            }
            texts.push(text);
        }
        if report.len() > before {
            return None;
        }
        let keys = KeyList::parse(texts);
        keys.map_err(|error| self.refuse_as(report, &error)).ok()
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

    /// A whole number of 32 bits.
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

    /// The version of a format: a whole number from 1.
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
        // A higher one is as unknown as the highest.
        Some(u32::try_from(version).unwrap_or(u32::MAX)).filter(|version| *version > 0)
    }

    fn text_or_nothing(&self) -> &'t str {
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
        // As text, so that it is what its author wrote.
        DeValue::Float(float) => float.as_str().trim_start_matches('+').parse().ok(),
        _ => None,
    }
}

/// A table whose fields are taken out.
pub(super) struct Table<'t> {
    path: String,
    at: usize,
    fields: BTreeMap<&'t str, Field<'t>>,
    /// Of those that were taken.
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

    /// Refuses the value of a field that was taken, or the table as a whole.
    pub(super) fn refuse(&self, report: &mut ErrorReport<'_>, name: &str, expected: &str) {
        match self.spans.get(name) {
            Some(span) => {
                let value = report.excerpt(span.clone());
                let told = format!("{}.{name} is {value}, expected {expected}", self.path);
                report.push(span.start, told);
            }
            None => report.push(self.at, format!("{}: {name}, expected {expected}", self.path)),
        }
    }

    /// All that was not taken is a mistake.
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

/// A name as it may be written without doubt.
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
