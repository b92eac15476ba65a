//! The key of an annotation as a template, and the keys that it produces.
//!
//! A program reads or resets the budget of an annotated function by the values of the placeholders,
//! without a call of the function. `place` inserts these values into the parsed format strings of
//! the key and of its group, by the methods of `KeyBuffer` that the expansion also calls.
//!
//! Invariant: for equal values, the key equals the key of a call. Tests: below, and
//! `tests/contract/annotations.rs`.

use std::fmt;

use crate::error::ConfigError;
use crate::key::{Key, KeyBuffer};

/// The value of `key =` or `group =`.
#[derive(Clone, Copy, Debug)]
pub enum KeyTemplate {
    /// A format string; the empty string is one key for all calls.
    Template {
        /// The format string as written.
        text: &'static str,
        /// The parsed format string.
        pieces: &'static [TemplatePiece],
    },
    /// An expression.
    Computed,
}

/// A piece of a format string.
#[derive(Clone, Copy, Debug)]
pub enum TemplatePiece {
    /// Literal text, with unescaped braces.
    Text(&'static str),
    /// A placeholder: the text between the braces.
    Part(&'static str),
}

impl KeyTemplate {
    pub(crate) fn text(&self) -> Option<&'static str> {
        match self {
            Self::Template { text, .. } => Some(text),
            Self::Computed => None,
        }
    }

    /// Returns the placeholders, in their order; none for an expression.
    pub(crate) fn placeholders(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.pieces().iter().filter_map(|piece| match piece {
            TemplatePiece::Part(name) => Some(*name),
            TemplatePiece::Text(_) => None,
        })
    }

    /// Returns whether equal parts produce equal keys with both templates.
    pub(crate) fn has_same_key(&self, other: &Self) -> bool {
        let same = |(one, other): (&TemplatePiece, &TemplatePiece)| match (one, other) {
            (TemplatePiece::Text(one), TemplatePiece::Text(other)) => one == other,
            (TemplatePiece::Part(_), TemplatePiece::Part(_)) => true,
            _ => false,
        };
        let (one, two) = (self.pieces(), other.pieces());
        self.text().is_some() == other.text().is_some()
            && one.len() == two.len()
            && one.iter().zip(two).all(same)
    }

    /// Builds the key from values of its placeholders with the calls that the annotation uses, so
    /// that both escape alike.
    pub(crate) fn key<'v>(
        &self,
        mut value_of: impl FnMut(&'static str) -> Option<&'v str>,
    ) -> Option<Key<'static>> {
        let mut key = KeyBuffer::new();
        for piece in self.pieces() {
            match piece {
                TemplatePiece::Text(text) => key.text(text),
                TemplatePiece::Part(name) => key.part(value_of(name)?),
            };
        }
        Some(key.key().into_owned())
    }

    fn pieces(&self) -> &'static [TemplatePiece] {
        match self {
            Self::Template { pieces, .. } => pieces,
            Self::Computed => &[],
        }
    }
}

impl fmt::Display for KeyTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Template { text, .. } => write!(f, "\"{text}\""),
            Self::Computed => f.write_str("computed"),
        }
    }
}

/// Returns whether equal parts produce equal keys in equal groups.
pub(crate) fn places_alike(
    (one, one_group): (&KeyTemplate, Option<&KeyTemplate>),
    (other, other_group): (&KeyTemplate, Option<&KeyTemplate>),
) -> bool {
    let sources = |key, group: &KeyTemplate| {
        let names = part_names(key, Some(group));
        let source = |name| names.iter().position(|known| *known == name);
        group.placeholders().map(source).collect::<Vec<_>>()
    };
    let groups = match (one_group, other_group) {
        (None, None) => true,
        (Some(own), Some(others)) => own.has_same_key(others) && sources(one, own) == sources(other, others),
        _ => false,
    };
    groups && one.has_same_key(other)
}

/// Returns the names of the parts from which [`place`] builds a key: the placeholders of the key,
/// then those of its group that the key does not contain.
fn part_names(key: &KeyTemplate, group: Option<&KeyTemplate>) -> Vec<&'static str> {
    let mut names: Vec<&str> = key.placeholders().collect();
    for name in group.into_iter().flat_map(KeyTemplate::placeholders) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Formats a key with its group.
pub(super) fn whole_key(key: &KeyTemplate, group: Option<&KeyTemplate>) -> String {
    match group {
        None => format!("{key}"),
        Some(group) => format!("{key} in the group {group}"),
    }
}

/// Builds a key in its group from the parts of both: those of the key in their order, then those of
/// the group that the key does not contain.
pub(crate) fn build_key(
    name: &str,
    key: &KeyTemplate,
    group: Option<&KeyTemplate>,
    parts: &[String],
) -> Result<Key<'static>, ConfigError> {
    if key.text().is_none() || group.is_some_and(|group| group.text().is_none()) {
        let expected = match key.text() {
            None => {
                format!("the whole key, passed to `whole_key`: `{name}` computes its key by an expression")
            }
            Some(_) => {
                format!("the whole key, passed to `whole_key`: `{name}` computes its group by an expression")
            }
        };
        return Err(ConfigError::invalid(
            "key parts",
            format_args!("{}", parts.len()),
            expected,
        ));
    }
    let (own, names) = (key.placeholders().count(), part_names(key, group));
    let wrong_number = || {
        let named = match names.as_slice() {
            [] => String::new(),
            names => format!(" ({})", names.join(", ")),
        };
        let expected = format!(
            "{}{named}, because the key of `{name}` is {}",
            names.len(),
            whole_key(key, group)
        );
        ConfigError::invalid("number of key parts", parts.len(), expected)
    };
    if names.len() != parts.len() {
        return Err(wrong_number());
    }
    let mut in_order = parts.iter().take(own);
    let by_name = |name: &str| {
        let position = names.iter().position(|known| *known == name)?;
        parts.get(position).map(String::as_str)
    };
    let key = key.key(|_| in_order.next().map(String::as_str));
    let key = match group {
        None => key,
        Some(group) => key.and_then(|key| Some(key.in_group(group.key(by_name)?))),
    };
    // The number of values equals the number of placeholders.
    key.ok_or_else(wrong_number)
}

#[cfg(test)]
mod tests {
    use crate::annotations::key_template::*;

    const USER: KeyTemplate = KeyTemplate::Template {
        text: "{{{tenant}:{user.id}",
        pieces: &[
            TemplatePiece::Text("{"),
            TemplatePiece::Part("tenant"),
            TemplatePiece::Text(":"),
            TemplatePiece::Part("user.id"),
        ],
    };
    const TENANT: KeyTemplate = KeyTemplate::Template {
        text: "in {tenant}",
        pieces: &[TemplatePiece::Text("in "), TemplatePiece::Part("tenant")],
    };
    const REGION: KeyTemplate = KeyTemplate::Template {
        text: "{region}",
        pieces: &[TemplatePiece::Part("region")],
    };

    fn build(
        key: &KeyTemplate,
        group: Option<&KeyTemplate>,
        parts: &[&str],
    ) -> Result<Key<'static>, ConfigError> {
        let parts: Vec<String> = parts.iter().map(|&part| part.to_owned()).collect();
        build_key("search", key, group, &parts)
    }

    #[test]
    fn group_takes_equally_named_parts_from_the_key() {
        let key = || Key::from("{").part("a:b").text(":").part("7");
        assert_eq!(build(&USER, None, &["a:b", "7"]).unwrap(), key());
        assert_eq!(
            build(&USER, Some(&TENANT), &["a:b", "7"]).unwrap(),
            key().in_group(Key::from("in ").part("a:b"))
        );
        assert_eq!(
            build(&USER, Some(&REGION), &["a:b", "7", "eu"]).unwrap(),
            key().in_group("eu")
        );
    }

    #[test]
    fn wrong_number_of_parts_is_reported_with_the_template() {
        let error = |group, parts: &[&str]| build(&USER, group, parts).unwrap_err().to_string();
        assert_eq!(
            error(None, &["a"]),
            "number of key parts is `1`, expected 2 (tenant, user.id), because the key of `search` is \"{{{tenant}:{user.id}\""
        );
        assert!(
            error(Some(&REGION), &["a", "b"])
                .ends_with("expected 3 (tenant, user.id, region), because the key of `search` is \"{{{tenant}:{user.id}\" in the group \"{region}\"")
        );
        let computed = build(&USER, Some(&KeyTemplate::Computed), &["a", "b"]).unwrap_err();
        assert!(
            computed.to_string().ends_with(
                "expected the whole key, passed to `whole_key`: `search` computes its group by an expression"
            ),
            "{computed}"
        );
        let computed = build_key("search", &KeyTemplate::Computed, None, &[]).unwrap_err();
        assert!(
            computed
                .to_string()
                .ends_with("computes its key by an expression"),
            "{computed}"
        );
    }

    #[test]
    fn templates_are_equal_if_equal_parts_produce_equal_keys() {
        let other = KeyTemplate::Template {
            text: "in {t}",
            pieces: &[TemplatePiece::Text("in "), TemplatePiece::Part("t")],
        };
        assert!(
            TENANT.has_same_key(&other)
                && TENANT.has_same_key(&TENANT)
                && KeyTemplate::Computed.has_same_key(&KeyTemplate::Computed)
        );
        assert!(
            !TENANT.has_same_key(&REGION)
                && !TENANT.has_same_key(&KeyTemplate::Computed)
                && !USER.has_same_key(&TENANT)
        );
    }
    #[test]
    fn groups_of_different_parts_are_not_alike() {
        const USER_FIRST: KeyTemplate = KeyTemplate::Template {
            text: "{{{user.id}:{tenant}",
            pieces: &[
                TemplatePiece::Text("{"),
                TemplatePiece::Part("user.id"),
                TemplatePiece::Text(":"),
                TemplatePiece::Part("tenant"),
            ],
        };
        let renamed = KeyTemplate::Template {
            text: "in {customer}",
            pieces: &[TemplatePiece::Text("in "), TemplatePiece::Part("customer")],
        };
        assert!(places_alike((&USER, Some(&TENANT)), (&USER, Some(&TENANT))));
        assert!(!places_alike(
            (&USER, Some(&TENANT)),
            (&USER_FIRST, Some(&TENANT))
        ));
        assert!(!places_alike((&USER, Some(&TENANT)), (&USER, Some(&renamed))));
        assert!(!places_alike((&USER, Some(&TENANT)), (&USER, None)));
        assert!(places_alike((&USER, None), (&USER_FIRST, None)));
    }
}
