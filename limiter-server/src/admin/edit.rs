//! Changes of policies and rules: validation, permission, save.
//!
//! The API, the pages and the commands change policies by [`save_policy`], and many documents at
//! once by [`save_batch`]. Both compare the new text with the saved one, map the difference to an
//! action, and decide by [`may`]. A change of numbers beyond the bounds of an app by an editor is
//! stored as a proposal.
//!
//! Invariants: a save states the revision that its author read; the server sets authors and times,
//! also if the text contains others; the policies and rules of a namespace fit together after each
//! save. Tests: `tests/admin_api.rs`, `tests/routes_by_role.rs`, `tests/policy_command.rs`.

mod batch;
mod consistency;
mod overlays;
mod policy_check;
mod rules;

use limiter_core::{ConfigError, Inheritance};

pub use crate::admin::edit::batch::{BatchEdit, BatchFailure, RulesEdit, save_batch};
use crate::admin::edit::consistency::require_still_consistent;
pub(in crate::admin) use crate::admin::edit::consistency::{ChangedTexts, require_consistent};
pub use crate::admin::edit::overlays::{overlays, save_overlays};
use crate::admin::edit::policy_check::{CheckedEdit, check, is_visible};
pub use crate::admin::edit::rules::save_rules;
use crate::admin::permissions::Actor;
use crate::policy_text::TextError;
use crate::store::{
    Author, NewProposal, Origin, SaveRequest, Store, StoreError, StoredDocument, StoredProposal,
};

/// The owner of policies that users edit by the API and the pages.
pub const MANAGED_BY_UI: &str = "ui";

/// A change of a policy.
#[derive(Clone, Debug)]
pub struct PolicyEdit {
    /// The namespace.
    pub namespace: String,
    /// The name of the policy.
    pub name: String,
    /// The revision that the author read; 0 for a new policy.
    pub expected: i64,
    /// The new text; `None` deletes the policy.
    pub text: Option<String>,
    /// The treatment of the usage of keys.
    pub inheritance: Inheritance,
    /// The reason.
    pub reason: Option<String>,
    /// The program.
    pub origin: Origin,
    /// The owner of the text after the change.
    pub managed_by: String,
    /// True if a policy of another owner may be changed.
    pub takes_over: bool,
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditOutcome {
    /// Saved as a revision.
    Saved {
        /// The number.
        revision: i64,
    },
    /// Waits for the approval of an owner.
    Proposed {
        /// The identity of the proposal.
        id: String,
        /// The bound that the change exceeds.
        exceeded: String,
    },
}

/// The reason for a change that was not saved.
#[derive(Debug)]
pub enum EditError {
    /// The caller may not know that the policy exists.
    Hidden,
    /// The caller may not make this change.
    Forbidden(String),
    /// The text has errors.
    Invalid(String),
    /// The policy belongs to another source.
    Managed(String),
    /// The database rejected the change.
    Store(StoreError),
}

impl From<StoreError> for EditError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound => Self::Hidden,
            StoreError::Inconsistent(reason) => Self::Invalid(reason),
            error => Self::Store(error),
        }
    }
}

impl From<ConfigError> for EditError {
    fn from(error: ConfigError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<TextError> for EditError {
    fn from(error: TextError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// Changes a policy.
///
/// # Errors
///
/// [`EditError`] when the caller may not, or the text or the revision does not fit.
pub async fn save_policy(store: &Store, actor: &Actor, edit: PolicyEdit) -> Result<EditOutcome, EditError> {
    let checked = check(store, actor, edit).await?;
    let (checked, documents) = checked;
    let changes = ChangedTexts {
        policies: vec![&checked.text],
        ..ChangedTexts::default()
    };
    let CheckedEdit {
        request,
        author,
        exceeded,
        ..
    } = &checked;
    let Some(exceeded) = exceeded.clone() else {
        let saved = save_one(store, (request, author), (&documents, &changes)).await;
        let saved = saved.map_err(|error| without_hidden(actor, error))?;
        return Ok(EditOutcome::Saved { revision: saved });
    };
    let request = request.clone();
    let proposal = NewProposal {
        namespace: request.namespace,
        name: request.name,
        base: request.expected,
        body: request.body,
        apps: request.apps,
    };
    let id = store.propose(&proposal, author).await?;
    Ok(EditOutcome::Proposed { id, exceeded })
}

/// Approves a proposal.
///
/// # Errors
///
/// As [`save_policy`].
pub async fn approve(
    store: &Store,
    actor: &Actor,
    proposal: &StoredProposal,
    reason: Option<String>,
) -> Result<i64, EditError> {
    let edit = PolicyEdit {
        namespace: proposal.namespace.clone(),
        name: proposal.name.clone(),
        expected: proposal.base,
        text: Some(proposal.body.clone()),
        inheritance: Inheritance::AsIs,
        reason,
        origin: Origin::Proposal,
        managed_by: MANAGED_BY_UI.to_owned(),
        takes_over: false,
    };
    let (checked, documents) = check(store, actor, edit).await?;
    if checked.exceeded.is_some() {
        return Err(EditError::Forbidden("an owner approves proposals".to_owned()));
    }
    let changes = ChangedTexts {
        policies: vec![&checked.text],
        ..ChangedTexts::default()
    };
    let is_consistent = |now: &[StoredDocument]| require_still_consistent(&documents, now, &changes);
    let saved = store
        .approve(&proposal.id, &checked.request, &checked.author, is_consistent)
        .await;
    let saved = saved.map_err(|error| without_hidden(actor, error))?;
    Ok(saved.revision)
}

/// Saves a document if it still fits to the others in the transaction. `documents` are those with
/// which the changes were compared before.
async fn save_one(
    store: &Store,
    (request, author): (&SaveRequest, &Author),
    (documents, changes): (&[StoredDocument], &ChangedTexts<'_>),
) -> Result<i64, StoreError> {
    let is_consistent = |now: &[StoredDocument]| require_still_consistent(documents, now, changes);
    let requests = std::slice::from_ref(request);
    match store.save_checked(requests, author, &is_consistent).await {
        Ok(saved) => saved.first().map(|of| of.revision).ok_or(StoreError::NotFound),
        Err(failures) => {
            let failure = failures.into_iter().next();
            Err(failure.map_or(StoreError::NotFound, |of| of.error))
        }
    }
}

/// Returns a conflict without the current version, if the actor may not read it: that of a deleted
/// policy of another app, or of one that another user has saved since the check.
fn without_hidden(actor: &Actor, error: StoreError) -> StoreError {
    match error {
        StoreError::Conflict { expected, current } => StoreError::Conflict {
            expected,
            current: current.filter(|document| is_visible(actor, document)),
        },
        error => error,
    }
}
