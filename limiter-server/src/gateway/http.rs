//! The HTTP listener: decisions as JSON, health, readiness and metrics.
//!
//! `endpoints` lists the handlers of the JSON interface once: `Routes` finds them by a comparison
//! of the path, and the router has them for other methods and for the OpenAPI document. `/healthz`,
//! `/readyz` and `/readyz/gateway` have no access check. `/metrics` and `/openapi.json` require an
//! allowed `Host`, and the JSON interface all checks of `guard`.
//!
//! Tests: `tests/http_api.rs`, `tests/openapi.rs`, `tests/serve.rs`.

mod access;
mod body;
mod caller;
mod check;
mod client_id;
mod endpoint;
mod envoy_json;
mod forward_auth;
mod guard;
mod json_text;
mod openapi;
mod permits;
mod problem;
mod reply;
mod request;
mod reservations;
mod resolved_limits;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router, middleware};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use crate::access::{Action, Target};
use crate::gateway::Gateway;
use crate::gateway::http::endpoint::{AnswerFuture, Endpoint, Routes};
use crate::gateway::http::guard::AdmittedCall;
use crate::gateway::http::problem::Problem;
use crate::gateway::readiness::ReadinessState;
use crate::listener::http::HttpVersions;
use crate::listener::{self, Listener};

/// The path of the metrics.
pub(crate) const METRICS_PATH: &str = "/metrics";

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
    let endpoints = endpoints().into_iter().flat_map(|(_, endpoint)| endpoint);
    let router = router(gateway.clone(), metrics);
    let routes = Routes::new(gateway, endpoints.collect(), router);
    listener::http::serve(listener, HttpVersions::All, routes, end).await;
    Ok(())
}

/// Returns the routes.
pub fn router(gateway: Gateway, metrics: PrometheusHandle) -> Router {
    let require_host = middleware::from_fn_with_state(gateway.clone(), guard::require_allowed_host);
    let document = openapi::Document::default();
    let observed = OpenApiRouter::new()
        .routes(routes!(render_metrics))
        .routes(routes!(openapi::document))
        .layer(Extension(metrics))
        .layer(Extension(document.clone()))
        .route_layer(require_host);
    let (routes, description) = OpenApiRouter::with_openapi(openapi::description())
        .routes(routes!(alive))
        .routes(routes!(ready))
        .routes(routes!(gateway_ready))
        .merge(observed)
        .merge(api())
        .with_state(gateway)
        .split_for_parts();
    document.describe(&description);
    routes
}

/// Returns the metrics alone, for a process without the listeners of the gateway.
pub(crate) fn metrics_router(gateway: Gateway, metrics: PrometheusHandle) -> Router {
    let require_host = middleware::from_fn_with_state(gateway.clone(), guard::require_allowed_host);
    Router::new()
        .route(METRICS_PATH, get(render_metrics))
        .layer(Extension(metrics))
        .route_layer(require_host)
        .with_state(gateway)
}

/// Describes a handler of admitted calls for the router, and as an endpoint.
macro_rules! endpoint {
    ($($handler:tt)+) => {{
        let route = routes!($($handler)+);
        let answer = |gateway, request| -> AnswerFuture {
            Box::pin(endpoint::answer(gateway, request, $($handler)+))
        };
        let endpoint = Endpoint::of_route(&route, answer);
        (route, endpoint)
    }};
}

/// Returns the routes of the JSON interface, the most frequent first.
fn endpoints() -> [(UtoipaMethodRouter<Gateway>, Option<Endpoint>); 12] {
    [
        endpoint!(check::check),
        endpoint!(check::peek),
        endpoint!(permits::acquire),
        endpoint!(permits::renew),
        endpoint!(permits::release),
        endpoint!(reservations::reserve),
        endpoint!(reservations::settle),
        endpoint!(check::refund),
        endpoint!(check::reset),
        endpoint!(unmatched),
        endpoint!(envoy_json::should_rate_limit),
        endpoint!(forward_auth::forward_auth),
    ]
}

/// Returns the router of the JSON interface.
fn api() -> OpenApiRouter<Gateway> {
    let routes = endpoints().into_iter().map(|(route, _)| route);
    routes.fold(OpenApiRouter::new(), |all, (schemas, paths, methods)| {
        all.routes((schemas, paths, methods.fallback(guard::reject_method)))
    })
}

/// Returns the last descriptors without a rule or a policy. They are those of all domains, so a
/// client needs the scope `peek:*` or `check:*`.
#[utoipa::path(
    get,
    path = "/v1/unmatched",
    responses(
        (status = 200, description = "up to 100 descriptors", body = Object),
        openapi::ProblemResponses,
    ),
)]
async fn unmatched(call: AdmittedCall) -> Result<Response, Problem> {
    let AdmittedCall { caller, .. } = &call;
    caller.require_on(Action::Peek, &Target::NONE)?;
    let mut fields = serde_json::Map::new();
    fields.insert("unmatched".into(), caller.gateway.unmatched().list().into());
    Ok(reply::object(fields))
}

/// Metrics in the format of Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    responses((status = 200, description = "samples", body = String)),
)]
async fn render_metrics(
    State(gateway): State<Gateway>,
    Extension(metrics): Extension<PrometheusHandle>,
) -> String {
    gateway.admission().report();
    metrics.render()
}

/// Answers while the process runs.
#[utoipa::path(
    get,
    path = "/healthz",
    responses((status = 200, description = "the process runs", body = String)),
)]
async fn alive() -> &'static str {
    "alive\n"
}

/// Reports whether decisions are possible.
#[utoipa::path(
    get,
    path = "/readyz",
    responses(
        (status = 200, description = "ready", body = String),
        (status = 503, description = "no policies yet, or shutting down", body = String),
    ),
)]
async fn ready(State(gateway): State<Gateway>) -> (StatusCode, &'static str) {
    match gateway.readiness().state() {
        ReadinessState::Ready if has_no_policies(&gateway) => (
            StatusCode::OK,
            "ready, without policies: publish policies, or check the namespace\n",
        ),
        ReadinessState::Ready => (StatusCode::OK, "ready\n"),
        ReadinessState::WaitsForPolicies => (
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready: no policies received yet\n",
        ),
        ReadinessState::Ending => (StatusCode::SERVICE_UNAVAILABLE, "not ready: shutting down\n"),
    }
}

/// Returns true if the registry in Redis, under another namespace, has no policies.
fn has_no_policies(gateway: &Gateway) -> bool {
    let registry = gateway.limiter().registry();
    registry.published().is_none() && registry.names().is_empty()
}

/// Reports whether decisions are possible, as `/readyz`. The name states that it does not depend on
/// the control plane.
#[utoipa::path(
    get,
    path = "/readyz/gateway",
    responses(
        (status = 200, description = "ready", body = String),
        (status = 503, description = "no policies yet, or shutting down", body = String),
    ),
)]
async fn gateway_ready(state: State<Gateway>) -> (StatusCode, &'static str) {
    ready(state).await
}
