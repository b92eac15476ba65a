//! The revisions of the rules: list, comparison, restore.
//!
//! A restored text is saved like an edit, from the preview.

use askama::Template;
use axum::extract::{Path, Query};
use axum::response::Response;
use limiter_core::registry::Rule;

use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::history::RevisionQuery;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::policy::{DiffLine, diff_lines};
use crate::admin::pages::views::{RevisionListView, RevisionView};
use crate::admin::pages::{links, render};
use crate::admin::preview::unified_diff;
use crate::policy_text::parse_rules;

/// The number of revisions of a list.
const SHOWN: i64 = 20;
/// The number of revisions that are searched for those of a time.
const SEARCHED: i64 = 1_000;

#[derive(Template)]
#[template(path = "rules_revision.html")]
struct RulesRevisionTemplate {
    layout: Layout,
    href: String,
    revision: RevisionView,
    newest: i64,
    /// The revision with which this one is compared; `None` for the first one.
    compared: Option<i64>,
    diff: Vec<DiffLine>,
    is_admin: bool,
}

async fn history(
    caller: &PageCaller,
    environment: &str,
    limit: i64,
) -> Result<Vec<RevisionView>, PageFailure> {
    let path = links::api(environment, &["rules", "history"]);
    let list: RevisionListView = caller.api.get(&format!("{path}?limit={limit}")).await?;
    Ok(list.revisions)
}

/// The newest revisions.
pub(super) async fn newest(caller: &PageCaller, environment: &str) -> Result<Vec<RevisionView>, PageFailure> {
    history(caller, environment, SHOWN).await
}

/// The rules that were saved last before a time.
pub(super) async fn rules_at(
    caller: &PageCaller,
    environment: &str,
    at: i64,
) -> Result<Vec<Rule>, PageFailure> {
    let revisions = history(caller, environment, SEARCHED).await?;
    let saved = revisions.into_iter().find(|of| of.created_at.0 <= at);
    let rules = saved.and_then(|of| parse_rules(&of.toml).ok());
    Ok(rules.map(|rules| rules.to_vec()).unwrap_or_default())
}

pub(super) async fn show(
    caller: PageCaller,
    Path((environment, number)): Path<(String, i64)>,
    Query(query): Query<RevisionQuery>,
) -> Result<Response, PageFailure> {
    let title = format!("Rules, revision {number}");
    let layout = Layout::of_environment(&caller, &environment, Section::Rules, title).await?;
    let read = async |number: i64| -> Result<RevisionView, PageFailure> {
        let path = links::api(&environment, &["rules", "history", &number.to_string()]);
        caller.api.get(&path).await
    };
    let revision = read(number).await?;
    let newest = history(&caller, &environment, 1).await?;
    let newest = newest.first().map_or(number, |of| of.number);
    let compared = query.compared(number, newest);
    let other = match compared {
        Some(with) => read(with).await?.toml,
        None => String::new(),
    };
    Ok(render(&RulesRevisionTemplate {
        layout,
        href: links::page(&environment, &["rules"]),
        newest,
        compared,
        diff: diff_lines(&unified_diff(&other, &revision.toml)),
        is_admin: caller.is_admin_of(&environment),
        revision,
    }))
}
