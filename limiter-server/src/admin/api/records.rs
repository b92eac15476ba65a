//! Namespaces, the audit, alerts, unmatched descriptors, retention and the status.
//!
//! Roles decide which entries of the audit are visible, so a page is searched in the order of the
//! entries until it is full or `MAX_SEARCHED` entries were read; `next` continues there. An alert
//! and an error of the publication can name policies: their text is hidden from callers that may
//! not read these policies.
//!
//! Tests: `tests/routes_by_role.rs`, and `changes_are_found_behind_many_other_entries` in
//! `tests/pages/truth.rs`.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use limiter_core::registry::RegistryAccess;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::paging::page;
use crate::admin::api::policies::is_readable;
use crate::admin::api::problem::AdminProblem;
use crate::admin::permissions::{ALL_APPS, Actor};
use crate::store::{Alert, AuditEntry, AuditFilter, NamespaceLook, StoredDocument, now_micros};

/// The number of entries of the audit that are read at once.
const SEARCHED_AT_ONCE: i64 = 1_000;
/// The end of the actions of reads.
const READ: &str = ".read";
/// The largest number of entries that are searched for one answer.
const MAX_SEARCHED: usize = 20_000;
/// The longest label of a namespace in characters.
const MAX_LABEL: usize = 40;
/// The detail of an alert about a policy that the caller may not read.
const HIDDEN_DETAIL: &str = "it concerns a policy that you may not read: ask an administrator";
/// The error of the publication for a caller that may not read all policies.
const HIDDEN_ERROR: &str = "the reason may name policies that you may not read: ask an administrator";

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NamespaceBody {
    /// The name on the pages; empty for that of the namespace.
    #[serde(default)]
    label: String,
    colour: Option<String>,
}

/// Selects changes of a namespace.
#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct AuditQuery {
    /// The last number of the previous page.
    before: Option<i64>,
    /// The largest number of changes. Default 100, at most 1,000.
    limit: Option<i64>,
    /// Changes of this object only.
    object: Option<String>,
    /// Changes of this author only.
    actor: Option<String>,
    /// True to include changes of users in the changes of a namespace.
    #[serde(default)]
    users: bool,
    /// Changes of this app only; `*` for those of all apps.
    app: Option<String>,
    /// True if reads of keys are left out.
    #[serde(default)]
    changes: bool,
}

/// Selects changes of users.
#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct UserAuditQuery {
    /// The last number of the previous page.
    before: Option<i64>,
    /// The largest number of changes. Default 100, at most 1,000.
    limit: Option<i64>,
    /// Changes of this object only.
    object: Option<String>,
    /// Changes of this author only.
    actor: Option<String>,
}

pub(super) async fn namespaces(
    State(admin): State<Admin>,
    caller: AdminCaller,
) -> Result<Json<Value>, AdminProblem> {
    let visible: Vec<&str> = admin
        .namespaces()
        .filter(|name| caller.0.has_namespace(name))
        .collect();
    let mut namespaces = Vec::new();
    for name in visible {
        let look = admin.look(name).await?;
        namespaces.push(json!({ "name": name, "label": look.label, "colour": look.colour }));
    }
    Ok(Json(json!({ "namespaces": namespaces })))
}

/// Sets name and colour of a namespace on the pages.
pub(super) async fn set_namespace(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    JsonBody(body): JsonBody<NamespaceBody>,
) -> Result<StatusCode, AdminProblem> {
    caller.require_admin(&admin, &namespace)?;
    let colour = body.colour.unwrap_or_else(|| NamespaceLook::default().colour);
    if !NamespaceLook::COLOURS.contains(&colour.as_str()) {
        let expected = NamespaceLook::COLOURS.join(", ");
        return Err(AdminProblem::bad_request(format!(
            "expected a colour of {expected}"
        )));
    }
    if body.label.chars().count() > MAX_LABEL || body.label.chars().any(char::is_control) {
        return Err(AdminProblem::bad_request(
            "expected a label of at most 40 characters",
        ));
    }
    let look = NamespaceLook {
        label: body.label,
        colour,
    };
    let saved = admin
        .store()
        .set_namespace_look(&namespace, &look, &caller.0.name, now_micros());
    saved.await?;
    Ok(StatusCode::NO_CONTENT)
}

fn entry_json(entry: &AuditEntry) -> Value {
    json!({
        "id": entry.id,
        "at": entry.created_at,
        "actor": entry.actor,
        "action": entry.action,
        "object": entry.object,
        "apps": entry.apps,
        "detail": entry.detail,
    })
}

/// Returns the changes of a namespace that concern the apps of the caller; for an administrator of
/// the server with the changes of users, if the query asks for them.
pub(super) async fn audit(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    Query(query): Query<AuditQuery>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    if query.users {
        caller.require_server_admin()?;
    }
    let filter = AuditFilter {
        namespace: namespace.clone(),
        object: query.object,
        actor: query.actor,
        before: query.before.unwrap_or(i64::MAX),
        limit: page(query.limit),
        includes_users: query.users,
    };
    let (app, changes) = (query.app, query.changes);
    // An entry without apps concerns the namespace, unless it is of a policy of all apps.
    let is_visible = |entry: &AuditEntry| match (&entry.apps, entry.action.starts_with("policy.")) {
        (None, false) => caller.0.apps_in(&namespace).is_none(),
        (apps, _) => is_readable(&caller.0, &namespace, apps.as_deref()),
    };
    let is_selected = |entry: &AuditEntry| {
        is_visible(entry)
            && app.as_deref().is_none_or(|app| is_of_app(entry, app))
            && !(changes && entry.action.ends_with(READ))
    };
    let (entries, next) = search(&admin, filter, is_selected).await?;
    Ok(Json(json!({ "entries": entries, "next": next })))
}

/// Returns whether an entry concerns an app, or with `*` all apps.
fn is_of_app(entry: &AuditEntry, app: &str) -> bool {
    match (&entry.apps, app) {
        (apps, ALL_APPS) => apps.is_none(),
        (Some(apps), app) => apps.iter().any(|of| of == app),
        (None, _) => entry.action.starts_with("policy."),
    }
}

/// Returns the selected entries of a page, and the id from which the next page continues. A page is
/// full unless it is the last one, or the largest number of entries was searched.
async fn search(
    admin: &Admin,
    mut filter: AuditFilter,
    is_selected: impl Fn(&AuditEntry) -> bool,
) -> Result<(Vec<Value>, Option<i64>), AdminProblem> {
    let wanted = usize::try_from(filter.limit).unwrap_or(usize::MAX);
    filter.limit = SEARCHED_AT_ONCE;
    let (mut found, mut last, mut searched) = (Vec::new(), None, 0);
    loop {
        let entries = admin.store().audit(&filter).await?;
        let is_last = next_page(&entries, filter.limit).is_none();
        searched += entries.len();
        for entry in entries {
            filter.before = entry.id;
            if !is_selected(&entry) {
                continue;
            }
            if found.len() == wanted {
                return Ok((found, last));
            }
            found.push(entry_json(&entry));
            last = Some(entry.id);
        }
        if is_last {
            return Ok((found, None));
        }
        if searched >= MAX_SEARCHED {
            return Ok((found, Some(filter.before)));
        }
    }
}

/// Returns the changes of users.
pub(super) async fn server_audit(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Query(query): Query<UserAuditQuery>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_server_admin()?;
    let filter = AuditFilter {
        namespace: String::new(),
        object: query.object,
        actor: query.actor,
        before: query.before.unwrap_or(i64::MAX),
        limit: page(query.limit),
        includes_users: false,
    };
    let entries = admin.store().audit(&filter).await?;
    let next = next_page(&entries, filter.limit);
    let entries: Vec<Value> = entries.iter().map(entry_json).collect();
    Ok(Json(json!({ "entries": entries, "next": next })))
}

fn next_page(entries: &[AuditEntry], limit: i64) -> Option<i64> {
    let is_full = i64::try_from(entries.len()).is_ok_and(|count| count >= limit);
    entries.last().filter(|_| is_full).map(|last| last.id)
}

pub(super) async fn clear_alert(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, id)): Path<(String, i64)>,
) -> Result<StatusCode, AdminProblem> {
    caller.require_admin(&admin, &namespace)?;
    admin
        .store()
        .clear_alert(&namespace, id, &caller.0.name, now_micros())
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the last descriptors without a rule or a policy on this node.
pub(super) async fn unmatched(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_admin(&admin, &namespace)?;
    let gateway = admin.gateway(&namespace).filter(|of| of.answers_calls);
    let descriptors = gateway.map(|of| of.gateway.unmatched().list());
    Ok(Json(json!({ "node": admin.node(), "unmatched": descriptors })))
}

/// Returns the time for which records are kept, in seconds. The settings of the server define it.
pub(super) async fn retention(
    State(admin): State<Admin>,
    caller: AdminCaller,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_server_admin()?;
    let kept = admin.retention();
    Ok(Json(json!({
        "usage_minutes": kept.usage_minutes.as_secs(),
        "usage_hours": kept.usage_hours.as_secs(),
        "denials": kept.denials.as_secs(),
        "ended": kept.ended.as_secs(),
        "audit": kept.audit.as_secs(),
        "audit_is_exported": kept.audit_export.is_some(),
    })))
}

/// Publication, alerts and nodes.
pub(super) async fn status(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let store = admin.store();
    let publication = store.publication(&namespace).await?;
    let alerts = store.alerts(&namespace).await?;
    let alerts = readable_alerts(&admin, &caller.0, &namespace, &alerts).await?;
    let nodes = store.nodes().await?;
    let nodes: Vec<Value> = nodes
        .iter()
        .map(|node| {
            json!({ "name": node.name, "role": node.role, "version": node.version, "seen": node.seen,
            "shares_limits": node.shares_limits })
        })
        .collect();
    let publisher = admin.publisher(&namespace);
    let redis = match publisher.and_then(crate::publish::Publisher::redis) {
        None => "not_used",
        Some(redis) => match redis.read().await {
            Ok(_) => "available",
            Err(_) => "unavailable",
        },
    };
    let access = match publisher.and_then(crate::publish::Publisher::redis) {
        None => Value::Null,
        Some(redis) => access_json(redis.access().await.ok().as_ref()),
    };
    let publisher = publisher.map(crate::publish::Publisher::status);
    let publisher_error = publisher.and_then(|status| status.error);
    let publisher_error = match caller.0.apps_in(&namespace) {
        None => publisher_error,
        // The error names policies, also of a text in Redis that cannot be read.
        Some(_) => publisher_error.map(|_| HIDDEN_ERROR.to_owned()),
    };
    Ok(Json(json!({
        "node": admin.node(),
        "namespace": namespace,
        "read_only": store.is_read_only(),
        "registry_revision": publication.registry_revision,
        "confirmed_at": publication.confirmed_at,
        "pending": publication.pending,
        "oldest_pending": publication.oldest_pending,
        "publisher_error": publisher_error,
        "alerts": alerts,
        "nodes": nodes,
        "database": store.dialect().name(),
        "redis": redis,
        "registry_access": access,
        "library_usage": library_usage_json(admin.library_usage(&namespace)),
        "now": now_micros(),
    })))
}

/// Returns the alerts as JSON. An alert that names a policy which the caller may not read has no
/// detail.
async fn readable_alerts(
    admin: &Admin,
    actor: &Actor,
    namespace: &str,
    alerts: &[Alert],
) -> Result<Vec<Value>, AdminProblem> {
    let mut hidden = Vec::new();
    if !alerts.is_empty() && actor.apps_in(namespace).is_some() {
        let documents = admin.store().documents(namespace).await?;
        let is_hidden = |of: &StoredDocument| !is_readable(actor, namespace, of.apps.as_deref());
        let documents = documents.into_iter().filter(is_hidden);
        hidden.extend(documents.map(|of| format!("`{}`", of.name)));
    }
    let json_of = |alert: &Alert| {
        let is_hidden = hidden.iter().any(|name| alert.detail.contains(name));
        let detail = match is_hidden {
            true => HIDDEN_DETAIL,
            false => alert.detail.as_str(),
        };
        json!({ "id": alert.id, "kind": alert.kind, "detail": detail, "at": alert.created_at })
    };
    Ok(alerts.iter().map(json_of).collect())
}

/// Returns the state of the recording of library usage; null without Redis and before the first
/// pass.
fn library_usage_json(last: Option<Option<String>>) -> Value {
    match last {
        None => Value::Null,
        Some(None) => json!({ "state": "recorded" }),
        Some(Some(reason)) => json!({ "state": "failed", "reason": reason }),
    }
}

/// Returns the users that may write the registry: `restricted` if only the user of the servers may.
fn access_json(access: Option<&RegistryAccess>) -> Value {
    let user = access.and_then(RegistryAccess::user);
    let writers = access.and_then(RegistryAccess::writers);
    let state = match (user, writers) {
        (Some(user), Some(writers)) if writers.iter().all(|writer| writer == user) => "restricted",
        (_, Some(_)) => "open",
        _ => "not_known",
    };
    json!({ "state": state, "user": user, "writers": writers })
}
