//! The rules of a namespace: read, save, history, preview, and the rule of a descriptor.
//!
//! The rules are one document, and every role of the namespace may read it. `edit::save_rules`
//! checks a save: permission, revision, and consistency with the policies. The preview and the
//! tester use the newest saved rules, which may not be in force yet.
//!
//! Invariant: the tester does not reveal whether a policy exists that the caller may not read.
//! Tests: `tests/admin_api.rs`, `tests/pages/preview.rs`, `tests/pages/statements.rs`.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody, expected_revision};
use crate::admin::api::documents::revision_json;
use crate::admin::api::policies::{insert_tag, is_readable, tag_of};
use crate::admin::api::problem::AdminProblem;
use crate::admin::api::revisions::RevisionListQuery;
use crate::admin::edit;
use crate::admin::preview::{rule_changes, unified_diff};
use crate::gateway::rules::RuleSet;
use crate::policy_text::{parse_rules, rules_to_toml};
use crate::store::{DocumentKind, Origin, RULES};

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RulesBody {
    toml: String,
    reason: Option<String>,
}

pub(super) async fn read(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
) -> Result<Response, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let found = admin
        .store()
        .document(&namespace, DocumentKind::Rules, RULES)
        .await?;
    let tag = found.as_ref().map_or_else(|| "\"0\"".to_owned(), tag_of);
    let rules: Value = match &found {
        None => json!({ "toml": "", "revision": 0, "state": "published" }),
        Some(of) => json!({
            "toml": of.body,
            "revision": of.revision,
            "published": of.published,
            "state": of.state.name(),
            "updated_by": of.updated_by,
            "updated_at": of.updated_at,
        }),
    };
    let mut response = Json(rules).into_response();
    insert_tag(response.headers_mut(), &tag);
    Ok(response)
}

pub(super) async fn save(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<RulesBody>,
) -> Result<Response, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let expected = expected_revision(&headers)?;
    let (store, actor) = (admin.store(), &caller.0);
    let saved = edit::save_rules(
        store,
        actor,
        &namespace,
        expected,
        &body.toml,
        body.reason,
        Origin::Api,
    );
    let revision = saved.await?;
    if let Some(publisher) = admin.publisher(&namespace) {
        publisher.wake();
    }
    let mut response = Json(json!({ "revision": revision, "state": "pending" })).into_response();
    insert_tag(response.headers_mut(), &format!("\"{revision}\""));
    Ok(response)
}

/// Returns the revisions, the newest first.
pub(super) async fn history(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    Query(query): Query<RevisionListQuery>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let document = (DocumentKind::Rules, RULES);
    let page = query.read(admin.store(), &namespace, document).await?;
    let revisions: Vec<Value> = page.revisions.iter().map(revision_json).collect();
    Ok(Json(json!({ "revisions": revisions, "next": page.next })))
}

/// Returns a revision.
pub(super) async fn revision(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, number)): Path<(String, i64)>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let found = admin
        .store()
        .revision(&namespace, DocumentKind::Rules, RULES, number)
        .await?;
    let found = found.ok_or_else(AdminProblem::not_found)?;
    Ok(Json(revision_json(&found)))
}

/// Returns the differences of a text from the newest rules, and the descriptors whose limit
/// changes. Saves nothing.
pub(super) async fn preview(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    JsonBody(body): JsonBody<RulesBody>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    caller.require_admin(&admin, &namespace)?;
    let documents = admin.store().documents(&namespace).await?;
    let changes = edit::ChangedTexts {
        rules: Some(&body.toml),
        ..edit::ChangedTexts::default()
    };
    edit::require_consistent(&documents, &changes)?;
    let current = documents.iter().find(|of| of.kind == DocumentKind::Rules);
    let current = current.map_or("", |of| of.body.as_str());
    let [before, after] = [current, &body.toml].map(parse_rules);
    let (before, after) = (
        before.map_err(edit::EditError::from)?,
        after.map_err(edit::EditError::from)?,
    );
    let text = rules_to_toml(&after).map_err(|error| edit::EditError::Invalid(error.to_string()))?;
    Ok(Json(json!({
        "diff": unified_diff(current, &text),
        "changes": rule_changes(&before, &after),
    })))
}

/// A descriptor.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TestedDescriptor {
    domain: String,
    /// Keys with their values, in order.
    entries: Vec<(String, String)>,
}

/// Finds the rule of a descriptor in the newest rules, which may not be in force yet.
pub(super) async fn find(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    JsonBody(body): JsonBody<TestedDescriptor>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let store = admin.store();
    let found = store.document(&namespace, DocumentKind::Rules, RULES).await?;
    let text = found.map(|of| of.body).unwrap_or_default();
    let rules = parse_rules(&text).map_err(edit::EditError::from)?;
    let set = RuleSet::new(rules);
    let entries: Vec<(&str, &str)> = body
        .entries
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    let Some(found) = set.find(&body.domain, &entries) else {
        return Ok(Json(json!({ "rule": null, "policy": null })));
    };
    let rule = found.rule;
    let number = rule.and_then(|rule| set.rules().iter().position(|of| std::ptr::eq(of, rule)));
    let policy = store
        .document(&namespace, DocumentKind::Policy, &found.policy)
        .await?;
    let policy = policy.filter(|of| !of.is_deleted);
    // The existence of a policy is not revealed to users who may not read it.
    let is_configured = policy.is_some_and(|of| is_readable(&caller.0, &namespace, of.apps.as_deref()));
    Ok(Json(json!({
        "rule": number,
        "policy": found.policy,
        "is_configured": is_configured,
        "values": found.values,
        "group": rule.and_then(limiter_core::registry::Rule::group),
    })))
}
