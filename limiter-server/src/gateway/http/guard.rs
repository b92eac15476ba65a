//! Admits the requests of the JSON interface.
//!
//! A handler receives its request as an [`AdmittedCall`], so none runs without the checks. They are
//! an extractor and not a middleware, because each layer of a router clones the inner service and
//! boxes its future for every request. The order of the checks matters: a rejected client costs no
//! memory for its body, and a call takes its place when its body has arrived.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request, State};
use axum::http::{self, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::gateway::Gateway;
use crate::gateway::admission::CallPlace;
use crate::gateway::http::caller::Caller;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::{access, body};
use crate::gateway::readiness::ReadinessState;

/// A request that was admitted. It keeps its place until it is dropped.
#[derive(Debug)]
pub(super) struct AdmittedCall {
    pub(super) caller: Caller,
    /// The request with its whole body.
    pub(super) request: http::Request<Bytes>,
    _place: CallPlace,
}

impl AdmittedCall {
    /// The body.
    pub(super) fn body(&self) -> &[u8] {
        self.request.body()
    }
}

/// Requires an allowed host, JSON, a valid client, a body within the limits, policies and a free
/// place.
impl FromRequest<Gateway> for AdmittedCall {
    type Rejection = Problem;

    async fn from_request(request: Request, gateway: &Gateway) -> Result<Self, Problem> {
        access::require_allowed_host(gateway, &request)?;
        access::require_json(&request)?;
        let caller = match Caller::of_request(gateway, &request) {
            Ok(caller) => caller,
            Err(problem) => {
                // Boxed, because its timer would be a part of every future of a call.
                Box::pin(body::discard(request)).await;
                return Err(problem);
            }
        };
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
        Ok(Self {
            caller,
            request,
            _place: place,
        })
    }
}

/// Answers an admitted request whose path has no such method. The router adds the header `Allow`.
pub(super) async fn reject_method(_: AdmittedCall) -> StatusCode {
    StatusCode::METHOD_NOT_ALLOWED
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
