//! Keys that were denied or are nearly exhausted, as the gateway of this node decided.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::admin::api::caller::AdminCaller;
use crate::admin::api::policies::is_readable;
use crate::admin::api::problem::AdminProblem;
use crate::store::{DocumentKind, now_micros};

/// The range without `from`.
const RECENT: i64 = 5 * 60_000_000;
/// The largest number of keys of an answer.
const MAX_KEYS: usize = 100;

#[derive(Debug, Deserialize)]
pub(super) struct ActivityQuery {
    policy: Option<String>,
    from: Option<i64>,
    to: Option<i64>,
}

/// The keys of the policies that the caller may read: the most denied first, then the fullest.
pub(super) async fn list(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    Query(query): Query<ActivityQuery>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let to = query.to.unwrap_or_else(now_micros);
    let from = query.from.unwrap_or_else(|| to.saturating_sub(RECENT));
    let keys = match admin.gateway(&namespace) {
        None => Value::Null,
        Some(gateway) => {
            let activity = gateway.gateway.activity();
            let mut found = Vec::new();
            for policy in readable(&admin, &caller, &namespace, query.policy.as_deref()).await? {
                let keys = activity.keys(&policy, (from, to)).into_iter();
                found.extend(keys.map(|key| (policy.clone(), key)));
            }
            found.sort_by_key(|(_, key)| std::cmp::Reverse((key.denied, key.used_percent)));
            let (denied, full): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, key)| key.denied > 0);
            let rows = denied
                .into_iter()
                .take(MAX_KEYS)
                .chain(full.into_iter().take(MAX_KEYS));
            let rows = rows.map(|(policy, key)| {
                json!({
                    "policy": policy,
                    "key": key.key,
                    "denied": key.denied,
                    "error": key.error,
                    "used_percent": key.used_percent,
                    "first_at": key.first_at,
                    "last_at": key.last_at,
                })
            });
            rows.collect()
        }
    };
    Ok(Json(
        json!({ "node": admin.node(), "from": from, "to": to, "keys": keys }),
    ))
}

/// The names of the policies that the caller may read.
async fn readable(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
    only: Option<&str>,
) -> Result<BTreeSet<String>, AdminProblem> {
    let kind = DocumentKind::Policy;
    let documents = match only {
        Some(name) => Vec::from_iter(admin.store().document(namespace, kind, name).await?),
        None => admin.store().documents(namespace).await?,
    };
    let readable = documents
        .into_iter()
        .filter(|of| of.kind == kind && is_readable(&caller.0, namespace, of.apps.as_deref()));
    Ok(readable.map(|of| of.name).collect())
}
