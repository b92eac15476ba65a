//! Changes of many documents of a namespace in one transaction.
//!
//! `policy apply` and the import of other configurations change hundreds of policies. Each change
//! passes the checks of a single one, the documents are read and compared with each other once, and
//! one transaction saves all of them or none. Tests: `tests/policy_command.rs`.

use limiter_core::registry::PolicyRegistry;

use crate::admin::edit::consistency::{ChangedTexts, require_consistent, require_still_consistent};
use crate::admin::edit::overlays::changed_overlays;
use crate::admin::edit::policy_check::SavedState;
use crate::admin::edit::rules::check_rules;
use crate::admin::edit::{EditError, PolicyEdit};
use crate::admin::permissions::Actor;
use crate::overlay_text;
use crate::publish::timestamp;
use crate::store::{Author, DocumentKind, OVERLAYS, Origin, RULES, Store, StoredDocument, now_micros};

/// Changes that are saved together.
#[derive(Debug)]
pub struct BatchEdit {
    /// The namespace.
    pub namespace: String,
    /// The changes of policies.
    pub policies: Vec<PolicyEdit>,
    /// The new rules; `None` keeps those of the database.
    pub rules: Option<RulesEdit>,
    /// Suspensions and blocks to add. The caller has checked the permission.
    pub overlays: Option<PolicyRegistry>,
    /// The reason of all changes.
    pub reason: Option<String>,
    /// The program.
    pub origin: Origin,
}

/// A change of the rules.
#[derive(Clone, Debug)]
pub struct RulesEdit {
    /// The revision that the author read; 0 without rules.
    pub expected: i64,
    /// The new text.
    pub text: String,
}

/// A change that prevents the others.
#[derive(Debug)]
pub struct BatchFailure {
    /// The name of the policy; `rules` and `overlays` for the other documents.
    pub name: String,
    /// The reason.
    pub error: EditError,
}

/// Saves all changes, or none. Returns the number of changed documents.
///
/// # Errors
///
/// Each change that is not possible, with the reason.
pub async fn save_batch(store: &Store, actor: &Actor, batch: BatchEdit) -> Result<usize, Vec<BatchFailure>> {
    let at = now_micros();
    let whole = |error: EditError| {
        let name = batch.namespace.clone();
        vec![BatchFailure { name, error }]
    };
    let saved = SavedState::read(store, &batch.namespace).await;
    let saved = saved.map_err(|error| whole(error.into()))?;
    let (mut checked, mut failures) = (Vec::new(), Vec::new());
    for edit in batch.policies {
        let name = edit.name.clone();
        match saved.check(actor, edit, at) {
            Ok(edit) => match edit.exceeded {
                None => checked.push(edit),
                Some(reason) => failures.push(BatchFailure {
                    name,
                    error: EditError::Forbidden(reason),
                }),
            },
            Err(error) => failures.push(BatchFailure { name, error }),
        }
    }
    let rules = batch.rules.as_ref().map(|rules| {
        let request = check_rules(actor, &batch.namespace, rules.expected, &rules.text);
        request.map_err(|error| (RULES, error))
    });
    let overlays = batch.overlays.as_ref().map(|added| {
        let current = saved
            .documents
            .iter()
            .find(|of| of.kind == DocumentKind::Overlays);
        let add = |registry: &PolicyRegistry| Ok(overlay_text::add(added, registry, timestamp(at))?);
        let request = changed_overlays(&batch.namespace, current, at, add);
        request.map_err(|error| (OVERLAYS, error))
    });
    let mut others = Vec::new();
    for request in [rules, overlays].into_iter().flatten() {
        match request {
            Ok(request) => others.push(request),
            Err((name, error)) => failures.push(BatchFailure {
                name: name.to_owned(),
                error,
            }),
        }
    }
    if !failures.is_empty() {
        return Err(failures);
    }
    let body = |kind| {
        others
            .iter()
            .find(|of| of.kind == kind)
            .map(|of| of.body.as_str())
    };
    let changes = ChangedTexts {
        policies: checked.iter().map(|edit| &edit.text).collect(),
        rules: body(DocumentKind::Rules),
        overlays: body(DocumentKind::Overlays),
    };
    require_consistent(&saved.documents, &changes).map_err(whole)?;
    let author = Author {
        name: actor.name.clone(),
        origin: batch.origin,
        reason: batch.reason,
        at,
    };
    let mut requests: Vec<_> = checked.iter().map(|edit| edit.request.clone()).collect();
    requests.extend(others.iter().cloned());
    let is_consistent = |now: &[StoredDocument]| require_still_consistent(&saved.documents, now, &changes);
    let failed = |(name, error): (String, _)| BatchFailure {
        name,
        error: EditError::from(error),
    };
    match store.save_checked(&requests, &author, &is_consistent).await {
        Ok(saved) => Ok(saved.len()),
        Err(failures) => Err(failures
            .into_iter()
            .map(|of| failed((of.name, of.error)))
            .collect()),
    }
}
