//! The future of a limited request: decides, then calls or answers.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use limiter_core::Rejection;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::afterwards::Afterwards;
use crate::body::ResponseBody;
use crate::decide::{Deciding, Limits};
use crate::key::Refusal;
use crate::respond::Protocol;

pin_project! {
    /// The future of [`RateLimit`](crate::RateLimit).
    ///
    /// In process the limiter was asked when the service was called. Redis is asked at the first poll, not before; until it
    /// has answered, the future holds the inner service that was found ready, and a denial gives it back uncalled. So it does while
    /// it waits.
    ///
    /// # Cancel safety
    ///
    /// With Redis, dropped before the first poll it has charged nothing; dropped while Redis is asked, it may have. Dropped while it
    /// waits, it leaves the line and is charged nothing: what Redis grants it then goes to the next, or is given back. Dropped
    /// while the inner service is called, the request stays charged, at its estimate where that was to be settled.
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
        Calling { #[pin] inner: S::Future, afterwards: Afterwards },
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

    pub(crate) fn calling(inner: S::Future, afterwards: Afterwards) -> Self {
        Self {
            state: State::Calling { inner, afterwards },
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
                StateProj::Calling { inner, afterwards } => {
                    let response = ready!(inner.poll(context))?;
                    return Poll::Ready(Ok(afterwards.respond(response)));
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
                        Ok((decision, settling)) => {
                            let limits = deciding.limits();
                            let afterwards = limits.afterwards(decision, settling, &mut request);
                            State::Calling {
                                inner: ready.call(request),
                                afterwards,
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
