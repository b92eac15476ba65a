//! Removes quotas of keys, suspensions and blocks some time after their end. The revisions of the
//! policies keep them.

use crate::overlay_text;
use crate::publish::timestamp;
use crate::retention::RetentionError;
use crate::store::{
    Author, DocumentKind, DocumentState, Origin, SaveRequest, Store, StoreError, StoredDocument,
};

/// The author of the revisions.
const AUTHOR: &str = "limiter-server";

/// Removes the entries that ended before a time. Returns the number of changed documents.
pub(super) async fn prune(
    store: &Store,
    namespace: &str,
    before: i64,
    now: i64,
) -> Result<u64, RetentionError> {
    let author = Author {
        name: AUTHOR.to_owned(),
        origin: Origin::Retention,
        reason: Some("entries that have ended".to_owned()),
        at: now,
    };
    let mut changed = 0;
    for document in store.documents(namespace).await? {
        let Some(body) = without_ended(&document, before) else {
            continue;
        };
        let request = SaveRequest {
            namespace: document.namespace,
            kind: document.kind,
            name: document.name,
            expected: document.revision,
            body,
            is_deletion: false,
            apps: document.apps,
            note: document.note,
            managed_by: document.managed_by,
        };
        match store.save(&request, &author).await {
            Ok(_) => changed += 1,
            // A user has changed the document. The next pass repeats the removal.
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(changed)
}

/// Returns the text of a document without ended entries; `None` if there are none, for a document
/// in conflict, and for a text of a newer program.
fn without_ended(document: &StoredDocument, before: i64) -> Option<String> {
    // A new revision would hide a conflict from the author of the replaced edit.
    if document.is_deleted || document.state == DocumentState::Conflict {
        return None;
    }
    let before = timestamp(before);
    match document.kind {
        DocumentKind::Policy => {
            let text = document.policy().ok()?;
            let kept = text.without_overrides_until(before);
            (kept.overrides().len() < text.overrides().len()).then(|| kept.to_toml())
        }
        DocumentKind::Overlays => {
            let registry = overlay_text::parse(&document.body).ok()?;
            let count = || registry.suspensions().len() + registry.blocks().len();
            let all = count();
            overlay_text::remove_ended(&registry, before).ok()?;
            (count() < all)
                .then(|| overlay_text::of(&registry).ok())
                .flatten()
        }
        DocumentKind::Rules => None,
    }
}
