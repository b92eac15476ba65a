//! Policies and their revisions as JSON.

use serde_json::{Value, json};

use crate::admin::sentence::sentence;
use crate::store::{StoredDocument, StoredRevision};

/// Returns a policy as JSON.
pub(super) fn policy_json(document: &StoredDocument) -> Value {
    let text = document.policy().ok();
    json!({
        "namespace": document.namespace,
        "name": document.name,
        "sentence": text.as_ref().map(sentence),
        "enforcement": text.as_ref().map(|text| text.entry().policy().enforcement().to_string()),
        "apps": document.apps,
        "toml": document.body,
        "note": document.note,
        "revision": document.revision,
        "published": document.published,
        "state": document.state.name(),
        "deleted": document.is_deleted,
        "managed_by": document.managed_by,
        "created_by": document.created_by,
        "created_at": document.created_at,
        "updated_by": document.updated_by,
        "updated_at": document.updated_at,
    })
}

/// Returns a policy as JSON without the fields for which its text is parsed.
pub(super) fn brief_json(document: &StoredDocument) -> Value {
    // A note can contain the same text, so the few matches are parsed.
    let is_parsed = ["trial =", "key = ["]
        .iter()
        .any(|text| document.body.contains(text));
    let text = is_parsed.then(|| document.policy().ok()).flatten();
    let has_trial = text
        .as_ref()
        .is_some_and(|text| text.entry().policy().trial().is_some());
    let key_parts: Vec<&str> = text.iter().flat_map(|text| text.entry().key_parts()).collect();
    json!({
        "name": document.name,
        "apps": document.apps,
        "revision": document.revision,
        "state": document.state.name(),
        "has_trial": has_trial,
        "key_parts": key_parts,
        "updated_by": document.updated_by,
        "updated_at": document.updated_at,
    })
}

/// Returns a revision as JSON.
pub(super) fn revision_json(revision: &StoredRevision) -> Value {
    json!({
        "revision": revision.number,
        "deleted": revision.is_deletion,
        "state": revision.state.name(),
        "origin": revision.origin,
        "author": revision.author,
        "reason": revision.reason,
        "toml": revision.body,
        "created_at": revision.created_at,
    })
}
