//! The state of the server: publication, alerts, nodes, Redis, replicas and quota assignments.
//!
//! API routes below the namespace: `GET status` (by the layout), `GET subscribers`,
//! `GET quota-assignments` for administrators, `DELETE alerts/{id}`. Tests:
//! `tests/pages/replicas.rs`, `tests/quota_usage.rs`.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::Response;
use serde_json::Value;

use crate::admin::numbers::{count, grouped};
use crate::admin::pages::apps::NoticeQuery;
use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::quota_streams::AssignmentsView;
use crate::admin::pages::status_views::{LibraryUsageView, StatusView, SubscriberListView, SubscriberView};
use crate::admin::pages::time::PageTime;
use crate::admin::pages::{links, render, see};

/// A node that was not seen for this time has probably ended.
const LATE: i64 = 5_000_000;

#[derive(Template)]
#[template(path = "status.html")]
struct StatusTemplate {
    layout: Layout,
    status: StatusView,
    href: String,
    is_admin: bool,
    /// The processes that follow the registry; `None` if they are not known.
    subscribers: Option<Vec<SubscriberView>>,
    /// The assignments of the quota service, for administrators.
    quota: Option<AssignmentsView>,
}

impl StatusView {
    /// Returns the state of a node by its last report: class and word.
    pub(super) fn node_state(&self, seen: PageTime) -> (&'static str, &'static str) {
        match self.now.0 - seen.0 > LATE {
            true => ("bad", "Late"),
            false => ("ok", "Running"),
        }
    }

    /// Returns the time since an event in seconds.
    fn seconds_since(&self, at: PageTime) -> i64 {
        (self.now.0 - at.0).max(0) / 1_000_000
    }

    /// Returns the state of Redis: class and words.
    fn redis_state(&self) -> (&'static str, &'static str) {
        match self.redis.as_str() {
            "available" => ("ok", "Answers"),
            "unavailable" => ("bad", "Does not answer: the failure mode of each policy applies"),
            _ => ("off", "Not used: limits are counted in the process of the node"),
        }
    }

    /// Returns the users of Redis that may write the registry: class and words.
    fn registry_writers(&self) -> (&'static str, String) {
        let Some(access) = &self.registry_access else {
            return (
                "off",
                "Not used: the registry is in the process of the node".to_owned(),
            );
        };
        let writers = access.writers.as_deref().unwrap_or_default().join(", ");
        match access.state.as_str() {
            "restricted" => ("ok", format!("Servers only ({writers})")),
            "open" => ("waiting", format!("All of these users: {writers}")),
            _ => ("off", "not known".to_owned()),
        }
    }

    /// Returns the class and the words for the recording of library usage.
    fn library_usage(&self) -> (&'static str, &str) {
        match &self.library_usage {
            None => ("off", "not known"),
            Some(LibraryUsageView { reason: None }) => ("ok", "Recorded"),
            Some(LibraryUsageView { reason: Some(reason) }) => ("bad", reason),
        }
    }

    /// Returns the class and the words for the adoption of the published registry by a subscriber.
    /// Revisions of a registry are not consecutive, so their difference is no count.
    fn adoption(&self, of: &SubscriberView) -> (&'static str, &'static str) {
        match of.revision < self.registry_revision {
            true => ("waiting", "Earlier revision"),
            false => ("ok", "In force"),
        }
    }

    /// Returns the difference of the clock of a subscriber to that of Redis.
    fn clock(&self, of: &SubscriberView) -> String {
        match of.clock_ahead / 1_000 {
            0 => "equal".to_owned(),
            ms if ms > 0 => format!("{} ms ahead", grouped(ms)),
            ms => format!("{} ms behind", grouped(-ms)),
        }
    }

    fn pending_text(&self) -> String {
        count(usize::try_from(self.pending).unwrap_or_default(), "change")
    }

    /// Returns the place in which the limits of the nodes are counted.
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
    let mut layout = Layout::of_environment(&caller, &environment, Section::Status, "Status").await?;
    // The layout of an environment has read it.
    let status = layout.status.take().ok_or_else(PageFailure::internal)?;
    let path = links::api(&environment, &["subscribers"]);
    let subscribers = caller.api.get::<SubscriberListView>(&path).await;
    let subscribers = subscribers.ok().map(|list| {
        let mut subscribers = list.subscribers;
        subscribers.sort_by_key(|of| of.revision);
        subscribers
    });
    let is_admin = caller.is_admin_of(&environment);
    let path = links::api(&environment, &["quota-assignments"]);
    let quota: Option<AssignmentsView> = match is_admin {
        true => Some(caller.api.get(&path).await?),
        false => None,
    };
    Ok(render(&StatusTemplate {
        layout: layout.with_notice(query.notice.as_deref()),
        status,
        href: links::page(&environment, &["status"]),
        is_admin,
        subscribers,
        quota,
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
