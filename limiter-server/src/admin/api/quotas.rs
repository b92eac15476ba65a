//! Quotas of single keys, as parts of the text of their policy.
//!
//! A request names a key as programs send it, or by its parts; parts are escaped and put into the
//! group of the rule that leads to the policy. The quota is set or removed in a copy of the policy,
//! which `PolicyChange` saves as a revision with the permissions of a changed number.
//!
//! Tests: `quotas_and_trials_change_the_policy` in `tests/overlays.rs`, and
//! `tests/control_plane/managed.rs`.

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use limiter_core::Key;
use limiter_core::registry::KeyOverride;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::keys::keys_under;
use crate::admin::api::other_fields::NoOtherFields;
use crate::admin::api::overlays::End;
use crate::admin::api::policy_change::{Numbers, PolicyChange, unprocessable};
use crate::admin::api::problem::AdminProblem;
use crate::key_text::joined;
use crate::policy_text::parse_rules;
use crate::store::{DocumentKind, RULES};

/// A key: a text as programs send it, or its parts.
#[derive(Debug, Deserialize, ToSchema)]
struct NamedKey {
    key: Option<String>,
    /// The parts. They are escaped, and are in the group of the rule that leads to the policy. One
    /// part with a colon, such as `user:7`, also denotes this text.
    parts: Option<Vec<String>>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct QuotaBody {
    #[serde(flatten)]
    key: NamedKey,
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
pub(super) struct RemovedQuotaBody {
    #[serde(flatten)]
    key: NamedKey,
    reason: Option<String>,
    #[serde(flatten)]
    #[schema(ignore)]
    _others: NoOtherFields,
}

impl NamedKey {
    /// Returns the keys under a policy. A quota of the last one applies to all of them.
    async fn find(&self, admin: &Admin, change: &PolicyChange) -> Result<Vec<Key<'static>>, AdminProblem> {
        match (&self.key, &self.parts) {
            (Some(key), None) => Ok(vec![Key::from(key.as_str()).into_owned()]),
            (None, Some(parts)) => {
                let of = change.document();
                let kind = DocumentKind::Rules;
                let rules = admin.store().document(&of.namespace, kind, RULES).await?;
                let rules = rules.filter(|of| !of.is_deleted);
                let rules = rules.map(|of| parse_rules(&of.body)).transpose();
                let rules = rules.map_err(|error| unprocessable(error.to_string()))?;
                Ok(keys_under(&of.name, parts, &rules.unwrap_or_default()))
            }
            _ => Err(unprocessable("expected one of `key` and `parts`")),
        }
    }

    fn shown(&self) -> String {
        let parts = self.parts.iter().map(joined);
        self.key.iter().cloned().chain(parts).collect()
    }
}

/// Gives a key a quota of its own, or replaces it.
pub(super) async fn set(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<QuotaBody>,
) -> Result<Response, AdminProblem> {
    let change = PolicyChange::read(&admin, &caller, (&namespace, &name)).await?;
    let numbers = body.numbers.policy(change.entry()?.policy())?;
    let mut keys = body.key.find(&admin, &change).await?;
    // There is at least one key.
    let Some(key) = keys.pop() else {
        return Err(AdminProblem::not_found());
    };
    for other in keys {
        // Its quota would take precedence.
        change.registry().remove_override(&name, other);
    }
    let own = KeyOverride::new(numbers, key);
    let own = match body.end.time()? {
        Some(end) => own.until(end),
        None => own,
    };
    let added = change.registry().set_override(own);
    added.map_err(|error| unprocessable(error.to_string()))?;
    let action = format!("quota of {}", body.key.shown());
    change
        .save(&admin, &caller, &headers, (&action, body.reason))
        .await
}

/// Removes the quota of a key.
pub(super) async fn remove(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<RemovedQuotaBody>,
) -> Result<Response, AdminProblem> {
    let change = PolicyChange::read(&admin, &caller, (&namespace, &name)).await?;
    let keys = body.key.find(&admin, &change).await?.into_iter();
    let removed = keys.filter(|key| change.registry().remove_override(&name, key.clone()));
    if removed.count() == 0 {
        return Err(AdminProblem::not_found());
    }
    let action = format!("remove the quota of {}", body.key.shown());
    change
        .save(&admin, &caller, &headers, (&action, body.reason))
        .await
}
