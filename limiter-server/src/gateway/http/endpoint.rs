//! Finds the endpoints of the JSON interface without a router.
//!
//! axum's router matches patterns, stores the pattern and its parameters in the request, clones the
//! route and boxes the future of a request three times: together a tenth of the instructions of a
//! check. The paths of the endpoints have no parameters, so their requests are found by a
//! comparison. The router has the same handlers, which the description and the answers to other
//! methods need, and all other routes. Tests: `tests/http_api.rs`, `tests/openapi.rs`.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::http::{Method, Request};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use tower::Service;
use utoipa_axum::router::UtoipaMethodRouter;

use crate::gateway::Gateway;
use crate::gateway::http::guard::AdmittedCall;
use crate::gateway::http::problem::Problem;

/// The response to a request.
pub(super) type AnswerFuture = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

/// A method and a path, with their handler.
pub(super) struct Endpoint {
    method: Method,
    path: String,
    answer: fn(Gateway, Request<Incoming>) -> AnswerFuture,
}

impl Endpoint {
    /// Returns the endpoint of a described route with one path and one method.
    pub(super) fn of_route(
        (_, described, _): &UtoipaMethodRouter<Gateway>,
        answer: fn(Gateway, Request<Incoming>) -> AnswerFuture,
    ) -> Option<Self> {
        let (path, operations) = described.paths.first_key_value()?;
        let method = match operations.post.is_some() {
            true => Method::POST,
            false => Method::GET,
        };
        Some(Self {
            method,
            path: path.clone(),
            answer,
        })
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// Admits a request and passes it to its handler.
pub(super) async fn answer<A>(
    gateway: Gateway,
    request: Request<Incoming>,
    handler: impl FnOnce(AdmittedCall) -> A,
) -> Result<Response, Infallible>
where
    A: Future<Output = Result<Response, Problem>>,
{
    let answered = match AdmittedCall::admit(gateway, request).await {
        Ok(call) => handler(call).await,
        Err(problem) => Err(problem),
    };
    Ok(answered.into_response())
}

/// The endpoints, and a router for all other requests. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Routes(Arc<SharedRoutes>);

#[derive(Debug)]
struct SharedRoutes {
    gateway: Gateway,
    endpoints: Vec<Endpoint>,
    router: Router,
}

impl Routes {
    /// Creates a service that compares the endpoints in their order.
    pub(super) fn new(gateway: Gateway, endpoints: Vec<Endpoint>, router: Router) -> Self {
        Self(Arc::new(SharedRoutes {
            gateway,
            endpoints,
            router,
        }))
    }
}

impl Service<Request<Incoming>> for Routes {
    type Response = Response;
    type Error = Infallible;
    type Future = AnswerFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> AnswerFuture {
        let shared = &*self.0;
        let (method, path) = (request.method(), request.uri().path());
        let mut endpoints = shared.endpoints.iter();
        match endpoints.find(|of| of.path == path && of.method == method) {
            Some(endpoint) => (endpoint.answer)(shared.gateway.clone(), request),
            None => Box::pin(shared.router.clone().call(request)),
        }
    }
}
