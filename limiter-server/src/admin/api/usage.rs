//! Decisions of policies over time, from the counts in the database.
//!
//! `of_policy` returns points by minute or hour, with the part of library processes, of decisions
//! without the store and of invalid requests; its tag lets a page poll without a new body.
//! `by_policy` returns the sums of all policies that the caller may read. A name that was deleted
//! can belong to another app later, so the spans until its deletion are left out.
//!
//! Tests: `decisions_are_counted_by_policy_and_minute` in `tests/admin_api.rs`,
//! `tests/control_plane/reused_names.rs`, `tests/library_usage.rs`, `tests/pages/explain.rs`.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::admin::Admin;
use crate::admin::api::caller::AdminCaller;
use crate::admin::api::content_tag;
use crate::admin::api::policies::is_readable;
use crate::admin::api::problem::AdminProblem;
use crate::store::{
    DocumentKind, StoreError, StoredDocument, UsageKind, UsageSpan, UsageTotals, micros, now_micros,
};

const MINUTE: i64 = 60_000_000;
const DAY: i64 = 24 * 60 * MINUTE;
/// The longest range that is answered by minute without `span`, in minutes.
const MAX_MINUTES: i64 = 3_000;
/// The largest number of points of one answer, above the hours of the 13 months that are kept.
const MAX_POINTS: i64 = 12_000;

/// A range of time in microseconds.
#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct RangeQuery {
    from: Option<i64>,
    to: Option<i64>,
    #[param(inline)]
    span: Option<SpanName>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum SpanName {
    Minute,
    Hour,
}

impl RangeQuery {
    /// Returns the start and the end; without them, the last `length` until now.
    fn range(&self, length: i64) -> Result<(i64, i64), AdminProblem> {
        let to = self.to.unwrap_or_else(now_micros);
        let from = self.from.unwrap_or_else(|| to.saturating_sub(length));
        match from < to {
            true => Ok((from, to)),
            false => Err(AdminProblem::bad_request("expected `from` before `to`")),
        }
    }
}

/// Returns the shortest span whose counts the database keeps since a time.
pub(super) fn kept_span(admin: &Admin, from: i64) -> UsageSpan {
    let oldest = now_micros().saturating_sub(micros(admin.retention().usage_minutes));
    match UsageSpan::Minute.start(from) >= oldest {
        true => UsageSpan::Minute,
        false => UsageSpan::Hour,
    }
}

/// Returns the time from which decisions under the name of a policy are its own: the given one, or
/// the last deletion of the name if that is later.
pub(super) async fn own_since(
    admin: &Admin,
    document: &StoredDocument,
    from: i64,
) -> Result<i64, StoreError> {
    if document.created_at <= from {
        return Ok(from);
    }
    let deleted = admin.store().last_deletion(document).await?;
    Ok(deleted.map_or(from, |deleted| deleted.max(from)))
}

/// Returns the counts under the name of a field and its value.
fn totals_json(field: &str, value: impl Into<Value>, totals: UsageTotals) -> Value {
    json!({
        field: value.into(),
        "allowed": totals.allowed,
        "denied": totals.denied,
        "would_deny": totals.would_deny,
        "failed": totals.failed,
    })
}

/// Returns the decisions of a policy, by default of the last 24 hours by minute. `apps` has the
/// sums of library processes, which the points include. `without_store` and `invalid` are the sums
/// of the decisions of gateways that the store did not make, and of their invalid requests.
pub(super) async fn of_policy(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<RangeQuery>,
    headers: HeaderMap,
) -> Result<Response, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let document = admin.store().document(&namespace, DocumentKind::Policy, &name);
    let document = document.await?.ok_or_else(AdminProblem::not_found)?;
    if !is_readable(&caller.0, &namespace, document.apps.as_deref()) {
        return Err(AdminProblem::not_found());
    }
    let (from, to) = query.range(DAY)?;
    let span = match query.span {
        Some(SpanName::Minute) => UsageSpan::Minute,
        Some(SpanName::Hour) => UsageSpan::Hour,
        None if to.saturating_sub(from) / MINUTE <= MAX_MINUTES => UsageSpan::Minute,
        None => UsageSpan::Hour,
    };
    if to.saturating_sub(from) / span.micros() > MAX_POINTS {
        let reason = "the range has too many points, expected a shorter one or `span=hour`";
        return Err(AdminProblem::bad_request(reason));
    }
    let of_policy = (namespace.as_str(), name.as_str());
    let store = admin.store();
    let range = (own_since(&admin, &document, from).await?, to);
    let points = store.usage(of_policy, UsageKind::Policy, span, range).await?;
    let points: Vec<Value> = points
        .iter()
        .map(|point| totals_json("at", point.start_at, point.totals))
        .collect();
    let apps = admin
        .store()
        .library_usage(&namespace, Some(&name), span, range)
        .await?;
    let apps: Vec<Value> = apps
        .into_iter()
        .map(|of| totals_json("app", of.app, of.totals))
        .collect();
    let cause = |kind| store.usage_sum(of_policy, kind, span, range);
    let without_store = totals_json("policy", name.as_str(), cause(UsageKind::WithoutStore).await?);
    let invalid = cause(UsageKind::Invalid).await?.calls();
    let content = json!([points, apps, without_store, invalid]);
    let found = json!({
        "policy": name,
        "apps": apps,
        "span": span.name(),
        "from": from,
        "to": to,
        "now": now_micros(),
        "points": points,
        "without_store": without_store,
        "invalid": invalid,
    });
    Ok(content_tag::answer(&headers, &content, found))
}

/// Returns the decisions of all policies that the caller may read, by default of the last five
/// minutes.
pub(super) async fn by_policy(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    Query(query): Query<RangeQuery>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let (from, to) = query.range(5 * MINUTE)?;
    let (span, from) = match kept_span(&admin, from) {
        UsageSpan::Minute if to.saturating_sub(from) <= DAY => (UsageSpan::Minute, from),
        // The first hour is whole.
        _ => (UsageSpan::Hour, UsageSpan::Hour.start(from)),
    };
    let readable = readable_policies(&admin, &caller, &namespace).await?;
    let store = admin.store();
    let sums = store.usage_by_policy(&namespace, span, (from, to)).await?;
    let library = store.library_usage(&namespace, None, span, (from, to)).await?;
    let mut policies = Vec::new();
    for (policy, mut totals) in sums {
        let Some(document) = readable.get(&policy) else {
            continue;
        };
        let of_policy = library.iter().filter(|of| of.policy == policy);
        let mut apps: Vec<String> = of_policy.map(|of| of.app.clone()).collect();
        let since = own_since(&admin, document, from).await?;
        if since > from {
            let range = (since, to);
            let kind = UsageKind::Policy;
            totals = store
                .usage_sum((namespace.as_str(), policy.as_str()), kind, span, range)
                .await?;
            let library = store.library_usage(&namespace, Some(&policy), span, range);
            apps = library.await?.into_iter().map(|of| of.app).collect();
        }
        let [allowed, denied, would_deny, failed] = totals.counts();
        policies.push(json!({
            "policy": policy,
            "apps": apps,
            "allowed": allowed,
            "denied": denied,
            "would_deny": would_deny,
            "failed": failed,
        }));
    }
    Ok(Json(
        json!({ "from": from, "to": to, "now": now_micros(), "policies": policies }),
    ))
}

/// Returns the policies that the caller may read, by name.
async fn readable_policies(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
) -> Result<BTreeMap<String, StoredDocument>, AdminProblem> {
    let documents = admin.store().documents(namespace).await?;
    let readable = documents.into_iter().filter(|document| {
        document.kind == DocumentKind::Policy && is_readable(&caller.0, namespace, document.apps.as_deref())
    });
    Ok(readable
        .map(|document| (document.name.clone(), document))
        .collect())
}
