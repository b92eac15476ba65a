//! Responses of the admin part that report a problem, as RFC 9457 defines them.
//!
//! Each error type of the admin part has one conversion to a status and a detail. A conflict
//! contains the current version of the document. While the database does not answer, the problem
//! contains the command that suspends policies without it. An object that the caller may not read
//! is reported as absent.
//!
//! Tests: `tests/admin_api.rs`, `tests/database_outage.rs`, `tests/control_plane/outages.rs`.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::admin::api::documents::policy_json;
use crate::admin::auth::AuthError;
use crate::admin::edit::EditError;
use crate::admin::permissions::Permission;
use crate::store::StoreError;

/// The command that suspends policies while the database does not answer.
pub(crate) const SUSPEND_COMMAND: &str = "limiter-server kill policy:NAME --enforcement off --for 1h --reason TEXT \
                                          --redis URL --namespace NAMESPACE";
/// The member of a problem that contains the command.
pub(crate) const SUSPEND_COMMAND_FIELD: &str = "suspend_command";

/// A response of the admin part that is not a success.
#[derive(Debug)]
pub(crate) struct AdminProblem {
    status: StatusCode,
    fields: Map<String, Value>,
    retry_after: Option<u64>,
    /// True if the change may have been saved nevertheless.
    is_unconfirmed: bool,
}

impl AdminProblem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let mut fields = Map::new();
        fields.insert("type".into(), json!("about:blank"));
        fields.insert("title".into(), json!(status.canonical_reason()));
        fields.insert("status".into(), json!(status.as_u16()));
        fields.insert("detail".into(), json!(detail.into()));
        Self {
            status,
            fields,
            retry_after: None,
            is_unconfirmed: false,
        }
    }

    pub(crate) fn not_found() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "there is no such object, or you may not read it",
        )
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// Returns the problem of several objects, with the status of the first and the details of all.
    pub(crate) fn of_several(problems: Vec<(String, Self)>) -> Self {
        let status = problems
            .first()
            .map_or(StatusCode::INTERNAL_SERVER_ERROR, |(_, problem)| problem.status);
        let is_unconfirmed = problems.iter().any(|(_, problem)| problem.is_unconfirmed);
        let mut errors = Vec::with_capacity(problems.len());
        let mut details = Vec::with_capacity(problems.len());
        for (name, problem) in problems {
            let detail = problem.fields.get("detail").and_then(Value::as_str);
            details.push(format!("{name}: {}", detail.unwrap_or_default()));
            let mut error = problem.fields;
            error.insert("name".into(), json!(name));
            errors.push(Value::Object(error));
        }
        if !is_unconfirmed {
            details.push("nothing was saved".to_owned());
        }
        let mut problem = Self::new(status, details.join("; "));
        problem.fields.insert("errors".into(), Value::Array(errors));
        problem
    }

    /// Creates the problem of a text of the request that contains NUL.
    pub(crate) fn of_nul(place: &str) -> Self {
        let detail = format!("{place} contains the character NUL, expected a text without it");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// Returns the status, and the members of the problem.
    pub(crate) fn into_parts(self) -> (StatusCode, Value) {
        (self.status, Value::Object(self.fields))
    }

    /// Fails unless a verdict is [`Permission::Allowed`].
    pub(crate) fn unless(verdict: Permission, detail: &str) -> Result<(), Self> {
        match verdict {
            Permission::Allowed => Ok(()),
            Permission::Hidden => Err(Self::not_found()),
            Permission::Proposal | Permission::Forbidden => Err(Self::forbidden(detail)),
        }
    }
}

pub(super) async fn unknown_path() -> AdminProblem {
    AdminProblem::new(
        StatusCode::NOT_FOUND,
        "there is no such route: see /admin/v1/openapi.json",
    )
}

impl From<StoreError> for AdminProblem {
    fn from(error: StoreError) -> Self {
        let status = match &error {
            StoreError::Conflict { .. }
            | StoreError::Changed
            | StoreError::Exists
            | StoreError::LastAdmin => StatusCode::CONFLICT,
            StoreError::NotFound => return Self::not_found(),
            StoreError::NewerSchema { .. } => StatusCode::SERVICE_UNAVAILABLE,
            error if error.is_unavailable() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(%error, cause, "cannot answer an admin request; check the database");
        }
        let mut problem = Self::new(status, error.to_string());
        problem.is_unconfirmed = error.is_unconfirmed();
        if error.is_unavailable() {
            problem
                .fields
                .insert(SUSPEND_COMMAND_FIELD.into(), json!(SUSPEND_COMMAND));
        }
        if let StoreError::Conflict { expected, current } = error {
            problem.fields.insert("expected".into(), json!(expected));
            let current = current.as_deref().map(policy_json);
            problem.fields.insert("current".into(), json!(current));
        }
        problem
    }
}

impl From<EditError> for AdminProblem {
    fn from(error: EditError) -> Self {
        match error {
            EditError::Hidden => Self::not_found(),
            EditError::Forbidden(reason) => Self::forbidden(reason),
            EditError::Invalid(reason) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, reason),
            EditError::Managed(reason) => Self::new(StatusCode::CONFLICT, reason),
            EditError::Store(error) => error.into(),
        }
    }
}

impl From<AuthError> for AdminProblem {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::Unauthenticated => Self::new(
                StatusCode::UNAUTHORIZED,
                "expected a valid session or bearer token",
            ),
            AuthError::CrossOrigin => Self::forbidden(
                "the request comes from a page of another origin: let the proxy forward `Host` and `Origin`",
            ),
            AuthError::Limited(retry_after) => {
                let mut problem = Self::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    "too many attempts: try again later",
                );
                problem.retry_after = Some(whole_seconds(retry_after));
                problem
            }
            AuthError::Busy => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many sign-ins at once: try again",
            ),
            AuthError::Unsuitable(reason) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, reason),
            AuthError::Store(error) => error.into(),
        }
    }
}

/// Returns a time in seconds, rounded up.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

impl IntoResponse for AdminProblem {
    fn into_response(self) -> Response {
        let body = Value::Object(self.fields).to_string();
        let content_type = (header::CONTENT_TYPE, "application/problem+json");
        let mut response = (self.status, [content_type], body).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up_and_not_later() {
        for (millis, seconds) in [(1, "1"), (1_000, "1"), (1_001, "2"), (10_000, "10")] {
            let error = AuthError::Limited(Duration::from_millis(millis));
            let response = AdminProblem::from(error).into_response();
            assert_eq!(response.headers()[header::RETRY_AFTER], seconds, "{millis}");
        }
    }
}
