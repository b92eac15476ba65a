//! Reads the caller and the body of a request.

use std::net::SocketAddr;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;

use crate::admin::Admin;
use crate::admin::api::problem::AdminProblem;
use crate::admin::permissions::{Actor, AdminAction, Object, may};

/// The identified caller.
#[derive(Debug)]
pub(super) struct AdminCaller(pub(super) Actor);

impl FromRequestParts<Admin> for AdminCaller {
    type Rejection = AdminProblem;

    async fn from_request_parts(parts: &mut Parts, admin: &Admin) -> Result<Self, Self::Rejection> {
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
            let detail = "expected the header `content-type: application/json`";
            return Err(AdminProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let bytes = Bytes::from_request(request, admin).await;
        let bytes = bytes.map_err(|error| AdminProblem::new(error.status(), error.body_text()))?;
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|error| AdminProblem::bad_request(format!("the body is not as expected: {error}")))
    }
}

/// The revision that the author read: the number in `If-Match`, or 0 for `If-None-Match: *`.
pub(super) fn expected_revision(headers: &HeaderMap) -> Result<i64, AdminProblem> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    match (text(header::IF_MATCH), text(header::IF_NONE_MATCH)) {
        (Some(tag), _) => {
            let number = tag.trim().trim_matches('"').parse();
            number.map_err(|_| AdminProblem::bad_request("expected the ETag of a revision in `If-Match`"))
        }
        (None, Some("*")) => Ok(0),
        _ => Err(AdminProblem::new(
            StatusCode::PRECONDITION_REQUIRED,
            "expected `If-Match` with the ETag that you read, or `If-None-Match: *` for a new object",
        )),
    }
}
