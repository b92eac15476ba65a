//! The HTTP listener: decisions as JSON, health, readiness and metrics.
//!
//! Tests: `tests/http_api.rs`.

mod access;
mod caller;
mod check;
mod client_id;
mod permits;
mod problem;
mod reply;
mod request;
mod reservations;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Router, middleware};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::gateway::Gateway;
use crate::gateway::readiness::ReadinessState;

/// The largest body of a request, in bytes.
const MAX_BODY: usize = 256 * 1_024;

/// Serves HTTP until `end` is true, then finishes the requests in flight.
///
/// # Errors
///
/// The reason why the listener failed.
pub async fn serve(
    gateway: Gateway,
    metrics: PrometheusHandle,
    listener: TcpListener,
    mut end: watch::Receiver<bool>,
) -> Result<(), String> {
    let ended = async move {
        // An error means that the sender is gone, which is an end as well.
        let _ = end.wait_for(|end| *end).await;
    };
    axum::serve(listener, router(gateway, metrics))
        .with_graceful_shutdown(ended)
        .await
        .map_err(|error| format!("the HTTP listener failed: {error}"))
}

/// The routes.
pub fn router(gateway: Gateway, metrics: PrometheusHandle) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .merge(api(gateway.clone()))
        .with_state(gateway)
        .route(
            "/metrics",
            get(move || {
                let metrics = metrics.clone();
                async move { metrics.render() }
            }),
        )
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
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .route_layer(middleware::from_fn_with_state(gateway, caller::require_client))
        .route_layer(middleware::from_fn(access::require_local_host))
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
