//! One key in all policies, or one part of keys: the remaining calls, a reset and a block.
//!
//! API routes below the namespace: `GET keys`, `GET keys/activity`, `GET policies`,
//! `GET proposals`, `POST policies/{name}/keys/reset`. A text `NAME=VALUE` is a part if a policy
//! declares it, and a key otherwise. Tests: below, `tests/pages/key_parts.rs`,
//! `tests/pages/tasks.rs`.

use std::collections::BTreeSet;

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use crate::admin::numbers::grouped;
use crate::admin::pages::activity::{self, KeyActivityRow, KeyActivityView};
use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::ends::{OfferedEnd, offered_block_ends, offered_days};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::key_fields::{KeyFields, KeyInput, fields_of};
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::overlays::block_in;
use crate::admin::pages::policy_fields::PolicyFields;
use crate::admin::pages::policy_list::all_policies;
use crate::admin::pages::policy_mode::PolicyMode;
use crate::admin::pages::proposals;
use crate::admin::pages::time::PageTime;
use crate::admin::pages::views::PolicyView;
use crate::admin::pages::{links, render, see};
use crate::admin::permissions::AdminAction;
use crate::key_text::{CUT_KEY, is_cut, joined, parts_of, recorded};
use crate::store::now_micros;

/// The largest number of forms of declared keys.
const MAX_FORMS: usize = 8;
const HOUR: i64 = 3_600_000_000;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CustomerQuery {
    /// The parts of a key, or `NAME=VALUE` for one part.
    key: String,
    /// Present if `key` is a whole key although it looks like one part.
    whole: Option<String>,
    notice: Option<String>,
    /// The names of the parts in the form of a declared key, separated by line breaks.
    names: String,
    /// The fields of these parts.
    #[serde(flatten)]
    parts: KeyFields,
}

/// The form of keys with declared parts.
#[derive(Debug)]
struct DeclaredKeyForm {
    names: String,
    fields: Vec<KeyInput>,
}

impl CustomerQuery {
    /// Returns the key or the part: as it is if it is a whole key, and else as a user enters it.
    fn text(&self) -> &str {
        match self.whole {
            Some(_) => &self.key,
            None => self.key.trim(),
        }
    }

    /// Returns the name and the value of a part.
    fn part(&self) -> Option<(String, String)> {
        let part = self.key.trim().split_once('=').filter(|_| self.whole.is_none());
        let (name, value) = part.map(|(name, value)| (name.trim(), value.trim()))?;
        (!name.is_empty() && !value.is_empty()).then(|| (name.to_owned(), value.to_owned()))
    }

    /// Returns the text of the form of a declared key: all parts, or one of them.
    fn of_parts(&self) -> Result<Option<String>, String> {
        let parts = self.parts.parts();
        let filled: Vec<(&str, &&str)> = self
            .names
            .lines()
            .zip(&parts)
            .filter(|(_, part)| !part.is_empty())
            .collect();
        match filled.as_slice() {
            [] => Ok(None),
            all if all.len() == parts.len() => Ok(self.parts.text()),
            [(name, value)] => Ok(Some(format!("{name}={value}"))),
            _ => Err("Enter one part, or all parts of a key.".to_owned()),
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct ResetForm {
    policy: String,
    key: String,
}

/// The state of the key under a policy.
#[derive(Clone, Debug, Deserialize)]
struct KeyStateView {
    limit: u64,
    remaining: u64,
    reset_after_ms: u64,
    has_quota: bool,
    /// The origin of a denial that does not depend on the usage.
    denied_by: Option<String>,
}

#[derive(Debug, Deserialize)]
struct KeyedPolicyView {
    #[serde(flatten)]
    policy: PolicyView,
    key: Option<KeyStateView>,
    /// The parts of the key; `None` if keys of the policy have other parts.
    parts: Option<Vec<String>>,
    declared_parts: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct KeyView {
    fingerprint: Option<String>,
    policies: Vec<KeyedPolicyView>,
    is_truncated: bool,
}

#[derive(Debug)]
struct CustomerRow {
    href: String,
    explain: String,
    policy: PolicyView,
    mode: PolicyMode,
    /// The key; `None` if keys of the policy have other parts.
    key: Option<String>,
    state: Option<KeyStateView>,
    /// The reason why the state is not known.
    unknown: String,
    /// The numbers that the form of a raise suggests; `None` if the user may not raise the key.
    raise: Option<PolicyFields>,
    /// The proposals that a raise closes, as a sentence.
    closed_proposals: Option<String>,
    may_edit: bool,
}

#[derive(Template)]
#[template(path = "customers.html")]
struct CustomersTemplate {
    layout: Layout,
    href: String,
    key: String,
    /// The part of keys, as name and value; `None` for a whole key.
    part: Option<(String, String)>,
    /// The page of the text as a whole key.
    whole_href: String,
    /// The forms of keys whose parts policies declare.
    declared: Vec<DeclaredKeyForm>,
    /// The fingerprint of the key, which records and metadata contain.
    fingerprint: Option<String>,
    rows: Vec<CustomerRow>,
    /// The denials of the key, or of keys with the part, in the last hour.
    denials: Vec<KeyActivityRow>,
    is_truncated: bool,
    failure: Option<String>,
    blocks_href: String,
    /// The apps in which the user may block the key; an empty name for all apps.
    block_in: Vec<String>,
    raise_ends: Vec<OfferedEnd>,
    block_ends: Vec<OfferedEnd>,
}

impl KeyStateView {
    fn used(&self) -> u64 {
        self.limit.saturating_sub(self.remaining)
    }

    /// Returns the time until nothing is used, in words.
    fn reset_text(&self) -> String {
        match self.reset_after_ms.div_ceil(1_000) {
            _ if self.denied_by.is_some() => "not known".to_owned(),
            0 => "nothing is used".to_owned(),
            seconds @ 1..=119 => format!("in {seconds} s"),
            seconds @ 120..=7_199 => format!("in {} min", seconds.div_ceil(60)),
            seconds => format!("in {} h", grouped(seconds.div_ceil(3_600))),
        }
    }

    /// Returns the class of the state: red without anything left.
    fn class(&self) -> &'static str {
        match (self.remaining, self.used()) {
            (0, _) => "bad",
            (_, 0) => "off",
            _ => "ok",
        }
    }

    fn word(&self) -> &'static str {
        match (self.denied_by.as_deref(), self.remaining, self.used()) {
            (Some("block"), ..) => "Blocked",
            (Some("key_list"), ..) => "On the deny list",
            (Some(_), ..) => "Denied",
            (None, 0, _) => "Nothing left",
            (None, _, 0) => "Not used",
            (None, ..) => "In use",
        }
    }
}

impl CustomersTemplate {
    /// Returns whether a block denies the key under a policy.
    fn is_blocked(&self) -> bool {
        let mut states = self.rows.iter().filter_map(|row| row.state.as_ref());
        states.any(|state| state.denied_by.as_deref() == Some("block"))
    }
}

pub(super) async fn show(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(query): Query<CustomerQuery>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_environment(&caller, &environment, Section::Customers, "Customers").await?;
    let of_parts = query.of_parts();
    if let Ok(Some(key)) = &of_parts {
        let customers = links::page(&environment, &["customers"]);
        let whole = if query.parts.parts().iter().all(|part| !part.is_empty()) {
            "&whole=1"
        } else {
            ""
        };
        return Ok(see(&format!("{customers}?key={}{whole}", links::encode(key))));
    }
    let key = query.text().to_owned();
    let failure = of_parts.err();
    let failure = failure.or_else(|| is_cut(&key).then(|| CUT_KEY.to_owned()));
    let mut page = CustomersTemplate {
        layout: layout.with_notice(query.notice.as_deref()),
        href: links::page(&environment, &["customers"]),
        key: key.clone(),
        whole_href: format!(
            "{}?key={}&whole=1",
            links::page(&environment, &["customers"]),
            links::encode(&key)
        ),
        declared: declared(&caller, &environment).await?,
        part: None,
        fingerprint: None,
        rows: Vec::new(),
        denials: Vec::new(),
        is_truncated: false,
        failure,
        blocks_href: links::page(&environment, &["blocks"]),
        block_in: Vec::new(),
        raise_ends: offered_days(PageTime(now_micros())),
        block_ends: offered_block_ends(PageTime(now_micros())),
    };
    if key.is_empty() || page.failure.is_some() {
        return Ok(render(&page));
    }
    match look_up(&caller, &environment, &query).await {
        Ok((view, part)) => {
            page.is_truncated = view.is_truncated;
            page.denials = denials(&caller, &environment, (&key, part.as_ref()), &view.policies).await?;
            page.part = part;
            page.fingerprint = view.fingerprint;
            let proposals = proposals::open(&caller, &environment).await?;
            let may_edit =
                |apps: Option<&[String]>| caller.may_edit(&environment, AdminAction::EditNumbers, apps);
            let rows = view.policies.into_iter().map(|of| CustomerRow {
                href: links::page(&environment, &["policies", &of.policy.name]),
                explain: format!(
                    "{}?policy={}&key={}",
                    links::page(&environment, &["explain"]),
                    links::encode(&of.policy.name),
                    of.parts
                        .as_ref()
                        .map(|parts| links::encode(&joined(parts)))
                        .unwrap_or_default()
                ),
                key: of.parts.as_ref().map(joined),
                unknown: match (&of.parts, of.declared_parts.as_slice()) {
                    (None, [only]) => format!("a key has the part {only}"),
                    (None, parts) => format!("a key has the parts {}", parts.join(", ")),
                    (Some(_), _) => String::new(),
                },
                may_edit: may_edit(of.policy.apps.as_deref()),
                raise: Some(&of.policy)
                    .filter(|policy| of.parts.is_some() && may_edit(policy.apps.as_deref()))
                    .map(|of| PolicyFields::of(&of.name, &of.toml).doubled()),
                closed_proposals: proposals::closed_by_change(&proposals, &of.policy),
                mode: PolicyMode::of(&of.policy, &page.layout.suspensions),
                policy: of.policy,
                state: of.key,
            });
            let rows = rows.collect();
            page.rows = rows;
            page.block_in = block_in(
                &caller,
                &environment,
                page.rows.iter().map(|row| row.policy.apps.as_deref()),
            );
            // The fullest first.
            page.rows.sort_by_key(|row| {
                let state = row.state.as_ref().map_or((1_000, 1), |state| {
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

/// Returns the state of the key, or of keys with the part if a policy declares it.
async fn look_up(
    caller: &PageCaller,
    environment: &str,
    query: &CustomerQuery,
) -> Result<(KeyView, Option<(String, String)>), PageFailure> {
    let path = links::api(environment, &["keys"]);
    if let Some((name, value)) = query.part() {
        let asked = format!(
            "{path}?part={}&key={}",
            links::encode(&name),
            links::encode(&value)
        );
        let found: KeyView = caller.api.get(&asked).await?;
        if !found.policies.is_empty() {
            return Ok((found, Some((name, value))));
        }
    }
    let asked = format!("{path}?key={}", links::encode(query.text()));
    Ok((caller.api.get(&asked).await?, None))
}

/// Returns the denials of a key, or of keys with a part, in the last hour, as far as the keys are
/// among the most denied ones.
async fn denials(
    caller: &PageCaller,
    environment: &str,
    (key, part): (&str, Option<&(String, String)>),
    policies: &[KeyedPolicyView],
) -> Result<Vec<KeyActivityRow>, PageFailure> {
    let now = now_micros();
    let list = activity::read(caller, environment, None, Some((now - HOUR, now))).await?;
    let has_part = |policy: &str, key: &str, (name, value): &(String, String)| {
        let declared = policies.iter().find(|of| of.policy.name == policy);
        let at = declared.and_then(|of| of.declared_parts.iter().position(|part| part == name));
        at.is_some_and(|at| parts_of(key).get(at) == Some(value))
    };
    let is_asked = |of: &KeyActivityView| match part {
        Some(part) => has_part(&of.policy, &of.key, part),
        None => of.key == recorded(key),
    };
    let keys = list.keys.unwrap_or_default().into_iter();
    let keys = keys.filter(|of| of.is_denied() && is_asked(of));
    Ok(keys.map(|of| KeyActivityRow::new(environment, of)).collect())
}

/// Returns the forms of the keys that policies declare.
async fn declared(caller: &PageCaller, environment: &str) -> Result<Vec<DeclaredKeyForm>, PageFailure> {
    let policies = all_policies(caller, environment).await?;
    let declared = policies.into_iter().map(|of| of.key_parts);
    let declared: BTreeSet<Vec<String>> = declared.filter(|parts| !parts.is_empty()).collect();
    let forms = declared.into_iter().take(MAX_FORMS).map(|parts| DeclaredKeyForm {
        names: parts.join("\n"),
        fields: fields_of(&parts, ""),
    });
    Ok(forms.collect())
}

/// Discards the usage of a key.
pub(super) async fn reset(
    caller: PageCaller,
    Path(environment): Path<String>,
    PageForm(form): PageForm<ResetForm>,
) -> Result<Response, PageFailure> {
    let path = links::api(&environment, &["policies", &form.policy, "keys", "reset"]);
    caller
        .api
        .send(Method::POST, &path, &[], &json!({ "key": parts_of(&form.key) }))
        .await?;
    let page = links::customer(&environment, &form.key);
    Ok(see(&format!("{page}&notice=reset")))
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
            denied_by: None,
        };
        assert_eq!(state(10, 0).word(), "Not used");
        assert_eq!(state(0, 1_001).word(), "Nothing left");
        assert_eq!(state(4, 1_001).reset_text(), "in 2 s");
        assert_eq!(state(4, 600_000).reset_text(), "in 10 min");
        assert_eq!(state(4, 86_400_000).reset_text(), "in 24 h");
    }
}
