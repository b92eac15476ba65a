//! The checks of a changed policy: permission, owner, revision, text.
//!
//! The difference between the saved and the new text decides the required role: editors change
//! numbers within the bounds of the apps, owners change everything else. Beyond the bounds, the
//! change becomes a proposal. Of a policy that a repository manages, other sources change the
//! quotas of keys only.
//!
//! Invariants: the role is required in the apps before and after the change; the server sets author
//! and times. Tests: `tests/admin_api.rs`, `tests/routes_by_role.rs`,
//! `tests/control_plane/managed.rs`.

use limiter_core::registry::PolicyMetadata;
use limiter_core::{Inheritance, Timestamp};

use crate::admin::bounds::Bounds;
use crate::admin::edit::consistency::{ChangedTexts, require_consistent};
use crate::admin::edit::{EditError, PolicyEdit};
use crate::admin::permissions::{Actor, AdminAction, Object, Permission, may};
use crate::admin::tokens::is_relative_segment;
use crate::policy_text::PolicyText;
use crate::store::{
    Author, DocumentKind, Origin, SaveRequest, Store, StoreError, StoredApp, StoredDocument, now_micros,
};

/// A change that passed all checks.
#[derive(Debug)]
pub(super) struct CheckedEdit {
    pub(super) request: SaveRequest,
    pub(super) author: Author,
    /// The bound that an editor exceeds.
    pub(super) exceeded: Option<String>,
    /// The text of the request.
    pub(super) text: PolicyText,
}

/// Checks one change. Also returns the documents with which it was compared.
pub(super) async fn check(
    store: &Store,
    actor: &Actor,
    edit: PolicyEdit,
) -> Result<(CheckedEdit, Vec<StoredDocument>), EditError> {
    let saved = SavedState::read(store, &edit.namespace).await?;
    let checked = saved.check(actor, edit, now_micros())?;
    let changes = ChangedTexts {
        policies: vec![&checked.text],
        ..ChangedTexts::default()
    };
    require_consistent(&saved.documents, &changes)?;
    Ok((checked, saved.documents))
}

/// The documents and apps of a namespace, as they were before a change.
#[derive(Debug)]
pub(super) struct SavedState {
    pub(super) documents: Vec<StoredDocument>,
    apps: Vec<StoredApp>,
}

impl SavedState {
    pub(super) async fn read(store: &Store, namespace: &str) -> Result<Self, StoreError> {
        Ok(Self {
            documents: store.documents(namespace).await?,
            apps: store.apps(namespace).await?,
        })
    }

    /// Checks a change without its effect on the other documents.
    pub(super) fn check(&self, actor: &Actor, edit: PolicyEdit, at: i64) -> Result<CheckedEdit, EditError> {
        let is_this = |of: &&StoredDocument| of.kind == DocumentKind::Policy && of.name == edit.name;
        let found = self.documents.iter().find(is_this);
        let current = found.filter(|of| !of.is_deleted);
        if current.is_some_and(|current| !is_visible(actor, current)) {
            return Err(EditError::Hidden);
        }
        let before = found.and_then(|of| of.policy().ok());
        let new = match &edit.text {
            Some(text) => Some(PolicyText::parse(&edit.name, text)?),
            None => None,
        };
        let exceeded = self.permit(actor, &edit, (current, before.as_ref()), new.as_ref())?;
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
        require_published_deletion(found, before.as_ref(), &text)?;
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
        // The written form, with authors and times, is longer than the given text.
        let body = text.to_toml();
        if !is_deletion {
            PolicyText::require_length(&body)?;
        }
        require_without_nul("name", Some(&edit.name))?;
        // One that another program has created can be changed and deleted.
        if current.is_none() && is_relative_segment(&edit.name) {
            return Err(EditError::Invalid(format!(
                "the name of the policy is `{}`, which browsers remove from addresses, expected another name",
                edit.name
            )));
        }
        require_without_nul("note", note.as_deref())?;
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
                body,
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
            text,
        })
    }

    /// Decides whether the caller may make a change. Returns the bound that a proposal exceeds.
    fn permit(
        &self,
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
            Some(new) => self.exceeded_bound(new, before),
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

    fn exceeded_bound(&self, text: &PolicyText, before: Option<&PolicyText>) -> Option<String> {
        let of_policy = text.apps();
        let bounds = self
            .apps
            .iter()
            .filter(|app| of_policy.as_ref().is_none_or(|names| names.contains(&app.name)))
            .filter_map(|app| app.bounds.as_deref())
            .filter_map(|bounds| serde_json::from_str::<Bounds>(bounds).ok());
        bounds
            .filter_map(|bounds| bounds.exceeded_by(text, before))
            .next()
    }
}

pub(super) fn is_visible(actor: &Actor, document: &StoredDocument) -> bool {
    let object = Object::Policy {
        namespace: &document.namespace,
        apps: document.apps.as_deref(),
    };
    may(actor, AdminAction::Read, object) == Permission::Allowed
}

/// Fails if a policy of the other kind, rate or concurrency, replaces a deleted one that is still
/// in force: no registry accepts the change without the deletion, so its publication would fail.
fn require_published_deletion(
    found: Option<&StoredDocument>,
    before: Option<&PolicyText>,
    new: &PolicyText,
) -> Result<(), EditError> {
    let is_pending = found.is_some_and(|of| of.is_deleted && of.published < of.revision);
    let is_concurrency = |text: &PolicyText| text.entry().policy().algorithm_name() == "concurrency";
    match before.is_some_and(|before| is_pending && is_concurrency(before) != is_concurrency(new)) {
        false => Ok(()),
        true => Err(EditError::Invalid(
            "the deletion of the earlier policy of this name, which limits rates or concurrency in place of the \
             other, is not in force yet: try again when it is published"
                .to_owned(),
        )),
    }
}

/// Fails for a text that PostgreSQL cannot store. TOML has an escape for NUL.
fn require_without_nul(field: &str, text: Option<&str>) -> Result<(), EditError> {
    match text.is_some_and(|text| text.contains('\0')) {
        false => Ok(()),
        true => Err(EditError::Invalid(format!(
            "the {field} of the policy contains the character NUL, expected a text without it"
        ))),
    }
}

/// Rejects a change of a policy that a repository defines. Quotas of keys can be changed
/// everywhere.
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
        // Another treatment of the usage changes the text and the usage of all keys.
        (Some(before), Some(new)) if edit.inheritance == Inheritance::AsIs => {
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
