//! Admits the requests of the JSON interface.
//!
//! A handler receives its request as an [`AdmittedCall`], so none runs without the checks. A
//! middleware would clone the handler and box its future for every request. The order of the checks
//! matters: a rejected client costs no memory for its body, and a call takes its place when its
//! body has arrived.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request, State};
use axum::http::request::Parts;
use axum::http::{self, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::Body;
use tonic::codegen::StdError;

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
    pub(super) parts: Parts,
    pub(super) body: Bytes,
    pub(super) place: CallPlace,
}

impl AdmittedCall {
    /// Requires an allowed host, JSON, a valid client, a body within the limits, policies and a
    /// free place.
    pub(super) async fn admit<B>(gateway: Gateway, request: http::Request<B>) -> Result<Self, Problem>
    where
        B: Body<Data = Bytes, Error: Into<StdError>> + Unpin,
    {
        let (parts, body) = request.into_parts();
        access::require_allowed_host(&gateway, &parts.headers, &parts.uri)?;
        access::require_json(&parts)?;
        let caller = match Caller::of_request(gateway, &parts) {
            Ok(caller) => caller,
            Err(problem) => {
                // Boxed, because its timer would be a part of every future of a call.
                Box::pin(body::discard(body)).await;
                return Err(problem);
            }
        };
        let gateway = &caller.gateway;
        let body = body::read(gateway, &parts.headers, body).await?;
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
            parts,
            body,
            place,
        })
    }
}

impl FromRequest<Gateway> for AdmittedCall {
    type Rejection = Problem;

    async fn from_request(request: Request, gateway: &Gateway) -> Result<Self, Problem> {
        Self::admit(gateway.clone(), request).await
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
    match access::require_allowed_host(&gateway, request.headers(), request.uri()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}
