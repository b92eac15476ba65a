//! Trial values of a policy: start, adopt, drop.
//!
//! API routes below `policies/{name}`: `GET`, `PUT` and `DELETE trial`, `POST trial/adopt`. A
//! change sends the revision that the user read. Test: `trial_is_counted_and_adopted` in
//! `tests/pages/tasks.rs`.

use axum::extract::Path;
use axum::http::{Method, StatusCode, header};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::pages::caller::{PageCaller, PageForm, optional};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::policy_fields::PolicyFields;
use crate::admin::pages::policy_list::read;
use crate::admin::pages::time::PageTime;
use crate::admin::pages::usage::share;
use crate::admin::pages::{links, see};

/// The decisions of a policy or of its trial.
#[derive(Clone, Copy, Debug, Deserialize)]
struct DecidedView {
    allowed: i64,
    denied: i64,
}

/// The trial of a policy, from the API.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct TrialView {
    pub(super) sentence: String,
    pub(super) since: PageTime,
    pub(super) until: PageTime,
    active: bool,
    policy: DecidedView,
    trial: DecidedView,
}

#[derive(Debug, Deserialize)]
pub(super) struct TrialForm {
    revision: i64,
    requests: String,
    per: String,
    burst: String,
    /// A time in UTC such as `2026-11-23T14:03`.
    until: String,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TrialDecisionForm {
    /// The revision whose trial the user read.
    revision: i64,
}

impl DecidedView {
    fn calls(self) -> i64 {
        self.allowed + self.denied
    }
}

impl TrialView {
    /// `would deny 0.4 % (now 0.1 %)`
    pub(super) fn comparison(&self) -> String {
        match self.trial.calls() {
            0 => "no call was decided".to_owned(),
            calls => format!(
                "would deny {} (now {})",
                share(self.trial.denied, calls),
                share(self.policy.denied, self.policy.calls())
            ),
        }
    }

    /// Returns the number of decided calls.
    pub(super) fn calls(&self) -> i64 {
        self.trial.calls()
    }

    pub(super) fn class(&self) -> &'static str {
        if self.active { "shadow" } else { "waiting" }
    }

    pub(super) fn word(&self) -> &'static str {
        if self.active { "Trial" } else { "Trial ended" }
    }
}

/// Returns the trial of a policy; `None` if it has none.
pub(super) async fn of(
    caller: &PageCaller,
    environment: &str,
    name: &str,
) -> Result<Option<TrialView>, PageFailure> {
    let path = links::api(environment, &["policies", name, "trial"]);
    match caller.api.get(&path).await {
        Ok(trial) => Ok(Some(trial)),
        Err(failure) if failure.status == StatusCode::NOT_FOUND => Ok(None),
        Err(failure) => Err(failure),
    }
}

pub(super) async fn start(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    PageForm(form): PageForm<TrialForm>,
) -> Result<Response, PageFailure> {
    let current = read(&caller, &environment, &name).await?;
    let numbers = PolicyFields {
        requests: form.requests,
        per: form.per,
        burst: form.burst,
        ..PolicyFields::of(&name, &current.toml)
    };
    let mut body = numbers.numbers_json()?;
    body.insert("until".to_owned(), json!(PageTime::of_field(&form.until)?.0));
    body.insert("reason".to_owned(), json!(optional(form.reason)));
    let change = (Method::PUT, "trial", Value::Object(body));
    send(&caller, (&environment, &name), form.revision, change, "trial").await
}

pub(super) async fn adopt(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    PageForm(form): PageForm<TrialDecisionForm>,
) -> Result<Response, PageFailure> {
    let change = (Method::POST, "trial/adopt", json!({}));
    send(&caller, (&environment, &name), form.revision, change, "adopted").await
}

pub(super) async fn end(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    PageForm(form): PageForm<TrialDecisionForm>,
) -> Result<Response, PageFailure> {
    let change = (Method::DELETE, "trial", Value::Null);
    send(&caller, (&environment, &name), form.revision, change, "dropped").await
}

async fn send(
    caller: &PageCaller,
    (environment, name): (&str, &str),
    revision: i64,
    (method, path, body): (Method, &str, Value),
    notice: &str,
) -> Result<Response, PageFailure> {
    caller.require_environment(environment)?;
    let path = format!("{}/{path}", links::api(environment, &["policies", name]));
    let condition = [(header::IF_MATCH, revision.to_string())];
    caller.api.send(method, &path, &condition, &body).await?;
    let page = links::page(environment, &["policies", name]);
    Ok(see(&format!("{page}?notice={notice}")))
}
