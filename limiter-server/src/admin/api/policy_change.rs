//! Changes of a part of a policy: a quota of a key, or a trial.
//!
//! Each change saves the policy as a new revision, so permissions, bounds and conflicts are those
//! of [`policies::save`](super::policies::save). Tests: `tests/overlays.rs`
//! (`quotas_and_trials_change_the_policy`).

use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use limiter_core::registry::{PolicyEntry, PolicyRegistry};
use limiter_core::{Inheritance, Policy};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, expected_revision};
use crate::admin::api::policies::{find, run};
use crate::admin::api::problem::AdminProblem;
use crate::admin::edit::{MANAGED_BY_UI, PolicyEdit};
use crate::policy_text::PolicyText;
use crate::store::{Origin, StoredDocument};

/// The numbers of a policy, as its text has them.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct Numbers {
    capacity: Option<Value>,
    rate: Option<Value>,
    limit: Option<Value>,
    window: Option<Value>,
    max: Option<Value>,
}

pub(super) fn unprocessable(detail: impl Into<String>) -> AdminProblem {
    AdminProblem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
}

impl Numbers {
    /// Returns the policy with these numbers, and without other settings.
    pub(super) fn policy(&self, of: &Policy) -> Result<Policy, AdminProblem> {
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

/// A policy that a caller changes.
#[derive(Debug)]
pub(super) struct PolicyChange {
    document: StoredDocument,
    /// Contains the policy alone.
    registry: PolicyRegistry,
}

impl PolicyChange {
    /// Reads a policy that the caller may read.
    pub(super) async fn read(
        admin: &Admin,
        caller: &AdminCaller,
        (namespace, name): (&str, &str),
    ) -> Result<Self, AdminProblem> {
        let document = find(admin, caller, namespace, name).await?;
        let document = Some(document).filter(|of| !of.is_deleted);
        let document = document.ok_or_else(AdminProblem::not_found)?;
        let text = document
            .policy()
            .map_err(|error| unprocessable(error.to_string()))?;
        let registry = PolicyRegistry::new();
        let put = text.put_into(&registry);
        put.map_err(|error| unprocessable(error.to_string()))?;
        Ok(Self { document, registry })
    }

    pub(super) fn document(&self) -> &StoredDocument {
        &self.document
    }

    pub(super) fn registry(&self) -> &PolicyRegistry {
        &self.registry
    }

    pub(super) fn entry(&self) -> Result<PolicyEntry, AdminProblem> {
        let entry = self.registry.get(&self.document.name);
        Ok((*entry.ok_or_else(AdminProblem::not_found)?).clone())
    }

    /// Saves the changed policy as the next revision.
    pub(super) async fn save(
        self,
        admin: &Admin,
        caller: &AdminCaller,
        headers: &HeaderMap,
        (action, reason): (&str, Option<String>),
    ) -> Result<Response, AdminProblem> {
        let text = PolicyText::of(&self.registry, &self.document.name);
        let text = text.ok_or_else(AdminProblem::not_found)?;
        let reason = match reason {
            Some(reason) => format!("{action}: {reason}"),
            None => action.to_owned(),
        };
        let edit = PolicyEdit {
            namespace: self.document.namespace,
            name: self.document.name,
            expected: expected_revision(headers)?,
            text: Some(text.to_toml()),
            inheritance: Inheritance::AsIs,
            reason: Some(reason),
            origin: Origin::Api,
            managed_by: MANAGED_BY_UI.to_owned(),
            takes_over: false,
        };
        run(admin, caller, edit).await
    }
}
