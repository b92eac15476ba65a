//! Reads the caller and the body of a request, before the handler runs.
//!
//! A page inserts its identified user as an extension, and a request from outside, which has none,
//! is identified by its session or token. A body must be a JSON object with its content type, so
//! that a page of another origin cannot send it without a preflight. Paths, queries and bodies with
//! NUL are rejected, since PostgreSQL cannot store it. `expected_revision` reads the condition of a
//! change.
//!
//! Tests: below, `tests/routes_by_role.rs`, `tests/api_lists.rs`, `tests/pages/injection.rs`.

use std::net::SocketAddr;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::admin::Admin;
use crate::admin::api::problem::AdminProblem;
use crate::admin::permissions::{Actor, AdminAction, Object, may};
use crate::error_text::not_json;

/// NUL in a text of JSON.
const NUL_ESCAPE: &[u8] = b"\\u0000";

/// The identified caller.
#[derive(Debug)]
pub(super) struct AdminCaller(pub(super) Actor);

impl FromRequestParts<Admin> for AdminCaller {
    type Rejection = AdminProblem;

    async fn from_request_parts(parts: &mut Parts, admin: &Admin) -> Result<Self, Self::Rejection> {
        require_text(&parts.uri)?;
        // A page has identified its user. Requests from outside have no such extension.
        if let Some(actor) = parts.extensions.get::<Actor>() {
            return Ok(Self(actor.clone()));
        }
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        let peer = peer.map_or(SocketAddr::from(([0, 0, 0, 0], 0)), |info| info.0);
        Ok(Self(admin.identify(parts, peer).await?))
    }
}

impl AdminCaller {
    /// Fails unless the namespace is configured and the caller may read it.
    pub(super) fn require_namespace(&self, admin: &Admin, namespace: &str) -> Result<(), AdminProblem> {
        if admin.publisher(namespace).is_none() {
            return Err(AdminProblem::not_found());
        }
        let verdict = may(&self.0, AdminAction::Read, Object::Namespace(namespace));
        AdminProblem::unless(verdict, "reading needs a role in the namespace")
    }

    /// Fails unless the caller is an administrator of the namespace.
    pub(super) fn require_admin(&self, admin: &Admin, namespace: &str) -> Result<(), AdminProblem> {
        self.require_namespace(admin, namespace)?;
        let verdict = may(
            &self.0,
            AdminAction::ManageNamespace,
            Object::Namespace(namespace),
        );
        AdminProblem::unless(verdict, "this needs the role admin of the namespace")
    }

    /// Fails unless the caller is an administrator of the server.
    pub(super) fn require_server_admin(&self) -> Result<(), AdminProblem> {
        let verdict = may(&self.0, AdminAction::ManageServer, Object::Server);
        AdminProblem::unless(verdict, "this needs an administrator of the server")
    }
}

/// A JSON body.
#[derive(Debug)]
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Admin> for JsonBody<T> {
    type Rejection = AdminProblem;

    async fn from_request(request: Request, admin: &Admin) -> Result<Self, Self::Rejection> {
        let content_type = request.headers().get(header::CONTENT_TYPE);
        let content_type = content_type
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            let detail = not_json(content_type);
            return Err(AdminProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let bytes = Bytes::from_request(request, admin).await;
        let bytes = bytes.map_err(|error| AdminProblem::new(error.status(), error.body_text()))?;
        // An array would be read as the fields of the type in their order.
        if !bytes.trim_ascii_start().starts_with(b"{") {
            let detail = "the body is not as expected: expected a JSON object";
            return Err(AdminProblem::bad_request(detail));
        }
        let invalid = |error| AdminProblem::bad_request(format!("the body is not as expected: {error}"));
        if bytes.windows(NUL_ESCAPE.len()).any(|part| part == NUL_ESCAPE) {
            let body: Value = serde_json::from_slice(&bytes).map_err(invalid)?;
            if let Some(field) = field_with_nul(&body) {
                return Err(AdminProblem::of_nul(&format!("the field `{field}`")));
            }
        }
        serde_json::from_slice(&bytes).map(Self).map_err(invalid)
    }
}

/// Fails if the path or a parameter of the query contains NUL, which PostgreSQL rejects in texts.
fn require_text(uri: &Uri) -> Result<(), AdminProblem> {
    let has_nul = |text: &str| text.contains("%00");
    let parameters = uri.query().unwrap_or_default().split('&');
    let parameter = parameters.into_iter().find(|pair| has_nul(pair));
    match (has_nul(uri.path()), parameter) {
        (true, _) => Err(AdminProblem::of_nul("a name in the path")),
        (false, Some(pair)) => {
            let name = pair.split('=').next().unwrap_or_default();
            Err(AdminProblem::of_nul(&format!("the parameter `{name}`")))
        }
        (false, None) => Ok(()),
    }
}

/// Returns the path of the first text with NUL in a body, such as `policies.0.name`.
fn field_with_nul(value: &Value) -> Option<String> {
    let join = |name: &str, rest: String| match rest.is_empty() {
        true => name.to_owned(),
        false => format!("{name}.{rest}"),
    };
    match value {
        Value::String(text) => text.contains('\0').then(String::new),
        Value::Array(values) => values
            .iter()
            .enumerate()
            .find_map(|(number, value)| Some(join(&number.to_string(), field_with_nul(value)?))),
        Value::Object(fields) => fields.iter().find_map(|(name, value)| match name.contains('\0') {
            true => Some(name.escape_debug().to_string()),
            false => Some(join(name, field_with_nul(value)?)),
        }),
        _ => None,
    }
}

/// Returns the revision that the author read: the number in `If-Match`, or 0 for `If-None-Match:
/// *`.
pub(super) fn expected_revision(headers: &HeaderMap) -> Result<i64, AdminProblem> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    match (text(header::IF_MATCH), text(header::IF_NONE_MATCH)) {
        (Some(tag), _) => {
            // The state of the publication follows the revision.
            // A proxy that compresses answers weakens their tags.
            let tag = tag.trim();
            let tag = tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"');
            let revision = tag.split_once('-').map_or(tag, |(revision, _)| revision);
            revision
                .parse()
                .map_err(|_| AdminProblem::bad_request("expected the ETag of a revision in `If-Match`"))
        }
        (None, Some("*")) => Ok(0),
        _ => Err(AdminProblem::new(
            StatusCode::PRECONDITION_REQUIRED,
            "expected `If-Match` with the ETag that you read, or `If-None-Match: *` for a new object",
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn field_with_nul_is_named() {
        let body = json!({ "reason": "a", "policies": [{ "name": "p" }, { "name": "p\0" }] });
        assert_eq!(field_with_nul(&body).as_deref(), Some("policies.1.name"));
        assert_eq!(field_with_nul(&json!({ "reason": "\\u0000", "number": 7 })), None);
    }
}
