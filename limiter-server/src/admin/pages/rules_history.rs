//! The revisions of the rules: comparison, restore, and the rules of a time.
//!
//! A restored text is saved like an edit, from the preview.

use askama::Template;
use axum::extract::{Path, Query};
use axum::response::Response;
use limiter_core::registry::Rule;

use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::render;
use crate::admin::pages::revisions::{ComparisonQuery, DocumentRevisions, RevisionComparison};
use crate::policy_text::parse_rules;

#[derive(Template)]
#[template(path = "rules_revision.html")]
struct RulesRevisionTemplate {
    layout: Layout,
    comparison: RevisionComparison,
    is_admin: bool,
}

/// Returns the rules that were saved last before a time.
pub(super) async fn rules_at(
    caller: &PageCaller,
    environment: &str,
    at: i64,
) -> Result<Vec<Rule>, PageFailure> {
    let saved = DocumentRevisions::of_rules(caller, environment).at(at).await?;
    let rules = saved.and_then(|of| parse_rules(&of.toml).ok());
    Ok(rules.map(|rules| rules.to_vec()).unwrap_or_default())
}

pub(super) async fn show(
    caller: PageCaller,
    Path((environment, number)): Path<(String, i64)>,
    Query(query): Query<ComparisonQuery>,
) -> Result<Response, PageFailure> {
    let title = format!("Rules, revision {number}");
    let layout = Layout::of_environment(&caller, &environment, Section::Rules, title).await?;
    let revisions = DocumentRevisions::of_rules(&caller, &environment);
    let comparison = revisions.compare(number, &query, |of| of.toml.clone()).await?;
    Ok(render(&RulesRevisionTemplate {
        layout,
        comparison,
        is_admin: caller.is_admin_of(&environment),
    }))
}
