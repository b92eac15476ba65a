//! The state of the server: publication, alerts, nodes.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;

use crate::admin::pages::apps::NoticeQuery;
use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section, count};
use crate::admin::pages::time::PageTime;
use crate::admin::pages::{links, render, see};

/// A node that was not seen for this time has probably ended.
const LATE: i64 = 5_000_000;

#[derive(Debug, Deserialize)]
struct AlertView {
    id: i64,
    kind: String,
    detail: String,
    at: PageTime,
}

#[derive(Debug, Deserialize)]
struct NodeView {
    name: String,
    role: String,
    version: String,
    seen: PageTime,
    /// Whether the limits are counted in Redis.
    shares_limits: bool,
}

/// The state of the server and of the publication of an environment.
#[derive(Debug, Deserialize)]
struct ServerView {
    read_only: bool,
    registry_revision: i64,
    pending: i64,
    oldest_pending: Option<PageTime>,
    publisher_error: Option<String>,
    alerts: Vec<AlertView>,
    nodes: Vec<NodeView>,
    /// The product of the database.
    database: String,
    /// The time of the answer.
    now: PageTime,
}

#[derive(Template)]
#[template(path = "status.html")]
struct StatusTemplate {
    layout: Layout,
    status: ServerView,
    href: String,
    is_admin: bool,
}

impl ServerView {
    /// Whether a node has not been seen for some seconds.
    fn is_late(&self, seen: PageTime) -> bool {
        self.now.0 - seen.0 > LATE
    }

    /// The time since an event in seconds.
    fn seconds_since(&self, at: PageTime) -> i64 {
        (self.now.0 - at.0).max(0) / 1_000_000
    }

    fn pending_text(&self) -> String {
        count(usize::try_from(self.pending).unwrap_or_default(), "change")
    }

    /// Where the limits of the nodes are counted.
    fn counted_in(&self) -> &'static str {
        match self.nodes.first() {
            Some(node) if node.shares_limits => "Redis, shared by all nodes",
            Some(_) => "the process of the node",
            None => "not known",
        }
    }
}

pub(super) async fn show(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(query): Query<NoticeQuery>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_environment(&caller, &environment, Section::Status, "Status").await?;
    let status: ServerView = caller.api.get(&links::api(&environment, &["status"])).await?;
    Ok(render(&StatusTemplate {
        layout: layout.with_notice(query.notice.as_deref()),
        status,
        href: links::page(&environment, &["status"]),
        is_admin: caller.is_admin_of(&environment),
    }))
}

/// Clears an alert.
pub(super) async fn clear_alert(
    caller: PageCaller,
    Path((environment, id)): Path<(String, i64)>,
) -> Result<Response, PageFailure> {
    let path = links::api(&environment, &["alerts", &id.to_string()]);
    caller.api.send(Method::DELETE, &path, &[], &Value::Null).await?;
    Ok(see(&format!(
        "{}?notice=removed",
        links::page(&environment, &["status"])
    )))
}
