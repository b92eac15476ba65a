//! Suspensions of policies and blocks of keys: active ones, their end, and new ones.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::pages::apps::{NoticeQuery, all_policies};
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

/// A suspension.
#[derive(Clone, Debug, Deserialize)]
struct SuspensionView {
    id: String,
    scope: String,
    enforcement: String,
    until: PageTime,
    by: Option<String>,
    reason: Option<String>,
    active: bool,
}

#[derive(Debug, Deserialize)]
struct SuspensionListView {
    suspensions: Vec<SuspensionView>,
}

/// A block.
#[derive(Clone, Debug, Deserialize)]
struct BlockView {
    id: String,
    key: Option<String>,
    network: Option<String>,
    part: Option<String>,
    app: Option<String>,
    until: Option<PageTime>,
    by: Option<String>,
    reason: Option<String>,
    active: bool,
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
    may_block: bool,
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
    fn scope_text(&self) -> String {
        scope_text(&self.scope)
    }

    fn consequence(&self) -> &'static str {
        consequence(&self.enforcement)
    }

    fn class(&self) -> &'static str {
        if self.active { "bad" } else { "off" }
    }

    fn word(&self) -> &'static str {
        if self.active { "Suspended" } else { "Ended" }
    }

    fn remaining(&self) -> String {
        remaining(self.until, now_micros())
    }
}

impl BlockView {
    fn target(&self) -> String {
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
fn hours(text: &str) -> Result<Option<i64>, PageFailure> {
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

pub(super) async fn show(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(query): Query<NoticeQuery>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_environment(&caller, &environment, Section::Suspended, "Suspended").await?;
    let path = links::api(&environment, &["suspensions"]);
    let suspensions: SuspensionListView = caller.api.get(&path).await?;
    let blocks: BlockListView = caller.api.get(&links::api(&environment, &["blocks"])).await?;
    Ok(render(&SuspendedTemplate {
        layout: layout.with_notice(query.notice.as_deref()),
        href: links::page(&environment, &["suspended"]),
        blocks_href: links::page(&environment, &["blocks"]),
        suspensions: suspensions.suspensions,
        blocks: blocks.blocks,
        scopes: scopes(&caller, &environment).await?,
        may_block: caller.may_edit(&environment, AdminAction::EditNumbers, None),
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
    Ok(see_list(&environment, "saved"))
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
