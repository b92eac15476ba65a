//! The effect of a text of a policy before it is saved.
//!
//! The effect is computed for an example, for the keys that were denied or nearly exhausted in the
//! last minutes, and for a key that the caller names. The stores are never scanned. Tests:
//! `tests/pages/preview.rs`.

use axum::Json;
use axum::extract::{Path, State};
use limiter_core::{Enforcement, Inheritance};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::keys::{self, KeyState};
use crate::admin::api::policies::{InheritanceName, is_readable};
use crate::admin::api::problem::AdminProblem;
use crate::admin::api::subscribers;
use crate::admin::api::usage::own_since;
use crate::admin::edit;
use crate::admin::preview::{UsedKey, preview_in_numbers};
use crate::key_text::{is_cut, parts_of};
use crate::policy_text::PolicyText;
use crate::store::{DocumentKind, StoreError, StoredDocument, UsageKind, UsageSpan, UsageTotals, now_micros};

const MINUTE: i64 = 60_000_000;
const DAY: i64 = 24 * 60 * MINUTE;
/// The time in which keys of the sample were active.
const SAMPLED: i64 = 5 * MINUTE;
/// The number of keys of the sample.
const SAMPLED_KEYS: usize = 4;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PreviewBody {
    toml: String,
    #[serde(default)]
    inheritance: InheritanceName,
    /// A key whose state after the change is computed; its parts are separated by ` / `.
    key: Option<String>,
}

/// Returns the differences of a text from the current version, its effect and warnings. Saves
/// nothing.
pub(super) async fn preview(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    JsonBody(body): JsonBody<PreviewBody>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let kind = DocumentKind::Policy;
    let current = admin.store().document(&namespace, kind, &name).await?;
    let current = current.filter(|of| !of.is_deleted);
    let is_hidden = |apps: Option<&[String]>| !is_readable(&caller.0, &namespace, apps);
    if current.as_ref().is_some_and(|of| is_hidden(of.apps.as_deref())) {
        return Err(AdminProblem::not_found());
    }
    let new = PolicyText::parse(&name, &body.toml).map_err(edit::EditError::from)?;
    let before = current.as_ref().and_then(|of| of.policy().ok());
    let sampled = match &current {
        Some(current) => sampled_keys(&admin, current).await,
        None => Vec::new(),
    };
    let wanted = body.key.as_deref().filter(|key| !key.is_empty());
    let wanted = match wanted.filter(|_| before.is_some()) {
        Some(key) => Some((key, key_state(&admin, &caller, (&namespace, &name), key).await?)),
        None => None,
    };
    let mut used: Vec<UsedKey> = Vec::new();
    if let Some((key, Some(state))) = wanted.as_ref().filter(|(_, state)| !has_quota(state.as_ref())) {
        used.push(UsedKey::new(key, state.used()));
    }
    let sampled = sampled.into_iter().filter(|of| !used.contains(of));
    let sampled: Vec<UsedKey> = sampled.collect();
    used.extend(sampled);
    let inheritance = Inheritance::from(body.inheritance);
    let mut effect = preview_in_numbers(before.as_ref(), &new, inheritance, &used);
    let replicas = replicas(&admin, &namespace, &new).await;
    let leaves_shadow = before.as_ref().is_some_and(|old| leaves_shadow(old, &new));
    let shadow = match current.as_ref().filter(|_| leaves_shadow) {
        Some(current) => Some(last_day(&admin, current).await?),
        None => None,
    };
    if let Value::Object(fields) = &mut effect {
        fields.insert("apps".to_owned(), json!(new.apps()));
        fields.insert("replicas".to_owned(), json!(replicas));
        fields.insert("key_note".to_owned(), json!(wanted.and_then(key_note)));
        fields.insert("shadow".to_owned(), json!(shadow.map(shadow_json)));
    }
    Ok(Json(effect))
}

fn has_quota(state: Option<&KeyState>) -> bool {
    state.is_some_and(|state| state.has_quota)
}

/// Returns the reason for which the effect on the named key is not computed.
fn key_note((key, state): (&str, Option<KeyState>)) -> Option<String> {
    match state {
        None => Some(format!("the state of {key} is not known")),
        Some(state) if state.has_quota => {
            Some(format!("{key} has a quota of its own, which does not change"))
        }
        Some(_) => None,
    }
}

/// Returns the state of a key that the caller names. The read is recorded.
async fn key_state(
    admin: &Admin,
    caller: &AdminCaller,
    (namespace, name): (&str, &str),
    key: &str,
) -> Result<Option<KeyState>, AdminProblem> {
    let parts = parts_of(key);
    keys::record_read(admin, caller, namespace, &parts).await?;
    Ok(keys::states(admin, (namespace, name), vec![parts])
        .await
        .into_iter()
        .next()
        .flatten())
}

/// Returns the keys of the last minutes at the gateway of this node, without those with quotas of
/// their own.
async fn sampled_keys(admin: &Admin, document: &StoredDocument) -> Vec<UsedKey> {
    let (namespace, name) = (document.namespace.as_str(), document.name.as_str());
    let Some(handle) = admin.gateway(namespace) else {
        return Vec::new();
    };
    let now = now_micros();
    let active = handle.gateway.activity().keys(name, (now - SAMPLED, now));
    // Earlier keys under the name are those of a deleted policy.
    let active = active.into_iter().filter(|of| of.last_at >= document.created_at);
    let names = active.map(|of| of.key).filter(|key| !is_cut(key));
    let names: Vec<String> = names.take(SAMPLED_KEYS).collect();
    let parts = names.iter().map(|key| parts_of(key));
    let states = keys::states(admin, (namespace, name), parts.collect()).await;
    let found = names.iter().zip(states).filter_map(|(key, state)| {
        let state = state.filter(|state| !state.has_quota)?;
        Some(UsedKey::new(key, state.used()))
    });
    found.collect()
}

/// Returns the processes that apply the policy; `None` if they are not known, or without Redis.
async fn replicas(admin: &Admin, namespace: &str, new: &PolicyText) -> Option<usize> {
    admin.publisher(namespace).and_then(|of| of.redis())?;
    let all = subscribers::of(admin, namespace).await.ok()?;
    let concerned = all.iter().filter(|of| new.entry().is_for(of.app.as_deref()));
    Some(concerned.count())
}

/// Returns whether calls that pass now can be denied.
fn leaves_shadow(old: &PolicyText, new: &PolicyText) -> bool {
    let enforcement = |of: &PolicyText| of.entry().policy().enforcement();
    enforcement(old) == Enforcement::Shadow && enforcement(new) == Enforcement::Enforce
}

async fn last_day(admin: &Admin, document: &StoredDocument) -> Result<UsageTotals, StoreError> {
    let now = now_micros();
    let (kind, span) = (UsageKind::Policy, UsageSpan::Hour);
    let since = own_since(admin, document, span.start(now - DAY)).await?;
    let of = (document.namespace.as_str(), document.name.as_str());
    admin.store().usage_sum(of, kind, span, (since, now)).await
}

/// Returns the calls of the last day in shadow mode.
fn shadow_json(totals: UsageTotals) -> Value {
    json!({ "calls": totals.calls(), "would_deny": totals.would_deny })
}
