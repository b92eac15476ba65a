//! The revisions of a policy: comparison, restore, deletion, and decisions about proposals.
//!
//! API routes below the namespace: `GET policies/{name}/history`, `POST policies/{name}/restore`,
//! `DELETE policies/{name}`, `GET proposals`, `POST proposals/{id}/approve` and `…/reject`. A
//! change sends the revision that the user read. Tests: `tests/pages/edit.rs`,
//! `tests/pages/statements.rs`, `tests/control_plane/proposals.rs`.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::{Method, header};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::pages::caller::{PageCaller, PageForm, optional};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::policy::{PolicyLinks, PolicyRights};
use crate::admin::pages::policy_list::read;
use crate::admin::pages::proposals;
use crate::admin::pages::revisions::{ComparisonQuery, DocumentRevisions, RevisionComparison};
use crate::admin::pages::views::{PolicyView, RevisionView};
use crate::admin::pages::{links, render, see};
use crate::admin::sentence::sentence;
use crate::policy_text::PolicyText;

#[derive(Template)]
#[template(path = "revision.html")]
struct RevisionTemplate {
    layout: Layout,
    links: PolicyLinks,
    name: String,
    sentence: Option<String>,
    /// The sentence of the newest revision; `None` for a deletion.
    current: Option<String>,
    comparison: RevisionComparison,
    is_owner: bool,
    /// The proposals that a restore closes, as a sentence.
    closed_proposals: Option<String>,
}

#[derive(Template)]
#[template(path = "deletion.html")]
struct DeletionTemplate {
    layout: Layout,
    links: PolicyLinks,
    policy: PolicyView,
    /// The proposals that the deletion closes, as a sentence.
    closed_proposals: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct DeletionForm {
    revision: i64,
}

#[derive(Debug, Deserialize)]
pub(super) struct RestoreForm {
    /// The newest revision, which the user read.
    newest: i64,
    number: i64,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct DecisionForm {
    policy: String,
    reason: Option<String>,
}

pub(super) async fn revision(
    caller: PageCaller,
    Path((environment, name, number)): Path<(String, String, i64)>,
    Query(query): Query<ComparisonQuery>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let text = |of: &RevisionView| PolicyText::parse(&name, &of.toml).ok();
    let content = |of: &RevisionView| text(of).as_ref().map(PolicyText::content).unwrap_or_default();
    let revisions = DocumentRevisions::of_policy(&caller, &environment, &name);
    let comparison = revisions.compare(number, &query, content).await?;
    let current = comparison.newest.as_ref().filter(|of| !of.is_deletion);
    let current = current.and_then(text);
    let shown = text(&comparison.revision);
    let apps = shown.as_ref().and_then(PolicyText::apps);
    let rights = PolicyRights::new(&caller, &environment, apps.as_deref());
    let closed_proposals = match rights.is_owner {
        true => {
            let open = proposals::open(&caller, &environment).await?;
            proposals::closed(&open, |of| of.replaces(&name, comparison.newest_number()))
        }
        false => None,
    };
    let title = format!("{name}, revision {number}");
    let layout = Layout::of_environment(&caller, &environment, Section::Apps, title).await?;
    Ok(render(&RevisionTemplate {
        layout,
        links: PolicyLinks::new(&environment, &name, apps.as_deref()),
        sentence: shown.as_ref().map(sentence),
        current: current.as_ref().map(sentence),
        comparison,
        is_owner: rights.is_owner,
        closed_proposals,
        name,
    }))
}

pub(super) async fn restore(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    PageForm(form): PageForm<RestoreForm>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let body = json!({ "revision": form.number, "reason": optional(form.reason) });
    let path = links::api(&environment, &["policies", &name, "restore"]);
    let condition = [(header::IF_MATCH, form.newest.to_string())];
    caller.api.send(Method::POST, &path, &condition, &body).await?;
    Ok(see(
        &(links::page(&environment, &["policies", &name]) + "?notice=restored")
    ))
}

pub(super) async fn ask_deletion(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
) -> Result<Response, PageFailure> {
    let policy = read(&caller, &environment, &name).await?;
    if !PolicyRights::new(&caller, &environment, policy.apps.as_deref()).is_owner {
        return Err(PageFailure::forbidden(
            "A deletion needs the role owner in all apps of the policy.",
        ));
    }
    let open = proposals::open(&caller, &environment).await?;
    let title = format!("Delete {name}");
    let layout = Layout::of_environment(&caller, &environment, Section::Apps, title).await?;
    Ok(render(&DeletionTemplate {
        layout,
        links: PolicyLinks::new(&environment, &name, policy.apps.as_deref()),
        closed_proposals: proposals::closed_by_change(&open, &policy),
        policy,
    }))
}

pub(super) async fn delete(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    PageForm(form): PageForm<DeletionForm>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let path = links::api(&environment, &["policies", &name]);
    let condition = [(header::IF_MATCH, form.revision.to_string())];
    let sent = caller.api.send(Method::DELETE, &path, &condition, &Value::Null);
    sent.await?;
    Ok(see(&(links::page(&environment, &["apps"]) + "?notice=removed")))
}

pub(super) async fn approve(
    caller: PageCaller,
    Path((environment, id)): Path<(String, String)>,
    PageForm(form): PageForm<DecisionForm>,
) -> Result<Response, PageFailure> {
    decide(&caller, &environment, &id, "approve", form).await
}

pub(super) async fn reject(
    caller: PageCaller,
    Path((environment, id)): Path<(String, String)>,
    PageForm(form): PageForm<DecisionForm>,
) -> Result<Response, PageFailure> {
    decide(&caller, &environment, &id, "reject", form).await
}

async fn decide(
    caller: &PageCaller,
    environment: &str,
    id: &str,
    decision: &str,
    form: DecisionForm,
) -> Result<Response, PageFailure> {
    caller.require_environment(environment)?;
    let path = links::api(environment, &["proposals", id, decision]);
    let body = json!({ "reason": optional(form.reason) });
    caller.api.send(Method::POST, &path, &[], &body).await?;
    let notice = match decision {
        "approve" => "saved",
        _ => "rejected",
    };
    let page = links::page(environment, &["policies", &form.policy]);
    Ok(see(&format!("{page}?notice={notice}")))
}
