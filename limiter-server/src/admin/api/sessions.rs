//! The first run, sign-in and sign-out.

use std::net::SocketAddr;

use axum::Json;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::people::require_name;
use crate::admin::api::problem::AdminProblem;
use crate::admin::auth::{StartedSession, removed_cookie, require_same_origin};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SetupBody {
    token: String,
    user: String,
    password: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SigninBody {
    user: String,
    password: String,
}

pub(super) async fn set_up(
    State(admin): State<Admin>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<SetupBody>,
) -> Result<Response, AdminProblem> {
    require_name(&body.user)?;
    let address = admin.client_address(&headers, peer);
    let session = admin
        .set_up(&body.token, &body.user, body.password, &address)
        .await?;
    Ok(started(&headers, &session))
}

pub(super) async fn sign_in(
    State(admin): State<Admin>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<SigninBody>,
) -> Result<Response, AdminProblem> {
    require_same_origin(&Method::POST, &headers)?;
    let address = admin.client_address(&headers, peer);
    let session = admin.sign_in(&body.user, body.password, &address).await?;
    Ok(started(&headers, &session))
}

fn started(request: &HeaderMap, session: &StartedSession) -> Response {
    let mut response = (StatusCode::CREATED, Json(json!({ "user": session.user }))).into_response();
    if let Ok(cookie) = HeaderValue::from_str(&session.cookie(request)) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Returns the caller with its roles.
pub(super) async fn read(caller: AdminCaller) -> Json<Value> {
    let roles: Vec<Value> = caller
        .0
        .roles
        .iter()
        .map(|(namespace, app, role)| json!({ "namespace": namespace, "app": app, "role": role.name() }))
        .collect();
    Json(json!({ "user": caller.0.name, "admin": caller.0.is_server_admin, "roles": roles }))
}

pub(super) async fn sign_out(
    State(admin): State<Admin>,
    _caller: AdminCaller,
    headers: HeaderMap,
) -> Result<Response, AdminProblem> {
    admin.sign_out(&headers).await?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Ok(cookie) = HeaderValue::from_str(&removed_cookie(&headers)) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}
