//! The future of a limited request: decides, then calls or answers.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use limiter_core::Decision;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::body::ResponseBody;
use crate::decide::Deciding;
use crate::key::Refusal;
use crate::respond::{self, Protocol};

pin_project! {
    /// The future of [`RateLimit`](crate::RateLimit).
    ///
    /// The limiter is asked at the first poll, not before. Until it has answered, the future holds the inner service that
    /// was found ready; a denial gives it back uncalled.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the first poll, it has charged nothing. Dropped while Redis is asked, it may have. It spawns
    /// nothing, so nothing goes on after it.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: State<S, B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S: Service<Request<B>>, B> {
        Deciding { deciding: Deciding, call: Option<(S, Request<B>)> },
        Calling { #[pin] inner: S::Future, decision: Option<Decision> },
        Refused { refusal: Option<(Refusal, Protocol)> },
        Done,
    }
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(crate) fn deciding(deciding: Deciding, ready: S, request: Request<B>) -> Self {
        Self {
            state: State::Deciding {
                deciding,
                call: Some((ready, request)),
            },
        }
    }

    pub(crate) fn unlimited(inner: S::Future) -> Self {
        Self {
            state: State::Calling {
                inner,
                decision: None,
            },
        }
    }

    pub(crate) fn refused(refusal: Refusal, protocol: Protocol) -> Self {
        Self {
            state: State::Refused {
                refusal: Some((refusal, protocol)),
            },
        }
    }
}

impl<S, B, ResBody> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        let response = loop {
            match state.as_mut().project() {
                StateProj::Deciding { deciding, call } => {
                    let answer = ready!(Pin::new(deciding).poll(context));
                    let Some((mut ready, mut request)) = call.take() else {
                        break None;
                    };
                    match answer {
                        Ok(decision) => {
                            request.extensions_mut().insert(decision.clone());
                            let inner = ready.call(request);
                            state.set(State::Calling {
                                inner,
                                decision: Some(decision),
                            });
                        }
                        Err(rejection) => break Some(respond::rejected(rejection, &Protocol::of(&request))),
                    }
                }
                StateProj::Calling { inner, decision } => {
                    let answer = ready!(inner.poll(context));
                    let decision = decision.take();
                    state.set(State::Done);
                    return Poll::Ready(
                        answer.map(|response| with_decision(response, decision).map(ResponseBody::inner)),
                    );
                }
                StateProj::Refused { refusal } => {
                    break refusal
                        .take()
                        .map(|(refusal, protocol)| respond::refused(refusal, &protocol));
                }
                StateProj::Done => break None,
            }
        };
        state.set(State::Done);
        #[expect(clippy::expect_used, reason = "as every future, this one ends once")]
        let response = response.expect("a response polled for again after it was given");
        Poll::Ready(Ok(response))
    }
}

/// Leaves a decision that is there already: it is a more specific layer's, further in.
fn with_decision<ResBody>(mut response: Response<ResBody>, decision: Option<Decision>) -> Response<ResBody> {
    if let Some(decision) = decision {
        response.extensions_mut().get_or_insert_with(|| decision);
    }
    response
}

impl<S: Service<Request<B>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Deciding { .. } => "Deciding",
            State::Calling { .. } => "Calling",
            State::Refused { .. } => "Refused",
            State::Done => "Done",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
