//! Changes of policies and rules: validation, permission, save.
//!
//! The API, the pages and the commands change policies by [`save_policy`]. It compares the new text
//! with the saved one, maps the difference to an action, and decides by [`may`]. A change of
//! numbers beyond the bounds of an app by an editor is stored as a proposal.
//!
//! Invariants: a save states the revision that its author read; the server sets authors and times,
//! also if the text contains others; the policies and rules of a namespace fit together after each
//! save. Tests: `tests/admin_api.rs`, `tests/routes_by_role.rs`, `tests/policy_command.rs`.

mod overlays;
mod rules;

use limiter_core::registry::PolicyMetadata;
use limiter_core::{Inheritance, Timestamp};

use crate::admin::bounds::Bounds;
pub use crate::admin::edit::overlays::{overlays, save_overlays};
pub(in crate::admin) use crate::admin::edit::rules::require_consistent;
pub use crate::admin::edit::rules::save_rules;
use crate::admin::permissions::{Actor, AdminAction, Object, Permission, may};
use crate::policy_text::{PolicyText, TextError};
use crate::store::{
    Author, DocumentKind, NewProposal, Origin, SaveRequest, Store, StoreError, StoredDocument,
    StoredProposal, now_micros,
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
    /// Whether a policy of another owner may be changed.
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

/// Why a change was not saved.
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
            error => Self::Store(error),
        }
    }
}

impl From<TextError> for EditError {
    fn from(error: TextError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// A change that passed all checks.
#[derive(Debug)]
struct CheckedEdit {
    request: SaveRequest,
    author: Author,
    /// The bound that an editor exceeds.
    exceeded: Option<String>,
}

/// Changes a policy.
///
/// # Errors
///
/// [`EditError`] when the caller may not, or the text or the revision does not fit.
pub async fn save_policy(store: &Store, actor: &Actor, edit: PolicyEdit) -> Result<EditOutcome, EditError> {
    let checked = check(store, actor, edit).await?;
    let CheckedEdit {
        request,
        author,
        exceeded,
    } = checked;
    let Some(exceeded) = exceeded else {
        let saved = store.save(&request, &author).await?;
        return Ok(EditOutcome::Saved {
            revision: saved.revision,
        });
    };
    let proposal = NewProposal {
        namespace: request.namespace,
        name: request.name,
        base: request.expected,
        body: request.body,
        apps: request.apps,
    };
    let id = store.propose(&proposal, &author).await?;
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
    let checked = check(store, actor, edit).await?;
    if checked.exceeded.is_some() {
        return Err(EditError::Forbidden("an owner approves proposals".to_owned()));
    }
    let saved = store
        .approve(&proposal.id, &checked.request, &checked.author)
        .await?;
    Ok(saved.revision)
}

async fn check(store: &Store, actor: &Actor, edit: PolicyEdit) -> Result<CheckedEdit, EditError> {
    let at = now_micros();
    let documents = store.documents(&edit.namespace).await?;
    let is_this = |of: &&StoredDocument| of.kind == DocumentKind::Policy && of.name == edit.name;
    let found = documents.iter().find(is_this);
    let current = found.filter(|of| !of.is_deleted);
    if let Some(current) = current {
        require_visible(actor, current)?;
    }
    let before = found.and_then(|of| of.policy().ok());
    let new = match &edit.text {
        Some(text) => Some(PolicyText::parse(&edit.name, text)?),
        None => None,
    };
    let exceeded = permit(store, actor, &edit, (current, before.as_ref()), new.as_ref()).await?;
    if let Some(current) = current {
        require_owner(current, &edit, before.as_ref(), new.as_ref())?;
        if current.revision != edit.expected {
            return Err(EditError::Store(StoreError::Conflict {
                expected: edit.expected,
                current: Some(Box::new(current.clone())),
            }));
        }
    }
    let now = Timestamp::from_micros(u64::try_from(at).unwrap_or_default());
    let invalid = |error: limiter_core::ConfigError| EditError::Invalid(error.to_string());
    let (text, is_deletion) = match (new, &before) {
        (Some(new), Some(before)) => (
            new.replacing(before, edit.inheritance, now).map_err(invalid)?,
            false,
        ),
        (Some(new), None) => (new, false),
        (None, Some(before)) if current.is_some() => (before.tombstone(now), true),
        (None, _) => return Err(EditError::Hidden),
    };
    let author_name = &actor.name;
    let mut metadata = PolicyMetadata::new()
        .with_updated_by(author_name)
        .with_updated_at(now);
    metadata = match current {
        Some(current) => {
            metadata
                .with_created_by(&current.created_by)
                .with_created_at(Timestamp::from_micros(
                    u64::try_from(current.created_at).unwrap_or_default(),
                ))
        }
        None => metadata.with_created_by(author_name).with_created_at(now),
    };
    let note = text.entry().metadata().note().map(str::to_owned);
    if let Some(note) = &note {
        metadata = metadata.with_note(note);
    }
    let text = text.with_metadata(metadata);
    require_consistent(&documents, Some(&text), None)?;
    let managed_by = match current {
        // A change of quotas leaves the policy to its owner.
        Some(current) if !edit.takes_over => current.managed_by.clone(),
        _ => edit.managed_by,
    };
    Ok(CheckedEdit {
        request: SaveRequest {
            namespace: edit.namespace,
            kind: DocumentKind::Policy,
            name: edit.name,
            expected: edit.expected,
            body: text.to_toml(),
            is_deletion,
            apps: text.apps(),
            note,
            managed_by,
        },
        author: Author {
            name: actor.name.clone(),
            origin: edit.origin,
            reason: edit.reason,
            at,
        },
        exceeded,
    })
}

/// Decides whether the caller may make a change. Returns the bound that a proposal exceeds.
async fn permit(
    store: &Store,
    actor: &Actor,
    edit: &PolicyEdit,
    (current, before): (Option<&StoredDocument>, Option<&PolicyText>),
    new: Option<&PolicyText>,
) -> Result<Option<String>, EditError> {
    let namespace = edit.namespace.as_str();
    let changes_numbers = match (current, before, new) {
        (Some(_), Some(before), Some(new)) => {
            // Only owners restore a revision, also one that differs in its numbers only.
            edit.origin != Origin::Restore
                && edit.inheritance == Inheritance::AsIs
                && new.differs_in_numbers_only(before)
        }
        _ => false,
    };
    let old_apps = current.map(|current| current.apps.clone());
    let new_apps = new.map(PolicyText::apps);
    if !changes_numbers {
        for apps in [&old_apps, &new_apps].into_iter().flatten() {
            let object = Object::Policy {
                namespace,
                apps: apps.as_deref(),
            };
            if may(actor, AdminAction::EditPolicy, object) != Permission::Allowed {
                let reason = "this change needs the role owner in all apps of the policy".to_owned();
                return Err(EditError::Forbidden(reason));
            }
        }
        return Ok(None);
    }
    let apps = old_apps.flatten();
    let object = Object::Policy {
        namespace,
        apps: apps.as_deref(),
    };
    let exceeded = match new {
        Some(new) => exceeded_bound(store, namespace, new).await?,
        None => None,
    };
    let action = match exceeded {
        Some(_) => AdminAction::ExceedBounds,
        None => AdminAction::EditNumbers,
    };
    match may(actor, action, object) {
        Permission::Allowed => Ok(None),
        Permission::Proposal => Ok(exceeded),
        Permission::Forbidden | Permission::Hidden => {
            let reason = "this change needs the role editor in all apps of the policy".to_owned();
            Err(EditError::Forbidden(reason))
        }
    }
}

async fn exceeded_bound(
    store: &Store,
    namespace: &str,
    text: &PolicyText,
) -> Result<Option<String>, StoreError> {
    let of_policy = text.apps();
    let apps = store.apps(namespace).await?;
    let bounds = apps
        .iter()
        .filter(|app| of_policy.as_ref().is_none_or(|names| names.contains(&app.name)))
        .filter_map(|app| app.bounds.as_deref())
        .filter_map(|bounds| serde_json::from_str::<Bounds>(bounds).ok());
    let exceeded: Vec<String> = bounds.filter_map(|bounds| bounds.exceeded_by(text)).collect();
    Ok(exceeded.into_iter().next())
}

fn require_visible(actor: &Actor, document: &StoredDocument) -> Result<(), EditError> {
    let object = Object::Policy {
        namespace: &document.namespace,
        apps: document.apps.as_deref(),
    };
    match may(actor, AdminAction::Read, object) {
        Permission::Allowed => Ok(()),
        _ => Err(EditError::Hidden),
    }
}

/// A policy of a repository is changed there. Quotas of keys can be changed everywhere.
fn require_owner(
    current: &StoredDocument,
    edit: &PolicyEdit,
    before: Option<&PolicyText>,
    new: Option<&PolicyText>,
) -> Result<(), EditError> {
    if current.managed_by == edit.managed_by || edit.takes_over {
        return Ok(());
    }
    let changes_quotas_only = match (before, new) {
        (Some(before), Some(new)) => {
            let without = |text: &PolicyText| text.entry().clone().with_metadata(PolicyMetadata::new());
            without(before) == without(new)
        }
        _ => false,
    };
    match changes_quotas_only {
        true => Ok(()),
        false => Err(EditError::Managed(format!(
            "policy `{}` is managed by {}: change it there, or take it over",
            current.name, current.managed_by
        ))),
    }
}
