//! The future of a rate-limited request: decides, then calls the inner service or answers.
//!
//! The instance of the service that is ready must be the one that is called, also after a wait. The
//! future holds it with the request until the key and the decision are known. It then calls the
//! instance, or drops it uncalled, which releases the capacity that the instance has reserved.
//!
//! Invariant: an instance is called at most once, and only for an allowed or skipped request.
//! Tests: `tests/contract/paths.rs` for all paths, `tests/load/random_cancellation.rs` for dropped
//! futures.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::key::PendingKey;
use crate::rate::config::LayerConfig;
use crate::rate::next_action::{Grant, NextAction, PendingDecision};
use crate::rate::response_hooks::ResponseHooks;
use crate::responses::body::ResponseBody;

pin_project! {
    /// The future of [`RateLimit`](crate::RateLimit).
    ///
    /// In process, the limiter is called when the service is called, or when an asynchronous
    /// extractor has found the key. Redis is called at the first poll. Until the decision, and
    /// during a wait, the future holds the ready instance of the inner service; a denial returns
    /// the instance uncalled.
    ///
    /// # Cancel safety
    ///
    /// With Redis, a future that is dropped before its first poll has charged nothing; dropped
    /// during the query, it may have. Dropped during a wait, it leaves the queue and is charged
    /// nothing: a permit that Redis grants it later goes to the next waiter or is refunded. Dropped
    /// during the inner call, it stays charged, at its estimate if it was to be settled.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: ResponseState<S, B>,
    }
}

pin_project! {
    #[project = ResponseStateProj]
    // States that are rarer than a call are boxed, so that they do not enlarge the future.
    enum ResponseState<S: Service<Request<B>>, B> {
        Waiting { call: Option<Box<WaitingCall<S, B>>> },
        // The response is returned unchanged, as for most requests without rate limit headers.
        Passing { #[pin] inner: S::Future },
        Calling { #[pin] inner: S::Future, response_hooks: ResponseHooks },
        Answered { response: Option<LayerResponse> },
    }
}

/// A call that waits for a decision.
struct WaitingCall<S, B> {
    awaited: Awaited,
    limits: Arc<LayerConfig>,
    ready: S,
    request: Request<B>,
}

enum Awaited {
    Extractor(PendingKey),
    Limiter(PendingDecision<Grant>),
}

impl<S, B> WaitingCall<S, B> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<NextAction> {
        Poll::Ready(match &mut self.awaited {
            Awaited::Extractor(pending) => {
                let answer = ready!(Pin::new(pending).poll(context));
                NextAction::after(answer, &self.limits, &self.request)
            }
            Awaited::Limiter(deciding) => ready!(deciding.as_mut().poll(context)).into(),
        })
    }
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    #[inline]
    pub(crate) fn passing(inner: S::Future) -> Self {
        Self {
            state: ResponseState::Passing { inner },
        }
    }

    #[inline]
    pub(crate) fn calling(inner: S::Future, response_hooks: ResponseHooks) -> Self {
        Self {
            state: ResponseState::Calling {
                inner,
                response_hooks,
            },
        }
    }

    /// Performs the action for a request with the ready instance of the service.
    pub(crate) fn next(next: NextAction, limits: Arc<LayerConfig>, ready: S, request: Request<B>) -> Self {
        Self {
            state: ResponseState::next(next, limits, ready, request),
        }
    }
}

impl<S: Service<Request<B>>, B> ResponseState<S, B> {
    fn next(next: NextAction, limits: Arc<LayerConfig>, mut ready: S, mut request: Request<B>) -> Self {
        let awaited = match next {
            NextAction::Pass => {
                return Self::Passing {
                    inner: ready.call(request),
                };
            }
            NextAction::Call(granted) => {
                let response_hooks = limits.response_hooks(granted, &mut request);
                return Self::Calling {
                    inner: ready.call(request),
                    response_hooks,
                };
            }
            // Dropping the service releases the capacity that the ready instance may have reserved.
            NextAction::Reject(rejection) => {
                return Self::with_response(limits.responder().rejected(rejection, &request));
            }
            NextAction::Refuse(rejection) => {
                return Self::with_response(limits.responder().refused(rejection, &request));
            }
            NextAction::Extract(pending) => Awaited::Extractor(pending),
            NextAction::Decide(deciding) => Awaited::Limiter(deciding),
        };
        let waiting = WaitingCall {
            awaited,
            limits,
            ready,
            request,
        };
        Self::Waiting {
            call: Some(Box::new(waiting)),
        }
    }

    fn with_response(response: Response<ResponseBody<Infallible>>) -> Self {
        Self::Answered {
            response: Some(Box::new(response)),
        }
    }
}

impl<S, B, ResBody> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        // The common case first: the other states need more stack space.
        if let ResponseStateProj::Passing { inner } = state.as_mut().project() {
            return Poll::Ready(
                ready!(inner.poll(context)).map(|response| response.map(ResponseBody::inner)),
            );
        }
        state.poll(context)
    }
}

impl<S, B, ResBody> ResponseState<S, B>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
{
    #[inline(never)]
    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<ResponseBody<ResBody>>, S::Error>> {
        loop {
            let next = match self.as_mut().project() {
                ResponseStateProj::Passing { inner } => {
                    let response = ready!(inner.poll(context))?;
                    return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                }
                ResponseStateProj::Calling {
                    inner,
                    response_hooks,
                } => {
                    let response = ready!(inner.poll(context))?;
                    return Poll::Ready(Ok(response_hooks.respond(response)));
                }
                ResponseStateProj::Waiting { call } => {
                    let Some(waiting) = call.as_mut() else { ended() };
                    let next = ready!(waiting.poll(context));
                    let Some(call) = call.take() else { ended() };
                    ResponseState::next(next, call.limits, call.ready, call.request)
                }
                ResponseStateProj::Answered { response } => {
                    let Some(response) = response.take() else { ended() };
                    return Poll::Ready(Ok(response.map(ResponseBody::with_any_inner)));
                }
            };
            self.set(next);
        }
    }
}

/// The response of the layer itself, independent of the inner service's body type.
pub(crate) type LayerResponse = Box<Response<ResponseBody<Infallible>>>;

#[cold]
pub(crate) fn ended() -> ! {
    #[expect(clippy::panic, reason = "a future must not be polled after completion")]
    {
        panic!("`ResponseFuture` polled after completion")
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            ResponseState::Waiting { .. } => "Waiting",
            ResponseState::Passing { .. } | ResponseState::Calling { .. } => "Calling",
            ResponseState::Answered { .. } => "Answered",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
