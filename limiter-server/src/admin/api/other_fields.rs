//! Rejects the unknown fields of a body that has flattened fields.
//!
//! serde ignores `deny_unknown_fields` of such a body, so a misspelled `until` would add a block
//! without an end. A body has [`NoOtherFields`] as its last flattened field, which receives the
//! fields that the others have left. Tests: `misspelled_fields_of_bodies_are_rejected` in
//! `tests/api_lists.rs`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// The fields that no other field of a body reads: there must be none.
#[derive(Debug)]
pub(super) struct NoOtherFields;

impl<'de> Deserialize<'de> for NoOtherFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NoOtherFieldsVisitor)
    }
}

struct NoOtherFieldsVisitor;

impl<'de> Visitor<'de> for NoOtherFieldsVisitor {
    type Value = NoOtherFields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no other fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NoOtherFields, A::Error> {
        match map.next_key::<String>()? {
            Some(name) => Err(A::Error::custom(format!("unknown field `{name}`"))),
            None => Ok(NoOtherFields),
        }
    }
}
