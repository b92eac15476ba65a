//! The changes of an app.

use askama::Template;
use axum::extract::{Path, Query};
use axum::response::Response;
use serde::Deserialize;

use crate::admin::pages::app::{AppHead, AppTab};
use crate::admin::pages::audit::{AuditListView, ChangeRow};
use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::{links, render};

/// The number of entries of a page.
const PAGE: i64 = 50;

#[derive(Debug, Deserialize)]
pub(super) struct OlderQuery {
    before: Option<i64>,
}

#[derive(Template)]
#[template(path = "app_changes.html")]
struct AppChangesTemplate {
    layout: Layout,
    head: AppHead,
    rows: Vec<ChangeRow>,
    older: Option<String>,
}

pub(super) async fn show(
    caller: PageCaller,
    Path((environment, app)): Path<(String, String)>,
    Query(query): Query<OlderQuery>,
) -> Result<Response, PageFailure> {
    let head = AppHead::new(&caller, &environment, &app, AppTab::Changes)?;
    let layout = Layout::of_environment(&caller, &environment, Section::Apps, &*head.title).await?;
    let path = links::api(&environment, &["audit"]);
    let before = query.before.unwrap_or(i64::MAX);
    let app = links::encode(&app);
    let path = format!("{path}?limit={PAGE}&before={before}&app={app}&changes=true");
    let found: AuditListView = caller.api.get(&path).await?;
    let rows = found.entries.into_iter();
    let rows = rows.map(|entry| ChangeRow::new(&environment, entry));
    Ok(render(&AppChangesTemplate {
        layout,
        head,
        rows: rows.collect(),
        older: found.next.map(|before| format!("?before={before}")),
    }))
}
