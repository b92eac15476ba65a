//! Admits the requests of the JSON interface.
//!
//! One middleware makes all checks, because each layer of a router boxes the request again. The
//! order matters: a rejected client costs no memory for its body, and a call takes its place when
//! its body has arrived.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::gateway::Gateway;
use crate::gateway::admission::CallPlace;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::{access, body, caller};
use crate::gateway::readiness::ReadinessState;

/// Requires an allowed host, JSON, a valid client, a body within the limits, policies and a free
/// place.
pub(super) async fn admit(State(gateway): State<Gateway>, request: Request, next: Next) -> Response {
    match receive(&gateway, request).await {
        Ok((request, _place)) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

async fn receive(gateway: &Gateway, request: Request) -> Result<(Request, CallPlace), Problem> {
    access::require_allowed_host(gateway, &request)?;
    access::require_json(&request)?;
    if let Err(problem) = caller::require_client(gateway, &request) {
        body::discard(request).await;
        return Err(problem);
    }
    let request = body::read(gateway, request).await?;
    if gateway.readiness().state() == ReadinessState::WaitsForPolicies {
        // Every policy would be unknown, and an unknown policy can be allowed by the settings.
        let detail = "the server has no policies yet; retry after a pause";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail.into()));
    }
    let place = gateway.admission().begin_call().ok_or_else(|| {
        let detail = "too many calls are in flight; retry after a pause";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail.into())
    })?;
    Ok((request, place))
}

/// Rejects requests of other hosts, for routes without a body.
pub(super) async fn require_allowed_host(
    State(gateway): State<Gateway>,
    request: Request,
    next: Next,
) -> Response {
    match access::require_allowed_host(&gateway, &request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}
