//! The future of an outbound request: decides, then calls the client and observes the response.
//!
//! A request that waits must call the instance of the client that is ready. The future holds it in
//! a box with the request until the decision is made; a request that is not sent drops the instance
//! uncalled. After the call, `ObserveResponse` records the pause that the peer requests.
//!
//! Invariant: an instance is called at most once, and only for an admitted or skipped request.
//! Tests: `tests/outbound/contract.rs`, `tests/contract/paths.rs`.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use limiter_core::{Decision, Key};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::error::{BoxError, NotSent};
use super::peer_limits::PeerLimits;
use crate::key::{Extraction, PendingKey};
use crate::rate::wait;

pin_project! {
    /// The future of [`Outbound`](crate::outbound::Outbound).
    ///
    /// While the request waits, or Redis is queried, the future holds the ready client instance. A
    /// request that is not sent returns the instance uncalled.
    ///
    /// # Cancel safety
    ///
    /// A request that is dropped while it waits for a permit or for the end of a pause leaves the
    /// queue and is not charged. A request that does not wait, and is dropped during the query to
    /// Redis, may have been charged.
    #[must_use = "futures do nothing unless polled"]
    pub struct OutboundFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: OutboundState<S, B>,
    }
}

pin_project! {
    #[project = OutboundStateProj]
    enum OutboundState<S: Service<Request<B>>, B> {
        DecisionFuture { pending_call: Option<Box<PendingCall<S, B>>> },
        Calling { #[pin] inner: S::Future, listening: Option<ObserveResponse> },
        NotSent { error: Option<BoxError> },
    }
}

/// A pending decision, with the request that waits for it.
struct PendingCall<S, B> {
    asking: DecisionFuture,
    ready: S,
    request: Request<B>,
}

/// The limiter's future borrows values that a `Service::Future` cannot hold, so it is boxed.
type DecisionFuture = Pin<Box<dyn Future<Output = Result<Option<ObserveResponse>, NotSent>> + Send>>;

/// The handling of a response.
pub(super) struct ObserveResponse {
    peer: Arc<PeerLimits>,
    key: Key<'static>,
    shown: Option<Box<Decision>>,
}

impl ObserveResponse {
    /// Creates the state before the call. The decision is attached if it was made without the
    /// store, or if it would differ when enforced.
    pub(super) fn new(peer: &Arc<PeerLimits>, key: Key<'static>, decision: Decision) -> Self {
        let is_special = decision.store_error().is_some() || decision.would_deny() || decision.is_degraded();
        Self {
            peer: Arc::clone(peer),
            key,
            shown: is_special.then(|| Box::new(decision)),
        }
    }

    fn to<B>(self, response: &mut Response<B>) {
        self.peer.observe_response(&self.key, response);
        if let Some(decision) = self.shown {
            // An existing decision comes from an inner layer, which is more specific.
            response.extensions_mut().get_or_insert_with(|| *decision);
        }
    }
}

/// Decides the request. The wait ends at the latest at the timeout that the request states.
async fn decide(
    peer: Arc<PeerLimits>,
    key: Key<'static>,
    bound: Option<Duration>,
) -> Result<Option<ObserveResponse>, NotSent> {
    let decision = peer.decide(&key, bound).await.map_err(NotSent::Rejected)?;
    Ok(Some(ObserveResponse::new(&peer, key, decision)))
}

impl<S: Service<Request<B>>, B> OutboundFuture<S, B> {
    pub(super) fn deciding(peer: Arc<PeerLimits>, key: Key<'static>, ready: S, request: Request<B>) -> Self {
        let bound = wait::timeout(request.headers());
        Self::waiting(Box::pin(decide(peer, key, bound)), ready, request)
    }

    /// Waits for an asynchronous key, and decides the request with it.
    pub(super) fn extracting(
        peer: Arc<PeerLimits>,
        pending: PendingKey,
        ready: S,
        request: Request<B>,
    ) -> Self {
        let bound = wait::timeout(request.headers());
        let asking = Box::pin(async move {
            let mut pending = pending;
            loop {
                pending = match pending.await {
                    Extraction::Key(key) => return decide(peer, key, bound).await,
                    Extraction::Skip => return Ok(None),
                    Extraction::Reject(rejection) => return Err(NotSent::Refused(rejection)),
                    Extraction::Limits(_) => return Err(NotSent::request_limits()),
                    Extraction::Pending(pending) => pending,
                };
            }
        });
        Self::waiting(asking, ready, request)
    }

    fn waiting(asking: DecisionFuture, ready: S, request: Request<B>) -> Self {
        let pending_call = PendingCall {
            asking,
            ready,
            request,
        };
        let pending_call = Some(Box::new(pending_call));
        Self {
            state: OutboundState::DecisionFuture { pending_call },
        }
    }

    pub(super) fn calling(inner: S::Future, listening: Option<ObserveResponse>) -> Self {
        Self {
            state: OutboundState::Calling { inner, listening },
        }
    }

    pub(super) fn unsent(error: BoxError) -> Self {
        Self {
            state: OutboundState::NotSent { error: Some(error) },
        }
    }
}

impl<S, B, ResBody> Future for OutboundFuture<S, B>
where
    S: Service<Request<B>, Response = Response<ResBody>, Error: Into<BoxError>>,
{
    type Output = Result<Response<ResBody>, BoxError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                OutboundStateProj::Calling { inner, listening } => {
                    let mut response = ready!(inner.poll(context)).map_err(Into::into)?;
                    if let Some(listening) = listening.take() {
                        listening.to(&mut response);
                    }
                    return Poll::Ready(Ok(response));
                }
                OutboundStateProj::DecisionFuture { pending_call } => {
                    let Some(waiting) = pending_call else { ended() };
                    let answer = ready!(waiting.asking.as_mut().poll(context));
                    let Some(waiting) = pending_call.take() else {
                        ended()
                    };
                    let PendingCall {
                        mut ready, request, ..
                    } = *waiting;
                    match answer {
                        Ok(listening) => OutboundState::Calling {
                            inner: ready.call(request),
                            listening,
                        },
                        Err(unsent) => OutboundState::NotSent {
                            error: Some(unsent.error_of(&request)),
                        },
                    }
                }
                OutboundStateProj::NotSent { error } => {
                    let Some(error) = error.take() else { ended() };
                    return Poll::Ready(Err(error));
                }
            };
            state.set(next);
        }
    }
}

#[cold]
fn ended() -> ! {
    #[expect(clippy::panic, reason = "a future must not be polled after completion")]
    {
        panic!("`OutboundFuture` polled after completion")
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for OutboundFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            OutboundState::DecisionFuture { .. } => "DecisionFuture",
            OutboundState::Calling { .. } => "Calling",
            OutboundState::NotSent { .. } => "NotSent",
        };
        f.debug_struct("OutboundFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
