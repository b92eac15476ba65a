//! Suspensions of policies and blocks of keys: active ones, their end, and new ones.
//!
//! API routes below the namespace: `GET`, `POST suspensions` and `blocks`, `PUT suspensions/{id}`,
//! `DELETE suspensions/{id}` and `blocks/{id}`, `GET policies`. A confirmation states the policies
//! of the scope and the end before a suspension is saved. Tests: `tests/pages/overlays.rs`,
//! `tests/pages/statements.rs`.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::Response;
use limiter_tower::key::IpNet;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::ends::{OfferedEnd, offered_block_ends};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::overlays::{
    BlockView, SuspensionView, allow_changes, block_in, blocks, consequence, scope_text, scopes, suspensions,
};
use crate::admin::pages::policy_list::{all_policies, read};
use crate::admin::pages::policy_mode::{PolicyMode, summary};
use crate::admin::pages::time::{PageTime, hours};
use crate::admin::pages::views::{PolicyListView, PolicyView};
use crate::admin::pages::{links, render, see};
use crate::admin::permissions::AdminAction;
use crate::key_text::parts_of;
use crate::store::now_micros;

const HOUR_SECONDS: i64 = 3_600;

/// The form of a new suspension.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SuspensionForm {
    scope: String,
    enforcement: String,
    /// The duration, before the confirmation.
    hours: String,
    /// A time in UTC such as `2026-11-23T14:03`; empty for now.
    start: String,
    /// The end that the confirmation states.
    until: String,
    reason: String,
}

/// The form of a new end.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ExtensionForm {
    /// Present if a later end stays.
    keeps_later: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct BlockForm {
    /// The key, its beginning with `*`, the network, or `part=value`.
    key: String,
    /// `network`, `part` or `key`; empty for the key of a page that shows it.
    #[serde(default)]
    kind: String,
    #[serde(default)]
    app: String,
    /// A time in UTC such as `2026-11-23T14:03`; empty for no end.
    #[serde(default)]
    until: String,
    #[serde(default)]
    reason: String,
}

#[derive(Template)]
#[template(path = "suspended.html")]
struct SuspendedTemplate {
    layout: Layout,
    href: String,
    blocks_href: String,
    suspensions: Vec<SuspensionView>,
    blocks: Vec<BlockView>,
    /// The apps in which the user may block keys; an empty name for all apps.
    block_in: Vec<String>,
    /// The scopes that the user may suspend, with their names.
    scopes: Vec<(String, String)>,
    /// The ends that the form of a block offers.
    ends: Vec<OfferedEnd>,
    /// The scope that the form suggests.
    chosen: Option<String>,
}

#[derive(Template)]
#[template(path = "suspend.html")]
struct ConfirmationTemplate {
    layout: Layout,
    href: String,
    form: SuspensionForm,
    /// The policy of the scope with its mode; `None` for several policies.
    policy: Option<(PolicyView, PolicyMode)>,
    /// The number of policies of the scope by mode.
    summary: String,
    hours: i64,
    /// The start; `None` for now.
    from: Option<PageTime>,
    until: PageTime,
}

impl SuspensionForm {
    fn scope_text(&self) -> String {
        scope_text(&self.scope)
    }

    fn consequence(&self) -> &'static str {
        consequence(&self.enforcement)
    }

    /// Returns the start; `None` for now.
    fn start(&self) -> Result<Option<PageTime>, PageFailure> {
        match self.start.trim() {
            "" => Ok(None),
            text => PageTime::of_field(text).map(Some),
        }
    }

    fn hours(&self) -> Result<i64, PageFailure> {
        hours(&self.hours)?.ok_or_else(|| PageFailure::bad_request("A suspension needs an end."))
    }
}

fn reason(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|reason| !reason.is_empty())
}

#[derive(Debug, Deserialize)]
pub(super) struct SuspendedQuery {
    notice: Option<String>,
    scope: Option<String>,
}

pub(super) async fn show(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(query): Query<SuspendedQuery>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_environment(&caller, &environment, Section::Suspended, "Suspended").await?;
    let policies = all_policies(&caller, &environment).await?;
    let scopes = scopes(&caller, &environment, &policies);
    let mut suspensions = suspensions(&caller, &environment, None).await?;
    allow_changes(&mut suspensions, &scopes);
    let mut blocks = blocks(&caller, &environment, None).await?;
    for block in &mut blocks {
        let app = block.app.as_ref().map(std::slice::from_ref);
        block.may_change = caller.may_edit(&environment, AdminAction::EditNumbers, app);
    }
    Ok(render(&SuspendedTemplate {
        layout: layout.with_notice(query.notice.as_deref()),
        href: links::page(&environment, &["suspended"]),
        blocks_href: links::page(&environment, &["blocks"]),
        suspensions,
        blocks,
        block_in: block_in(
            &caller,
            &environment,
            policies.iter().map(|of| of.apps.as_deref()),
        ),
        ends: offered_block_ends(PageTime(now_micros())),
        chosen: query
            .scope
            .filter(|wanted| scopes.iter().any(|(scope, _)| scope == wanted)),
        scopes,
    }))
}

/// Returns the policies to which a suspension of this scope applies.
async fn in_scope(
    caller: &PageCaller,
    environment: &str,
    scope: &str,
) -> Result<Vec<PolicyView>, PageFailure> {
    let app = match scope.split_once(':') {
        Some(("policy", name)) => return Ok(vec![read(caller, environment, name).await?]),
        Some(("app", app)) => format!("&app={}", links::encode(app)),
        _ => String::new(),
    };
    let mut policies = Vec::new();
    let mut after = String::new();
    loop {
        let path = links::api(environment, &["policies"]);
        let path = format!("{path}?limit=1000{app}&after={}", links::encode(&after));
        let page: PolicyListView = caller.api.get(&path).await?;
        policies.extend(page.policies);
        match page.next {
            Some(next) => after = next,
            None => return Ok(policies),
        }
    }
}

/// Shows the consequences of a suspension, before it is saved.
pub(super) async fn confirm(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(form): Query<SuspensionForm>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_environment(&caller, &environment, Section::Suspended, "Suspend").await?;
    let (hours, from) = (form.hours()?, form.start()?);
    let scopes = scopes(&caller, &environment, &all_policies(&caller, &environment).await?);
    if !scopes.iter().any(|(scope, _)| *scope == form.scope) {
        return Err(PageFailure::forbidden(
            "A suspension needs the role owner in all apps of the policies.",
        ));
    }
    let policies = in_scope(&caller, &environment, &form.scope).await?;
    let mut policies = policies.into_iter().map(|policy| {
        let mode = PolicyMode::of(&policy, &layout.suspensions);
        (policy, mode)
    });
    let policy = match form.scope.starts_with("policy:") {
        true => policies.next(),
        false => None,
    };
    let modes: Vec<PolicyMode> = policies.map(|(_, mode)| mode).collect();
    Ok(render(&ConfirmationTemplate {
        policy,
        summary: summary(&modes),
        layout,
        href: links::page(&environment, &["suspended"]),
        until: PageTime(from.map_or_else(now_micros, |from| from.0) + hours * HOUR_SECONDS * 1_000_000),
        from,
        hours,
        form,
    }))
}

pub(super) async fn suspend(
    caller: PageCaller,
    Path(environment): Path<String>,
    PageForm(form): PageForm<SuspensionForm>,
) -> Result<Response, PageFailure> {
    let body = json!({
        "scope": form.scope,
        "enforcement": form.enforcement,
        "from": form.start()?.map(|from| from.0),
        "until": PageTime::of_field(&form.until)?.0,
        "reason": reason(&form.reason),
    });
    let path = links::api(&environment, &["suspensions"]);
    caller.api.send(Method::POST, &path, &[], &body).await?;
    Ok(see_list(&environment, "suspended"))
}

/// Sets the end of a suspension to one hour from now. The banner extends only, also if another user
/// has set a later end since it was shown.
pub(super) async fn extend(
    caller: PageCaller,
    Path((environment, id)): Path<(String, String)>,
    PageForm(form): PageForm<ExtensionForm>,
) -> Result<Response, PageFailure> {
    if form.keeps_later.is_some() {
        let end = now_micros() + HOUR_SECONDS * 1_000_000;
        let current = suspensions(&caller, &environment, None).await?;
        if current.iter().any(|of| of.id == id && of.until.0 > end) {
            return Ok(see_list(&environment, "extended"));
        }
    }
    let path = links::api(&environment, &["suspensions", &id]);
    let body = json!({ "for_seconds": HOUR_SECONDS });
    caller.api.send(Method::PUT, &path, &[], &body).await?;
    Ok(see_list(&environment, "extended"))
}

pub(super) async fn end(
    caller: PageCaller,
    Path((environment, id)): Path<(String, String)>,
) -> Result<Response, PageFailure> {
    let path = links::api(&environment, &["suspensions", &id]);
    caller.api.send(Method::DELETE, &path, &[], &Value::Null).await?;
    Ok(see_list(&environment, "ended"))
}

pub(super) async fn block(
    caller: PageCaller,
    Path(environment): Path<String>,
    PageForm(form): PageForm<BlockForm>,
) -> Result<Response, PageFailure> {
    let (field, value) = match form.kind.as_str() {
        kind @ ("network" | "part") => (kind, form.key.trim().to_owned()),
        // A client can choose a key that ends with `*`, and deny the keys of others by it.
        "" if form.key.ends_with('*') => {
            return Err(PageFailure::unprocessable(format!(
                "The key {} ends with *, so a block of it would deny all keys that begin with the text before. \
                 Block a part of the key instead, or use the form of the page Suspended.",
                form.key
            )));
        }
        // A colon of a block also matches a colon in a part of a key.
        kind => {
            let text = parts_of(&form.key).join(":");
            // A client can choose a key that is a network, and deny the addresses of others by it.
            if kind.is_empty() && text.contains('/') && text.parse::<IpNet>().is_ok() {
                return Err(PageFailure::unprocessable(format!(
                    "The key {} is a network, so a block of it would deny all addresses of the network. Block \
                     another part of the key instead, or use the form of the page Suspended.",
                    form.key
                )));
            }
            ("key", text)
        }
    };
    let until = match form.until.trim() {
        "" => None,
        text => Some(PageTime::of_field(text)?.0),
    };
    let body = json!({
        (field): value,
        "app": Some(form.app.trim()).filter(|app| !app.is_empty()),
        "until": until,
        "reason": reason(&form.reason),
    });
    let path = links::api(&environment, &["blocks"]);
    caller.api.send(Method::POST, &path, &[], &body).await?;
    Ok(see_list(&environment, "blocked"))
}

pub(super) async fn unblock(
    caller: PageCaller,
    Path((environment, id)): Path<(String, String)>,
) -> Result<Response, PageFailure> {
    let path = links::api(&environment, &["blocks", &id]);
    caller.api.send(Method::DELETE, &path, &[], &Value::Null).await?;
    Ok(see_list(&environment, "ended"))
}

fn see_list(environment: &str, notice: &str) -> Response {
    see(&format!(
        "{}?notice={notice}",
        links::page(environment, &["suspended"])
    ))
}
