//! The service: extracts the key and admits the request.
//!
//! Most requests are decided without a wait. `call` extracts the key and tries to admit the request
//! at once; only a pending key, a wait or a store moves the ready instance and the request into the
//! future.
//!
//! Invariants: the instance that was polled ready is called, and a denial releases its readiness.
//! Tests: `tests/load/in_flight.rs`, `tests/load/max_wait.rs`, `tests/contract/paths.rs`.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::admission::AdmissionConfig;
use super::future::{Call, ConcurrencyLimitFuture};
use super::permit_body::PermitBody;
use crate::gate::{Gate, impl_service};
use crate::key::{Extraction, KeyExtractor};
use crate::rate::config::RequestScope;
use crate::rate::response_hooks::ResponseHooks;
use crate::rate::wait;

/// A service with a limit of concurrent requests. Created by
/// [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer). `S` is the inner service, `E` extracts
/// the key.
pub struct ConcurrencyLimit<S, E> {
    gate: Gate<S, AdmissionConfig, E>,
}

impl_service!(ConcurrencyLimit, AdmissionConfig);

impl<S, E, B, ResBody> Service<Request<B>> for ConcurrencyLimit<S, E>
where
    S: Service<Request<B>, Response = Response<ResBody>> + Clone,
    E: KeyExtractor<B>,
    ResBody: Body<Data = Bytes>,
{
    type Response = Response<PermitBody<ResBody>>;
    type Error = S::Error;
    type Future = ConcurrencyLimitFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.gate.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let scope = match self.gate.shared.key.extract(&request) {
            Extraction::Key(key) => RequestScope::Key(key),
            Extraction::Limits(terms) => RequestScope::RequestLimits(terms),
            Extraction::Skip => {
                return ConcurrencyLimitFuture::calling(
                    self.gate.inner.call(request),
                    ResponseHooks::default(),
                    None,
                );
            }
            Extraction::Reject(rejection) => {
                self.gate.release_ready();
                let responder = self.gate.shared.config.limits.responder();
                let response = responder.refused(rejection, &request);
                return ConcurrencyLimitFuture::with_response(Box::new(response));
            }
            Extraction::Pending(pending) => {
                return ConcurrencyLimitFuture::extracting(pending, self.take_call(request));
            }
        };
        match self.gate.shared.config.try_admit(&scope) {
            Poll::Ready(Ok(admitted)) => {
                let (response_hooks, permit_handle) =
                    self.gate.shared.config.admitted(admitted, &mut request);
                ConcurrencyLimitFuture::calling(self.gate.inner.call(request), response_hooks, permit_handle)
            }
            Poll::Ready(Err(rejection)) => {
                // A ready instance may have reserved capacity that other calls need.
                self.gate.release_ready();
                let responder = self.gate.shared.config.limits.responder();
                let response = responder.rejected(rejection, &request);
                ConcurrencyLimitFuture::with_response(Box::new(response))
            }
            Poll::Pending => {
                let bound = wait::timeout(request.headers());
                let admitting = self.gate.shared.config.pending(scope.into_owned(), bound);
                ConcurrencyLimitFuture::admitting(admitting, self.take_call(request))
            }
        }
    }
}

impl<S: Clone, E> ConcurrencyLimit<S, E> {
    fn take_call<B>(&mut self, request: Request<B>) -> Call<S, B> {
        Call {
            admission: Arc::clone(&self.gate.shared.config),
            ready: self.gate.take_ready(),
            request,
        }
    }
}
