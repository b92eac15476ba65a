//! One JSON object per line. A dot in a field name selects a field of a nested object, or is a part
//! of a name in the line, as some loggers write nested fields.
//!
//! A replay reads few fields of each line, so a visitor of `serde` stores these into reused buffers
//! and skips all other values; no tree of values is built. The names that lead to an object form a
//! linked list on the stack. Of a list the first element is read, and null is an absent field.
//!
//! A line that is not exactly one object is an error. Tests: below.

use std::borrow::Cow;
use std::fmt;
use std::fmt::Write as _;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::replay::line::{FieldNames, FieldValue, FieldValues};
use crate::replay::problems::{LineProblem, ProblemKind};

/// Reads fields of JSON objects.
#[derive(Clone, Debug)]
pub(super) struct JsonParser {
    time: Vec<String>,
    fields: Vec<String>,
}

impl JsonParser {
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
        let mut parser = serde_json::Deserializer::from_str(line);
        let object = ObjectVisitor {
            parser: self,
            values,
            path: Nested::Root,
        };
        let read = parser.deserialize_map(object).and_then(|()| parser.end());
        read.map_err(|error| LineProblem::new(ProblemKind::Format, line, format!("a JSON object: {error}")))
    }
}

/// The object that is read, as the names of the fields that lead to it.
#[derive(Clone, Copy, Debug)]
enum Nested<'a> {
    Root,
    In(&'a Nested<'a>, &'a str),
}

impl Nested<'_> {
    /// Returns the rest of a wanted field after the names that lead to this object; `None` if they
    /// do not begin it.
    fn rest_of<'w>(&self, wanted: &'w str) -> Option<&'w str> {
        let Self::In(parent, name) = self else {
            return Some(wanted);
        };
        let rest = parent.rest_of(wanted)?;
        let rest = match parent {
            Self::Root => rest,
            Self::In(..) => rest.strip_prefix('.')?,
        };
        rest.strip_prefix(*name)
    }

    /// Returns whether the wanted field is this one, or a field of this object.
    fn leads_to(&self, wanted: &str) -> bool {
        let rest = self.rest_of(wanted);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    fn is(&self, wanted: &str) -> bool {
        self.rest_of(wanted) == Some("")
    }
}

struct ObjectVisitor<'a> {
    parser: &'a JsonParser,
    values: &'a mut FieldValues,
    path: Nested<'a>,
}

impl<'de> Visitor<'de> for ObjectVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key_seed(NameSeed)? {
            let path = Nested::In(&self.path, &name);
            let paths = self.parser.time.iter().chain(&self.parser.fields);
            if paths.into_iter().any(|wanted| path.leads_to(wanted)) {
                map.next_value_seed(ValueSeed {
                    parser: self.parser,
                    values: &mut *self.values,
                    path,
                })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Reads a name, borrowed where it has no escapes.
struct NameSeed;

impl<'de> DeserializeSeed<'de> for NameSeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for NameSeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

struct ValueSeed<'a> {
    parser: &'a JsonParser,
    values: &'a mut FieldValues,
    path: Nested<'a>,
}

impl ValueSeed<'_> {
    fn set(&mut self, set: impl Fn(&mut FieldValue)) {
        if self.parser.time.iter().any(|wanted| self.path.is(wanted)) && self.values.time.get().is_none() {
            set(&mut self.values.time);
        }
        for (wanted, value) in self.parser.fields.iter().zip(&mut self.values.fields) {
            if self.path.is(wanted) {
                set(value);
            }
        }
    }

    fn set_number(&mut self, number: impl fmt::Display) {
        self.set(|value| {
            // Writing to a string cannot fail.
            let _ = write!(value.buffer(), "{number}");
        });
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<(), E> {
        self.set(|value| value.set(text));
        Ok(())
    }

    fn visit_u64<E: Error>(mut self, number: u64) -> Result<(), E> {
        self.set_number(number);
        Ok(())
    }

    fn visit_i64<E: Error>(mut self, number: i64) -> Result<(), E> {
        self.set_number(number);
        Ok(())
    }

    fn visit_f64<E: Error>(mut self, number: f64) -> Result<(), E> {
        self.set_number(number);
        Ok(())
    }

    fn visit_bool<E: Error>(mut self, value: bool) -> Result<(), E> {
        self.set_number(value);
        Ok(())
    }

    /// A field that is null is absent.
    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let object = ObjectVisitor {
            parser: self.parser,
            values: self.values,
            path: self.path,
        };
        object.visit_map(map)
    }

    /// Returns the first element of a list, as some servers write headers.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Some(()) = list.next_element_seed(self)? else {
            return Ok(());
        };
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::replay::json_lines::JsonParser;
    use crate::replay::line::{FieldNames, FieldValues};

    fn read(line: &str, fields: &[&str]) -> Option<Vec<Option<String>>> {
        let names = FieldNames {
            time: None,
            fields: fields.iter().map(|name| (*name).to_owned()).collect(),
        };
        let mut values = FieldValues::new(names.fields.len());
        JsonParser::new(&names, &["ts", "time"])
            .parse(line, &mut values)
            .ok()?;
        let all = std::iter::once(&values.time).chain(&values.fields);
        Some(all.map(|value| value.get().map(str::to_owned)).collect())
    }

    #[test]
    fn fields_are_read_at_any_depth() {
        let line = r#"{"ts":1700000000.123,"request":{"remote_ip":"::1","headers":{"Host":["a","b"]}},"n":-1,"x":null,"t":true}"#;
        let fields = [
            "request.remote_ip",
            "request.headers.Host",
            "n",
            "x",
            "t",
            "remote_ip",
        ];
        let values = read(line, &fields).unwrap();
        let expected = [
            Some("1700000000.123"),
            Some("::1"),
            Some("a"),
            Some("-1"),
            None,
            Some("true"),
            None,
        ];
        assert_eq!(values, expected.map(|text| text.map(str::to_owned)));
    }

    #[test]
    fn dots_can_be_parts_of_names() {
        let fields = [
            "source.ip",
            "http.request.method",
            "labels.app.name",
            "labels.app",
        ];
        let line =
            r#"{"source.ip":"::1","http":{"request.method":"GET"},"labels.app":{"name":"x"},"source":7}"#;
        let values = read(line, &fields).unwrap();
        let expected = [None, Some("::1"), Some("GET"), Some("x"), None];
        assert_eq!(values, expected.map(|text| text.map(str::to_owned)));
        let values = read(r#"{"source.ipv6":1,"sourceXip":2,"source":{".ip":3}}"#, &fields).unwrap();
        assert_eq!(values, [const { None }; 5]);
    }

    #[test]
    fn escaped_names_and_values_are_unescaped() {
        let values = read(r#"{"p\u0061th":"\u002fa","time":"x"}"#, &["path"]).unwrap();
        assert_eq!(values, [Some("x".to_owned()), Some("/a".to_owned())]);
    }

    #[test]
    fn other_values_than_objects_are_rejected() {
        for line in ["", "[]", "7", "{\"a\":1", "{\"a\":1} x", "{}{}"] {
            assert!(read(line, &["a"]).is_none(), "{line}");
        }
    }
}
