//! The people of an app: grants of roles, and the bounds of editors.
//!
//! API routes below the namespace: `GET grants`, `PUT` and `DELETE grants/{kind}/{subject}/{app}`,
//! `GET apps`, `PUT apps/{app}`. Test: `tests/pages/people.rs`.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::admin::pages::app::{AppHead, AppTab};
use crate::admin::pages::apps::NoticeQuery;
use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::views::{AppListView, BoundsView, GrantListView, GrantView};
use crate::admin::pages::{links, render, see};
use crate::admin::permissions::{ALL_APPS, Role, may_grant};

#[derive(Debug, Deserialize)]
pub(super) struct GrantForm {
    kind: String,
    subject: String,
    #[serde(default)]
    role: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct BoundsForm {
    min_capacity: String,
    max_capacity: String,
    min_rate: String,
    max_rate: String,
    /// The bounds that the page has shown, as JSON.
    #[serde(default)]
    previous: String,
}

#[derive(Template)]
#[template(path = "people.html")]
struct PeopleTemplate {
    layout: Layout,
    head: AppHead,
    href: String,
    grants: Vec<GrantView>,
    /// Grants of a role in all apps, which hold in this one too.
    common: Vec<GrantView>,
    /// The roles that the user may grant.
    roles: Vec<&'static str>,
    /// The bounds of the app; `None` for all apps together.
    bounds: Option<BoundsView>,
}

pub(super) async fn show(
    caller: PageCaller,
    Path((environment, app)): Path<(String, String)>,
    Query(query): Query<NoticeQuery>,
) -> Result<Response, PageFailure> {
    let head = AppHead::new(&caller, &environment, &app, AppTab::People)?;
    if caller.actor.role_in(&environment, &app).is_none() {
        return Err(PageFailure::not_found());
    }
    let layout = Layout::of_environment(&caller, &environment, Section::Apps, &*head.title).await?;
    let list: GrantListView = caller.api.get(&links::api(&environment, &["grants"])).await?;
    let (grants, others): (Vec<_>, Vec<_>) = list.grants.into_iter().partition(|grant| grant.app == app);
    let common = others.into_iter().filter(|grant| grant.app == ALL_APPS);
    let roles = Role::ALL
        .into_iter()
        .filter(|role| may_grant(&caller.actor, *role, &environment, &app));
    let apps: AppListView = caller.api.get(&links::api(&environment, &["apps"])).await?;
    let bounds = apps.apps.into_iter().find(|of| of.name == app);
    let bounds = bounds.and_then(|of| of.bounds).unwrap_or_default();
    Ok(render(&PeopleTemplate {
        layout: layout.with_notice(query.notice.as_deref()),
        href: links::page(&environment, &["apps", &app]),
        head,
        grants,
        common: common.collect(),
        roles: roles.map(Role::name).collect(),
        bounds: (app != ALL_APPS).then_some(bounds),
    }))
}

pub(super) async fn grant(
    caller: PageCaller,
    Path((environment, app)): Path<(String, String)>,
    PageForm(form): PageForm<GrantForm>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let path = links::api(&environment, &["grants", &form.kind, form.subject.trim(), &app]);
    let body = json!({ "role": form.role });
    caller.api.send(Method::PUT, &path, &[], &body).await?;
    Ok(see(
        &(links::page(&environment, &["apps", &app, "people"]) + "?notice=saved")
    ))
}

pub(super) async fn revoke(
    caller: PageCaller,
    Path((environment, app)): Path<(String, String)>,
    PageForm(form): PageForm<GrantForm>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let path = links::api(&environment, &["grants", &form.kind, &form.subject, &app]);
    caller.api.send(Method::DELETE, &path, &[], &Value::Null).await?;
    Ok(see(
        &(links::page(&environment, &["apps", &app, "people"]) + "?notice=removed")
    ))
}

pub(super) async fn set_bounds(
    caller: PageCaller,
    Path((environment, app)): Path<(String, String)>,
    PageForm(form): PageForm<BoundsForm>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let mut bounds = Map::new();
    for (name, text) in [
        ("min_capacity", &form.min_capacity),
        ("max_capacity", &form.max_capacity),
    ] {
        let text = text.trim();
        if !text.is_empty() {
            let number = text.parse::<u64>();
            let number =
                number.map_err(|_| PageFailure::bad_request(format!("{name}: expected a number")))?;
            bounds.insert(name.to_owned(), json!(number));
        }
    }
    for (name, text) in [("min_rate", &form.min_rate), ("max_rate", &form.max_rate)] {
        if !text.trim().is_empty() {
            bounds.insert(name.to_owned(), json!(text.trim()));
        }
    }
    let path = links::api(&environment, &["apps", &app]);
    let mut body = json!({ "bounds": bounds });
    if let (Ok(previous), Some(fields)) = (serde_json::from_str(&form.previous), body.as_object_mut()) {
        let previous: Value = previous;
        fields.insert("previous".to_owned(), previous);
    }
    caller.api.send(Method::PUT, &path, &[], &body).await?;
    Ok(see(
        &(links::page(&environment, &["apps", &app, "people"]) + "?notice=saved")
    ))
}
