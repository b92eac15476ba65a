//! Bearer tokens of an environment, or those whose scopes name an app.
//!
//! API routes below the namespace: `GET` and `POST tokens`, `DELETE tokens/{id}`,
//! `POST tokens/{id}/rotate` and `…/confirm`. The secret is in the answer to the form, since no
//! later page can show it. Test: `tests/pages/people.rs`.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::pages::app::{AppHead, AppTab};
use crate::admin::pages::apps::NoticeQuery;
use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::connect::snippets_with_token;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::snippets::Snippet;
use crate::admin::pages::time::PageTime;
use crate::admin::pages::views::{TokenListView, TokenView};
use crate::admin::pages::{links, render, see};
use crate::admin::permissions::ALL_APPS;

#[derive(Debug, Deserialize)]
pub(super) struct NewTokenForm {
    name: String,
    scopes: String,
    days: String,
    /// The app that the token connects; its texts are shown with the token.
    #[serde(default)]
    app: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct RotationForm {
    /// In hours.
    overlap: String,
}

#[derive(Template)]
#[template(path = "tokens.html")]
struct TokensTemplate {
    layout: Layout,
    /// The app whose tokens are shown; `None` for all tokens.
    head: Option<AppHead>,
    href: String,
    tokens: Vec<TokenView>,
    default_scopes: String,
}

#[derive(Template)]
#[template(path = "token_secret.html")]
struct SecretTemplate {
    layout: Layout,
    href: String,
    created: CreatedToken,
    /// The texts that connect the app of the token.
    snippets: Vec<Snippet>,
}

/// A created token. Its secret is not stored.
#[derive(Debug, Deserialize)]
struct CreatedToken {
    secret: String,
    expires_at: PageTime,
    previous_ends_at: Option<PageTime>,
}

async fn all(caller: &PageCaller, environment: &str) -> Result<Vec<TokenView>, PageFailure> {
    let list: TokenListView = caller.api.get(&links::api(environment, &["tokens"])).await?;
    Ok(list.tokens)
}

pub(super) async fn list(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(query): Query<NoticeQuery>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_environment(&caller, &environment, Section::Settings, "Tokens").await?;
    Ok(render(&TokensTemplate {
        layout: layout.with_notice(query.notice.as_deref()),
        head: None,
        href: links::page(&environment, &["tokens"]),
        tokens: all(&caller, &environment).await?,
        default_scopes: "check:*".to_owned(),
    }))
}

/// Returns the tokens whose scopes name an app.
pub(super) async fn of_app(
    caller: PageCaller,
    Path((environment, app)): Path<(String, String)>,
) -> Result<Response, PageFailure> {
    let head = AppHead::new(&caller, &environment, &app, AppTab::Tokens)?;
    let layout = Layout::of_environment(&caller, &environment, Section::Apps, &*head.title).await?;
    let mut tokens = all(&caller, &environment).await?;
    let names_app = |scope: &String| {
        let target = scope.rsplit(':').next().unwrap_or_default();
        target.strip_prefix("app=").unwrap_or(target) == app
    };
    tokens.retain(|token| token.scopes.iter().any(names_app));
    let default_scopes = match app.as_str() {
        ALL_APPS => "check:*".to_owned(),
        app => format!("check:app={app}"),
    };
    Ok(render(&TokensTemplate {
        layout,
        head: Some(head),
        href: links::page(&environment, &["tokens"]),
        tokens,
        default_scopes,
    }))
}

async fn show_secret(
    caller: &PageCaller,
    environment: &str,
    (path, body): (&str, &Value),
    app: &str,
) -> Result<Response, PageFailure> {
    let created: CreatedToken = caller.api.send(Method::POST, path, &[], body).await?.read()?;
    let snippets = match app {
        "" => Vec::new(),
        // The secret is shown even if the texts cannot be made.
        app => snippets_with_token(caller, environment, (app, &created.secret))
            .await
            .unwrap_or_default(),
    };
    let layout = Layout::of_environment(caller, environment, Section::Settings, "New token").await?;
    Ok(render(&SecretTemplate {
        layout,
        href: links::page(environment, &["tokens"]),
        created,
        snippets,
    }))
}

fn whole(text: &str, name: &str) -> Result<i64, PageFailure> {
    let number = text.trim().parse();
    number.map_err(|_| PageFailure::bad_request(format!("{name}: expected a whole number")))
}

/// Shows the secret in the answer, because it is not stored for a later page.
pub(super) async fn create(
    caller: PageCaller,
    Path(environment): Path<String>,
    PageForm(form): PageForm<NewTokenForm>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let scopes: Vec<&str> = form.scopes.split_whitespace().collect();
    let days = whole(&form.days, "Days")?;
    let body = json!({ "name": form.name.trim(), "scopes": scopes, "expires_in_days": days });
    let path = links::api(&environment, &["tokens"]);
    show_secret(&caller, &environment, (&path, &body), &form.app).await
}

pub(super) async fn rotate(
    caller: PageCaller,
    Path((environment, id)): Path<(String, String)>,
    PageForm(form): PageForm<RotationForm>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let hours = whole(&form.overlap, "Hours")?;
    let body = json!({ "overlap_seconds": hours.saturating_mul(3_600) });
    let path = links::api(&environment, &["tokens", &id, "rotate"]);
    show_secret(&caller, &environment, (&path, &body), "").await
}

pub(super) async fn revoke(
    caller: PageCaller,
    Path((environment, id)): Path<(String, String)>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let path = links::api(&environment, &["tokens", &id]);
    caller.api.send(Method::DELETE, &path, &[], &Value::Null).await?;
    Ok(see(&(links::page(&environment, &["tokens"]) + "?notice=revoked")))
}

pub(super) async fn confirm(
    caller: PageCaller,
    Path((environment, id)): Path<(String, String)>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let path = links::api(&environment, &["tokens", &id, "confirm"]);
    caller.api.send(Method::POST, &path, &[], &Value::Null).await?;
    Ok(see(
        &(links::page(&environment, &["tokens"]) + "?notice=confirmed")
    ))
}
