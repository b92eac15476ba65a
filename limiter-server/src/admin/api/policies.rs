//! Policies: list, read, save, delete, history, restore.
//!
//! A change states the revision that its author read, and `edit::save_policy` checks and saves it,
//! or stores it as a proposal. `run` first rejects a text that a process of the registry cannot
//! read, and wakes the publisher after a save. A page of the list is read until it is full, because
//! roles hide policies.
//!
//! Invariant: a caller sees a revision only with a role in the apps of that revision, since a
//! deleted name can belong to another app later. Tests: `tests/admin_api.rs`,
//! `tests/routes_by_role.rs`.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use limiter_core::Inheritance;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody, expected_revision};
use crate::admin::api::documents::{brief_json, policy_json, revision_json};
use crate::admin::api::paging::page;
use crate::admin::api::problem::AdminProblem;
use crate::admin::api::revisions::RevisionListQuery;
use crate::admin::edit::{self, EditOutcome, MANAGED_BY_UI, PolicyEdit};
use crate::admin::permissions::{Actor, AdminAction, Object, Permission, may};
use crate::policy_text::PolicyText;
use crate::store::{DocumentKind, Origin, StoredDocument, StoredRevision};

/// A page of a list by names.
#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct ListQuery {
    /// The last name of the previous page.
    #[serde(default)]
    after: String,
    limit: Option<i64>,
    /// Policies of this app only, including those of all apps.
    app: Option<String>,
    /// Policies whose name contains this text only.
    q: Option<String>,
    /// True to omit texts and sentences.
    #[serde(default)]
    brief: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SaveBody {
    toml: String,
    reason: Option<String>,
    #[serde(default)]
    inheritance: InheritanceName,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReasonBody {
    pub(super) reason: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RestoreBody {
    revision: i64,
    reason: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum InheritanceName {
    #[default]
    AsIs,
    Proportional,
    Reset,
}

impl From<InheritanceName> for Inheritance {
    fn from(name: InheritanceName) -> Self {
        match name {
            InheritanceName::AsIs => Self::AsIs,
            InheritanceName::Proportional => Self::Proportional,
            InheritanceName::Reset => Self::Reset,
        }
    }
}

/// Returns whether the caller may read an object of these apps.
pub(super) fn is_readable(actor: &Actor, namespace: &str, apps: Option<&[String]>) -> bool {
    may(actor, AdminAction::Read, Object::Policy { namespace, apps }) == Permission::Allowed
}

/// Returns whether the caller may read a version of a policy. A name that was deleted can belong to
/// another app later, and the readers of that app must not see the earlier versions.
fn is_readable_revision(actor: &Actor, namespace: &str, revision: &StoredRevision) -> bool {
    match revision.apps() {
        Some(apps) => is_readable(actor, namespace, apps.as_deref()),
        // The apps of a text that this program cannot read are not known.
        None => actor.apps_in(namespace).is_none(),
    }
}

pub(super) async fn list(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let limit = page(query.limit);
    let part = query.q.as_deref().map(str::to_lowercase);
    let mut policies = Vec::new();
    let mut after = query.after;
    let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
    let has_more = loop {
        // One more than a page shows whether there is another one.
        let found = admin
            .store()
            .policies(&namespace, &after, limit.saturating_add(1))
            .await?;
        let is_last = found.len() <= wanted;
        for document in found {
            after.clone_from(&document.name);
            let is_selected = is_readable(&caller.0, &namespace, document.apps.as_deref())
                && query
                    .app
                    .as_ref()
                    .is_none_or(|app| document.apps.as_ref().is_none_or(|apps| apps.contains(app)))
                && part
                    .as_ref()
                    .is_none_or(|part| document.name.to_lowercase().contains(part.as_str()));
            if is_selected {
                policies.push(match query.brief {
                    true => brief_json(&document),
                    false => policy_json(&document),
                });
            }
            if policies.len() > wanted {
                break;
            }
        }
        if policies.len() > wanted || is_last {
            break policies.len() > wanted;
        }
    };
    policies.truncate(wanted);
    let next = policies
        .last()
        .filter(|_| has_more)
        .map(|last| last["name"].clone());
    Ok(Json(json!({ "policies": policies, "next": next })))
}

/// Returns a policy that the caller may read.
pub(super) async fn find(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
    name: &str,
) -> Result<StoredDocument, AdminProblem> {
    caller.require_namespace(admin, namespace)?;
    let found = admin
        .store()
        .document(namespace, DocumentKind::Policy, name)
        .await?;
    let found = found.filter(|of| is_readable(&caller.0, namespace, of.apps.as_deref()));
    found.ok_or_else(AdminProblem::not_found)
}

pub(super) async fn read(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Response, AdminProblem> {
    let document = find(&admin, &caller, &namespace, &name).await?;
    if document.is_deleted {
        return Err(AdminProblem::not_found());
    }
    let mut response = Json(policy_json(&document)).into_response();
    insert_tag(response.headers_mut(), &tag_of(&document));
    Ok(response)
}

/// Returns the tag of a document: the revision, which `If-Match` compares, and the state of its
/// publication, which changes without a new revision.
pub(super) fn tag_of(document: &StoredDocument) -> String {
    let (revision, published, state) = (document.revision, document.published, document.state.name());
    format!("\"{revision}-{published}-{state}\"")
}

pub(super) fn insert_tag(headers: &mut HeaderMap, tag: &str) {
    if let Ok(value) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, value);
    }
}

pub(super) async fn save(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<SaveBody>,
) -> Result<Response, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let edit = PolicyEdit {
        namespace,
        name,
        expected: expected_revision(&headers)?,
        text: Some(body.toml),
        inheritance: body.inheritance.into(),
        reason: body.reason,
        origin: Origin::Api,
        managed_by: MANAGED_BY_UI.to_owned(),
        takes_over: false,
    };
    run(&admin, &caller, edit).await
}

pub(super) async fn remove(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let edit = PolicyEdit {
        namespace,
        name,
        expected: expected_revision(&headers)?,
        text: None,
        inheritance: Inheritance::AsIs,
        reason: None,
        origin: Origin::Api,
        managed_by: MANAGED_BY_UI.to_owned(),
        takes_over: false,
    };
    run(&admin, &caller, edit).await
}

pub(super) async fn restore(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<RestoreBody>,
) -> Result<Response, AdminProblem> {
    find(&admin, &caller, &namespace, &name).await?;
    let kind = DocumentKind::Policy;
    let revision = admin
        .store()
        .revision(&namespace, kind, &name, body.revision)
        .await?;
    let revision = revision.filter(|of| is_readable_revision(&caller.0, &namespace, of));
    let revision = revision.ok_or_else(AdminProblem::not_found)?;
    if revision.is_deletion {
        let detail = "the revision is a deletion: delete the policy instead";
        return Err(AdminProblem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    let edit = PolicyEdit {
        namespace,
        name,
        expected: expected_revision(&headers)?,
        text: Some(revision.body),
        inheritance: Inheritance::AsIs,
        reason: body
            .reason
            .or_else(|| Some(format!("restored revision {}", revision.number))),
        origin: Origin::Restore,
        managed_by: MANAGED_BY_UI.to_owned(),
        takes_over: false,
    };
    run(&admin, &caller, edit).await
}

pub(super) async fn run(
    admin: &Admin,
    caller: &AdminCaller,
    edit: PolicyEdit,
) -> Result<Response, AdminProblem> {
    let (namespace, name, is_deletion) = (edit.namespace.clone(), edit.name.clone(), edit.text.is_none());
    require_readers(admin, (&edit.namespace, &edit.name), edit.text.as_deref()).await?;
    match edit::save_policy(admin.store(), &caller.0, edit).await? {
        EditOutcome::Saved { revision } => {
            if let Some(publisher) = admin.publisher(&namespace) {
                publisher.wake();
            }
            let warnings = match is_deletion {
                true => vec![format!("calls that name `{name}` are not limited from now on")],
                false => Vec::new(),
            };
            let answer = json!({
                "name": name,
                "revision": revision,
                "state": "pending",
                "warnings": warnings,
            });
            let mut response = Json(answer).into_response();
            insert_tag(response.headers_mut(), &format!("\"{revision}\""));
            Ok(response)
        }
        EditOutcome::Proposed { id, exceeded } => {
            let answer = json!({ "name": name, "proposal": id, "exceeded": exceeded });
            Ok((StatusCode::ACCEPTED, Json(answer)).into_response())
        }
    }
}

/// Fails if a process that follows the registry cannot read the new text of a policy.
pub(super) async fn require_readers(
    admin: &Admin,
    (namespace, name): (&str, &str),
    text: Option<&str>,
) -> Result<(), AdminProblem> {
    let (Some(text), Some(publisher)) = (text, admin.publisher(namespace)) else {
        return Ok(());
    };
    // The edit reports the errors of the text.
    let Ok(policy) = PolicyText::parse(name, text) else {
        return Ok(());
    };
    match publisher.refusal(name, &policy.to_toml()).await {
        Some(reason) => Err(AdminProblem::new(StatusCode::UNPROCESSABLE_ENTITY, reason)),
        None => Ok(()),
    }
}

pub(super) async fn history(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<RevisionListQuery>,
) -> Result<Json<Value>, AdminProblem> {
    find(&admin, &caller, &namespace, &name).await?;
    let document = (DocumentKind::Policy, name.as_str());
    let page = query.read(admin.store(), &namespace, document).await?;
    let revisions = page.revisions.iter();
    let readable = revisions.filter(|of| is_readable_revision(&caller.0, &namespace, of));
    let revisions: Vec<Value> = readable.map(revision_json).collect();
    Ok(Json(json!({ "revisions": revisions, "next": page.next })))
}

pub(super) async fn revision(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name, number)): Path<(String, String, i64)>,
) -> Result<Json<Value>, AdminProblem> {
    find(&admin, &caller, &namespace, &name).await?;
    let kind = DocumentKind::Policy;
    let found = admin.store().revision(&namespace, kind, &name, number).await?;
    found
        .filter(|of| is_readable_revision(&caller.0, &namespace, of))
        .map(|revision| Json(revision_json(&revision)))
        .ok_or_else(AdminProblem::not_found)
}
