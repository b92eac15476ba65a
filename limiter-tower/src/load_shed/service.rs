//! The load shedding service: classifies a request, then calls the inner service or answers.
//!
//! An overloaded process has to reject requests at low cost. Classification and admission happen in
//! `call`, without an allocation, a store or a wait. A shed request gets 503 and releases the
//! readiness that other callers may need.
//!
//! Invariant: a shed request never calls the inner service. Tests: `tests/load/shed.rs`, and
//! `load_shed_layer_allocates_nothing` in `tests/allocations.rs`.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use limiter_core::__private::{RETRY_PUSHBACK_MS, whole_seconds};
use tower_service::Service;

use super::classify::{Classify, DefaultPriority};
use super::config::ShedConfig;
use super::future::LoadShedFuture;
use super::in_flight_counter::InFlightGuard;
use super::priority::Priority;
use crate::gate::{Gate, impl_service};
use crate::key::KeyRejection;
use crate::load_shed::body::LoadShedBody;
use crate::rate::future::LayerResponse;
use crate::responses::Protocol;

/// An extension of the response to a shed request, for outer layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overloaded {
    /// The request's class.
    pub priority: Priority,
}

/// A service with a limited number of requests in flight, which sheds requests of low priority
/// first. Created by [`LoadShedLayer`](crate::LoadShedLayer). `S` is the inner service, `E` the
/// classifier.
pub struct LoadShed<S, E = DefaultPriority> {
    gate: Gate<S, ShedConfig, E>,
}

impl_service!(LoadShed, ShedConfig);

impl<S, C, B, ResBody> Service<Request<B>> for LoadShed<S, C>
where
    S: Service<Request<B>, Response = Response<ResBody>> + Clone,
    C: Classify<B>,
    ResBody: Body<Data = Bytes>,
{
    type Response = Response<LoadShedBody<ResBody, InFlightGuard>>;
    type Error = S::Error;
    type Future = LoadShedFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.gate.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let place = match self.gate.shared.config.class_of(&*self.gate.shared.key, &request) {
            None => None,
            Some(class) => match self.gate.shared.config.enter(class) {
                Some(place) => Some(place),
                None => {
                    // Other callers may need the capacity that readiness has reserved.
                    self.gate.release_ready();
                    return LoadShedFuture::with_response(
                        self.gate.shared.config.overloaded(class, &request),
                    );
                }
            },
        };
        let length = (*request.method() == Method::HEAD).then_some(0);
        LoadShedFuture::calling(self.gate.inner.call(request), place).with_length(length)
    }
}

impl ShedConfig {
    #[cold]
    fn overloaded<B>(&self, priority: Priority, request: &Request<B>) -> LayerResponse {
        tracing::debug!(?priority, "request shed; too many requests in flight");
        let rejection = KeyRejection::new(StatusCode::SERVICE_UNAVAILABLE, "the service is overloaded");
        let mut response = self.responder.refused(rejection, request);
        if let Some(after) = self.retry_after {
            let (name, value) = match Protocol::from_request(request) {
                Protocol::Http => (header::RETRY_AFTER, HeaderValue::from(whole_seconds(after))),
                Protocol::Grpc { .. } => {
                    // A duration beyond the range is sent as the maximum.
                    let millis = i32::try_from(after.as_micros().div_ceil(1_000)).unwrap_or(i32::MAX);
                    (
                        HeaderName::from_static(RETRY_PUSHBACK_MS),
                        HeaderValue::from(millis),
                    )
                }
            };
            response.headers_mut().insert(name, value);
        }
        response.extensions_mut().insert(Overloaded { priority });
        Box::new(response)
    }
}
