//! The first run: the first administrator.

use std::net::SocketAddr;

use askama::Template;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use crate::admin::pages::api_client::PageApi;
use crate::admin::pages::assets::{self, AssetLinks};
use crate::admin::pages::caller::PageForm;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::sign_in::with_cookie;
use crate::admin::pages::{Pages, render, see};

#[derive(Deserialize)]
pub(super) struct SetupQuery {
    token: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct SetupForm {
    token: String,
    user: String,
    password: String,
    repeated: String,
}

#[derive(Template)]
#[template(path = "setup.html")]
struct SetupTemplate<'a> {
    assets: &'static AssetLinks,
    token: &'a str,
    user: &'a str,
    failure: Option<&'a str>,
}

/// Returns the form of the first administrator. It does not reveal whether the link is valid.
pub(super) async fn form(Query(query): Query<SetupQuery>) -> Result<Response, PageFailure> {
    let token = query.token.ok_or_else(PageFailure::not_found)?;
    Ok(render(&SetupTemplate {
        assets: assets::links(),
        token: &token,
        user: "admin",
        failure: None,
    }))
}

pub(super) async fn set_up(
    State(pages): State<Pages>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    PageForm(form): PageForm<SetupForm>,
) -> Result<Response, PageFailure> {
    let again = |failure: &str, status: StatusCode| {
        let mut response = render(&SetupTemplate {
            assets: assets::links(),
            token: &form.token,
            user: &form.user,
            failure: Some(failure),
        });
        *response.status_mut() = status;
        response
    };
    if form.password != form.repeated {
        return Ok(again(
            "The two passwords differ.",
            StatusCode::UNPROCESSABLE_ENTITY,
        ));
    }
    let api = PageApi::new(pages.api.clone(), None, peer, &headers);
    let body = json!({ "token": form.token, "user": form.user, "password": form.password });
    match api.send(Method::POST, "/setup", &[], &body).await {
        Ok(reply) => Ok(with_cookie(see("/setup/start"), &reply.headers)),
        Err(failure) if failure.is_unprocessable() => Ok(again(&failure.detail, failure.status)),
        Err(failure) if failure.status == StatusCode::UNAUTHORIZED => {
            let detail = "The link is not valid any more. A restart of the server prints a new one, if \
                          there is no user yet.";
            Err(PageFailure::new(failure.status, detail))
        }
        Err(failure) => Err(failure),
    }
}
