//! The search of the top bar: policies and apps by a part of their name.

use askama::Template;
use axum::extract::{Path, Query};
use axum::response::Response;
use serde::Deserialize;

use crate::admin::pages::app::PolicyRow;
use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, NavLink, Section};
use crate::admin::pages::policy_list::all_policies;
use crate::admin::pages::views::{AppListView, PolicyListView};
use crate::admin::pages::{links, render};

/// The largest number of policies in a result.
const MAX_ROWS: usize = 100;

#[derive(Debug, Deserialize)]
pub(super) struct SearchQuery {
    #[serde(default)]
    q: String,
}

#[derive(Template)]
#[template(path = "search.html")]
struct SearchTemplate {
    layout: Layout,
    text: String,
    apps: Vec<NavLink>,
    rows: Vec<PolicyRow>,
    is_truncated: bool,
    /// The page of the key of this text.
    customer: Option<String>,
}

pub(super) async fn find(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(query): Query<SearchQuery>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_environment(&caller, &environment, Section::Search, "Search").await?;
    let text = query.q.trim().to_lowercase();
    let contains = |name: &str| name.to_lowercase().contains(&text);
    let policies = all_policies(&caller, &environment).await?;
    let of_policies = policies.into_iter().flat_map(|of| of.apps.unwrap_or_default());
    let configured: AppListView = caller.api.get(&links::api(&environment, &["apps"])).await?;
    let configured = configured.apps.into_iter().map(|app| app.name);
    let mut apps: Vec<String> = of_policies.chain(configured).collect();
    apps.sort();
    apps.dedup();
    apps.retain(|app| contains(app) && caller.actor.role_in(&environment, app).is_some());
    let apps = apps.into_iter().map(|app| NavLink {
        href: links::page(&environment, &["apps", &app]),
        text: app,
        is_current: false,
    });
    let path = links::api(&environment, &["policies"]);
    let path = format!("{path}?limit={MAX_ROWS}&q={}", links::encode(&text));
    let found: PolicyListView = caller.api.get(&path).await?;
    let rows = found.policies.into_iter();
    let rows = rows.map(|of| PolicyRow::new(&environment, of, &layout.suspensions));
    Ok(render(&SearchTemplate {
        rows: rows.collect(),
        layout,
        customer: (!text.is_empty()).then(|| {
            let customers = links::page(&environment, &["customers"]);
            format!("{customers}?key={}", links::encode(query.q.trim()))
        }),
        text: query.q,
        apps: apps.collect(),
        is_truncated: found.next.is_some(),
    }))
}
