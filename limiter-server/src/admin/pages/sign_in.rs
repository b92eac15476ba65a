//! Sign-in and sign-out. Tests: `tests/pages.rs`, `tests/admin_attacks.rs`.

use askama::Template;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::SocketAddr;

use crate::admin::pages::api_client::PageApi;
use crate::admin::pages::assets::{self, AssetLinks};
use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::links::safe_next;
use crate::admin::pages::{Pages, render, see};

#[derive(Debug, Deserialize)]
pub(super) struct NextQuery {
    next: Option<String>,
    /// The suggested name of the user.
    #[serde(default)]
    user: String,
}

#[derive(Deserialize)]
pub(super) struct SigninForm {
    user: String,
    password: String,
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SigninTemplate<'a> {
    assets: &'static AssetLinks,
    next: &'a str,
    user: &'a str,
    failure: Option<&'a str>,
}

pub(super) async fn form(Query(query): Query<NextQuery>) -> Response {
    render(&SigninTemplate {
        assets: assets::links(),
        next: safe_next(query.next.as_deref()),
        user: &query.user,
        failure: None,
    })
}

pub(super) async fn sign_in(
    State(pages): State<Pages>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    PageForm(form): PageForm<SigninForm>,
) -> Result<Response, PageFailure> {
    let next = safe_next(form.next.as_deref());
    let api = PageApi::new(pages.api.clone(), None, peer, &headers);
    let body = json!({ "user": form.user, "password": form.password });
    match api.send(Method::POST, "/session", &[], &body).await {
        Ok(reply) => Ok(with_cookie(see(next), &reply.headers)),
        Err(failure) if failure.status == StatusCode::UNAUTHORIZED => {
            let mut response = render(&SigninTemplate {
                assets: assets::links(),
                next,
                user: &form.user,
                failure: Some("The name or the password is wrong."),
            });
            *response.status_mut() = StatusCode::UNAUTHORIZED;
            Ok(response)
        }
        Err(failure) => Err(failure),
    }
}

pub(super) async fn sign_out(caller: Result<PageCaller, PageFailure>) -> Result<Response, PageFailure> {
    let caller = match caller {
        Err(failure) if failure.status == StatusCode::UNAUTHORIZED => return Ok(see("/signin")),
        caller => caller?,
    };
    let reply = caller
        .api
        .send(Method::DELETE, "/session", &[], &Value::Null)
        .await?;
    let mut response = with_cookie(see("/signin"), &reply.headers);
    // Pages that the browser has kept are not shown after the sign-out.
    let value = header::HeaderValue::from_static("\"cache\", \"storage\"");
    response.headers_mut().insert("clear-site-data", value);
    Ok(response.into_response())
}

/// Sends the cookie of the API to the browser.
pub(super) fn with_cookie(mut response: Response, reply: &HeaderMap) -> Response {
    if let Some(cookie) = reply.get(header::SET_COOKIE) {
        response.headers_mut().insert(header::SET_COOKIE, cookie.clone());
    }
    response
}
