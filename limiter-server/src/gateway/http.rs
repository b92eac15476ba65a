//! The HTTP listener: health, readiness and metrics.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::gateway::Gateway;
use crate::gateway::readiness::ReadinessState;

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
        .with_state(gateway)
        .route(
            "/metrics",
            get(move || {
                let metrics = metrics.clone();
                async move { metrics.render() }
            }),
        )
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
