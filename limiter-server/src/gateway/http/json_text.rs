//! Writes a JSON object into one buffer.
//!
//! A derived serializer escapes each name again for every object; here the names are literals.
//! Tests: below.

use serde::Serialize;

/// The length of most answers in bytes, for which the buffer is reserved.
const USUAL_BYTES: usize = 256;

/// The text of an object, or of several nested ones. Each begin has an end.
#[derive(Debug)]
pub(super) struct JsonText(Vec<u8>);

impl JsonText {
    /// Creates an empty text.
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(USUAL_BYTES))
    }

    /// Begins an object, or an item of a list.
    pub(super) fn begin_object(&mut self) {
        self.separate();
        self.0.push(b'{');
    }

    /// Ends an object.
    pub(super) fn end_object(&mut self) {
        self.0.push(b'}');
    }

    /// Begins a field whose value is a list. The name needs no escapes.
    pub(super) fn begin_list(&mut self, name: &'static str) {
        self.name(name);
        self.0.push(b'[');
    }

    /// Ends a list.
    pub(super) fn end_list(&mut self) {
        self.0.push(b']');
    }

    /// Writes a field. The name needs no escapes. Inlined, so that the length of the name is
    /// constant.
    #[inline]
    pub(super) fn field(&mut self, name: &'static str, value: &impl Serialize) {
        self.name(name);
        self.value(value);
    }

    /// Writes a field of any name.
    pub(super) fn escaped_field(&mut self, name: &str, value: &impl Serialize) {
        self.separate();
        self.value(&name);
        self.0.push(b':');
        self.value(value);
    }

    /// Returns the bytes of the text.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    #[inline]
    fn name(&mut self, name: &'static str) {
        self.separate();
        self.0.push(b'"');
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    #[inline]
    fn separate(&mut self) {
        if !matches!(self.0.last(), None | Some(b'{' | b'[' | b':')) {
            self.0.push(b',');
        }
    }

    fn value(&mut self, value: &impl Serialize) {
        // Texts and numbers are always JSON, and memory accepts every write.
        let _ = serde_json::to_writer(&mut self.0, value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn nested_objects_are_json() {
        let mut text = JsonText::new();
        text.begin_object();
        text.begin_list("empty");
        text.end_list();
        text.field("first", &"a\"b");
        text.begin_list("items");
        for number in 0..2 {
            text.begin_object();
            text.field("number", &number);
            text.field("none", &None::<u8>);
            text.end_object();
        }
        text.end_list();
        text.escaped_field("a\n", &true);
        text.end_object();
        let expected = json!({
            "empty": [],
            "first": "a\"b",
            "items": [{ "number": 0, "none": null }, { "number": 1, "none": null }],
            "a\n": true,
        });
        let read: Value = serde_json::from_slice(&text.into_bytes()).unwrap();
        assert_eq!(read, expected);
    }
}
