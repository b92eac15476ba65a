//! The import of a policy file into an empty database.
//!
//! Revision 1 of a policy has the authors, times and note of the file. The audit names the import.
//! Tests: `tests/control_plane/first_import.rs`.

use std::path::Path;

use limiter_core::registry::PolicyRegistry;

use crate::overlay_text;
use crate::policy_text::{PolicyText, rules_to_toml};
use crate::serve::policies;
use crate::store::{
    Author, Authorship, DocumentKind, OVERLAYS, Origin, RULES, SaveFailure, SaveRequest, Store, StoreError,
    now_micros,
};

/// The actor of the audit, and the author of documents without one.
const IMPORT: &str = "import";
/// The longest name of an author in bytes that all databases store.
const MAX_AUTHOR_BYTES: usize = 255;

/// Fills an empty database with the policies of a file.
pub(super) async fn import_file(store: &Store, namespace: &str, path: &Path) -> Result<(), String> {
    let documents = store
        .documents(namespace)
        .await
        .map_err(|error| error.to_string())?;
    if !documents.is_empty() {
        tracing::info!(path = %path.display(), "the database has policies; the policy file is not imported");
        return Ok(());
    }
    let registry = policies::read(path)?;
    let author = Author {
        name: IMPORT.to_owned(),
        origin: Origin::Command,
        reason: Some(format!("imported {}", path.display())),
        at: now_micros(),
    };
    let documents = documents_of(&registry, namespace, author.at)?;
    match store.save_existing(&documents, &author).await {
        Ok(_) => Ok(()),
        Err(failures) => {
            // Another node imports the same file.
            let is_other = |of: &SaveFailure| matches!(of.error, StoreError::Conflict { .. });
            let failure = failures.into_iter().find(|of| !is_other(of));
            failure.map_or(Ok(()), |of| Err(format!("{}: {}", of.name, of.error)))
        }
    }
}

/// Returns the documents of a registry with their authors.
fn documents_of(
    registry: &PolicyRegistry,
    namespace: &str,
    now: i64,
) -> Result<Vec<(SaveRequest, Authorship)>, String> {
    let request = |kind, name: String, body| SaveRequest {
        namespace: namespace.to_owned(),
        kind,
        name,
        expected: 0,
        body,
        is_deletion: false,
        apps: None,
        note: None,
        managed_by: crate::admin::edit::MANAGED_BY_UI.to_owned(),
    };
    let mut documents = Vec::new();
    for name in registry.names() {
        let text = PolicyText::of(registry, &name)
            .ok_or_else(|| format!("the name of policy `{name}` is too long for the database"))?;
        let authorship = authorship_of(&text, now)?;
        let note = text.entry().metadata().note();
        require_storable(&name, "note", note, usize::MAX)?;
        let request = SaveRequest {
            apps: text.apps(),
            note: note.map(str::to_owned),
            ..request(DocumentKind::Policy, name, text.to_toml())
        };
        documents.push((request, authorship));
    }
    let imported = Authorship {
        created_by: IMPORT.to_owned(),
        created_at: now,
        updated_by: IMPORT.to_owned(),
        updated_at: now,
    };
    let rules = registry.rules();
    if !rules.is_empty() {
        let text = rules_to_toml(&rules).map_err(|error| error.to_string())?;
        let request = request(DocumentKind::Rules, RULES.to_owned(), text);
        documents.push((request, imported.clone()));
    }
    if overlay_text::is_in(registry) {
        let text = overlay_text::of(registry).map_err(|error| error.to_string())?;
        documents.push((
            request(DocumentKind::Overlays, OVERLAYS.to_owned(), text),
            imported,
        ));
    }
    Ok(documents)
}

/// Returns the authors and times of a policy. A policy without a last change has that of its
/// creation.
fn authorship_of(text: &PolicyText, now: i64) -> Result<Authorship, String> {
    let metadata = text.entry().metadata();
    let (created_by, updated_by) = (metadata.created_by(), metadata.updated_by());
    require_storable(text.name(), "created_by", created_by, MAX_AUTHOR_BYTES)?;
    require_storable(text.name(), "updated_by", updated_by, MAX_AUTHOR_BYTES)?;
    let micros = |time: limiter_core::Timestamp| i64::try_from(time.as_micros()).unwrap_or(now).min(now);
    let (created_at, updated_at) = (metadata.created_at(), metadata.updated_at());
    Ok(Authorship {
        created_by: created_by.unwrap_or(IMPORT).to_owned(),
        created_at: created_at.or(updated_at).map_or(now, micros),
        updated_by: updated_by.or(created_by).unwrap_or(IMPORT).to_owned(),
        updated_at: updated_at.or(created_at).map_or(now, micros),
    })
}

/// Fails for a text that a database cannot store.
fn require_storable(policy: &str, field: &str, text: Option<&str>, longest: usize) -> Result<(), String> {
    match text {
        Some(text) if text.len() > longest => Err(format!(
            "policy `{policy}`: {field} has {} bytes, expected at most {longest}",
            text.len()
        )),
        Some(text) if text.contains('\0') => Err(format!(
            "policy `{policy}`: {field} contains the character NUL, expected a text without it"
        )),
        _ => Ok(()),
    }
}
