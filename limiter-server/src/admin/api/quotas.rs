//! Quotas of single keys, and trial values of a policy.
//!
//! Each change saves the policy as a new revision, so permissions, bounds and conflicts are those
//! of [`policies::save`](super::policies::save).

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use limiter_core::registry::{KeyOverride, PolicyEntry, PolicyRegistry};
use limiter_core::{Inheritance, Policy};
use serde::Deserialize;
use serde_json::Value;

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody, expected_revision};
use crate::admin::api::overlays::End;
use crate::admin::api::policies::{find, run};
use crate::admin::api::problem::AdminProblem;
use crate::admin::edit::PolicyEdit;
use crate::policy_text::PolicyText;
use crate::store::{Origin, StoredDocument};

/// The numbers of a policy, as its text has them.
#[derive(Debug, Deserialize)]
struct Numbers {
    capacity: Option<Value>,
    rate: Option<Value>,
    limit: Option<Value>,
    window: Option<Value>,
    max: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct QuotaBody {
    key: String,
    #[serde(flatten)]
    numbers: Numbers,
    #[serde(flatten)]
    end: End,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RemovedQuotaBody {
    key: String,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TrialBody {
    #[serde(flatten)]
    numbers: Numbers,
    #[serde(flatten)]
    end: End,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct DecisionBody {
    reason: Option<String>,
}

fn unprocessable(detail: impl Into<String>) -> AdminProblem {
    AdminProblem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
}

impl Numbers {
    /// The policy with these numbers, and without other settings.
    fn policy(&self, of: &Policy) -> Result<Policy, AdminProblem> {
        let name = of.name();
        let fields = [
            ("capacity", &self.capacity),
            ("rate", &self.rate),
            ("limit", &self.limit),
            ("window", &self.window),
            ("max", &self.max),
        ];
        let mut text = format!(
            "[policy.{}]\nalgorithm = \"{}\"\n",
            Value::from(name),
            of.algorithm_name()
        );
        for (field, value) in fields {
            match value {
                None => {}
                // Numbers and strings of JSON without control characters are those of TOML.
                Some(value @ (Value::Number(_) | Value::String(_))) => {
                    text.push_str(&format!("{field} = {value}\n"));
                }
                Some(_) => return Err(unprocessable(format!("{field} is neither a number nor text"))),
            }
        }
        let registry = PolicyRegistry::from_toml(&text);
        let registry = registry.map_err(|error| unprocessable(error.to_string()))?;
        let entry = registry.get(name).ok_or_else(|| unprocessable("no numbers"))?;
        Ok(entry.policy().clone())
    }
}

/// The policy in SQL, and a registry that contains it alone.
async fn read(
    admin: &Admin,
    caller: &AdminCaller,
    (namespace, name): (&str, &str),
) -> Result<(StoredDocument, PolicyRegistry), AdminProblem> {
    let document = find(admin, caller, namespace, name).await?;
    let document = Some(document).filter(|of| !of.is_deleted);
    let document = document.ok_or_else(AdminProblem::not_found)?;
    let text = document
        .policy()
        .map_err(|error| unprocessable(error.to_string()))?;
    let registry = PolicyRegistry::new();
    let put = text.put_into(&registry);
    put.map_err(|error| unprocessable(error.to_string()))?;
    Ok((document, registry))
}

/// Saves the policy of a registry as the next revision.
async fn save(
    admin: &Admin,
    caller: &AdminCaller,
    document: StoredDocument,
    registry: &PolicyRegistry,
    headers: &HeaderMap,
    reason: String,
) -> Result<Response, AdminProblem> {
    let text = PolicyText::of(registry, &document.name).ok_or_else(AdminProblem::not_found)?;
    let edit = PolicyEdit {
        namespace: document.namespace,
        name: document.name,
        expected: expected_revision(headers)?,
        text: Some(text.to_toml()),
        inheritance: Inheritance::AsIs,
        reason: Some(reason),
        origin: Origin::Api,
        managed_by: document.managed_by,
        takes_over: false,
    };
    run(admin, caller, edit).await
}

fn with_reason(action: &str, reason: Option<String>) -> String {
    match reason {
        Some(reason) => format!("{action}: {reason}"),
        None => action.to_owned(),
    }
}

fn entry_of(registry: &PolicyRegistry, name: &str) -> Result<PolicyEntry, AdminProblem> {
    let entry = registry.get(name).ok_or_else(AdminProblem::not_found)?;
    Ok((*entry).clone())
}

/// Gives a key a quota of its own, or replaces it.
pub(super) async fn set(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<QuotaBody>,
) -> Result<Response, AdminProblem> {
    let (document, registry) = read(&admin, &caller, (&namespace, &name)).await?;
    let numbers = body.numbers.policy(entry_of(&registry, &name)?.policy())?;
    let own = KeyOverride::new(numbers, body.key.as_str());
    let own = match body.end.time()? {
        Some(end) => own.until(end),
        None => own,
    };
    let added = registry.set_override(own);
    added.map_err(|error| unprocessable(error.to_string()))?;
    let reason = with_reason(&format!("quota of {}", body.key), body.reason);
    save(&admin, &caller, document, &registry, &headers, reason).await
}

/// Removes the quota of a key.
pub(super) async fn remove(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<RemovedQuotaBody>,
) -> Result<Response, AdminProblem> {
    let (document, registry) = read(&admin, &caller, (&namespace, &name)).await?;
    if !registry.remove_override(&name, body.key.as_str()) {
        return Err(AdminProblem::not_found());
    }
    let reason = with_reason(&format!("remove the quota of {}", body.key), body.reason);
    save(&admin, &caller, document, &registry, &headers, reason).await
}

/// Starts a trial of other numbers, or replaces it.
pub(super) async fn start_trial(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<TrialBody>,
) -> Result<Response, AdminProblem> {
    let (document, registry) = read(&admin, &caller, (&namespace, &name)).await?;
    let entry = entry_of(&registry, &name)?;
    let numbers = body.numbers.policy(entry.policy())?;
    let tried = entry.policy().with_trial(&numbers, body.end.required()?);
    let tried = tried.map_err(|error| unprocessable(error.to_string()))?;
    registry.set(entry.with_policy(tried));
    let reason = with_reason("start a trial", body.reason);
    save(&admin, &caller, document, &registry, &headers, reason).await
}

/// Makes the numbers of the trial those of the policy.
pub(super) async fn adopt_trial(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<DecisionBody>,
) -> Result<Response, AdminProblem> {
    let (document, registry) = read(&admin, &caller, (&namespace, &name)).await?;
    let entry = entry_of(&registry, &name)?;
    let policy = entry.policy();
    let (numbers, _) = policy.trial().ok_or_else(AdminProblem::not_found)?;
    let adopted = policy.with_numbers_of(numbers).without_trial();
    registry.set(entry.with_policy(adopted));
    let reason = with_reason("adopt the trial", body.reason);
    save(&admin, &caller, document, &registry, &headers, reason).await
}

/// Ends the trial without a change of the policy.
pub(super) async fn drop_trial(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, AdminProblem> {
    let (document, registry) = read(&admin, &caller, (&namespace, &name)).await?;
    let entry = entry_of(&registry, &name)?;
    if entry.policy().trial().is_none() {
        return Err(AdminProblem::not_found());
    }
    let without = entry.policy().without_trial();
    registry.set(entry.with_policy(without));
    let reason = "drop the trial".to_owned();
    save(&admin, &caller, document, &registry, &headers, reason).await
}
