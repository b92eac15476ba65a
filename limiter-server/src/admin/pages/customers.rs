//! One key in all policies: the remaining calls, a reset and a block.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use crate::admin::pages::activity::{self, KeyActivityView};
use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::overlays::block_in;
use crate::admin::pages::policy_fields::PolicyFields;
use crate::admin::pages::quotas::{OfferedEnd, offered_ends};
use crate::admin::pages::time::PageTime;
use crate::admin::pages::views::PolicyView;
use crate::admin::pages::{links, render, see};
use crate::admin::permissions::AdminAction;
use crate::store::now_micros;

const HOUR: i64 = 3_600_000_000;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CustomerQuery {
    key: String,
    notice: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ResetForm {
    policy: String,
    key: String,
}

/// The state of the key under a policy.
#[derive(Clone, Copy, Debug, Deserialize)]
struct KeyStateView {
    limit: u64,
    remaining: u64,
    reset_after_ms: u64,
    has_quota: bool,
}

#[derive(Debug, Deserialize)]
struct KeyedPolicyView {
    #[serde(flatten)]
    policy: PolicyView,
    key: Option<KeyStateView>,
}

#[derive(Debug, Deserialize)]
struct KeyView {
    policies: Vec<KeyedPolicyView>,
    is_truncated: bool,
}

#[derive(Debug)]
struct CustomerRow {
    href: String,
    explain: String,
    policy: PolicyView,
    state: Option<KeyStateView>,
    /// The numbers that the form of a raise suggests; `None` if the user may not raise the key.
    raise: Option<PolicyFields>,
    may_edit: bool,
}

#[derive(Template)]
#[template(path = "customers.html")]
struct CustomersTemplate {
    layout: Layout,
    href: String,
    key: String,
    rows: Vec<CustomerRow>,
    /// The denials of the key in the last hour.
    denials: Vec<KeyActivityView>,
    is_truncated: bool,
    failure: Option<String>,
    blocks_href: String,
    /// The apps in which the user may block the key; an empty name for all apps.
    block_in: Vec<String>,
    ends: Vec<OfferedEnd>,
}

impl KeyStateView {
    fn used(self) -> u64 {
        self.limit.saturating_sub(self.remaining)
    }

    /// The time until nothing is used, in words.
    fn reset_text(self) -> String {
        match self.reset_after_ms.div_ceil(1_000) {
            0 => "nothing is used".to_owned(),
            seconds @ 1..=119 => format!("in {seconds} s"),
            seconds @ 120..=7_199 => format!("in {} min", seconds.div_ceil(60)),
            seconds => format!("in {} h", seconds.div_ceil(3_600)),
        }
    }

    /// The class of the state: red without anything left.
    fn class(self) -> &'static str {
        match (self.remaining, self.used()) {
            (0, _) => "bad",
            (_, 0) => "off",
            _ => "ok",
        }
    }

    fn word(self) -> &'static str {
        match (self.remaining, self.used()) {
            (0, _) => "Nothing left",
            (_, 0) => "Not used",
            _ => "In use",
        }
    }
}

pub(super) async fn show(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(query): Query<CustomerQuery>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_environment(&caller, &environment, Section::Customers, "Customers").await?;
    let key = query.key.trim().to_owned();
    let mut page = CustomersTemplate {
        layout: layout.with_notice(query.notice.as_deref()),
        href: links::page(&environment, &["customers"]),
        key: key.clone(),
        rows: Vec::new(),
        denials: Vec::new(),
        is_truncated: false,
        failure: None,
        blocks_href: links::page(&environment, &["blocks"]),
        block_in: Vec::new(),
        ends: offered_ends(PageTime(now_micros())),
    };
    if key.is_empty() {
        return Ok(render(&page));
    }
    let path = format!(
        "{}?key={}",
        links::api(&environment, &["keys"]),
        links::encode(&key)
    );
    match caller.api.get::<KeyView>(&path).await {
        Ok(view) => {
            page.is_truncated = view.is_truncated;
            page.denials = denials(&caller, &environment, &key).await?;
            let may_edit =
                |apps: Option<&[String]>| caller.may_edit(&environment, AdminAction::EditNumbers, apps);
            let rows = view.policies.into_iter().map(|of| CustomerRow {
                href: links::page(&environment, &["policies", &of.policy.name]),
                explain: format!(
                    "{}?policy={}&key={}",
                    links::page(&environment, &["explain"]),
                    links::encode(&of.policy.name),
                    links::encode(&key)
                ),
                may_edit: may_edit(of.policy.apps.as_deref()),
                raise: Some(&of.policy)
                    .filter(|of| may_edit(of.apps.as_deref()))
                    .map(|of| PolicyFields::of(&of.name, &of.toml).doubled()),
                policy: of.policy,
                state: of.key,
            });
            page.rows = rows.collect();
            page.block_in = block_in(
                &caller,
                &environment,
                page.rows.iter().map(|row| row.policy.apps.as_deref()),
            );
            // The fullest first.
            page.rows.sort_by_key(|row| {
                let state = row.state.map_or((1_000, 1), |state| {
                    let left = state.remaining.saturating_mul(1_000) / state.limit.max(1);
                    (left, u64::from(state.used() == 0))
                });
                (state.1, state.0)
            });
        }
        Err(failure) => page.failure = Some(failure.detail),
    }
    Ok(render(&page))
}

/// The denials of a key in the last hour, as far as it is among the most denied keys.
async fn denials(
    caller: &PageCaller,
    environment: &str,
    key: &str,
) -> Result<Vec<KeyActivityView>, PageFailure> {
    let now = now_micros();
    let list = activity::read(caller, environment, None, Some((now - HOUR, now))).await?;
    let mut keys = list.keys.unwrap_or_default();
    keys.retain(|of| of.is_denied() && of.key == key);
    Ok(keys)
}

/// Discards the usage of a key.
pub(super) async fn reset(
    caller: PageCaller,
    Path(environment): Path<String>,
    PageForm(form): PageForm<ResetForm>,
) -> Result<Response, PageFailure> {
    let path = links::api(&environment, &["policies", &form.policy, "keys", "reset"]);
    let parts: Vec<&str> = form.key.split(" / ").collect();
    caller
        .api
        .send(Method::POST, &path, &[], &json!({ "key": parts }))
        .await?;
    let page = links::page(&environment, &["customers"]);
    Ok(see(&format!(
        "{page}?key={}&notice=reset",
        links::encode(&form.key)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_a_key_is_a_word() {
        let state = |remaining, reset_after_ms| KeyStateView {
            limit: 10,
            remaining,
            reset_after_ms,
            has_quota: false,
        };
        assert_eq!(state(10, 0).word(), "Not used");
        assert_eq!(state(0, 1_001).word(), "Nothing left");
        assert_eq!(state(4, 1_001).reset_text(), "in 2 s");
        assert_eq!(state(4, 600_000).reset_text(), "in 10 min");
        assert_eq!(state(4, 86_400_000).reset_text(), "in 24 h");
    }
}
