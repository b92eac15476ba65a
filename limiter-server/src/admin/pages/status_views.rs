//! The state of the server, its nodes and its subscribers, as pages read it.

use serde::Deserialize;

use crate::admin::pages::time::PageTime;

/// A process that follows the registry.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SubscriberView {
    pub(super) app: Option<String>,
    pub(super) host: String,
    pub(super) version: String,
    pub(super) revision: i64,
    pub(super) clock_ahead: i64,
    pub(super) supports_overlays: bool,
}

/// The processes that follow the registry of a namespace.
#[derive(Debug, Deserialize)]
pub(super) struct SubscriberListView {
    pub(super) subscribers: Vec<SubscriberView>,
}

/// An open alert.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AlertView {
    pub(super) id: i64,
    pub(super) kind: String,
    pub(super) detail: String,
    pub(super) at: PageTime,
}

/// A node of the server.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct NodeView {
    pub(super) name: String,
    pub(super) role: String,
    pub(super) version: String,
    pub(super) seen: PageTime,
    /// True if the limits are counted in Redis.
    pub(super) shares_limits: bool,
}

/// The state of the server and of the publication of an environment.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct StatusView {
    pub(super) read_only: bool,
    pub(super) registry_revision: i64,
    pub(super) pending: i64,
    pub(super) oldest_pending: Option<PageTime>,
    pub(super) publisher_error: Option<String>,
    pub(super) alerts: Vec<AlertView>,
    pub(super) nodes: Vec<NodeView>,
    /// The product of the database.
    pub(super) database: String,
    /// The state of Redis: `available`, `unavailable` or `not_used`.
    pub(super) redis: String,
    /// The users of Redis that may write the registry; `None` without Redis.
    pub(super) registry_access: Option<AccessView>,
    /// `None` without Redis, and before the first record.
    pub(super) library_usage: Option<LibraryUsageView>,
    /// The time of the answer.
    pub(super) now: PageTime,
}

/// The state of the recording of library usage.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LibraryUsageView {
    /// The reason why it is not.
    pub(super) reason: Option<String>,
}

/// The users of Redis that may write the registry.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AccessView {
    /// `restricted`, `open` or `not_known`.
    pub(super) state: String,
    pub(super) writers: Option<Vec<String>>,
}
