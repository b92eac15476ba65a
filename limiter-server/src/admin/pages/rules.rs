//! The rules of an environment: ordered per domain, with a tester and the text.
//!
//! API routes below the namespace: `GET` and `PUT rules`, `POST rules/preview`, `POST rules/match`,
//! `GET rules/history`. A rejected text is shown again with its errors. Tests: below,
//! `tests/pages/facts.rs`, `tests/pages/statements.rs`.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::{Method, StatusCode, header};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::diff::{DiffLine, diff_lines};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::revisions::DocumentRevisions;
use crate::admin::pages::rule_list::{DomainRules, domains};
use crate::admin::pages::views::RevisionView;
use crate::admin::pages::{links, render, see};
use crate::admin::preview::{DescribedLimit, DescriptorChange};
use crate::key_text::joined;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RulesQuery {
    domain: String,
    /// Entries such as `route=login, remote_address=1.2.3.4`.
    entries: String,
    /// A descriptor without a rule: its domain and its entries.
    descriptor: String,
    notice: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RulesForm {
    toml: String,
    reason: String,
    revision: i64,
}

#[derive(Debug, Deserialize)]
struct EditedRules {
    toml: String,
    revision: i64,
    state: String,
}

/// The result of the tester.
#[derive(Debug, Deserialize)]
struct MatchView {
    rule: Option<usize>,
    policy: Option<String>,
    #[serde(default)]
    is_configured: bool,
    #[serde(default)]
    values: Vec<String>,
    group: Option<String>,
}

#[derive(Template)]
#[template(path = "rules.html")]
struct RulesTemplate {
    layout: Layout,
    href: String,
    domains: Vec<DomainRules>,
    query: RulesQuery,
    found: Option<MatchView>,
    toml: String,
    revision: i64,
    state: String,
    reason: String,
    is_admin: bool,
    failure: Option<String>,
    preview: Option<ShownChanges>,
    /// The newest revisions.
    revisions: Vec<RevisionView>,
}

/// The effect of a text, from the API.
#[derive(Debug, Deserialize)]
struct RulesPreviewView {
    diff: String,
    changes: Vec<DescriptorChange>,
}

/// The effect of a text on the page.
#[derive(Debug)]
struct ShownChanges {
    diff: Vec<DiffLine>,
    changes: Vec<DescriptorChange>,
}

/// Returns a limit in words.
fn words(limit: Option<&DescribedLimit>) -> String {
    let Some(limit) = limit else {
        return "not limited".to_owned();
    };
    let key = match limit.key.is_empty() {
        true => "one key".to_owned(),
        false => format!("key {}", joined(&limit.key)),
    };
    match &limit.group {
        Some(group) => format!("{}, {key}, all or nothing in {group}", limit.policy),
        None => format!("{}, {key}", limit.policy),
    }
}

/// A changed descriptor as it is shown.
impl DescriptorChange {
    fn domain_text(&self) -> String {
        match &self.domain {
            Some(domain) => format!("{domain}: "),
            None => String::new(),
        }
    }

    fn entries_text(&self) -> String {
        self.entries.join(", ")
    }

    fn before_text(&self) -> String {
        words(self.before.as_ref())
    }

    fn after_text(&self) -> String {
        words(self.after.as_ref())
    }
}

impl RulesQuery {
    /// Returns the entries as keys with their values.
    fn entries(&self) -> Vec<(String, String)> {
        let entries = self.entries.split(',').map(str::trim).filter(|of| !of.is_empty());
        entries
            .map(|entry| match entry.split_once('=') {
                Some((key, value)) => (key.trim().to_owned(), value.trim().to_owned()),
                None => (entry.to_owned(), String::new()),
            })
            .collect()
    }
}

impl MatchView {
    fn values_text(&self) -> String {
        joined(&self.values)
    }
}

/// Returns a rule for a descriptor `domain key=value,key=value`, as text. The values become the
/// key.
fn drafted_rule(descriptor: &str) -> Option<String> {
    let (domain, entries) = descriptor.split_once(' ')?;
    let entries: Vec<&str> = entries.split(',').collect();
    let patterns = entries.iter().enumerate().map(|(number, entry)| {
        let key = entry.split_once('=').map_or(*entry, |(key, _)| key);
        // The first entry usually names the route, the others the customer.
        match number == 0 && entries.len() > 1 {
            true => json!(entry).to_string(),
            false => json!(key).to_string(),
        }
    });
    let patterns: Vec<String> = patterns.collect();
    Some(format!(
        "\n[[rule]]\ndomain = {}\nmatch = [{}]\npolicy = \"\"\n",
        json!(domain),
        patterns.join(", ")
    ))
}

pub(super) async fn show(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(query): Query<RulesQuery>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_environment(&caller, &environment, Section::Rules, "Rules").await?;
    let rules: EditedRules = caller.api.get(&links::api(&environment, &["rules"])).await?;
    let entries = query.entries();
    let found: Option<MatchView> = match entries.is_empty() {
        true => None,
        false => {
            let body = json!({ "domain": query.domain.trim(), "entries": entries });
            let path = links::api(&environment, &["rules", "match"]);
            let reply = caller.api.send(Method::POST, &path, &[], &body).await?;
            Some(reply.read()?)
        }
    };
    let number = found.as_ref().and_then(|found| found.rule);
    let drafted = drafted_rule(&query.descriptor).unwrap_or_default();
    Ok(render(&RulesTemplate {
        layout: layout.with_notice(query.notice.as_deref()),
        href: links::page(&environment, &["rules"]),
        domains: domains(&environment, &rules.toml, number),
        found,
        toml: rules.toml + &drafted,
        revision: rules.revision,
        state: rules.state,
        reason: String::new(),
        is_admin: caller.is_admin_of(&environment),
        failure: None,
        preview: None,
        revisions: DocumentRevisions::of_rules(&caller, &environment)
            .page(None)
            .await?
            .revisions,
        query,
    }))
}

/// Shows the effect of the text, if the user has read the newest rules. Saves nothing.
pub(super) async fn preview(
    caller: PageCaller,
    Path(environment): Path<String>,
    PageForm(form): PageForm<RulesForm>,
) -> Result<Response, PageFailure> {
    let path = links::api(&environment, &["rules", "preview"]);
    let body = json!({ "toml": form.toml });
    match caller.api.send(Method::POST, &path, &[], &body).await {
        Ok(reply) => {
            let found: RulesPreviewView = reply.read()?;
            let preview = ShownChanges {
                diff: diff_lines(&found.diff),
                changes: found.changes,
            };
            let (mut page, newest) = edited(&caller, &environment, form).await?;
            if page.revision != newest {
                return Ok(show_conflict(page, newest));
            }
            page.preview = Some(preview);
            Ok(render(&page))
        }
        Err(failure) => refuse(&caller, &environment, form, failure).await,
    }
}

/// Saves the text. A text with errors is shown again with its errors.
pub(super) async fn save(
    caller: PageCaller,
    Path(environment): Path<String>,
    PageForm(form): PageForm<RulesForm>,
) -> Result<Response, PageFailure> {
    let path = links::api(&environment, &["rules"]);
    let condition = match form.revision {
        0 => (header::IF_NONE_MATCH, "*".to_owned()),
        revision => (header::IF_MATCH, format!("\"{revision}\"")),
    };
    let reason = Some(form.reason.trim()).filter(|reason| !reason.is_empty());
    let body = json!({ "toml": form.toml, "reason": reason });
    match caller.api.send(Method::PUT, &path, &[condition], &body).await {
        Ok(_) => Ok(see(&format!(
            "{}?notice=saved",
            links::page(&environment, &["rules"])
        ))),
        Err(failure) => refuse(&caller, &environment, form, failure).await,
    }
}

/// Returns the page with the text of a form on top of the revision that the user read, and with the
/// newest rules. Also returns the number of the newest revision.
async fn edited(
    caller: &PageCaller,
    environment: &str,
    form: RulesForm,
) -> Result<(RulesTemplate, i64), PageFailure> {
    let layout = Layout::of_environment(caller, environment, Section::Rules, "Rules").await?;
    let current: EditedRules = caller.api.get(&links::api(environment, &["rules"])).await?;
    let page = RulesTemplate {
        layout,
        href: links::page(environment, &["rules"]),
        domains: domains(environment, &current.toml, None),
        query: RulesQuery::default(),
        found: None,
        toml: form.toml,
        revision: form.revision,
        state: current.state,
        reason: form.reason,
        is_admin: true,
        failure: None,
        preview: None,
        revisions: DocumentRevisions::of_rules(caller, environment)
            .page(None)
            .await?
            .revisions,
    };
    Ok((page, current.revision))
}

/// Shows the text of a user that has not read the newest revision.
fn show_conflict(mut page: RulesTemplate, newest: i64) -> Response {
    page.failure = Some(format!(
        "Another user has saved revision {newest} since you opened the page. Your text is below; the list shows the \
         saved rules."
    ));
    page.revision = newest;
    let mut response = render(&page);
    *response.status_mut() = StatusCode::CONFLICT;
    response
}

/// Shows a text that was not accepted, with the reason.
async fn refuse(
    caller: &PageCaller,
    environment: &str,
    form: RulesForm,
    failure: PageFailure,
) -> Result<Response, PageFailure> {
    let is_correctable = matches!(
        failure.status,
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::CONFLICT | StatusCode::BAD_REQUEST
    );
    if !is_correctable {
        return Err(failure);
    }
    let (mut page, newest) = edited(caller, environment, form).await?;
    if failure.status == StatusCode::CONFLICT {
        return Ok(show_conflict(page, newest));
    }
    page.failure = Some(failure.detail);
    let mut response = render(&page);
    *response.status_mut() = failure.status;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy_text::parse_rules;

    #[test]
    fn rule_is_drafted_from_a_descriptor() {
        let draft = drafted_rule("edge route=newsletter,customer=a\"b").unwrap();
        assert_eq!(
            draft,
            "\n[[rule]]\ndomain = \"edge\"\nmatch = [\"route=newsletter\", \"customer\"]\npolicy = \"\"\n"
        );
        assert!(drafted_rule("").is_none());
        let text = draft.replace("policy = \"\"", "policy = \"news\"");
        assert_eq!(parse_rules(&text).unwrap().len(), 1);
    }

    #[test]
    fn entries_are_keys_with_values() {
        let query = RulesQuery {
            entries: "route=login, remote_address = 1.2.3.4,".to_owned(),
            ..RulesQuery::default()
        };
        let expected = [("route", "login"), ("remote_address", "1.2.3.4")];
        let expected: Vec<_> = expected
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        assert_eq!(query.entries(), expected);
    }
}
