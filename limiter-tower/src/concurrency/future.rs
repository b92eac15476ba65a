//! The future of a concurrency-limited request: admits the request, calls the inner service, and
//! moves the permit into the response's body.
//!
//! The request is in flight until its response body ends, so a response with a body takes the
//! permit with it. If the call fails or the body is already at its end, or if the server sends no
//! body (HEAD), the future first waits for the release of the permit, so that a sequential client
//! is not denied by its own previous request.
//!
//! Invariant: a permit is never leaked, also if the future or the body is dropped. Tests:
//! `tests/load/bodies.rs`, `tests/load/sequential.rs`, `tests/load/random_cancellation.rs`.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use limiter_core::Rejection;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::admission::{AdmissionConfig, Admitted};
use super::permit_body::PermitBody;
use super::permit_handle::{PermitHandle, Release};
use crate::key::{Extraction, KeyRejection, PendingKey};
use crate::rate::config::RequestScope;
use crate::rate::future::{LayerResponse, ended};
use crate::rate::next_action::PendingDecision;
use crate::rate::response_hooks::ResponseHooks;
use crate::rate::wait;
use crate::responses::body::known_length;

pin_project! {
    /// The future of [`ConcurrencyLimit`](crate::concurrency::ConcurrencyLimit).
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped releases its permit, or leaves the queue. A permit that Redis may
    /// have granted meanwhile is released in the background.
    #[must_use = "futures do nothing unless polled"]
    pub struct ConcurrencyLimitFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: ConcurrencyState<S, B>,
    }
}

pin_project! {
    #[project = ConcurrencyStateProj]
    // States that are rarer than a call are boxed, so that they do not enlarge the future.
    enum ConcurrencyState<S: Service<Request<B>>, B> {
        Extracting { pending: Option<Box<(PendingKey, Call<S, B>)>> },
        Admitting { pending: Option<Box<(PendingDecision<Admitted>, Call<S, B>)>> },
        Calling { #[pin] inner: S::Future, response_hooks: ResponseHooks, permit_handle: Option<PermitHandle> },
        Releasing { release: Release, called: Option<Called<S, B>> },
        Answered { response: Option<LayerResponse> },
    }
}

/// A finished call without a response body.
struct Called<S: Service<Request<B>>, B> {
    result: Result<S::Response, S::Error>,
    response_hooks: ResponseHooks,
}

/// A pending call of the service instance that is ready.
pub(super) struct Call<S, B> {
    pub(super) admission: Arc<AdmissionConfig>,
    pub(super) ready: S,
    pub(super) request: Request<B>,
}

impl<S: Service<Request<B>>, B> ConcurrencyLimitFuture<S, B> {
    pub(super) fn extracting(pending: PendingKey, call: Call<S, B>) -> Self {
        let pending = Some(Box::new((pending, call)));
        Self {
            state: ConcurrencyState::Extracting { pending },
        }
    }

    pub(super) fn admitting(pending: PendingDecision<Admitted>, call: Call<S, B>) -> Self {
        let pending = Some(Box::new((pending, call)));
        Self {
            state: ConcurrencyState::Admitting { pending },
        }
    }

    pub(super) fn calling(
        inner: S::Future,
        response_hooks: ResponseHooks,
        permit_handle: Option<PermitHandle>,
    ) -> Self {
        Self {
            state: ConcurrencyState::Calling {
                inner,
                response_hooks,
                permit_handle,
            },
        }
    }

    pub(super) fn with_response(response: LayerResponse) -> Self {
        let response = Some(response);
        Self {
            state: ConcurrencyState::Answered { response },
        }
    }
}

impl<S: Service<Request<B>>, B> Call<S, B> {
    /// Continues with the result of the extractor, as after a synchronous extraction.
    fn extracted(mut self, answer: Extraction<'static>) -> ConcurrencyState<S, B> {
        let scope = match answer {
            Extraction::Key(key) => RequestScope::Key(key),
            Extraction::Limits(request_limits) => RequestScope::RequestLimits(request_limits),
            Extraction::Skip => {
                return ConcurrencyState::Calling {
                    inner: self.ready.call(self.request),
                    response_hooks: ResponseHooks::default(),
                    permit_handle: None,
                };
            }
            Extraction::Reject(rejection) => return self.refused(rejection),
            Extraction::Pending(pending) => {
                let pending = Some(Box::new((pending, self)));
                return ConcurrencyState::Extracting { pending };
            }
        };
        match self.admission.try_admit(&scope) {
            Poll::Ready(answer) => self.on_decision(answer),
            Poll::Pending => {
                let bound = wait::timeout(self.request.headers());
                let admitting = self.admission.pending(scope, bound);
                let pending = Some(Box::new((admitting, self)));
                ConcurrencyState::Admitting { pending }
            }
        }
    }

    fn on_decision(mut self, answer: Result<Admitted, Rejection>) -> ConcurrencyState<S, B> {
        match answer {
            Ok(admitted) => {
                let (response_hooks, permit_handle) = self.admission.admitted(admitted, &mut self.request);
                ConcurrencyState::Calling {
                    inner: self.ready.call(self.request),
                    response_hooks,
                    permit_handle,
                }
            }
            Err(rejection) => {
                let responder = self.admission.limits.responder();
                let response = responder.rejected(rejection, &self.request);
                let response = Some(Box::new(response));
                ConcurrencyState::Answered { response }
            }
        }
    }

    fn refused(self, rejection: KeyRejection) -> ConcurrencyState<S, B> {
        let responder = self.admission.limits.responder();
        let response = responder.refused(rejection, &self.request);
        let response = Some(Box::new(response));
        ConcurrencyState::Answered { response }
    }
}

impl<S, B, ResBody> Future for ConcurrencyLimitFuture<S, B>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
    ResBody: Body<Data = Bytes>,
{
    type Output = Result<Response<PermitBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                ConcurrencyStateProj::Calling {
                    inner,
                    response_hooks,
                    permit_handle,
                } => {
                    let result = ready!(inner.poll(context));
                    let (permit_handle, mut response_hooks) =
                        (permit_handle.take(), mem::take(response_hooks));
                    let length = result.as_ref().ok().and_then(known_length);
                    let has_ended = permit_handle.as_ref().is_some_and(PermitHandle::ends_with_head)
                        || length == Some(0)
                        || (result.as_ref()).map_or(true, |response| response.body().is_end_stream());
                    if !has_ended {
                        return Poll::Ready(result.map(|response| {
                            response_hooks
                                .respond(response)
                                .map(|body| PermitBody::new(body, permit_handle).with_length(length))
                        }));
                    }
                    match permit_handle.and_then(PermitHandle::release) {
                        Some(release) => ConcurrencyState::Releasing {
                            release,
                            called: Some(Called {
                                result,
                                response_hooks,
                            }),
                        },
                        None => return Poll::Ready(respond(result, response_hooks)),
                    }
                }
                ConcurrencyStateProj::Releasing { release, called } => {
                    ready!(Pin::new(release).poll(context));
                    let Some(Called {
                        result,
                        response_hooks,
                    }) = called.take()
                    else {
                        ended()
                    };
                    return Poll::Ready(respond(result, response_hooks));
                }
                ConcurrencyStateProj::Extracting { pending } => {
                    let Some(waiting) = pending else { ended() };
                    let answer = ready!(Pin::new(&mut waiting.0).poll(context));
                    let Some(waiting) = pending.take() else { ended() };
                    waiting.1.extracted(answer)
                }
                ConcurrencyStateProj::Admitting { pending } => {
                    let Some(waiting) = pending else { ended() };
                    let answer = ready!(Pin::new(&mut waiting.0).poll(context));
                    let Some(waiting) = pending.take() else { ended() };
                    waiting.1.on_decision(answer)
                }
                ConcurrencyStateProj::Answered { response } => {
                    let Some(response) = response.take() else { ended() };
                    return Poll::Ready(Ok(
                        response.map(|body| PermitBody::new(body.with_any_inner(), None))
                    ));
                }
            };
            state.set(next);
        }
    }
}

/// Returns the response of a request without a permit.
fn respond<B, E>(
    result: Result<Response<B>, E>,
    mut response_hooks: ResponseHooks,
) -> Result<Response<PermitBody<B>>, E> {
    let response = response_hooks.respond(result?);
    Ok(response.map(|body| PermitBody::new(body, None)))
}

impl<S: Service<Request<B>>, B> fmt::Debug for ConcurrencyLimitFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            ConcurrencyState::Extracting { .. } => "Extracting",
            ConcurrencyState::Admitting { .. } => "Admitting",
            ConcurrencyState::Calling { .. } => "Calling",
            ConcurrencyState::Releasing { .. } => "Releasing",
            ConcurrencyState::Answered { .. } => "Answered",
        };
        f.debug_struct("ConcurrencyLimitFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
