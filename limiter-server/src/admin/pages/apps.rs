//! The apps of an environment, with the numbers of their policies and of changes not in force.
//!
//! API routes below the namespace: `GET apps`, `GET policies`, and `PUT apps/{app}` for a new app.
//! Only apps in which the user has a role are shown. Tests: `tests/pages.rs`,
//! `tests/pages/tasks.rs`.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use crate::admin::numbers::{count, grouped};
use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::links;
use crate::admin::pages::policy_list::all_policies;
use crate::admin::pages::publication;
use crate::admin::pages::views::AppListView;
use crate::admin::pages::{render, see};
use crate::admin::permissions::{ALL_APPS, AdminAction};

#[derive(Debug, Deserialize)]
pub(super) struct NoticeQuery {
    pub(super) notice: Option<String>,
}

/// An app with the number of its policies.
#[derive(Debug, Default)]
struct AppRow {
    name: String,
    href: String,
    policies: usize,
    pending: usize,
    role: Option<String>,
}

#[derive(Template)]
#[template(path = "apps.html")]
struct AppsTemplate {
    layout: Layout,
    rows: Vec<AppRow>,
    /// The number of policies that are for all apps.
    common: usize,
    common_href: String,
    /// The page on which the user creates a policy; `None` if the user may not.
    new_policy: Option<String>,
    /// The path of the form of a new app; `None` if the user may not create one.
    new_app: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct NewAppForm {
    name: String,
}

/// Shows the first environment that the user may read.
pub(super) async fn first_environment(caller: PageCaller) -> Result<Response, PageFailure> {
    match caller.namespaces().await?.first() {
        Some(first) => Ok(see(&links::page(&first.name, &[]))),
        None => Err(PageFailure::new(
            StatusCode::FORBIDDEN,
            "You have no role in any environment. An administrator grants roles.",
        )),
    }
}

pub(super) async fn first_page(
    caller: PageCaller,
    Path(environment): Path<String>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    Ok(see(&links::page(&environment, &["now"])))
}

pub(super) async fn list(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(query): Query<NoticeQuery>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_environment(&caller, &environment, Section::Apps, "Apps").await?;
    let layout = layout.with_notice(query.notice.as_deref());
    let configured: AppListView = caller.api.get(&links::api(&environment, &["apps"])).await?;
    let mut rows: BTreeMap<String, AppRow> = BTreeMap::new();
    for app in configured.apps {
        let row = rows.entry(app.name).or_default();
        row.role = app.role;
    }
    let mut common = 0;
    for policy in all_policies(&caller, &environment).await? {
        common += usize::from(policy.apps.is_none());
        for app in policy.apps.iter().flatten() {
            let row = rows.entry(app.clone()).or_default();
            row.policies += 1;
            row.pending += usize::from(!publication::is_in_force(&policy.state));
        }
    }
    // A policy of several apps names apps in which the user has no role.
    rows.retain(|name, _| caller.actor.role_in(&environment, name).is_some());
    let rows = rows.into_iter().map(|(name, row)| AppRow {
        href: links::page(&environment, &["apps", &name]),
        role: caller
            .actor
            .role_in(&environment, &name)
            .map(|role| role.name().to_owned()),
        name,
        ..row
    });
    let is_owner = caller.may_edit(&environment, AdminAction::EditPolicy, None);
    Ok(render(&AppsTemplate {
        rows: rows.collect(),
        common,
        common_href: links::page(&environment, &["apps", ALL_APPS]),
        new_policy: is_owner.then(|| links::page(&environment, &["new"])),
        new_app: caller
            .is_admin_of(&environment)
            .then(|| links::page(&environment, &["apps"])),
        layout,
    }))
}

/// Creates an app without bounds. An existing app keeps its bounds.
pub(super) async fn create(
    caller: PageCaller,
    Path(environment): Path<String>,
    PageForm(form): PageForm<NewAppForm>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let name = form.name.trim();
    let known: AppListView = caller.api.get(&links::api(&environment, &["apps"])).await?;
    if known.apps.iter().any(|app| app.name == name) {
        let detail = format!("An app with the name {name} exists.");
        return Err(PageFailure::new(StatusCode::CONFLICT, detail));
    }
    let path = links::api(&environment, &["apps", name]);
    caller.api.send(Method::PUT, &path, &[], &json!({})).await?;
    Ok(see(&(links::page(&environment, &["apps", name]) + "?notice=app")))
}
