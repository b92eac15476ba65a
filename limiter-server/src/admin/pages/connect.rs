//! The ways in which programs send the calls of an app: snippets, the last call, test calls.
//!
//! API routes below the namespace: `GET connect`, `GET policies`,
//! `POST policies/{name}/test-calls`. Tests: `tests/pages/snippets.rs`, `tests/pages/explain.rs`,
//! `tests/browser.rs`.

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;

use crate::admin::pages::app::{AppHead, AppTab};
use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::policy_list::all_policies;
use crate::admin::pages::snippets::{GatewayUrls, Snippet, SnippetClient};
use crate::admin::pages::time::PageTime;
use crate::admin::pages::views::PolicySummary;
use crate::admin::pages::{links, render, see};
use crate::admin::permissions::{ALL_APPS, AdminAction};

/// The placeholder of a policy.
const POLICY: &str = "POLICY";

/// The connection of an app, from the API.
#[derive(Debug, Deserialize)]
struct ConnectView {
    #[serde(flatten)]
    addresses: GatewayUrls,
    node: String,
    /// True if this node sees the calls of clients.
    sees_calls: bool,
    seen: Option<SeenView>,
    /// The last call under a policy of all apps; `None` on the page of all apps.
    shared: Option<SeenView>,
}

/// The last call of an app, from the API.
#[derive(Debug, Deserialize)]
struct SeenView {
    policy: String,
    at: PageTime,
    from: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TestForm {
    policy: String,
}

/// The result of test calls, from the API.
#[derive(Debug, Deserialize)]
struct TestResultView {
    allowed: u8,
    denied: u8,
    would_deny: u8,
}

#[derive(Template)]
#[template(path = "connect.html")]
struct ConnectTemplate {
    layout: Layout,
    head: AppHead,
    app: String,
    /// True if the snippets contain the addresses of this server.
    is_addressed: bool,
    sees_calls: bool,
    node: String,
    seen: Option<SeenView>,
    shared: Option<SeenView>,
    /// The policies to which the user may send test calls.
    policies: Vec<String>,
    test_href: String,
    /// The path of the form of a new token, and its scope; `None` if the user may not create one.
    new_token: Option<(String, String)>,
    snippets: Vec<Snippet>,
}

/// Returns the connection of an app, and its policies.
async fn read(
    caller: &PageCaller,
    environment: &str,
    app: &str,
) -> Result<(ConnectView, Vec<PolicySummary>), PageFailure> {
    let mut path = links::api(environment, &["connect"]);
    if app != ALL_APPS {
        path.push_str(&format!("?app={}", links::encode(app)));
    }
    let view = caller.api.get(&path).await?;
    let mut policies = all_policies(caller, environment).await?;
    // Policies of the app come before those of all apps.
    policies.sort_by_key(|policy| policy.apps.is_none());
    policies.retain(|of| {
        of.apps
            .as_ref()
            .is_none_or(|apps| apps.iter().any(|of| of == app))
    });
    Ok((view, policies))
}

/// Returns the texts that connect an app with a new token.
pub(super) async fn snippets_with_token(
    caller: &PageCaller,
    environment: &str,
    (app, token): (&str, &str),
) -> Result<Vec<Snippet>, PageFailure> {
    let (view, policies) = read(caller, environment, app).await?;
    let connection = SnippetClient {
        environment,
        app,
        policy: policies.first().map_or(POLICY, |of| &of.name),
        token: Some(token),
    };
    view.addresses.snippets(caller, connection).await
}

pub(super) async fn show(
    caller: PageCaller,
    Path((environment, app)): Path<(String, String)>,
) -> Result<Response, PageFailure> {
    let head = AppHead::new(&caller, &environment, &app, AppTab::Connect)?;
    let layout = Layout::of_environment(&caller, &environment, Section::Apps, &*head.title).await?;
    let (view, mut policies) = read(&caller, &environment, &app).await?;
    let connection = SnippetClient {
        environment: &environment,
        app: &app,
        policy: policies.first().map_or(POLICY, |of| &of.name),
        token: None,
    };
    let snippets = view.addresses.snippets(&caller, connection).await?;
    policies.retain(|of| caller.may_edit(&environment, AdminAction::EditNumbers, of.apps.as_deref()));
    let tokens = links::page(&environment, &["tokens"]);
    let test_href = links::page(&environment, &["apps", &app, "connect", "test"]);
    let scope = match app.as_str() {
        ALL_APPS => "check:*".to_owned(),
        app => format!("check:app={app}"),
    };
    Ok(render(&ConnectTemplate {
        layout,
        head,
        app,
        is_addressed: view.addresses.is_known(),
        snippets,
        sees_calls: view.sees_calls,
        node: view.node,
        seen: view.seen,
        shared: view.shared,
        policies: policies.into_iter().map(|of| of.name).collect(),
        test_href,
        new_token: caller.is_admin_of(&environment).then_some((tokens, scope)),
    }))
}

/// Sends test calls, and shows the plot that they appear in.
pub(super) async fn test(
    caller: PageCaller,
    Path((environment, _)): Path<(String, String)>,
    PageForm(form): PageForm<TestForm>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let path = links::api(&environment, &["policies", &form.policy, "test-calls"]);
    let sent = caller.api.send(Method::POST, &path, &[], &Value::Null).await?;
    let result: TestResultView = sent.read()?;
    let page = links::page(&environment, &["policies", &form.policy]);
    let TestResultView {
        allowed,
        denied,
        would_deny,
    } = result;
    Ok(see(&format!(
        "{page}?hours=1&allowed={allowed}&denied={denied}&would_deny={would_deny}"
    )))
}
