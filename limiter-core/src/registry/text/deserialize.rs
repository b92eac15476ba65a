//! `Deserialize` for policies (feature `serde`).
//!
//! A policy is a map with its `name` and the fields of a policy's table in a registry text. The map
//! is written as such a text and read by its reader, so that fields, limits and errors have one
//! definition. Optional fields may be null.
//!
//! Tests: `tests/registry/deserialize.rs`.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::policy::Policy;
use crate::registry::RegistryError;
use crate::registry::text::parse;
use crate::registry::text::values::QuotedText;

/// The fields of a policy's table that belong to its registry entry, not to the policy.
const ENTRY_FIELDS: [&str; 9] = [
    "apps",
    "key",
    "until",
    "rate_type",
    "created_by",
    "created_at",
    "updated_by",
    "updated_at",
    "note",
];

/// The only field of the map by which the crate `toml` represents a time.
const TOML_TIME: &str = "$__toml_private_datetime";

/// A map with `name` and the fields of a policy's table in a [registry
/// text](crate::registry::PolicyRegistry::from_toml), in any format of serde.
///
/// ```
/// use limiter_core::Policy;
///
/// let json = r#"{"name": "search", "algorithm": "token_bucket", "capacity": 20, "rate": "10/s"}"#;
/// let policy: Policy = serde_json::from_str(json)?;
/// assert_eq!(policy.name(), "search");
///
/// let missing = serde_json::from_str::<Policy>(r#"{"name": "search", "algorithm": "token_bucket", "rate": "10/s"}"#);
/// assert!(missing.unwrap_err().to_string().contains("policy.search.capacity is missing"));
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// # Errors
///
/// All errors of the policy at once, each with the path of its field, separated by semicolons.
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = deserializer.deserialize_map(PolicyVisitor)?;
        let name = match fields.remove("name") {
            Some(FieldValue::Text(name)) => name,
            None | Some(FieldValue::Null) => return Err(D::Error::missing_field("name")),
            Some(other) => {
                let message = format!("the policy's name is {other}, expected a text");
                return Err(D::Error::custom(message));
            }
        };
        if let Some(field) = ENTRY_FIELDS.iter().find(|field| fields.contains_key(**field)) {
            let message = format!(
                "policy.{name}.{field} is a field of a registry entry, expected fields of a policy: \
                 read registries with `PolicyRegistry::from_toml`"
            );
            return Err(D::Error::custom(message));
        }
        let text = table(&name, &fields).map_err(D::Error::custom)?;
        let snapshot = parse("policy", &text).map_err(|error| D::Error::custom(Messages(&error)))?;
        let entry = snapshot.entries().next();
        entry
            .map(|entry| entry.policy().clone())
            .ok_or_else(|| D::Error::missing_field("algorithm"))
    }
}

/// Returns the table of a policy as text.
fn table(name: &str, fields: &BTreeMap<String, FieldValue>) -> Result<String, fmt::Error> {
    let mut text = format!("[policy.{}]\n", QuotedText(name));
    for (field, value) in fields {
        if !matches!(value, FieldValue::Null) {
            writeln!(text, "{} = {value}", QuotedText(field))?;
        }
    }
    Ok(text)
}

/// The errors of a text without their places, since the caller has not written the text.
struct Messages<'a>(&'a RegistryError);

impl fmt::Display for Messages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RegistryError::Parse { errors } = self.0 else {
            return self.0.fmt(f);
        };
        for (index, error) in errors.iter().enumerate() {
            let separator = if index > 0 { "; " } else { "" };
            write!(f, "{separator}{}", error.message())?;
        }
        Ok(())
    }
}

/// A value of a field; its text is a value of TOML.
enum FieldValue {
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<FieldValue>),
    Map(BTreeMap<String, FieldValue>),
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A field of null is absent, and lists do not contain nulls.
            Self::Null => Ok(()),
            Self::Bool(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Float(value) if value.is_nan() => f.write_str("nan"),
            // With a decimal point.
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Text(value) => QuotedText(value).fmt(f),
            Self::List(values) => {
                f.write_str("[")?;
                for (index, value) in values.iter().enumerate() {
                    let separator = if index > 0 { ", " } else { "" };
                    write!(f, "{separator}{value}")?;
                }
                f.write_str("]")
            }
            Self::Map(fields) => {
                f.write_str("{")?;
                let present = fields.iter().filter(|(_, value)| !matches!(value, Self::Null));
                for (index, (field, value)) in present.enumerate() {
                    let separator = if index > 0 { ", " } else { "" };
                    write!(f, "{separator}{} = {value}", QuotedText(field))?;
                }
                f.write_str("}")
            }
        }
    }
}

impl<'de> Deserialize<'de> for FieldValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldVisitor)
    }
}

struct PolicyVisitor;

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = BTreeMap<String, FieldValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map with the name and the fields of a policy")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        fields_of(map)
    }
}

/// Reads the fields of a map. As in a text, no field is given twice.
fn fields_of<'de, A: MapAccess<'de>>(mut map: A) -> Result<BTreeMap<String, FieldValue>, A::Error> {
    let mut fields = BTreeMap::new();
    while let Some((field, value)) = map.next_entry::<String, _>()? {
        if fields.contains_key(&field) {
            return Err(A::Error::custom(format_args!("duplicate field `{field}`")));
        }
        fields.insert(field, value);
    }
    Ok(fields)
}

struct FieldVisitor;

impl<'de> Visitor<'de> for FieldVisitor {
    type Value = FieldValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a boolean, a number, a text, a list or a map")
    }

    fn visit_unit<E: Error>(self) -> Result<FieldValue, E> {
        Ok(FieldValue::Null)
    }

    fn visit_none<E: Error>(self) -> Result<FieldValue, E> {
        Ok(FieldValue::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<FieldValue, D::Error> {
        FieldValue::deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<FieldValue, E> {
        Ok(FieldValue::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<FieldValue, E> {
        Ok(FieldValue::Integer(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<FieldValue, E> {
        let value = i64::try_from(value);
        value
            .map(FieldValue::Integer)
            .map_err(|_| E::custom("a number is too large, expected at most 9223372036854775807"))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<FieldValue, E> {
        Ok(FieldValue::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<FieldValue, E> {
        Ok(FieldValue::Text(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<FieldValue, E> {
        Ok(FieldValue::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<FieldValue, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = sequence.next_element()? {
            if matches!(value, FieldValue::Null) {
                return Err(A::Error::custom("a list contains null, expected values"));
            }
            values.push(value);
        }
        Ok(FieldValue::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FieldValue, A::Error> {
        let mut fields = fields_of(map)?;
        let time = (fields.len() == 1).then(|| fields.remove(TOML_TIME)).flatten();
        // A quoted time equals an unquoted one.
        Ok(time.unwrap_or(FieldValue::Map(fields)))
    }
}
