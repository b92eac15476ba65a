//! Keys that were denied or are nearly exhausted, as the gateway of this node decided, and the most
//! denied keys of library processes, as they report them to Redis. Tests: `tests/denials.rs`,
//! `tests/library_usage.rs`, `tests/control_plane/reused_names.rs`.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use crate::admin::Admin;
use crate::admin::api::caller::AdminCaller;
use crate::admin::api::policies::is_readable;
use crate::admin::api::problem::AdminProblem;
use crate::admin::api::usage::own_since;
use crate::denials::seen_key::{SeenKey, read_library};
use crate::key_text::{is_cut, recorded};
use crate::store::{DenialFilter, DocumentKind, StoredDocument, UsageSpan, now_micros};

/// The range without `from`.
const RECENT: i64 = 5 * 60_000_000;
/// The largest number of keys of an answer.
const MAX_KEYS: usize = 100;
/// The largest number of samples among which those of readable policies are selected.
const MAX_SAMPLES: i64 = 2_000;
/// The range of samples without `from`.
const DAY: i64 = 24 * 3_600_000_000;

#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct ActivityQuery {
    policy: Option<String>,
    from: Option<i64>,
    to: Option<i64>,
}

/// Returns the keys of the policies that the caller may read: the most denied first, then the
/// fullest. `since` is the start of the record of this node if it is later than `from`. With
/// `policy`, also its utilisation in the newest minute with a call, at the gateway of this node.
pub(super) async fn list(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    Query(query): Query<ActivityQuery>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let to = query.to.unwrap_or_else(now_micros);
    let from = query.from.unwrap_or_else(|| to.saturating_sub(RECENT));
    let readable = readable(&admin, &caller, &namespace, query.policy.as_deref()).await?;
    let library = match admin.fleet_usage(&namespace) {
        None => Ok(Vec::new()),
        Some(usage) => read_library(usage, (from, to)).await,
    };
    let is_library_known = library.is_ok();
    let mut found = library.unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot read the denied keys of library processes");
        Vec::new()
    });
    let gateway = admin.gateway(&namespace);
    let (mut utilisation, mut since) = (Value::Null, None);
    if let Some(gateway) = gateway {
        let activity = gateway.gateway.activity();
        since = Some(activity.since()).filter(|since| *since > from);
        let asked = query.policy.as_deref().and_then(|name| readable.get(name));
        if let Some((document, of)) = asked.and_then(|of| Some((of, activity.utilisation(&of.name)?)))
            && (own_since(&admin, document, UsageSpan::Minute.start(from)).await?..=to).contains(&of.at)
        {
            utilisation = json!({
                "at": of.at,
                "highest_percent": of.highest_percent,
                "fullest": of.fullest,
                "nearly_full": of.nearly_full,
                "is_lower_bound": of.is_lower_bound,
            });
        }
        for policy in readable.keys() {
            let keys = activity.keys(policy, (from, to)).into_iter();
            found.extend(keys.map(|key| SeenKey::by_gateway(policy, key)));
        }
    }
    found.retain(|of| is_of_policy(&readable, &of.policy, of.last_at));
    let keys: Value = match gateway.is_none() && found.is_empty() {
        true => Value::Null,
        false => {
            found.sort_by_key(|of| std::cmp::Reverse((of.denied, of.used_percent)));
            let (denied, full): (Vec<_>, Vec<_>) = found.into_iter().partition(|of| of.denied > 0);
            let (denied, full) = (denied.iter().take(MAX_KEYS), full.iter().take(MAX_KEYS));
            let shown = denied.chain(full).map(|key| {
                let mut shown = json!(key);
                let fingerprint = fingerprint_of(&admin, &namespace, &key.key);
                if let (Some(fields), Some(fingerprint)) = (shown.as_object_mut(), fingerprint) {
                    fields.insert("fingerprint".to_owned(), fingerprint.into());
                }
                shown
            });
            shown.collect()
        }
    };
    Ok(Json(json!({
        "node": admin.node(),
        "from": from,
        "to": to,
        "since": since,
        "keys": keys,
        "sees_calls": gateway.is_some(),
        "utilisation": utilisation,
        "is_library_known": is_library_known,
    })))
}

#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct DenialQuery {
    policy: Option<String>,
    key: Option<String>,
    from: Option<i64>,
    to: Option<i64>,
}

/// Returns the recorded samples of denials of the policies that the caller may read, by hour, of
/// all nodes and library processes.
pub(super) async fn denials(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    Query(query): Query<DenialQuery>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let to = query.to.unwrap_or_else(now_micros);
    let from = query.from.unwrap_or_else(|| to.saturating_sub(DAY));
    let from = UsageSpan::Hour.start(from);
    let readable = readable(&admin, &caller, &namespace, query.policy.as_deref()).await?;
    let key = query.key.as_deref().map(recorded);
    let filter = DenialFilter {
        namespace: &namespace,
        policy: query.policy.as_deref(),
        key: key.as_deref(),
        range: (from, to),
        limit: MAX_SAMPLES,
    };
    let mut samples = admin.store().denials(filter).await?;
    samples.retain(|of| is_of_policy(&readable, &of.policy, of.last_at));
    let samples = samples.iter().take(MAX_KEYS).map(|of| {
        json!({
            "policy": of.policy,
            "start_at": of.start_at,
            "node": Some(&of.node).filter(|node| !node.is_empty()),
            "app": of.app,
            "key": of.key,
            "fingerprint": fingerprint_of(&admin, &namespace, &of.key),
            "rule": of.rule,
            "revision": of.revision,
            "origin": of.origin,
            "denied": of.denied,
            "error": of.error,
            "first_at": of.first_at,
            "last_at": of.last_at,
        })
    });
    let samples: Vec<Value> = samples.collect();
    let wanted = query.key.as_deref();
    Ok(Json(json!({
        "from": from,
        "to": to,
        "fingerprint": wanted.and_then(|key| admin.key_fingerprint(&namespace, key)),
        "denials": samples,
    })))
}

/// Returns the fingerprint of a key; `None` for the record of a longer key.
fn fingerprint_of(admin: &Admin, namespace: &str, key: &str) -> Option<String> {
    match is_cut(key) {
        true => None,
        false => admin.key_fingerprint(namespace, key),
    }
}

/// Returns whether a key was seen under a policy that the caller may read. A name that was deleted
/// can belong to another app later, and the readers of that app must not see the earlier keys.
fn is_of_policy(readable: &BTreeMap<String, StoredDocument>, policy: &str, last_at: i64) -> bool {
    readable.get(policy).is_some_and(|of| last_at >= of.created_at)
}

/// Returns the policies that the caller may read, by name.
async fn readable(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
    only: Option<&str>,
) -> Result<BTreeMap<String, StoredDocument>, AdminProblem> {
    let kind = DocumentKind::Policy;
    let documents = match only {
        Some(name) => Vec::from_iter(admin.store().document(namespace, kind, name).await?),
        None => admin.store().documents(namespace).await?,
    };
    let readable = documents
        .into_iter()
        .filter(|of| of.kind == kind && is_readable(&caller.0, namespace, of.apps.as_deref()));
    Ok(readable.map(|of| (of.name.clone(), of)).collect())
}
