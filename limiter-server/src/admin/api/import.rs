//! Saves many policies and the rules in one transaction.

use axum::Json;
use axum::extract::{Path, State};
use limiter_core::Inheritance;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::policies::require_readers;
use crate::admin::api::problem::AdminProblem;
use crate::admin::edit::{self, BatchEdit, MANAGED_BY_UI, PolicyEdit, RulesEdit};
use crate::store::Origin;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ImportBody {
    #[serde(default)]
    policies: Vec<ImportedText>,
    rules: Option<ImportedRules>,
    reason: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ImportedText {
    name: String,
    toml: String,
    /// The revision that the author read; 0 for a new policy.
    #[serde(default)]
    revision: i64,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ImportedRules {
    toml: String,
    /// The revision that the author read; 0 without rules.
    #[serde(default)]
    revision: i64,
}

pub(super) async fn save(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    JsonBody(body): JsonBody<ImportBody>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_admin(&admin, &namespace)?;
    let policies = body.policies.into_iter().map(|policy| PolicyEdit {
        namespace: namespace.clone(),
        name: policy.name,
        expected: policy.revision,
        text: Some(policy.toml),
        inheritance: Inheritance::AsIs,
        reason: body.reason.clone(),
        origin: Origin::Api,
        managed_by: MANAGED_BY_UI.to_owned(),
        takes_over: false,
    });
    let policies: Vec<PolicyEdit> = policies.collect();
    for policy in &policies {
        let text = policy.text.as_deref();
        require_readers(&admin, (&policy.namespace, &policy.name), text).await?;
    }
    let batch = BatchEdit {
        namespace: namespace.clone(),
        policies,
        rules: body.rules.map(|rules| RulesEdit {
            expected: rules.revision,
            text: rules.toml,
        }),
        overlays: None,
        reason: body.reason,
        origin: Origin::Api,
    };
    let saved = edit::save_batch(admin.store(), &caller.0, batch).await;
    let saved = saved.map_err(|failures| {
        let problems = failures.into_iter();
        AdminProblem::of_several(problems.map(|of| (of.name, of.error.into())).collect())
    })?;
    if let Some(publisher) = admin.publisher(&namespace) {
        publisher.wake();
    }
    Ok(Json(json!({ "saved": saved, "state": "pending" })))
}
