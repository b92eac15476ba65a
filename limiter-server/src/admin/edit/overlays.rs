//! Changes of the suspensions and blocks of a namespace. Tests: `tests/overlays.rs`.

use limiter_core::ConfigError;
use limiter_core::registry::PolicyRegistry;

use crate::admin::edit::consistency::{ChangedTexts, require_consistent};
use crate::admin::edit::{EditError, MANAGED_BY_UI};
use crate::overlay_text;
use crate::publish::timestamp;
use crate::store::{
    Author, DocumentKind, OVERLAYS, Origin, SaveRequest, Store, StoreError, StoredDocument, now_micros,
};

/// The largest number of attempts of a change. An attempt is repeated after a concurrent change.
const MAX_ATTEMPTS: usize = 8;

/// Returns the suspensions and blocks of a namespace as saved, and their revision.
///
/// # Errors
///
/// [`EditError`] when the database does not answer, or the text is that of a newer program.
pub async fn overlays(store: &Store, namespace: &str) -> Result<(PolicyRegistry, i64), EditError> {
    let kind = DocumentKind::Overlays;
    match store.document(namespace, kind, OVERLAYS).await? {
        None => Ok((PolicyRegistry::new(), 0)),
        Some(document) => Ok((overlay_text::parse(&document.body)?, document.revision)),
    }
}

/// Changes the suspensions and blocks of a namespace. The caller has checked the permission. The
/// reason is recorded in the audit. Suspensions and blocks that have ended stay until the retention
/// removes them, or until there are many.
///
/// # Errors
///
/// [`EditError`] when the change is invalid, or the database does not answer.
pub async fn save_overlays(
    store: &Store,
    (author, origin): (&str, Origin),
    namespace: &str,
    reason: &str,
    change: impl Fn(&PolicyRegistry) -> Result<(), EditError>,
) -> Result<i64, EditError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let at = now_micros();
        let documents = store.documents(namespace).await?;
        let current = documents.iter().find(|of| of.kind == DocumentKind::Overlays);
        let request = changed_overlays(namespace, current, at, &change)?;
        require_room(&documents, &request.body)?;
        let author = Author {
            name: author.to_owned(),
            origin,
            reason: Some(reason.to_owned()),
            at,
        };
        match store.save(&request, &author).await {
            Err(StoreError::Conflict { .. }) if attempt < MAX_ATTEMPTS => {}
            saved => return Ok(saved?.revision),
        }
    }
}

/// Fails if the changed text does not fit beside the policies and rules, which would prevent the
/// publication of all of them. A namespace that cannot be published anyway prevents no suspension.
fn require_room(documents: &[StoredDocument], body: &str) -> Result<(), EditError> {
    let changes = ChangedTexts {
        overlays: Some(body),
        ..ChangedTexts::default()
    };
    require_consistent(documents, &changes).or_else(|error| {
        match require_consistent(documents, &ChangedTexts::default()) {
            Ok(()) => Err(error),
            Err(_) => Ok(()),
        }
    })
}

/// Returns the request that saves changed suspensions and blocks. A text that cannot be read again
/// would prevent all further changes and the publication of the namespace, so it is not saved.
pub(super) fn changed_overlays(
    namespace: &str,
    current: Option<&StoredDocument>,
    at: i64,
    change: impl Fn(&PolicyRegistry) -> Result<(), EditError>,
) -> Result<SaveRequest, EditError> {
    let invalid = |error: ConfigError| EditError::Invalid(error.to_string());
    let (registry, expected) = match current {
        None => (PolicyRegistry::new(), 0),
        Some(document) => (overlay_text::parse(&document.body)?, document.revision),
    };
    overlay_text::make_room(&registry, timestamp(at)).map_err(invalid)?;
    change(&registry)?;
    let body = overlay_text::of(&registry).map_err(invalid)?;
    overlay_text::parse(&body)?;
    Ok(SaveRequest {
        namespace: namespace.to_owned(),
        kind: DocumentKind::Overlays,
        name: OVERLAYS.to_owned(),
        expected,
        body,
        is_deletion: false,
        apps: None,
        note: None,
        managed_by: MANAGED_BY_UI.to_owned(),
    })
}
