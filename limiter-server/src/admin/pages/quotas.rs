//! Quotas of single keys of a policy.
//!
//! A quota replaces that of the same key and does not depend on other settings of the policy, so
//! it is saved on top of the newest revision. Tests: `tests/pages/edit.rs`
//! (`quota_of_a_key_is_set_and_removed`).

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::Path;
use axum::http::{Method, StatusCode, header};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::admin::pages::caller::{PageCaller, PageForm, optional};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::policy_fields::PolicyFields;
use crate::admin::pages::policy_list::read;
use crate::admin::pages::quota_fields::QuotaFields;
use crate::admin::pages::save::put;
use crate::admin::pages::time::PageTime;
use crate::admin::pages::{links, see};
use crate::key_text::parts_of;

/// The longest wait for the gateway of this process to apply a saved quota.
const APPLIES_WITHIN: Duration = Duration::from_secs(1);
/// The interval of its checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Deserialize)]
pub(super) struct QuotaForm {
    /// The key as one text, or one part per line; empty if the form has a field for each part.
    #[serde(default)]
    key: String,
    /// `text` or `parts`.
    #[serde(default)]
    form: String,
    requests: String,
    per: String,
    burst: String,
    until: String,
    reason: Option<String>,
    /// The fields of the parts: `part_0`, `part_1`.
    #[serde(flatten)]
    parts: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RaiseForm {
    policy: String,
    /// The parts, separated by ` / `.
    key: String,
    requests: String,
    per: String,
    burst: String,
    until: String,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct QuotaRemovalForm {
    revision: i64,
    /// The identity of the quota.
    key: String,
}

/// A quota as the form states it.
struct StatedQuota {
    /// The field of the key in the API, and the key.
    key: (&'static str, Value),
    requests: String,
    per: String,
    burst: String,
    until: String,
    reason: Option<String>,
}

impl QuotaForm {
    /// Returns the field of the key in the API, and the key.
    fn key(&self) -> (&'static str, Value) {
        let parts: Vec<&str> = (0..)
            .map_while(|number| self.parts.get(&format!("part_{number}")))
            .map(|part| part.trim())
            .collect();
        let key = self.key.trim().replace('\r', "");
        match (parts.is_empty(), self.form == "parts") {
            (false, _) => ("parts", parts.into()),
            (true, true) => ("parts", key.split('\n').map(str::trim).map(Value::from).collect()),
            (true, false) => ("key", Value::from(key)),
        }
    }
}

async fn save(
    caller: &PageCaller,
    (environment, name): (&str, &str),
    quota: StatedQuota,
) -> Result<StatusCode, PageFailure> {
    let current = read(caller, environment, name).await?;
    let numbers = PolicyFields {
        requests: quota.requests,
        per: quota.per,
        burst: quota.burst,
        ..PolicyFields::of(name, &current.toml)
    };
    let mut body = numbers.numbers_json()?;
    let (field, key) = quota.key;
    body.insert(field.to_owned(), key);
    body.insert("reason".to_owned(), json!(optional(quota.reason)));
    if !quota.until.trim().is_empty() {
        body.insert("until".to_owned(), json!(PageTime::of_field(&quota.until)?.0));
    }
    let path = links::api(environment, &["policies", name, "quotas"]);
    let condition = [(header::IF_MATCH, current.revision.to_string())];
    let body = Value::Object(body);
    let sent = caller.api.send(Method::POST, &path, &condition, &body);
    Ok(sent.await?.status)
}

/// Returns the result of a saved change: a revision, or a proposal.
fn notice(status: StatusCode) -> &'static str {
    match status {
        StatusCode::ACCEPTED => "proposed",
        _ => "saved",
    }
}

/// Returns the number of changes of the registry that the gateway of this process has applied.
fn applied_changes(caller: &PageCaller, environment: &str) -> Option<u64> {
    let handle = caller.pages.admin.gateway(environment)?;
    Some(handle.gateway.limiter().registry().revision())
}

pub(super) async fn set_quota(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    PageForm(form): PageForm<QuotaForm>,
) -> Result<Response, PageFailure> {
    let quota = StatedQuota {
        key: form.key(),
        requests: form.requests,
        per: form.per,
        burst: form.burst,
        until: form.until,
        reason: form.reason,
    };
    let status = save(&caller, (&environment, &name), quota).await?;
    let page = links::page(&environment, &["policies", &name]);
    Ok(see(&format!("{page}?notice={}", notice(status))))
}

/// Raises the limit of a customer under a policy. The page after it shows the state of the key, so
/// the gateway should have applied the quota.
pub(super) async fn raise(
    caller: PageCaller,
    Path(environment): Path<String>,
    PageForm(form): PageForm<RaiseForm>,
) -> Result<Response, PageFailure> {
    let quota = StatedQuota {
        key: ("parts", parts_of(&form.key).into()),
        requests: form.requests,
        per: form.per,
        burst: form.burst,
        until: form.until,
        reason: form.reason,
    };
    let before = applied_changes(&caller, &environment);
    let status = save(&caller, (&environment, &form.policy), quota).await?;
    let notice = match notice(status) {
        "saved" => "raised",
        other => other,
    };
    if notice == "raised" {
        let is_applied = || applied_changes(&caller, &environment) != before;
        let give_up_at = Instant::now() + APPLIES_WITHIN;
        while before.is_some() && !is_applied() && Instant::now() < give_up_at {
            sleep(CHECK_INTERVAL).await;
        }
    }
    let page = links::customer(&environment, &form.key);
    Ok(see(&format!("{page}&notice={notice}")))
}

pub(super) async fn remove_quota(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    PageForm(form): PageForm<QuotaRemovalForm>,
) -> Result<Response, PageFailure> {
    let current = read(&caller, &environment, &name).await?;
    let text = QuotaFields::removed_from(&current.toml, &form.key).map_err(PageFailure::unprocessable)?;
    put(
        &caller,
        (&environment, &name),
        (form.revision, text),
        (None, "as_is"),
    )
    .await
}
