//! Quotas of single keys of a policy.

use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;

use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::edit::put;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::policy::read;
use crate::admin::pages::policy_fields::{PolicyFields, QuotaFields, key_of};

#[derive(Debug, Deserialize)]
pub(super) struct QuotaForm {
    revision: i64,
    key: String,
    /// `text` or `parts`.
    form: String,
    requests: String,
    per: String,
    burst: String,
    until: String,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct QuotaRemovalForm {
    revision: i64,
    key: String,
}

/// Saves a text that differs in a quota alone.
async fn put_quota(
    caller: &PageCaller,
    (environment, name): (&str, &str),
    revision: i64,
    text: Result<String, String>,
    reason: Option<String>,
) -> Result<Response, PageFailure> {
    let text = text.map_err(|reason| PageFailure::new(StatusCode::UNPROCESSABLE_ENTITY, reason))?;
    put(caller, (environment, name), (revision, text), (reason, "as_is")).await
}

pub(super) async fn set_quota(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    PageForm(form): PageForm<QuotaForm>,
) -> Result<Response, PageFailure> {
    let current = read(&caller, &environment, &name).await?;
    let key = key_of(&form.key, form.form == "parts");
    let until = match form.until.trim() {
        "" => None,
        text => Some(end_of(text)?),
    };
    let numbers = PolicyFields {
        requests: form.requests,
        per: form.per,
        burst: form.burst,
        ..PolicyFields::of(&name, &current.toml)
    };
    let quota = QuotaFields { key, numbers, until };
    let text = quota.added_to(&name, &current.toml);
    put_quota(&caller, (&environment, &name), form.revision, text, form.reason).await
}

/// The end of a quota. Browsers send it without a zone, and the page asks for UTC.
fn end_of(text: &str) -> Result<limiter_core::Timestamp, PageFailure> {
    let local = text.parse::<jiff::civil::DateTime>();
    let end = local.and_then(|local| local.to_zoned(jiff::tz::TimeZone::UTC));
    let micros = end.ok().map(|end| end.timestamp().as_microsecond());
    let micros = micros.and_then(|micros| u64::try_from(micros).ok());
    let micros = micros.ok_or_else(|| {
        PageFailure::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "expected an end such as 2026-12-31T18:00",
        )
    })?;
    Ok(limiter_core::Timestamp::from_micros(micros))
}

pub(super) async fn remove_quota(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    PageForm(form): PageForm<QuotaRemovalForm>,
) -> Result<Response, PageFailure> {
    let current = read(&caller, &environment, &name).await?;
    let text = QuotaFields::removed_from(&current.toml, &form.key);
    put_quota(&caller, (&environment, &name), form.revision, text, None).await
}
