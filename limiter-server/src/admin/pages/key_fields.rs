//! The fields of the parts of a key, one for each: `part_0`, `part_1`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::key_text::{joined, parts_of};

/// The fields of the parts among those of a form.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct KeyFields(BTreeMap<String, String>);

/// A field of a form.
#[derive(Debug)]
pub(super) struct KeyInput {
    /// The declared name of the part.
    pub(super) label: String,
    pub(super) name: String,
    pub(super) value: String,
}

impl KeyFields {
    /// Returns the parts in order; empty if the form has no field for a part.
    pub(super) fn parts(&self) -> Vec<&str> {
        let parts = (0..).map_while(|number| self.0.get(&format!("part_{number}")));
        parts.map(|part| part.trim()).collect()
    }

    /// Returns the parts as one text; `None` if the form has no field for a part.
    pub(super) fn text(&self) -> Option<String> {
        let parts = self.parts();
        let is_empty = parts.iter().all(|part| part.is_empty());
        let text = match is_empty {
            true => String::new(),
            false => joined(&parts),
        };
        (!parts.is_empty()).then_some(text)
    }
}

/// Returns the fields of a key with these declared parts.
pub(super) fn fields_of(declared: &[String], key: &str) -> Vec<KeyInput> {
    let mut parts = parts_of(key).into_iter();
    let fields = declared.iter().enumerate().map(|(number, label)| KeyInput {
        label: label.clone(),
        name: format!("part_{number}"),
        value: parts.next().unwrap_or_default(),
    });
    fields.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(parts: &[&str]) -> KeyFields {
        let parts = parts.iter().enumerate();
        KeyFields(
            parts
                .map(|(number, part)| (format!("part_{number}"), (*part).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn parts_are_one_text() {
        assert_eq!(fields(&[]).text(), None);
        assert_eq!(fields(&["", ""]).text(), Some(String::new()));
        assert_eq!(
            fields(&[" acme ", "ann:x"]).text(),
            Some("acme / ann:x".to_owned())
        );
        let text = fields(&["acme / ann", "x"]).text();
        assert_eq!(text, Some("acme \\/ ann / x".to_owned()));
        let declared = ["tenant".to_owned(), "user".to_owned()];
        let shown = fields_of(&declared, "acme / ann");
        let values: Vec<&str> = shown.iter().map(|of| of.value.as_str()).collect();
        assert_eq!(values, ["acme", "ann"]);
        assert_eq!(fields_of(&declared, "acme")[1].value, "");
    }
}
