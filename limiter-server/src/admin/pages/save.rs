//! Saves a previewed text of a policy, or shows both versions after a conflict.
//!
//! API route below the namespace: `PUT policies/{name}` with the revision that the user read, and
//! `GET policies/{name}` after a conflict. Test: `conflict_shows_both_versions` in
//! `tests/pages/edit.rs`.

use askama::Template;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::json;

use crate::admin::pages::caller::{PageCaller, PageForm, optional};
use crate::admin::pages::diff::{DiffLine, diff_lines};
use crate::admin::pages::edit::show_refused;
use crate::admin::pages::edit_form::EditForm;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::import::condition;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::policy::PolicyLinks;
use crate::admin::pages::policy_list::read;
use crate::admin::pages::views::PolicyView;
use crate::admin::pages::{links, render, see};
use crate::admin::preview::unified_diff;
use crate::policy_text::PolicyText;

#[derive(Template)]
#[template(path = "conflict.html")]
struct ConflictTemplate {
    layout: Layout,
    links: PolicyLinks,
    current: PolicyView,
    text: String,
    inheritance: String,
    reason: String,
    diff: Vec<DiffLine>,
}

pub(super) async fn save(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    PageForm(form): PageForm<EditForm>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let text = form.text.clone().unwrap_or_default();
    let saved = put(
        &caller,
        (&environment, &name),
        (form.revision, text),
        (form.reason.clone(), form.inheritance()),
    );
    match saved.await {
        Err(failure) if failure.is_unprocessable() => {
            show_refused(&caller, (&environment, &name), form, failure).await
        }
        result => result,
    }
}

/// Saves a text, or shows both versions after a conflict.
pub(super) async fn put(
    caller: &PageCaller,
    (environment, name): (&str, &str),
    (revision, text): (i64, String),
    (reason, inheritance): (Option<String>, &str),
) -> Result<Response, PageFailure> {
    let path = links::api(environment, &["policies", name]);
    let reason = optional(reason);
    let body = json!({ "toml": text, "reason": reason, "inheritance": inheritance });
    let page = links::page(environment, &["policies", name]);
    match caller
        .api
        .send(Method::PUT, &path, &[condition(revision)], &body)
        .await
    {
        Ok(reply) => {
            let notice = match reply.status {
                StatusCode::ACCEPTED => "proposed",
                _ => "saved",
            };
            Ok(see(&format!("{page}?notice={notice}")))
        }
        Err(failure) if failure.status == StatusCode::CONFLICT => {
            match read(caller, environment, name).await {
                // The author has pressed the button twice. Without a known reset, the author
                // decides again.
                Ok(current) if inheritance != "reset" && is_saved_by(caller, &current, &text) => {
                    Ok(see(&format!("{page}?notice=saved")))
                }
                Ok(current) if current.revision != revision => {
                    conflict(caller, environment, current, (text, reason, inheritance)).await
                }
                _ => Err(failure),
            }
        }
        Err(failure) => Err(failure),
    }
}

/// Returns the content of a text of a policy; empty for a text with errors.
fn content(name: &str, text: &str) -> String {
    let text = PolicyText::parse(name, text);
    text.map(|of| of.content()).unwrap_or_default()
}

/// Returns whether the user has saved this text as the newest revision.
fn is_saved_by(caller: &PageCaller, current: &PolicyView, text: &str) -> bool {
    let saved = content(&current.name, &current.toml);
    current.updated_by == caller.actor.name && !saved.is_empty() && saved == content(&current.name, text)
}

async fn conflict(
    caller: &PageCaller,
    environment: &str,
    current: PolicyView,
    (text, reason, inheritance): (String, Option<String>, &str),
) -> Result<Response, PageFailure> {
    let [saved, own] = [&current.toml, &text].map(|text| content(&current.name, text));
    let diff = diff_lines(&unified_diff(&saved, &own));
    let layout = Layout::of_environment(caller, environment, Section::Apps, "Conflict").await?;
    let mut response = render(&ConflictTemplate {
        layout,
        links: PolicyLinks::new(environment, &current.name, current.apps.as_deref()),
        current,
        text,
        inheritance: inheritance.to_owned(),
        reason: reason.unwrap_or_default(),
        diff,
    });
    *response.status_mut() = StatusCode::CONFLICT;
    Ok(response)
}
