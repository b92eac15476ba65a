//! The fields that a replay reads from a line. Tests: below.

use std::str::FromStr;

/// A field of the key, with the name of its descriptor entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyField {
    /// The name of the entry that rules match.
    pub entry: String,
    /// The field of the log.
    pub field: String,
}

impl FromStr for KeyField {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (entry, field) = text.split_once('=').unwrap_or((text, text));
        if entry.is_empty() || field.is_empty() {
            return Err(format!("`{text}` is no field, expected FIELD or ENTRY=FIELD"));
        }
        Ok(Self {
            entry: entry.to_owned(),
            field: field.to_owned(),
        })
    }
}

/// The names of the fields to read: those of the key, then that of the cost.
#[derive(Clone, Debug, Default)]
pub(super) struct FieldNames {
    /// The field of the time; `None` for the usual names of the format.
    pub(super) time: Option<String>,
    pub(super) fields: Vec<String>,
}

/// The texts of the fields of one line. The buffers are reused for the next line.
#[derive(Clone, Debug)]
pub(super) struct FieldValues {
    pub(super) time: FieldValue,
    pub(super) fields: Vec<FieldValue>,
}

/// The text of a field, if the line has the field.
#[derive(Clone, Debug, Default)]
pub(super) struct FieldValue {
    text: String,
    is_present: bool,
}

impl FieldValues {
    pub(super) fn new(fields: usize) -> Self {
        Self {
            time: FieldValue::default(),
            fields: vec![FieldValue::default(); fields],
        }
    }

    pub(super) fn clear(&mut self) {
        self.time.clear();
        self.fields.iter_mut().for_each(FieldValue::clear);
    }
}

impl FieldValue {
    pub(super) fn set(&mut self, text: &str) {
        self.text.clear();
        self.text.push_str(text);
        self.is_present = true;
    }

    /// Returns the buffer for a text, which the caller replaces.
    pub(super) fn buffer(&mut self) -> &mut String {
        self.text.clear();
        self.is_present = true;
        &mut self.text
    }

    fn clear(&mut self) {
        self.text.clear();
        self.is_present = false;
    }

    pub(super) fn get(&self) -> Option<&str> {
        self.is_present.then_some(self.text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use crate::replay::line::KeyField;

    #[test]
    fn key_field_accepts_entry_name() {
        let parsed: KeyField = "remote_address=request.remote_ip".parse().unwrap();
        assert_eq!(
            (parsed.entry.as_str(), parsed.field.as_str()),
            ("remote_address", "request.remote_ip")
        );
        let parsed: KeyField = "path".parse().unwrap();
        assert_eq!((parsed.entry.as_str(), parsed.field.as_str()), ("path", "path"));
        assert!("=path".parse::<KeyField>().is_err());
    }
}
