//! The HTTP listener: decisions as JSON, health, readiness and metrics.
//!
//! Tests: `tests/http_api.rs`.

mod access;
mod body;
mod caller;
mod check;
mod client_id;
mod envoy_json;
mod forward_auth;
mod permits;
mod problem;
mod reply;
mod request;
mod reservations;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Router, middleware};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;

use crate::gateway::Gateway;
use crate::gateway::readiness::ReadinessState;
use crate::listener::http::HttpVersions;
use crate::listener::{self, Listener};

/// Serves HTTP until `end` is true, then finishes the requests in flight.
///
/// # Errors
///
/// None; a connection that fails ends alone.
pub async fn serve(
    gateway: Gateway,
    metrics: PrometheusHandle,
    listener: Listener,
    end: watch::Receiver<bool>,
) -> Result<(), String> {
    listener::http::serve(listener, HttpVersions::All, router(gateway, metrics), end).await;
    Ok(())
}

/// The routes.
pub fn router(gateway: Gateway, metrics: PrometheusHandle) -> Router {
    let render = move |State(gateway): State<Gateway>| {
        let metrics = metrics.clone();
        async move {
            gateway.admission().report();
            metrics.render()
        }
    };
    let require_host = middleware::from_fn_with_state(gateway.clone(), access::require_allowed_host);
    let protected = api(gateway.clone())
        .route("/metrics", get(render))
        .route_layer(require_host);
    Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .merge(protected)
        .with_state(gateway)
}

/// The routes of the JSON interface.
fn api(gateway: Gateway) -> Router<Gateway> {
    Router::new()
        .route("/v1/check", post(check::check))
        .route("/v1/peek", post(check::peek))
        .route("/v1/acquire", post(permits::acquire))
        .route("/v1/renew", post(permits::renew))
        .route("/v1/release", post(permits::release))
        .route("/v1/reserve", post(reservations::reserve))
        .route("/v1/settle", post(reservations::settle))
        .route("/v1/refund", post(check::refund))
        .route("/v1/reset", post(check::reset))
        .route("/v1/unmatched", get(unmatched))
        .route("/json", post(envoy_json::should_rate_limit))
        .route("/forward-auth", get(forward_auth::forward_auth))
        // The body has been read within its limit.
        .layer(DefaultBodyLimit::disable())
        .route_layer(middleware::from_fn_with_state(gateway.clone(), body::admit))
        .route_layer(middleware::from_fn_with_state(gateway, caller::require_client))
        .route_layer(middleware::from_fn(access::require_json))
}

/// `GET /v1/unmatched`: the last descriptors without a rule or a policy.
async fn unmatched(State(gateway): State<Gateway>) -> Response {
    let mut fields = serde_json::Map::new();
    fields.insert("unmatched".into(), gateway.unmatched().list().into());
    reply::object(fields)
}

async fn ready(State(gateway): State<Gateway>) -> (StatusCode, &'static str) {
    match gateway.readiness().state() {
        ReadinessState::Ready => (StatusCode::OK, "ready\n"),
        ReadinessState::WaitsForPolicies => (
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready: no policies received yet\n",
        ),
        ReadinessState::Ending => (StatusCode::SERVICE_UNAVAILABLE, "not ready: shutting down\n"),
    }
}
