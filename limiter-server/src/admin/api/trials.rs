//! Trial values of a policy: other numbers that are decided beside it and do not affect calls.
//!
//! A trial is a part of the text of its policy, so start, adoption and end are revisions that
//! `PolicyChange` saves. The start of the counts is the oldest of the newest `REVISIONS` revisions
//! in sequence that contain this trial, and the decisions of the policy and of the trial are summed
//! over one range.
//!
//! Tests: `tests/overlays.rs`, `tests/pages/tasks.rs`, `tests/library_usage.rs`.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use limiter_core::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use toml::Table;
use utoipa::ToSchema;

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::other_fields::NoOtherFields;
use crate::admin::api::overlays::End;
use crate::admin::api::policy_change::{Numbers, PolicyChange, unprocessable};
use crate::admin::api::problem::AdminProblem;
use crate::admin::api::usage::kept_span;
use crate::admin::sentence::sentence;
use crate::policy_text::PolicyText;
use crate::store::{
    DocumentKind, StoreError, StoredDocument, StoredRevision, UsageKind, UsageTotals, now_micros,
};

/// The number of revisions that are searched for the start of a trial.
const REVISIONS: i64 = 100;

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct TrialBody {
    #[serde(flatten)]
    numbers: Numbers,
    #[serde(flatten)]
    end: End,
    reason: Option<String>,
    #[serde(flatten)]
    #[schema(ignore)]
    _others: NoOtherFields,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DecisionBody {
    reason: Option<String>,
}

/// Returns the trial in the text of a policy.
fn trial_in(name: &str, text: &str) -> Option<toml::Value> {
    let table = text.parse::<Table>().ok()?;
    table.get("policy")?.get(name)?.get("trial").cloned()
}

/// Returns the time since which a trial has its values. `revisions` are the newest first.
fn start_of(document: &StoredDocument, revisions: &[StoredRevision]) -> i64 {
    let trial = trial_in(&document.name, &document.body);
    let has_it = |of: &&StoredRevision| trial_in(&document.name, &of.body) == trial;
    let oldest = revisions.iter().take_while(has_it).last();
    oldest.map_or(document.updated_at, |of| of.created_at)
}

/// Returns the sums of a policy and of its trial, over the same time.
async fn totals(
    admin: &Admin,
    of: (&str, &str),
    (from, to): (i64, i64),
) -> Result<(UsageTotals, UsageTotals), StoreError> {
    let span = kept_span(admin, from);
    let range = (span.start(from), to);
    let sum = |kind| admin.store().usage_sum(of, kind, span, range);
    Ok((sum(UsageKind::Policy).await?, sum(UsageKind::Trial).await?))
}

/// Returns the trial of a policy, with the decisions of both since its start.
pub(super) async fn read(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Json<Value>, AdminProblem> {
    let change = PolicyChange::read(&admin, &caller, (&namespace, &name)).await?;
    let entry = change.entry()?;
    let (numbers, until) = entry.policy().trial().ok_or_else(AdminProblem::not_found)?;
    let adopted = entry.policy().with_numbers_of(numbers).without_trial();
    let kind = DocumentKind::Policy;
    let revisions = admin
        .store()
        .history(&namespace, kind, &name, i64::MAX, REVISIONS)
        .await?;
    let since = start_of(change.document(), &revisions);
    let until = until.as_micros();
    change.registry().set(entry.with_policy(adopted));
    let text = PolicyText::of(change.registry(), &name).ok_or_else(AdminProblem::not_found)?;
    let now = now_micros();
    let (policy, trial) = totals(&admin, (&namespace, &name), (since, now)).await?;
    let shown = |of: UsageTotals| json!({ "allowed": of.allowed, "denied": of.denied });
    Ok(Json(json!({
        "sentence": sentence(&text),
        "since": since,
        "until": until,
        "active": timestamp_is_later(until, now),
        "policy": shown(policy),
        "trial": shown(trial),
    })))
}

fn timestamp_is_later(time: u64, now: i64) -> bool {
    i64::try_from(time).is_ok_and(|time| time > now)
}

/// Starts a trial of other numbers, or replaces it.
pub(super) async fn start(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<TrialBody>,
) -> Result<Response, AdminProblem> {
    let change = PolicyChange::read(&admin, &caller, (&namespace, &name)).await?;
    let entry = change.entry()?;
    let numbers = body.numbers.policy(entry.policy())?;
    let end: Timestamp = body.end.required()?;
    let tried = entry.policy().with_trial(&numbers, end);
    let tried = tried.map_err(|error| unprocessable(error.to_string()))?;
    change.registry().set(entry.with_policy(tried));
    let action = ("start a trial", body.reason);
    change.save(&admin, &caller, &headers, action).await
}

/// Makes the numbers of the trial those of the policy.
pub(super) async fn adopt(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<DecisionBody>,
) -> Result<Response, AdminProblem> {
    let change = PolicyChange::read(&admin, &caller, (&namespace, &name)).await?;
    let entry = change.entry()?;
    let policy = entry.policy();
    let (numbers, _) = policy.trial().ok_or_else(AdminProblem::not_found)?;
    let adopted = policy.with_numbers_of(numbers).without_trial();
    change.registry().set(entry.with_policy(adopted));
    let action = ("adopt the trial", body.reason);
    change.save(&admin, &caller, &headers, action).await
}

/// Ends the trial without a change of the policy.
pub(super) async fn end(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, AdminProblem> {
    let change = PolicyChange::read(&admin, &caller, (&namespace, &name)).await?;
    let entry = change.entry()?;
    if entry.policy().trial().is_none() {
        return Err(AdminProblem::not_found());
    }
    let without = entry.policy().without_trial();
    change.registry().set(entry.with_policy(without));
    change
        .save(&admin, &caller, &headers, ("drop the trial", None))
        .await
}
