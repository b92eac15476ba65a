//! The future of a limited request: decides, then calls or answers.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use limiter_core::{Decision, Rejection};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::body::ResponseBody;
use crate::decide::{Deciding, Limits};
use crate::key::Refusal;
use crate::respond::{Protocol, Told};

pin_project! {
    /// The future of [`RateLimit`](crate::RateLimit).
    ///
    /// In process the limiter was asked when the service was called. Redis is asked at the first poll, not before; until it
    /// has answered, the future holds the inner service that was found ready, and a denial gives it back uncalled.
    ///
    /// # Cancel safety
    ///
    /// With Redis, dropped before the first poll it has charged nothing; dropped while Redis is asked, it may have. It spawns
    /// nothing, so nothing goes on after it.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: State<S, B>,
    }
}

pin_project! {
    #[project = StateProj]
    // What is rarer than to call is boxed, and makes the future no larger.
    enum State<S: Service<Request<B>>, B> {
        Deciding { asked: Option<Box<Asked<S, B>>> },
        Calling { #[pin] inner: S::Future, shown: Option<Box<Decision>>, told: Option<Told> },
        Answered { answer: Option<Box<Answered>> },
    }
}

/// A question on its way, and the call that waits for its answer.
struct Asked<S, B> {
    deciding: Deciding,
    ready: S,
    request: Request<B>,
}

/// What is said in place of the inner service, to whom, and who says it.
struct Answered {
    answer: Answer,
    protocol: Protocol,
    limits: Arc<Limits>,
}

enum Answer {
    Rejected(Rejection),
    Refused(Refusal),
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(crate) fn deciding(deciding: Deciding, ready: S, request: Request<B>) -> Self {
        let asked = Asked {
            deciding,
            ready,
            request,
        };
        Self {
            state: State::Deciding {
                asked: Some(Box::new(asked)),
            },
        }
    }

    pub(crate) fn calling(inner: S::Future, shown: Option<Box<Decision>>, told: Option<Told>) -> Self {
        Self {
            state: State::Calling { inner, shown, told },
        }
    }

    pub(crate) fn rejected(rejection: Rejection, protocol: Protocol, limits: Arc<Limits>) -> Self {
        Self::answered(Answer::Rejected(rejection), protocol, limits)
    }

    pub(crate) fn refused(refusal: Refusal, protocol: Protocol, limits: Arc<Limits>) -> Self {
        Self::answered(Answer::Refused(refusal), protocol, limits)
    }

    fn answered(answer: Answer, protocol: Protocol, limits: Arc<Limits>) -> Self {
        Self {
            state: State::answered(answer, protocol, limits),
        }
    }
}

impl<S: Service<Request<B>>, B> State<S, B> {
    fn answered(answer: Answer, protocol: Protocol, limits: Arc<Limits>) -> Self {
        let answered = Answered {
            answer,
            protocol,
            limits,
        };
        Self::Answered {
            answer: Some(Box::new(answered)),
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
        loop {
            let next = match state.as_mut().project() {
                StateProj::Calling { inner, shown, told } => {
                    let mut response = match ready!(inner.poll(context)) {
                        Ok(response) => response,
                        Err(error) => return Poll::Ready(Err(error)),
                    };
                    if let Some(decision) = shown.take() {
                        // One that is there already is a more specific layer's, further in.
                        response.extensions_mut().get_or_insert_with(|| *decision);
                    }
                    if let Some(told) = told.take() {
                        told.write(response.headers_mut());
                    }
                    return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                }
                StateProj::Deciding { asked } => {
                    let Some(waiting) = asked else { ended() };
                    let answer = ready!(Pin::new(&mut waiting.deciding).poll(context));
                    let Some(waiting) = asked.take() else { ended() };
                    let Asked {
                        deciding,
                        mut ready,
                        mut request,
                    } = *waiting;
                    match answer {
                        Ok(decision) => {
                            let limits = deciding.limits();
                            let told = limits.told(&decision, &request);
                            let shown = limits.show(decision, &mut request);
                            State::Calling {
                                inner: ready.call(request),
                                shown,
                                told,
                            }
                        }
                        Err(rejection) => {
                            let limits = Arc::clone(deciding.limits());
                            State::answered(Answer::Rejected(rejection), Protocol::of(&request), limits)
                        }
                    }
                }
                StateProj::Answered { answer } => {
                    let Some(answer) = answer.take() else { ended() };
                    let Answered {
                        answer,
                        protocol,
                        limits,
                    } = *answer;
                    let responder = limits.responder();
                    return Poll::Ready(Ok(match answer {
                        Answer::Rejected(rejection) => responder.rejected(rejection, &protocol),
                        Answer::Refused(refusal) => responder.refused(refusal, &protocol),
                    }));
                }
            };
            state.set(next);
        }
    }
}

#[cold]
fn ended() -> ! {
    #[expect(clippy::panic, reason = "as every future, this one ends once")]
    {
        panic!("a response polled for again after it was given")
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Deciding { .. } => "Deciding",
            State::Calling { .. } => "Calling",
            State::Answered { .. } => "Answered",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
