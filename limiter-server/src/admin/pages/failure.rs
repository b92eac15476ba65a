//! Pages that report a failure, with the status of the API.
//!
//! A `PageFailure` has the detail of the problem document, the time of a retry, and the command
//! that suspends policies while the database does not answer. Tests:
//! `tests/control_plane/outage_pages.rs`, `tests/control_plane/outages.rs`.

use askama::Template;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde_json::Value;

use crate::admin::api::problem::{AdminProblem, SUSPEND_COMMAND, SUSPEND_COMMAND_FIELD};
use crate::admin::auth::AuthError;
use crate::admin::pages::assets::{self, AssetLinks};

/// The reason for a failed page or a rejected form.
#[derive(Debug)]
pub(super) struct PageFailure {
    pub(super) status: StatusCode,
    /// One sentence for the user.
    pub(super) detail: String,
    retry_after: Option<u64>,
    /// The command that suspends policies without the database, if it does not answer.
    suspend_command: Option<String>,
    /// Another page that the browser shows instead.
    see: Option<String>,
}

#[derive(Template)]
#[template(path = "failure.html")]
struct FailureTemplate<'a> {
    assets: &'static AssetLinks,
    heading: &'a str,
    detail: &'a str,
    suspend_command: Option<&'a str>,
    is_signed_out: bool,
}

impl PageFailure {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            retry_after: None,
            suspend_command: None,
            see: None,
        }
    }

    pub(super) fn not_found() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "There is no such page, or you may not read it.",
        )
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Returns a form or a field with values that cannot be used.
    pub(super) fn unprocessable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// Returns whether the user can correct the form and send it again.
    pub(super) fn is_unprocessable(&self) -> bool {
        self.status == StatusCode::UNPROCESSABLE_ENTITY
    }

    /// Returns the answer to a form without a session. The browser keeps the form.
    pub(super) fn signed_out() -> Self {
        let detail = "Your session has ended, so nothing was changed. Sign in in another tab, and then reload \
                      this page: the browser sends the form again.";
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    pub(super) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    pub(super) fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "The page cannot be shown. The log of the server contains the reason.",
        )
    }

    /// Returns the answer to a change while the database does not answer.
    pub(super) fn read_only() -> Self {
        let detail =
            "Nothing was changed: the database does not answer, so the pages are read-only until it does.";
        Self {
            suspend_command: Some(SUSPEND_COMMAND.to_owned()),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        }
    }

    /// Returns the answer to a reader without a recent session while the database does not answer.
    pub(super) fn no_recent_session() -> Self {
        let detail = "The database does not answer. Users who were signed in during the last 15 minutes can \
                      read the policies in force.";
        Self {
            suspend_command: Some(SUSPEND_COMMAND.to_owned()),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        }
    }

    /// Shows another page instead.
    pub(super) fn see(path: String) -> Self {
        Self {
            see: Some(path),
            ..Self::new(StatusCode::SEE_OTHER, "")
        }
    }

    /// Returns the failure of a call of the API.
    pub(super) fn from_problem(status: StatusCode, headers: &HeaderMap, problem: &Value) -> Self {
        let detail = problem.get("detail").and_then(Value::as_str);
        let detail = detail.unwrap_or("the request failed").to_owned();
        let command = problem.get(SUSPEND_COMMAND_FIELD).and_then(Value::as_str);
        Self {
            retry_after: headers.get(header::RETRY_AFTER).and_then(seconds),
            suspend_command: command.map(str::to_owned),
            ..Self::new(status, detail)
        }
    }

    fn heading(&self) -> &'static str {
        match self.status {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::FORBIDDEN => "Not permitted",
            StatusCode::CONFLICT => "Conflict",
            StatusCode::UNAUTHORIZED => "Not signed in",
            StatusCode::TOO_MANY_REQUESTS => "Too many attempts",
            status if status.is_server_error() => "Not available",
            _ => "Not accepted",
        }
    }
}

fn seconds(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.parse().ok()
}

impl From<AuthError> for PageFailure {
    fn from(error: AuthError) -> Self {
        let (status, problem) = AdminProblem::from(error).into_parts();
        Self::from_problem(status, &HeaderMap::new(), &problem)
    }
}

impl IntoResponse for PageFailure {
    fn into_response(self) -> Response {
        if let Some(path) = &self.see {
            return Redirect::to(path).into_response();
        }
        let page = FailureTemplate {
            assets: assets::links(),
            heading: self.heading(),
            detail: &self.detail,
            suspend_command: self.suspend_command.as_deref(),
            is_signed_out: self.status == StatusCode::UNAUTHORIZED,
        };
        // The template has no failing filters.
        let html = page.render().unwrap_or_default();
        let mut response = (self.status, axum::response::Html(html)).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
