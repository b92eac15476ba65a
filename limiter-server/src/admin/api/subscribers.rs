//! The processes that follow the registry of a namespace.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use limiter_core::registry::Subscriber;
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::admin::api::caller::AdminCaller;
use crate::admin::api::paging::ListPage;
use crate::admin::api::problem::AdminProblem;
use crate::admin::permissions::Actor;

/// Returns whether a caller may see a process: one of an app in which the caller has a role.
pub(super) fn is_visible(actor: &Actor, namespace: &str, subscriber: &Subscriber) -> bool {
    match (actor.apps_in(namespace), &subscriber.app) {
        (None, _) => true,
        (Some(apps), Some(app)) => apps.contains(app.as_str()),
        (Some(_), None) => false,
    }
}

/// Returns the subscribers; none without Redis.
pub(super) async fn of(admin: &Admin, namespace: &str) -> Result<Vec<Subscriber>, AdminProblem> {
    let Some(redis) = admin.publisher(namespace).and_then(|of| of.redis()) else {
        return Ok(Vec::new());
    };
    redis.subscribers().await.map_err(|error| {
        let detail = format!("the subscribers are not known: {error}");
        AdminProblem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })
}

pub(super) fn json(subscriber: &Subscriber) -> Value {
    json!({
        "app": subscriber.app,
        "host": subscriber.host,
        "version": subscriber.version,
        "revision": subscriber.revision,
        "clock_ahead": subscriber.clock_ahead,
        "supports_overlays": subscriber.supports_overlays(),
    })
}

/// Returns the subscribers that the caller may read: those of its apps.
pub(super) async fn list(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    page: ListPage,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let all = of(&admin, &namespace).await?;
    let is_visible = |of: &&Subscriber| is_visible(&caller.0, &namespace, of);
    let visible: Vec<Value> = all.iter().filter(is_visible).map(json).collect();
    // Processes have no identity that is shown.
    let (visible, next) = page.select(visible, |number, _| number.to_string())?;
    Ok(Json(json!({ "subscribers": visible, "next": next })))
}
