//! Calls routes of the API in this process, on behalf of the user of a page.
//!
//! A call goes through the router of the API without a connection. It has the identified user as an
//! extension, and the cookie, host and client address of the page, so that the API decides as for a
//! request from outside. A status other than 2xx becomes a `PageFailure`. Tests: `tests/pages.rs`,
//! `tests/pages/roles.rs`.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::ServiceExt as _;

use crate::admin::pages::failure::PageFailure;
use crate::admin::permissions::Actor;
use crate::settings::FORWARDED_FOR;

/// The API on behalf of the user of a page.
#[derive(Clone, Debug)]
pub(super) struct PageApi {
    router: Router,
    /// The identified user; `None` on the sign-in page.
    actor: Option<Actor>,
    peer: SocketAddr,
    /// The headers that sign a user in and out, and those that name the address of the client.
    headers: HeaderMap,
}

/// A successful answer of the API.
#[derive(Debug)]
pub(super) struct ApiReply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Value,
}

impl ApiReply {
    /// Returns the body.
    pub(super) fn read<T: DeserializeOwned>(self) -> Result<T, PageFailure> {
        serde_json::from_value(self.body).map_err(|error| {
            tracing::error!(%error, "a page cannot read an answer of the API");
            PageFailure::internal()
        })
    }
}

impl PageApi {
    pub(super) fn new(
        router: Router,
        actor: Option<Actor>,
        peer: SocketAddr,
        page_headers: &HeaderMap,
    ) -> Self {
        let mut headers = HeaderMap::new();
        for name in [header::COOKIE, header::HOST] {
            if let Some(value) = page_headers.get(&name) {
                headers.insert(name, value.clone());
            }
        }
        for line in page_headers.get_all(FORWARDED_FOR) {
            headers.append(FORWARDED_FOR, line.clone());
        }
        Self {
            router,
            actor,
            peer,
            headers,
        }
    }

    /// Reads an object.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, PageFailure> {
        let reply = self.send(Method::GET, path, &[], &Value::Null).await?;
        reply.read()
    }

    /// Sends a change. `path` is below `/admin/v1`.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(HeaderName, String)],
        body: &Value,
    ) -> Result<ApiReply, PageFailure> {
        let mut request = Request::new(match body {
            Value::Null => Body::empty(),
            body => Body::from(body.to_string()),
        });
        *request.method_mut() = method;
        *request.uri_mut() = format!("/admin/v1{path}").parse().map_err(|error| {
            tracing::error!(%error, path, "a page calls a path that is no URL");
            PageFailure::internal()
        })?;
        *request.headers_mut() = self.headers.clone();
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        for (name, value) in headers {
            let value = HeaderValue::from_str(value);
            let value = value.map_err(|_| PageFailure::bad_request("a value of the form is not text"))?;
            request.headers_mut().insert(name, value);
        }
        request.extensions_mut().insert(ConnectInfo(self.peer));
        if let Some(actor) = &self.actor {
            request.extensions_mut().insert(actor.clone());
        }
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| {
            tracing::error!(%error, path, "cannot read an answer of the API");
            PageFailure::internal()
        })?;
        let body = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
        match parts.status.is_success() {
            true => Ok(ApiReply {
                status: parts.status,
                headers: parts.headers,
                body,
            }),
            false => Err(PageFailure::from_problem(parts.status, &parts.headers, &body)),
        }
    }
}
