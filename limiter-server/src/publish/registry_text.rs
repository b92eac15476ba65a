//! Conversions between documents and the text of a registry.
//!
//! The publisher compares the documents in SQL with the registry in Redis by their contents, and
//! writes documents of one to the other. An ended policy has no content, as a deleted document, so
//! that a tombstone and an absent policy are equal. The first line of a published text names the
//! newest change of the database, by which a restored copy is recognized.
//!
//! Tests: below, `tests/publish.rs`, `tests/restored_database.rs`.

use std::collections::BTreeMap;

use limiter_core::Timestamp;
use limiter_core::registry::PolicyRegistry;

use crate::overlay_text;
use crate::policy_text::{PolicyText, TextError, parse_rules, rules_to_toml};
use crate::publish::reconcile::{DocumentId, KnownState};
use crate::store::{ChangeMark, DocumentKind, ImportedDocument, OVERLAYS, RULES, StoredDocument};

/// The comment in the first line of a published text.
const MARK: &str = "# limiter-server database ";

/// The largest number of changes that one entry of the history lists.
const MAX_CHANGES: usize = 20;

/// Adds the newest change of the database to a text.
pub(super) fn with_mark(text: &str, newest: &ChangeMark) -> String {
    format!("{MARK}{newest}\n{text}")
}

/// Returns the newest change of the database when the text was published.
pub(super) fn read_mark(text: &str) -> Option<ChangeMark> {
    text.lines().next()?.strip_prefix(MARK)?.parse().ok()
}

/// Puts a document into a registry.
pub(super) fn put(document: &StoredDocument, registry: &PolicyRegistry) -> Result<(), TextError> {
    let invalid = |error: limiter_core::ConfigError| TextError::Unsuitable(error.to_string());
    match document.kind {
        DocumentKind::Policy => document.policy()?.put_into(registry).map_err(invalid),
        DocumentKind::Rules => {
            let rules = parse_rules(&document.body)?;
            registry.set_rules(rules.iter().cloned()).map_err(invalid)
        }
        DocumentKind::Overlays => {
            let overlays = overlay_text::parse(&document.body)?;
            overlay_text::copy(&overlays, registry).map_err(invalid)
        }
    }
}

/// Returns the contents of the documents of a registry. Ended policies are absent, as deleted
/// documents.
pub(super) fn contents(registry: &PolicyRegistry, now: i64) -> BTreeMap<DocumentId, String> {
    let mut contents = BTreeMap::new();
    // PostgreSQL stores no NUL. As one with a long name, such a policy is in the registry alone.
    let names = registry.names().into_iter().filter(|name| !name.contains('\0'));
    for name in names {
        if let Some(text) = PolicyText::of(registry, &name).filter(|text| !has_ended(text, now)) {
            contents.insert((DocumentKind::Policy, name), text.content());
        }
    }
    let rules = registry.rules();
    if !rules.is_empty()
        && let Ok(text) = rules_to_toml(&rules)
    {
        contents.insert((DocumentKind::Rules, RULES.to_owned()), text);
    }
    if overlay_text::is_in(registry)
        && let Ok(text) = overlay_text::of(registry)
    {
        contents.insert((DocumentKind::Overlays, OVERLAYS.to_owned()), text);
    }
    contents
}

/// Returns whether a text is not TOML, so that no process reads any part of it. A text with other
/// errors can be that of a newer program.
pub(super) fn is_damaged(text: &str) -> bool {
    text.parse::<toml::Table>().is_err()
}

/// Returns the content in force and those saved since, by revision, without texts that this program
/// cannot read: such a text must not be taken for a deletion.
pub(super) fn known_contents(
    document: &StoredDocument,
    texts: Option<BTreeMap<i64, String>>,
    now: i64,
) -> BTreeMap<i64, Option<String>> {
    let texts = texts.unwrap_or_else(|| [(document.revision, document.body.clone())].into());
    texts
        .into_iter()
        .filter_map(|(revision, body)| Some((revision, content(document, &body, now)?)))
        .collect()
}

/// Returns the content of a text; `None` inside for a deletion, and `None` for a text that this
/// program cannot read.
fn content(document: &StoredDocument, body: &str, now: i64) -> Option<Option<String>> {
    Some(match document.kind {
        DocumentKind::Policy => {
            let text = PolicyText::parse_stored(&document.name, body).ok()?;
            (!has_ended(&text, now)).then(|| text.content())
        }
        DocumentKind::Rules => {
            let rules = parse_rules(body).ok()?;
            let text = rules_to_toml(&rules).ok()?;
            (!rules.is_empty()).then_some(text)
        }
        DocumentKind::Overlays => {
            let overlays = overlay_text::parse(body).ok()?;
            let text = overlay_text::of(&overlays).ok()?;
            overlay_text::is_in(&overlays).then_some(text)
        }
    })
}

fn has_ended(text: &PolicyText, now: i64) -> bool {
    text.is_ended_at(timestamp(now))
}

pub(crate) fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_micros(u64::try_from(micros).unwrap_or_default())
}

/// Returns a document as the registry contains it; a tombstone for one that the registry does not
/// contain.
pub(super) fn imported(
    (kind, name): &DocumentId,
    known: &KnownState,
    found: &PolicyRegistry,
    now: i64,
) -> Option<ImportedDocument> {
    let whole = match kind {
        DocumentKind::Policy => None,
        DocumentKind::Rules => Some(rules_to_toml(&found.rules()).ok()?),
        DocumentKind::Overlays => Some(overlay_text::of(found).ok()?),
    };
    if let Some(body) = whole {
        return Some(ImportedDocument {
            kind: *kind,
            name: name.clone(),
            body,
            is_deletion: false,
            apps: None,
            note: None,
            summary: summary(*kind, known, found),
        });
    }
    let of_registry = PolicyText::of(found, name).filter(|text| !has_ended(text, now));
    let is_deletion = of_registry.is_none();
    let text = of_registry.or_else(|| {
        let before = known.documents.get(&(*kind, name.clone()))?;
        Some(before.document.policy().ok()?.tombstone(timestamp(now)))
    })?;
    Some(ImportedDocument {
        kind: *kind,
        name: name.clone(),
        body: text.to_toml(),
        is_deletion,
        apps: text.apps(),
        note: text.entry().metadata().note().map(stored_text),
        summary: None,
    })
}

/// Returns the changes of the suspensions and blocks in words.
fn summary(kind: DocumentKind, known: &KnownState, found: &PolicyRegistry) -> Option<String> {
    if kind != DocumentKind::Overlays {
        return None;
    }
    let before = known.documents.get(&(kind, OVERLAYS.to_owned()));
    let before = before.map_or("", |of| of.document.body.as_str());
    let changes = overlay_text::changes(&overlay_text::parse(before).ok()?, found);
    let listed = changes.iter().take(MAX_CHANGES).map(|text| stored_text(text));
    let mut listed: Vec<String> = listed.collect();
    if changes.len() > MAX_CHANGES {
        listed.push(format!("{} more changes", changes.len() - MAX_CHANGES));
    }
    (!listed.is_empty()).then(|| listed.join("; "))
}

/// Returns a text of another program without NUL, which PostgreSQL rejects.
fn stored_text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_round_trips_through_first_line() {
        let mark = ChangeMark {
            database: "db".to_owned(),
            change: 7,
            at: 1_800_000_000_000_000,
        };
        let text = with_mark("format = 1\n", &mark);
        assert_eq!(read_mark(&text), Some(mark));
        assert!(PolicyRegistry::from_toml(&text).is_ok());
        assert_eq!(read_mark("format = 1\n"), None);
    }
}
