//! The JSON interface of the admin part, under `/admin/v1`.
//!
//! Errors are problem documents (RFC 9457). The `ETag` of a policy begins with its revision; a
//! change names the revision that the author read in `If-Match`. [`routes`] lists all routes.
//! Tests: `tests/admin_api.rs`, `tests/routes_by_role.rs`.

mod activity;
mod caller;
mod connect;
mod content_tag;
mod documents;
mod import;
pub(in crate::admin) mod keys;
mod openapi;
mod other_fields;
mod overlays;
mod paging;
mod people;
mod policies;
mod policy_change;
mod preview;
pub(crate) mod problem;
mod proposals;
mod quota_streams;
mod quotas;
mod records;
mod revisions;
pub mod routes;
mod rules;
mod sessions;
mod subscribers;
mod tokens;
mod trials;
mod usage;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn;
use axum::routing::{delete, get, post, put};
use limiter_core::registry::{Block, Suspension};

use crate::admin::{Admin, entity_tag};

/// The largest body of a request, in bytes.
const MAX_BODY: usize = 2 << 20;

/// Returns the routes.
pub fn router(admin: Admin) -> Router {
    let namespace = Router::new()
        .route("/", put(records::set_namespace))
        .route("/policies", get(policies::list))
        .route(
            "/policies/{name}",
            get(policies::read).put(policies::save).delete(policies::remove),
        )
        .route("/policies/{name}/history", get(policies::history))
        .route("/policies/{name}/history/{number}", get(policies::revision))
        .route("/policies/{name}/restore", post(policies::restore))
        .route("/policies/{name}/preview", post(preview::preview))
        .route("/policies/{name}/usage", get(usage::of_policy))
        .route("/policies/{name}/keys/reset", post(keys::reset))
        .route("/policies/{name}/test-calls", post(connect::test_calls))
        .route("/keys", get(keys::list))
        .route("/keys/activity", get(activity::list))
        .route("/denials", get(activity::denials))
        .route(
            "/policies/{name}/quotas",
            post(quotas::set).delete(quotas::remove),
        )
        .route(
            "/policies/{name}/trial",
            get(trials::read).put(trials::start).delete(trials::end),
        )
        .route("/policies/{name}/trial/adopt", post(trials::adopt))
        .route("/usage", get(usage::by_policy))
        .route("/unmatched", get(records::unmatched))
        .route("/quota-assignments", get(quota_streams::list))
        .route("/import", post(import::save))
        .route("/rules/history", get(rules::history))
        .route("/rules/history/{number}", get(rules::revision))
        .route("/rules/match", post(rules::find))
        .route("/rules/preview", post(rules::preview))
        .route("/rules", get(rules::read).put(rules::save))
        .route("/suspensions", get(overlays::suspensions).post(overlays::suspend))
        .route(
            "/suspensions/{id}",
            put(overlays::extend::<Suspension>).delete(overlays::end::<Suspension>),
        )
        .route("/blocks", get(overlays::blocks).post(overlays::block))
        .route(
            "/blocks/{id}",
            put(overlays::extend::<Block>).delete(overlays::end::<Block>),
        )
        .route("/subscribers", get(subscribers::list))
        .route("/apps", get(people::apps))
        .route("/apps/{app}", put(people::set_app))
        .route("/grants", get(people::grants))
        .route(
            "/grants/{kind}/{subject}/{app}",
            put(people::set_grant).delete(people::remove_grant),
        )
        .route("/tokens", get(tokens::list).post(tokens::create))
        .route("/tokens/{id}", delete(tokens::revoke))
        .route("/tokens/{id}/rotate", post(tokens::rotate))
        .route("/tokens/{id}/confirm", post(tokens::confirm))
        .route("/proposals", get(proposals::list))
        .route("/proposals/{id}/approve", post(proposals::approve))
        .route("/proposals/{id}/reject", post(proposals::reject))
        .route("/audit", get(records::audit))
        .route("/alerts/{id}", delete(records::clear_alert))
        .route("/connect", get(connect::read))
        .route("/status", get(records::status));
    let api = Router::new()
        .route("/openapi.json", get(openapi::openapi))
        .route("/setup", post(sessions::set_up))
        .route(
            "/session",
            get(sessions::read)
                .post(sessions::sign_in)
                .delete(sessions::sign_out),
        )
        .route("/namespaces", get(records::namespaces))
        .nest("/namespaces/{namespace}", namespace)
        .route("/users", get(people::users).post(people::create_user))
        .route(
            "/users/{name}",
            put(people::change_user).delete(people::remove_user),
        )
        .route("/users/{name}/password", put(people::set_password))
        .route("/audit", get(records::server_audit))
        .route("/retention", get(records::retention))
        .fallback(problem::unknown_path);
    Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .nest("/admin/v1", api.layer(from_fn(entity_tag::of_api)))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(admin)
}
