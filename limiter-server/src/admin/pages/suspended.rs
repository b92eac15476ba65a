//! Suspensions of policies and blocks of keys: active ones, their end, and new ones.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::pages::apps::all_policies;
use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::time::PageTime;
use crate::admin::pages::{links, render, see};
use crate::admin::permissions::AdminAction;
use crate::store::now_micros;

const HOUR_SECONDS: i64 = 3_600;
/// The longest suspension that the form offers.
const MAX_HOURS: i64 = 24 * 31;

/// The banner offers an extension this time before the end of a suspension, in microseconds.
const ENDS_SOON: i64 = 10 * 60_000_000;

/// A suspension.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SuspensionView {
    pub(super) id: String,
    scope: String,
    enforcement: String,
    pub(super) until: PageTime,
    pub(super) by: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) active: bool,
    /// Whether the user may extend and end it.
    #[serde(default)]
    pub(super) may_change: bool,
}

#[derive(Debug, Deserialize)]
struct SuspensionListView {
    suspensions: Vec<SuspensionView>,
}

/// A block.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct BlockView {
    id: String,
    key: Option<String>,
    network: Option<String>,
    part: Option<String>,
    app: Option<String>,
    until: Option<PageTime>,
    pub(super) by: Option<String>,
    pub(super) reason: Option<String>,
    active: bool,
    #[serde(default)]
    may_change: bool,
}

#[derive(Debug, Deserialize)]
struct BlockListView {
    blocks: Vec<BlockView>,
}

/// The form of a new suspension.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SuspensionForm {
    scope: String,
    enforcement: String,
    hours: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct BlockForm {
    key: String,
    #[serde(default)]
    app: String,
    /// The number of hours; empty for no end.
    #[serde(default)]
    hours: String,
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
    /// The scopes that the user may suspend, with their names.
    scopes: Vec<(String, String)>,
    /// The scope that the form suggests.
    chosen: Option<String>,
}

#[derive(Template)]
#[template(path = "suspend.html")]
struct ConfirmationTemplate {
    layout: Layout,
    href: String,
    form: SuspensionForm,
    hours: i64,
    until: PageTime,
}

/// A scope in words.
fn scope_text(scope: &str) -> String {
    match scope.split_once(':') {
        Some(("policy", name)) => format!("policy {name}"),
        Some(("app", name)) => format!("app {name}"),
        _ => "all policies".to_owned(),
    }
}

/// The consequence of a suspension for calls.
fn consequence(enforcement: &str) -> &'static str {
    match enforcement {
        "off" => "All calls pass and are not counted.",
        "shadow" => "All calls pass. Denials are counted and not applied.",
        "deny" => "All calls are denied.",
        _ => "Not known.",
    }
}

impl SuspensionView {
    pub(super) fn scope_text(&self) -> String {
        scope_text(&self.scope)
    }

    pub(super) fn consequence(&self) -> &'static str {
        consequence(&self.enforcement)
    }

    pub(super) fn ends_soon(&self) -> bool {
        self.until.0.saturating_sub(now_micros()) < ENDS_SOON
    }

    /// The name of the policy, the app, or all.
    pub(super) fn concerns(&self, policy: &str, apps: Option<&[String]>) -> bool {
        match self.scope.split_once(':') {
            Some(("policy", name)) => name == policy,
            Some(("app", app)) => apps.is_none_or(|apps| apps.iter().any(|of| of == app)),
            _ => true,
        }
    }

    fn class(&self) -> &'static str {
        if self.active { "bad" } else { "off" }
    }

    fn word(&self) -> &'static str {
        if self.active { "Suspended" } else { "Ended" }
    }

    pub(super) fn remaining(&self) -> String {
        remaining(self.until, now_micros())
    }
}

impl BlockView {
    /// Whether the block names this key, or its beginning.
    pub(super) fn names_key(&self, key: &str) -> bool {
        self.key.as_deref().is_some_and(|of| match of.strip_suffix('*') {
            Some(prefix) => key.starts_with(prefix),
            None => of == key,
        })
    }

    pub(super) fn target(&self) -> String {
        match (&self.key, &self.network, &self.part) {
            (Some(key), _, _) => format!("key {key}"),
            (_, Some(network), _) => format!("network {network}"),
            (_, _, Some(part)) => format!("keys with {part}"),
            _ => "not known".to_owned(),
        }
    }

    fn class(&self) -> &'static str {
        if self.active { "bad" } else { "off" }
    }

    fn word(&self) -> &'static str {
        if self.active { "Blocked" } else { "Ended" }
    }

    fn remaining(&self) -> String {
        self.until
            .map(|until| remaining(until, now_micros()))
            .unwrap_or_default()
    }
}

impl SuspensionForm {
    fn scope_text(&self) -> String {
        scope_text(&self.scope)
    }

    fn consequence(&self) -> &'static str {
        consequence(&self.enforcement)
    }

    fn hours(&self) -> Result<i64, PageFailure> {
        hours(&self.hours)?.ok_or_else(|| PageFailure::bad_request("A suspension needs an end."))
    }
}

/// The number of hours in a field; `None` for an empty one.
pub(super) fn hours(text: &str) -> Result<Option<i64>, PageFailure> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let hours = text
        .parse::<i64>()
        .ok()
        .filter(|hours| (1..=MAX_HOURS).contains(hours));
    let expected = format!("Expected a number of hours from 1 to {MAX_HOURS}.");
    hours.map(Some).ok_or_else(|| PageFailure::bad_request(expected))
}

/// The remaining time in words.
fn remaining(until: PageTime, now: i64) -> String {
    match until.0.saturating_sub(now) / 60_000_000 {
        minutes if minutes < 0 => "ended".to_owned(),
        minutes @ 0..=119 => format!("{} min left", minutes + 1),
        minutes => format!("{} h left", minutes / 60),
    }
}

fn reason(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|reason| !reason.is_empty())
}

/// The scopes that the user may suspend, with their names.
async fn scopes(caller: &PageCaller, environment: &str) -> Result<Vec<(String, String)>, PageFailure> {
    let mut scopes = Vec::new();
    let policies = all_policies(caller, environment).await?;
    let is_owner = |apps: Option<&[String]>| caller.may_edit(environment, AdminAction::EditPolicy, apps);
    for policy in &policies {
        if is_owner(policy.apps.as_deref()) {
            scopes.push((
                format!("policy:{}", policy.name),
                format!("policy {}", policy.name),
            ));
        }
    }
    let mut apps: Vec<&String> = policies.iter().flat_map(|of| of.apps.iter().flatten()).collect();
    apps.sort();
    apps.dedup();
    for app in apps {
        if is_owner(Some(std::slice::from_ref(app))) {
            scopes.push((format!("app:{app}"), format!("app {app}")));
        }
    }
    if caller.is_admin_of(environment) {
        scopes.push(("all".to_owned(), "all policies of the environment".to_owned()));
    }
    Ok(scopes)
}

/// The suspensions now, or those that were active at a time.
pub(super) async fn suspensions(
    caller: &PageCaller,
    environment: &str,
    at: Option<i64>,
) -> Result<Vec<SuspensionView>, PageFailure> {
    let path = links::api(environment, &["suspensions"]);
    let list: SuspensionListView = caller.api.get(&(path + &at_query(at))).await?;
    Ok(list.suspensions)
}

/// The blocks now, or those that were active at a time.
pub(super) async fn blocks(
    caller: &PageCaller,
    environment: &str,
    at: Option<i64>,
) -> Result<Vec<BlockView>, PageFailure> {
    let path = links::api(environment, &["blocks"]);
    let list: BlockListView = caller.api.get(&(path + &at_query(at))).await?;
    Ok(list.blocks)
}

fn at_query(at: Option<i64>) -> String {
    at.map(|at| format!("?at={at}")).unwrap_or_default()
}

/// The active suspensions, for the banner.
pub(super) async fn active(
    caller: &PageCaller,
    environment: &str,
) -> Result<Vec<SuspensionView>, PageFailure> {
    let mut suspensions = suspensions(caller, environment, None).await?;
    suspensions.retain(|of| of.active);
    if suspensions.iter().any(SuspensionView::ends_soon) {
        let scopes = scopes(caller, environment).await?;
        allow_changes(&mut suspensions, &scopes);
    }
    Ok(suspensions)
}

/// Marks the suspensions of scopes that the user may suspend.
fn allow_changes(suspensions: &mut [SuspensionView], scopes: &[(String, String)]) {
    for suspension in suspensions {
        suspension.may_change = scopes.iter().any(|(scope, _)| *scope == suspension.scope);
    }
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
    let scopes = scopes(&caller, &environment).await?;
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
        chosen: query
            .scope
            .filter(|wanted| scopes.iter().any(|(scope, _)| scope == wanted)),
        scopes,
    }))
}

/// Shows the consequences of a suspension, before it is saved.
pub(super) async fn confirm(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(form): Query<SuspensionForm>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_environment(&caller, &environment, Section::Suspended, "Suspend").await?;
    let hours = form.hours()?;
    Ok(render(&ConfirmationTemplate {
        layout,
        href: links::page(&environment, &["suspended"]),
        until: PageTime(now_micros() + hours * HOUR_SECONDS * 1_000_000),
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
        "for_seconds": form.hours()? * HOUR_SECONDS,
        "reason": reason(&form.reason),
    });
    let path = links::api(&environment, &["suspensions"]);
    caller.api.send(Method::POST, &path, &[], &body).await?;
    Ok(see_list(&environment, "suspended"))
}

/// Sets the end of a suspension to one hour from now.
pub(super) async fn extend(
    caller: PageCaller,
    Path((environment, id)): Path<(String, String)>,
) -> Result<Response, PageFailure> {
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
    // A colon of a block also matches a colon in a part of a key.
    let key = form.key.split(" / ").collect::<Vec<_>>().join(":");
    let body = json!({
        "key": key,
        "app": Some(form.app.trim()).filter(|app| !app.is_empty()),
        "for_seconds": hours(&form.hours)?.map(|hours| hours * HOUR_SECONDS),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_bounded() {
        assert_eq!(hours(" 2 ").unwrap(), Some(2));
        assert_eq!(hours("").unwrap(), None);
        for wrong in ["0", "-1", "1.5", "745", "x"] {
            assert!(hours(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn remaining_time_is_in_words() {
        let minute = 60_000_000;
        assert_eq!(remaining(PageTime(5 * minute), 6 * minute + 1), "ended");
        assert_eq!(remaining(PageTime(60 * minute), 1), "60 min left");
        assert_eq!(remaining(PageTime(200 * minute), 0), "3 h left");
    }
}
